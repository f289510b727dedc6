//! Rejected documents, with all field violations.

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::{ClassSettings, SimulatedSettings};
use drover_proto::orchestrator::v1 as pb;

use super::apply;
use crate::api::support::{World, changed, document, fields, invalid, reason, refused};

#[tokio::test]
async fn every_wrong_field_is_named_at_once() {
    let world = World::new().await;
    let mut wrong = changed(document("-bad-", &[("db", 1), ("db", 20_000)]), |spec| {
        spec.platforms[0].name = "smi".into();
        spec.groups[0].standby = Some(20_000);
        spec.groups[0].removal_order = 99;
        spec.expire_after = Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        });
        spec.max_in_flight = Some(0);
        spec.termination_grace_period = Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        });
    });
    wrong.labels.insert("-".into(), "x".into());
    let status = refused(world.apply(wrong).await, Reason::Invalid);
    let fields = fields(&status);
    for field in [
        "cluster.name",
        "labels[\"-\"]",
        "spec.groups[0].standby",
        "spec.groups[0].removal_order",
        "spec.groups[1].name",
        "spec.groups[1].size",
        "spec.max_in_flight",
        "spec.termination_grace_period",
    ] {
        assert!(
            fields.iter().any(|one| one == field),
            "{field} in {fields:?}"
        );
    }
    world.stop().await;
}

#[tokio::test]
async fn a_platform_that_is_not_registered_is_named_where_it_stands_with_what_was_meant() {
    let world = World::new().await;
    let misspelt = changed(document("orders", &[("a", 1), ("b", 1)]), |spec| {
        spec.platforms[0].name = "smi".into();
    });
    let status = refused(world.apply(misspelt).await, Reason::Invalid);
    assert_eq!(fields(&status), ["spec.platforms[0].name"]);
    assert!(
        status
            .message()
            .contains("no platform \"smi\" (registered: sim), did you mean \"sim\"?"),
        "{}",
        status.message()
    );
    let own = changed(document("orders", &[("a", 1), ("b", 1)]), |spec| {
        spec.groups[1].platforms = vec![pb::PlatformChoice {
            name: "other".into(),
            ..Default::default()
        }];
    });
    invalid(world.apply(own).await, "spec.groups[1].platforms[0].name");
    world.stop().await;
}

#[tokio::test]
async fn a_platform_that_will_be_registered_is_assumed_only_for_a_look() {
    let world = World::new().await;
    let later = changed(document("orders", &[("db", 1)]), |spec| {
        spec.platforms[0].name = "later".into();
    });
    let mut request = apply(later);
    request.assume_platforms = vec!["later".into()];
    invalid(
        world.clusters().apply_cluster(request.clone()).await,
        "assume_platforms",
    );
    request.validate_only = true;
    world.clusters().apply_cluster(request).await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn what_a_platform_cannot_do_is_refused_where_it_is_asked_for() {
    let class = ClassSettings {
        name: "large".into(),
        ..ClassSettings::default()
    };
    let settings = SimulatedSettings {
        node_classes: vec![class],
        properties_schema: Some(
            serde_json::json!({"type": "object", "properties": {"disk": {"type": "integer"}}}),
        ),
        ..SimulatedSettings::default()
    };
    let world = World::with(settings).await;
    let with_class = |class: &str| {
        changed(document("orders", &[("db", 1)]), |spec| {
            spec.groups[0].node_class = Some(class.to_owned());
        })
    };
    let status = invalid(
        world.apply(with_class("lrage")).await,
        "spec.groups[0].node_class",
    );
    assert!(
        status.message().contains("did you mean \"large\"?"),
        "{}",
        status.message()
    );
    world.apply(with_class("large")).await.unwrap();

    let version = changed(with_class("large"), |spec| {
        spec.platforms[0].version_requirement = ">=99".into();
    });
    invalid(
        world.apply(version).await,
        "spec.platforms[0].version_requirement",
    );
    let requirement = changed(with_class("large"), |spec| {
        spec.platforms[0].version_requirement = "what".into();
    });
    invalid(
        world.apply(requirement).await,
        "spec.platforms[0].version_requirement",
    );
    let domains = changed(with_class("large"), |spec| {
        spec.placement = Some(pb::Placement {
            failure_domains: vec!["moon".into()],
            ..Default::default()
        });
    });
    refused(world.apply(domains).await, Reason::Invalid);
    // Only the platform itself knows its properties.
    let text = prost_types::Value {
        kind: Some(prost_types::value::Kind::StringValue("big".into())),
    };
    let properties = changed(document("other", &[("db", 1)]), |spec| {
        spec.groups[0].node_class = Some("large".into());
        spec.properties = Some(prost_types::Struct {
            fields: [("disk".to_owned(), text)].into(),
        });
    });
    let status = invalid(world.apply(properties).await, "spec.properties.disk");
    assert!(status.message().contains("disk"), "{}", status.message());
    world.stop().await;
}

#[tokio::test]
async fn a_spec_is_at_most_128_kib() {
    let world = World::new().await;
    let big = |bytes: usize| {
        changed(document("orders", &[("db", 0)]), |spec| {
            let text = prost_types::Value {
                kind: Some(prost_types::value::Kind::StringValue("x".repeat(bytes))),
            };
            spec.attributes = Some(prost_types::Struct {
                fields: [("a".to_owned(), text)].into(),
            });
        })
    };
    world.apply(big(127 * 1024)).await.unwrap();
    for bytes in [128 * 1024, 3 * 1024 * 1024] {
        let status = invalid(world.apply(big(bytes)).await, "spec");
        assert!(status.message().contains("131072"), "{}", status.message());
    }
    world.stop().await;
}

#[tokio::test]
async fn a_name_under_which_others_have_nodes_is_refused() {
    let world = World::new().await;
    world
        .site
        .backend()
        .create_foreign("orders", "stranger")
        .unwrap();
    crate::api::support::until("the stranger is seen", async || {
        let answer = world.apply(document("orders", &[("db", 1)])).await;
        answer
            .err()
            .filter(|status| reason(status) == Reason::ClusterExists)
    })
    .await;
    world.apply(document("mine", &[("db", 1)])).await.unwrap();
    world.ready("mine").await;
    world.stop().await;
}
