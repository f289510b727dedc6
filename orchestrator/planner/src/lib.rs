//! The planner: decides what to do for one cluster now, and explains why, or why not yet.
//!
//! [`plan`] is a pure function of the desired state, the recorded state, the observations, the time and a source of
//! ids. It returns operations on the record, which are made durable in one transaction, and calls, which are made only
//! after that. [`apply`] defines the effect of the operations on the record. Neither does any I/O, and the executor of
//! a plan has no decisions left to make.

mod absence;
mod adopt;
mod apply;
mod back_offs;
mod conditions;
mod create;
mod drain;
mod fences;
mod group;
mod grow;
mod impaired;
mod labels;
mod lost_hosts;
mod maintenance;
mod observe;
mod order;
mod orphans;
mod plan;
mod platform;
mod remove;
mod requests;
mod resources;
mod rollout;
mod rows;
mod scale;
mod skipped;
mod small;
mod sole;
mod spread;
mod standby;
mod state;
mod storage;
mod template;

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{
    Millis, Phase, Sym,
    node::Role,
    resource::{ResourceKey, ResourceRecord},
};
use uuid::Uuid;

pub use apply::apply;
pub use order::Leaving;
pub use plan::{Call, Input, Note, Op, Outlook, Plan, Removal, Renewal, Sizes, Unnamed};
pub use platform::{Domains, Limits, PlatformView, Shortage, is_troubled, most_troubled};
pub use resources::{DRIFT_INTERVAL, RELEASE_TIMEOUT, ResourceChange};
pub use rows::Rows;
pub use skipped::Skipped;
pub use small::{SmallMap, SmallSet};
pub use state::{
    BackOff, BackOffKey, BackOffKind, Condition, ConditionKey, ConditionKind, Foreign, Orphan,
    ResourceOrphan, Rollout, Sole, State, Subject,
};

/// Maximum number of nodes in one request, and number of changed rows from which a plan starts nothing new. The last
/// thing started may still change the rows of one whole request, and all of that has to fit into one step of the store
/// (100 rows). The rest is left to the next plan.
pub const MAX_ROWS: usize = 45;
/// Bytes of requests from which a plan starts nothing new. As with rows, one more request still fits into the step.
pub const MAX_BYTES: usize = 192 * 1024;
/// Interval at which permanent failures are retried nevertheless.
pub const SLOW_CADENCE: Millis = 10 * 60 * 1000;
/// Minimum threshold of a platform's circuit breaker: if more of its nodes are troubled, over all clusters, none of
/// them is replaced.
const PLATFORM_BREAKER_MIN: u32 = 3;
/// The threshold as a percentage of all nodes of the platform; the larger of the two applies.
const PLATFORM_BREAKER_PERCENT: u32 = 20;
/// Metadata key of the error of a request that can no longer be sent as it was recorded, because this secret was
/// changed in the meantime. A new request is made immediately.
pub const CHANGED_SECRET: &str = "changed_secret";
/// How long a cluster waits before it checks again whether a platform's circuit breaker has closed.
const PLATFORM_BREAKER_PAUSE: Millis = 10_000;

/// Working state of a node during a plan, in addition to its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// Position of its group in the input; `NO_GROUP` if the group is no longer wanted.
    group: u16,
    /// This plan drops its record.
    forgotten: bool,
    /// Its removal is intended, by the record or by this plan.
    leaving: bool,
    /// The backend has proven that it does not run.
    dead: bool,
    /// Its backend is visible.
    visible: bool,
    /// Visible, and nothing that the platform reports casts doubt on its existence.
    fresh: bool,
    /// Ready, fresh and not leaving.
    available: bool,
    /// It runs, but should be replaced.
    sick: bool,
    /// Sick for long enough to rule out that many others are affected by the same cause: it may be replaced now.
    ripe: bool,
    /// It goes without a replacement, because its group is scaled down: it is removed, or waits until it may be.
    surplus: bool,
    /// Its role as of this plan.
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
    /// Positions of the nodes that belong to a group, sorted by group.
    members: Vec<u32>,
    /// Offset in `members` of the first node of each group, followed by the end of the last group.
    starts: Vec<u32>,
    /// Positions of the ordered groups in which an ordinal below the size is free.
    gaps: BTreeSet<usize>,
    /// How many nodes are still to go without a replacement, by position of the group.
    owed: BTreeMap<usize, usize>,
    /// Back-offs that this plan has already increased, so that one cause counts once.
    failed: Vec<BackOffKey>,
    /// Back-offs that this plan changes; `None` if it clears them.
    backoffs: BTreeMap<BackOffKey, Option<BackOff>>,
    closed: Vec<Uuid>,
    /// Whether the store is older than the state that platforms show.
    behind: bool,
    /// Whether nodes are about to be adopted, so that it is not known yet how many are missing.
    adopting: bool,
    /// Records of resources that this plan changes.
    resources: Vec<(ResourceKey, ResourceRecord)>,
    /// Records of resources that this plan removes.
    gone: Vec<ResourceKey>,
    /// What the desired addons are to be told, by their position in the input. `None` if that is not known.
    told: Vec<Option<resources::Told>>,
    /// The infrastructure that nodes have to wait for.
    lacks: Option<String>,
    holds: BTreeMap<ConditionKey, Condition>,
    /// Rows that this plan changes.
    rows: Rows,
    /// Size of the requests and resources among those rows.
    bytes: usize,
    next_slot: u64,
    next_sequence: u64,
}

/// Plans one pass.
///
/// `new_id` supplies the ids of new requests.
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
        resources: Vec::new(),
        gone: Vec::new(),
        told: Vec::new(),
        lacks: None,
        holds: BTreeMap::new(),
        rows: Rows::default(),
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
            self.note_told();
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
            self.plan_addons();
            self.drain();
            self.call_removals();
            self.confirm_absence();
        }
        self.follow_vacated();
        self.record_adopted();
        self.drop_soles();
        self.conclude();
        self.look_ahead();
        if !self.plan.ops.is_empty() {
            // The changes may allow further steps, and no other event would trigger the next pass.
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
        // Neighbours mostly share group and backend, so the last lookup is remembered.
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

    /// Sorts the nodes by group, so that a group does not have to scan all of them.
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

    /// Positions of the nodes of a group whose records stay, by slot.
    fn own(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let (from, to) = (self.starts[group] as usize, self.starts[group + 1] as usize);
        self.members[from..to]
            .iter()
            .map(|&at| at as usize)
            .filter(|&at| !self.marks[at].forgotten)
    }

    fn op(&mut self, op: Op) {
        self.rows.add(&op, &self.state.nodes);
        self.bytes += match &op {
            Op::Request { group, choice, .. } => self.input.sizes.request(*group, *choice),
            // The whole request is stored again.
            Op::Attempt { request, .. } | Op::MadeNothing { request } => {
                self.input.sizes.open(request)
            }
            Op::Resource {
                to: Some(record), ..
            } => resources::size(record),
            _ => 0,
        };
        self.plan.ops.push(op);
    }

    /// Number of rows that this plan may still change. If it is 0, the rest is left to the next plan.
    fn room(&mut self) -> usize {
        let room = if self.bytes < MAX_BYTES {
            MAX_ROWS.saturating_sub(self.rows.count())
        } else {
            0
        };
        // A branch rather than `|=`, for which rustc 1.95 at opt-level 3 sets the flag regardless of the room.
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
