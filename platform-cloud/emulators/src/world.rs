//! Common parts of all emulators: settings, clock, the ledger of all resources ever created, and out-of-band changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Settings common to all emulators. The defaults are an API without delays, limits or faults.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Port of 127.0.0.1 to listen on. Default: 0, any free port.
    pub port: u16,
    /// Time from creation to running.
    pub pending_delay: Duration,
    /// Time from deletion to gone, and from stopping to stopped.
    pub stopping_delay: Duration,
    /// Delay of eventual consistency: how long lists omit a new machine.
    pub visibility_delay: Duration,
    /// Maximum number of machines per zone; unlimited for a zone that is not named.
    pub capacity: BTreeMap<String, usize>,
    /// Maximum number of machines of the account; `None`: unlimited.
    pub quota: Option<usize>,
    /// Rate limit in calls per second; `None`: no throttling.
    pub rate: Option<f64>,
    /// Burst size of the rate limit in calls. Default: one second's worth, at least 1.
    pub burst: Option<f64>,
    /// Cap on the page size, below the API's own limit and regardless of the client's request.
    pub page_size: Option<usize>,
}

/// A machine, independent of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The API's id.
    pub id: String,
    /// State in the API's own terms.
    pub state: String,
    /// Tags or labels; plain tags are keys with empty values.
    pub tags: BTreeMap<String, String>,
    /// Zone, region or partition.
    pub zone: String,
}

/// A resource that was created: machine, volume, network, address. Entries stay after the deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The API's own resource type (`instance`, `vpc`, `droplet`, `ip`).
    pub kind: String,
    /// The API's id.
    pub id: String,
    /// Idempotency token of the call that created it, if there was one.
    pub key: Option<String>,
    /// Tags at creation.
    pub tags: BTreeMap<String, String>,
    /// Whether it was created out of band or exists from the start, rather than by a request.
    pub foreign: bool,
    /// Whether it has been deleted, released or terminated.
    pub gone: bool,
}

/// An out-of-band change of a machine that bypasses the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Terminates the machine, even if it is protected.
    Terminate,
    /// Stops the machine.
    Stop,
    /// Sets these tags and removes those without a value.
    Retag(BTreeMap<String, Option<String>>),
}

/// All resources ever created, in order.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    all: Vec<Made>,
    by_id: std::collections::HashMap<String, usize>,
}

impl Ledger {
    /// Records a new resource.
    pub fn made(&self, made: Made) {
        let mut entries = self.0.lock();
        let index = entries.all.len();
        entries.by_id.insert(made.id.clone(), index);
        entries.all.push(made);
    }

    /// Marks a resource as gone.
    pub fn gone(&self, id: &str) {
        let mut entries = self.0.lock();
        if let Some(index) = entries.by_id.get(id).copied() {
            entries.all[index].gone = true;
        }
    }

    /// All entries, oldest first.
    pub fn all(&self) -> Vec<Made> {
        self.0.lock().all.clone()
    }
}

/// Wall-clock time that follows tokio's clock, so that a test that pauses one pauses both.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    wall: Timestamp,
    skew_ms: AtomicI64,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock {
            start: Instant::now(),
            wall: Timestamp::now(),
            skew_ms: AtomicI64::new(0),
        }
    }
}

impl Clock {
    /// The emulator's wall-clock time, including its skew.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The emulator's wall-clock time at an instant.
    pub fn at(&self, instant: Instant) -> Timestamp {
        let since = SignedDuration::try_from(instant.saturating_duration_since(self.start))
            .unwrap_or_default();
        let skew = SignedDuration::from_millis(self.skew_ms.load(Ordering::Relaxed));
        self.wall
            .saturating_add(since)
            .and_then(|time| time.saturating_add(skew))
            .unwrap_or(self.wall)
    }

    /// The machine's wall-clock time with the emulator's skew, regardless of tokio's clock: the reference for the date
    /// of a request.
    pub fn real(&self) -> Timestamp {
        let skew = SignedDuration::from_millis(self.skew_ms.load(Ordering::Relaxed));
        let now = Timestamp::now();
        now.saturating_add(skew).unwrap_or(now)
    }

    /// Sets the offset of the emulator's clock from the machine's, in milliseconds; negative if it is behind.
    pub fn set_skew_ms(&self, skew_ms: i64) {
        self.skew_ms.store(skew_ms, Ordering::Relaxed);
    }
}

/// A token bucket: the rate limiter of an API.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    burst: f64,
    state: Mutex<(f64, Instant)>,
}

impl Rate {
    pub(crate) fn new(per_second: f64, burst: Option<f64>) -> Rate {
        let burst = burst.unwrap_or(per_second).max(1.0);
        Rate {
            per_second,
            burst,
            state: Mutex::new((burst, Instant::now())),
        }
    }

    /// Takes a token. Fails with the time until the next one is available.
    pub(crate) fn take(&self) -> Result<(), Duration> {
        self.take_many(1.0)
    }

    /// Takes this many tokens. Fails with the time until they are available.
    pub(crate) fn take_many(&self, wanted: f64) -> Result<(), Duration> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let (tokens, last) = *state;
        let tokens = (tokens + now.saturating_duration_since(last).as_secs_f64() * self.per_second)
            .min(self.burst);
        if tokens >= wanted {
            *state = (tokens - wanted, now);
            Ok(())
        } else {
            *state = (tokens, now);
            // With a rate of zero there is never a next token: an hour stands for never.
            let wait = ((wanted - tokens) / self.per_second.max(1.0 / 3600.0)).min(3600.0);
            Err(Duration::from_secs_f64(wait))
        }
    }
}
