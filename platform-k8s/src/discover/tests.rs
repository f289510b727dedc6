use drover_platform::identity::Identity;
use serde_json::{Value, json};

use super::*;
use crate::labels::declared::Plain;

fn reader() -> Reader {
    Reader::new(&Settings {
        agent: AgentSettings {
            port: Some(7000),
            ..AgentSettings::default()
        },
        ..Settings::default()
    })
}

fn identity() -> Identity {
    Identity {
        owner: "3f0e8a52-6c1d-4b8e-9a55-000000000001".into(),
        cluster_id: "orders".into(),
        group: "data/hot".into(),
        request_id: "3f0e8a52-6c1d-4b8e-9a55-000000000002".into(),
        index: 2,
        sequence: 7,
        spec_hash: "v1-abc".into(),
        store_id: "store".into(),
        id: "db-1-x7k2p".into(),
        name: "db-1".into(),
        ordinal: 1,
        role: 1,
        version: "7".into(),
        node_class: "small".into(),
        labels: [("team".to_owned(), "storage".to_owned())].into(),
        fingerprint: "0123456789abcdef0123456789abcdef".into(),
    }
}

fn ours() -> Value {
    let stamp = labels::stamp(&identity(), &LabelKeys::default(), &Plain::default());
    json!({
        "metadata": {"name": "db-1-x7k2p", "namespace": "prod", "uid": "u", "labels": stamp.labels,
            "annotations": stamp.annotations, "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"nodeName": "host-1", "containers": [
            {"name": "redis", "ports": [
                {"name": "client", "containerPort": 6379, "hostPort": 16379, "protocol": "TCP"},
                {"containerPort": 9}]},
            {"name": "exporter", "ports": [{"name": "metrics", "containerPort": 9121}]}]},
        "status": {"phase": "Running", "hostIP": "192.0.2.1", "podIP": "10.0.0.7",
            "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}],
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn read(pod: Value) -> Option<(Found, Option<Warning>)> {
    reader().found(&serde_json::from_value(pod).unwrap())
}

fn fine(pod: Value) -> Found {
    let (found, warning) = read(pod).unwrap();
    assert_eq!(warning, None);
    found
}

#[test]
fn a_pod_of_ours_shows_everything_that_was_stored_with_it() {
    let found = fine(ours());
    let node = found.node;
    let stored = identity();
    assert_eq!(found.fingerprint, stored.fingerprint);
    let expected = Node1 {
        cluster: "orders",
        id: "db-1-x7k2p",
        phase: NodePhase::Running,
        ready: Some(true),
        agent: Some("grpc://10.0.0.7:7000"),
    };
    assert_eq!(Node1::of(&node), expected);
    assert_eq!(node.slot, Some(stored.key()));
    assert_eq!(
        (node.group.as_str(), node.ordinal, node.sequence),
        ("data/hot", Some(1), 7)
    );
    assert_eq!(node.labels, stored.labels);
    assert_eq!(node.provider_id, "kubernetes://prod/db-1-x7k2p");
    assert_eq!(node.create_time.unwrap().seconds, 1_767_323_045);
    let endpoints = [("client", "10.0.0.7:6379"), ("metrics", "10.0.0.7:9121")];
    let endpoints = endpoints.map(|(name, at)| (name.to_owned(), at.to_owned()));
    assert_eq!(node.endpoints, endpoints.into());
    let addresses: Vec<_> = node.addresses.iter().map(|it| it.value.as_str()).collect();
    assert_eq!(addresses, ["10.0.0.7", "fd00::7"]);
}

#[derive(Debug, PartialEq)]
struct Node1<'a> {
    cluster: &'a str,
    id: &'a str,
    phase: NodePhase,
    ready: Option<bool>,
    agent: Option<&'a str>,
}

impl<'a> Node1<'a> {
    fn of(node: &'a drover_proto::platform::v1::Node) -> Self {
        Self {
            cluster: &node.cluster_id,
            id: &node.node_id,
            phase: node.phase(),
            ready: node.ready,
            agent: node.agent_address.as_deref(),
        }
    }
}

#[test]
fn endpoints_are_at_the_kubernetes_node_if_agents_are() {
    let mut pod = ours();
    pod["metadata"]["annotations"][crate::address::IP_FROM] = "node".into();
    let node = fine(pod).node;
    assert_eq!(node.agent_address.as_deref(), Some("grpc://192.0.2.1:7000"));
    assert_eq!(node.endpoints["client"], "192.0.2.1:16379");
    // Without a host port, only the pod has this port.
    assert_eq!(node.endpoints["metrics"], "10.0.0.7:9121");
    assert_eq!(node.addresses[0].value, "192.0.2.1");
}

#[test]
fn endpoints_of_version_6_are_in_brackets() {
    let mut pod = ours();
    pod["status"]["podIP"] = "fd00::7".into();
    assert_eq!(fine(pod).node.endpoints["client"], "[fd00::7]:6379");
}

#[test]
fn a_pod_without_addresses_has_no_endpoints_yet() {
    let mut pod = ours();
    pod["status"] = json!({"phase": "Pending"});
    let node = fine(pod).node;
    assert!(node.endpoints.is_empty() && node.addresses.is_empty());
    assert_eq!(node.agent_address, None);
}

#[test]
fn a_pod_of_somebody_else_is_a_foreign_node() {
    let node = fine(json!({"metadata": {"name": "theirs", "namespace": "x",
        "labels": {"drover.dev/cluster": "other", "app": "theirs", "drover.dev/odd": "1",
            "drover.dev/label.team": "a"}},
        "status": {"phase": "Running"}}))
    .node;
    assert_eq!(
        (node.cluster_id.as_str(), node.node_id.as_str()),
        ("other", "theirs")
    );
    assert_eq!(node.slot, None);
    assert_eq!(
        node.labels,
        [
            ("app".to_owned(), "theirs".to_owned()),
            ("team".to_owned(), "a".to_owned())
        ]
        .into()
    );
}

#[test]
fn the_node_id_is_the_label_else_the_name_of_the_pod() {
    let mut pod = json!({"metadata": {"name": "p", "labels": {"drover.dev/cluster": "c", "drover.dev/node": "n"}}});
    assert_eq!(fine(pod.clone()).node.node_id, "n");
    pod["metadata"]["labels"]["drover.dev/node"] = "".into();
    assert_eq!(fine(pod).node.node_id, "p");
}

#[test]
fn a_pod_without_cluster_label_is_no_node() {
    assert_eq!(read(json!({"metadata": {"name": "p"}})), None);
    assert_eq!(
        read(json!({"metadata": {"name": "p", "labels": {"drover.dev/node": "n"}}})),
        None
    );
    assert_eq!(
        read(json!({"metadata": {"name": "p", "labels": null, "annotations": null}})),
        None
    );
}

#[test]
fn keys_of_labels_are_those_of_the_settings() {
    let reader = Reader {
        keys: LabelKeys {
            cluster: "example.org/c".into(),
            node: "example.org/n".into(),
        },
        agent: AgentSettings::default(),
    };
    let pod = json!({"metadata": {"name": "p", "labels": {"example.org/c": "c", "example.org/n": "n", "x": "y"}}});
    let (found, _) = reader.found(&serde_json::from_value(pod).unwrap()).unwrap();
    assert_eq!(
        (found.node.cluster_id.as_str(), found.node.node_id.as_str()),
        ("c", "n")
    );
    assert_eq!(found.node.labels.len(), 1);
}

#[test]
fn an_identity_that_cannot_be_read_is_a_warning_that_says_all_that_is_known() {
    let mut pod = ours();
    pod["metadata"]["annotations"][labels::IDENTITY] = "{".into();
    let (found, warning) = read(pod).unwrap();
    let warning = warning.unwrap();
    assert_eq!(found.node.phase(), NodePhase::Unknown);
    assert_eq!(found.node.slot, None);
    assert_eq!(warning.cluster_id.as_deref(), Some("orders"));
    assert_eq!(warning.id.as_deref(), Some("db-1-x7k2p"));
    assert_eq!(
        warning.provider_id.as_deref(),
        Some("kubernetes://prod/db-1-x7k2p")
    );
    let slot = warning.slot.unwrap();
    assert_eq!((slot.owner, slot.index), (identity().owner, None));
    assert!(warning.message.contains(labels::IDENTITY));
}

#[test]
fn a_label_that_was_changed_by_hand_is_a_warning_about_the_slot() {
    for key in [
        "drover.dev/cluster",
        "drover.dev/node",
        labels::OWNER,
        labels::REQUEST,
    ] {
        let mut pod = ours();
        pod["metadata"]["labels"][key] = "changed".into();
        let (found, warning) = read(pod).unwrap();
        // In another cluster the pod is foreign.
        let expected = match key {
            "drover.dev/cluster" => ("changed", None, NodePhase::Unknown),
            _ => ("orders", Some(identity().key()), NodePhase::Running),
        };
        let node = found.node;
        assert_eq!(
            (node.cluster_id.as_str(), node.slot.clone(), node.phase()),
            expected,
            "{key}"
        );
        assert_eq!(node.node_id, "db-1-x7k2p");
        let warning = warning.unwrap();
        assert!(warning.message.contains(key), "{}", warning.message);
        assert_eq!(warning.slot, Some(identity().key()), "{key}");
        assert_eq!(warning.cluster_id.as_deref(), Some("orders"), "{key}");
    }
}

#[test]
fn an_agent_address_that_is_wrong_is_a_warning_and_the_node_is_there() {
    let mut pod = ours();
    pod["metadata"]["annotations"][crate::address::ADDRESS] = "nonsense".into();
    let (found, warning) = read(pod).unwrap();
    assert_eq!(found.node.phase(), NodePhase::Running);
    assert_eq!(found.node.agent_address, None);
    assert_eq!(found.node.slot, Some(identity().key()));
    assert!(found.node.message.contains(crate::address::ADDRESS));
    assert!(warning.unwrap().message.contains("nonsense"));
}

#[test]
fn other_objects_belong_to_a_node_only_if_they_say_to_which() {
    let object = |labels: Value| {
        serde_json::from_value(json!({"metadata": {"name": "s", "uid": "u", "labels": labels}}))
            .unwrap()
    };
    assert!(reader().part(1, &object(json!({}))).is_none());
    assert!(
        reader()
            .part(1, &object(json!({"drover.dev/cluster": "c"})))
            .is_none()
    );
    let foreign = reader()
        .part(
            1,
            &object(json!({"drover.dev/cluster": "c", "drover.dev/node": "n"})),
        )
        .unwrap();
    assert_eq!((foreign.node.as_str(), foreign.identity), ("n", None));
    let mut ours: Object = serde_json::from_value(ours()).unwrap();
    ours.metadata
        .annotations
        .get_or_insert_default()
        .insert(labels::ANCHOR.into(), "true".into());
    let seen = reader().part(1, &ours).unwrap();
    assert!(seen.member.anchor);
    assert_eq!(seen.identity.unwrap().node.slot, Some(identity().key()));
}

#[test]
fn identities_come_back_as_they_were() {
    let meta = |identity: &Identity| {
        let stamp = labels::stamp(identity, &LabelKeys::default(), &Plain::default());
        ObjectMeta {
            labels: Some(stamp.labels),
            annotations: Some(stamp.annotations),
            ..ObjectMeta::default()
        }
    };
    let mut odd = identity();
    odd.group = "a/b/c".repeat(40);
    odd.id = "x".repeat(100);
    odd.labels.insert("not valid".into(), "value!".into());
    odd.labels
        .insert("drover.dev/owner".into(), "forged".into());
    odd.labels.insert("tier".into(), "gold".into());
    for identity in [identity(), odd] {
        let meta = meta(&identity);
        assert!(
            meta.labels()
                .iter()
                .all(|(key, value)| labels::is_key(key) && labels::is_value(value))
        );
        assert_eq!(meta.labels()[labels::OWNER], identity.owner);
        let mark = labels::read(&meta, &LabelKeys::default()).unwrap();
        assert_eq!((mark.identity, mark.problem), (Some(identity), None));
    }
}

#[test]
fn texts_that_are_no_label_values_differ_in_their_hash() {
    let values: std::collections::BTreeSet<String> = [
        "a/b",
        "a-b",
        "a//b",
        "/",
        "//",
        &"x".repeat(64),
        &"x".repeat(65),
        "ü",
        "-a",
        "a-",
    ]
    .map(labels::value)
    .into();
    assert_eq!(values.len(), 10);
    assert!(
        values.iter().all(|value| labels::is_value(value)),
        "{values:?}"
    );
    assert_eq!(labels::value("db-1.x_y"), "db-1.x_y");
}
