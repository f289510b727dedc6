//! The planner: what is to be done for one cluster now, and why, or why not yet.
//!
//! [`plan`] is a pure function of what is wanted, what was recorded, what is observed, the time and a source of ids. It
//! returns operations on the record, which are made durable as one transaction, and calls, which are made after that.
//! [`apply`] is what the operations mean for the record. Neither does any I/O, and nothing is left to be decided by who
//! carries a plan out.

mod apply;
mod conditions;
mod create;
mod group;
mod infrastructure;
mod observe;
mod orphans;
mod platform;
mod remove;
mod requests;
mod rollout;
mod small;
mod spread;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, Node, NodeState, Phase, Sym,
    infrastructure::{Asked, Infrastructure, Wanted},
    node::{RemovalReason, Request},
    spec::{Budget, Group, OrphanPolicy},
};
use uuid::Uuid;

pub use apply::apply;
pub use infrastructure::{BackendKey, DRIFT_INTERVAL, InfrastructureChange, RELEASE_TIMEOUT};
pub use platform::{Domains, Limits, PlatformView, Shortage};
pub use small::SmallMap;
pub use state::{
    BackOff, BackOffKey, BackOffKind, Condition, ConditionKey, ConditionKind, Orphan, Rollout,
    State, Subject,
};

/// Most nodes in one request, and rows after which a plan begins nothing new. The last thing begun may touch one whole
/// request more, and all of that has to fit into one step of the store (100 rows). The rest comes with the next plan.
pub const MAX_ROWS: usize = 45;
/// Cadence at which what has failed for good is tried all the same.
pub const SLOW_CADENCE: Millis = 10 * 60 * 1000;
/// So many nodes of a platform may be sick, over all clusters, before none of them is replaced any more.
pub const PLATFORM_BREAKER_MIN: u32 = 3;
/// The same, as a percentage of all its nodes; the larger of both counts.
pub const PLATFORM_BREAKER_PERCENT: u32 = 20;

/// Everything that a plan depends on.
pub struct Input<'a> {
    /// The time.
    pub now: Millis,
    /// When this process began to observe. What an earlier one saw counts for no deadline that ends in a deletion.
    pub process_start: Millis,
    /// The groups wanted. Empty when the cluster is being deleted.
    pub groups: &'a [Group],
    /// The infrastructure wanted; of no account when the cluster is being deleted.
    pub infrastructure: &'a [Wanted],
    /// Defaults for the health of groups that say nothing, by position in `groups`; from their templates.
    pub health_defaults: &'a [Option<drover_core::spec::Health>],
    /// What becomes of orphans.
    pub orphans: OrphanPolicy,
    /// How long an orphan is seen first.
    pub orphan_grace: Millis,
    /// Whether a restored store still waits for a person to confirm before orphans are swept.
    pub orphan_hold: bool,
    /// The record and what was observed of it.
    pub state: &'a State,
    /// The platforms, by the name under which they are registered.
    pub platforms: &'a BTreeMap<Sym, PlatformView>,
    /// Whether the report is wanted.
    pub explain: bool,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Operations on the record, in order; durable before any call is made.
    pub ops: Vec<Op>,
    /// Calls to make once the operations are durable.
    pub calls: Vec<Call>,
    /// When to plan again even if nothing happens. Absent: not before something happens.
    pub wake: Option<Millis>,
    /// There is more to do right after this plan.
    pub again: bool,
    /// A deleted cluster is proven absent everywhere; its record can go.
    pub finished: bool,
    /// What every group and node is doing, or why it waits; only if asked for.
    pub report: Vec<Note>,
    /// Groups of which nodes are to be renewed; only if asked for.
    pub renewals: Vec<Renewal>,
}

impl Plan {
    /// Whether nothing is to be done now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.calls.is_empty() && !self.finished
    }
}

/// One operation on the record.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A node is in another state.
    Enter {
        /// Its slot.
        slot: u64,
        /// The state.
        state: NodeState,
        /// Why, one word.
        reason: &'static str,
        /// Why, for people.
        message: Box<str>,
        /// Whether it has been Ready for as long as its group calls stable.
        stable: bool,
    },
    /// The platform has said under which id it has a node.
    Learn {
        /// Its slot.
        slot: u64,
        /// The id.
        node_id: Box<str>,
    },
    /// Nodes are asked for: the intent, and the first attempt.
    Request {
        /// The request.
        request: Box<Request>,
        /// Its nodes, in the order of their indexes.
        nodes: Vec<Node>,
        /// Position of its group in the input.
        group: usize,
        /// Position of the choice in the group.
        choice: usize,
        /// Why, one word: ScaleUp, Replace or Update.
        reason: &'static str,
    },
    /// An open request is sent again.
    Attempt {
        /// The request.
        request: Uuid,
        /// Deadline of the attempt.
        deadline: Millis,
    },
    /// The last attempt of a request is known to have made nothing.
    MadeNothing {
        /// The request.
        request: Uuid,
    },
    /// A request is closed: it is never sent again.
    Close {
        /// The request.
        request: Uuid,
        /// Until when the backend may still make its nodes.
        maybe_until: Millis,
        /// From when on no call can make them.
        settled: Millis,
    },
    /// A node is to be removed; irrevocable.
    Remove {
        /// Its slot.
        slot: u64,
        /// Why.
        reason: RemovalReason,
    },
    /// A node is proven absent; its record goes.
    Forget {
        /// Its slot.
        slot: u64,
        /// Why it went, one word.
        reason: &'static str,
        /// What happened, for people.
        message: Box<str>,
        /// Whether nobody had asked for that.
        lost: bool,
    },
    /// A thing of ours without a record gets one, in order to be removed.
    TakeOrphan {
        /// The record, with its removal.
        node: Box<Node>,
    },
    /// A back-off changes, or ends.
    BackOff {
        /// Of what.
        key: BackOffKey,
        /// What it is from now on.
        to: Option<BackOff>,
    },
    /// A condition begins, changes its words or ends.
    Condition {
        /// Which one.
        key: ConditionKey,
        /// What it says from now on. Absent: it does not hold.
        to: Option<Condition>,
    },
    /// A node gets the present hash of what made it: only the formula has changed.
    Restamp {
        /// Its slot.
        slot: u64,
        /// The hash.
        spec_hash: Sym,
    },
    /// The renewal of nodes of a group begins, comes on or ends.
    Rollout {
        /// Path of the group.
        group: Sym,
        /// How far it is from now on. Absent: nothing is left to be renewed.
        to: Option<Rollout>,
    },
    /// The record of infrastructure changes, or ends.
    Infrastructure {
        /// Which backend it is on.
        key: BackendKey,
        /// What it is from now on. Absent: its record goes.
        to: Option<Box<Infrastructure>>,
        /// What that is.
        change: InfrastructureChange,
    },
    /// The record is about this generation from now on.
    Observed {
        /// The generation.
        generation: u64,
    },
}

/// One call to a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Sends a request.
    Provision {
        /// The request.
        request: Uuid,
        /// Deadline.
        deadline: Millis,
    },
    /// Asks for the removal of a node.
    Deprovision {
        /// Its slot.
        slot: u64,
    },
    /// Reads a platform completely, to find out whether slots are absent.
    Confirm {
        /// The platform.
        platform: Sym,
    },
    /// Asks about infrastructure: that it be made or freed, or what there is of it.
    Infrastructure {
        /// The platform.
        platform: Sym,
        /// Uid of the backend.
        uid: Sym,
        /// What is asked.
        asked: Asked,
    },
}

/// What a group or node is doing, or why it waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Path of the group. Empty: about the whole cluster.
    pub group: Sym,
    /// Slot. Absent: about the whole group.
    pub slot: Option<u64>,
    /// Whether an action of the plan is about it; otherwise it waits.
    pub acting: bool,
    /// Why, one word.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
    /// Until when it waits.
    pub until: Option<Millis>,
}

/// Nodes of a group that are to be renewed, and within which budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Path of the group.
    pub group: Sym,
    /// How many at a time.
    pub budget: Budget,
    /// Nodes wanted.
    pub size: u32,
    /// Slots, in the order in which they go if nothing changes.
    pub order: Vec<u64>,
    /// How long it takes at most if nothing fails.
    pub at_most: Millis,
}

/// What this plan makes of a node, beyond the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// Position of its group in the input; `NO_GROUP` if it is wanted no more.
    group: u16,
    /// Its record goes with this plan.
    forgotten: bool,
    /// It is to be removed, from before or by this plan.
    leaving: bool,
    /// The backend has proven that it does not run.
    dead: bool,
    /// Its platform can be seen.
    visible: bool,
    /// And nothing that the platform says puts in doubt that it is there.
    fresh: bool,
    /// Ready, fresh and not leaving.
    available: bool,
    /// Sick: it runs, and should be replaced.
    sick: bool,
}

const NO_GROUP: u16 = u16::MAX;

struct Planner<'a> {
    input: &'a Input<'a>,
    state: &'a State,
    plan: Plan,
    marks: Vec<Mark>,
    /// Positions of the groups, by path.
    paths: BTreeMap<&'a str, u16>,
    /// Positions of the nodes that belong to a group, by group.
    members: Vec<u32>,
    /// Where the members of each group begin, and after the last one, where they end.
    starts: Vec<u32>,
    /// Failures that this plan has counted already, so that one cause counts once.
    failed: Vec<BackOffKey>,
    /// Back-offs as this plan leaves them.
    backoffs: BTreeMap<BackOffKey, Option<BackOff>>,
    /// Requests that this plan closes.
    closed: Vec<Uuid>,
    /// Whether this store is older than what platforms show.
    behind: bool,
    /// Infrastructure that this plan changes, as it leaves it.
    infrastructure: Vec<(BackendKey, Infrastructure)>,
    /// What of the infrastructure nodes wait for.
    lacks: Option<String>,
    /// Conditions that hold after this plan.
    holds: BTreeMap<ConditionKey, Condition>,
    /// Slots whose rows the operations change.
    touched: BTreeSet<u64>,
    /// Other rows that they change.
    rows: usize,
    next_slot: u64,
    next_sequence: u64,
}

/// Plans one pass.
///
/// `new_id` is asked for the ids of new requests.
pub fn plan(input: &Input<'_>, new_id: &mut dyn FnMut() -> Uuid) -> Plan {
    let state = input.state;
    let mut planner = Planner {
        input,
        state,
        plan: Plan::default(),
        marks: vec![Mark::default(); state.nodes.len()],
        paths: BTreeMap::new(),
        members: Vec::new(),
        starts: Vec::new(),
        failed: Vec::new(),
        backoffs: BTreeMap::new(),
        closed: Vec::new(),
        behind: false,
        infrastructure: Vec::new(),
        lacks: None,
        holds: BTreeMap::new(),
        touched: BTreeSet::new(),
        rows: 0,
        next_slot: state.next_slot,
        next_sequence: state.next_sequence,
    };
    planner.run(new_id);
    planner.plan
}

impl Planner<'_> {
    fn run(&mut self, new_id: &mut dyn FnMut() -> Uuid) {
        self.find_groups();
        self.take_answers();
        self.observe();
        self.freeze();
        if self.state.paused {
            self.note("", None, false, "Paused", || {
                "the cluster is paused: nothing is made, healed or removed".into()
            });
            self.note_lacking();
        } else {
            self.settle_requests();
            self.plan_infrastructure();
            if !self.state.deleting {
                for group in 0..self.input.groups.len() {
                    self.plan_group(group, new_id);
                }
            }
            self.remove_unwanted();
            self.sweep_orphans();
            self.send_requests();
            self.call_removals();
            self.confirm_absence();
        }
        self.conclude();
        if !self.plan.ops.is_empty() {
            // What they change may allow the next thing, which nothing else would come to remind of.
            self.wake(self.input.now);
        }
    }

    fn find_groups(&mut self) {
        self.paths = self
            .input
            .groups
            .iter()
            .enumerate()
            .map(|(at, group)| (&*group.path, at as u16))
            .collect();
        let mut last: Option<(&Sym, u16)> = None;
        for (mark, node) in self.marks.iter_mut().zip(&self.state.nodes) {
            mark.group = match last {
                Some((path, at)) if *path == node.group => at,
                _ => self.paths.get(&*node.group).copied().unwrap_or(NO_GROUP),
            };
            last = Some((&node.group, mark.group));
            mark.leaving = node.removal.is_some();
            mark.dead = node.is_dead();
            mark.visible = self
                .input
                .platforms
                .get(&node.platform)
                .is_some_and(|p| p.sees(&node.platform_uid));
            let seen = &node.seen;
            mark.fresh = mark.visible
                && !seen.unlisted
                && seen.phase != Phase::Unknown
                && (seen.missing_from == 0 || seen.missing_from < seen.last);
        }
        self.index_members();
    }

    /// Sorts the nodes by group, so that no group has to look at all of them.
    fn index_members(&mut self) {
        let groups = self.input.groups.len();
        self.starts = vec![0; groups + 1];
        let grouped = |mark: &&Mark| mark.group != NO_GROUP;
        for mark in self.marks.iter().filter(grouped) {
            self.starts[usize::from(mark.group) + 1] += 1;
        }
        for group in 0..groups {
            self.starts[group + 1] += self.starts[group];
        }
        self.members = vec![0; self.starts[groups] as usize];
        let mut next = self.starts.clone();
        for (at, mark) in (0_u32..).zip(&self.marks) {
            if mark.group != NO_GROUP {
                let next = &mut next[usize::from(mark.group)];
                self.members[*next as usize] = at;
                *next += 1;
            }
        }
    }

    /// Positions of the nodes of a group that stay recorded, by slot.
    fn own(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let (from, to) = (self.starts[group] as usize, self.starts[group + 1] as usize);
        self.members[from..to]
            .iter()
            .map(|&at| at as usize)
            .filter(|&at| !self.marks[at].forgotten)
    }

    fn op(&mut self, op: Op) {
        match &op {
            Op::Request { nodes, .. } => {
                self.rows += 1;
                self.touched.extend(nodes.iter().map(|node| node.slot));
            }
            Op::Close { request, .. } => {
                self.rows += 1;
                let own = self
                    .state
                    .nodes
                    .iter()
                    .filter(|node| node.request == *request);
                self.touched.extend(own.map(|node| node.slot));
            }
            Op::Attempt { .. } | Op::MadeNothing { .. } | Op::Infrastructure { .. } => {
                self.rows += 1;
            }
            Op::TakeOrphan { node } => {
                self.touched.insert(node.slot);
            }
            Op::Enter { slot, .. }
            | Op::Learn { slot, .. }
            | Op::Remove { slot, .. }
            | Op::Restamp { slot, .. }
            | Op::Forget { slot, .. } => {
                self.touched.insert(*slot);
            }
            Op::BackOff { .. }
            | Op::Condition { .. }
            | Op::Rollout { .. }
            | Op::Observed { .. } => {}
        }
        self.plan.ops.push(op);
    }

    /// Rows that this plan may still change. None left: the rest is for the next plan.
    fn room(&mut self) -> usize {
        let room = MAX_ROWS.saturating_sub(self.rows + self.touched.len());
        // A branch, not `|=`: with that, rustc 1.95 at opt-level 3 sets the flag whatever the room is.
        if room == 0 {
            self.plan.again = true;
        }
        room
    }

    fn full(&mut self) -> bool {
        self.room() == 0
    }

    fn wake(&mut self, at: Millis) {
        let at = at.max(self.input.now + 1);
        self.plan.wake = Some(self.plan.wake.map_or(at, |wake| wake.min(at)));
    }

    fn note(
        &mut self,
        group: &str,
        slot: Option<u64>,
        acting: bool,
        reason: &'static str,
        message: impl FnOnce() -> String,
    ) {
        self.note_until(group, slot, acting, reason, None, message);
    }

    fn note_until(
        &mut self,
        group: &str,
        slot: Option<u64>,
        acting: bool,
        reason: &'static str,
        until: Option<Millis>,
        message: impl FnOnce() -> String,
    ) {
        if self.input.explain {
            self.plan.report.push(Note {
                group: group.into(),
                slot,
                acting,
                reason,
                message: message(),
                until,
            });
        }
    }

    fn is_open(&self, request: Uuid) -> bool {
        self.state.requests.contains_key(&request) && !self.closed.contains(&request)
    }

    fn back_off(&self, key: &BackOffKey) -> Option<&BackOff> {
        match self.backoffs.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.state.backoffs.get(key),
        }
    }

    fn set_back_off(&mut self, key: BackOffKey, to: Option<BackOff>) {
        if self.back_off(&key) != to.as_ref() {
            self.op(Op::BackOff {
                key: key.clone(),
                to: to.clone(),
            });
            self.backoffs.insert(key, to);
        }
    }
}
