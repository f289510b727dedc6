//! What is known of a platform, as far as plans depend on it.

use drover_core::{Millis, Sym};

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
    /// Node classes that it has none of now, and until when nobody asks again.
    pub no_capacity: Vec<(Sym, Millis)>,
    /// Sick nodes on it, over all clusters.
    pub sick: u32,
    /// Nodes on it, over all clusters.
    pub total: u32,
    /// Whether it has ended all calls of earlier processes of ours: none of them begins to make anything any more.
    pub fenced: bool,
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

impl PlatformView {
    /// Whether what a record says to be on this backend can be seen.
    #[must_use]
    pub fn sees(&self, uid: &str) -> bool {
        self.visible && *self.uid == *uid
    }

    /// Until when it has none of a node class.
    #[must_use]
    pub fn out_of(&self, class: &str, now: Millis) -> Option<Millis> {
        self.no_capacity
            .iter()
            .filter(|(c, until)| **c == *class && *until > now)
            .map(|(_, until)| *until)
            .max()
    }
}
