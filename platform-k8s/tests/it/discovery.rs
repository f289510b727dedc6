//! Foreign pods on a real API server, found as the Replicante Platform specification requires.

use crate::bench;

use std::collections::BTreeMap;

use bench::{Bench, rig, settings};
use drover_core::Reason;
use drover_platform_k8s::{
    PlatformServer, Settings, address,
    settings::{AgentSettings, IpFrom},
};
use drover_proto::platform::v1::{Node, NodePhase};
use drover_testing::kubernetes::until;
use serde_json::{Value, json};

const CLUSTER: &str = "drover.dev/cluster";
const NODE: &str = "drover.dev/node";

async fn bench(agent: AgentSettings) -> Bench {
    Bench::with(|settings| settings.agent = agent).await
}

fn agent(ip_from: IpFrom, port: Option<u16>) -> AgentSettings {
    AgentSettings {
        ip_from,
        scheme: "http".to_owned(),
        port,
    }
}

/// A pod of our cluster, once it is running and listed.
async fn found(bench: &Bench, name: &str) -> Node {
    until("the pod runs and is listed", || async {
        let (nodes, _) = bench.list(&bench.cluster).await.ok()?;
        nodes
            .into_iter()
            .find(|node| node.node_id == name && node.phase() == NodePhase::Running)
    })
    .await
}

async fn pod(bench: &Bench, name: &str, annotations: Value) -> Value {
    let mut labels = BTreeMap::new();
    labels.insert(CLUSTER, bench.cluster.as_str());
    let metadata = json!({"labels": labels, "annotations": annotations});
    bench.namespace.pod(name, metadata).await
}

async fn ips(bench: &Bench, name: &str) -> (String, String) {
    let pod = bench.namespace.get("pods", name).await.unwrap();
    let ip = |key: &str| pod["status"][key].as_str().unwrap().to_owned();
    (ip("podIP"), ip("hostIP"))
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_addresses_are_those_of_the_specification() {
    let bench = bench(agent(IpFrom::Pod, Some(7000))).await;
    let (scheme, port, from) = (address::SCHEME, address::PORT, address::IP_FROM);
    let cases = [
        ("plain", json!({}), "http://POD:7000"),
        (
            "whole",
            json!({address::ADDRESS: "grpc://db.example.org:9", from: "node"}),
            "grpc://db.example.org:9",
        ),
        ("from-node", json!({from: "node"}), "http://NODE:7000"),
        ("from-pod", json!({from: "pod"}), "http://POD:7000"),
        (
            "both",
            json!({scheme: "https", port: "8443"}),
            "https://POD:8443",
        ),
        (
            "both-node",
            json!({scheme: "https", port: "8443", from: "node"}),
            "https://NODE:8443",
        ),
        ("only-scheme", json!({scheme: "https"}), "http://POD:7000"),
        ("only-port", json!({port: "8443"}), "http://POD:7000"),
    ];
    for (name, annotations, _) in &cases {
        pod(&bench, name, annotations.clone()).await;
    }
    for (name, _, expected) in &cases {
        let node = found(&bench, name).await;
        let (pod_ip, host_ip) = ips(&bench, name).await;
        let expected = expected.replace("POD", &pod_ip).replace("NODE", &host_ip);
        assert_eq!(node.agent_address, Some(expected), "{name}");
        assert_eq!(node.slot, None, "{name}");
        assert_eq!(
            node.provider_id,
            format!("kubernetes://{}/{name}", bench.namespace.name)
        );
    }
    let (_, warnings) = bench.list(&bench.cluster).await.unwrap();
    assert_eq!(warnings, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_port_there_is_no_agent_address() {
    let bench = bench(agent(IpFrom::Node, None)).await;
    pod(&bench, "plain", json!({})).await;
    pod(
        &bench,
        "both",
        json!({address::SCHEME: "tcp", address::PORT: "1"}),
    )
    .await;
    assert_eq!(found(&bench, "plain").await.agent_address, None);
    let both = found(&bench, "both").await;
    let (_, host_ip) = ips(&bench, "both").await;
    assert_eq!(both.agent_address, Some(format!("tcp://{host_ip}:1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_be_read_is_a_warning_beside_the_list() {
    let bench = bench(agent(IpFrom::Pod, Some(7000))).await;
    let wrong = [
        ("address", json!({address::ADDRESS: "nonsense"}), "nonsense"),
        ("from", json!({address::IP_FROM: "moon"}), "moon"),
        (
            "port",
            json!({address::SCHEME: "grpc", address::PORT: "70000"}),
            "70000",
        ),
        (
            "scheme",
            json!({address::SCHEME: "gopher", address::PORT: "70"}),
            "gopher",
        ),
        (
            "identity",
            json!({"drover.dev/identity": "{"}),
            "drover.dev/identity",
        ),
    ];
    for (name, annotations, _) in &wrong {
        pod(&bench, name, annotations.clone()).await;
    }
    pod(&bench, "fine", json!({})).await;
    found(&bench, "fine").await;
    let (nodes, warnings) = until("the pod with an address runs, too", || async {
        let (nodes, warnings) = bench.list(&bench.cluster).await.ok()?;
        let addressed = |node: &Node| node.node_id == "identity" && node.agent_address.is_some();
        nodes.iter().any(addressed).then_some((nodes, warnings))
    })
    .await;
    assert_eq!(nodes.len(), wrong.len() + 1);
    assert_eq!(warnings.len(), wrong.len());
    for (name, _, word) in &wrong {
        let warning = warnings
            .iter()
            .find(|it| it.id.as_deref() == Some(*name))
            .unwrap_or_else(|| panic!("no warning about {name}"));
        assert!(warning.message.contains(word), "{}", warning.message);
        assert_eq!(warning.cluster_id.as_deref(), Some(bench.cluster.as_str()));
        let node = nodes.iter().find(|it| it.node_id == *name).unwrap();
        assert_eq!(node.agent_address.is_some(), *name == "identity", "{name}");
        assert!(node.message.contains(word), "{}", node.message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_pods_with_a_cluster_label_and_what_the_selector_selects() {
    let bench = Bench::with(|settings| {
        settings.selector = "tier=db".to_owned();
        settings.labels.cluster = "example.org/cluster".to_owned();
        settings.labels.node = "example.org/node".to_owned();
    })
    .await;
    let cluster = &bench.cluster;
    let pods = [
        (
            "named",
            json!({"example.org/cluster": cluster, "example.org/node": "n-1", "tier": "db"}),
        ),
        (
            "unnamed",
            json!({"example.org/cluster": cluster, "tier": "db"}),
        ),
        (
            "unselected",
            json!({"example.org/cluster": cluster, "tier": "web"}),
        ),
        (
            "default-keys",
            json!({CLUSTER: cluster, NODE: "n-2", "tier": "db"}),
        ),
        ("nobody", json!({"tier": "db"})),
    ];
    for (name, labels) in pods {
        bench.namespace.pod(name, json!({"labels": labels})).await;
    }
    let (nodes, _) = bench.list("").await.unwrap();
    let mut ids: Vec<_> = nodes.iter().map(|node| node.node_id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["n-1", "unnamed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_namespaces_are_one_platform_and_others_are_not_seen() {
    let rig = rig();
    let spaces = [
        rig.namespace().await,
        rig.namespace().await,
        rig.namespace().await,
    ];
    for (at, space) in spaces.iter().enumerate() {
        let metadata = json!({"labels": {CLUSTER: "many"}});
        space.pod(&format!("p-{at}"), metadata).await;
    }
    let open = |namespaces: Vec<String>| async {
        let settings = Settings {
            kubeconfig: Some(rig.kubeconfig().to_path_buf()),
            namespaces,
            ..settings("")
        };
        PlatformServer::open(settings).await
    };
    let names = |count: usize| spaces[..count].iter().map(|it| it.name.clone()).collect();
    for (namespaces, expected) in [(names(2), 2), (names(3), 3)] {
        let server = open(namespaces).await.unwrap();
        let nodes = listed(&server, "many").await;
        assert_eq!(nodes.len(), expected);
        server.shutdown().await;
    }
    // All nodes, including those of other tests.
    let server = open(Vec::new()).await.unwrap();
    assert!(listed(&server, "many").await.len() >= 3);
    server.shutdown().await;
    let missing = open(vec!["no-such-namespace".to_owned()])
        .await
        .err()
        .unwrap();
    assert_eq!(missing.reason(), Reason::Precondition);
    assert!(missing.message().contains("no-such-namespace"));
}

async fn listed(server: &PlatformServer, cluster: &str) -> Vec<Node> {
    use drover_proto::platform::v1::{
        DiscoverRequest, GetPlatformRequest, platform_service_client::PlatformServiceClient,
    };
    let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
    let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
    let uid = platform.into_inner().platform.unwrap().uid;
    let request = DiscoverRequest {
        expected_platform_uid: uid,
        ..DiscoverRequest::default()
    };
    let nodes = client.discover(request).await.unwrap().into_inner().nodes;
    nodes
        .into_iter()
        .filter(|node| node.cluster_id == cluster)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_checked_at_start() {
    let rig = rig();
    let namespace = rig.namespace().await;
    let open = |kinds: &[&str]| {
        let settings = Settings {
            kubeconfig: Some(rig.kubeconfig().to_path_buf()),
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            ..settings(&namespace.name)
        };
        async move {
            let server = PlatformServer::open(settings).await?;
            server.shutdown().await;
            Ok::<_, drover_core::Error>(())
        }
    };
    for kinds in [
        &["pods"][..],
        &["pods", "deployments.apps", "deployments.v1.apps"][..1],
        &[
            "pods",
            "deployments.v1.apps",
            "networkpolicies.v1.networking.k8s.io",
        ],
    ] {
        open(kinds).await.unwrap();
    }
    let wrong: [(&[&str], &str); 5] = [
        (
            &["pods", "frobnicators.example.org"],
            "frobnicators.example.org",
        ),
        (&["pods", "deployments"], "deployments"),
        (&["pods", "bindings"], "bindings"),
        (
            &["pods", "deployments.apps", "deployments.v1.apps"],
            "twice",
        ),
        (&["services"], "pods"),
    ];
    for (kinds, word) in wrong {
        let error = open(kinds).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Invalid, "{kinds:?}");
        assert!(
            error.message().contains(word),
            "{kinds:?}: {}",
            error.message()
        );
    }
}
