//! Resources that a platform makes for a cluster besides nodes: what is wanted, and the record of what was requested and
//! observed. Infrastructure and addons share it.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::{
    addon::AddonTarget,
    error::Error,
    name::{self, Sym},
    node::{Call, Millis},
};

/// Raised whenever the hashed fields change, so that a new formula is never mistaken for a changed spec.
const HASH_VERSION: u8 = 1;

/// What a resource is for a cluster. There is at most one of each kind on a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// The infrastructure that nodes need.
    Infrastructure,
    /// The addon of this name.
    Addon(Sym),
}

/// Identifies a recorded resource of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKey {
    /// What it is.
    pub kind: ResourceKind,
    /// Name of its platform.
    pub platform: Sym,
    /// Uid of its backend.
    pub uid: Sym,
}

impl ResourceKey {
    /// The infrastructure on a backend.
    #[must_use]
    pub fn infrastructure(platform: impl Into<Sym>, uid: impl Into<Sym>) -> Self {
        Self {
            kind: ResourceKind::Infrastructure,
            platform: platform.into(),
            uid: uid.into(),
        }
    }

    /// An addon on a backend.
    #[must_use]
    pub fn addon(name: impl Into<Sym>, platform: impl Into<Sym>, uid: impl Into<Sym>) -> Self {
        Self {
            kind: ResourceKind::Addon(name.into()),
            platform: platform.into(),
            uid: uid.into(),
        }
    }

    /// The name of the addon. `None` for infrastructure.
    #[must_use]
    pub fn addon_name(&self) -> Option<&Sym> {
        match &self.kind {
            ResourceKind::Infrastructure => None,
            ResourceKind::Addon(name) => Some(name),
        }
    }

    /// Whether it is an addon.
    #[must_use]
    pub fn is_addon(&self) -> bool {
        self.addon_name().is_some()
    }

    /// Its backend: name of the platform, uid.
    #[must_use]
    pub fn backend(&self) -> (Sym, Sym) {
        (self.platform.clone(), self.uid.clone())
    }

    /// Whether it is on this backend.
    #[must_use]
    pub fn is_on(&self, platform: &str, uid: &str) -> bool {
        *self.platform == *platform && *self.uid == *uid
    }
}

/// Desired infrastructure or a desired addon on one platform, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name of the platform.
    pub platform: Sym,
    /// Hash of `body`.
    pub spec_hash: Sym,
    /// The encoded spec as sent to platforms.
    pub body: Arc<[u8]>,
}

impl Wanted {
    /// Wraps an encoded spec and computes its hash.
    #[must_use]
    pub fn new(platform: &str, body: &[u8]) -> Self {
        Self {
            platform: name::sym(platform),
            spec_hash: hash(body),
            body: body.into(),
        }
    }
}

/// Hash of encoded content.
pub(crate) fn hash(bytes: &[u8]) -> Sym {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("i{HASH_VERSION}-{hex}").into()
}

/// Lifecycle phase of a resource, or of all resources together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourcePhase {
    /// Being created.
    #[default]
    Pending,
    /// Exists and is usable.
    Ready,
    /// Not usable.
    Failed,
    /// Being removed.
    Releasing,
    /// Reported as deleted by the backend.
    Gone,
    /// Known to exist, but not readable at the moment.
    Unknown,
}

/// Kind of a resource that is an address which leads to nodes.
pub const ENDPOINT: &str = "endpoint";

/// A resource that a platform created for a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Kind of the resource, in the platform's terms.
    pub kind: Sym,
    /// Name, unique within its kind.
    pub name: Box<str>,
    /// The backend's id. Empty if not assigned yet.
    pub id: Box<str>,
    /// Lifecycle phase.
    pub phase: ResourcePhase,
    /// Explanation of the phase, in the backend's words.
    pub message: Box<str>,
    /// Sequence of the request that created it. 0 if not recorded.
    pub sequence: u64,
    /// Creation time. 0 if not known.
    pub create_time: Millis,
}

/// Infrastructure or an addon as reported by a platform.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The worst phase of all resources; `Gone` if there are none.
    pub phase: ResourcePhase,
    /// Explanation of the phase, in the backend's words. Empty if only the resources have one.
    pub message: Box<str>,
    /// The resources, sorted by kind and name.
    pub resources: Vec<Resource>,
    /// What it offers, in wire encoding: to nodes, or to the users of an addon.
    pub outputs: Arc<[u8]>,
    /// When to poll again. `None` if the platform did not say.
    pub poll_after: Option<Millis>,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Create or complete it.
    Ensure,
    /// Read its current state.
    Read,
    /// Release it.
    Release,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceAnswer {
    /// The kind of the call.
    pub asked: Asked,
    /// When the call began.
    pub began: Millis,
    /// When the call ended.
    pub at: Millis,
    /// The platform's report, or the error.
    pub outcome: Result<Observed, Error>,
}

/// The infrastructure of a cluster on one backend, or one addon: a slot that exists from the intent until the platform
/// reports it gone.
///
/// All but what is in flight is durable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceRecord {
    /// Sequence of the request.
    pub sequence: u64,
    /// Hash of the requested spec.
    pub spec_hash: Sym,
    /// The requested spec, as sent.
    pub body: Arc<[u8]>,
    /// Whether it is being released; irrevocable.
    pub releasing: bool,
    /// Phase as last observed.
    pub phase: ResourcePhase,
    /// When it entered that phase.
    pub phase_time: Millis,
    /// Resources as last observed.
    pub resources: Vec<Resource>,
    /// What it offers, in wire encoding: to nodes, or to the users of an addon.
    pub outputs: Arc<[u8]>,
    /// Deadline of the last Ensure or Release. 0 once it was answered.
    pub deadline: Millis,
    /// Until when something may still come into existence that was requested with an unknown outcome or only half
    /// created.
    pub unsettled: Millis,
    /// Consecutive failures.
    pub failures: u32,
    /// Not called again before this time.
    pub next: Millis,
    /// Reason of the current problem, one word. Empty if there is none.
    pub reason: Sym,
    /// Explanation of the problem, in the platform's words.
    pub message: Box<str>,
    /// The platform's etag when it refused; the call is retried when the etag changes.
    pub etag: Sym,
    /// Start of the first read in which a resource was missing. 0 if none is missing.
    pub doubt: Millis,
    /// Hash of the targets in the last Ensure. Empty for infrastructure.
    pub targets_hash: Sym,
    /// Hash of the versions of the secrets in the last Ensure. Empty if it names none.
    pub secrets_hash: Sym,

    /// What this process has asked, and what it was answered.
    pub in_flight: ResourceInFlight,
}

impl ResourceRecord {
    /// Goes on from what was known of the resource `before` its record was read again.
    pub fn continue_from(&mut self, before: Self) {
        self.in_flight = ResourceInFlight {
            // It may be recorded already; reading it again costs a call.
            answer: None,
            ..before.in_flight
        };
    }
}

/// What this process knows of a resource besides its record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceInFlight {
    /// Whether this process has ever sent it.
    pub sent: bool,
    /// The call in flight, and when the next read may happen.
    pub call: Call,
    /// Result of the last call, until it has been processed.
    pub answer: Option<ResourceAnswer>,
    /// When the platform last answered an Ensure. 0 if it has not answered this process.
    pub ensured: Millis,
    /// The targets of the last Ensure.
    pub targets: Arc<[AddonTarget]>,
    /// The targets that the platform has last confirmed to serve. `None` if that is not known.
    pub served: Option<Arc<[AddonTarget]>>,
    /// Slots that lists since then told it to serve. It may do so, whatever it has answered.
    pub announced: Vec<u64>,
    /// When the record of a node on its platform was last dropped. 0 if this process has dropped none.
    pub node_dropped: Millis,
    /// Whether it was ready when other targets or secrets were sent, and has not been seen in another state since.
    pub follows: bool,
}

impl ResourceRecord {
    /// Whether it is ready as requested and not being released.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == ResourcePhase::Ready && !self.releasing
    }

    /// Its resources for display: `network n1, endpoint e1`.
    #[must_use]
    pub fn named(&self) -> String {
        let names: Vec<String> = self
            .resources
            .iter()
            .map(|resource| format!("{} {}", resource.kind, resource.name))
            .collect();
        names.join(", ")
    }
}
