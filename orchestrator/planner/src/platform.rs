//! What is known of a platform, as far as plans depend on it.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{
    Millis, Node, NodeState, Sym,
    node::{Removal, RemovalReason},
};

use crate::{PLATFORM_BREAKER_MIN, PLATFORM_BREAKER_PERCENT};

/// Failure domains of a platform: name to topology labels.
pub type Domains = BTreeMap<Sym, BTreeMap<Sym, Sym>>;

/// What a platform has none of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Of what (`Choice::pool`).
    pub pool: Sym,
    /// In which failure domain. Empty: in all of them.
    pub domain: Sym,
    /// Until when nobody asks again.
    pub until: Millis,
}

/// A platform as it can be seen now.
#[derive(Clone, Debug, PartialEq)]
pub struct PlatformView {
    /// Uid of the backend. Empty: it has not answered yet.
    pub uid: Sym,
    /// Whether it is known now what exists there: it answers, its uid is the recorded one, and its last complete
    /// observation is not too old.
    pub visible: bool,
    /// Since when it is visible without a break.
    pub visible_since: Millis,
    /// Whether calls may be made: visible, older owners are fenced off, and not too many fail.
    pub callable: bool,
    /// Why not, for people.
    pub trouble: Box<str>,
    /// Changes with what the platform offers.
    pub etag: Sym,
    /// How it wants to be called.
    pub limits: Limits,
    /// Time from accepted to running before a node is sick, where groups say nothing.
    pub provision_timeout: Millis,
    /// What it has none of now, as any cluster was told.
    pub no_capacity: Vec<Shortage>,
    /// Its failure domains.
    pub domains: Arc<Domains>,
    /// Nodes on it that are in trouble (`is_troubled`), over all clusters.
    pub sick: u32,
    /// Nodes on it, over all clusters.
    pub total: u32,
    /// When there were too many last: who was judged by then may only not have been asked again since.
    pub calm_since: Millis,
    /// Whether it has ended all calls of earlier processes of ours: none of them begins to make anything any more.
    pub fenced: bool,
    /// Whether it can give nodes another owner.
    pub adopts: bool,
}

/// How a platform wants to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most slots in a request.
    pub max_batch: u32,
    /// Longest time from the start of a create until it has made something or never will.
    pub max_creation_time: Millis,
    /// How long after its first sending a request is recognised.
    pub request_memory: Millis,
    /// Longest time for which a thing that exists may not be listed.
    pub visibility_delay: Millis,
    /// Shortest wait before a request of unknown outcome is sent again.
    pub replay_delay: Millis,
    /// Deadline of a Provision call.
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

/// So many nodes of a platform may be in trouble before none of them is replaced any more.
#[must_use]
pub fn most_troubled(total: u32) -> u32 {
    PLATFORM_BREAKER_MIN.max(total * PLATFORM_BREAKER_PERCENT / 100)
}

/// Whether a node counts against its platform: it is sick, is being replaced because it was, or was well and did not
/// answer its last probe. Many of these at a time have one cause, which replacing them does not cure.
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
    /// Whether what a record says to be on this backend can be seen.
    #[must_use]
    pub fn sees(&self, uid: &str) -> bool {
        self.visible && *self.uid == *uid
    }

    /// Until when it has nothing of a pool in any of these failure domains. None named: in any that it has.
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
        // The first of them that may have some again.
        let each = each.and_then(|each| each.into_iter().min());
        until("").max(each)
    }

    /// The value of a topology key in a failure domain. Empty: not known.
    #[must_use]
    pub fn topology(&self, domain: &str, key: &str) -> &str {
        self.domains
            .get(domain)
            .and_then(|labels| labels.get(key))
            .map_or("", |value| value)
    }
}
