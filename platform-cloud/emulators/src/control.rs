//! External control of an emulator by tests and people: fault injection and the request log.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// Matches every operation where an operation is named.
pub const ANY: &str = "*";

/// Maximum number of requests in the log; the oldest are dropped. Enough for the largest benchmark, and bounded for an
/// emulator that runs for days.
const LOG: usize = 100_000;

/// A fault to inject into one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Returns this error in the API's own format without executing the request.
    Refuse {
        /// HTTP status.
        status: u16,
        /// Error code of the API.
        code: String,
        /// Error message.
        message: String,
    },
    /// Executes the request and then returns this error.
    RefuseAfter {
        /// HTTP status.
        status: u16,
        /// Error code of the API.
        code: String,
        /// Error message.
        message: String,
    },
    /// Returns the API's throttling error without executing the request.
    Throttle {
        /// Delay to announce to the client, if the API has a means to do so.
        retry_after: Option<Duration>,
    },
    /// Executes the request and closes the connection without a response.
    LoseAnswer,
    /// Executes the request and sends only the first half of the response body.
    CutAnswer,
    /// Closes the connection without executing the request.
    Refused,
    /// Waits, then executes the request and responds, even if the client has disconnected by then.
    Stall(Duration),
    /// Returns the API's error for a zone without capacity, without executing the request.
    NoCapacity,
    /// Returns the API's error for an exceeded quota, without executing the request.
    Quota,
    /// Reports success, and the operation that the request has begun fails. An error 500 where the API has no
    /// operations.
    FailLater {
        /// Error code of the operation.
        code: String,
        /// Error message.
        message: String,
    },
}

impl Fault {
    /// Creates a [`Fault::Refuse`].
    pub fn refuse(status: u16, code: &str, message: &str) -> Fault {
        Fault::Refuse {
            status,
            code: code.into(),
            message: message.into(),
        }
    }

    /// Creates a [`Fault::FailLater`].
    pub fn later(code: &str, message: &str) -> Fault {
        Fault::FailLater {
            code: code.into(),
            message: message.into(),
        }
    }

    /// Creates a [`Fault::RefuseAfter`].
    pub fn refuse_after(status: u16, code: &str, message: &str) -> Fault {
        Fault::RefuseAfter {
            status,
            code: code.into(),
            message: message.into(),
        }
    }
}

/// A logged request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The API's own name of the operation; `?` if the emulator does not know it.
    pub operation: String,
    /// HTTP method.
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Parameters worth asserting on, in the order of the request; never user data or credentials.
    pub parameters: Vec<(String, String)>,
    /// Status of the response; `None` while the request is in progress or if the connection was closed instead.
    pub status: Option<u16>,
    /// The injected fault.
    pub fault: Option<Fault>,
    /// Time of arrival by tokio's clock.
    pub at: Instant,
}

impl Request {
    /// Returns the first value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Handle on the faults and the log of an emulator. Clones share them.
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
    /// Number of the first request in `log`.
    first: u64,
    counts: HashMap<String, usize>,
    total: usize,
    /// Changes and the clients that made them.
    changes: BTreeSet<(String, String)>,
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
    /// Creates a control without faults and with an empty log.
    pub fn new() -> Control {
        Control(Arc::new(Shared {
            state: Mutex::default(),
            arrivals: watch::Sender::new(0),
        }))
    }

    /// Injects this fault into the next request of this operation. Several faults are injected one after the other, in
    /// the order of the calls. The operation is the API's own name (`RunInstances`, `droplets.create`,
    /// `instances.insert`), that of a change as in [`Control::changes`], or [`ANY`].
    pub fn fail_next(&self, operation: &str, fault: Fault) {
        self.0
            .state
            .lock()
            .next
            .entry(operation.to_owned())
            .or_default()
            .push_back(fault);
    }

    /// Injects this fault into every request of this operation (or of [`ANY`]), after the faults of
    /// [`Control::fail_next`]; `None` ends it.
    pub fn fail_always(&self, operation: &str, fault: Option<Fault>) {
        let mut state = self.0.state.lock();
        match fault {
            Some(fault) => state.always.insert(operation.to_owned(), fault),
            None => state.always.remove(operation),
        };
    }

    /// Removes every pending fault.
    pub fn clear_faults(&self) {
        let mut state = self.0.state.lock();
        state.next.clear();
        state.always.clear();
    }

    /// Number of faults of [`Control::fail_next`] that are still pending.
    pub fn faults_left(&self) -> usize {
        self.0.state.lock().next.values().map(VecDeque::len).sum()
    }

    /// Returns the log since the last [`Control::clear_requests`], oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.0.state.lock().log.iter().cloned().collect()
    }

    /// Returns the logged requests of one operation.
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

    /// Number of requests of this operation (or of [`ANY`]) since the last [`Control::clear_requests`]. A request
    /// counts on arrival, before the response.
    pub fn count(&self, operation: &str) -> usize {
        self.0.state.lock().count(operation)
    }

    /// The changing calls since the start of the emulator, of the clients whose user agent satisfies `by`: the operation,
    /// and what it changes where one operation changes things of several kinds (`CreateTags of sg`).
    pub fn changes(&self, by: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let state = self.0.state.lock();
        let changes = state.changes.iter().filter(|(_, client)| by(client));
        changes.map(|(change, _)| change.clone()).collect()
    }

    /// Clears the log and the counts.
    pub fn clear_requests(&self) {
        let mut state = self.0.state.lock();
        state.first += state.log.len() as u64;
        state.log.clear();
        state.counts.clear();
        state.total = 0;
    }

    /// Waits until [`Control::count`] of this operation reaches `n`.
    pub async fn wait_for(&self, operation: &str, n: usize) {
        let mut arrivals = self.0.arrivals.subscribe();
        while self.count(operation) < n {
            if arrivals.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes the fault to inject into a request. The more it says about the request, the earlier it is taken.
    pub(crate) fn take_fault(&self, operation: &str, change: Option<&str>) -> Option<Fault> {
        let mut state = self.0.state.lock();
        let names = [change.unwrap_or(operation), operation, ANY];
        for name in names {
            if let Some(fault) = state.next.get_mut(name).and_then(VecDeque::pop_front) {
                return Some(fault);
            }
        }
        names
            .iter()
            .find_map(|name| state.always.get(*name).cloned())
    }

    /// Remembers a changing call of a client.
    pub(crate) fn changed(&self, change: String, client: String) {
        self.0.state.lock().changes.insert((change, client));
    }

    /// Adds a request to the log; returns its number for [`Control::answered`].
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
