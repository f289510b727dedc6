//! Calls to an API server, and what can befall one.

use std::fmt;

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

/// One call, as the API server would authorise it.
#[derive(Clone)]
pub struct Call {
    /// get, list, watch, create, update, patch, delete, deletecollection; connect for exec.
    pub verb: &'static str,
    /// `pods`, `statefulsets.apps`, `pods/log`. Empty: no resource (discovery, health).
    pub resource: String,
    /// Empty: all namespaces, or none.
    pub namespace: String,
    /// Empty: a collection. For a create, the name in the body.
    pub name: String,
    /// Whether nothing is to be kept.
    pub dry_run: bool,
    pub path: String,
    pub query: String,
    /// When it came.
    pub at: Instant,
    /// The status that the client was given. `None`: none (yet).
    pub status: Option<u16>,
    /// The fault it met.
    pub fault: Option<&'static str>,
    /// Whether the metadata of the objects was all that was asked for.
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
    /// Reads a request. Its body is needed for the name of what is created.
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

    /// Whether it changes something.
    pub fn changes(&self) -> bool {
        let changing = ["create", "update", "patch", "delete", "deletecollection"];
        !self.dry_run
            && changing.contains(&self.verb)
            && !self.resource.ends_with("reviews.authorization.k8s.io")
    }
}

/// What a path means.
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

/// Which call a fault befalls.
#[derive(Clone, Debug, Default)]
pub struct On {
    verb: Option<&'static str>,
    resource: Option<String>,
    name: Option<String>,
    dry_run: bool,
    changes: bool,
    pub(super) skip: usize,
    pub(super) times: usize,
}

impl On {
    /// The next call of this verb to this resource that is no dry run. An empty resource: of any.
    pub fn call(verb: &'static str, resource: &str) -> Self {
        Self {
            verb: Some(verb),
            resource: (!resource.is_empty()).then(|| resource.to_owned()),
            times: 1,
            ..Self::default()
        }
    }

    /// The next call of whatever kind, dry runs and watches excepted.
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

    /// Only calls about this name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Only dry runs.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// The n-th such call instead of the next, from 1.
    pub fn nth(mut self, n: usize) -> Self {
        self.skip = n - 1;
        self
    }

    /// So many such calls instead of one.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// All such calls from now on.
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
            && match &self.resource {
                Some(resource) => *resource == call.resource,
                None => !call.resource.is_empty(),
            }
    }
}

/// What befalls a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The API server is not asked; this is the answer.
    Refuse(StatusCode, Value),
    /// The API server does it, and this is the answer.
    RefuseAfter(StatusCode, Value),
    /// The API server is not asked and asks to come back later.
    Throttle {
        /// Value of `Retry-After`.
        seconds: u64,
    },
    /// The connection is closed, and nothing done.
    Disconnect,
    /// It is done, and the connection closed without an answer.
    LoseAnswer,
    /// It is done, and the connection is closed in the middle of the answer's body.
    CutAnswer,
    /// Nothing is done, and there is never an answer.
    Stall,
    /// It is done, and there is never an answer.
    StallAfter,
    /// From this call on nothing of the client reaches the API server: it died before it asked.
    DieBefore,
    /// It is done, and from then on nothing of the client reaches the API server and nothing comes back: it died.
    DieAfter,
    /// A watch that is accepted and begins with an ERROR event.
    WatchError(StatusCode, Value),
    /// A watch that is accepted and never says anything.
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

    /// An error of the API server itself: nothing is done.
    pub fn internal() -> Self {
        let (code, body) = refusal(
            500,
            "InternalError",
            "Internal error occurred: etcdserver: leader changed",
        );
        Self::Refuse(code, body)
    }

    /// The same, though it was done.
    pub fn internal_after() -> Self {
        let (code, body) = refusal(
            500,
            "InternalError",
            "Internal error occurred: etcdserver: request timed out",
        );
        Self::RefuseAfter(code, body)
    }

    /// A watch's resource version is too old, said with an HTTP status.
    pub fn expired() -> Self {
        let (code, body) = refusal(410, "Expired", "too old resource version: 1 (2)");
        Self::Refuse(code, body)
    }

    /// The same, said with an event.
    pub fn expired_event() -> Self {
        let (code, body) = refusal(410, "Expired", "too old resource version: 1 (2)");
        Self::WatchError(code, body)
    }

    /// Whether the client is dead afterwards.
    pub fn kills(&self) -> bool {
        matches!(self, Self::DieBefore | Self::DieAfter)
    }
}

/// The body of a refusal as the API server writes it.
pub fn refusal(code: u16, reason: &str, message: &str) -> (StatusCode, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (StatusCode::from_u16(code).unwrap(), body)
}
