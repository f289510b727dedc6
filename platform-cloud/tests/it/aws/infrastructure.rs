//! Infrastructure of a cluster, completed from every intermediate state.
pub(crate) mod faults;

use std::collections::BTreeSet;

use drover_core::Reason;
use drover_emulators::ec2::Ec2Settings;
use drover_proto::platform::v1::{
    EndpointSpec, FirewallDirection, FirewallRule, InfrastructureOutputs, InfrastructureSpec,
    NetworkSpec, PortRange, ResourcePhase,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::aws::{
    bench::{Bench, names, until},
    conformance::wanted,
};

const EVERYTHING: [&str; 7] = [
    "endpoint/control-plane",
    "firewall/cluster",
    "gateway/main",
    "network/main",
    "subnet/eu-central-1a",
    "subnet/eu-central-1b",
    "subnet/eu-central-1c",
];

fn object(outputs: &InfrastructureOutputs) -> Value {
    let properties = outputs.properties.as_ref().unwrap();
    Value::Object(drover_convert::value::object("properties", properties).unwrap())
}

macro_rules! on_both {
    ($($name:ident)*) => {
        mod emulator {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(super::Bench::emulator().await).await;
                }
            )*
        }

        mod moto {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name(super::Bench::moto().await).await;
                }
            )*
        }
    };
}

on_both! {
    nodes_live_in_it_and_the_endpoint_follows_them
    a_network_and_an_address_that_exist_are_used_and_given_back
    rules_follow_the_spec
    what_cannot_be_changed_is_refused
}

/// Nodes would wait for it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_only_sets_properties_is_done_at_once() {
    let bench = Bench::emulator().await;
    let properties = json!({ "zones": ["eu-central-1a"] });
    let spec = InfrastructureSpec {
        properties: Some(drover_convert::value::to_struct(
            properties.as_object().unwrap(),
        )),
        ..InfrastructureSpec::default()
    };
    let answer = bench.ensure(&spec).await.unwrap();
    assert_eq!(answer.state.unwrap().phase(), ResourcePhase::Gone);
    assert_eq!(answer.poll_after, None);
}

async fn nodes_live_in_it_and_the_endpoint_follows_them(bench: Bench) {
    let sdk = bench.sdk().await;
    let state = bench.ensure_whole(&wanted()).await;
    assert_eq!(names(&state.resources), EVERYTHING);
    let outputs = state.outputs.unwrap();
    let endpoint = outputs.endpoint.clone().unwrap();
    assert_eq!(endpoint.port, 6443);
    let offered = object(&outputs);
    assert_eq!(
        offered["subnets"].as_object().unwrap().len(),
        3,
        "{offered}"
    );

    let mut request = bench.request(3, Value::Null).await;
    request.infrastructure = vec![outputs.clone()];
    let answer = bench.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 3, "{answer:?}");
    for node in &answer.nodes {
        let described = sdk
            .describe_instances()
            .instance_ids(&node.node_id)
            .send()
            .await
            .unwrap();
        let instance = &described.reservations()[0].instances()[0];
        assert_eq!(instance.vpc_id(), Some(outputs.network_id.as_str()));
        assert_eq!(
            instance.subnet_id(),
            offered["subnets"][&node.failure_domain].as_str()
        );
        assert_eq!(
            instance.security_groups()[0].group_id(),
            offered["security_groups"][0].as_str()
        );
    }
    let leads_to = || async {
        let addresses = sdk
            .describe_addresses()
            .public_ips(&endpoint.host)
            .send()
            .await
            .unwrap();
        let instance = addresses.addresses()[0].instance_id().unwrap_or_default();
        instance.to_owned()
    };
    let first = until("the endpoint leads to a node", || async {
        bench.get().await;
        let instance = leads_to().await;
        (!instance.is_empty()).then_some(instance)
    })
    .await;
    let node = answer
        .nodes
        .iter()
        .find(|node| node.node_id == first)
        .unwrap();
    bench.get().await;
    assert_eq!(leads_to().await, first, "it stays as long as the node runs");
    bench.remove(node).await;
    until("the endpoint leads to another node", || async {
        bench.get().await;
        let instance = leads_to().await;
        (!instance.is_empty() && instance != first).then_some(())
    })
    .await;

    // The network cannot be deleted while nodes are in it; moto allows it.
    if !bench.is_moto() {
        let answer = bench.release().await.unwrap();
        assert!(answer.poll_after.is_some());
        let left = names(&answer.state.unwrap().resources);
        assert!(left.contains(&"network/main".to_owned()), "{left:?}");
    }
    for node in answer.nodes.iter().filter(|node| node.node_id != first) {
        bench.remove(node).await;
    }
    bench.release_whole().await;
    let vpcs = sdk.describe_vpcs().send().await.unwrap();
    assert!(
        vpcs.vpcs()
            .iter()
            .all(|vpc| vpc.vpc_id() != Some(&outputs.network_id))
    );
    assert!(
        sdk.describe_addresses()
            .send()
            .await
            .unwrap()
            .addresses()
            .is_empty()
    );
    if !bench.is_moto() {
        assert_eq!(bench.left(), vec![]);
    }
}

async fn a_network_and_an_address_that_exist_are_used_and_given_back(bench: Bench) {
    let sdk = bench.sdk().await;
    let vpcs = sdk.describe_vpcs().send().await.unwrap();
    let vpc = vpcs.vpcs()[0].vpc_id().unwrap();
    let address = sdk
        .allocate_address()
        .domain(aws_sdk_ec2::types::DomainType::Vpc)
        .send()
        .await
        .unwrap();
    let ip = address.public_ip().unwrap();
    let spec = InfrastructureSpec {
        network: Some(NetworkSpec {
            id: vpc.to_owned(),
            ..NetworkSpec::default()
        }),
        endpoint: Some(EndpointSpec {
            host: ip.to_owned(),
            port: 5432,
            targets: vec!["db".to_owned()],
        }),
        ..InfrastructureSpec::default()
    };
    let state = bench.ensure_whole(&spec).await;
    assert_eq!(
        names(&state.resources),
        ["endpoint/control-plane", "firewall/cluster"]
    );
    let outputs = state.outputs.unwrap();
    assert_eq!(outputs.network_id, vpc);
    assert_eq!(
        outputs
            .endpoint
            .as_ref()
            .map(|endpoint| endpoint.host.as_str()),
        Some(ip)
    );
    assert_eq!(
        object(&outputs)["subnets"].as_object().unwrap().len(),
        3,
        "those that are there"
    );
    assert_eq!(bench.get().await.outputs, Some(outputs));
    let error = bench
        .ensure_as(Uuid::new_v4(), &spec, true)
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::NotOwned, "{error:?}");
    bench.release_whole().await;
    let there = sdk
        .describe_addresses()
        .public_ips(ip)
        .send()
        .await
        .unwrap();
    assert!(
        there.addresses()[0].tags().is_empty(),
        "given back as it came"
    );
    assert_eq!(
        sdk.describe_vpcs().send().await.unwrap().vpcs().len(),
        vpcs.vpcs().len()
    );
    let groups = sdk.describe_security_groups().send().await.unwrap();
    assert!(
        groups
            .security_groups()
            .iter()
            .all(|group| group.group_name() == Some("default"))
    );
}

/// The rules of a security group inwards and outwards.
async fn rules(bench: &Bench, group: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let groups = bench.sdk().await.describe_security_groups();
    let groups = groups.group_ids(group).send().await.unwrap();
    let group = &groups.security_groups()[0];
    let text = |permission: &aws_sdk_ec2::types::IpPermission| {
        let ranges = permission.ip_ranges().iter();
        let ranges: Vec<&str> = ranges.filter_map(|range| range.cidr_ip()).collect();
        let groups = permission.user_id_group_pairs().len();
        format!(
            "{} {:?} {}{}",
            permission.ip_protocol().unwrap_or_default(),
            permission.from_port().unwrap_or(-1),
            ranges.join(","),
            "self".repeat(groups)
        )
    };
    let ingress = group.ip_permissions().iter().map(text).collect();
    let egress = group.ip_permissions_egress().iter().map(text).collect();
    (ingress, egress)
}

/// Rules that have nothing in common with those of [`wanted`]: the endpoint inwards, and names outwards.
fn other_rules(port: u32) -> Vec<FirewallRule> {
    let rule = |direction: FirewallDirection, protocol: &str, cidr: &str, first| FirewallRule {
        direction: direction.into(),
        protocol: protocol.to_owned(),
        cidrs: vec![cidr.to_owned()],
        ports: vec![PortRange { first, last: 0 }],
        ..FirewallRule::default()
    };
    vec![
        rule(FirewallDirection::Ingress, "", "10.0.0.0/8", port),
        rule(FirewallDirection::Egress, "udp", "10.0.0.2/32", 53),
    ]
}

async fn rules_follow_the_spec(bench: Bench) {
    let mut spec = wanted();
    let state = bench.ensure_whole(&spec).await;
    let group = state
        .resources
        .iter()
        .find(|resource| resource.kind == "firewall")
        .unwrap()
        .id
        .clone();
    let set = |rules: &[&str]| -> BTreeSet<String> {
        rules.iter().map(|&rule| rule.to_owned()).collect()
    };
    let (ingress, egress) = rules(&bench, &group).await;
    assert_eq!(
        ingress,
        set(&["-1 -1 self", "tcp 22 203.0.113.0/24", "tcp 6443 0.0.0.0/0"])
    );
    assert_eq!(egress, set(&["-1 -1 0.0.0.0/0"]));
    spec.firewall.as_mut().unwrap().rules = other_rules(6443);
    bench.ensure_whole(&spec).await;
    let (ingress, egress) = rules(&bench, &group).await;
    assert_eq!(ingress, set(&["-1 -1 self", "tcp 6443 10.0.0.0/8"]));
    assert_eq!(egress, set(&["-1 -1 self", "udp 53 10.0.0.2/32"]));
    bench.release_whole().await;
}

async fn what_cannot_be_changed_is_refused(bench: Bench) {
    bench.ensure_whole(&wanted()).await;
    let with = |change: &dyn Fn(&mut InfrastructureSpec)| {
        let mut spec = wanted();
        change(&mut spec);
        spec
    };
    let table = [
        (
            "spec.network.cidr",
            with(&|spec| spec.network.as_mut().unwrap().cidr = "10.30.0.0/20".to_owned()),
        ),
        (
            "spec.network.id",
            with(&|spec| {
                spec.network = Some(NetworkSpec {
                    id: "vpc-0123456789abcdef0".to_owned(),
                    ..NetworkSpec::default()
                });
            }),
        ),
        (
            "spec.network",
            with(&|spec| (spec.network, spec.firewall) = (None, None)),
        ),
        ("spec.endpoint", with(&|spec| spec.endpoint = None)),
        (
            "spec.endpoint.host",
            with(&|spec| spec.endpoint.as_mut().unwrap().host = "203.0.113.200".to_owned()),
        ),
    ];
    for (field, spec) in table {
        for validate_only in [true, false] {
            let error = bench
                .ensure_as(bench.owner, &spec, validate_only)
                .await
                .unwrap_err();
            assert_eq!(error.reason(), Reason::Immutable, "{field}: {error:?}");
            assert_eq!(error.fields()[0].field, field);
        }
    }
    assert_eq!(names(&bench.get().await.resources), EVERYTHING);
    bench.release_whole().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_made_is_named() {
    let bench = Bench::emulator().await;
    bench.settled().await;
    let with = |change: &dyn Fn(&mut InfrastructureSpec)| {
        let mut spec = wanted();
        change(&mut spec);
        spec
    };
    let properties = |value: Value| drover_convert::value::to_struct(value.as_object().unwrap());
    let table = [
        (
            "spec.endpoint.host",
            with(&|spec| spec.endpoint.as_mut().unwrap().host = "203.0.113.9".to_owned()),
        ),
        (
            "spec.network.public",
            with(&|spec| spec.network.as_mut().unwrap().public = "moon".to_owned()),
        ),
        (
            "spec.network.cidr",
            with(&|spec| spec.network.as_mut().unwrap().cidr = "10.0.0.0/28".to_owned()),
        ),
        (
            "spec.firewall.image",
            with(&|spec| spec.firewall.as_mut().unwrap().image = "fw".to_owned()),
        ),
        (
            "spec.properties",
            with(&|spec| spec.properties = Some(properties(json!({ "vpn": true })))),
        ),
        (
            "spec.properties.zones[0]",
            with(&|spec| spec.properties = Some(properties(json!({ "zones": ["eu-central-1z"] })))),
        ),
        (
            "spec.network.id",
            InfrastructureSpec {
                network: Some(NetworkSpec {
                    id: "vpc-0123456789abcdef0".to_owned(),
                    ..NetworkSpec::default()
                }),
                ..InfrastructureSpec::default()
            },
        ),
    ];
    for (field, spec) in table {
        for validate_only in [true, false] {
            let error = bench
                .ensure_as(bench.owner, &spec, validate_only)
                .await
                .unwrap_err();
            assert!(
                error
                    .fields()
                    .iter()
                    .any(|violation| violation.field == field),
                "{field}: {error:?}"
            );
        }
        bench.release_whole().await;
    }
    assert_eq!(bench.left(), vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_of_networks_is_told() {
    let bench = Bench::emulated(Ec2Settings {
        vpc_quota: 1,
        ..Ec2Settings::default()
    })
    .await;
    bench.settled().await;
    let error = bench.ensure(&wanted()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::QuotaExceeded, "{error:?}");
    bench.release_whole().await;
    assert_eq!(bench.left(), vec![]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_twice_is_freed() {
    let bench = Bench::emulator().await;
    bench.ensure_whole(&wanted()).await;
    let sdk = bench.sdk().await;
    let ours = sdk.describe_vpcs().send().await.unwrap();
    let ours = ours
        .vpcs()
        .iter()
        .find(|vpc| !vpc.tags().is_empty())
        .unwrap();
    // As if a response had been lost and the caller had not waited for the visibility delay.
    sdk.create_vpc()
        .cidr_block("10.20.0.0/20")
        .tag_specifications(
            aws_sdk_ec2::types::TagSpecification::builder()
                .resource_type(aws_sdk_ec2::types::ResourceType::Vpc)
                .set_tags(Some(ours.tags().to_vec()))
                .build(),
        )
        .send()
        .await
        .unwrap();
    let state = bench.get().await;
    let releasing = state
        .resources
        .iter()
        .filter(|resource| resource.phase() == ResourcePhase::Releasing);
    assert_eq!(releasing.count(), 1);
    let state = bench.ensure_whole(&wanted()).await;
    assert_eq!(names(&state.resources), EVERYTHING);
    assert_eq!(state.outputs.unwrap().network_id, ours.vpc_id().unwrap());
    bench.release_whole().await;
    assert_eq!(bench.left(), vec![]);
}
