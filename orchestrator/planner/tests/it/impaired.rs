//! Nodes that serve, but lack something that their probe names.

#![allow(
    clippy::unwrap_used,
    reason = "what must be there fails the test if it is not"
)]

use drover_core::{
    NodeState,
    node::ProbeResult,
    spec::{Health, Impairment, Probe},
};
use drover_planner::{ConditionKey, ConditionKind};

use crate::{
    standby::{gone, ready, run},
    world::World,
};

/// A primary and a standby whose probe knows two impairments.
fn stores() -> World {
    let mut world = ready(1, 1);
    let impairments = [
        ("DiskFull", "its disk is full"),
        ("ConnectionsExhausted", ""),
    ];
    let impairments = impairments.map(|(reason, message)| Impairment {
        reason: reason.into(),
        message: message.into(),
    });
    world.groups[0].health = Some(Box::new(Health {
        probe: Probe::Exec {
            command: vec!["alive".to_owned()],
            impairments: impairments.into(),
        },
        ..Health::default()
    }));
    for slot in [1, 2] {
        probed(&mut world, slot, 0);
    }
    run(&mut world);
    world
}

/// A good probe of a node, which found this.
fn probed(world: &mut World, slot: u64, impaired: u16) {
    world.state.node_mut(slot).unwrap().probe = ProbeResult {
        good: 1,
        answered: true,
        impaired,
        ..ProbeResult::default()
    };
}

fn said(world: &World) -> Option<(&str, &str)> {
    let key = ConditionKey {
        group: world.groups[0].path.clone(),
        kind: ConditionKind::Impaired,
    };
    let condition = world.state.conditions.get(&key)?;
    Some((&condition.reason, &condition.message))
}

#[test]
fn what_nodes_lack_is_a_condition_and_neither_replaces_them_nor_hands_over() {
    let mut world = stores();
    let names: Vec<String> = world.state.nodes.iter().map(|node| node.name()).collect();
    probed(&mut world, 1, 0b01);
    assert_eq!(run(&mut world), (vec![], vec![]));
    let words = format!("{}: its disk is full", names[0]);
    assert_eq!(said(&world), Some(("DiskFull", &*words)));
    probed(&mut world, 2, 0b11);
    assert_eq!(run(&mut world), (vec![], vec![]));
    let words = format!(
        "{words}; {0}: its disk is full; {0}: ConnectionsExhausted",
        names[1]
    );
    assert_eq!(said(&world), Some(("DiskFull", &*words)));
    probed(&mut world, 1, 0);
    probed(&mut world, 2, 0b10);
    run(&mut world);
    let words = format!("{}: ConnectionsExhausted", names[1]);
    assert_eq!(said(&world), Some(("ConnectionsExhausted", &*words)));
    probed(&mut world, 2, 0);
    assert_eq!(run(&mut world), (vec![], vec![]));
    assert_eq!(said(&world), None);
    let ready = |node: &drover_core::Node| node.state == NodeState::Ready;
    assert!(world.state.nodes.iter().all(ready));
}

#[test]
fn a_node_that_is_gone_lacks_nothing() {
    let mut world = stores();
    probed(&mut world, 2, 0b01);
    run(&mut world);
    assert!(said(&world).is_some());
    gone(&mut world, 2);
    run(&mut world);
    assert_eq!(said(&world), None);
}
