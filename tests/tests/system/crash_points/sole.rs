//! Permission to acknowledge alone: whatever dies while it is given or taken back, its record ends when the standbys are
//! back, and one of them takes over from the next active node that dies.

use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{Lifecycle, LifecycleHook, NodeRole, SoleWriter},
};
use drover_simulation::World;

use super::{Death, in_all_variants};

fn hook() -> Option<LifecycleHook> {
    Some(LifecycleHook {
        exec: vec!["true".to_owned()],
        ..LifecycleHook::default()
    })
}

fn needs_a_standby(spec: &mut pb::ClusterSpec) {
    (spec.groups[0].size, spec.groups[0].standby) = (Some(1), Some(1));
    spec.lifecycle = Some(Lifecycle {
        sole_writer: Some(SoleWriter {
            allow: hook(),
            revoke: hook(),
            standbys_attribute: String::new(),
        }),
        ..Lifecycle::default()
    });
}

fn ids(world: &World, role: NodeRole) -> Vec<String> {
    let nodes = world.site.nodes("one").into_iter();
    let of = |node: &drover_proto::platform::v1::Node| node.role() == role;
    nodes.filter(of).map(|node| node.node_id).collect()
}

fn kill(world: &World, role: NodeRole) {
    for id in ids(world, role) {
        world.site.backend.kill(&id, Death::Failed);
    }
}

#[test]
fn standbys_that_come_back_may_take_over_again() {
    in_all_variants("sole writer", 60, async |world| {
        let groups = [("db", 2)];
        world
            .try_apply_with("one", &groups, &needs_a_standby)
            .await
            .unwrap();
        world.converge().await;
        kill(world, NodeRole::Standby);
        world.converge().await;
        let standby = ids(world, NodeRole::Standby);
        kill(world, NodeRole::Active);
        world.converge().await;
        assert_eq!(ids(world, NodeRole::Active), standby, "it has taken over");
    });
}
