//! What the search goes through: how it begins, which events there are in a state, and what has to hold in all of them.

use stateright::{Model, Property};

use super::{
    Action, EPOCHS, Node, Phase, Plan, REPLICAS, Record, Replica, SLOTS, Stage, State, WRITES,
    World,
};

const PLANS: [Plan; 4] = [Plan::Ask, Plan::Repeat, Plan::Replace, Plan::Note];

/// A node that the owner has noted, if anybody but its present owner has asked for it.
fn inherited(state: &State) -> impl Iterator<Item = (&Node, u8)> {
    state.records.iter().filter_map(|record| {
        let Record::Made { request, by } = *record else {
            return None;
        };
        let node = state.nodes.iter().find(|it| it.request == request)?;
        (node.by < by).then_some((node, by))
    })
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clusters = usize::from(self.clusters);
        vec![State {
            replicas: [Replica::StandsBy, Replica::StandsBy],
            owner: None,
            epoch: 0,
            claims: 0,
            records: vec![Record::Nothing; clusters],
            overdue: vec![false; clusters],
            txns: Vec::new(),
            calls: Vec::new(),
            start: 1,
            known: 0,
            nodes: Vec::new(),
            accepted: 0,
            requests: 0,
            made_calls: 0,
            crashes: 0,
            hand_overs: 0,
            given: None,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        // One replica is as good as the other to begin with.
        let replicas = if state.claims == 0 { 1 } else { REPLICAS };
        for replica in 0..replicas {
            if state.lead(replica).is_none() {
                if state.claims < self.claims {
                    actions.push(Action::Claim(replica));
                }
                continue;
            }
            actions.extend([
                Action::Hears(replica),
                Action::Meet(replica),
                Action::Fence(replica),
                Action::HandOver(replica),
            ]);
            if state.claims < self.claims {
                actions.push(Action::Give(replica));
            }
            if state.crashes < self.crashes {
                actions.push(Action::Crash(replica));
            }
            if state.hand_overs < self.hand_overs {
                actions.push(Action::Stop(replica));
            }
            if !self.early {
                actions.extend([Action::LosesTouch(replica), Action::FindsTouch(replica)]);
            }
            for cluster in 0..self.clusters {
                actions.extend(PLANS.map(|it| Action::Plan(replica, cluster, it)));
            }
        }
        // Nothing comes of a shard that nobody may claim.
        if state.claims < self.claims {
            actions.push(Action::LeaseEnds);
        }
        actions.extend(state.txns.iter().cloned().map(Action::Apply));
        actions.extend((0..self.clusters).map(Action::DeadlinePasses));
        for call in &state.calls {
            let next = match call.stage {
                Stage::Waits => Action::Send,
                Stage::Sent => Action::Arrive,
                Stage::Accepted => Action::Create,
                Stage::Creates => Action::Finish,
            };
            actions.extend([next(call.clone()), Action::Lose(call.clone())]);
        }
        if state.start < self.starts {
            actions.push(Action::Restart);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Claim(replica) => state.claim(self, replica)?,
            Action::LeaseEnds => state.lease_ends(self)?,
            Action::LosesTouch(replica) => state.loses_touch(replica)?,
            Action::FindsTouch(replica) => state.finds_touch(replica)?,
            Action::Hears(replica) => state.hears(self, replica)?,
            Action::Crash(replica) => state.crash(replica)?,
            Action::Stop(replica) => state.stop(replica)?,
            Action::HandOver(replica) => state.hand_over(replica)?,
            Action::Give(replica) => state.give(self, replica)?,
            Action::Meet(replica) => state.meet(self, replica)?,
            Action::Fence(replica) => state.fence(self, replica)?,
            Action::Plan(replica, cluster, plan) => state.plan(self, replica, cluster, plan)?,
            Action::Apply(txn) => state.apply(self, &txn)?,
            Action::DeadlinePasses(cluster) => state.deadline_passes(self, cluster)?,
            Action::Send(call) => state.send(self, &call)?,
            Action::Arrive(call) => state.arrive(self, &call)?,
            Action::Create(call) => state.create(&call)?,
            Action::Finish(call) => state.finish(self, &call)?,
            Action::Lose(call) => state.lose(&call)?,
            Action::Restart => state.restart()?,
        }
        state.txns.sort_unstable();
        state.calls.sort_unstable();
        state.nodes.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EPOCHS, |_, state: &State| state.wrong != Some(EPOCHS)),
            Property::always(SLOTS, |_, state: &State| state.wrong != Some(SLOTS)),
            Property::always(WRITES, |_, state: &State| state.wrong != Some(WRITES)),
        ];
        if self.mutant.is_some() {
            return properties;
        }
        properties.push(Property::sometimes(
            "another owner takes over from one that stands still",
            |_, state: &State| {
                let leads =
                    |it: &Replica| matches!(it, Replica::Leads(lead) if lead.phase == Phase::Acts);
                inherited(state).count() > 0 && state.replicas.iter().all(leads)
            },
        ));
        if self.crashes > 0 {
            properties.push(Property::sometimes(
                "another owner takes over after a crash",
                |_, state: &State| {
                    inherited(state).count() > 0 && state.replicas.contains(&Replica::Crashed)
                },
            ));
        }
        if self.hand_overs > 0 {
            properties.push(Property::sometimes(
                "an owner who was given the shard goes on with what was begun",
                |_, state: &State| inherited(state).any(|(_, by)| Some(by) == state.given),
            ));
            properties.push(Property::sometimes(
                "a hand-over with a call under way completes",
                |_, state: &State| {
                    let busy = |it: &Replica| {
                        matches!(it, Replica::Leads(lead) if lead.phase == Phase::HandedOver { busy: true })
                    };
                    inherited(state).count() > 0 && state.replicas.iter().any(busy)
                },
            ));
        }
        if self.starts > 1 {
            properties.push(Property::sometimes(
                "another owner takes over after a restart of the platform",
                |_, state: &State| inherited(state).count() > 0 && state.start > 1,
            ));
        }
        if self.fences {
            properties.push(Property::sometimes(
                "a call of a former owner arrives after the fence of the next",
                |_, state: &State| {
                    let late = |it: &super::Call| {
                        it.stage == Stage::Sent && it.start == state.start && it.epoch < state.known
                    };
                    state.calls.iter().any(late)
                },
            ));
        }
        properties
    }
}
