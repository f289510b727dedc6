//! What a test or a person decides about an emulator from outside: faults to meet, and the log of what was asked.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// Stands for every operation where an operation is named.
pub const ANY: &str = "*";

/// Requests kept in the log; the oldest go first. Enough for the largest benchmark, and bounded for an emulator left on for days.
const LOG: usize = 100_000;

/// What goes wrong with one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Answers this error, in the API's own format, and does nothing.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// The API's own name of the error.
        code: String,
        /// What the API says besides.
        message: String,
    },
    /// Does what was asked, and then answers this error.
    RefuseAfter {
        /// The HTTP status.
        status: u16,
        /// The API's own name of the error.
        code: String,
        /// What the API says besides.
        message: String,
    },
    /// The API's own error for too many calls; does nothing.
    Throttle {
        /// What the API says about when to come again, where it can say that.
        retry_after: Option<Duration>,
    },
    /// Does what was asked, and closes the connection without an answer.
    LoseAnswer,
    /// Does what was asked, and sends the first half of the answer's body only.
    CutAnswer,
    /// Closes the connection without doing anything.
    Refused,
    /// Waits, then does what was asked and answers, even if the client has gone by then.
    Stall(Duration),
    /// The API's own error for a zone without room; does nothing.
    NoCapacity,
    /// The API's own error for an account that has used up what it may have; does nothing.
    Quota,
}

impl Fault {
    /// [`Fault::Refuse`] with these words.
    pub fn refuse(status: u16, code: &str, message: &str) -> Fault {
        Fault::Refuse {
            status,
            code: code.into(),
            message: message.into(),
        }
    }

    /// [`Fault::RefuseAfter`] with these words.
    pub fn refuse_after(status: u16, code: &str, message: &str) -> Fault {
        Fault::RefuseAfter {
            status,
            code: code.into(),
            message: message.into(),
        }
    }
}

/// One request, as it was met.
#[derive(Clone, Debug)]
pub struct Request {
    /// The API's own name of what was asked; `?` if the emulator does not know it.
    pub operation: String,
    /// The HTTP method.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// Parameters worth asserting on, in the order of the request; never user data, never credentials.
    pub parameters: Vec<(String, String)>,
    /// The status answered; `None` while it is under way and if the connection was closed instead.
    pub status: Option<u16>,
    /// The fault that it met.
    pub fault: Option<Fault>,
    /// When it came, by tokio's clock.
    pub at: Instant,
}

impl Request {
    /// The first value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The handle on an emulator's faults and log. Clones share them.
#[derive(Clone)]
pub struct Control(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    arrivals: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    next: HashMap<String, VecDeque<Fault>>,
    always: HashMap<String, Fault>,
    log: VecDeque<Request>,
    /// The number of the first request in `log`.
    first: u64,
    counts: HashMap<String, usize>,
    total: usize,
}

impl Default for Control {
    fn default() -> Control {
        Control::new()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("requests", &self.0.state.lock().total)
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Without faults and with an empty log.
    pub fn new() -> Control {
        Control(Arc::new(Shared {
            state: Mutex::default(),
            arrivals: watch::Sender::new(0),
        }))
    }

    /// The next request of this operation meets this fault. Several are met one after the other, in this order.
    /// The operation is the API's own name (`RunInstances`, `droplets.create`, `instances.insert`), or [`ANY`].
    pub fn fail_next(&self, operation: &str, fault: Fault) {
        self.0
            .state
            .lock()
            .next
            .entry(operation.to_owned())
            .or_default()
            .push_back(fault);
    }

    /// Every request of this operation (or of [`ANY`]) meets this fault, after those of [`Control::fail_next`];
    /// `None` ends it.
    pub fn fail_always(&self, operation: &str, fault: Option<Fault>) {
        let mut state = self.0.state.lock();
        match fault {
            Some(fault) => state.always.insert(operation.to_owned(), fault),
            None => state.always.remove(operation),
        };
    }

    /// Forgets every fault that has not been met.
    pub fn clear_faults(&self) {
        let mut state = self.0.state.lock();
        state.next.clear();
        state.always.clear();
    }

    /// How many faults of [`Control::fail_next`] have not been met yet.
    pub fn faults_left(&self) -> usize {
        self.0.state.lock().next.values().map(VecDeque::len).sum()
    }

    /// The log since the last [`Control::clear_requests`], oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.0.state.lock().log.iter().cloned().collect()
    }

    /// The log's requests of one operation.
    pub fn requests_of(&self, operation: &str) -> Vec<Request> {
        self.0
            .state
            .lock()
            .log
            .iter()
            .filter(|request| request.operation == operation)
            .cloned()
            .collect()
    }

    /// Requests of this operation (or of [`ANY`]) since the last [`Control::clear_requests`]. A request counts when it
    /// comes, before it is answered.
    pub fn count(&self, operation: &str) -> usize {
        self.0.state.lock().count(operation)
    }

    /// Empties the log and the counts.
    pub fn clear_requests(&self) {
        let mut state = self.0.state.lock();
        state.first += state.log.len() as u64;
        state.log.clear();
        state.counts.clear();
        state.total = 0;
    }

    /// Waits until [`Control::count`] of this operation is at least `n`.
    pub async fn wait_for(&self, operation: &str, n: usize) {
        let mut arrivals = self.0.arrivals.subscribe();
        while self.count(operation) < n {
            if arrivals.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes the fault that a request meets now. Those asked for by name go before those for any operation.
    pub(crate) fn take_fault(&self, operation: &str) -> Option<Fault> {
        let mut state = self.0.state.lock();
        for name in [operation, ANY] {
            if let Some(fault) = state.next.get_mut(name).and_then(VecDeque::pop_front) {
                return Some(fault);
            }
        }
        state
            .always
            .get(operation)
            .or_else(|| state.always.get(ANY))
            .cloned()
    }

    /// Writes a request into the log; the number is for [`Control::answered`].
    pub(crate) fn arrived(&self, request: Request) -> u64 {
        let number = {
            let mut state = self.0.state.lock();
            if state.log.len() == LOG {
                state.log.pop_front();
                state.first += 1;
            }
            *state.counts.entry(request.operation.clone()).or_default() += 1;
            state.total += 1;
            state.log.push_back(request);
            state.first + state.log.len() as u64 - 1
        };
        self.0.arrivals.send_modify(|version| *version += 1);
        number
    }

    pub(crate) fn answered(&self, number: u64, status: u16) {
        let mut state = self.0.state.lock();
        let Some(index) = number
            .checked_sub(state.first)
            .and_then(|index| usize::try_from(index).ok())
        else {
            return;
        };
        if let Some(request) = state.log.get_mut(index) {
            request.status = Some(status);
        }
    }
}

impl State {
    fn count(&self, operation: &str) -> usize {
        if operation == ANY {
            self.total
        } else {
            self.counts.get(operation).copied().unwrap_or(0)
        }
    }
}
