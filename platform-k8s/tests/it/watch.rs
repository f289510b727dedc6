//! Changes are reported as they happen: removed labels, expired versions, cut streams. And the memory use of a
//! platform.

use crate::bench;

use crate::story::Story;
use bench::Bench;
use drover_proto::platform::v1::NodePhase;
use drover_testing::kubernetes::{Fault, On, until};
use serde_json::{Value, json};

const CLUSTER: &str = "drover.dev/cluster";

async fn phase(bench: &Bench, id: &str) -> Option<NodePhase> {
    let (nodes, _) = bench.list(&bench.cluster).await.ok()?;
    nodes
        .iter()
        .find(|node| node.node_id == id)
        .map(drover_proto::platform::v1::Node::phase)
}

async fn label(bench: &Bench, pod: &str, value: Value) {
    let patch = json!({"metadata": {"labels": {CLUSTER: value}}});
    bench.namespace.merge("pods", pod, &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_cluster_label_is_taken_away_is_not_gone() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("pod", 2).await;
    bench.until_running().await;
    let id = nodes[0].node_id.clone();
    let story = Story::of(&bench).await;
    story.until_complete().await;
    label(&bench, &id, Value::Null).await;
    until("the pod is known to be there and not known how", || async {
        (phase(&bench, &id).await == Some(NodePhase::Unknown)).then_some(())
    })
    .await;
    story.never_removed(std::slice::from_ref(&id));
    label(&bench, &id, bench.cluster.clone().into()).await;
    until("the pod is as before", || async {
        (phase(&bench, &id).await == Some(NodePhase::Running)).then_some(())
    })
    .await;
    story.never_removed(std::slice::from_ref(&id));
    // Deleted without its label, it is reported as gone.
    label(&bench, &id, Value::Null).await;
    until("the pod is lost again", || async {
        (phase(&bench, &id).await == Some(NodePhase::Unknown)).then_some(())
    })
    .await;
    bench.namespace.delete("pods", &id).await;
    story
        .until_told("the pod is gone", |story| !story.knows(&id))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_version_invents_and_misses_nothing() {
    let bench = Bench::start().await;
    let (_, nodes) = bench.make("rich", 3).await;
    bench.until_running().await;
    let story = Story::of(&bench).await;
    story.until_complete().await;
    let proxy = bench.proxy();
    for round in 0..3 {
        // As the response to the watch request, and in the middle of the stream.
        if round == 1 {
            proxy.fail(On::call("watch", "pods"), Fault::expired());
        }
        proxy.watches().expire("pods");
        proxy.watches().until_running("pods").await;
    }
    let ids: Vec<String> = nodes.iter().map(|node| node.node_id.clone()).collect();
    bench.namespace.delete("pods", &ids[2]).await;
    story
        .until_told("the pod has died", |story| {
            story.phase(&ids[2]) == Some(NodePhase::Failed)
        })
        .await;
    story.never_removed(&ids[..2]);
}
