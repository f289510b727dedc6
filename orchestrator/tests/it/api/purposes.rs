//! Secrets can only be used for their purpose.

use bytes::Bytes;
use drover_core::Reason;
use drover_orchestrator::{Hooks, Orchestrator};
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{
    orchestrator::v1::{self as pb, SecretPurpose, bootstrap_source::Source, secret_value::Value},
    platform::v1::{self as wire, health_policy::Probe},
};
use prost::Message;

use crate::api::{
    access::Door,
    certs::{Authority, Wanted},
    support::{World, changed, document, invalid, open_again, refused, registration},
};

async fn put(
    world: &World,
    purpose: SecretPurpose,
    name: &str,
    data: &[(&str, &str)],
) -> Result<pb::ApplySecretResponse, tonic::Status> {
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
    let answer = world.secrets().apply_secret(request).await;
    answer.map(tonic::Response::into_inner)
}

async fn purpose(world: &World, name: &str) -> SecretPurpose {
    let request = pb::ListSecretsRequest {
        name: Some(name.to_owned()),
        ..Default::default()
    };
    let answer = world.secrets().list_secrets(request).await.unwrap();
    answer.into_inner().secrets[0].purpose()
}

fn key(name: &str, key: &str) -> pb::SecretKeyRef {
    pb::SecretKeyRef {
        name: name.to_owned(),
        key: key.to_owned(),
    }
}

/// A cluster whose templates see a key of a secret.
fn seeing(mut cluster: pb::Cluster, name: &str, of: &str) -> pb::Cluster {
    let spec = cluster.spec.as_mut().unwrap();
    spec.groups[0].secrets = vec![pb::TemplateSecret {
        name: "p".to_owned(),
        secret_key_ref: Some(key(name, of)),
    }];
    cluster
}

fn given(name: &str, of: &str) -> pb::Cluster {
    changed(document("orders", &[("db", 1)]), |spec| {
        spec.groups[0].bootstrap = Some(pb::BootstrapSource {
            source: Some(Source::SecretKey(key(name, of))),
            ..Default::default()
        });
    })
}

fn probing(ca: &str, own: &str) -> pb::Cluster {
    changed(document("orders", &[("db", 1)]), |spec| {
        let tls = wire::ProbeTls {
            ca_secret: ca.to_owned(),
            client_certificate_secret: own.to_owned(),
            ..Default::default()
        };
        spec.groups[0].health = Some(wire::HealthPolicy {
            probe: Some(Probe::Http(wire::HttpProbe {
                tls_settings: Some(tls),
                ..Default::default()
            })),
            ..Default::default()
        });
    })
}

fn guarded(secret: &str) -> pb::RegisterPlatformRequest {
    let mut request = registration("guarded", "http://guarded");
    let spec = request.platform.as_mut().unwrap().spec.as_mut().unwrap();
    spec.token_secret = secret.to_owned();
    request
}

const SEEN: &str = "spec.groups[0].secrets[0].secret_key_ref";
const GIVEN: &str = "spec.groups[0].bootstrap.secret_key";
const PROBED: &str = "spec.groups[0].health.http.tls_settings.client_certificate_secret";
const TOKEN: &str = "platform.spec.token_secret";

/// Creates a secret of each purpose, with content that suits all of them.
async fn prepare(world: &World) {
    let authority = Authority::new("ours");
    let (cert, tls) = authority.make(&Wanted::client("own", "spiffe://drover/orchestrator/a"));
    let data = [
        ("token", "let-me-in-0123"),
        ("ca.crt", &*authority.pem),
        ("tls.crt", &*cert),
        ("tls.key", &*tls),
    ];
    for (name, purpose) in [
        ("work", SecretPurpose::Workload),
        ("probe", SecretPurpose::Probe),
        ("door", SecretPurpose::Platform),
    ] {
        put(world, purpose, name, &data).await.unwrap();
    }
}

#[tokio::test]
async fn a_secret_is_named_for_its_own_purpose_only() {
    let world = World::new().await;
    prepare(&world).await;
    for (name, has) in [("probe", "probe"), ("door", "platform")] {
        let plain = document("orders", &[("db", 1)]);
        for (cluster, field) in [
            (seeing(plain, name, "token"), SEEN),
            (given(name, "token"), GIVEN),
        ] {
            let status = invalid(world.apply(cluster).await, field);
            for word in [name, has, "purpose: workload"] {
                assert!(status.message().contains(word), "{word}: {status:?}");
            }
            assert!(!format!("{status:?}").contains("let-me-in"), "{status:?}");
        }
    }
    for name in ["work", "door"] {
        let status = invalid(
            world.apply(probing(name, name)).await,
            &PROBED.replace("client_certificate", "ca"),
        );
        assert!(status.message().contains("purpose: probe"), "{status:?}");
    }
    for name in ["work", "probe"] {
        let answer = world.platforms().register_platform(guarded(name)).await;
        let status = invalid(answer, TOKEN);
        assert!(status.message().contains("purpose: platform"), "{status:?}");
    }
    // Each is accepted for its own purpose.
    world
        .apply(seeing(probing("probe", "probe"), "work", "token"))
        .await
        .unwrap();
    world
        .platforms()
        .register_platform(guarded("door"))
        .await
        .unwrap();
    world.stop().await;
}

#[tokio::test]
async fn the_key_of_a_probe_is_not_given_to_nodes_by_who_may_change_the_cluster() {
    let door = Door::new().await;
    let world = &door.world;
    prepare(world).await;
    world.apply(probing("probe", "probe")).await.unwrap();
    for (who, reason) in [
        // Outside of the caller's scope, even though a probe already refers to the secret.
        ("orders", Reason::PermissionDenied),
        ("operator", Reason::Invalid),
    ] {
        for validate_only in [true, false] {
            let request = pb::ApplyClusterRequest {
                cluster: Some(seeing(probing("probe", "probe"), "probe", "tls.key")),
                validate_only,
                ..Default::default()
            };
            refused(door.of(who).apply_cluster(request).await, reason);
        }
    }
    // An existing reference of a probe may stay.
    let mut same = probing("probe", "probe");
    same.labels.insert("a".into(), "b".into());
    let request = pb::ApplyClusterRequest {
        cluster: Some(same),
        ..Default::default()
    };
    door.of("orders").apply_cluster(request).await.unwrap();
    door.stop().await;
}

#[tokio::test]
async fn a_purpose_is_said_once_and_changed_while_nobody_names_it() {
    let world = World::new().await;
    let data = [("token", "let-me-in")];
    let unspecified = SecretPurpose::Unspecified;
    let made = put(&world, unspecified, "door", &data).await.unwrap();
    assert_eq!(made.secret.unwrap().purpose(), SecretPurpose::Workload);
    let changed = put(&world, SecretPurpose::Platform, "door", &data).await;
    let changed = changed.unwrap();
    assert_eq!(changed.outcome(), pb::ApplyOutcome::Configured);
    assert_eq!(changed.secret.unwrap().purpose(), SecretPurpose::Platform);
    let kept = put(&world, unspecified, "door", &data).await.unwrap();
    assert_eq!(kept.outcome(), pb::ApplyOutcome::Unchanged);
    assert_eq!(purpose(&world, "door").await, SecretPurpose::Platform);
    world
        .platforms()
        .register_platform(guarded("door"))
        .await
        .unwrap();
    let answer = put(&world, SecretPurpose::Workload, "door", &data).await;
    let status = invalid(answer, "purpose");
    assert!(status.message().contains("platform/guarded"), "{status:?}");
    assert_eq!(purpose(&world, "door").await, SecretPurpose::Platform);
    let mut unknown = pb::ApplySecretRequest {
        name: "other".into(),
        purpose: 9,
        ..Default::default()
    };
    unknown.data.insert(
        "a".into(),
        pb::SecretValue {
            value: Some(Value::Text("b".into())),
        },
    );
    invalid(world.secrets().apply_secret(unknown).await, "purpose");
    world.stop().await;
}

/// A stored secret from before there were purposes.
#[derive(Clone, PartialEq, Message)]
struct Before {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    keys: Vec<Bytes>,
    #[prost(uint64, tag = "2")]
    create_time_ms: u64,
    #[prost(uint64, tag = "3")]
    update_time_ms: u64,
}

#[tokio::test]
async fn secrets_of_before_there_were_purposes_have_that_for_which_they_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    prepare(&world).await;
    let named = || seeing(probing("probe", "probe"), "work", "token");
    world.apply(named()).await.unwrap();
    world
        .platforms()
        .register_platform(guarded("door"))
        .await
        .unwrap();
    put(&world, SecretPurpose::Probe, "idle", &[("token", "x")])
        .await
        .unwrap();

    world.orchestrator.take().unwrap().kill().await;
    let store = open_again(directory.path()).await;
    for name in ["work", "probe", "door", "idle"] {
        let stored = store.secret(name).await.unwrap().unwrap();
        let before = Before::decode(stored.value).unwrap().encode_to_vec();
        let stored = store.put_secret(name, before.into(), Some(stored.revision));
        stored.await.unwrap();
    }
    let started = Orchestrator::start(store, world.sites.connector(), Hooks::default()).await;
    world.orchestrator = Some(started.unwrap());
    for (name, wanted) in [
        ("work", SecretPurpose::Workload),
        ("probe", SecretPurpose::Probe),
        ("door", SecretPurpose::Platform),
        ("idle", SecretPurpose::Workload),
    ] {
        assert_eq!(purpose(&world, name).await, wanted, "{name}");
    }
    // Existing references stay valid, but other uses are rejected.
    world.apply(named()).await.unwrap();
    world
        .platforms()
        .register_platform(guarded("door"))
        .await
        .unwrap();
    invalid(world.apply(seeing(named(), "door", "token")).await, SEEN);
    invalid(world.apply(seeing(named(), "probe", "tls.key")).await, SEEN);
    // The purpose remains after its user is gone.
    let gone = pb::UnregisterPlatformRequest {
        name: "guarded".into(),
    };
    world.platforms().unregister_platform(gone).await.unwrap();
    world.restart(directory.path()).await;
    invalid(world.apply(seeing(named(), "door", "token")).await, SEEN);
    world.stop().await;
}
