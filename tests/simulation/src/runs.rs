//! Many runs, each in a process of its own, so that a seed finds the same process each time: what it draws, when it is, and
//! what is counted in statics. The process is the program `simulate` with `--alone`.

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

/// Environment variable from which what is random in a process follows, as `seeded.c` has it.
const SEED: &str = "DROVER_SIMULATION_SEED";
/// Real time after which a run that has not ended never will.
const ENDLESS: Duration = Duration::from_secs(300);
/// So much is shown of what a process said that died.
const LAST_WORDS: usize = 2_000;

/// What a process answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done(Summary),
    Failed(Failure),
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Runs {
    /// The program `simulate`.
    pub program: PathBuf,
    /// The first seed.
    pub first: u64,
    /// How many seeds from there.
    pub seeds: u64,
    /// Steps of each.
    pub steps: usize,
    /// Processes at a time.
    pub jobs: usize,
    /// Ends after so many failures.
    pub failures: usize,
    /// Ends after so much time.
    pub within: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// What happened in those that hold.
    pub sum: Summary,
    /// Those that do not, by seed.
    pub failures: Vec<Failure>,
}

impl Runs {
    /// Seeds from a first one, as many at a time as there are processors, until one fails.
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

    /// Runs them all. What came of each is told as soon as it ends.
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
/// What does not hold.
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

/// What a process said that died before it could answer.
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

/// Runs one seed in this process, and says what came of it as [`one`] reads it. Answers whether it holds.
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
