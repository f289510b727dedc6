//! Creation: which nodes of a group are requested, and where.

use std::sync::Arc;

use drover_core::{
    Millis, Node, NodeState, Rare, Sym,
    node::{Call as Attempt, Origin, Record, Request, RequestInFlight, Role},
    spec::Choice,
    words,
};
use uuid::Uuid;

use crate::{
    BackOff, BackOffKey, BackOffKind, Call, ConditionKey, ConditionKind, Op, Planner, PlatformView,
    Subject,
};

impl Planner<'_> {
    /// Requests the nodes that a group lacks, with up to `spare` nodes beyond its size.
    pub(crate) fn create(&mut self, group: usize, spare: usize, new_id: &mut dyn FnMut() -> Uuid) {
        let spec = &self.input.groups[group];
        let present = self.tally(group).present;
        // Nodes to be replaced make room for as many new ones, but with the nodes that stay there are never more than
        // wanted.
        let first = self.creates_first(group);
        let staying = self
            .own(group)
            .filter(|&at| {
                let mark = &self.marks[at];
                let goes = mark.dead || mark.leaving || mark.surplus || self.is_renewed(at);
                !(goes || first && mark.sick)
            })
            .count();
        let mut need = (Self::size(spec) + spare)
            .saturating_sub(present)
            .min(Self::size(spec).saturating_sub(staying));
        if let Some(vacant) = self.vacancies(group)
            && vacant < need
        {
            self.note_held(group);
            need = vacant;
        }
        if need == 0 {
            return;
        }
        need = self.in_order(group, need, staying);
        if need == 0 {
            return;
        }
        if let Some(reason) = self.frozen() {
            self.note(&spec.path, None, false, reason, || {
                format!("{need} wanted; nothing is made")
            });
            return;
        }
        let expected = self.expected_orphans(&spec.path);
        if expected > 0 {
            self.note(&spec.path, None, false, "Grace", || {
                format!("{expected} of ours without a record are taken in first")
            });
            need = need.saturating_sub(expected);
        }
        let mut counts = self.counts(group);
        for choice in 0..spec.choices.len() {
            if need == 0 {
                return;
            }
            match self.create_by(group, choice, need, &mut counts, new_id) {
                Some(made) => need -= made,
                // The choice waits: it will have room again, or cannot be seen, and unreachable is not the same as
                // full.
                None => return,
            }
        }
        if need > 0 && self.room() > 0 {
            self.out_of_room(group, need, present);
        }
    }

    /// Why nothing may be created for the cluster. `None` if it may.
    pub(crate) fn frozen(&self) -> Option<&'static str> {
        if self.behind {
            Some("StoreBehind")
        } else if self.adopting {
            Some("Adopting")
        } else if self.state.foreign.is_empty() {
            None
        } else {
            Some("ForeignNodes")
        }
    }

    /// Number of nodes by choice: those that carry its hash and are not of an earlier template.
    fn counts(&self, group: usize) -> Vec<usize> {
        let choices = &self.input.groups[group].choices;
        let mut counts = vec![0; choices.len()];
        let nodes: Vec<usize> = self
            .own(group)
            .filter(|&at| !self.marks[at].dead && !self.is_given_up(at))
            .filter(|&at| !self.is_of_old_template(at))
            .collect();
        for at in nodes {
            let node = &self.state.nodes[at];
            let growing = self.input.groups[group].growth_of(node);
            let growing = growing.filter(|_| self.grows(at));
            let hash = growing.map_or(&node.spec_hash, |(choice, _)| &choice.spec_hash);
            // The same choice may be listed twice, with and without a limit: the first one takes as many as fit.
            let same: Vec<usize> = (0..choices.len())
                .filter(|&c| choices[c].is_hash(hash))
                .collect();
            let fits = same
                .iter()
                .copied()
                .find(|&c| choices[c].max.is_none_or(|max| counts[c] < max as usize));
            if let Some(c) = fits.or_else(|| same.last().copied()) {
                counts[c] += 1;
            }
        }
        counts
    }

    /// Requests nodes by one choice, and returns how many. `None` if it waits, and with it the choices after it.
    fn create_by(
        &mut self,
        group: usize,
        choice: usize,
        need: usize,
        counts: &mut [usize],
        new_id: &mut dyn FnMut() -> Uuid,
    ) -> Option<usize> {
        let spec = &self.input.groups[group];
        let wanted = &spec.choices[choice];
        let room = wanted.max.map_or(usize::MAX, |max| {
            (max as usize).saturating_sub(counts[choice])
        });
        if room == 0 {
            self.note(&spec.path, None, false, "Max", || {
                let nodes = words::count(counts[choice], "node");
                format!("{} has its {nodes}", describe(wanted))
            });
            return Some(0);
        }
        if let Some(why) = self.awaits_infrastructure(&wanted.platform) {
            self.wait_for_infrastructure(&spec.path, &why);
            return None;
        }
        let Some(view) = self
            .input
            .platforms
            .get(&wanted.platform)
            .filter(|view| view.callable && view.visible)
        else {
            let trouble = self
                .input
                .platforms
                .get(&wanted.platform)
                .map_or("is not registered", |view| &view.trouble);
            let message = format!("{} {trouble}", wanted.platform);
            let key = ConditionKey {
                group: spec.path.clone(),
                kind: ConditionKind::PlatformUnavailable,
            };
            self.hold(key, "PlatformUnavailable", &message);
            self.note(&spec.path, None, false, "PlatformUnavailable", || {
                format!("{message}; {need} wait")
            });
            return None;
        };
        if let Some(until) = self.out_of(group, choice, view) {
            self.wake(until);
            let then = if choice + 1 < spec.choices.len() {
                "; the next choice is asked meanwhile"
            } else {
                ""
            };
            self.note_until(&spec.path, None, false, "NoCapacity", Some(until), || {
                format!("{} has no capacity{then}", describe(wanted))
            });
            return Some(0);
        }
        let key = BackOffKey::of(&spec.path, &wanted.spec_hash, &wanted.platform);
        let back_off = self.back_off(&key).cloned();
        let waits = |b: &&BackOff| {
            b.next > self.input.now && (b.kind != BackOffKind::Rejected || b.etag == view.etag)
        };
        if let Some(b) = back_off.as_ref().filter(waits) {
            self.wake(b.next);
            let (next, message) = (
                b.next,
                format!(
                    "after {}, the last: {}",
                    words::count(b.failures, "failure"),
                    b.message
                ),
            );
            self.note_until(&spec.path, None, false, "BackOff", Some(next), || message);
            return None;
        }
        let hosts = self.free_hosts(group, &key);
        let machines = hosts.as_ref().map_or(usize::MAX, Vec::len);
        if machines == 0 {
            // The reason was already noted for each host.
            return None;
        }
        let flying = self.in_flight(group, &wanted.platform);
        let flight = spec
            .max_in_flight
            .map_or(usize::MAX, |most| (most as usize).saturating_sub(flying));
        let space = self.room().saturating_sub(1);
        let count = need
            .min(room)
            .min(flight)
            .min(space)
            .min(machines)
            .min(view.limits.max_batch.max(1) as usize);
        if count == 0 {
            if flight == 0 {
                self.note(&spec.path, None, false, "MaxInFlight", || {
                    format!("{flying} on {}", wanted.platform)
                });
            }
            if space == 0 {
                self.plan.again = true;
            }
            return None;
        }
        let attempts = back_off.map_or(0, |b| b.failures) + 1;
        let hosts = hosts.unwrap_or_default();
        self.request(group, choice, (count, attempts), hosts, new_id());
        counts[choice] += count;
        if count == machines {
            return None;
        }
        if count < need.min(room) {
            // The rest goes into another request of this choice: with the next plan, so that one step stays small, or
            // when fewer nodes are in flight.
            if count < flight {
                self.plan.again = true;
            } else {
                self.note(&spec.path, None, false, "MaxInFlight", || {
                    format!("{} more to come", need - count)
                });
            }
            return None;
        }
        Some(count)
    }

    /// The named hosts of a group that can be requested now, in their order: nothing of the cluster is or may still be
    /// on them, and the platform has not just refused them. `None` if the group names no hosts.
    fn free_hosts(&mut self, group: usize, key: &BackOffKey) -> Option<Vec<Sym>> {
        let spec = &self.input.groups[group];
        if spec.placement.hosts.is_empty() {
            return None;
        }
        let mut free = Vec::new();
        for host in &spec.placement.hosts {
            let asked = self.plan.ops.iter().any(|op| match op {
                Op::Request { request, nodes, .. } => {
                    request.platform == key.platform && nodes.iter().any(|n| n.host == *host)
                }
                _ => false,
            });
            let on_it = |(node, mark): (&Node, &crate::Mark)| {
                (node.host == *host && node.platform == key.platform && !mark.forgotten)
                    .then_some((node.slot, mark.leaving || mark.dead))
            };
            let taken = self.state.nodes.iter().zip(&self.marks).find_map(on_it);
            if let Some((slot, ends)) = taken {
                if ends {
                    self.note(&spec.path, Some(slot), false, "Host", || {
                        format!("{host} is used again when it is proven absent")
                    });
                }
                continue;
            }
            let back_off = self.back_off(&key.clone().about(Subject::Host(host.clone())));
            if let Some((next, message)) = back_off.map(|b| (b.next, b.message.clone()))
                && next > self.input.now
            {
                self.wake(next);
                self.note_until(&spec.path, None, false, "BackOff", Some(next), || {
                    format!("{host}: {message}")
                });
                continue;
            }
            if !asked {
                free.push(host.clone());
            }
        }
        Some(free)
    }

    /// Until when a choice is out of capacity, as reported to any cluster for its pool, or to this group.
    fn out_of(&self, group: usize, choice: usize, view: &PlatformView) -> Option<Millis> {
        let spec = &self.input.groups[group];
        let wanted = &spec.choices[choice];
        let now = self.input.now;
        let key = BackOffKey::of(&spec.path, &wanted.spec_hash, &wanted.platform);
        let own = self
            .back_off(&key.about(Subject::Capacity))
            .map(|b| b.next)
            .filter(|next| *next > now);
        let shared = view.out_of(&wanted.pool, &spec.placement.failure_domains, now);
        own.max(shared)
    }

    fn request(
        &mut self,
        group: usize,
        choice: usize,
        (count, attempts): (usize, u32),
        hosts: Vec<Sym>,
        id: Uuid,
    ) {
        let spec = &self.input.groups[group];
        let wanted = &spec.choices[choice];
        let Some(view) = self.input.platforms.get(&wanted.platform) else {
            return;
        };
        let now = self.input.now;
        let ordinals = self.free_ordinals(group, count);
        let acting = self.who_begins_active(group, &ordinals);
        let deadline = now + view.limits.call_timeout;
        let request = Request {
            id,
            sequence: self.next_sequence,
            group: spec.path.clone(),
            platform: wanted.platform.clone(),
            platform_uid: view.uid.clone(),
            class: wanted.class.clone(),
            spec_hash: wanted.spec_hash.clone(),
            first_sent: now,
            deadline,
            attempts: 1,
            made_nothing: 0,
            in_flight: RequestInFlight {
                sent: true,
                call: Attempt {
                    in_flight: true,
                    ..Attempt::default()
                },
                ..RequestInFlight::default()
            },
        };
        let origin = Arc::new(Origin {
            request: id,
            sequence: self.next_sequence,
            group: spec.path.clone(),
            platform: wanted.platform.clone(),
            platform_uid: view.uid.clone(),
            class: wanted.class.clone(),
            version: spec.version.clone(),
            spec_hash: wanted.spec_hash.clone(),
            storage_size: spec.storage.as_ref().and_then(|it| it.size),
            storage: spec.storage.is_some(),
        });
        let nodes = (0_u32..)
            .zip(&ordinals)
            .map(|(index, ordinal)| {
                Node::new(Record {
                    origin: origin.clone(),
                    slot: self.next_slot + u64::from(index),
                    index,
                    ordinal: *ordinal,
                    host: hosts.get(index as usize).cloned().unwrap_or_default(),
                    template: crate::template::digest(wanted),
                    labels_hash: wanted.labels_hash.clone(),
                    attempts,
                    create_time: now,
                    state: NodeState::Requested,
                    state_time: now,
                    reason: drover_core::Sym::default(),
                    message: "".into(),
                    marked: false,
                    stable: false,
                    role: if acting.contains(ordinal) {
                        Role::Active
                    } else {
                        Role::Standby
                    },
                    node_id: None,
                    removal: None,
                    settled: 0,
                    maybe_until: 0,
                    reached: None,
                    adopted: Rare::default(),
                })
            })
            .collect();
        self.next_slot += count as u64;
        self.next_sequence += 1;
        let goes = |at: usize| self.marks[at].leaving || self.marks[at].dead;
        let reason = if self.own(group).any(|at| self.is_renewed(at)) {
            "Update"
        } else if self.own(group).any(goes) {
            "Replace"
        } else {
            "ScaleUp"
        };
        self.note(&spec.path, None, true, reason, || {
            format!("{count} on {}", wanted.platform)
        });
        self.op(Op::Request {
            request: Box::new(request),
            nodes,
            group,
            choice,
            reason,
        });
        self.plan.calls.push(Call::Provision {
            request: id,
            deadline,
        });
    }

    /// The lowest ordinals that no living node of the group and no node requested by this plan has; those that active
    /// nodes have vacated come first. With storage, dead nodes hold their ordinals until they are proven absent:
    /// otherwise two nodes could write to the same storage.
    pub(crate) fn free_ordinals(&self, group: usize, count: usize) -> Vec<u32> {
        let storage = self.input.groups[group].storage.is_some();
        let mut used: Vec<u32> = self
            .own(group)
            .filter(|&at| storage || !self.marks[at].dead)
            .map(|at| self.state.nodes[at].ordinal)
            .chain(self.asked(group).map(|node| node.ordinal))
            .collect();
        used.sort_unstable();
        let vacated = self.vacated(group);
        let others = (0..).filter(|ordinal| !vacated.contains(ordinal));
        vacated
            .iter()
            .copied()
            .chain(others)
            .filter(|ordinal| used.binary_search(ordinal).is_err())
            .take(count)
            .collect()
    }

    /// Nodes of a group that this plan requests.
    pub(crate) fn asked(&self, group: usize) -> impl Iterator<Item = &Node> {
        let path = &self.input.groups[group].path;
        self.plan.ops.iter().flat_map(move |op| match op {
            Op::Request { request, nodes, .. } if request.group == *path => nodes.as_slice(),
            _ => &[],
        })
    }

    fn out_of_room(&mut self, group: usize, need: usize, present: usize) {
        let spec = &self.input.groups[group];
        let out: Vec<(&Choice, Millis)> = spec
            .choices
            .iter()
            .enumerate()
            .filter_map(|(at, choice)| {
                let view = self.input.platforms.get(&choice.platform)?;
                Some((choice, self.out_of(group, at, view)?))
            })
            .collect();
        let until = out.iter().map(|(_, until)| *until).min();
        let words: Vec<String> = out.iter().map(|(choice, _)| describe(choice)).collect();
        let are = words::are(need);
        let message = if out.is_empty() {
            format!("{need} more {are} wanted, and every platform of the group is at its `max`")
        } else {
            let without = words.join(", ");
            format!("{need} more {are} wanted; no capacity on {without}")
        };
        if present >= Self::size(spec) {
            // Only the surge of an update has no capacity: if nodes may be unavailable, the update continues without
            // it.
            if self.budget(group).unavailable == 0 {
                let message = format!("{message}; maxUnavailable above 0 would do without");
                self.block_update(&spec.path, "NoCapacity", &message);
            }
            return;
        }
        let key = ConditionKey {
            group: spec.path.clone(),
            kind: ConditionKind::NoCapacity,
        };
        self.hold(key, "NoCapacity", &message);
        self.note_until(&spec.path, None, false, "NoCapacity", until, || {
            message.clone()
        });
    }
}

/// A choice for people: platform and class.
fn describe(choice: &Choice) -> String {
    if choice.class.is_empty() {
        choice.platform.to_string()
    } else {
        format!("{} ({})", choice.platform, choice.class)
    }
}
