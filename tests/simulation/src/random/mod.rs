//! A random operator of a complete Drover whose platforms fail in every way that the contract allows.
//!
//! One seed is one run: an orchestrator over an in-memory store, up to three platforms, a few hundred steps. In each
//! step the operator makes a call or a fault is injected, then virtual time passes, then the invariants are checked
//! ([`check`]): no serving node is removed without a reason given by the operator, nothing is created twice, retained
//! storage is kept. At the end all faults are repaired, and every cluster must converge or report why it cannot.

mod addons;
mod below;
mod check;
mod faults;
mod look;
mod losses;
mod model;
mod operator;
mod registry;
mod secrets;
mod specs;
mod witness;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Once,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{Disk, Sites, World, immortal, runtime};
use model::Model;
use witness::Witness;

/// A violated invariant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub seed: u64,
    /// Step after which the violation was found; equal to the number of steps if it was found at the end, after the
    /// repair.
    pub step: usize,
    /// Description of the violation.
    pub what: String,
    /// The actions before it, one line per step.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, step {}: {}", self.seed, self.step, self.what)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// Statistics of one or more runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    pub steps: u64,
    /// Virtual time that passed.
    pub time: Duration,
    /// Number of nodes created.
    pub made: u64,
    /// How often each action succeeded, and how often it was refused.
    pub done: BTreeMap<String, (u64, u64)>,
    /// The actions of a single run, one line per step.
    pub trace: Vec<String>,
}

impl Summary {
    /// Adds the statistics of another run.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.time += other.time;
        self.made += other.made;
        for (what, (done, refused)) in &other.done {
            let sum = self.done.entry(what.clone()).or_default();
            sum.0 += done;
            sum.1 += refused;
        }
    }
}

/// The actions so far, to diagnose a failed run.
#[derive(Default)]
struct Trace {
    step: usize,
    lines: Vec<String>,
}

/// One run in progress.
struct Run {
    random: fastrand::Rng,
    world: World,
    model: Model,
    trace: Rc<RefCell<Trace>>,
    began: Instant,
    done: BTreeMap<&'static str, (u64, u64)>,
    witness: Witness,
    /// A violation that was noticed by a read for another purpose.
    wrong: Option<String>,
    /// A secret that was just deleted.
    deleted_secret: Option<&'static str>,
    /// Backup of the store.
    copy: Option<Vec<u8>>,
    /// Whether the store was lost and replaced by the backup.
    restored: bool,
    /// Whether the restored store waits for the confirmation to delete resources that it does not know.
    held: bool,
}

thread_local! {
    /// Whether a run is in progress on this thread.
    static RUNS: Cell<bool> = const { Cell::new(false) };
    /// Message of a panic in a task of the runtime.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records panics of tasks, which would otherwise go unnoticed.
fn watch_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if RUNS.get() {
                PANIC.with(|panic| *panic.borrow_mut() = Some(info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
}

fn panicked() -> Option<String> {
    PANIC.with(|panic| panic.borrow_mut().take())
}

/// Runs one seed.
///
/// # Errors
/// Returns the violated invariant.
pub fn run(seed: u64, steps: usize) -> Result<Summary, Box<Failure>> {
    watch_panics();
    panicked();
    // The random choices of the orchestrator depend on the seed as well.
    fastrand::seed(seed);
    let trace = Rc::new(RefCell::new(Trace::default()));
    RUNS.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| {
        runtime().block_on(async {
            let mut run = Run::new(seed, trace.clone()).await;
            let result = run.all(steps).await;
            if result.is_err() {
                run.explain().await;
            }
            result.map(|()| run.summary(steps))
        })
    }));
    RUNS.set(false);
    let what = match result {
        Ok(Ok(summary)) => match panicked() {
            None => return Ok(summary),
            Some(panic) => format!("a task panicked: {panic}"),
        },
        Ok(Err(what)) => what,
        Err(_) => format!("panicked: {}", panicked().unwrap_or_default()),
    };
    let Trace { step, lines } = trace.take();
    Err(Box::new(Failure {
        seed,
        step,
        what,
        trace: lines,
    }))
}

impl Run {
    async fn new(seed: u64, trace: Rc<RefCell<Trace>>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let sites = Sites::default();
        let model = Model::new(&mut random, &sites);
        let first = model.sites[0].real.clone();
        let mut world = World::over(Disk::with_key(), sites, first, immortal()).await;
        for site in &model.sites[1..] {
            world.register(&site.name, &site.endpoint).await.unwrap();
        }
        Self {
            random,
            world,
            model,
            trace,
            began: Instant::now(),
            done: BTreeMap::new(),
            witness: Witness::default(),
            wrong: None,
            deleted_secret: None,
            copy: None,
            restored: false,
            held: false,
        }
    }

    async fn all(&mut self, steps: usize) -> Result<(), String> {
        for step in 0..steps {
            self.trace.borrow_mut().step = step;
            self.step().await;
            let digest = self.world.disk.digest();
            self.note(format_args!("-- step {step}, {digest:016x} written"));
            self.check().await?;
        }
        self.trace.borrow_mut().step = steps;
        self.end().await
    }

    fn note(&mut self, what: impl fmt::Display) {
        let at = self.began.elapsed().as_secs_f64();
        self.trace
            .borrow_mut()
            .lines
            .push(format!("{at:10.3} s  {what}"));
    }

    /// Counts an action as done or refused.
    fn count(&mut self, what: &'static str, done: bool) {
        let count = self.done.entry(what).or_default();
        if done {
            count.0 += 1;
        } else {
            count.1 += 1;
        }
    }

    async fn step(&mut self) {
        if self.random.u8(..100) < 55 {
            self.operate().await;
        } else {
            self.disturb().await;
        }
        let time = self.pause();
        self.world.pass(time).await;
    }

    /// How long the operator waits: mostly a moment, sometimes long enough for everything to settle.
    fn pause(&mut self) -> Duration {
        let millis = match self.random.u8(..100) {
            0..20 => self.random.u64(..20),
            20..50 => self.random.u64(..1_000),
            50..80 => self.random.u64(..10_000),
            80..97 => self.random.u64(..40_000),
            _ => self.random.u64(..400_000),
        };
        Duration::from_millis(millis)
    }

    fn summary(&self, steps: usize) -> Summary {
        let made = self.model.sites.iter().map(|site| {
            let ledger = site.real.backend.ledger();
            ledger
                .values()
                .map(|slot| u64::from(slot.created))
                .sum::<u64>()
        });
        let late = (
            "a request of one that was overtaken arrives",
            (self.world.late_requests, 0),
        );
        let done = self.done.iter().map(|(what, count)| (*what, *count));
        let done = done.chain([late]);
        let done = done.map(|(what, count)| (what.to_owned(), count));
        Summary {
            steps: steps as u64,
            time: self.began.elapsed(),
            made: made.sum(),
            done: done.collect(),
            trace: self.trace.borrow().lines.clone(),
        }
    }
}
