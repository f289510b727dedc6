//! The common layer with failures and delays that only the simulated backend provides on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod addons;
mod reads;
mod world;

use std::{collections::BTreeSet, fs, time::Duration};

use drover_convert::error::{from_rpc_status, from_status};
use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::{
    Fault, HostSettings, Operation, SimulatedSettings,
};
use drover_proto::common::v1::{LabelOperator, LabelRequirement, LabelSelector};
use drover_proto::platform::v1::{
    DeprovisionRequest, Fence, FenceRequest, ListHostsRequest, NodePhase, ProvisionRequest,
    UnsatisfiableAction,
};
use drover_proto::platform::v1::{Node, Placement, ProvisionResponse, Spread, Storage};
use drover_testing::platform::requests;
use tokio::time::Instant;
use uuid::Uuid;
use world::{World, by_zone, placed, zones};

#[tokio::test(start_paused = true)]
async fn what_the_policy_does_not_allow_is_refused_with_its_field_when_it_is_tried_and_when_it_is_asked_for()
 {
    let world = World::new(SimulatedSettings::default()).await.with_policy(
        r#"{"properties": {"identity": ["nodes-*"], "groups": ["sg-1"], "template": []}}"#,
    );
    let asking = |properties: serde_json::Value, validate_only: bool| {
        let mut request = world.request("a", 0, 1);
        let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
        request.group.as_mut().unwrap().properties = Some(properties);
        request.validate_only = validate_only;
        request
    };
    for (properties, field) in [
        (serde_json::json!({"identity": "admin"}), "identity"),
        (serde_json::json!({"groups": ["sg-1", "sg-2"]}), "groups[1]"),
        (serde_json::json!({"groups": []}), "groups"),
        (serde_json::json!({"template": {"id": "lt-1"}}), "template"),
    ] {
        for validate_only in [true, false] {
            let request = asking(properties.clone(), validate_only);
            let patience = Duration::from_secs(10);
            let error = world
                .provision_within(&request, patience)
                .await
                .unwrap_err();
            assert_eq!(error.reason(), Reason::Invalid, "{error}");
            assert_eq!(error.fields()[0].field, format!("group.properties.{field}"));
            assert!(
                error.fields()[0]
                    .description
                    .contains("policy of the platform")
            );
        }
    }
    assert!(world.simulated().is_empty());
    let allowed = serde_json::json!({"identity": "nodes-a", "groups": ["sg-1"], "other": 1});
    let patience = Duration::from_secs(10);
    world
        .provision_within(&asking(allowed, false), patience)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_create_starts_after_the_deadline() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let request = world.request("a", 0, 3);
    let error = world
        .provision_within(&request, Duration::from_millis(900))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::DeadlineExceeded);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        world.simulated().is_empty(),
        "nothing was made after the deadline"
    );
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 3, "a repeat makes them");
}

#[tokio::test(start_paused = true)]
async fn no_create_starts_after_the_call_was_cancelled() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let request = world.request("a", 0, 3);
    let call = world.provision(&request);
    assert!(
        tokio::time::timeout(Duration::from_millis(500), call)
            .await
            .is_err()
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        world.simulated().is_empty(),
        "nothing was made after the cancellation"
    );
}

#[tokio::test(start_paused = true)]
async fn who_joins_a_call_gets_the_nodes_although_the_first_caller_gave_up() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let request = world.request("a", 0, 3);
    let first = world.provision_within(&request, Duration::from_millis(100));
    let second = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.provision(&request).await
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.unwrap_err().reason(), Reason::DeadlineExceeded);
    assert_eq!(second.unwrap().nodes.len(), 3);
    assert_eq!(world.simulated().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_answer_the_same_request_finds_its_nodes() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 5);
    world
        .simulated()
        .fail_next(Operation::Create, Fault::LoseAnswer);
    let error = world.provision(&request).await.unwrap_err();
    assert_eq!(
        error.reason(),
        Reason::Unavailable,
        "the outcome is unknown"
    );
    assert_eq!(world.simulated().len(), 5, "although they were made");
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 5);
    assert_eq!(world.simulated().doubles(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_node_was_removed_is_not_made_again_by_a_late_repeat() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 2);
    let nodes = world.provision(&request).await.unwrap().nodes;
    world
        .client()
        .deprovision(world.removal(&request, &nodes[0]))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 1);
    assert_eq!(answer.failures.len(), 1, "{answer:?}");
    assert_eq!(world.simulated().doubles(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn without_any_room_the_call_fails_and_with_some_it_says_which_slots_do() {
    let world = World::new(SimulatedSettings {
        capacity: Some(2),
        ..SimulatedSettings::default()
    })
    .await;
    let request = world.request("a", 0, 3);
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 2);
    let reasons: Vec<_> = answer
        .failures
        .iter()
        .map(|f| from_rpc_status(f.error.as_ref().unwrap()).reason())
        .collect();
    assert_eq!(reasons, vec![Reason::NoCapacity]);
    let full = world.request("b", 0, 2);
    assert_eq!(
        world.provision(&full).await.unwrap_err().reason(),
        Reason::NoCapacity
    );
    world.simulated().set_capacity(None);
    let again = world.provision(&request).await.unwrap();
    assert_eq!(
        (again.nodes.len(), again.failures.len()),
        (2, 1),
        "a failure that was told is final"
    );
    assert_eq!(
        world.provision(&full).await.unwrap().nodes.len(),
        2,
        "a refused call can be repeated"
    );
}

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

#[tokio::test(start_paused = true)]
async fn a_fence_gives_up_on_a_call_that_does_not_end() {
    let world = World::new(SimulatedSettings::default()).await;
    world
        .simulated()
        .fail_next(Operation::Create, Fault::Stall(Duration::from_secs(15)));
    let request = world.request("a", 0, 1);
    let fence = FenceRequest {
        expected_platform_uid: world.uid.clone(),
        fence: Some(Fence {
            epoch: 2,
            ..world.fence()
        }),
        ..FenceRequest::default()
    };
    let mut client = world.client();
    let raise = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let begin = Instant::now();
        let status = client.fence(fence.clone()).await.unwrap_err();
        assert_eq!(from_status(&status).reason(), Reason::DeadlineExceeded);
        assert_eq!(begin.elapsed().as_secs(), 10);
        client.fence(fence).await.expect("it has ended by now");
        assert_eq!(
            world.simulated().len(),
            1,
            "what the older call did is there"
        );
    };
    let (answer, ()) = tokio::join!(world.provision(&request), raise);
    assert_eq!(
        answer.unwrap().nodes.len(),
        1,
        "the call had begun before the fence"
    );
}

#[tokio::test(start_paused = true)]
async fn wrong_properties_are_named_without_their_values() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {"disks": {"type": "array", "items": {"type": "object", "properties": {"gb": {"type": "integer"}}}}},
        "additionalProperties": false,
    });
    let settings = SimulatedSettings {
        properties_schema: Some(schema),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let mut request = world.request("a", 0, 1);
    let text = |text: &str| prost_types::Value {
        kind: Some(prost_types::value::Kind::StringValue(text.to_owned())),
    };
    let object = |key: &str, value| prost_types::Struct {
        fields: [(key.to_owned(), value)].into(),
    };
    let disk = prost_types::value::Kind::StructValue(object("gb", text("s3cret")));
    let disks = prost_types::ListValue {
        values: vec![prost_types::Value { kind: Some(disk) }],
    };
    let disks = prost_types::Value {
        kind: Some(prost_types::value::Kind::ListValue(disks)),
    };
    request.group.as_mut().unwrap().properties = Some(object("disks", disks));
    let error = world.provision(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Invalid);
    assert_eq!(error.fields()[0].field, "group.properties.disks[0].gb");
    assert!(!format!("{error:?} {:?}", error.fields()).contains("s3cret"));
    assert!(world.simulated().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_deaths() {
    let run = || async {
        let settings = SimulatedSettings {
            seed: Some(7),
            deaths_per_hour: 1.0,
            boot_failure: 0.1,
            boot_jitter: Duration::from_secs(1),
            ..SimulatedSettings::default()
        };
        let world = World::new(settings).await;
        for first in [0, 100] {
            world
                .provision(&world.request("a", first, 100))
                .await
                .unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1800)).await;
        let mut dead: Vec<_> = world
            .simulated()
            .nodes()
            .into_iter()
            .filter(|n| n.phase() == NodePhase::Failed)
            .map(|n| n.node_id)
            .collect();
        dead.sort();
        dead
    };
    let dead = run().await;
    assert!(
        (60..140).contains(&dead.len()),
        "about a tenth and then 1 - e^-0.5 of the rest: {}",
        dead.len()
    );
    assert_eq!(dead, run().await);
}

#[tokio::test(start_paused = true)]
async fn errors_by_chance_never_make_two_nodes_of_a_slot() {
    let mut settings = SimulatedSettings {
        seed: Some(1),
        latency: Duration::from_millis(20),
        ..SimulatedSettings::default()
    };
    settings.errors.create.before = 0.3;
    settings.errors.create.after = 0.3;
    let world = World::new(settings).await;
    for first in 0..20 {
        let request = world.request("a", first * 3, 3);
        let attempts =
            (0..100_u32).map(|attempt| Duration::from_millis(u64::from(attempt % 7) * 5 + 1));
        let mut made = 0;
        for limit in attempts {
            if let Ok(answer) = world.provision_within(&request, limit).await {
                made = answer.nodes.len();
                break;
            }
        }
        assert_eq!(made, 3);
    }
    assert_eq!(world.simulated().doubles(), vec![]);
    assert_eq!(world.simulated().len(), 60);
}

#[tokio::test(start_paused = true)]
async fn storage_of_an_adopted_node_is_its_owner_s_wherever_the_state_file_ends() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state");
    let settings = SimulatedSettings {
        state_file: Some(file.clone()),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings.clone()).await;
    let mut request = world.request("a", 0, 1);
    request.storage = Some(Storage::default());
    let node = world.provision(&request).await.unwrap().nodes.remove(0);
    let former = node.slot.clone().unwrap().owner;
    let heir = Uuid::new_v4();
    let adoption = requests::adoption(&world.uid, world.fence(), &node, ("a", heir));
    world.client().update_node(adoption).await.unwrap();
    // The former owner's next node is independent of it.
    request.request_id = Uuid::new_v4().to_string();
    let beside = world.provision(&request).await.unwrap();
    assert_eq!(beside.nodes.len(), 1, "{beside:?}");
    let owners = |world: &World| {
        let storage = world.simulated().storage();
        let owner = |id: &str| {
            let nodes = world.simulated().nodes();
            let node = nodes.into_iter().find(|node| node.node_id == id);
            node.unwrap().slot.unwrap().owner
        };
        for (storage, node) in &storage {
            if let Some(node) = node {
                assert_eq!(storage.owner, owner(node));
            }
        }
        let found = storage
            .iter()
            .find(|(_, id)| *id == Some(node.node_id.clone()));
        found.unwrap().0.owner.clone()
    };
    assert_eq!(owners(&world), heir.to_string());
    world.server.shutdown().await;
    let whole = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let made = lines.iter().position(|line| line.starts_with(r#"{"put""#));
    let mut seen = BTreeSet::new();
    for end in made.unwrap() + 1..=lines.len() {
        fs::write(&file, lines[..end].join("\n") + "\n").unwrap();
        let world = World::new(settings.clone()).await;
        seen.insert(owners(&world));
        world.server.shutdown().await;
    }
    assert_eq!(seen, BTreeSet::from([former, heir.to_string()]));
}

#[tokio::test(start_paused = true)]
async fn whoever_adopts_into_a_place_with_kept_storage_has_both_and_goes_on_with_the_adopted() {
    let world = World::new(SimulatedSettings::default()).await;
    let wanted = || {
        let mut request = world.request("a", 7, 1);
        request.storage = Some(Storage::default());
        request
    };
    let make = async |request: &ProvisionRequest| {
        let answer = world.provision(request).await.unwrap();
        answer.nodes.into_iter().next().unwrap()
    };
    let retire = async |node: &Node| {
        let removal = DeprovisionRequest {
            retain_storage: true,
            ..requests::removal(&world.uid, world.fence(), node)
        };
        let answer = world.client().deprovision(removal).await.unwrap();
        while !world.simulated().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        answer.into_inner().retained_storage
    };
    let heir = wanted().owner.parse().unwrap();
    let earlier = retire(&make(&wanted()).await).await;
    let mut theirs = wanted();
    theirs.owner = Uuid::new_v4().to_string();
    let node = make(&theirs).await;
    let adoption = requests::adoption(&world.uid, world.fence(), &node, ("a", heir));
    let node = world.client().update_node(adoption).await.unwrap();
    // Not the earlier storage either, while a node with that ordinal exists.
    let error = world.provision(&wanted()).await.unwrap_err();
    assert!(error.message().contains("in use by node"), "{error}");
    let adopted = retire(&node.into_inner().node.unwrap()).await;
    assert_ne!(adopted, earlier);
    for _ in 0..2 {
        assert_eq!(retire(&make(&wanted()).await).await, adopted);
    }
    assert_eq!(world.simulated().storage().len(), 2);
}
