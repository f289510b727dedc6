//! Behaviour of the driver that is the same on the emulator and on moto.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::{HttpTokensState, InstanceLifecycleType, InstanceType};
use drover_core::Reason;
use drover_emulators::ec2::Ec2Settings;
use drover_proto::{
    common::v1::AddressType,
    platform::v1::{NodePhase, NodeRole, Placement, Spread, SpreadScope, UnsatisfiableAction},
};
use serde_json::{Value, json};

use crate::aws::bench::{Bench, index, tags_of, until, user_data};

/// Runs each test on both servers.
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
    one_call_makes_all_nodes_of_a_zone
    instances_are_made_as_the_group_says
    nodes_show_what_the_api_says
    a_request_is_recognised_after_a_restart
    nodes_are_retagged
    launch_templates_say_the_rest
}

fn in_zone(request: &mut drover_proto::platform::v1::ProvisionRequest, zone: &str) {
    request.group.as_mut().unwrap().placement = Some(Placement {
        failure_domains: vec![zone.to_owned()],
        ..Placement::default()
    });
}

async fn one_call_makes_all_nodes_of_a_zone(bench: Bench) {
    let mut request = bench.request(7, Value::Null).await;
    in_zone(&mut request, "eu-central-1b");
    let answer = bench.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 7, "{answer:?}");
    let nodes: BTreeSet<u32> = answer.nodes.iter().map(index).collect();
    assert_eq!(nodes, (0..7).collect());
    assert!(
        answer
            .nodes
            .iter()
            .all(|node| node.failure_domain == "eu-central-1b")
    );
    let described = bench.sdk().await.describe_instances().send().await.unwrap();
    let ours: Vec<_> = described
        .reservations()
        .iter()
        .filter(|reservation| reservation.instances().len() == 7)
        .collect();
    assert_eq!(ours.len(), 1, "all in one reservation");
    if !bench.is_moto() {
        assert_eq!(bench.ec2().control().count("RunInstances"), 1);
        let call = &bench.ec2().control().requests_of("RunInstances")[0];
        assert_eq!(call.parameter("MinCount"), Some("1"));
        assert_eq!(call.parameter("MaxCount"), Some("7"));
        assert_eq!(call.parameter("ClientToken").map(str::len), Some(32));
    }
    let again = bench.provision(&request).await.unwrap();
    let ids = |nodes: &[drover_proto::platform::v1::Node]| -> BTreeMap<u32, String> {
        nodes
            .iter()
            .map(|node| (index(node), node.node_id.clone()))
            .collect()
    };
    assert_eq!(ids(&again.nodes), ids(&answer.nodes));
    assert_eq!(bench.nodes().await.len(), 7);
}

async fn instances_are_made_as_the_group_says(bench: Bench) {
    let sdk = bench.sdk().await;
    // Each server supports only one of the two ways.
    if bench.is_moto() {
        sdk.create_key_pair().key_name("mwas").send().await.unwrap();
    } else {
        sdk.import_key_pair()
            .key_name("mwas")
            .public_key_material(aws_sdk_ec2::primitives::Blob::new("ssh-ed25519 AAAA mwas"))
            .send()
            .await
            .unwrap();
    }
    let network = sdk.describe_vpcs().send().await.unwrap().vpcs()[0]
        .vpc_id()
        .unwrap()
        .to_owned();
    let group = sdk
        .create_security_group()
        .group_name("web")
        .description("web")
        .vpc_id(&network)
        .send()
        .await
        .unwrap();
    let mut request = bench
        .request(
            2,
            json!({
                "instanceType": "t3.small", "key": "mwas", "sshKey": "mwas", "securityGroups": ["web"],
                "capacityType": "spot", "maxPrice": "0.5",
                "rootVolume": { "size": 30, "type": "gp3", "encrypted": true },
                "tags": { "cost-centre": "42" }
            }),
        )
        .await;
    in_zone(&mut request, "eu-central-1a");
    request.bootstrap = user_data(16 * 1024);
    let answer = bench.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 2, "{answer:?}");
    let node = &answer.nodes[0];
    assert_eq!(node.node_class, "t3.small");
    assert_eq!(
        node.labels,
        [("team".to_owned(), "storage".to_owned())].into()
    );
    let described = sdk
        .describe_instances()
        .instance_ids(&node.node_id)
        .send()
        .await
        .unwrap();
    let instance = &described.reservations()[0].instances()[0];
    assert_eq!(instance.instance_type(), Some(&InstanceType::T3Small));
    assert_eq!(instance.key_name(), Some("mwas"));
    assert_eq!(instance.security_groups()[0].group_id(), group.group_id());
    assert_eq!(
        instance.instance_lifecycle(),
        Some(&InstanceLifecycleType::Spot)
    );
    let tags = tags_of(&sdk, &node.node_id).await;
    assert_eq!(tags["cost-centre"], "42");
    assert_eq!(tags["drover.dev/request"], request.request_id);
    assert!(tags.contains_key("Name"));
    let volume = instance.block_device_mappings()[0]
        .ebs()
        .unwrap()
        .volume_id()
        .unwrap();
    let volumes = sdk
        .describe_volumes()
        .volume_ids(volume)
        .send()
        .await
        .unwrap();
    let volume = &volumes.volumes()[0];
    let owner = volume
        .tags()
        .iter()
        .find(|tag| tag.key() == Some("drover.dev/owner"));
    assert_eq!(
        owner.and_then(|tag| tag.value()),
        Some(request.owner.as_str())
    );
    assert_eq!(volume.size(), Some(30));
    // moto keeps neither metadata options nor user data by default.
    if !bench.is_moto() {
        let options = instance.metadata_options().unwrap();
        assert_eq!(options.http_tokens(), Some(&HttpTokensState::Required));
        assert_eq!(
            bench.ec2().user_data(&node.node_id).unwrap().len(),
            16 * 1024
        );
        assert_eq!(
            (volume.volume_type().unwrap().as_str(), volume.encrypted()),
            ("gp3", Some(true))
        );
    }
}

async fn nodes_show_what_the_api_says(bench: Bench) {
    let (_, nodes) = bench.make(3, Value::Null).await;
    let zones: BTreeSet<&str> = nodes
        .iter()
        .map(|node| node.failure_domain.as_str())
        .collect();
    assert_eq!(
        zones.len(),
        3,
        "spread over the zones of the region: {zones:?}"
    );
    let id = nodes[0].node_id.clone();
    let node = until("the node runs", || async {
        bench
            .node(&id)
            .await
            .filter(|node| node.phase() == NodePhase::Running)
    })
    .await;
    assert_eq!(
        node.provider_id,
        format!("aws:///{}/{id}", node.failure_domain)
    );
    assert_eq!(node.node_class, "t3.micro");
    assert_eq!(node.id, nodes[0].id);
    assert!(node.create_time.is_some());
    let kinds: BTreeSet<AddressType> = node
        .addresses
        .iter()
        .map(drover_proto::common::v1::Address::r#type)
        .collect();
    assert!(
        kinds.contains(&AddressType::InternalIp),
        "{:?}",
        node.addresses
    );
    assert!(
        kinds.contains(&AddressType::InternalDns),
        "{:?}",
        node.addresses
    );
    let sdk = bench.sdk().await;
    sdk.stop_instances().instance_ids(&id).send().await.unwrap();
    until("it is seen as stopped", || async {
        bench
            .node(&id)
            .await
            .filter(|node| node.phase() == NodePhase::Stopped)
    })
    .await;
    sdk.terminate_instances()
        .instance_ids(&id)
        .send()
        .await
        .unwrap();
    until("it is seen as gone", || async {
        bench.node(&id).await.is_none().then_some(())
    })
    .await;
    bench.remove(&nodes[1]).await;
    assert_eq!(bench.nodes().await.len(), 1);
}

async fn a_request_is_recognised_after_a_restart(bench: Bench) {
    let (request, nodes) = bench.make(4, Value::Null).await;
    bench.restart().await;
    let again = bench.provision(&request).await.unwrap();
    let mut ids: Vec<String> = again
        .nodes
        .iter()
        .map(|node| node.node_id.clone())
        .collect();
    let mut before: Vec<String> = nodes.iter().map(|node| node.node_id.clone()).collect();
    ids.sort();
    before.sort();
    // Found by the request tag, as moto does not support ClientToken.
    assert_eq!(ids, before);
}

async fn nodes_are_retagged(bench: Bench) {
    let (_, nodes) = bench.make(2, Value::Null).await;
    let node = &nodes[1];
    let request = bench.change(node).await;
    bench.client().update_node(request).await.unwrap();
    let changed = bench.node(&node.node_id).await.unwrap();
    assert_eq!(changed.role(), NodeRole::Standby);
    assert_eq!(
        changed.labels,
        [("stage".to_owned(), "prod".to_owned())].into()
    );
    assert_eq!(
        bench.node(&nodes[0].node_id).await.unwrap().role(),
        NodeRole::Active
    );
}

// moto's consoles have no output.
#[tokio::test(flavor = "multi_thread")]
async fn the_console_of_a_node_is_its_log() {
    let bench = Bench::emulator().await;
    let (_, nodes) = bench.make(1, Value::Null).await;
    let node = &nodes[0];
    until("it runs", || async {
        let node = bench.node(&node.node_id).await?;
        (node.phase() == NodePhase::Running).then_some(())
    })
    .await;
    let whole = bench.log(node, None).await;
    assert!(whole.starts_with("[    0.000000] Linux"), "{whole}");
    let last = bench.log(node, Some(1)).await;
    assert!(
        last.ends_with("login: ") && !last.contains("Linux"),
        "{last}"
    );
}

// moto terminates protected instances nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn termination_protection_is_respected() {
    let bench = Bench::emulator().await;
    let (_, nodes) = bench
        .make(1, json!({ "terminationProtection": true }))
        .await;
    let id = &nodes[0].node_id;
    let error = bench.deprovision(&nodes[0]).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Protected, "{error:?}");
    assert!(
        error.message().contains("--no-disable-api-termination"),
        "{error}"
    );
    assert!(bench.node(id).await.is_some(), "it was left alone");
    let off = aws_sdk_ec2::types::AttributeBooleanValue::builder()
        .value(false)
        .build();
    bench
        .sdk()
        .await
        .modify_instance_attribute()
        .instance_id(id)
        .disable_api_termination(off)
        .send()
        .await
        .unwrap();
    bench.remove(&nodes[0]).await;
}

async fn launch_templates_say_the_rest(bench: Bench) {
    let sdk = bench.sdk().await;
    let images = sdk.describe_images().owners("amazon").send().await.unwrap();
    let image = images
        .images()
        .iter()
        .find(|image| {
            image
                .architecture()
                .is_some_and(|arch| arch.as_str() == "x86_64")
        })
        .and_then(|image| image.image_id())
        .unwrap();
    sdk.create_launch_template()
        .launch_template_name("base")
        .launch_template_data(
            aws_sdk_ec2::types::RequestLaunchTemplateData::builder()
                .image_id(image)
                .instance_type(InstanceType::T3Medium)
                .build(),
        )
        .send()
        .await
        .unwrap();
    let (_, nodes) = bench
        .make(
            1,
            json!({ "launchTemplate": { "name": "base", "version": "$Latest" } }),
        )
        .await;
    assert_eq!(nodes[0].node_class, "t3.medium");
    let unknown = bench
        .request(1, json!({ "launchTemplate": { "name": "nobodys" } }))
        .await;
    let error = bench.refused(&unknown).await;
    assert_eq!(
        error.fields()[0].field,
        "group.properties.launchTemplate",
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_chooses_the_smallest_type_and_arm_types_get_their_image() {
    let bench = Bench::emulated_with(Ec2Settings::default(), |settings| {
        settings.instance_type = String::new();
        settings.image = "debian".to_owned();
    })
    .await;
    let (_, nodes) = bench.make(1, json!({ "memory": 3 })).await;
    assert!(
        ["t3.medium", "t2.medium"].contains(&nodes[0].node_class.as_str()),
        "{}",
        nodes[0].node_class
    );
    bench.make(1, json!({ "instanceType": "t4g.small" })).await;
    let sdk = bench.sdk().await;
    let described = sdk.describe_instances().send().await.unwrap();
    let architectures: BTreeSet<String> = described
        .reservations()
        .iter()
        .flat_map(aws_sdk_ec2::types::Reservation::instances)
        .filter_map(|instance| Some(instance.architecture()?.as_str().to_owned()))
        .collect();
    assert!(architectures.contains("arm64"), "{architectures:?}");
    let newest = sdk
        .describe_images()
        .owners("136693071363")
        .send()
        .await
        .unwrap();
    let newest = newest
        .images()
        .iter()
        .filter(|image| {
            image
                .architecture()
                .is_some_and(|arch| arch.as_str() == "x86_64")
        })
        .max_by_key(|image| image.creation_date())
        .unwrap();
    let used = described
        .reservations()
        .iter()
        .flat_map(aws_sdk_ec2::types::Reservation::instances)
        .any(|instance| instance.image_id() == newest.image_id());
    assert!(used, "the newest image of the pattern");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_goes_elsewhere_and_the_rest_is_told() {
    let mut settings = Ec2Settings::default();
    settings.common.capacity = [
        ("eu-central-1a", 2),
        ("eu-central-1b", 1),
        ("eu-central-1c", 1),
    ]
    .map(|(zone, most)| (zone.to_owned(), most))
    .into();
    let bench = Bench::emulated(settings).await;
    let request = bench.request(6, Value::Null).await;
    let answer = bench.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 4, "{answer:?}");
    assert_eq!(answer.failures.len(), 2);
    for failure in &answer.failures {
        let error = drover_convert::error::from_rpc_status(failure.error.as_ref().unwrap());
        assert_eq!(error.reason(), Reason::NoCapacity, "{error:?}");
        assert!(
            error.metadata()["failure_domain"].starts_with("eu-central-1"),
            "{error:?}"
        );
    }
    assert_eq!(bench.ec2().machines().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_full_zone_go_nowhere_else_under_a_required_spread() {
    let mut settings = Ec2Settings::default();
    settings.common.capacity = [("eu-central-1c".to_owned(), 0)].into();
    let bench = Bench::emulated(settings).await;
    let mut request = bench.request(6, Value::Null).await;
    request.group.as_mut().unwrap().placement = Some(Placement {
        spread: vec![Spread {
            topology_key: "zone".to_owned(),
            max_skew: Some(1),
            when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
            max_per_domain: None,
            scope: SpreadScope::Group.into(),
        }],
        ..Placement::default()
    });
    let answer = bench.provision(&request).await.unwrap();
    let mut zones: Vec<&str> = answer
        .nodes
        .iter()
        .map(|node| node.failure_domain.as_str())
        .collect();
    zones.sort_unstable();
    // A second node in a zone would make a skew of two to the full zone.
    assert_eq!(zones, ["eu-central-1a", "eu-central-1b"]);
    assert_eq!(answer.failures.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_poll_reads_each_page_once() {
    let bench = Bench::emulated_with(Ec2Settings::default(), |settings| {
        settings.common.poll_interval_seconds = 0.2;
    })
    .await;
    bench.ec2().add_foreign(2500);
    let (_, nodes) = bench.make(3, Value::Null).await;
    until("all run", || async {
        let nodes = bench.nodes().await;
        nodes
            .iter()
            .all(|node| node.phase() == NodePhase::Running)
            .then_some(())
    })
    .await;
    bench.restart().await;
    bench.ec2().control().clear_requests();
    bench
        .ec2()
        .control()
        .wait_for("DescribeInstances", 30)
        .await;
    let requests = bench.ec2().control().requests();
    assert!(
        requests.iter().all(|request| [
            "DescribeInstances",
            "DescribeInstanceStatus",
            "DescribeAddresses",
            "GetCallerIdentity",
            "DescribeAvailabilityZones",
            "DescribeSubnets"
        ]
        .contains(&request.operation.as_str())),
        "watching reads and does nothing else"
    );
    let others = ["DescribeInstanceStatus", "DescribeAddresses"];
    let others = others.map(|operation| bench.ec2().control().count(operation));
    assert!(
        others[0] < 30 && others[1] <= 1,
        "{others:?} beside 30 pages"
    );
    // Pages of the first thirty nodes, regardless of later ones.
    let first_pages = requests
        .iter()
        .filter(|request| request.operation == "DescribeInstances")
        .take(30)
        .filter(|request| request.parameter("NextToken").is_none())
        .count();
    assert!(
        (9..=11).contains(&first_pages),
        "30 calls are 10 lists of 3 pages, not {first_pages}"
    );
    assert_eq!(nodes.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_chooses_no_type_with_accelerators_and_none_that_costs_more_than_it_must() {
    let bench = Bench::emulated_with(Ec2Settings::default(), |settings| {
        settings.instance_type = String::new();
    })
    .await;
    for (memory, class) in [(24, "r6i.xlarge"), (40, "r6i.2xlarge"), (16, "r6i.large")] {
        let (_, nodes) = bench.make(1, json!({ "memory": memory })).await;
        assert_eq!(nodes[0].node_class, class, "{memory} GiB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_made_where_the_account_puts_tags_into_the_metadata() {
    let bench = Bench::emulated(Ec2Settings {
        metadata_tags: "enabled".to_owned(),
        ..Ec2Settings::default()
    })
    .await;
    bench.make(1, Value::Null).await;
}
