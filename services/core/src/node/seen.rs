//! What platforms and probes show of a node, known to this process only.

use super::Millis;
use crate::{
    name::Sym,
    rare::{Empty, Rare},
};

/// Lifecycle phase of a node as reported by the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not observed yet by this process.
    #[default]
    Unseen,
    /// Accepted or partially created.
    Pending,
    /// Running.
    Running,
    /// Exists but is not running, without having been asked to stop.
    Stopped,
    /// Being removed.
    Deprovisioning,
    /// Died, or will never run.
    Failed,
    /// Gone for good according to the backend: proof of absence.
    Terminated,
    /// Known to exist, but not readable.
    Unknown,
}

/// A node as reported by its platform.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The platform's id, as long as the record does not have it. Empty if not reported or already recorded.
    pub node_id: Box<str>,
    /// Lifecycle phase.
    pub phase: Phase,
    /// The backend's own readiness. `None` if the backend has no such concept.
    pub ready: Option<bool>,
    /// When it was last reported. 0 if never, in this process.
    pub last: Millis,
    /// Start of the most recent complete read that lacked it, both in the list and by id. 0 if there is none.
    pub missing_from: Millis,
    /// Whether its agent did not respond at the time of that read.
    pub silent: bool,
    /// The backend itself reported it gone.
    pub gone: bool,
    /// A watch reported that it is no longer listed, which proves nothing.
    pub unlisted: bool,
    /// Only responses to calls have reported it so far, no list or watch that would notice when it disappears.
    pub unproven: bool,
    /// It counts as one of the nodes that vanished from its platform, until it is reported again.
    pub vanished: bool,
    /// Failure domain. Empty if not known.
    pub failure_domain: Sym,
    /// Named ports as (name, `host:port`).
    pub endpoints: Box<[(Sym, Box<str>)]>,
    /// Address for probes. Empty if it cannot be probed.
    pub agent_address: Box<str>,
    /// Provider id shared across tools. Empty if not known.
    pub provider_id: Box<str>,
    /// Explanation of the phase, in the backend's words.
    pub message: Box<str>,
    /// All its addresses.
    pub addresses: Box<[SeenAddress]>,
    /// The machine under it.
    pub host: Rare<SeenHost>,
}

/// The machine under a node, as far as its platform shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenHost {
    /// The claimed host.
    pub id: Option<Box<str>>,
    /// The machine that a created node is on, while nobody there answers for it. `None` if one does, or if the platform
    /// does not tell.
    pub lost: Option<Box<LostHost>>,
    /// What the backend has announced for it.
    pub maintenance: Option<Box<Maintenance>>,
}

impl Empty for SeenHost {
    const EMPTY: &'static Self = &Self {
        id: None,
        lost: None,
        maintenance: None,
    };
}

/// Maintenance that the backend has announced for the machine under a node, which runs as before until then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// What it does to the node.
    pub kind: MaintenanceKind,
    /// When it begins at the earliest. 0 if not known.
    pub start: Millis,
    /// When it is over at the latest. 0 if not known.
    pub end: Millis,
    /// What is announced, in the backend's words.
    pub message: Box<str>,
}

/// What maintenance does to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MaintenanceKind {
    /// Not known.
    #[default]
    Unknown,
    /// The node stays or comes back by itself, with its data.
    Restart,
    /// The node stops and does not come back by itself.
    Stop,
}

/// A machine on which nobody answers for a node. It proves nothing about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostHost {
    /// Name at the backend.
    pub name: Box<str>,
    /// Whether the backend, or a person, has given it up: the backend removes what was there.
    pub gone: bool,
    /// Why it counts as lost and since when, in the backend's words.
    pub message: Box<str>,
    /// What a person does so that the backend proves the node dead. Empty for nothing.
    pub way_out: Box<str>,
}

/// One address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAddress {
    /// Kind of the address, a value of `common.v1.AddressType`.
    pub kind: i32,
    /// IP address or DNS name.
    pub value: Box<str>,
    /// Network interface. Empty if not known.
    pub interface: Sym,
}

/// Results of the network probes of a node since this process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResult {
    /// Consecutive successful probes, at most 255.
    pub good: u8,
    /// Consecutive failed probes, at most 255.
    pub bad: u8,
    /// Whether any probe was ever answered.
    pub answered: bool,
    /// What the last probe that the node passed found it to lack: a bit for each impairment of the probe, in their order.
    pub impaired: u16,
    /// Cause of the last failure.
    pub message: Box<str>,
}
