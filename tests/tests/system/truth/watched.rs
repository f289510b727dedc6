//! Watches of nodes whose platform is temporarily invisible.

use std::{collections::BTreeMap, time::Duration};

use drover_client::watch::{Update, Watch};
use drover_proto::orchestrator::v1 as pb;
use futures::{FutureExt, StreamExt};

use crate::truth::sim::{World, immortal, runtime, settings};

/// Node states by cluster and id.
type States = BTreeMap<String, pb::NodeState>;

fn state(node: &pb::Node) -> (String, pb::NodeState) {
    (format!("{}/{}", node.cluster, node.id), node.state())
}

/// Takes in the updates received so far.
fn take_in(watch: &mut Watch<Update<pb::Node>>, shown: &mut States) {
    while let Some(Some(update)) = watch.next().now_or_never() {
        match update.unwrap() {
            Update::Upserts(nodes) => shown.extend(nodes.iter().map(state)),
            Update::Removals(ids) => shown.retain(|id, _| !ids.contains(id)),
            _ => {}
        }
    }
}

#[test]
fn who_watches_sees_again_what_was_hidden_so_shortly_that_nobody_else_noticed() {
    runtime().block_on(async {
        let mut world = World::new(settings(), immortal()).await;
        world.apply("one", &[("web", 1)]).await;
        world.converge().await;
        let request = pb::WatchNodesRequest::default();
        let client = world.client();
        let watch = client.watch_nodes(request, Duration::from_secs(10));
        let (mut watch, mut shown) = (watch.await.unwrap(), States::new());
        let mut hidden = 0;
        // The visibility of a platform is checked at each of its heartbeats, every 2 s; the steps are in between as
        // well.
        for step in 0..40 {
            world.site.backend.pause_backend(true);
            world.pass(Duration::from_millis(14_000 + 100 * step)).await;
            // A change that triggers an update of the watch.
            world
                .scale("one", "web", 1 + u32::from(step % 2 == 0))
                .await;
            world.pass(Duration::from_millis(20)).await;
            take_in(&mut watch, &mut shown);
            let unknown = |state: &pb::NodeState| *state == pb::NodeState::Unknown;
            hidden += shown.values().filter(|state| unknown(state)).count();
            world.site.backend.pause_backend(false);
            world.pass(Duration::from_secs(60)).await;
            take_in(&mut watch, &mut shown);
            let read: States = world.records("one").await.iter().map(state).collect();
            assert_eq!(shown, read, "step {step}");
        }
        assert!(hidden > 5, "{hidden}");
    });
}
