//! The control-plane address leads to a machine as long as machines come. metal-stack gives addresses only to machines
//! that it is about to install: no call of its API moves one to a machine that runs
//! (<https://docs.metal-stack.io/>, `/v1/machine/allocate`: `ips`).

use drover_emulators::metal::MetalSettings;
use drover_proto::platform::v1::{InfrastructureOutputs, Node, ProvisionRequest, ResourcePhase};
use serde_json::json;

use super::bench::{Bench, until, whole};

const GROUP: &str = "control-plane";

struct Cluster {
    bench: Bench,
    outputs: InfrastructureOutputs,
}

impl Cluster {
    async fn new() -> Self {
        let bench = Bench::with(MetalSettings::default()).await;
        let outputs = bench.ensure_whole(&whole()).await.outputs.unwrap();
        Self { bench, outputs }
    }

    fn request(&self, group: &str, ordinals: &[u32]) -> ProvisionRequest {
        let count = u32::try_from(ordinals.len()).unwrap();
        let mut request = self.bench.request_with(group, count, &json!({}));
        for (ordinal, slot) in ordinals.iter().zip(&mut request.slots) {
            slot.ordinal = Some(*ordinal);
        }
        request.infrastructure = vec![self.outputs.clone()];
        request
    }

    async fn make(&self, ordinals: &[u32]) -> Vec<Node> {
        self.bench.made_by(&self.request(GROUP, ordinals)).await
    }

    async fn remove(&self, node: &Node) {
        let removal = self.bench.removal(node);
        self.bench.deprovision(&removal).await.unwrap();
        self.bench.until_gone(&node.node_id).await;
    }

    /// The machines that answer at the address, seen from a machine that does not have it.
    fn answering(&self) -> Vec<String> {
        let address = &self.outputs.endpoint.as_ref().unwrap().host;
        self.bench.metal.answers("", address)
    }

    async fn end(self) {
        self.bench.assert_no_machine_leaked("endpoint").await;
        self.bench.release_whole().await;
        self.bench.assert_all_gone("endpoint").await;
    }
}

fn ids(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.node_id.clone()).collect()
}

#[tokio::test]
async fn when_the_first_machine_is_gone_the_next_one_that_is_made_has_the_address() {
    let cluster = Cluster::new().await;
    let nodes = cluster.make(&[0, 1, 2]).await;
    cluster.remove(&nodes[0]).await;
    assert_eq!(cluster.answering(), Vec::<String>::new());
    let workers = cluster.request("workers", &[1]);
    cluster.bench.made_by(&workers).await;
    assert_eq!(
        cluster.answering(),
        Vec::<String>::new(),
        "a worker is no target"
    );
    let next = cluster.make(&[3]).await;
    assert_eq!(cluster.answering(), ids(&next));
    let later = cluster.make(&[4]).await;
    assert_eq!(cluster.answering(), ids(&next), "not {later:?}");
    cluster.end().await;
}

#[tokio::test]
async fn of_machines_that_are_made_together_one_has_the_address() {
    let cluster = Cluster::new().await;
    let nodes = cluster.make(&[0, 1]).await;
    cluster.remove(&nodes[0]).await;
    let made = ids(&cluster.make(&[2, 3, 4]).await);
    let answering = cluster.answering();
    assert_eq!(answering.len(), 1, "{answering:?}");
    assert!(made.contains(&answering[0]));
    cluster.end().await;
}

#[tokio::test]
async fn a_replacement_of_the_first_machine_has_the_address_before_that_one_goes() {
    let cluster = Cluster::new().await;
    let nodes = cluster.make(&[0, 1, 2]).await;
    let mut replaced = cluster.make(&[0]).await;
    assert!(cluster.answering().contains(&replaced[0].node_id));
    cluster.remove(&nodes[0]).await;
    assert_eq!(cluster.answering(), ids(&replaced));
    let others = cluster.make(&[1, 2]).await;
    assert_eq!(cluster.answering(), ids(&replaced), "not {others:?}");
    replaced.extend(others);
    cluster.end().await;
}

#[tokio::test]
async fn the_state_of_the_endpoint_says_where_it_leads() {
    let cluster = Cluster::new().await;
    let nodes = cluster.make(&[0, 1]).await;
    let said = |words: String, phase: ResourcePhase| {
        let bench = &cluster.bench;
        async move {
            until(&words, || async {
                let state = bench.infrastructure_state().await;
                assert_eq!(state.phase(), ResourcePhase::Ready);
                let mut resources = state.resources.into_iter();
                let endpoint = resources.find(|one| one.kind == "endpoint")?;
                (endpoint.message == words && endpoint.phase() == phase).then_some(())
            })
            .await;
        }
    };
    let first = format!("leads to {}", nodes[0].node_id);
    said(first, ResourcePhase::Ready).await;
    cluster.remove(&nodes[0]).await;
    let nobody = "leads to no machine; the next one that is made in its groups has it".to_owned();
    said(nobody, ResourcePhase::Pending).await;
    cluster.end().await;
}

#[tokio::test]
async fn a_change_of_the_port_leaves_the_address_with_all_its_machines() {
    let cluster = Cluster::new().await;
    let first = cluster.make(&[0]).await;
    let second = cluster.make(&[0]).await;
    let mut spec = whole();
    spec.endpoint.as_mut().unwrap().port = 7443;
    let state = cluster.bench.ensure_whole(&spec).await;
    assert_eq!(state.outputs.unwrap().endpoint.unwrap().port, 7443);
    let endpoint = state.resources.iter().find(|one| one.kind == "endpoint");
    let message = &endpoint.unwrap().message;
    for node in first.iter().chain(&second) {
        assert!(message.contains(&node.node_id), "{message}");
    }
    cluster.end().await;
}
