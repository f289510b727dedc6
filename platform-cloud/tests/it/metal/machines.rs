//! Machines as nodes: placement, attributes and lifecycle.

use std::time::Duration;

use drover_core::Reason;
use drover_emulators::{Settings as Common, metal::MetalSettings};
use drover_platform_cloud::drivers::metal::ProviderId;
use drover_proto::{
    common::v1::AddressType,
    platform::v1::{Node, NodePhase},
};
use serde_json::json;

use super::bench::{
    Bench, INTERNET, NAMED_MACHINE, PARTITION, PROJECT, SMALL, until, user_data, whole,
};

fn addresses(node: &Node, kind: AddressType) -> Vec<&str> {
    let of_kind = node
        .addresses
        .iter()
        .filter(|address| address.r#type() == kind);
    of_kind.map(|address| address.value.as_str()).collect()
}

#[tokio::test]
async fn a_machine_has_its_addresses_class_domain_and_provider_id() {
    let bench = Bench::new().await;
    let node = bench.make(1).await.remove(0);
    assert_eq!(node.provider_id, format!("metalstack://{}", node.node_id));
    let maintained = Bench::set(MetalSettings::default(), |settings| {
        settings.provider_id = ProviderId::Metal;
    })
    .await;
    let other = maintained.make(1).await.remove(0);
    assert_eq!(
        other.provider_id,
        format!("metal://{PARTITION}/{}", other.node_id)
    );
    assert_eq!(node.host_id.as_deref(), Some(node.node_id.as_str()));
    assert_eq!(
        (node.node_class.as_str(), node.failure_domain.as_str()),
        (SMALL, PARTITION)
    );
    let [private] = addresses(&node, AddressType::InternalIp)[..] else {
        panic!("{node:?}")
    };
    assert!(private.starts_with("10.0."), "{private}");
    let [public] = addresses(&node, AddressType::ExternalIp)[..] else {
        panic!("{node:?}")
    };
    assert!(public.starts_with("100.255.254."), "{public}");
    for kind in [AddressType::Hostname, AddressType::InternalDns] {
        assert_eq!(addresses(&node, kind), [node.id.as_str()]);
    }
    assert!(node.create_time.is_some());
    assert_eq!(bench.platform.kind, "metal");
    bench.assert_nothing_leaked("one machine").await;
}

#[tokio::test]
async fn it_is_pending_while_it_is_installed_and_says_how_far_it_is() {
    let bench = Bench::with(MetalSettings {
        common: Common {
            pending_delay: Duration::from_millis(600),
            ..Common::default()
        },
        ..MetalSettings::default()
    })
    .await;
    let node = bench.make(1).await.remove(0);
    assert_eq!(node.phase(), NodePhase::Pending);
    until("the installation shows", || async {
        let nodes = bench.discover(&bench.cluster).await.ok()?;
        nodes[0].message.contains("Installing").then_some(())
    })
    .await;
    let node = bench.until_phase(&node.node_id, NodePhase::Running).await;
    assert_eq!((node.ready, node.message.as_str()), (Some(true), ""));
}

#[tokio::test]
async fn power_liveliness_and_crash_loops_show_in_phase_and_message() {
    let bench = Bench::new().await;
    let nodes = bench.make(2).await;
    assert!(bench.metal.stop_by_hand(&nodes[0].node_id));
    let node = bench
        .until_phase(&nodes[0].node_id, NodePhase::Stopped)
        .await;
    assert!(node.message.contains("power on"), "{}", node.message);
    bench.metal.crash_loop_by_hand(&nodes[0].node_id);
    let node = bench
        .until_phase(&nodes[0].node_id, NodePhase::Failed)
        .await;
    assert!(node.message.contains("Crashed"), "{}", node.message);
    bench.metal.kill_by_hand(&nodes[1].node_id, false);
    until("the dead machine is not ready", || async {
        let nodes_now = bench.discover(&bench.cluster).await.ok()?;
        let node = nodes_now
            .into_iter()
            .find(|node| node.node_id == nodes[1].node_id)?;
        (node.ready == Some(false) && node.message.contains("not heard")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn user_data_keys_and_tags_reach_the_machine_and_user_data_nothing_else() {
    let bench = Bench::new().await;
    let properties = json!({
        "sshKeys": ["ssh-ed25519 AAAAC3Nz me"], "sshKey": "ssh-rsa AAAAB3Nz you", "tags": ["rack=mine", "plain"],
        "image": "debian-12.0", "instanceType": "c1-large-x86", "networks": [],
    });
    let mut request = bench.request_with("db", 1, &properties);
    request.bootstrap = Some(user_data("#cloud-config\nsecret: hunter2\n"));
    let node = bench.made_by(&request).await.remove(0);
    let sent = bench.metal.user_data(&node.node_id).unwrap();
    assert_eq!(sent, "I2Nsb3VkLWNvbmZpZwpzZWNyZXQ6IGh1bnRlcjIK");
    assert!(
        addresses(&node, AddressType::ExternalIp).is_empty(),
        "networks: none"
    );
    assert_eq!(node.node_class, "c1-large-x86");
    assert_eq!(node.labels.get("rack").map(String::as_str), Some("mine"));
    let requests = bench.metal.control().requests_of("machine.allocate");
    assert_eq!(requests[0].parameter("imageid"), Some("debian-12.0"));
    assert!(
        requests[0]
            .parameter("ssh_pub_keys")
            .unwrap()
            .contains("AAAAB3Nz")
    );
    assert!(
        requests[0]
            .parameter("placement_tags")
            .unwrap()
            .contains(&bench.cluster)
    );
    let seen = format!("{:?}", bench.discover("").await.unwrap());
    assert!(!seen.contains("hunter2") && !seen.contains(&sent));
}

#[tokio::test]
async fn the_control_plane_address_leads_every_other_machine_to_the_first_one() {
    let bench = Bench::new().await;
    let state = bench.ensure_whole(&whole()).await;
    let outputs = state.outputs.unwrap();
    let address = outputs.endpoint.clone().unwrap().host;
    let mut nodes = Vec::new();
    for (group, size) in [("control-plane", 3), ("workers", 1)] {
        let mut request = bench.request_with(group, size, &json!({}));
        for (ordinal, slot) in (0..).zip(&mut request.slots) {
            slot.ordinal = Some(ordinal);
        }
        request.infrastructure = vec![outputs.clone()];
        nodes.extend(bench.made_by(&request).await);
    }
    nodes.sort_by_key(|node| {
        (
            node.group.clone(),
            node.slot.as_ref().map(|slot| slot.index),
        )
    });
    for node in &nodes {
        assert_eq!(
            bench.metal.answers(&node.node_id, &address),
            [nodes[0].node_id.clone()],
            "from {}",
            node.name
        );
    }
    let requests = bench.metal.control().requests_of("machine.allocate");
    for request in requests {
        let networks = request.parameter("networks").unwrap().to_owned();
        assert!(
            networks.contains(&outputs.network_id) && networks.contains(INTERNET),
            "{networks}"
        );
    }
    bench.assert_no_machine_leaked("targets").await;
    bench.release_whole().await;
    bench.assert_all_gone("targets").await;
}

#[tokio::test]
async fn an_address_that_software_announces_is_on_no_machine() {
    let bench = Bench::new().await;
    let mut spec = whole();
    let properties = json!({"endpointBy": "software"});
    spec.properties = properties.as_object().map(drover_convert::value::to_struct);
    let outputs = bench.ensure_whole(&spec).await.outputs.unwrap();
    let mut request = bench.request_with("control-plane", 1, &json!({}));
    request.slots[0].ordinal = Some(0);
    request.infrastructure = vec![outputs.clone()];
    let node = bench.made_by(&request).await.remove(0);
    let address = outputs.endpoint.unwrap().host;
    assert_eq!(
        bench.metal.answers(&node.node_id, &address),
        Vec::<String>::new()
    );
    bench.assert_no_machine_leaked("announced").await;
    bench.release_whole().await;
    bench.assert_all_gone("announced").await;
}

#[tokio::test]
async fn machines_go_where_the_network_of_their_cluster_is() {
    let bench = Bench::set(MetalSettings::default(), |settings| {
        settings.partitions = vec!["fra-1".to_owned(), PARTITION.to_owned()];
        settings.partition = PARTITION.to_owned();
    })
    .await;
    let state = bench.ensure_whole(&whole()).await;
    let mut request = bench.request_with("workers", 4, &json!({}));
    request.infrastructure = state.outputs.into_iter().collect();
    for node in bench.made_by(&request).await {
        assert_eq!(node.failure_domain, PARTITION);
    }
    let group = request.group.as_mut().unwrap();
    group.placement = Some(drover_proto::platform::v1::Placement {
        failure_domains: vec!["fra-1".to_owned()],
        ..Default::default()
    });
    let error = bench.complaint(&request).await;
    assert_eq!(
        error.fields()[0].field,
        "group.placement.failure_domains[0]",
        "{error}"
    );
}

#[tokio::test]
async fn a_named_machine_is_taken_when_it_is_nobodys_and_ours_again_when_asked_again() {
    let mut bench = Bench::new().await;
    for host in [
        NAMED_MACHINE.to_owned(),
        format!("metalstack://{NAMED_MACHINE}"),
    ] {
        let request = bench.on_host(&host);
        let node = bench.made_by(&request).await.remove(0);
        assert_eq!(node.node_id, NAMED_MACHINE);
        bench.crash().await;
        assert_eq!(bench.made_by(&request).await[0].node_id, NAMED_MACHINE);
        let other = bench.on_host(&host);
        assert_eq!(bench.refusal(&other).await.reason(), Reason::HostClaimed);
        bench.deprovision(&bench.removal(&node)).await.unwrap();
        bench.until_gone(&node.node_id).await;
    }
    bench.assert_nothing_doubled("named");
}

#[tokio::test]
async fn two_who_want_the_same_machine_at_once_do_not_both_get_it() {
    let bench = Bench::new().await;
    let (one, two) = (bench.on_host(NAMED_MACHINE), bench.on_host(NAMED_MACHINE));
    let (first, second) = tokio::join!(bench.provision(&one), bench.provision(&two));
    let made: usize = [first, second]
        .into_iter()
        .map(|outcome| outcome.map_or(0, |answer| answer.nodes.len()))
        .sum();
    assert_eq!(made, 1);
    assert_eq!(bench.living("machine").len(), 1);
}

#[tokio::test]
async fn one_list_is_one_call_however_many_machines_there_are() {
    let bench = Bench::set(MetalSettings::default(), |settings| {
        settings.common.poll_interval_seconds = 3600.0;
        settings.common.pending_poll_interval_seconds = 3600.0;
    })
    .await;
    let foreign = bench.metal.add_foreign(PROJECT, 40);
    bench.make(3).await;
    bench.metal.control().clear_requests();
    let nodes = bench.discover("").await.unwrap();
    assert_eq!(nodes.len(), 43);
    assert!(
        nodes
            .iter()
            .filter(|node| node.slot.is_none())
            .all(|node| foreign.contains(&node.node_id))
    );
    let finds = bench.metal.control().count("machine.ipmi.find");
    assert!(finds <= 1, "{finds} calls for one list");
}
