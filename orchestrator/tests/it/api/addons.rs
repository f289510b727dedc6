//! Addons of clusters: the secrets that they name, who may place them, and what is shown of them.

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{
    orchestrator::v1::{self as pb, SecretPurpose, secret_value::Value},
    platform::v1::{self as wire, AddonKind, ResourcePhase},
};
use drover_store::{Lane, backend::Txn, keys::Name};

use crate::api::{
    access::Door,
    support::{World, changed, document, fields, invalid, refused, registration, until},
};

async fn put(
    world: &World,
    purpose: SecretPurpose,
    name: &str,
    data: &[(&str, &str)],
) -> Result<(), tonic::Status> {
    let data = data.iter().map(|(key, text)| {
        let value = Some(Value::Text((*text).to_owned()));
        ((*key).to_owned(), pb::SecretValue { value })
    });
    let request = pb::ApplySecretRequest {
        name: name.to_owned(),
        data: data.collect(),
        purpose: purpose.into(),
        ..Default::default()
    };
    world.secrets().apply_secret(request).await.map(drop)
}

async fn drop_secret(world: &World, name: &str) -> Result<(), tonic::Status> {
    let request = pb::DeleteSecretRequest {
        name: name.to_owned(),
    };
    world.secrets().delete_secret(request).await.map(drop)
}

/// A cluster with an OIDC provider whose client has its secret in `secret`.
fn signing(name: &str, platform: &str, secret: &str) -> pb::Cluster {
    changed(document(name, &[("db", 1)]), |spec| {
        let client = wire::OidcClient {
            id: "app".to_owned(),
            secret: secret.to_owned(),
            ..Default::default()
        };
        spec.addons = vec![pb::Addon {
            name: "auth".to_owned(),
            r#type: AddonKind::OidcProvider.into(),
            platform: platform.to_owned(),
            oidc_provider: Some(wire::OidcProvider {
                clients: vec![client],
                ..Default::default()
            }),
            ..Default::default()
        }];
    })
}

const FIELD: &str = "spec.addons[0].oidc_provider.clients[0].secret";

#[tokio::test]
async fn a_secret_that_an_addon_names_exists_suits_it_and_stays_as_long_as_it_is_named() {
    let world = World::new().await;
    let apply = |secret: &str| world.apply(signing("orders", "sim", secret));
    let missing = refused(apply("client").await, Reason::SecretNotFound);
    assert_eq!(fields(&missing), [FIELD]);
    put(
        &world,
        SecretPurpose::Probe,
        "client",
        &[("secret", "abc-0123456789")],
    )
    .await
    .unwrap();
    invalid(apply("client").await, FIELD);
    put(
        &world,
        SecretPurpose::Workload,
        "other",
        &[("key", "abc-0123456789")],
    )
    .await
    .unwrap();
    let without = invalid(apply("other").await, FIELD);
    assert!(!format!("{without:?}").contains("abc-0123456789"));
    put(
        &world,
        SecretPurpose::Workload,
        "right",
        &[("secret", "abc-0123456789")],
    )
    .await
    .unwrap();
    apply("right").await.unwrap();
    world.ready("orders").await;
    let held = || world.site.backend().addon_wanted("orders", "auth").unwrap();
    assert_eq!(held().secrets["right"].data["secret"], b"abc-0123456789");
    let used = refused(drop_secret(&world, "right").await, Reason::SecretInUse);
    assert!(used.message().contains("cluster/orders"), "{used:?}");
    // Another content is sent, and the key that is needed cannot be left out.
    put(
        &world,
        SecretPurpose::Workload,
        "right",
        &[("secret", "new-0123456789")],
    )
    .await
    .unwrap();
    until("it has the other content", async || {
        (held().secrets["right"].data["secret"] == b"new-0123456789").then_some(())
    })
    .await;
    let keyless = put(&world, SecretPurpose::Workload, "right", &[("other", "x")]).await;
    invalid(keyless, "data.secret");
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    drop_secret(&world, "right").await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn an_addon_is_shown_planned_and_told_of() {
    let world = World::new().await;
    let balanced = |port| {
        changed(document("orders", &[("db", 2)]), |spec| {
            spec.addons = vec![pb::Addon {
                name: "front".to_owned(),
                r#type: AddonKind::LoadBalancer.into(),
                platform: "sim".to_owned(),
                targets: vec!["db".to_owned()],
                port: Some(port),
                ..Default::default()
            }];
        })
    };
    world.apply(balanced(30_001)).await.unwrap();
    let status = world.ready("orders").await.status.unwrap();
    let front = &status.addons[0];
    assert_eq!(
        (front.name.as_str(), front.phase()),
        ("front", ResourcePhase::Ready)
    );
    assert_eq!(
        (front.kind(), front.target_count),
        (AddonKind::LoadBalancer, 2)
    );
    assert_eq!(front.endpoints[0].port, 30_001);
    assert!(front.resources.iter().all(|one| one.cluster_id == "orders"));
    let condition = status
        .conditions
        .iter()
        .find(|one| one.r#type == "AddonsReady");
    assert_eq!(condition.unwrap().status, Some(true));
    let preview = pb::ApplyClusterRequest {
        cluster: Some(balanced(30_002)),
        validate_only: true,
        ..Default::default()
    };
    let planned = world.clusters().apply_cluster(preview).await.unwrap();
    let actions = planned.into_inner().plan.unwrap().actions;
    let ensures = |one: &&pb::Action| one.kind() == pb::ActionKind::EnsureAddon;
    let ensures: Vec<_> = actions.iter().filter(ensures).collect();
    assert_eq!(ensures.len(), 1, "{actions:?}");
    assert_eq!(ensures[0].message, "load balancer front");
    let taken = world.apply(changed(balanced(30_001), |spec| {
        spec.addons.push(pb::Addon {
            name: "other".to_owned(),
            ..spec.addons[0].clone()
        });
    }));
    invalid(taken.await, "spec.addons[1].port");
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    until("it is removed", async || {
        let events = world.events("orders").await;
        let told = |reason: &str| events.iter().filter(|one| one.reason == reason).count();
        (told("AddonRemoved") == 1).then(|| assert_eq!(told("AddonReady"), 1))
    })
    .await;
    world.stop().await;
}

const RULES: &str = "
tokens:
  - {name: admin, token: admin-0123456789abcdef}
  - {name: dev, token: dev-0123456789abcdef}
bindings:
  - {role: admin, subjects: ['token:admin']}
  - {role: operator, subjects: ['token:dev'], clusters: ['orders*'], platforms: ['sim']}
";

#[tokio::test]
async fn who_may_place_nodes_on_a_platform_only_places_no_addons_elsewhere() {
    let door = Door::with(Default::default(), RULES).await;
    let site = crate::api::support::Site::new(Default::default()).await;
    door.world.sites.put("http://prod", site.channel());
    door.world.register("prod", "http://prod").await.unwrap();
    let put = put(
        &door.world,
        SecretPurpose::Workload,
        "orders-app",
        &[("secret", "abc-0123456789")],
    );
    put.await.unwrap();
    let apply = |name: &str, platform: &str, secret: &str| {
        let request = pb::ApplyClusterRequest {
            cluster: Some(signing(name, platform, secret)),
            ..Default::default()
        };
        let mut clusters = door.of("dev");
        async move { clusters.apply_cluster(request).await.map(drop) }
    };
    let elsewhere = refused(
        apply("orders-1", "prod", "").await,
        Reason::PermissionDenied,
    );
    assert_eq!(fields(&elsewhere), ["spec.addons[0].platform"]);
    refused(
        apply("orders-1", "sim", "theirs").await,
        Reason::PermissionDenied,
    );
    apply("orders-1", "sim", "orders-app").await.unwrap();
}

#[tokio::test]
async fn who_may_not_use_the_secret_of_an_addon_gets_it_through_nothing_else() {
    let door = Door::with(Default::default(), RULES).await;
    let stored = put(
        &door.world,
        SecretPurpose::Workload,
        "theirs",
        &[("secret", "abc-0123456789")],
    );
    stored.await.unwrap();
    let apply = |who: &str, cluster: pb::Cluster| {
        let request = pb::ApplyClusterRequest {
            cluster: Some(cluster),
            ..Default::default()
        };
        let mut clusters = door.of(who);
        async move { clusters.apply_cluster(request).await.map(drop) }
    };
    let theirs = signing("orders-1", "sim", "theirs");
    apply("admin", theirs.clone()).await.unwrap();
    let with = |change: fn(&mut pb::ClusterSpec)| changed(theirs.clone(), change);
    let denied = [
        with(|spec| {
            spec.addons.push(pb::Addon {
                name: "jump".to_owned(),
                r#type: AddonKind::JumpHost.into(),
                platform: "sim".to_owned(),
                targets: vec!["db".to_owned()],
                jump_host: Some(wire::JumpHost {
                    private_keys_secret: "theirs".to_owned(),
                    ..Default::default()
                }),
                ..Default::default()
            });
        }),
        with(|spec| {
            let of = pb::SecretKeyRef {
                name: "theirs".to_owned(),
                key: "secret".to_owned(),
            };
            spec.secrets.push(pb::TemplateSecret {
                name: "mine".to_owned(),
                secret_key_ref: Some(of),
            });
        }),
        // Other people would be told it.
        with(|spec| {
            let oidc = spec.addons[0].oidc_provider.as_mut().unwrap();
            oidc.clients[0].redirect_uris = vec!["https://elsewhere.example/".to_owned()];
        }),
    ];
    for cluster in denied {
        let error = apply("dev", cluster).await;
        let error = refused(error, Reason::PermissionDenied);
        assert!(!format!("{error:?}").contains("abc-0123456789"));
    }
    let larger = with(|spec| spec.groups[0].size = Some(2));
    apply("dev", larger).await.unwrap();
    door.stop().await;
}

#[tokio::test]
async fn as_many_nodes_and_addons_as_there_may_be_are_rebound() {
    let settings = SimulatedSettings {
        uid: Some("one".to_owned()),
        ..SimulatedSettings::default()
    };
    let world = World::with(settings).await;
    let full = changed(document("orders", &[("db", 45)]), |spec| {
        let addons = (0..32).map(|at| pb::Addon {
            name: format!("front-{at}"),
            r#type: AddonKind::LoadBalancer.into(),
            platform: "sim".to_owned(),
            targets: vec!["db".to_owned()],
            port: Some(30_001 + at),
            ..Default::default()
        });
        spec.addons = addons.collect();
    });
    world.apply(full).await.unwrap();
    world.ready("orders").await;
    world.site.backend().set_uid("two");
    let request = pb::RegisterPlatformRequest {
        rebind_uid: Some("two".into()),
        ..registration("sim", "http://sim")
    };
    world.platforms().register_platform(request).await.unwrap();
    let status = world.ready("orders").await.status.unwrap();
    assert_eq!(status.addons.len(), 32);
    let events = world.events("orders").await;
    let told = |reason: &str| events.iter().filter(|one| one.reason == reason).count();
    assert_eq!((told("PlatformRebound"), told("AddonRemoved")), (1, 0));
    assert_eq!(told("AddonReady"), 32, "none was made again");
    world.stop().await;
}

#[tokio::test]
async fn an_addon_whose_secret_can_no_longer_be_read_can_be_removed() {
    let world = World::new().await;
    let stored = put(
        &world,
        SecretPurpose::Workload,
        "client",
        &[("secret", "abc-0123456789")],
    );
    stored.await.unwrap();
    let signs = signing("orders", "sim", "client");
    world.apply(signs).await.unwrap();
    world.ready("orders").await;
    let damaged = Txn::default().put(Name::Secret("client".to_owned()).into(), "damaged");
    let backend = world.backend.upgrade().unwrap();
    backend.commit(damaged, Lane::Bulk).await.unwrap();
    drop(backend);
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    assert!(
        world
            .site
            .backend()
            .addon_wanted("orders", "auth")
            .is_none()
    );
    world.stop().await;
}
