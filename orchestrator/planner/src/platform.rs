//! The state of a platform, as far as plans depend on it.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{
    Millis, Node, NodeState, Sym,
    node::{Removal, RemovalReason},
};

use crate::{PLATFORM_BREAKER_MIN, PLATFORM_BREAKER_PERCENT};

/// Failure domains of a platform: name to topology labels.
pub type Domains = BTreeMap<Sym, BTreeMap<Sym, Sym>>;

/// A lack of capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Pool that is exhausted (`Choice::pool`).
    pub pool: Sym,
    /// Failure domain that is exhausted. Empty for all of them.
    pub domain: Sym,
    /// Until when no request asks for it.
    pub until: Millis,
}

/// Present view of a platform.
#[derive(Clone, Debug, PartialEq)]
pub struct PlatformView {
    /// Uid of the backend. Empty until it has responded.
    pub uid: Sym,
    /// Whether it is known what exists there: it responds, its uid is the recorded one, and its last complete
    /// observation is recent enough.
    pub visible: bool,
    /// Since when it has been visible without interruption.
    pub visible_since: Millis,
    /// Whether calls may be made: it is visible, older owners are fenced off, and not too many calls fail.
    pub callable: bool,
    /// Why it is not visible or callable, for people.
    pub trouble: Box<str>,
    /// Changes whenever the platform's offer changes.
    pub etag: Sym,
    /// Limits for calls.
    pub limits: Limits,
    /// Time from accepted to running after which a node is sick, for groups that do not set one.
    pub provision_timeout: Millis,
    /// Present shortages, as reported to any cluster.
    pub no_capacity: Vec<Shortage>,
    /// Failure domains with their labels.
    pub domains: Arc<Domains>,
    /// Troubled nodes on it ([`is_troubled`]), over all clusters.
    pub sick: u32,
    /// Nodes on it, over all clusters.
    pub total: u32,
    /// When its circuit breaker was last open: a node that was judged sick by then may merely not have been probed
    /// again since.
    pub calm_since: Millis,
    /// Whether it has ended all calls of earlier processes of ours, so that none of them starts to create anything any
    /// more.
    pub fenced: bool,
    /// Whether it can change the owner of nodes.
    pub adopts: bool,
    /// Whether it changes the labels of hosts in place.
    pub relabels: bool,
    /// Whether the storage of its nodes grows in place. `None` if that is not known yet.
    pub grows: Option<bool>,
    /// Whether its nodes come from an inventory of hosts, which may be full.
    pub finite: bool,
}

/// Limits for calls to a platform. Times are in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of nodes in a request. Default 1.
    pub max_batch: u32,
    /// Maximum time from the start of a create until it has created something or never will. Default 2 min.
    pub max_creation_time: Millis,
    /// How long a request is recognised after it was first sent. Default 10 min.
    pub request_memory: Millis,
    /// Maximum time for which an existing node may not be listed. Default 1 min.
    pub visibility_delay: Millis,
    /// Minimum wait before a request of unknown outcome is sent again. Default 1 min.
    pub replay_delay: Millis,
    /// Deadline of a Provision call. Default 1 min.
    pub call_timeout: Millis,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_batch: 1,
            max_creation_time: 120_000,
            request_memory: 600_000,
            visibility_delay: 60_000,
            replay_delay: 60_000,
            call_timeout: 60_000,
        }
    }
}

/// Threshold of a platform's circuit breaker: if more of its nodes are troubled, none of them is replaced.
#[must_use]
pub fn most_troubled(total: u32) -> u32 {
    PLATFORM_BREAKER_MIN.max(total * PLATFORM_BREAKER_PERCENT / 100)
}

/// Whether a node counts towards the circuit breaker of its platform: it is sick, is being replaced because it was, or
/// was healthy and failed its last probe. Many of these at a time have one cause, which replacing them does not fix.
#[must_use]
pub fn is_troubled(node: &Node) -> bool {
    let replaced = |removal: Removal| removal.reason == RemovalReason::Sick;
    match node.state {
        NodeState::Unhealthy => true,
        NodeState::Ready => node.probe.bad > 0,
        _ => node.removal.is_some_and(replaced),
    }
}

impl PlatformView {
    /// Whether this backend is visible now, so that what is recorded on it can be observed.
    #[must_use]
    pub fn sees(&self, uid: &str) -> bool {
        self.visible && *self.uid == *uid
    }

    /// Until when a pool is exhausted in all of these failure domains, or in all that it has if none are named. `None`
    /// if it is not.
    #[must_use]
    pub fn out_of(&self, pool: &str, domains: &[String], now: Millis) -> Option<Millis> {
        let short: Vec<&Shortage> = self
            .no_capacity
            .iter()
            .filter(|short| *short.pool == *pool && short.until > now)
            .collect();
        let until = |domain: &str| {
            let own = short.iter().filter(|short| *short.domain == *domain);
            own.map(|short| short.until).max()
        };
        if short.is_empty() {
            return None;
        }
        let each: Option<Vec<Millis>> = if domains.is_empty() {
            self.domains.keys().map(|domain| until(domain)).collect()
        } else {
            domains.iter().map(|domain| until(domain)).collect()
        };
        // The earliest time at which one of them may have capacity again.
        let each = each.and_then(|each| each.into_iter().min());
        until("").max(each)
    }

    /// Value of a topology key in a failure domain. Empty if not known.
    #[must_use]
    pub fn topology(&self, domain: &str, key: &str) -> &str {
        self.domains
            .get(domain)
            .and_then(|labels| labels.get(key))
            .map_or("", |value| value)
    }
}
