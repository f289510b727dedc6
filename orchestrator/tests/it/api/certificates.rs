//! Client certificates and CAs that platforms and probes refer to by secret.

use std::collections::BTreeMap;

use drover_core::Reason;
use drover_proto::{
    orchestrator::v1::{self as pb, secret_value::Value},
    platform::v1::{self as wire, health_policy::Probe},
};

use crate::api::{
    access::Door,
    certs::{Authority, Wanted},
    support::{World, changed, document, fields, invalid, refused, registration},
};

async fn put(world: &World, name: &str, data: &[(&str, &str)]) -> Result<(), tonic::Status> {
    put_for(world, pb::SecretPurpose::Probe, name, data).await
}

async fn put_for(
    world: &World,
    purpose: pb::SecretPurpose,
    name: &str,
    data: &[(&str, &str)],
) -> Result<(), tonic::Status> {
    let value = |text: &str| pb::SecretValue {
        value: Some(Value::Text(text.to_owned())),
    };
    let data: BTreeMap<String, pb::SecretValue> = data
        .iter()
        .map(|(key, text)| ((*key).to_owned(), value(text)))
        .collect();
    let request = pb::ApplySecretRequest {
        name: name.to_owned(),
        data,
        purpose: purpose.into(),
        ..Default::default()
    };
    world.secrets().apply_secret(request).await.map(drop)
}

async fn remove(world: &World, name: &str) -> Result<pb::DeleteSecretResponse, tonic::Status> {
    let request = pb::DeleteSecretRequest {
        name: name.to_owned(),
    };
    let answer = world.secrets().delete_secret(request).await;
    answer.map(tonic::Response::into_inner)
}

/// Creates valid secrets, and ones whose content does not match their use.
async fn prepare(world: &World, purpose: pb::SecretPurpose) {
    let authority = Authority::new("ours");
    let client = Wanted::client("own", "spiffe://drover/orchestrator/a");
    let (cert, key) = authority.make(&client);
    let (_, other) = authority.make(&client);
    let secrets: [(&str, &[(&str, &str)]); 6] = [
        ("ca", &[("ca.crt", &authority.pem)]),
        ("own", &[("tls.crt", &cert), ("tls.key", &key)]),
        ("half", &[("tls.crt", &cert)]),
        ("mixed", &[("tls.crt", &cert), ("tls.key", &other)]),
        (
            "nonsense",
            &[("ca.crt", "hush"), ("tls.crt", "hush"), ("tls.key", "hush")],
        ),
        ("token", &[("token", "hush")]),
    ];
    for (name, data) in secrets {
        put_for(world, purpose, name, data).await.unwrap();
    }
}

fn probing(tls: wire::ProbeTls) -> pb::Cluster {
    changed(document("orders", &[("db", 1)]), |spec| {
        spec.groups[0].health = Some(wire::HealthPolicy {
            probe: Some(Probe::Http(wire::HttpProbe {
                tls_settings: Some(tls),
                ..Default::default()
            })),
            ..Default::default()
        });
    })
}

fn tls(ca: &str, own: &str) -> wire::ProbeTls {
    wire::ProbeTls {
        ca_secret: ca.to_owned(),
        client_certificate_secret: own.to_owned(),
        ..Default::default()
    }
}

/// All fields in which a probe can refer to a secret, filled with these.
fn places(tls: &wire::ProbeTls) -> Vec<pb::Cluster> {
    let http = Probe::Http(wire::HttpProbe {
        tls_settings: Some(tls.clone()),
        ..Default::default()
    });
    let grpc = Probe::Grpc(wire::GrpcProbe {
        tls_settings: Some(tls.clone()),
        ..Default::default()
    });
    let health = |probe: &Probe| {
        Some(wire::HealthPolicy {
            probe: Some(probe.clone()),
            ..Default::default()
        })
    };
    let mut all = Vec::new();
    for probe in [&http, &grpc] {
        let plain = || document("orders-eu", &[("db", 1)]);
        all.push(changed(plain(), |spec| spec.health = health(probe)));
        all.push(changed(plain(), |spec| {
            spec.groups[0].health = health(probe);
        }));
        all.push(changed(plain(), |spec| {
            let mut inner = spec.groups[0].clone();
            inner.health = health(probe);
            spec.groups[0].size = None;
            spec.groups[0].groups = vec![inner];
        }));
    }
    all
}

#[tokio::test]
async fn a_scope_is_one_of_the_secrets_that_probes_name() {
    let door = Door::new().await;
    let authority = Authority::new("ours");
    let (cert, key) = authority.make(&Wanted::client("own", "spiffe://drover/orchestrator/a"));
    for name in ["orders", "carts"] {
        let ca = format!("{name}-ca");
        put(&door.world, &ca, &[("ca.crt", &authority.pem)])
            .await
            .unwrap();
        let own = format!("{name}-own");
        put(&door.world, &own, &[("tls.crt", &cert), ("tls.key", &key)])
            .await
            .unwrap();
    }
    let mut scoped = door.of("orders");
    let apply = |cluster: pb::Cluster, validate_only| pb::ApplyClusterRequest {
        cluster: Some(cluster),
        validate_only,
        ..Default::default()
    };
    for (ca, own, denied) in [
        ("carts-ca", "", "carts-ca"),
        ("", "carts-own", "carts-own"),
        ("orders-ca", "carts-own", "carts-own"),
        // Whether it exists is not revealed either.
        ("carts-none", "", "carts-none"),
    ] {
        for cluster in places(&tls(ca, own)) {
            for validate_only in [true, false] {
                let request = apply(cluster.clone(), validate_only);
                let answer = scoped.apply_cluster(request).await;
                let status = refused(answer, Reason::PermissionDenied);
                assert_eq!(
                    status.message(),
                    format!("secret {denied:?} is outside of what the caller may use")
                );
            }
        }
    }
    // Nothing was stored, and nobody uses the secrets of another cluster.
    for name in ["carts-ca", "carts-own"] {
        remove(&door.world, name).await.unwrap();
    }
    for (index, mut cluster) in places(&tls("orders-ca", "orders-own"))
        .into_iter()
        .enumerate()
    {
        cluster.name = format!("orders-{index}");
        scoped.apply_cluster(apply(cluster, false)).await.unwrap();
    }
    door.stop().await;
}

#[tokio::test]
async fn what_probes_name_has_to_be_there_and_stays() {
    let world = World::new().await;
    prepare(&world, pb::SecretPurpose::Probe).await;
    let at = "spec.groups[0].health.http.tls_settings";
    for (wrong, field) in [
        (tls("gone", ""), "ca_secret"),
        (tls("own", ""), "ca_secret"),
        (tls("", "gone"), "client_certificate_secret"),
        (tls("ca", "half"), "client_certificate_secret"),
    ] {
        let status = refused(world.apply(probing(wrong)).await, Reason::SecretNotFound);
        assert_eq!(fields(&status), [format!("{at}.{field}")]);
    }
    for (wrong, field) in [
        (tls("nonsense", ""), "ca_secret"),
        (tls("", "nonsense"), "client_certificate_secret"),
        (tls("ca", "mixed"), "client_certificate_secret"),
        (
            wire::ProbeTls {
                server_name: "no name".into(),
                ..tls("ca", "own")
            },
            "server_name",
        ),
    ] {
        let status = invalid(world.apply(probing(wrong)).await, &format!("{at}.{field}"));
        assert!(!status.message().contains("hush"), "{status}");
    }
    world.apply(probing(tls("ca", "own"))).await.unwrap();
    for name in ["ca", "own"] {
        refused(remove(&world, name).await, Reason::SecretInUse);
        let listed = world
            .secrets()
            .list_secrets(pb::ListSecretsRequest {
                name: Some(name.to_owned()),
                ..Default::default()
            })
            .await
            .unwrap()
            .into_inner();
        assert_eq!(listed.secrets[0].users, ["cluster/orders"]);
    }
    // A key of a certificate pair that is in use cannot be removed.
    invalid(
        put(&world, "own", &[("tls.crt", "x")]).await,
        "data.tls.key",
    );
    // Changing the probe does not replace nodes, and without TLS the secrets are no longer in use.
    world.apply(document("orders", &[("db", 1)])).await.unwrap();
    for name in ["ca", "own"] {
        remove(&world, name).await.unwrap();
    }
    world.stop().await;
}

#[tokio::test]
async fn what_a_registration_names_has_to_be_there_and_stays() {
    let world = World::new().await;
    prepare(&world, pb::SecretPurpose::Platform).await;
    let field = "platform.spec.tls.client_certificate_secret";
    let named = |name: &str| {
        let mut request = registration("far", "https://127.0.0.1:1");
        let spec = request.platform.as_mut().unwrap().spec.as_mut().unwrap();
        spec.tls = Some(pb::PlatformTls {
            client_certificate_secret: name.to_owned(),
            ..Default::default()
        });
        request
    };
    for name in ["gone", "half", "token"] {
        let answer = world.platforms().register_platform(named(name)).await;
        let status = refused(answer, Reason::SecretNotFound);
        assert_eq!(fields(&status), [field], "{name}");
    }
    for name in ["mixed", "nonsense"] {
        let answer = world.platforms().register_platform(named(name)).await;
        let status = invalid(answer, field);
        assert!(!status.message().contains("hush"), "{status}");
        assert!(format!("{status:?}").contains(name), "{status:?}");
    }
    world.stop().await;
}
