//! The single choke point in front of an API: every call to one account and region passes through it. All calls share
//! one rate. Throttling slows down only the action that is throttled, since clouds limit each action by itself. Reads
//! have permits of their own. Reads and other calls take turns where both wait, so that neither a flood of changes nor one
//! of reads delays the others.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use drover_core::{Error, Reason, Result};
use drover_platform::batch::Lifetime;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep_until, timeout_at},
};

/// Calls that may be made at once before the rate applies, so that an interactive request for ten nodes does not wait.
const BURST: f64 = 20.0;
/// Lowest rate that throttling leads to. Anything slower would look as if it hung.
const MIN_RATE: f64 = 0.5;
/// Initial backoff of a throttled call, if the API does not specify one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Maximum backoff of a throttled call.
const MAX_PAUSE: Duration = Duration::from_secs(20);
/// Total time that throttling may delay a call. Its caller would have given up after that.
const MAX_WAIT: Duration = Duration::from_secs(45);
/// Successful calls needed to recover the full rate.
const RECOVERY: f64 = 50.0;

tokio::task_local! {
    /// Lifetime of the create running in this task: the deadline for starting it.
    static LIFETIME: Arc<Lifetime>;
}

/// Runs a create whose [`Gate::create`] is admitted only during this lifetime.
pub(super) async fn within<T>(lifetime: Arc<Lifetime>, create: impl Future<Output = T>) -> T {
    LIFETIME.scope(lifetime, create).await
}

/// Metadata key that marks the error of a create that was never started.
const NOT_STARTED: &str = "not_started";

fn unwanted() -> Error {
    Error::new(
        Reason::Cancelled,
        "was not started: nobody waited for it any more",
    )
    .with_metadata(NOT_STARTED, true)
}

/// Whether the error says that a create was not started because its caller no longer waited for it.
#[must_use]
pub fn not_started(error: &Error) -> bool {
    error.metadata().contains_key(NOT_STARTED)
}

/// What a call does, for the limits that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action<'a> {
    /// Name of the action that the API throttles by itself (`RunInstances`). Empty if it throttles all calls together.
    pub name: &'a str,
    /// Permits that the call uses.
    pub lane: Lane,
}

impl Action<'_> {
    /// A call to an API that does not tell actions apart.
    pub const ANY: Action<'static> = Action {
        name: "",
        lane: Lane::Change,
    };

    /// The same of an API that does not tell actions apart.
    #[must_use]
    pub fn of(is_read: bool) -> Action<'static> {
        Action {
            lane: if is_read { Lane::Read } else { Lane::Change },
            ..Self::ANY
        }
    }
}

/// Calls that share permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Reads. Never behind changes.
    Read,
    /// Changes.
    Change,
    /// Calls that the API answers only after something has happened.
    Wait,
}

/// The choke point. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max_rate: f64,
    reads: Semaphore,
    changes: Semaphore,
    waits: Semaphore,
    /// Of reads, and of all other calls, the one that waits for its turn, and those behind it.
    reading: Queue,
    changing: Queue,
    pace: Mutex<Pace>,
    actions: Mutex<HashMap<String, Throttle>>,
}

/// Calls in the order in which they came, of which one at a time waits for its turn.
#[derive(Debug)]
struct Queue {
    place: Semaphore,
    waiting: AtomicU32,
}

impl Queue {
    fn new() -> Self {
        Self {
            place: Semaphore::new(1),
            waiting: AtomicU32::new(0),
        }
    }
}

/// The rate of all calls.
#[derive(Debug)]
struct Pace {
    rate: f64,
    /// Earliest time of the next call at the current rate.
    next: Instant,
    /// No call is made before this time.
    paused_until: Instant,
    /// Remaining quota of the API, spread evenly over the time until it is reset: rate limit and reset time.
    quota: Option<(f64, Instant)>,
}

/// The rate of an action that was throttled.
#[derive(Debug)]
struct Throttle {
    rate: f64,
    next: Instant,
    paused_until: Instant,
    /// When the rate was last lowered. Throttled calls that began earlier carry no new information.
    lowered: Instant,
}

impl Gate {
    /// Creates a gate with this rate, and this many concurrent calls in each lane.
    #[must_use]
    pub fn new(calls_per_second: f64, max_concurrent: usize) -> Self {
        Self::with_waits(calls_per_second, max_concurrent, max_concurrent)
    }

    /// Creates a gate with this many concurrent calls in [`Lane::Wait`], which cost the API next to nothing.
    #[must_use]
    pub fn with_waits(calls_per_second: f64, max_concurrent: usize, max_waits: usize) -> Self {
        let max_rate = if calls_per_second.is_finite() {
            calls_per_second.max(MIN_RATE)
        } else {
            MIN_RATE
        };
        let now = Instant::now();
        let burst = Duration::from_secs_f64(BURST / max_rate);
        let next = now.checked_sub(burst).unwrap_or(now);
        Self(Arc::new(Inner {
            max_rate,
            reads: Semaphore::new(max_concurrent.max(1)),
            changes: Semaphore::new(max_concurrent.max(1)),
            waits: Semaphore::new(max_waits.max(1)),
            reading: Queue::new(),
            changing: Queue::new(),
            pace: Mutex::new(Pace {
                rate: max_rate,
                next,
                paused_until: next,
                quota: None,
            }),
            actions: Mutex::default(),
        }))
    }

    /// Makes one call when it is its turn. A call that fails with [`Reason::RateLimited`] had no effect: it lowers the
    /// rate for all calls and is retried with backoff until it has waited too long in total.
    ///
    /// # Errors
    /// Errors of the call.
    pub async fn call<T, F, Fut>(&self, call: F) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        self.call_as(Action::ANY, call).await
    }

    /// Makes one call of this action when it is its turn. Throttling lowers the rate for this action only.
    ///
    /// # Errors
    /// Errors of the call.
    pub async fn call_as<T, F, Fut>(&self, action: Action<'_>, call: F) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        self.pass(action, call, || true).await
    }

    /// Makes the call that creates the machines of a launch, if its caller still waits when it is its turn.
    ///
    /// # Errors
    /// Errors of the call; one that satisfies [`not_started`] if the caller no longer waits.
    pub async fn create<T, F, Fut>(&self, call: F) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        self.create_as(Action::ANY, call).await
    }

    /// [`Gate::create`] for an action that the API throttles by itself.
    ///
    /// # Errors
    /// Errors of the call; one that satisfies [`not_started`] if the caller no longer waits.
    pub async fn create_as<T, F, Fut>(&self, action: Action<'_>, call: F) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        let lasts = || {
            LIFETIME
                .try_with(|lifetime| lifetime.lasts())
                .unwrap_or(true)
        };
        self.pass(action, call, lasts).await
    }

    async fn pass<T, F, Fut>(
        &self,
        action: Action<'_>,
        mut call: F,
        wanted: impl Fn() -> bool + Send,
    ) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        let deadline = Instant::now() + MAX_WAIT;
        let mut pause = FIRST_PAUSE;
        loop {
            // Without a place and a permit: a throttled action would keep all others from theirs.
            let throttled = self.throttled_until(action, deadline)?;
            if let Some(at) = throttled {
                sleep_until(at).await;
            }
            let place = self.place(action.lane, deadline).await?;
            if self.is_throttled_since(action, throttled.is_some()) {
                continue;
            }
            sleep_until(self.turn(deadline)?).await;
            drop(place);
            let permit = self.permit(action.lane, deadline).await?;
            if !wanted() {
                return Err(unwanted());
            }
            let began = Instant::now();
            let outcome = call().await;
            drop(permit);
            match outcome {
                Err(error) if error.reason() == Reason::RateLimited => {
                    let wait = error.retry_after().unwrap_or(pause);
                    self.lower(action, began, wait);
                    // Jitter, so that calls that were throttled together do not retry together.
                    pause = (pause * 2)
                        .min(MAX_PAUSE)
                        .mul_f64(0.75 + fastrand::f64() / 2.0);
                    if Instant::now() + wait > deadline {
                        return Err(error);
                    }
                }
                outcome => {
                    self.raise(action);
                    return outcome;
                }
            }
        }
    }

    async fn permit(&self, lane: Lane, deadline: Instant) -> Result<Option<SemaphorePermit<'_>>> {
        let lane = match lane {
            Lane::Read => &self.0.reads,
            Lane::Change => &self.0.changes,
            Lane::Wait => &self.0.waits,
        };
        match timeout_at(deadline, lane.acquire()).await {
            // The semaphores are never closed.
            Ok(permit) => Ok(permit.ok()),
            Err(_) => Err(crowded(MAX_PAUSE)),
        }
    }

    /// Records how many calls the API has left and when its quota resets, and spreads the rest over that time.
    pub fn left(&self, calls: u64, until_reset: Duration) {
        let mut pace = self.0.pace.lock();
        let now = Instant::now();
        let rate = (calls as f64 / until_reset.as_secs_f64().max(1.0)).max(MIN_RATE);
        if calls == 0 {
            pace.paused_until = pace.paused_until.max(now + until_reset);
            return;
        }
        pace.quota = (rate < self.0.max_rate).then_some((rate, now + until_reset));
        pace.rate = pace.rate.min(rate);
    }

    /// The current rate of all calls together, in calls per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let rate = self.0.pace.lock().rate;
        let actions = self.0.actions.lock();
        actions.get("").map_or(rate, |all| all.rate.min(rate))
    }

    /// When an action that was throttled may be called again.
    ///
    /// # Errors
    /// That is too late. Its turn is left to others.
    fn throttled_until(&self, action: Action<'_>, deadline: Instant) -> Result<Option<Instant>> {
        let now = Instant::now();
        let mut actions = self.0.actions.lock();
        let Some(throttle) = actions.get_mut(action.name) else {
            return Ok(None);
        };
        let due = throttle.next.max(now);
        let at = in_time(due.max(throttle.paused_until), now, deadline)?;
        throttle.next = due + Duration::from_secs_f64(1.0 / throttle.rate);
        Ok(Some(at))
    }

    /// Whether an action was throttled while a call of it waited for others.
    fn is_throttled_since(&self, action: Action<'_>, was_throttled: bool) -> bool {
        let actions = self.0.actions.lock();
        let throttle = actions.get(action.name);
        throttle.is_some_and(|it| !was_throttled || it.paused_until > Instant::now())
    }

    /// Waits until a call is the next one of its queue.
    ///
    /// # Errors
    /// It would have to wait for too long.
    async fn place(&self, lane: Lane, deadline: Instant) -> Result<Option<SemaphorePermit<'_>>> {
        let queue = match lane {
            Lane::Read => &self.0.reading,
            Lane::Change | Lane::Wait => &self.0.changing,
        };
        if let Ok(place) = queue.place.try_acquire() {
            return Ok(Some(place));
        }
        let waiting = Waiting::among(&queue.waiting);
        let now = Instant::now();
        {
            let pace = self.0.pace.lock();
            let next = pace.next.max(pace.paused_until).max(now);
            let before = Duration::from_secs_f64(f64::from(waiting.before) / pace.rate);
            in_time(next + before, now, deadline)?;
        }
        match timeout_at(deadline, queue.place.acquire()).await {
            // The semaphore is never closed.
            Ok(place) => Ok(place.ok()),
            Err(_) => Err(crowded(MAX_PAUSE)),
        }
    }

    /// The turn of the next call.
    ///
    /// # Errors
    /// It is too late for this one, and left to others.
    fn turn(&self, deadline: Instant) -> Result<Instant> {
        let now = Instant::now();
        let mut pace = self.0.pace.lock();
        let burst = Duration::from_secs_f64(BURST / self.0.max_rate);
        // Unused calls accumulate up to one burst, but not while the rate is lowered.
        let saved = if pace.rate < self.0.max_rate {
            now
        } else {
            now.checked_sub(burst).unwrap_or(now)
        };
        let due = pace.next.max(saved).max(pace.paused_until);
        let at = in_time(due.max(now), now, deadline)?;
        pace.next = due + Duration::from_secs_f64(1.0 / pace.rate);
        Ok(at)
    }

    fn lower(&self, action: Action<'_>, began: Instant, pause: Duration) {
        let now = Instant::now();
        let mut actions = self.0.actions.lock();
        let throttle = actions
            .entry(action.name.to_owned())
            .or_insert_with(|| Throttle {
                rate: self.0.max_rate,
                next: now,
                paused_until: now,
                lowered: began,
            });
        throttle.paused_until = throttle.paused_until.max(now + pause);
        if began >= throttle.lowered {
            throttle.rate = (throttle.rate / 2.0).max(MIN_RATE);
            throttle.lowered = now;
            tracing::warn!(
                action = action.name,
                calls_per_second = throttle.rate,
                "the API is throttling; its calls slow down"
            );
        }
    }

    fn raise(&self, action: Action<'_>) {
        let step = self.0.max_rate / RECOVERY;
        {
            let mut actions = self.0.actions.lock();
            if let Some(throttle) = actions.get_mut(action.name) {
                throttle.rate += step;
                if throttle.rate >= self.0.max_rate {
                    actions.remove(action.name);
                }
            }
        }
        let mut pace = self.0.pace.lock();
        let most = match pace.quota {
            Some((rate, until)) if Instant::now() < until => rate,
            _ => self.0.max_rate,
        };
        pace.rate = (pace.rate + step).min(most);
    }
}

/// A call that waits for others, as long as it does.
struct Waiting<'a> {
    all: &'a AtomicU32,
    before: u32,
}

impl<'a> Waiting<'a> {
    fn among(all: &'a AtomicU32) -> Self {
        let before = all.fetch_add(1, Ordering::Relaxed);
        Self { all, before }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

fn in_time(at: Instant, now: Instant, deadline: Instant) -> Result<Instant> {
    if at > deadline {
        return Err(crowded(at - now));
    }
    Ok(at)
}

fn crowded(retry_after: Duration) -> Error {
    Error::new(
        Reason::RateLimited,
        "the API is throttling; other calls wait already for longer than this one may",
    )
    .with_retry_after(retry_after)
}

#[cfg(test)]
mod tests;
