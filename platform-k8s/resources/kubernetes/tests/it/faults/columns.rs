//! The faults, and what a call says that meets one.

use std::{collections::BTreeMap, fmt};

use drover_core::Reason;
use drover_testing::kubernetes::{Call, Fault, On, refusal};
use serde_json::json;

use super::rows::Row;

/// A call to the API server that a fault hits.
#[derive(Clone)]
pub(super) struct Hit {
    pub(super) verb: &'static str,
    pub(super) resource: String,
    namespace: String,
    nth: usize,
    /// Whether the API server answers it well.
    succeeds: bool,
    /// Whether what the call is for has been done before.
    after: bool,
}

impl fmt::Debug for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} {} #{}]", self.verb, self.resource, self.nth)
    }
}

impl Hit {
    pub(super) fn of(call: &Call, nth: usize, after: bool) -> Self {
        Self {
            verb: call.verb,
            resource: call.resource.clone(),
            namespace: call.namespace.clone(),
            nth,
            after,
            succeeds: call.status.is_some_and(|status| status < 400),
        }
    }

    pub(super) fn on(&self) -> On {
        On::call(self.verb, &self.resource).nth(self.nth)
    }

    fn writes(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch" | "connect")
    }

    fn evicts(&self) -> bool {
        self.resource == "pods/eviction"
    }

    /// A write of a rule, which is compared with what was read.
    fn swaps(&self) -> bool {
        self.verb == "update" || (self.verb == "patch" && self.resource != "nodes")
    }

    /// The first list of a wait, from which a watch goes on.
    fn begins_a_watch(&self, row: &Row) -> bool {
        let drains = row.call == "NodeService/DrainNode" && self.nth == 2;
        let waits = ["WaitNodes", "WaitPods", "DeletePod"];
        self.verb == "list" && (drains || waits.iter().any(|call| row.call.ends_with(call)))
    }

    fn forbidden(&self) -> Fault {
        let (plural, group) = self
            .resource
            .split_once('.')
            .unwrap_or((&self.resource, ""));
        let verb = if self.verb == "connect" {
            "create"
        } else {
            self.verb
        };
        let place = match &*self.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let message = format!(
            "{plural} is forbidden: User \"u\" cannot {verb} resource {plural:?} in API group {group:?} {place}"
        );
        let (code, body) = refusal(403, "Forbidden", &message);
        Fault::Refuse(code, body)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Unauthorized,
    Forbidden,
    NotFound,
    Conflict,
    Gone,
    Unprocessable,
    Throttled,
    ThrottledFor,
    Internal,
    InternalAfter,
    Unavailable,
    Disconnected,
    AnswerLost,
    AnswerCut,
    Stalled,
    StalledAfter,
}

/// What a call says.
#[derive(Debug)]
pub(super) enum Expect {
    Fine,
    Fails(Reason),
    FineOr(&'static [Reason]),
}

impl Column {
    pub(super) const ALL: [Self; 16] = [
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::Conflict,
        Self::Gone,
        Self::Unprocessable,
        Self::Throttled,
        Self::ThrottledFor,
        Self::Internal,
        Self::InternalAfter,
        Self::Unavailable,
        Self::Disconnected,
        Self::AnswerLost,
        Self::AnswerCut,
        Self::Stalled,
        Self::StalledAfter,
    ];

    /// Whether the API server does what it was asked for.
    pub(super) fn executes(self) -> bool {
        matches!(
            self,
            Self::InternalAfter | Self::AnswerLost | Self::AnswerCut | Self::StalledAfter
        )
    }

    /// Whether an API server can do this with a call.
    pub(super) fn fits(self, hit: &Hit) -> bool {
        match self {
            // Of an object, or of the namespace that one is to be made in. A pod without a name is not evicted.
            Self::NotFound => hit.verb != "list" && hit.verb != "watch" && !hit.evicts(),
            Self::Conflict | Self::Unprocessable => hit.writes(),
            Self::Gone => matches!(hit.verb, "list" | "watch"),
            // A failure is one whether all of it is read or not; a log without a kubelet is empty.
            Self::AnswerCut => hit.succeeds && hit.verb != "watch" && hit.resource != "pods/log",
            // The first byte of a log may come after hours.
            Self::Stalled | Self::StalledAfter if hit.resource == "pods/log" => false,
            // A watch has no end; how those that run end is told elsewhere.
            Self::InternalAfter | Self::AnswerLost => hit.verb != "watch",
            // Of what changes nothing, the same.
            Self::StalledAfter => hit.writes(),
            Self::Unauthorized
            | Self::Forbidden
            | Self::Throttled
            | Self::ThrottledFor
            | Self::Internal
            | Self::Unavailable
            | Self::Disconnected
            | Self::Stalled => true,
        }
    }

    pub(super) fn is_slow(self, hit: &Hit) -> bool {
        match self {
            Self::Throttled | Self::ThrottledFor | Self::Stalled | Self::StalledAfter => true,
            // Tried again after seconds.
            Self::Conflict
            | Self::Internal
            | Self::InternalAfter
            | Self::Unavailable
            | Self::Disconnected
            | Self::AnswerLost
            | Self::AnswerCut => hit.evicts(),
            Self::Unauthorized
            | Self::Forbidden
            | Self::NotFound
            | Self::Gone
            | Self::Unprocessable => false,
        }
    }

    pub(super) fn fault(self, hit: &Hit) -> Fault {
        let refuse = |code, reason, message| {
            let (code, body) = refusal(code, reason, message);
            Fault::Refuse(code, body)
        };
        match self {
            Self::Unauthorized => refuse(401, "Unauthorized", "Unauthorized"),
            Self::Forbidden => hit.forbidden(),
            Self::NotFound => {
                let (code, mut body) = refusal(404, "NotFound", "not found");
                if hit.verb == "create" {
                    body["message"] = "namespaces \"n\" not found".into();
                    body["details"] = json!({"kind": "namespaces", "name": "n"});
                }
                Fault::Refuse(code, body)
            }
            Self::Conflict if hit.verb == "create" && !hit.evicts() => {
                refuse(409, "AlreadyExists", "it already exists")
            }
            Self::Conflict => refuse(409, "Conflict", "the object has been modified"),
            Self::Gone => Fault::expired(),
            Self::Unprocessable => refuse(422, "Invalid", "it is invalid: spec: Required value"),
            Self::Throttled => refuse(429, "TooManyRequests", "too many requests"),
            Self::ThrottledFor => Fault::Throttle { seconds: 1 },
            Self::Internal => Fault::internal(),
            Self::InternalAfter => Fault::internal_after(),
            Self::Unavailable => refuse(503, "ServiceUnavailable", "apiserver is shutting down"),
            Self::Disconnected => Fault::Disconnect,
            Self::AnswerLost => Fault::LoseAnswer,
            Self::AnswerCut => Fault::CutAnswer,
            Self::Stalled => Fault::Stall,
            Self::StalledAfter => Fault::StallAfter,
        }
    }

    pub(super) fn expected(self, row: &Row, hit: &Hit) -> Expect {
        let creates = row.call == "IngressService/CreateIngress";
        let is_done = matches!(
            self,
            Self::InternalAfter | Self::AnswerLost | Self::AnswerCut | Self::StalledAfter
        );
        match self.answered(row, hit) {
            // It is found, and is the one that was asked for.
            Expect::Fails(_) if creates && hit.verb == "create" && is_done => Expect::Fine,
            // Whether somebody else has a host by now: what was made is taken back.
            expect if creates && hit.verb == "list" => expect,
            // A refusal would mean that nothing was done.
            Expect::Fails(reason) if hit.after && reason != Reason::DeadlineExceeded => {
                Expect::Fails(Reason::Unavailable)
            }
            expect => expect,
        }
    }

    fn answered(self, row: &Row, hit: &Hit) -> Expect {
        let watches = hit.verb == "watch";
        match self {
            // A watch that has begun goes on as soon as it can.
            Self::Unauthorized if watches => Expect::Fine,
            Self::Unauthorized => Expect::Fails(Reason::CredentialsRefused),
            Self::Forbidden => Expect::Fails(Reason::CredentialsRefused),
            Self::NotFound => not_found(row, hit),
            Self::Conflict if hit.swaps() || hit.evicts() => Expect::Fine,
            // Of the uid: another policy has the name, which was not meant.
            Self::Conflict if row.call.ends_with("/DeleteNetworkPolicies") => Expect::Fine,
            Self::Conflict if hit.verb == "create" => Expect::Fails(Reason::AlreadyExists),
            Self::Conflict => Expect::Fails(Reason::Conflict),
            Self::Gone if watches || hit.begins_a_watch(row) => Expect::Fine,
            Self::Gone => Expect::Fails(Reason::PageTokenExpired),
            Self::Unprocessable => Expect::Fails(Reason::Invalid),
            // Reads wait as long as they are asked to. A budget answers the same.
            Self::Throttled | Self::ThrottledFor if !hit.writes() || hit.evicts() => Expect::Fine,
            Self::Throttled | Self::ThrottledFor => Expect::Fails(Reason::RateLimited),
            Self::Internal
            | Self::InternalAfter
            | Self::Unavailable
            | Self::Disconnected
            | Self::AnswerLost
            | Self::AnswerCut
            | Self::Stalled
            | Self::StalledAfter
                if watches || hit.evicts() =>
            {
                Expect::Fine
            }
            Self::Stalled | Self::StalledAfter => Expect::Fails(Reason::DeadlineExceeded),
            Self::Internal
            | Self::InternalAfter
            | Self::Unavailable
            | Self::Disconnected
            | Self::AnswerLost
            | Self::AnswerCut => Expect::Fails(Reason::Unavailable),
        }
    }

    /// Nothing sends a write twice whose outcome is not known, or that was refused.
    pub(super) fn check_repetitions(self, what: &str, hit: &Hit, calls: &[Call]) {
        let mut sent: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
        for call in calls.iter().filter(|call| call.changes()) {
            let identity = (call.verb, &*call.resource, &*call.name);
            *sent.entry(identity).or_default() += 1;
        }
        // Nothing was written, and what is written next is compared with what was read anew. An eviction is of one uid.
        let compared = matches!(self, Self::Conflict | Self::NotFound) && hit.swaps();
        let most = if compared || hit.evicts() { 2 } else { 1 };
        let twice: Vec<_> = sent.iter().filter(|(_, count)| **count > most).collect();
        assert!(twice.is_empty(), "{what}: sent more than once: {twice:?}");
    }
}

/// What is said of an object that is not there.
fn not_found(row: &Row, hit: &Hit) -> Expect {
    match (hit.verb, &*hit.resource) {
        ("delete", _) => Expect::Fine,
        ("create", _) => Expect::Fails(Reason::Precondition),
        ("get", "services" | "upstreams.gloo.solo.io")
            if row.call.starts_with("IngressService/") =>
        {
            // What is said of paths that are there already does not need them.
            Expect::FineOr(&[Reason::IngressUpstreamMissing])
        }
        // It has no addresses then.
        ("get", "gateways.gateway.networking.k8s.io") => Expect::Fine,
        ("get", _) if row.call == "IngressService/CreateIngress" => Expect::Fine,
        ("get", _) if row.call == "IngressService/DeleteIngress" => Expect::Fine,
        // Read again, and found.
        ("patch", resource) if resource != "nodes" => Expect::Fine,
        _ => Expect::Fails(Reason::NotFound),
    }
}
