//! Calls to an API server, and the faults that can hit them.

use std::fmt;

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

/// A call, as the API server would authorise it.
#[derive(Clone)]
pub struct Call {
    /// get, list, watch, create, update, patch, delete, deletecollection; connect for exec.
    pub verb: &'static str,
    /// `pods`, `statefulsets.apps`, `pods/log`. Empty if there is no resource (discovery, health).
    pub resource: String,
    /// Empty for all namespaces, or none.
    pub namespace: String,
    /// For a create, the name in the body. Empty for a collection.
    pub name: String,
    /// Whether it is a dry run, so that nothing is stored.
    pub dry_run: bool,
    pub path: String,
    pub query: String,
    /// When it arrived.
    pub at: Instant,
    /// Status that was returned to the client. `None` if there is none (yet).
    pub status: Option<u16>,
    /// The fault that hit it.
    pub fault: Option<&'static str>,
    /// Whether only the metadata of the objects was requested.
    pub metadata_only: bool,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dry = if self.dry_run { " (dry run)" } else { "" };
        write!(f, "{} {}", self.verb, self.resource)?;
        if self.resource.is_empty() {
            write!(f, "{}", self.path)?;
        }
        write!(f, " {}{dry}", self.name)?;
        if let Some(status) = self.status {
            write!(f, " {status}")?;
        }
        self.fault.map_or(Ok(()), |fault| write!(f, " [{fault}]"))
    }
}

impl Call {
    /// Parses a request. The body is needed for the name of a created object.
    pub fn read<T>(request: &Request<T>, body: &[u8]) -> Self {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let place = Place::of(&path);
        let asks = |pair: &str| query.split('&').any(|part| part == pair);
        let watches = asks("watch=true") || asks("watch=1") || asks("watch");
        let named = !place.name.is_empty();
        let upgrade = request.headers().contains_key(http::header::UPGRADE);
        let verb = match *request.method() {
            _ if upgrade => "connect",
            Method::GET if watches => "watch",
            Method::GET if named || place.resource.is_empty() => "get",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if named => "delete",
            Method::DELETE => "deletecollection",
            _ => "other",
        };
        let mut name = place.name;
        if verb == "create" && name.is_empty() {
            let object: Value = serde_json::from_slice(body).unwrap_or_default();
            name = object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
        }
        let accepts = request
            .headers()
            .get(http::header::ACCEPT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        Self {
            verb,
            resource: place.resource,
            namespace: place.namespace,
            name,
            dry_run: query.contains("dryRun="),
            metadata_only: accepts.contains("as=PartialObjectMetadata"),
            path,
            query,
            at: Instant::now(),
            status: None,
            fault: None,
        }
    }

    pub fn changes(&self) -> bool {
        let changing = ["create", "update", "patch", "delete", "deletecollection"];
        !self.dry_run
            && changing.contains(&self.verb)
            && !self.resource.ends_with("reviews.authorization.k8s.io")
    }
}

/// Meaning of a path.
#[derive(Default)]
struct Place {
    resource: String,
    namespace: String,
    name: String,
}

impl Place {
    fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return Self::default(),
        };
        let (namespace, rest) = match rest {
            // `namespaces/x` and its subresources are the namespace itself.
            ["namespaces", _, "status" | "finalize"] | ["namespaces"] | ["namespaces", _] => {
                ("", rest)
            }
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            _ => ("", rest),
        };
        let Some(plural) = rest.first() else {
            return Self::default();
        };
        let mut resource = (*plural).to_owned();
        if !group.is_empty() {
            resource = format!("{resource}.{group}");
        }
        if let Some(sub) = rest.get(2) {
            resource = format!("{resource}/{sub}");
        }
        Self {
            resource,
            namespace: namespace.to_owned(),
            name: rest.get(1).copied().unwrap_or_default().to_owned(),
        }
    }
}

/// Selects the calls that a fault hits.
#[derive(Clone, Debug, Default)]
pub struct On {
    verb: Option<&'static str>,
    resource: Option<String>,
    name: Option<String>,
    path: Option<String>,
    dry_run: bool,
    changes: bool,
    pub(super) skip: usize,
    pub(super) times: usize,
}

impl On {
    /// The next call with this verb to this resource that is not a dry run. An empty resource matches any.
    pub fn call(verb: &'static str, resource: &str) -> Self {
        Self {
            verb: Some(verb),
            resource: (!resource.is_empty()).then(|| resource.to_owned()),
            times: 1,
            ..Self::default()
        }
    }

    /// The next call of any kind, except for dry runs and watches.
    pub fn any() -> Self {
        Self {
            times: 1,
            ..Self::default()
        }
    }

    /// The next call that changes something.
    pub fn change() -> Self {
        Self {
            changes: true,
            times: 1,
            ..Self::default()
        }
    }

    /// The next read of this path, which need not be that of a resource (`/apis/GROUP/VERSION`).
    pub fn path(path: &str) -> Self {
        Self {
            verb: Some("get"),
            path: Some(path.to_owned()),
            times: 1,
            ..Self::default()
        }
    }

    /// Only calls for this name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only dry runs.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// The n-th matching call instead of the next one, starting at 1.
    pub fn nth(mut self, n: usize) -> Self {
        self.skip = n - 1;
        self
    }

    /// This number of matching calls instead of one.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// All matching calls from now on.
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    pub(super) fn is(&self, call: &Call) -> bool {
        let verb = match self.verb {
            Some(verb) => verb == call.verb,
            None => call.verb != "watch" && call.verb != "connect",
        };
        verb && self.dry_run == call.dry_run
            && (!self.changes || call.changes())
            && self.name.as_ref().is_none_or(|name| *name == call.name)
            && match (&self.path, &self.resource) {
                (Some(path), _) => *path == call.path,
                (None, Some(resource)) => *resource == call.resource,
                (None, None) => !call.resource.is_empty(),
            }
    }
}

/// A fault that hits a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The call does not reach the API server; this is the response.
    Refuse(StatusCode, Value),
    /// The API server executes the call, and this is the response.
    RefuseAfter(StatusCode, Value),
    /// The call does not reach the API server; the response is to retry later.
    Throttle {
        /// Value of `Retry-After`.
        seconds: u64,
    },
    /// The connection is closed, and nothing is executed.
    Disconnect,
    /// The call is executed, and the connection is closed without a response.
    LoseAnswer,
    /// The call is executed, and the connection is closed in the middle of the response body.
    CutAnswer,
    /// Nothing is executed, and there is never a response.
    Stall,
    /// The call is executed, and there is never a response.
    StallAfter,
    /// Crash before the call: from here on nothing of the client reaches the API server.
    DieBefore,
    /// Crash after the call: it is executed, but from then on nothing of the client reaches the API server, and no
    /// response comes back.
    DieAfter,
    /// A watch that is accepted and starts with an ERROR event.
    WatchError(StatusCode, Value),
    /// A watch that is accepted and never sends anything.
    WatchSilent,
}

impl Fault {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refuse(..) => "error before",
            Self::RefuseAfter(..) => "error after",
            Self::Throttle { .. } => "throttled",
            Self::Disconnect => "connection closed",
            Self::LoseAnswer => "answer lost",
            Self::CutAnswer => "answer cut",
            Self::Stall => "stalled before",
            Self::StallAfter => "stalled after",
            Self::DieBefore => "died before",
            Self::DieAfter => "died after",
            Self::WatchError(..) => "error event",
            Self::WatchSilent => "silent",
        }
    }

    /// An internal error of the API server: nothing is executed.
    pub fn internal() -> Self {
        let (code, body) = refusal(
            500,
            "InternalError",
            "Internal error occurred: etcdserver: leader changed",
        );
        Self::Refuse(code, body)
    }

    /// The same, although the call was executed.
    pub fn internal_after() -> Self {
        let (code, body) = refusal(
            500,
            "InternalError",
            "Internal error occurred: etcdserver: request timed out",
        );
        Self::RefuseAfter(code, body)
    }

    /// The resource version of a watch is too old, reported with an HTTP status.
    pub fn expired() -> Self {
        let (code, body) = refusal(410, "Expired", "too old resource version: 1 (2)");
        Self::Refuse(code, body)
    }

    /// The same, reported with an event.
    pub fn expired_event() -> Self {
        let (code, body) = refusal(410, "Expired", "too old resource version: 1 (2)");
        Self::WatchError(code, body)
    }

    /// Whether the client is dead afterwards.
    pub fn kills(&self) -> bool {
        matches!(self, Self::DieBefore | Self::DieAfter)
    }
}

/// The body of a refusal, as written by the API server.
pub fn refusal(code: u16, reason: &str, message: &str) -> (StatusCode, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (StatusCode::from_u16(code).unwrap(), body)
}
