//! Single plans, in a world in which nothing happens by itself.

use std::time::Duration;

use drover_core::{
    Error, Phase,
    node::{Answer, Outcome},
    spec::Group,
};
use drover_planner::{Call, Plan, apply};
use uuid::Uuid;

use super::World;

/// A world with these desired groups; its platforms `a` and `b` are visible.
pub fn still(groups: Vec<Group>) -> World {
    let mut world = World::new(1, &["a", "b"]);
    world.run_for(Duration::from_secs(10));
    world.want(groups);
    world
}

impl World {
    /// Plans, and makes the plan durable, without making any calls.
    pub fn step(&mut self) -> Plan {
        let planned = self.plan();
        apply(&mut self.state, &planned.ops, self.now);
        self.counter += 10;
        planned
    }

    pub fn answer(&mut self, request: Uuid, outcome: Result<Vec<Outcome>, Error>) {
        let at = self.now;
        let request = self.state.requests.get_mut(&request).unwrap();
        request.in_flight.call.in_flight = false;
        request.in_flight.answer = Some(Answer {
            at,
            taken: false,
            outcome,
        });
    }

    /// Answers all requests of a plan: every node was created.
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

    /// Shows all nodes as of now, and new ones as running and ready.
    pub fn show_all(&mut self) {
        for node in &mut self.state.nodes {
            if node.seen.phase == Phase::Unseen {
                (node.seen.phase, node.seen.ready) = (Phase::Running, Some(true));
            }
            node.seen.last = self.now;
        }
    }
}
