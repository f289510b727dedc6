use std::time::Duration;

use drover_core::Reason;
use drover_proto::platform::v1::{
    Bootstrap, Capability, NodePhase, NodeRole, Placement, ProvisionRequest, SlotKey, Spread,
    Storage, UnsatisfiableAction,
};
use futures::future::join_all;
use prost_types::{Struct, Value, value::Kind};
use uuid::Uuid;

use super::{
    Subject,
    caller::index,
    fixture::{Fixture, handshake, ids, partition, refused, until},
};

pub(super) async fn every_slot_is_made_with_its_identity(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (request, nodes) = fixture.make(3).await;
    fixture.until_listed(&nodes).await;
    let ready = until(subject, "the nodes run", || async {
        let nodes = fixture.nodes().await;
        let runs = nodes.iter().all(|node| {
            node.phase() == NodePhase::Running
                && (!subject.becomes_ready || node.ready == Some(true))
        });
        runs.then_some(nodes)
    })
    .await;
    for node in nodes.iter().chain(&ready) {
        let slot = &request.slots[index(node) as usize];
        let key = SlotKey {
            owner: request.owner.clone(),
            request_id: request.request_id.clone(),
            index: slot.index,
        };
        assert_eq!(node.slot.as_ref(), Some(&key));
        assert_eq!(node.cluster_id, fixture.cluster);
        assert_eq!(
            (&node.id, &node.name, node.ordinal),
            (&slot.id, &slot.name, slot.ordinal)
        );
        assert_eq!(node.role(), NodeRole::Active);
        assert_eq!(node.group, "db");
        assert_eq!(node.store_id, fixture.store_id.to_string());
        assert_eq!(node.sequence, request.sequence);
        assert_eq!(node.spec_hash, request.spec_hash);
        assert_eq!(node.version, subject.version);
        assert!(!node.node_id.is_empty());
        assert!(
            !node.labels.keys().any(|key| key.starts_with("drover.dev/")),
            "own labels are not shown"
        );
    }
    assert_eq!(ids(&ready).len(), nodes.len(), "node ids are unique");
    fixture.clean().await;
}

pub(super) async fn the_same_request_again_answers_the_same_nodes(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (request, nodes) = fixture.make(3).await;
    for _ in 0..3 {
        let again = fixture
            .provision(&request)
            .await
            .expect("a repeat is accepted");
        partition(&request, &again);
        assert_eq!(ids(&again.nodes), ids(&nodes));
    }
    fixture.until_listed(&nodes).await;
    fixture.clean().await;
}

pub(super) async fn the_same_request_at_once_makes_one_set(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let request = fixture.request(3);
    let answers = join_all((0..8).map(|_| fixture.provision(&request))).await;
    let mut sets = Vec::new();
    let templates = handshake(subject).await.templates;
    for answer in answers {
        let answer = answer.expect("every caller gets an answer");
        partition(&request, &answer);
        let digest = &answer.template_digest;
        assert!(
            digest.is_empty() || templates.iter().any(|entry| entry.digest == *digest),
            "the template of an answer is listed"
        );
        sets.push(answer.nodes);
    }
    for set in &sets {
        assert_eq!(ids(set), ids(&sets[0]), "every caller gets the same nodes");
    }
    fixture.until_listed(&sets[0]).await;
    fixture.clean().await;
}

pub(super) async fn another_fingerprint_is_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (request, nodes) = fixture.make(2).await;
    let changes: [(&str, fn(&mut ProvisionRequest)); 6] = [
        ("owner", |request| {
            request.owner = Uuid::new_v4().to_string()
        }),
        ("cluster", |request| {
            request.cluster.as_mut().unwrap().id.push('x')
        }),
        ("group path", |request| {
            request.group.as_mut().unwrap().path.push('x')
        }),
        ("spec hash", |request| request.spec_hash.push('x')),
        ("slot id", |request| request.slots[0].id.push('x')),
        ("slot ordinal", |request| {
            request.slots[0].ordinal = Some(4711)
        }),
    ];
    for (what, change) in changes {
        let mut other = request.clone();
        change(&mut other);
        refused(
            fixture.provision(&other).await,
            Reason::RequestIdReused,
            what,
        );
    }
    if fixture.batch(3) > 2 {
        let mut more = fixture.request(3);
        more.request_id = request.request_id.clone();
        more.slots[..2].clone_from_slice(&request.slots);
        refused(
            fixture.provision(&more).await,
            Reason::RequestIdReused,
            "more slots",
        );
    }
    fixture.until_listed(&nodes).await;
    fixture.clean().await;
}

pub(super) async fn of_two_fingerprints_at_once_one_wins(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let one = fixture.request(2);
    let other = ProvisionRequest {
        spec_hash: "another".to_owned(),
        ..one.clone()
    };
    let (one, other) = tokio::join!(fixture.provision(&one), fixture.provision(&other));
    let (won, lost) = if one.is_ok() {
        (one, other)
    } else {
        (other, one)
    };
    refused(lost, Reason::RequestIdReused, "the second fingerprint");
    fixture
        .until_listed(&won.expect("one of them is accepted").nodes)
        .await;
    fixture.clean().await;
}

pub(super) async fn another_role_is_the_same_fingerprint(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let (mut request, nodes) = fixture.make(1).await;
    request.slots[0].role = NodeRole::Standby.into();
    let again = fixture
        .provision(&request)
        .await
        .expect("a promotion in between is no other request");
    assert_eq!(ids(&again.nodes), ids(&nodes));
    fixture.clean().await;
}

pub(super) async fn validate_only_makes_nothing(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let request = ProvisionRequest {
        validate_only: true,
        ..fixture.request(2)
    };
    let answer = fixture
        .provision(&request)
        .await
        .expect("a valid request is valid");
    assert!(answer.nodes.is_empty() && answer.failures.is_empty() && answer.unknown.is_empty());
    let wrong = ProvisionRequest {
        slots: Vec::new(),
        ..request
    };
    refused(fixture.provision(&wrong).await, Reason::Invalid, "no slots");
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

pub(super) async fn wrong_fields_are_named_and_nothing_is_made(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let wrongs: &[(&str, fn(&mut ProvisionRequest))] = &[
        ("fence", |request| request.fence = None),
        ("fence.store_id", |request| {
            request.fence.as_mut().unwrap().store_id = "store".to_owned()
        }),
        ("fence.epoch", |request| {
            request.fence.as_mut().unwrap().epoch = 0
        }),
        ("owner", |request| request.owner.clear()),
        ("owner", |request| request.owner = "me".to_owned()),
        ("request_id", |request| request.request_id = "1".to_owned()),
        ("sequence", |request| request.sequence = 0),
        ("slots", |request| request.slots.clear()),
        ("slots[0].index", |request| request.slots[0].index = None),
        ("slots[0].index", |request| request.slots[0].index = Some(1)),
        ("slots[0].id", |request| request.slots[0].id.clear()),
        ("slots[0].name", |request| {
            request.slots[0].name = "a name".to_owned()
        }),
        ("slots[0].ordinal", |request| {
            request.slots[0].ordinal = None
        }),
        ("slots[0].role", |request| request.slots[0].role = 0),
        ("cluster", |request| request.cluster = None),
        ("cluster.id", |request| {
            request.cluster.as_mut().unwrap().id = "a/b".to_owned()
        }),
        ("cluster.id", |request| {
            request.cluster.as_mut().unwrap().id = "x".repeat(41)
        }),
        ("group", |request| request.group = None),
        ("group.path", |request| {
            request.group.as_mut().unwrap().path.clear()
        }),
        ("group.path", |request| {
            request.group.as_mut().unwrap().path = "a//b".to_owned()
        }),
        ("group.path", |request| {
            request.group.as_mut().unwrap().path = "a/b/c/d/e/f/g/h/i".to_owned()
        }),
        ("spec_hash", |request| request.spec_hash.clear()),
        ("spec_hash", |request| request.spec_hash = "x".repeat(64)),
    ];
    for (field, make_wrong) in wrongs {
        let mut request = fixture.request(1);
        make_wrong(&mut request);
        let error = refused(fixture.provision(&request).await, Reason::Invalid, field);
        assert!(
            error.fields().iter().any(|wrong| wrong.field == *field),
            "{field} is named: {error:?}"
        );
    }
    let most = fixture
        .platform
        .limits
        .as_ref()
        .and_then(|limits| limits.max_batch)
        .unwrap_or(1);
    let mut request = fixture.request(1);
    let slot = request.slots[0].clone();
    request.slots = (0..=most)
        .map(|index| drover_proto::platform::v1::Slot {
            index: Some(index),
            id: format!("{}-{index}", slot.id),
            name: format!("{}-{index}", slot.name),
            ordinal: Some(index),
            ..slot.clone()
        })
        .collect();
    refused(
        fixture.provision(&request).await,
        Reason::Invalid,
        "more slots than max_batch",
    );
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

pub(super) async fn unknown_enum_values_are_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let wrongs: &[(&str, fn(&mut ProvisionRequest))] = &[
        ("slots[0].role", |request| request.slots[0].role = 77),
        ("group.placement.spread[0].when_unsatisfiable", |request| {
            spread(request).when_unsatisfiable = 77
        }),
        ("group.placement.spread[0].scope", |request| {
            spread(request).scope = -1
        }),
    ];
    for (field, make_wrong) in wrongs {
        let mut request = fixture.request(1);
        make_wrong(&mut request);
        let error = refused(fixture.provision(&request).await, Reason::Invalid, field);
        assert!(
            error.fields().iter().any(|wrong| wrong.field == *field),
            "{field} is named: {error:?}"
        );
    }
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

fn spread(request: &mut ProvisionRequest) -> &mut Spread {
    let placement = request
        .group
        .as_mut()
        .unwrap()
        .placement
        .insert(Placement::default());
    placement.spread.push(Spread {
        topology_key: "zone".to_owned(),
        ..Spread::default()
    });
    &mut placement.spread[0]
}

pub(super) async fn inexact_numbers_are_refused_with_their_path(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let number = Value {
        kind: Some(Kind::NumberValue(1e17)),
    };
    let inexact = Struct {
        fields: [("big".to_owned(), number)].into(),
    };
    let places: [(&str, fn(&mut ProvisionRequest, Struct)); 3] = [
        ("group.properties.big", |request, value| {
            request.group.as_mut().unwrap().properties = Some(value)
        }),
        ("group.attributes.big", |request, value| {
            request.group.as_mut().unwrap().attributes = Some(value)
        }),
        ("cluster.attributes.big", |request, value| {
            request.cluster.as_mut().unwrap().attributes = Some(value)
        }),
    ];
    for (field, put) in places {
        let mut request = fixture.request(1);
        put(&mut request, inexact.clone());
        let error = refused(fixture.provision(&request).await, Reason::Invalid, field);
        assert!(
            error.fields().iter().any(|wrong| wrong.field == field),
            "{field} is named: {error:?}"
        );
    }
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

pub(super) async fn what_needs_a_missing_capability_is_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    let needs: &[(Capability, fn(&mut ProvisionRequest))] = &[
        (Capability::SpreadRequired, |request| {
            spread(request).when_unsatisfiable = UnsatisfiableAction::DoNotSchedule.into();
        }),
        (Capability::SpreadPreferred, |request| {
            spread(request).when_unsatisfiable = UnsatisfiableAction::ScheduleAnyway.into();
        }),
        (Capability::FailureDomains, |request| {
            let domains = vec!["somewhere".to_owned()];
            request.group.as_mut().unwrap().placement = Some(Placement {
                failure_domains: domains,
                ..Placement::default()
            });
        }),
        (Capability::HostLabels, |request| {
            let selector = Some(drover_proto::common::v1::LabelSelector::default());
            request.group.as_mut().unwrap().placement = Some(Placement {
                selector,
                ..Placement::default()
            });
        }),
        (Capability::NamedHosts, |request| {
            request.slots[0].host_id = Some("host".to_owned())
        }),
        (Capability::Storage, |request| {
            request.storage = Some(Storage::default())
        }),
        (Capability::Bootstrap, |request| {
            request.bootstrap = Some(Bootstrap::default())
        }),
    ];
    for (capability, ask) in needs {
        if fixture.can(*capability) {
            continue;
        }
        let mut request = fixture.request(1);
        ask(&mut request);
        let name = capability.as_str_name();
        let error = refused(
            fixture.provision(&request).await,
            Reason::CapabilityMissing,
            name,
        );
        let said = error.metadata().get("capability").map(String::as_str);
        assert_eq!(
            said,
            name.strip_prefix("CAPABILITY_"),
            "the capability is named"
        );
    }
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

pub(super) async fn an_unknown_store_has_no_template(subject: &Subject) {
    let Some(store) = &subject.unknown_store else {
        return;
    };
    let fixture = Fixture::new(subject).await;
    let mut request = fixture.request(1);
    let cluster = request.cluster.as_mut().unwrap();
    cluster.store.clone_from(store);
    cluster.version = "1".to_owned();
    let error = refused(
        fixture.provision(&request).await,
        Reason::TemplateNotFound,
        "an unknown store",
    );
    assert!(
        error.message().contains(store),
        "the message names what was asked: {error:?}"
    );
    assert!(fixture.nodes().await.is_empty(), "nothing was made");
}

pub(super) async fn after_the_deadline_nothing_more_is_made(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    for micros in [1, 300, 1_000, 5_000, 20_000] {
        let request = fixture.request(3);
        let outcome = fixture
            .provision_within(&request, Duration::from_micros(micros))
            .await;
        // Nodes that are still being created belong to creates that started earlier; a repetition settles them.
        let again = fixture
            .provision(&request)
            .await
            .expect("a repeat is accepted");
        partition(&request, &again);
        assert!(
            again.failures.is_empty() && again.unknown.is_empty(),
            "{again:?}"
        );
        if let Ok(outcome) = outcome {
            assert_eq!(ids(&outcome.nodes), ids(&again.nodes));
        }
        let count = until(subject, "every slot has a node", || async {
            let nodes = fixture.nodes().await;
            let made_it = |slot: &SlotKey| slot.request_id == request.request_id;
            let count = nodes
                .iter()
                .filter(|node| node.slot.as_ref().is_some_and(made_it))
                .count();
            (count >= request.slots.len()).then_some(count)
        })
        .await;
        assert_eq!(count, request.slots.len(), "one node a slot");
    }
    fixture.clean().await;
}

pub(super) async fn a_cancelled_call_leaves_one_set_at_most(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    for polls in 0..8 {
        let request = fixture.request(2);
        {
            // Polled a few times, then dropped.
            let mut call = Box::pin(fixture.provision(&request));
            for _ in 0..polls {
                if futures::poll!(&mut call).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let again = fixture
            .provision(&request)
            .await
            .expect("a repeat is accepted");
        partition(&request, &again);
        assert_eq!(again.nodes.len(), request.slots.len());
    }
    let nodes = until(subject, "every slot has a node", || async {
        let nodes = fixture.nodes().await;
        (nodes.len() >= 8 * fixture.batch(2)).then_some(nodes)
    })
    .await;
    let mut slots: Vec<_> = nodes.into_iter().filter_map(|node| node.slot).collect();
    slots.sort_by(|a, b| (&a.request_id, a.index).cmp(&(&b.request_id, b.index)));
    let made = slots.len();
    slots.dedup();
    assert_eq!(slots.len(), made, "no slot has two nodes");
    fixture.clean().await;
}
