//! The common layer with failures and delays that only the simulated backend provides on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod addons;
mod placement;
mod reads;
mod world;

use std::{collections::BTreeSet, fs, time::Duration};

use drover_convert::error::{from_rpc_status, from_status};
use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::platform::v1::{
    DeprovisionRequest, Fence, FenceRequest, Node, NodePhase, ProvisionRequest, Storage,
};
use drover_testing::platform::requests;
use tokio::time::Instant;
use uuid::Uuid;
use world::World;

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
