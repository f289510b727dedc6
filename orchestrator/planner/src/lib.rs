//! The planner: what is to be done for one cluster now, and why, or why not yet.
//!
//! [`plan`] is a pure function of what is wanted, what was recorded, what is observed, the time and a source of ids. It
//! returns operations on the record, which are made durable as one transaction, and calls, which are made after that.
//! [`apply`] is what the operations mean for the record. Neither does any I/O, and nothing is left to be decided by who
//! carries a plan out.

mod absence;
mod adopt;
mod apply;
mod back_offs;
mod conditions;
mod create;
mod drain;
mod group;
mod infrastructure;
mod observe;
mod order;
mod orphans;
mod plan;
mod platform;
mod remove;
mod requests;
mod rollout;
mod scale;
mod skipped;
mod small;
mod spread;
mod standby;
mod state;
mod storage;
mod template;

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Millis, Phase, Sym, infrastructure::Infrastructure, node::Role};
use uuid::Uuid;

pub use apply::apply;
pub use infrastructure::{BackendKey, DRIFT_INTERVAL, InfrastructureChange, RELEASE_TIMEOUT};
pub use order::Leaving;
pub use plan::{Call, Input, Note, Op, Plan, Renewal, Sizes};
pub use platform::{Domains, Limits, PlatformView, Shortage, is_troubled, most_troubled};
pub use skipped::Skipped;
pub use small::SmallMap;
pub use state::{
    BackOff, BackOffKey, BackOffKind, Condition, ConditionKey, ConditionKind, Foreign, Orphan,
    Rollout, State, Subject,
};

/// Most nodes in one request, and rows after which a plan begins nothing new. The last thing begun may touch one whole
/// request more, and all of that has to fit into one step of the store (100 rows). The rest comes with the next plan.
pub const MAX_ROWS: usize = 45;
/// Bytes of requests after which a plan begins nothing new, as with rows: one more request fits into the step as well.
pub const MAX_BYTES: usize = 192 * 1024;
/// Cadence at which what has failed for good is tried all the same.
pub const SLOW_CADENCE: Millis = 10 * 60 * 1000;
/// So many nodes of a platform may be in trouble, over all clusters, before none of them is replaced any more.
const PLATFORM_BREAKER_MIN: u32 = 3;
/// The same, as a percentage of all its nodes; the larger of both counts.
const PLATFORM_BREAKER_PERCENT: u32 = 20;
/// Metadata of an error of a request that cannot be sent as it was made, since this secret was changed meanwhile: another one
/// is made at once.
pub const CHANGED_SECRET: &str = "changed_secret";
/// How long a cluster waits before it looks again whether fewer are.
const PLATFORM_BREAKER_PAUSE: Millis = 10_000;

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
    /// It is known that the same did not befall many others: it may be replaced now.
    ripe: bool,
    /// Nobody comes instead of it, since its group is to be smaller: it leaves, or waits until it may.
    surplus: bool,
    /// Its role, as this plan leaves it.
    role: Role,
    /// Its removal waits for its drain.
    draining: bool,
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
    /// Positions of ordered groups that have nodes beyond a free low ordinal.
    gaps: BTreeSet<usize>,
    /// How many of a group are still to go without a successor, by position of the group.
    owed: BTreeMap<usize, usize>,
    /// Failures that this plan has counted already, so that one cause counts once.
    failed: Vec<BackOffKey>,
    /// Back-offs as this plan leaves them.
    backoffs: BTreeMap<BackOffKey, Option<BackOff>>,
    /// Requests that this plan closes.
    closed: Vec<Uuid>,
    /// Whether this store is older than what platforms show.
    behind: bool,
    /// Whether something is being taken in, so that nobody knows yet what is lacking.
    adopting: bool,
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
    /// Bytes of the requests among those.
    bytes: usize,
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
        gaps: BTreeSet::new(),
        owed: BTreeMap::new(),
        failed: Vec::new(),
        backoffs: BTreeMap::new(),
        closed: Vec::new(),
        behind: false,
        adopting: false,
        infrastructure: Vec::new(),
        lacks: None,
        holds: BTreeMap::new(),
        touched: BTreeSet::new(),
        rows: 0,
        bytes: 0,
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
        self.find_gaps();
        self.freeze();
        if self.state.paused {
            self.note("", None, false, "Paused", || {
                "the cluster is paused: nothing is made, healed or removed".into()
            });
            self.note_lacking();
        } else {
            self.settle_requests();
            self.plan_infrastructure();
            self.adopt(new_id);
            if !self.state.deleting {
                for group in 0..self.input.groups.len() {
                    self.plan_group(group, new_id);
                }
            }
            self.remove_unwanted();
            self.sweep_orphans();
            self.send_requests();
            self.drain();
            self.call_removals();
            self.confirm_absence();
        }
        self.follow_vacated();
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
        // Neighbours are mostly of one group and on one platform.
        let mut last: Option<(&Sym, u16)> = None;
        let mut backend: Option<(&Sym, &Sym, bool)> = None;
        for (mark, node) in self.marks.iter_mut().zip(&self.state.nodes) {
            mark.group = match last {
                Some((path, at)) if *path == node.group => at,
                _ => self.paths.get(&*node.group).copied().unwrap_or(NO_GROUP),
            };
            last = Some((&node.group, mark.group));
            mark.leaving = node.removal.is_some();
            mark.dead = node.is_dead();
            mark.role = node.role;
            mark.draining = node.removal.is_some_and(|removal| removal.drain > 0);
            mark.visible = match backend {
                Some((platform, uid, visible))
                    if *platform == node.platform && *uid == node.platform_uid =>
                {
                    visible
                }
                _ => self
                    .input
                    .platforms
                    .get(&node.platform)
                    .is_some_and(|p| p.sees(&node.platform_uid)),
            };
            backend = Some((&node.platform, &node.platform_uid, mark.visible));
            let seen = &node.seen;
            mark.fresh = mark.visible
                && !node.is_adopting()
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
            Op::Request {
                nodes,
                group,
                choice,
                ..
            } => {
                self.rows += 1;
                self.bytes += self.input.sizes.request(*group, *choice);
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
            Op::Attempt { request, .. } | Op::MadeNothing { request } => {
                self.rows += 1;
                // It is stored anew, with all that it says.
                self.bytes += self.input.sizes.open(request);
            }
            Op::Infrastructure { .. } => {
                self.rows += 1;
            }
            Op::TakeOrphan { node } => {
                self.touched.insert(node.slot);
            }
            Op::StateChanged { slot, .. }
            | Op::Own { slot }
            | Op::NodeIdAssigned { slot, .. }
            | Op::Remove { slot, .. }
            | Op::Drain { slot, .. }
            | Op::Restamp { slot, .. }
            | Op::Template { slot, .. }
            | Op::RoleChange { slot, .. }
            | Op::RecordDropped { slot, .. } => {
                self.touched.insert(*slot);
            }
            Op::BackOff { .. }
            | Op::Condition { .. }
            | Op::Rollout { .. }
            | Op::PeakSizeChanged { .. }
            | Op::Vacated { .. }
            | Op::Adopted { .. }
            | Op::Sweep { .. }
            // No plan does these.
            | Op::Rebind { .. }
            | Op::Abandon { .. }
            | Op::Observed { .. } => {}
        }
        self.plan.ops.push(op);
    }

    /// Rows that this plan may still change. None left: the rest is for the next plan.
    fn room(&mut self) -> usize {
        let room = if self.bytes < MAX_BYTES {
            MAX_ROWS.saturating_sub(self.rows + self.touched.len())
        } else {
            0
        };
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
