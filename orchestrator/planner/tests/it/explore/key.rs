//! Equality of states.

use std::hash::{DefaultHasher, Hash, Hasher};

use drover_core::Millis;
use uuid::Uuid;

use super::model::{Model, OLD};

impl Model {
    /// Hash of the state without irrelevant details: names, counters, messages, and the exact age of what is long past.
    pub(super) fn key(&self) -> u64 {
        let ago = |time: Millis| match time {
            0 => i64::MIN,
            _ => (time as i64 - self.now as i64).max(-OLD),
        };
        let requests: Vec<Uuid> = {
            let mut all: Vec<(u64, Uuid)> = self
                .state
                .nodes
                .iter()
                .map(|node| (node.sequence, node.request))
                .chain(self.state.requests.values().map(|r| (r.sequence, r.id)))
                .collect();
            all.sort_unstable();
            all.dedup();
            all.into_iter().map(|(_, id)| id).collect()
        };
        let name = |id: &Uuid| requests.iter().position(|one| one == id);
        let mut hash = DefaultHasher::new();
        (self.faults, self.wishes, self.most, self.group.size).hash(&mut hash);
        (self.most_acting, self.group.standby).hash(&mut hash);
        self.group.choices[0].spec_hash.hash(&mut hash);
        let template = self.group.choices[0].template.as_ref();
        template.map(|template| &*template.digest).hash(&mut hash);
        ago(self.process_start).hash(&mut hash);
        self.wake.map(ago).hash(&mut hash);
        for view in self.views.values() {
            (view.visible, ago(view.visible_since)).hash(&mut hash);
        }
        for (id, thing) in &self.things {
            let phase = format!("{:?}", thing.phase);
            (name(&id.0), id.1, phase, thing.ready, &*thing.platform).hash(&mut hash);
            thing.acts.hash(&mut hash);
        }
        for (platform, begun) in &self.reads {
            (&**platform, ago(*begun)).hash(&mut hash);
        }
        for node in &self.state.nodes {
            let removal = node.removal;
            let removal = removal.map(|r| (r.reason.as_str(), ago(r.since), ago(r.drain)));
            node.in_flight
                .changes
                .hook
                .as_ref()
                .map(|hook| hook.is_ok())
                .hash(&mut hash);
            (
                name(&node.request),
                node.index,
                node.ordinal,
                &*node.spec_hash,
            )
                .hash(&mut hash);
            (format!("{:?}", node.state), &*node.reason, node.stable).hash(&mut hash);
            (ago(node.create_time), ago(node.state_time), removal).hash(&mut hash);
            (
                ago(node.settled),
                ago(node.maybe_until),
                node.node_id.is_some(),
            )
                .hash(&mut hash);
            let seen = &node.seen;
            (format!("{:?}", seen.phase), seen.ready, ago(seen.last)).hash(&mut hash);
            (
                ago(seen.missing_from),
                seen.silent,
                seen.gone,
                seen.unlisted,
            )
                .hash(&mut hash);
            (
                node.in_flight.call.in_flight,
                node.in_flight.call.failures,
                ago(node.in_flight.call.next),
            )
                .hash(&mut hash);
            (node.role, &*node.template).hash(&mut hash);
            if let Some(role_change) = &node.in_flight.changes.role_change {
                (
                    role_change.call.in_flight,
                    role_change.call.failures,
                    ago(role_change.call.next),
                )
                    .hash(&mut hash);
                (role_change.done, role_change.doubt, role_change.refused).hash(&mut hash);
            }
        }
        for request in self.state.requests.values() {
            (
                name(&request.id),
                ago(request.first_sent),
                ago(request.deadline),
            )
                .hash(&mut hash);
            (
                request.attempts,
                request.made_nothing,
                request.in_flight.call.in_flight,
            )
                .hash(&mut hash);
            (
                request.in_flight.sent,
                request.in_flight.answer.is_some(),
                &*request.spec_hash,
            )
                .hash(&mut hash);
            request.in_flight.rendered.hash(&mut hash);
            request
                .in_flight
                .answer
                .as_ref()
                .map(|answer| ago(answer.at))
                .hash(&mut hash);
        }
        for (key, back_off) in self.state.backoffs.iter() {
            (
                &*key.spec_hash,
                &*key.platform,
                format!("{:?}", key.subject),
            )
                .hash(&mut hash);
            (back_off.failures, ago(back_off.last), ago(back_off.next)).hash(&mut hash);
            back_off.template.hash(&mut hash);
            format!("{:?}", back_off.kind).hash(&mut hash);
        }
        for (_, grown) in self.state.grown.iter() {
            grown.hash(&mut hash);
        }
        for (_, vacated) in self.state.vacated.iter() {
            vacated.hash(&mut hash);
        }
        for (_, rollout) in self.state.rollouts.iter() {
            (&*rollout.target, rollout.ready, rollout.left).hash(&mut hash);
            ago(rollout.progress).hash(&mut hash);
        }
        for node in &self.state.nodes {
            (node.reached.is_some(), node.seen.addresses.is_empty()).hash(&mut hash);
        }
        self.hash_balancer(&mut hash, ago);
        hash.finish()
    }
}
