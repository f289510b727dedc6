//! Runs many seeds, each in a process of its own, so that a seed always starts from the same process state: random
//! numbers, time, and counters in statics. The process is the program `simulate` with `--alone`.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::random::{self, Failure, Summary};

/// Environment variable with the seed for all randomness of the process; read by `seeded.c`.
const SEED: &str = "DROVER_SIMULATION_SEED";
/// Real time after which a run is considered hung.
const ENDLESS: Duration = Duration::from_secs(300);
/// Maximum length of the output shown of a process that died.
const LAST_WORDS: usize = 2_000;

/// Result of a process.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done(Summary),
    Failed(Failure),
}

/// A batch of runs.
#[derive(Clone, Debug)]
pub struct Runs {
    /// Path of the program `simulate`.
    pub program: PathBuf,
    /// The first seed.
    pub first: u64,
    /// Number of consecutive seeds.
    pub seeds: u64,
    /// Steps per run.
    pub steps: usize,
    /// Number of concurrent processes.
    pub jobs: usize,
    /// Stops after this many failures.
    pub failures: usize,
    /// Stops after this time.
    pub within: Duration,
}

/// Result of a batch.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of seeds run.
    pub seeds: u64,
    /// Statistics of the successful runs.
    pub sum: Summary,
    /// Failed runs, by seed.
    pub failures: Vec<Failure>,
}

impl Runs {
    /// Creates a batch of seeds with one process per CPU that stops at the first failure.
    #[must_use]
    pub fn new(program: &Path, first: u64, seeds: u64, steps: usize) -> Self {
        Self {
            program: program.to_owned(),
            first,
            seeds,
            steps,
            jobs: thread::available_parallelism().map_or(1, Into::into),
            failures: 1,
            within: Duration::MAX,
        }
    }

    /// Runs all seeds. `told` is called with each result as soon as it is available.
    pub fn run(&self, told: impl Fn(u64, &Result<Summary, Failure>) + Sync) -> Report {
        let (next, report) = (AtomicU64::new(0), Mutex::new(Report::default()));
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while report.lock().failures.len() < self.failures
                        && began.elapsed() < self.within
                    {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= self.seeds {
                            return;
                        }
                        let seed = self.first + at;
                        let result = one(&self.program, seed, self.steps);
                        told(seed, &result);
                        let mut report = report.lock();
                        report.seeds += 1;
                        match result {
                            Ok(summary) => report.sum.add(&summary),
                            Err(failure) => report.failures.push(failure),
                        }
                    }
                });
            }
        });
        let mut report = report.into_inner();
        report.failures.sort_by_key(|failure| failure.seed);
        report
    }
}

/// Runs one seed in a process of its own.
///
/// # Errors
/// Returns the violated invariant.
pub fn one(program: &Path, seed: u64, steps: usize) -> Result<Summary, Failure> {
    let failed = |what: String| Failure {
        seed,
        step: 0,
        what,
        trace: Vec::new(),
    };
    let output = Command::new(program)
        .args(["--alone", "--first", &seed.to_string()])
        .args(["--steps", &steps.to_string()])
        .env(SEED, seed.to_string())
        .output()
        .map_err(|error| failed(format!("{}: {error}", program.display())))?;
    match serde_json::from_slice(&output.stdout) {
        Ok(Answer::Done(summary)) => Ok(summary),
        Ok(Answer::Failed(failure)) => Err(failure),
        Err(_) => Err(failed(LastWords(&output).to_string())),
    }
}

/// Last output of a process that died without a result.
struct LastWords<'a>(&'a Output);

impl fmt::Display for LastWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = String::from_utf8_lossy(&self.0.stderr);
        let from = said.len().saturating_sub(LAST_WORDS);
        let from = (from..said.len()).find(|at| said.is_char_boundary(*at));
        let last = from.map_or("", |at| &said[at..]);
        write!(f, "its process ended with {}: {last}", self.0.status)
    }
}

/// Runs one seed in this process, and prints the result in the format that [`one`] reads. Returns whether it succeeded.
pub fn alone(seed: u64, steps: usize) -> bool {
    thread::spawn(move || {
        thread::sleep(ENDLESS);
        let failure = Failure {
            seed,
            step: 0,
            what: format!("has not ended after {ENDLESS:?}"),
            trace: Vec::new(),
        };
        say(&Answer::Failed(failure));
        std::process::exit(1);
    });
    let answer = match random::run(seed, steps) {
        Ok(summary) => Answer::Done(summary),
        Err(failure) => Answer::Failed(*failure),
    };
    say(&answer);
    matches!(answer, Answer::Done(_))
}

fn say(answer: &Answer) {
    println!("{}", serde_json::to_string(answer).unwrap());
}
