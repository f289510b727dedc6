//! Placement grants: platforms, namespaces, node classes, properties and secrets, through every call that plans or
//! places nodes.

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::{ClassSettings, SimulatedSettings};
use drover_proto::{
    orchestrator::v1::{self as pb, plan_cluster_request::Subject},
    platform::v1::NetworkSpec,
};
use prost_types::{Struct, Value, value::Kind};
use serde_json::json;
use tonic::Status;

use crate::api::{
    access::Door,
    support::{Site, changed, document, fields, refused},
};

const RULES: &str = "
tokens:
  - {name: admin, token: admin-0123456789abcdef}
  - {name: free, token: free-0123456789abcdef}
  - {name: dev, token: dev-0123456789abcdef}
  - {name: space, token: space-0123456789abcdef}
  - {name: small, token: small-0123456789abcdef}
  - {name: bound, token: bound-0123456789abcdef}
  - {name: looks, token: looks-0123456789abcdef}
bindings:
  - {role: admin, subjects: ['token:admin']}
  - {role: operator, subjects: ['token:free'], clusters: ['orders*']}
  - {role: operator, subjects: ['token:dev'], clusters: ['orders*'], platforms: ['dev*']}
  - {role: operator, subjects: ['token:space'], clusters: ['orders*'], namespaces: ['orders-*']}
  - {role: operator, subjects: ['token:small'], clusters: ['orders*'], node_classes: [small]}
  - {role: operator, subjects: ['token:bound'], clusters: ['orders*'], properties: {identity: ['orders-*'], '*': []}}
  - {role: viewer, subjects: ['token:looks'], clusters: ['orders*'], platforms: ['dev*']}
";

/// Two platforms with namespaces, classes, and a property that has the effect of a class.
async fn door() -> Door {
    let settings = |name: &str| SimulatedSettings {
        name: name.to_owned(),
        node_classes: ["small", "huge"]
            .map(|name| ClassSettings {
                name: name.to_owned(),
                ..Default::default()
            })
            .into(),
        properties_schema: Some(json!({
            "type": "object",
            "properties": {
                "namespace": {"type": "string"},
                "identity": {"type": "string"},
                "size": {"type": "string", "x-drover-node-class": true},
            },
        })),
        ..SimulatedSettings::default()
    };
    let door = Door::with(SimulatedSettings::default(), RULES).await;
    for name in ["dev", "prod"] {
        let site = Site::new(settings(name)).await;
        let endpoint = format!("http://{name}");
        door.world.sites.put(&endpoint, site.channel());
        door.world.register(name, &endpoint).await.unwrap();
        // The nodes live as long as the site does.
        std::mem::forget(site);
    }
    door
}

fn properties(of: &[(&str, &str)]) -> Option<Struct> {
    let text = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let fields = of
        .iter()
        .map(|(name, value)| ((*name).to_owned(), text(value)));
    (!of.is_empty()).then(|| Struct {
        fields: fields.collect(),
    })
}

fn choice(platform: &str, class: &str, of: &[(&str, &str)]) -> pb::PlatformChoice {
    pb::PlatformChoice {
        name: platform.to_owned(),
        node_class: (!class.is_empty()).then(|| class.to_owned()),
        properties: properties(of),
        ..Default::default()
    }
}

/// A cluster with a single group and this choice.
fn at(name: &str, choice: pb::PlatformChoice) -> pb::Cluster {
    changed(document(name, &[("db", 1)]), |spec| {
        spec.platforms.clear();
        spec.groups[0].platforms = vec![choice];
    })
}

fn denied<T: std::fmt::Debug>(answer: Result<T, Status>, what: &str) -> Vec<String> {
    fields(&refused_for(answer, what))
}

fn refused_for<T: std::fmt::Debug>(answer: Result<T, Status>, what: &str) -> Status {
    match answer {
        Ok(answer) => panic!("{what} was allowed: {answer:?}"),
        answer => refused(answer, Reason::PermissionDenied),
    }
}

const PLATFORM: &str = "spec.groups[0].platforms[0]";

fn field(rest: &str) -> String {
    format!("{PLATFORM}{rest}")
}

async fn apply(
    door: &Door,
    who: &str,
    cluster: pb::Cluster,
    validate_only: bool,
) -> Result<pb::ApplyClusterResponse, Status> {
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        validate_only,
        ..Default::default()
    };
    let answer = door.of(who).apply_cluster(request).await;
    answer.map(tonic::Response::into_inner)
}

async fn plan(door: &Door, who: &str, subject: Subject) -> Result<pb::PlanClusterResponse, Status> {
    let request = pb::PlanClusterRequest {
        subject: Some(subject),
        ..Default::default()
    };
    let answer = door.of(who).plan_cluster(request).await;
    answer.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn every_grant_places_what_it_names_and_is_refused_the_rest_with_its_field() {
    let door = door().await;
    let inside = [("namespace", "orders-eu"), ("identity", "orders-db")];
    let places = [
        ("as it is named", choice("dev", "small", &inside)),
        ("on another platform", choice("prod", "small", &inside)),
        (
            "in another namespace",
            choice("dev", "small", &[("namespace", "kube-system"), inside[1]]),
        ),
        (
            "in whichever namespace",
            choice("dev", "small", &inside[1..]),
        ),
        ("of another class", choice("dev", "huge", &inside)),
        ("of whichever class", choice("dev", "", &inside)),
        (
            "of another class by another word",
            choice("dev", "small", &[inside[0], inside[1], ("size", "huge")]),
        ),
        (
            "with another identity",
            choice("dev", "small", &[inside[0], ("identity", "admin")]),
        ),
    ];
    let none = String::new;
    // The expected violation of each placement above; empty if there is none.
    let rows = [
        ("free", std::array::from_fn(|_| none())),
        (
            "dev",
            std::array::from_fn(|at| if at == 1 { field("") } else { none() }),
        ),
        (
            "space",
            std::array::from_fn(|at| match at {
                2 | 3 => field(".properties.namespace"),
                _ => none(),
            }),
        ),
        (
            "small",
            std::array::from_fn(|at| match at {
                4 => field(".node_class"),
                5 => "spec.node_class".to_owned(),
                6 => field(".properties.size"),
                _ => none(),
            }),
        ),
        (
            "bound",
            std::array::from_fn::<String, 8, _>(|at| match at {
                3 => none(),
                7 => field(".properties.identity"),
                _ => field(".properties.namespace"),
            }),
        ),
    ];
    for (who, row) in rows {
        for ((what, choice), wanted) in places.iter().zip(row) {
            let cluster = || at("orders-new", choice.clone());
            let label = format!("{who}: {what}");
            let answers = [
                apply(&door, who, cluster(), true).await.map(drop),
                plan(&door, who, Subject::Cluster(cluster()))
                    .await
                    .map(drop),
            ];
            for answer in answers {
                if wanted.is_empty() {
                    answer.unwrap_or_else(|status| panic!("{label}: {status:?}"));
                } else {
                    let fields = denied(answer, &label);
                    assert!(fields.contains(&wanted), "{label}: {wanted} in {fields:?}");
                }
            }
            if !wanted.is_empty() {
                denied(apply(&door, who, cluster(), false).await, &label);
                assert!(door.world.get("orders-new").await.is_err(), "{label}");
            }
        }
    }
    door.stop().await;
}

#[tokio::test]
async fn on_a_platform_that_has_not_answered_yet_no_property_may_choose_a_class() {
    let door = door().await;
    door.world.register("late", "http://late").await.unwrap();
    for (who, class, of, wanted) in [
        ("free", "small", &[("size", "huge")][..], None),
        ("small", "small", &[], None),
        (
            "small",
            "small",
            &[("size", "huge")],
            Some(".properties.size"),
        ),
        ("small", "huge", &[], Some(".node_class")),
        ("space", "small", &[], Some(".properties.namespace")),
    ] {
        let answer = apply(&door, who, at("orders", choice("late", class, of)), true).await;
        match wanted {
            Some(wanted) => assert_eq!(denied(answer, who), [field(wanted)], "{who}"),
            None => drop(answer.unwrap_or_else(|status| panic!("{who}: {status:?}"))),
        }
    }
    door.stop().await;
}

#[tokio::test]
async fn what_somebody_else_has_placed_stays_and_is_changed_only_by_who_may_place_it() {
    let door = door().await;
    let space = [("namespace", "shared")];
    let placed = || at("orders", choice("prod", "small", &space));
    apply(&door, "admin", placed(), false).await.unwrap();
    door.world.ready("orders").await;

    // Changes without a new placement are permitted: the same platform by the same choice.
    let grown = || changed(placed(), |spec| spec.groups[0].size = Some(2));
    apply(&door, "dev", grown(), false).await.unwrap();
    let scale = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size: Some(1),
        ..Default::default()
    };
    door.of("dev").scale_group(scale).await.unwrap();
    let restart = pb::RestartGroupRequest {
        cluster: "orders".into(),
        ..Default::default()
    };
    door.of("dev").restart_group(restart).await.unwrap();

    // A choice that differs in anything is a new placement, and so is the same choice in another group.
    for (what, cluster, wanted) in [
        (
            "another class",
            at("orders", choice("prod", "huge", &space)),
            field(""),
        ),
        (
            "another property",
            at(
                "orders",
                choice("prod", "small", &[space[0], ("identity", "admin")]),
            ),
            field(""),
        ),
        (
            "another group",
            changed(placed(), |spec| {
                let mut more = spec.groups[0].clone();
                more.name = "more".to_owned();
                spec.groups.push(more);
            }),
            "spec.groups[1].platforms[0]".to_owned(),
        ),
    ] {
        let fields = denied(apply(&door, "dev", cluster, false).await, what);
        assert_eq!(fields, [wanted], "{what}");
    }

    // Nor does an undo place a group that was removed meanwhile.
    let moved = at("orders", choice("dev", "small", &space));
    apply(&door, "admin", moved, false).await.unwrap();
    let undo = || pb::UndoClusterRequest {
        name: "orders".into(),
        ..Default::default()
    };
    let answer = door.of("dev").undo_cluster(undo()).await;
    assert_eq!(denied(answer, "undo"), [field("")]);
    let answer = plan(&door, "dev", Subject::Undo(undo())).await;
    assert_eq!(denied(answer, "a plan of it"), [field("")]);
    door.of("free").undo_cluster(undo()).await.unwrap();
    door.stop().await;
}

#[tokio::test]
async fn infrastructure_and_nodes_that_are_taken_over_are_placed_too() {
    let door = door().await;
    let cluster = changed(at("orders", choice("dev", "small", &[])), |spec| {
        spec.infrastructure = vec![pb::Infrastructure {
            platform: "prod".to_owned(),
            network: Some(NetworkSpec::default()),
            ..Default::default()
        }];
    });
    let fields = denied(apply(&door, "dev", cluster, true).await, "a network");
    assert_eq!(fields, ["spec.infrastructure[0].platform"]);
    for (who, fits) in [
        ("free", true),
        ("dev", false),
        ("space", false),
        ("bound", false),
    ] {
        let request = pb::ApplyClusterRequest {
            cluster: Some(at(
                "orders-old",
                choice("dev", "small", &[("namespace", "orders-a")]),
            )),
            adopt: true,
            validate_only: true,
            ..Default::default()
        };
        let answer = door.of(who).apply_cluster(request).await;
        if fits {
            answer.unwrap();
        } else {
            refused_for(answer, who);
        }
    }
    let delete = pb::DeleteStorageRequest {
        platform: "prod".into(),
        id: "x".into(),
        owner: uuid::Uuid::now_v7().to_string(),
        cluster: "orders".into(),
        group: "db".into(),
        ordinal: Some(0),
    };
    let answer = door.platforms("dev").delete_storage(delete).await;
    assert_eq!(denied(answer, "storage"), ["platform"]);
    door.stop().await;
}

#[tokio::test]
async fn a_platform_that_no_grant_names_is_as_one_that_is_not_there() {
    let door = door().await;
    for who in ["dev", "looks"] {
        let mut platforms = door.platforms(who);
        let listed = platforms
            .list_platforms(pb::ListPlatformsRequest::default())
            .await
            .unwrap()
            .into_inner();
        let names: Vec<_> = listed.platforms.iter().map(|one| &*one.name).collect();
        assert_eq!(names, ["dev"], "{who}");
        let mut told = Vec::new();
        for name in ["prod", "stud"] {
            let get = pb::GetPlatformRequest {
                name: name.into(),
                ..Default::default()
            };
            let hosts = pb::ListHostsRequest {
                platform: name.into(),
                ..Default::default()
            };
            let storage = pb::ListStorageRequest {
                platform: Some(name.into()),
                ..Default::default()
            };
            let discovered = pb::ListDiscoveredClustersRequest {
                platform: Some(name.into()),
                ..Default::default()
            };
            let answers = [
                refused(platforms.get_platform(get).await, Reason::NotFound),
                refused(platforms.list_hosts(hosts).await, Reason::NotFound),
                refused(platforms.list_storage(storage).await, Reason::NotFound),
                refused(
                    platforms.list_discovered_clusters(discovered).await,
                    Reason::NotFound,
                ),
            ];
            told.push(answers.map(|status| status.message().replace(name, "X")));
        }
        assert_eq!(told[0], told[1], "{who}");
    }
    // Nor do suggestions contain its name.
    let mut told = Vec::new();
    for name in ["prod", "stud"] {
        let answer = apply(&door, "dev", at("orders", choice(name, "", &[])), true).await;
        let status = refused_for(answer, name);
        told.push(format!("{status:?}").replace(name, "X"));
    }
    assert_eq!(told[0], told[1]);
    let answer = apply(&door, "dev", at("orders", choice("dev-2", "", &[])), true).await;
    let status = refused(answer, Reason::Invalid);
    assert!(!format!("{status:?}").contains("prod"), "{status:?}");
    door.stop().await;
}

#[tokio::test]
async fn a_secret_is_named_by_who_may_and_for_its_purpose_whatever_else_a_grant_says() {
    use pb::SecretPurpose::{Platform, Probe, Workload};
    let door = door().await;
    for (purpose, word) in [(Workload, "work"), (Probe, "probe"), (Platform, "door")] {
        for scope in ["orders", "bank"] {
            let text = pb::secret_value::Value::Text("let-me-in-0123".to_owned());
            let value = pb::SecretValue { value: Some(text) };
            let request = pb::ApplySecretRequest {
                name: format!("{scope}-{word}"),
                data: [("key".to_owned(), value)].into(),
                purpose: purpose.into(),
                ..Default::default()
            };
            door.world.secrets().apply_secret(request).await.unwrap();
        }
    }
    let seeing = |secret: &str| {
        let key = pb::SecretKeyRef {
            name: secret.to_owned(),
            key: "key".to_owned(),
        };
        let place = choice("dev", "small", &[("namespace", "orders-eu")]);
        changed(at("orders", place), |spec| {
            spec.groups[0].secrets = vec![pb::TemplateSecret {
                name: "p".to_owned(),
                secret_key_ref: Some(key),
            }];
        })
    };
    for who in ["free", "dev", "space", "small"] {
        for (secret, wanted) in [
            ("orders-work", None),
            ("orders-probe", Some(Reason::Invalid)),
            ("orders-door", Some(Reason::Invalid)),
            ("bank-work", Some(Reason::PermissionDenied)),
            ("bank-probe", Some(Reason::PermissionDenied)),
            ("bank-door", Some(Reason::PermissionDenied)),
        ] {
            let answer = apply(&door, who, seeing(secret), true).await;
            match wanted {
                None => drop(answer.unwrap()),
                Some(reason) => {
                    let status = refused(answer, reason);
                    assert!(
                        !format!("{status:?}").contains("let-me-in"),
                        "{who} {secret}"
                    );
                }
            }
        }
    }
    door.stop().await;
}
