//! What every emulator has in common: settings, clock, the ledger of all that was ever made, and acts by hand.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Settings that every emulator takes. The defaults are an API without delays, limits or faults.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The port of 127.0.0.1 to listen on; 0, the default, is any.
    pub port: u16,
    /// From made to running.
    pub pending_delay: Duration,
    /// From deleted, or stopped, to gone, or off.
    pub stopping_delay: Duration,
    /// How long a new machine does not appear in lists.
    pub visibility_delay: Duration,
    /// The most machines of a zone; a zone that is not named has room without end.
    pub capacity: BTreeMap<String, usize>,
    /// The most machines of the account; `None`: no limit.
    pub quota: Option<usize>,
    /// Calls a second before the API throttles; `None`: no limit.
    pub rate: Option<f64>,
    /// Calls at once before `rate` counts; default: one second's worth, at least 1.
    pub burst: Option<f64>,
    /// The most elements of one page, below what the API allows and whatever the client asks for.
    pub page_size: Option<usize>,
}

/// A machine as tests and people see it, whatever the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The API's id of it.
    pub id: String,
    /// The API's own word for its state.
    pub state: String,
    /// Tags or labels; an API with plain tags has them as keys with empty values.
    pub tags: BTreeMap<String, String>,
    /// The zone, region or partition.
    pub zone: String,
}

/// One thing that was made: machine, volume, network, address. Entries stay when the thing is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The API's own word for what it is (`instance`, `vpc`, `droplet`, `ip`).
    pub kind: String,
    /// The API's id of it.
    pub id: String,
    /// The idempotency key of the call that made it, if it had one.
    pub key: Option<String>,
    /// Its tags when it was made.
    pub tags: BTreeMap<String, String>,
    /// Made by [`Hand::Foreign`] or there from the start, not by a request.
    pub foreign: bool,
    /// It has been deleted, released or terminated.
    pub gone: bool,
}

/// What someone does to a machine past the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Terminates it, whatever protects it.
    Terminate,
    /// Stops it.
    Stop,
    /// Sets these tags and removes those without a value.
    Retag(BTreeMap<String, Option<String>>),
}

/// Everything that was ever made, in order.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    all: Vec<Made>,
    by_id: std::collections::HashMap<String, usize>,
}

impl Ledger {
    /// Writes down something new.
    pub fn made(&self, made: Made) {
        let mut entries = self.0.lock();
        let index = entries.all.len();
        entries.by_id.insert(made.id.clone(), index);
        entries.all.push(made);
    }

    /// Notes that it is gone.
    pub fn gone(&self, id: &str) {
        let mut entries = self.0.lock();
        if let Some(index) = entries.by_id.get(id).copied() {
            entries.all[index].gone = true;
        }
    }

    /// Everything, oldest first.
    pub fn all(&self) -> Vec<Made> {
        self.0.lock().all.clone()
    }
}

/// Wall time that follows tokio's clock, so that a test that pauses one pauses both.
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
    /// The emulator's wall time now, its skew included.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The emulator's wall time at an instant.
    pub fn at(&self, instant: Instant) -> Timestamp {
        let since = SignedDuration::try_from(instant.saturating_duration_since(self.start))
            .unwrap_or_default();
        let skew = SignedDuration::from_millis(self.skew_ms.load(Ordering::Relaxed));
        self.wall
            .saturating_add(since)
            .and_then(|time| time.saturating_add(skew))
            .unwrap_or(self.wall)
    }

    /// The machine's wall time with the emulator's skew, whatever tokio's clock says: what a request's own date is held against.
    pub fn real(&self) -> Timestamp {
        let skew = SignedDuration::from_millis(self.skew_ms.load(Ordering::Relaxed));
        let now = Timestamp::now();
        now.saturating_add(skew).unwrap_or(now)
    }

    /// How far the emulator's clock is ahead of the machine's, in milliseconds; negative: behind.
    pub fn set_skew_ms(&self, skew_ms: i64) {
        self.skew_ms.store(skew_ms, Ordering::Relaxed);
    }
}

/// Tokens by time: how an API limits its callers.
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

    /// Takes a token, or says how long it is until there is one.
    pub(crate) fn take(&self) -> Result<(), Duration> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let (tokens, last) = *state;
        let tokens = (tokens + now.saturating_duration_since(last).as_secs_f64() * self.per_second)
            .min(self.burst);
        if tokens >= 1.0 {
            *state = (tokens - 1.0, now);
            Ok(())
        } else {
            *state = (tokens, now);
            // A rate of zero never has a token again: an hour stands for never.
            let wait = ((1.0 - tokens) / self.per_second.max(1.0 / 3600.0)).min(3600.0);
            Err(Duration::from_secs_f64(wait))
        }
    }
}
