//! Zones and hosts: spread, named machines, labels, and inventories.

use std::time::Duration;

use drover_convert::error::from_rpc_status;
use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::{HostSettings, SimulatedSettings};
use drover_proto::{
    common::v1::{LabelOperator, LabelRequirement, LabelSelector},
    platform::v1::{
        ListHostsRequest, Node, Placement, ProvisionRequest, ProvisionResponse, Spread,
        UnsatisfiableAction,
    },
};

use super::world::{World, by_zone, placed, zones};

#[tokio::test(start_paused = true)]
async fn nodes_are_spread_over_those_already_placed() {
    let world = World::new(zones(&[("a", None), ("b", None), ("c", None)])).await;
    for (first, count) in [(0, 4), (4, 2), (6, 3)] {
        let mut request = world.request("x", first, count);
        placed(UnsatisfiableAction::DoNotSchedule, &mut request);
        world.provision(&request).await.unwrap();
    }
    let counts = by_zone(&world.simulated().nodes());
    assert_eq!(counts.into_values().collect::<Vec<_>>(), vec![3, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_named_machine_is_one_node_s_at_a_time_and_belongs_to_one_owner() {
    let host = |id: &str, zone: &str, by: &str| HostSettings {
        id: id.to_owned(),
        failure_domain: zone.to_owned(),
        claimed_by: by.to_owned(),
        ..HostSettings::default()
    };
    let world = World::new(SimulatedSettings {
        hosts: vec![
            host("m1", "a", ""),
            host("m2", "b", ""),
            host("m3", "a", "bob"),
        ],
        ..zones(&[("a", None), ("b", None)])
    })
    .await;
    let on = |request: &mut ProvisionRequest, hosts: &[&str]| {
        for (slot, host) in request.slots.iter_mut().zip(hosts) {
            slot.host_id = Some((*host).to_owned());
        }
    };
    let mut request = world.request("x", 0, 4);
    on(&mut request, &["m1", "m2", "m3", "m9"]);
    let answer = world.provision(&request).await.unwrap();
    let made: Vec<_> = answer
        .nodes
        .iter()
        .map(|node| {
            (
                node.host_id.as_deref().unwrap(),
                node.failure_domain.as_str(),
            )
        })
        .collect();
    assert_eq!(made, [("m1", "a"), ("m2", "b")]);
    let reasons: Vec<Reason> = answer
        .failures
        .iter()
        .map(|failure| from_rpc_status(failure.error.as_ref().unwrap()).reason())
        .collect();
    assert_eq!(reasons, [Reason::HostClaimed, Reason::HostNotFound]);

    let mut other = world.request("y", 0, 1);
    on(&mut other, &["m1"]);
    let error = world.provision(&other).await.unwrap_err();
    assert_eq!(error.reason(), Reason::HostClaimed);
    assert!(error.message().contains("cluster x"), "{error}");
    // Hosts are only used if they are requested by name.
    let plain = world.provision(&world.request("z", 0, 3)).await.unwrap();
    assert!(plain.nodes.iter().all(|node| node.host_id.is_none()));
}

#[tokio::test(start_paused = true)]
async fn machines_are_chosen_by_their_labels_and_spread() {
    let host = |id: &str, zone: &str, disk: &str| HostSettings {
        id: id.to_owned(),
        failure_domain: zone.to_owned(),
        labels: [("disk".to_owned(), disk.to_owned())].into(),
        ..HostSettings::default()
    };
    let world = World::new(SimulatedSettings {
        hosts: vec![
            host("a1", "a", "ssd"),
            host("a2", "a", "ssd"),
            host("a3", "a", "hdd"),
            host("b1", "b", "ssd"),
        ],
        ..zones(&[("a", None), ("b", None)])
    })
    .await;
    let select = |request: &mut ProvisionRequest, operator: LabelOperator| {
        let requirement = LabelRequirement {
            key: "disk".to_owned(),
            operator: operator.into(),
            values: vec!["hdd".to_owned()],
        };
        request.group.as_mut().unwrap().placement = Some(Placement {
            selector: Some(LabelSelector {
                match_expressions: vec![requirement],
                ..LabelSelector::default()
            }),
            ..Placement::default()
        });
    };
    let hosts = |nodes: &[Node]| {
        let hosts = nodes.iter().filter_map(|node| node.host_id.clone());
        hosts.collect::<std::collections::BTreeSet<_>>()
    };
    let mut two = world.request("x", 0, 2);
    select(&mut two, LabelOperator::NotIn);
    let made = world.provision(&two).await.unwrap();
    assert_eq!(hosts(&made.nodes), ["a1", "b1"].map(str::to_owned).into());
    let mut more = world.request("x", 2, 2);
    select(&mut more, LabelOperator::NotIn);
    let made = world.provision(&more).await.unwrap();
    assert_eq!(hosts(&made.nodes), ["a2".to_owned()].into());
    let failed = from_rpc_status(made.failures[0].error.as_ref().unwrap());
    assert_eq!(failed.reason(), Reason::NoCapacity, "{failed}");
    let mut slow = world.request("y", 0, 1);
    select(&mut slow, LabelOperator::In);
    let made = world.provision(&slow).await.unwrap();
    assert_eq!(hosts(&made.nodes), ["a3".to_owned()].into());
    // Without hosts that have labels, selection by labels is refused.
    let plain = World::new(SimulatedSettings::default()).await;
    let mut request = plain.request("x", 0, 1);
    select(&mut request, LabelOperator::In);
    let error = plain.provision(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CapabilityMissing);
}

#[tokio::test(start_paused = true)]
async fn hosts_of_an_inventory_are_claimed_whole_and_a_shortage_names_what_is_short() {
    let host = |id: &str, rack: &str, unusable: &str| HostSettings {
        id: id.to_owned(),
        labels: [("rack".to_owned(), rack.to_owned())].into(),
        unusable: unusable.to_owned(),
        ..HostSettings::default()
    };
    let world = World::new(SimulatedSettings {
        inventory: true,
        hosts: vec![
            host("a1", "a", ""),
            host("a2", "a", ""),
            host("b1", "b", ""),
            host("c1", "c", "Secret c1-networkdata is missing"),
        ],
        ..SimulatedSettings::default()
    })
    .await;
    let ask = |first: u32, count: u32| {
        let mut request = world.request("x", first, count);
        request.group.as_mut().unwrap().placement = Some(Placement {
            spread: vec![Spread {
                topology_key: "rack".to_owned(),
                max_per_domain: Some(1),
                ..Spread::default()
            }],
            ..Placement::default()
        });
        request
    };
    let refused = |answer: Result<ProvisionResponse, drover_core::Error>| {
        let error = answer.unwrap_err();
        assert_eq!(error.reason(), Reason::NoCapacity);
        error.message().to_owned()
    };
    let three = world.provision(&ask(0, 3)).await;
    assert_eq!(
        refused(three),
        "free: 4 hosts; usable: 3 (c1: Secret c1-networkdata is missing); rack: 0 of 3 domains take no other node; \
         2 more hosts fit, 3 are wanted"
    );
    assert!(world.simulated().is_empty());
    let two = world.provision(&ask(0, 2)).await.unwrap();
    let hosts: Vec<_> = two
        .nodes
        .iter()
        .map(|node| node.host_id.clone().unwrap())
        .collect();
    assert_eq!(hosts, ["a1", "b1"]);
    let another = world.provision(&ask(2, 1)).await;
    assert_eq!(
        refused(another),
        "free: 2 hosts; usable: 1 (c1: Secret c1-networkdata is missing); rack: 2 of 3 domains take no other node; \
         0 more hosts fit, 1 is wanted"
    );
}

#[tokio::test(start_paused = true)]
async fn groups_ask_of_simulated_hosts_what_they_ask_of_others_and_their_labels_outlive_a_restart()
{
    let directory = tempfile::tempdir().unwrap();
    let host = |id: &str, interface: &str, without: &str| HostSettings {
        id: id.to_owned(),
        addresses: [(interface.to_owned(), "192.0.2.7".to_owned())].into(),
        without_credentials: without.to_owned(),
        ..HostSettings::default()
    };
    let settings = SimulatedSettings {
        inventory: true,
        state_file: Some(directory.path().join("state")),
        hosts: vec![
            host("a1", "pxe", ""),
            host("a2", "oam", "Secret a2-bmc has no key password"),
            host("a3", "oam", ""),
        ],
        ..SimulatedSettings::default()
    };
    let world = World::new(settings.clone()).await;
    let ask = |properties: serde_json::Value| {
        let mut request = world.request("x", 0, 1);
        let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
        request.group.as_mut().unwrap().properties = Some(properties);
        request
    };
    let all = || {
        ask(serde_json::json!({
            "interfaces": ["oam"],
            "requireBmcCredentials": true,
            "hostLabels": {"tenant": "blue"},
        }))
    };
    let made = world.provision(&all()).await.unwrap();
    assert_eq!(made.nodes[0].host_id.as_deref(), Some("a3"));
    let unknown = ask(serde_json::json!({"colour": "blue"}));
    let error = world.provision(&unknown).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Invalid, "{error}");
    let topology = ask(serde_json::json!({"hostLabels": {"rack": "r1"}}));
    let error = world.provision(&topology).await.unwrap_err();
    let field = "group.properties.hostLabels[\"rack\"]";
    assert_eq!(error.fields()[0].field, field, "{error}");
    let error = world.provision(&all()).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NoCapacity, "{error}");
    let named = "(a1: it has no address on interface oam, and 1 more)";
    assert!(error.message().contains(named), "{error}");
    drop(world);

    let world = World::new(settings).await;
    let client =
        drover_client::PlatformClient::new(drover_client::in_process(world.server.routes()));
    let listed = client.list_hosts(ListHostsRequest::default(), Duration::from_secs(10));
    let hosts = listed.await.unwrap().hosts;
    let labelled: Vec<_> = hosts
        .iter()
        .filter(|host| host.labels.contains_key("tenant"))
        .collect();
    assert_eq!(labelled.len(), 1);
    assert_eq!(
        (
            labelled[0].id.as_str(),
            labelled[0].labels["tenant"].as_str()
        ),
        ("a3", "blue")
    );
}

#[tokio::test(start_paused = true)]
async fn a_required_spread_fails_where_a_preferred_one_goes_on() {
    let world = World::new(zones(&[("a", Some(1)), ("b", None)])).await;
    let mut preferred = world.request("x", 0, 4);
    placed(UnsatisfiableAction::ScheduleAnyway, &mut preferred);
    let answer = world.provision(&preferred).await.unwrap();
    assert_eq!(
        by_zone(&answer.nodes),
        [("a".to_owned(), 1), ("b".to_owned(), 3)].into()
    );
    let mut required = world.request("y", 0, 4);
    placed(UnsatisfiableAction::DoNotSchedule, &mut required);
    let answer = world.provision(&required).await.unwrap();
    assert_eq!(
        (answer.nodes.len(), answer.failures.len()),
        (1, 3),
        "a has no room, so b takes one more at most"
    );
}
