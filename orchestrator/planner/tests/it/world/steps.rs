//! One plan at a time, in a world in which nothing happens by itself.

use std::time::Duration;

use drover_core::{
    Error, Phase,
    node::{Answer, Outcome},
    spec::Group,
};
use drover_planner::{Call, Plan, apply};
use uuid::Uuid;

use super::World;

/// A world that wants these groups; its platforms `a` and `b` can be seen.
pub fn still(groups: Vec<Group>) -> World {
    let mut world = World::new(1, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want(groups);
    world
}

impl World {
    /// Plans and makes it durable, without any call.
    pub fn step(&mut self) -> Plan {
        let planned = self.plan();
        apply(&mut self.state, &planned.ops, self.now);
        self.counter += 10;
        planned
    }

    /// A request is answered.
    pub fn answer(&mut self, request: Uuid, outcome: Result<Vec<Outcome>, Error>) {
        let at = self.now;
        let request = self.state.requests.get_mut(&request).unwrap();
        request.call.in_flight = false;
        request.answer = Some(Answer {
            at,
            taken: false,
            outcome,
        });
    }

    /// All requests of a plan are answered: every node was made.
    pub fn answer_all(&mut self, planned: &Plan) {
        for call in &planned.calls {
            if let Call::Provision { request, .. } = call {
                let nodes = self.state.nodes.iter().filter(|n| n.request == *request);
                let made = nodes.map(|n| Outcome::Made(n.slot.to_string().into()));
                let made = made.collect();
                self.answer(*request, Ok(made));
            }
        }
    }

    /// All nodes are seen now, those that were made since as running and ready.
    pub fn show_all(&mut self) {
        for node in &mut self.state.nodes {
            if node.seen.phase == Phase::Unseen {
                (node.seen.phase, node.seen.ready) = (Phase::Running, Some(true));
            }
            node.seen.last = self.now;
        }
    }
}
