//! The stores that are built in for clouds: refused where there is no template, and otherwise running on machines whose
//! user data were really run.

use std::{process::Command, time::Duration};

use drover_core::Reason;
use drover_emulators::metal::MetalSettings;
use drover_proto::{
    common::v1::AddressType,
    platform::v1::{Node, NodeRole, Peer, ProvisionRequest},
};
use drover_templates::{
    ClusterContext, Context, EndpointContext, GroupContext, InfrastructureContext, NodeContext,
    PeerContext, render_text,
};
use serde_json::json;

use super::{
    bench::{Bench, until, user_data, whole},
    namespaces::{Machine, Network, is_root},
};

async fn bench() -> Bench {
    Bench::set(MetalSettings::default(), |settings| {
        let image = ("debian".to_owned(), "debian-12.0".to_owned());
        settings.common.images.extend([image]);
    })
    .await
}

/// A request for one node of a store, beside these.
fn request(
    bench: &Bench,
    (store, version): (&str, &str),
    ordinal: u32,
    others: &[&Node],
) -> ProvisionRequest {
    let mut request = bench.request_with("db", 1, &json!({}));
    let cluster = request.cluster.as_mut().unwrap();
    cluster.store = store.to_owned();
    cluster.version = version.to_owned();
    request.slots[0].ordinal = Some(ordinal);
    request.slots[0].name = format!("db-{ordinal}");
    let peer = |node: &&Node| Peer {
        name: node.name.clone(),
        group: node.group.clone(),
        ordinal: node.ordinal.unwrap_or_default(),
        role: NodeRole::Active.into(),
        endpoints: node.endpoints.clone(),
        ready: true,
    };
    request.peers = others.iter().map(peer).collect();
    request
}

fn address(node: &Node, kind: AddressType) -> &str {
    let found = node
        .addresses
        .iter()
        .find(|address| address.r#type() == kind);
    &found.unwrap().value
}

/// The version that is installed here, in the words of a program: `etcd Version: 3.4.23`.
fn installed(program: &str, before: &str) -> String {
    let output = Command::new(program).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let version = text.split_once(before).unwrap().1;
    version.split_whitespace().next().unwrap().to_owned()
}

/// A network, and a machine for every node that is made.
struct Hall {
    bench: Bench,
    network: Network,
}

impl Hall {
    async fn new() -> Self {
        Self {
            bench: bench().await,
            network: Network::new(),
        }
    }

    async fn make(&self, request: &ProvisionRequest) -> (Node, Machine) {
        let node = self.bench.made_by(request).await.remove(0);
        let data = self.bench.metal.user_data(&node.node_id).unwrap();
        let private = address(&node, AddressType::InternalIp);
        let public = address(&node, AddressType::ExternalIp);
        let machine = self.network.boot(private, public, &data);
        (node, machine)
    }

    async fn said(&self, machine: &Machine, command: &[&str], wanted: &str) {
        let what = format!(
            "{command:?} says {wanted:?}; the machine: {}",
            machine.log()
        );
        until(&what, || async {
            let output = self.network.run(command);
            // etcdctl tells of health on standard error.
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text)
                .contains(wanted)
                .then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_store_or_version_without_a_template_makes_no_machine() {
    let bench = bench().await;
    for store in [
        ("mysql", "8.4"),
        ("redis", "5.0"),
        ("etcd", "2.3"),
        ("postgresql", "9.6"),
    ] {
        let error = bench.complaint(&request(&bench, store, 0, &[])).await;
        assert_eq!(
            error.reason(),
            Reason::TemplateNotFound,
            "{store:?}: {error}"
        );
        assert!(error.message().contains(store.0), "{error}");
    }
    for (store, word) in [
        (("redis", "7"), "password"),
        (("postgresql", "15"), "password"),
        (("kubernetes", "v1.30.2"), "user data"),
    ] {
        let error = bench.complaint(&request(&bench, store, 0, &[])).await;
        assert!(error.message().contains(word), "{store:?}: {error}");
    }
    // It would be a cluster of its own.
    let error = bench
        .complaint(&request(&bench, ("etcd", "3.5"), 1, &[]))
        .await;
    assert!(error.message().contains("OrderedReady"), "{error}");
    assert!(bench.made().is_empty());
}

/// The user data of a machine, decoded.
fn script(bench: &Bench, node: &Node) -> String {
    let data = bench.metal.user_data(&node.node_id).unwrap();
    let decode = format!("echo {data} | base64 -d");
    let output = Command::new("sh").args(["-c", &decode]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn what_is_to_be_run_is_no_password_and_makes_a_machine_only_where_there_was_one() {
    let bench = bench().await;
    for text in ["#!/bin/sh\necho one\n", "#cloud-config\nruncmd: [one]\n"] {
        for (store, reason) in [
            (("redis", "7"), Reason::Precondition),
            (("postgresql", "15"), Reason::Precondition),
            (("etcd", "3.5"), Reason::Precondition),
            (("cassandra", "5"), Reason::TemplateNotFound),
            (("redis", "5.0"), Reason::TemplateNotFound),
        ] {
            let mut request = request(&bench, store, 0, &[]);
            request.bootstrap = Some(user_data(text));
            let error = bench.complaint(&request).await;
            assert_eq!(error.reason(), reason, "{store:?}: {error}");
            // Not a dry run: it was applied before there were templates.
            let node = bench.made_by(&request).await.remove(0);
            assert_eq!(script(&bench, &node), text, "{store:?}");
            assert!(node.endpoints.is_empty(), "{:?}", node.endpoints);
        }
    }
    for bootstrap in [None, Some(user_data("password"))] {
        let mut request = request(&bench, ("cassandra", "5"), 0, &[]);
        request.bootstrap = bootstrap;
        let error = bench.provision(&request).await.unwrap_err();
        assert_eq!(error.reason(), Reason::TemplateNotFound, "{error}");
    }
}

/// The user data of the shipped example for a request, as they are rendered.
fn of_example(request: &ProvisionRequest) -> String {
    let text = include_str!("../../../../deploy/examples/metal/control-plane.yaml");
    let slot = &request.slots[0];
    let peer = |peer: &Peer| PeerContext {
        name: peer.name.clone(),
        group: peer.group.clone(),
        endpoints: peer.endpoints.clone().into_iter().collect(),
        ..PeerContext::default()
    };
    let endpoint = request.infrastructure[0].endpoint.clone().unwrap();
    let context = Context {
        cluster: ClusterContext {
            version: "v1.30.2".to_owned(),
            ..ClusterContext::default()
        },
        group: GroupContext {
            path: request.group.as_ref().unwrap().path.clone(),
            ..GroupContext::default()
        },
        node: NodeContext {
            name: slot.name.clone(),
            ordinal: slot.ordinal.unwrap(),
            ..NodeContext::default()
        },
        peers: request.peers.iter().map(peer).collect(),
        infrastructure: vec![InfrastructureContext {
            endpoint: Some(EndpointContext {
                host: endpoint.host,
                port: endpoint.port,
            }),
            ..InfrastructureContext::default()
        }],
        ..Context::default()
    };
    render_text("control-plane.yaml", text, &context.into())
        .unwrap()
        .into_text()
}

#[tokio::test]
async fn every_control_plane_of_the_example_joins_another_machine_that_is_there() {
    let bench = bench().await;
    let outputs = bench.ensure_whole(&whole()).await.outputs.unwrap();
    let mut nodes: Vec<Node> = Vec::new();
    for ordinal in [0, 1, 2, 0] {
        if nodes.len() == 3 {
            let lost = nodes.remove(0);
            let gone = bench.deprovision(&bench.removal(&lost)).await;
            gone.unwrap();
        }
        let others: Vec<&Node> = nodes.iter().collect();
        let mut request = request(&bench, ("kubernetes", "v1.30.2"), ordinal, &others);
        let group = request.group.as_mut().unwrap();
        group.path = "control-plane".to_owned();
        group.role = "control-plane".to_owned();
        request.slots[0].name = format!("control-plane-{ordinal}");
        request.infrastructure = vec![outputs.clone()];
        let text = of_example(&request);
        request.bootstrap = Some(user_data(&text));
        let node = bench.made_by(&request).await.remove(0);
        match text.split_once("kubeadm join ") {
            Some((_, joins)) => {
                let host = joins.split(':').next().unwrap();
                let answers = bench.metal.answers(&node.node_id, host);
                let there = nodes.iter().map(|node| node.node_id.clone());
                assert!(
                    there.into_iter().any(|id| answers == [id]),
                    "{ordinal}: {answers:?}"
                );
                // The first one has the address of the control plane before it serves.
                let begins = text.split("kubeadm join").next().unwrap();
                let named = format!("echo \"{host} control-plane.internal\" >>/etc/hosts");
                assert!(begins.contains(&named), "{text}");
            }
            None => {
                assert!(nodes.is_empty(), "{text}");
                let endpoint = "kubeadm init --control-plane-endpoint control-plane.internal:6443";
                assert!(text.contains(endpoint), "{text}");
            }
        }
        nodes.push(node);
    }
}

#[tokio::test]
async fn user_data_of_every_store_fit_the_smallest_limit_and_are_a_script() {
    let bench = bench().await;
    let others: Vec<Node> = (0..100).map(other).collect();
    let others: Vec<&Node> = others.iter().collect();
    for store in [("redis", "7.2"), ("etcd", "3.5"), ("postgresql", "17")] {
        let mut request = request(&bench, store, 100, &others);
        if store.0 != "etcd" {
            request.bootstrap = Some(user_data("it's \"a\" $secret `x`\\"));
        }
        let node = bench.made_by(&request).await.remove(0);
        let data = bench.metal.user_data(&node.node_id).unwrap();
        // That of EC2, before base64.
        assert!(data.len() * 3 / 4 <= 16 << 10, "{store:?}: {}", data.len());
        let check = format!("echo {data} | base64 -d | sh -n");
        let output = Command::new("sh").args(["-c", &check]).output().unwrap();
        assert!(output.status.success(), "{store:?}: {output:?}");
        // Else systemd gives up for good after five ends within ten seconds.
        let text = script(&bench, &node);
        let unit = text.split_once("[Unit]").unwrap().1;
        let unit = unit.split_once("[Service]").unwrap().0;
        assert!(unit.contains("\nStartLimitIntervalSec=0\n"), "{unit}");
    }
}

/// One of many nodes of a group.
fn other(ordinal: u32) -> Node {
    let id = uuid::Uuid::new_v4();
    Node {
        name: format!("db-{ordinal}"),
        group: "db".to_owned(),
        ordinal: Some(ordinal),
        node_id: id.to_string(),
        endpoints: [(
            "client".to_owned(),
            format!("10.{}.7.{ordinal}:2379", id.as_bytes()[0]),
        )]
        .into(),
        ..Node::default()
    }
}

/// With `DROVER_TEST_LONG_ABSENCE` the member that dies is missed for 45 seconds before it is replaced.
#[tokio::test]
async fn an_etcd_forms_and_one_member_that_dies_is_replaced_with_all_keys_there() {
    if !is_root() {
        return;
    }
    let hall = Hall::new().await;
    let store = ("etcd", installed("etcd", "etcd Version: "));
    let store = (store.0, store.1.as_str());
    let mut members: Vec<(Node, Machine)> = Vec::new();
    for ordinal in 0..3 {
        let others: Vec<&Node> = members.iter().map(|(node, _)| node).collect();
        let made = hall
            .make(&request(&hall.bench, store, ordinal, &others))
            .await;
        let url = format!("http://{}", made.0.endpoints["client"]);
        let health = ["etcdctl", "--endpoints", &url, "endpoint", "health"];
        hall.said(&made.1, &health, "is healthy").await;
        members.push(made);
    }
    let url = |node: &Node| format!("http://{}", node.endpoints["client"]);
    let first = url(&members[0].0);
    let put = ["etcdctl", "--endpoints", &first, "put", "key", "value"];
    hall.said(&members[0].1, &put, "OK").await;
    let (dead, machine) = members.remove(1);
    drop(machine);
    let list = ["etcdctl", "--endpoints", &first, "member", "list"];
    if std::env::var_os("DROVER_TEST_LONG_ABSENCE").is_some() {
        tokio::time::sleep(Duration::from_secs(45)).await;
        let output = hall.network.run(&list);
        let known = String::from_utf8_lossy(&output.stdout).lines().count();
        assert_eq!(known, 3, "who is down may come back: {output:?}");
    }
    hall.bench
        .deprovision(&hall.bench.removal(&dead))
        .await
        .unwrap();
    let others: Vec<&Node> = members.iter().map(|(node, _)| node).collect();
    let (node, machine) = hall.make(&request(&hall.bench, store, 1, &others)).await;
    let get = ["etcdctl", "--endpoints", &url(&node), "get", "key"];
    hall.said(&machine, &get, "value").await;
    until("three members vote", || async {
        let output = hall.network.run(&list);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let votes = |line: &&str| line.contains("started") && line.ends_with("false");
        (text.lines().count() == 3 && text.lines().filter(votes).count() == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_redis_listens_at_its_private_address_to_those_with_the_password() {
    if !is_root() {
        return;
    }
    let hall = Hall::new().await;
    let version = installed("redis-server", "v=");
    let mut wanted = request(&hall.bench, ("redis", &version), 0, &[]);
    wanted.bootstrap = Some(user_data("pa$$ 'word\" `x`\\n"));
    let (node, machine) = hall.make(&wanted).await;
    let private = address(&node, AddressType::InternalIp);
    let with = [
        "redis-cli",
        "--no-auth-warning",
        "-a",
        "pa$$ 'word\" `x`\\n",
        "-h",
        private,
    ];
    hall.said(
        &machine,
        &[&with[..], &["set", "key", "value"]].concat(),
        "OK",
    )
    .await;
    let without = hall
        .network
        .run(&["redis-cli", "-h", private, "get", "key"]);
    assert!(
        String::from_utf8_lossy(&without.stdout).contains("NOAUTH"),
        "{without:?}"
    );
    for address in [address(&node, AddressType::ExternalIp), "127.0.0.1"] {
        let output = machine.run(&["redis-cli", "-h", address, "ping"]);
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("refused"),
            "{output:?}"
        );
    }
}
