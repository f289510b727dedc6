//! Secrets: stored encrypted, passed to the nodes that refer to them, and never shown.

mod nodes;

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{Error, Reason, spec::digest};
use drover_orchestrator::Hooks;
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source, secret_value::Value};
use drover_store::{Store, backend::Range, digest::is_keyed};
use drover_testing::store::{LongLeases, MemoryBackend};
use tonic::Status;

use crate::api::{
    access::{Door, labelled, token},
    support::{Log, Secrets, World, changed, document, fields, invalid, metadata, refused, until},
};

const PLAIN: &str = "#cloud-config\ntoken: hush-hush\n";

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn secret(name: &str, data: &[(&str, Value)]) -> pb::ApplySecretRequest {
    let value = |value: &Value| pb::SecretValue {
        value: Some(value.clone()),
    };
    pb::ApplySecretRequest {
        name: name.to_owned(),
        data: data
            .iter()
            .map(|(key, content)| ((*key).to_owned(), value(content)))
            .collect(),
        ..Default::default()
    }
}

async fn put(
    world: &World,
    request: pb::ApplySecretRequest,
) -> Result<pb::ApplySecretResponse, Status> {
    let answer = world.secrets().apply_secret(request).await;
    answer.map(tonic::Response::into_inner)
}

async fn list(world: &World) -> Vec<pb::Secret> {
    let request = pb::ListSecretsRequest::default();
    let answer = world.secrets().list_secrets(request).await.unwrap();
    answer.into_inner().secrets
}

async fn remove(world: &World, name: &str) -> Result<pb::DeleteSecretResponse, Status> {
    let request = pb::DeleteSecretRequest {
        name: name.to_owned(),
    };
    let answer = world.secrets().delete_secret(request).await;
    answer.map(tonic::Response::into_inner)
}

fn from_secret(name: &str, of: &str) -> Option<pb::BootstrapSource> {
    Some(pb::BootstrapSource {
        source: key(name, of).map(Source::SecretKey),
        ..Default::default()
    })
}

/// A cluster whose nodes get a key of a secret.
fn naming(cluster: &str, size: u32, name: &str, key: &str) -> pb::Cluster {
    changed(document(cluster, &[("web", size)]), |spec| {
        spec.groups[0].bootstrap = from_secret(name, key);
    })
}

fn key(name: &str, key: &str) -> Option<pb::SecretKeyRef> {
    Some(pb::SecretKeyRef {
        name: name.to_owned(),
        key: key.to_owned(),
    })
}

fn seen(as_: &str, name: &str, of: &str) -> pb::TemplateSecret {
    pb::TemplateSecret {
        name: as_.to_owned(),
        secret_key_ref: key(name, of),
    }
}

/// A cluster whose templates see a key of a secret and render it into user data.
fn seeing(cluster: &str, size: u32, name: &str, of: &str) -> pb::Cluster {
    changed(document(cluster, &[("web", size)]), |spec| {
        spec.groups[0].secrets = vec![seen("token", name, of)];
        rendering(spec, "{{ secrets.token }}");
    })
}

fn rendering(spec: &mut pb::ClusterSpec, template: &str) {
    spec.groups[0].bootstrap = Some(pb::BootstrapSource {
        source: Some(Source::Text(template.to_owned())),
        render: true,
    });
}

/// The user data that the nodes of each request were given.
fn given(world: &World) -> BTreeMap<String, Vec<String>> {
    let backend = world.site.backend();
    let mut given: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in backend.nodes() {
        let data = backend.user_data(&node.node_id).unwrap();
        let data = String::from_utf8_lossy(&data).into_owned();
        given
            .entry(node.slot.as_ref().unwrap().request_id.clone())
            .or_default()
            .push(data);
    }
    given
}

fn all_given(world: &World) -> Vec<String> {
    let mut all: Vec<String> = given(world).into_values().flatten().collect();
    all.sort();
    all
}

#[tokio::test]
async fn a_secret_is_replaced_as_a_whole_and_kept_by_digest() {
    let world = World::new().await;
    let two = secret(
        "db",
        &[
            ("user", text("ann")),
            ("password", Value::Binary(vec![0, 255])),
        ],
    );
    let mut check = two.clone();
    check.validate_only = true;
    let answer = put(&world, check).await.unwrap();
    assert_eq!(answer.outcome(), pb::ApplyOutcome::Created);
    assert!(list(&world).await.is_empty(), "nothing was stored");
    let made = put(&world, two.clone()).await.unwrap().secret.unwrap();
    let keys: Vec<_> = made.keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(keys, ["password", "user"]);
    assert!(
        made.keys.iter().all(|key| is_keyed(&key.sha256)),
        "{made:?}"
    );
    let same = put(&world, two).await.unwrap();
    assert_eq!(same.outcome(), pb::ApplyOutcome::Unchanged);
    assert_eq!(same.secret.unwrap().revision, made.revision);

    let kept = Value::Sha256(made.keys[0].sha256.to_ascii_uppercase());
    let mut change = secret("db", &[("user", text("bob")), ("password", kept.clone())]);
    change.expected_revision = Some(made.revision);
    let answer = put(&world, change.clone()).await.unwrap();
    assert_eq!(answer.outcome(), pb::ApplyOutcome::Configured);
    let now = answer.secret.unwrap();
    assert_eq!(now.keys[0], made.keys[0]);
    assert_ne!(now.keys[1], made.keys[1]);
    // Callers who may change it may also refer to retained data by its SHA-256.
    let plain = Value::Sha256(digest(b"bob"));
    let same = secret("db", &[("user", plain), ("password", kept.clone())]);
    let same = put(&world, same).await.unwrap();
    assert_eq!(same.outcome(), pb::ApplyOutcome::Unchanged);
    assert!(now.revision > made.revision && now.create_time == made.create_time);
    let status = refused(put(&world, change).await, Reason::RevisionMismatch);
    assert_eq!(
        metadata(&status, "revision").unwrap(),
        now.revision.to_string()
    );
    let mut new = secret("db", &[("a", text("b"))]);
    new.expected_revision = Some(0);
    refused(put(&world, new).await, Reason::RevisionMismatch);
    // A digest only stands for the same key of the same secret.
    refused(
        put(&world, secret("db", &[("user", kept.clone())])).await,
        Reason::DigestNotStored,
    );
    refused(
        put(&world, secret("new", &[("password", kept)])).await,
        Reason::DigestNotStored,
    );
    world.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_secret_is_named_and_not_shown() {
    let world = World::new().await;
    let large = "hush".repeat(65 * 1024);
    for (request, field) in [
        (secret("", &[("a", text("hush"))]), "name"),
        (secret("-", &[("a", text("hush"))]), "name"),
        (secret("db", &[]), "data"),
        (secret("db", &[("a b", text("hush"))]), "data.a b"),
        (secret("db", &[("", text("hush"))]), "data."),
        (secret("db", &[("what is a hush", text("a"))]), "data"),
        (secret("what is a hush", &[("a", text("a"))]), "name"),
        (
            secret("db", &[("a", Value::Sha256("hush".into()))]),
            "data.a",
        ),
        (secret("db", &[("a", text(&large))]), "data"),
    ] {
        let status = invalid(put(&world, request).await, field);
        assert!(!format!("{status:?}").contains("hush"), "{status:?}");
    }
    let mut empty = secret("db", &[]);
    empty.data.insert("a".into(), pb::SecretValue::default());
    invalid(put(&world, empty).await, "data.a");
    // A secret of maximum size is stored.
    let most = "x".repeat(256 * 1024 - 1);
    put(&world, secret("db", &[("a", text(&most))]))
        .await
        .unwrap();
    world.stop().await;
}

#[tokio::test]
async fn without_a_key_file_no_secret_is_taken_and_the_setting_is_named() {
    let backend = LongLeases::over(Arc::new(MemoryBackend::new()));
    let store = Store::open(backend).await.unwrap();
    let world = World::over(store, SimulatedSettings::default()).await;
    let answer = put(&world, secret("db", &[("a", text("hush"))])).await;
    let status = refused(answer, Reason::Precondition);
    assert!(status.message().contains("secrets.key_file"), "{status:?}");
    assert!(!format!("{status:?}").contains("hush"));
    assert!(list(&world).await.is_empty());
    remove(&world, "db").await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn an_encrypted_store_is_not_served_without_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    put(&world, secret("db", &[("a", text("hush"))]))
        .await
        .unwrap();
    world.orchestrator.take().unwrap().kill().await;
    let store = crate::api::support::open_locked(directory.path()).await;
    let refused =
        drover_orchestrator::Orchestrator::start(store, world.sites.connector(), Hooks::default())
            .await
            .unwrap_err();
    assert_eq!(refused.reason(), Reason::Precondition);
    assert!(refused.message().contains("secrets.key_file"), "{refused}");
}

#[tokio::test]
async fn no_log_event_error_answer_or_audit_shows_a_secret() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let door = Door::new().await;
    let world = &door.world;
    let mut admin = Secrets::new(door.channel(Some(token("admin"))));
    let request = secret(
        "orders-join",
        &[("init", text(PLAIN)), ("hush-key", text("x"))],
    );
    let mut shown = format!("{request:?}").replace("hush-key", "");
    let answer = admin.apply_secret(request.clone()).await.unwrap();
    shown += &format!("{answer:?}").replace("hush-key", "");
    let mut other = door.of("operator");
    let mut viewer = Secrets::new(door.channel(Some(token("viewer"))));
    let denied = viewer.apply_secret(request.clone()).await;
    shown += &format!("{:?}", refused(denied, Reason::PermissionDenied));
    // The first attempts to create a node fail, so that there are errors to report.
    for _ in 0..3 {
        let refuse = Fault::Refuse(Error::unavailable("not now"));
        world.site.backend().fail_next(Operation::Create, refuse);
    }
    let document = changed(naming("orders", 2, "orders-join", "init"), |spec| {
        spec.secrets = vec![seen("token", "orders-join", "init")];
    });
    let wrong = changed(seeing("orders", 2, "orders-join", "init"), |spec| {
        rendering(spec, "{{ secrets.token }}{{ secrets.other }}");
    });
    let apply = pb::ApplyClusterRequest {
        cluster: Some(wrong),
        ..Default::default()
    };
    shown += &format!("{:?}", other.apply_cluster(apply).await.unwrap_err());
    let apply = pb::ApplyClusterRequest {
        cluster: Some(document),
        ..Default::default()
    };
    shown += &format!("{:?}", other.apply_cluster(apply).await.unwrap());
    let cluster = world.ready("orders").await;
    let mut wrong = request;
    wrong.data.insert(
        "bad key".into(),
        pb::SecretValue {
            value: Some(text(PLAIN)),
        },
    );
    shown += &format!("{:?}", admin.apply_secret(wrong).await.unwrap_err()).replace("hush-key", "");
    shown += &format!(
        "{cluster:?} {:?} {:?} {:?}",
        world.events("orders").await,
        world.nodes("orders").await,
        world.orchestrator,
    );
    assert_eq!(all_given(world), [PLAIN, PLAIN], "it did reach the nodes");
    let backend = world.backend.upgrade().unwrap();
    let scan = backend.scan(Range::all(), 100).await.unwrap();
    for entry in scan.collect().await.unwrap() {
        shown += &String::from_utf8_lossy(&entry.value);
    }
    let path = door.audit();
    let audit = until("the changes are in the audit log", async || {
        let text = std::fs::read_to_string(&path).unwrap();
        (text.matches("secret/orders-join").count() >= 2).then_some(text)
    })
    .await;
    shown += &audit;
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(!logged.is_empty(), "something was logged");
    shown += &logged;
    for hidden in ["hush", PLAIN] {
        let at = shown.find(hidden);
        let around = at.map(|at| &shown[at.saturating_sub(300)..(at + 20).min(shown.len())]);
        assert_eq!(around, None);
    }
    door.stop().await;
}

#[tokio::test]
async fn a_scope_is_one_of_secrets_too() {
    let door = Door::new().await;
    for name in ["orders-join", "carts-join"] {
        put(&door.world, secret(name, &[("init", text("x"))]))
            .await
            .unwrap();
    }
    let naming = |secret: &str| {
        let mut request = labelled("orders-eu", &[]);
        let spec = request.cluster.as_mut().unwrap().spec.as_mut().unwrap();
        spec.bootstrap = from_secret(secret, "init");
        request
    };
    let seeing = |secret: &str| {
        let mut request = naming(secret);
        let spec = request.cluster.as_mut().unwrap().spec.as_mut().unwrap();
        spec.bootstrap = None;
        spec.secrets = vec![seen("token", secret, "init")];
        request
    };
    let mut scoped = door.of("orders");
    scoped.apply_cluster(naming("orders-join")).await.unwrap();
    // Whether it exists is not revealed either.
    for name in ["carts-join", "carts-none"] {
        let status = refused(
            scoped.apply_cluster(naming(name)).await,
            Reason::PermissionDenied,
        );
        assert!(status.message().contains("outside"), "{status:?}");
        let mut plan = naming(name);
        plan.validate_only = true;
        refused(scoped.apply_cluster(plan).await, Reason::PermissionDenied);
        refused(
            scoped.apply_cluster(seeing(name)).await,
            Reason::PermissionDenied,
        );
    }
    // References that another caller has added to the cluster stay.
    door.of("operator")
        .apply_cluster(naming("carts-join"))
        .await
        .unwrap();
    let mut other = naming("carts-join");
    other
        .cluster
        .as_mut()
        .unwrap()
        .labels
        .insert("a".into(), "b".into());
    scoped.apply_cluster(other).await.unwrap();
    door.stop().await;
}

#[tokio::test]
async fn a_platform_is_called_with_the_token_of_its_secret() {
    let world = World::new().await;
    let mut request = crate::api::support::registration("guarded", "http://guarded");
    let spec = request.platform.as_mut().unwrap().spec.as_mut().unwrap();
    spec.token_secret = "door".into();
    let status = refused(
        world.platforms().register_platform(request.clone()).await,
        Reason::SecretNotFound,
    );
    assert_eq!(fields(&status), ["platform.spec.token_secret"]);
    let door = |token: &str| pb::ApplySecretRequest {
        purpose: pb::SecretPurpose::Platform.into(),
        ..secret("door", &[("token", text(token))])
    };
    put(&world, door("no token at all")).await.unwrap();
    invalid(
        world.platforms().register_platform(request.clone()).await,
        "platform.spec.token_secret",
    );
    put(&world, door("let-me-in\n")).await.unwrap();
    let answer = world
        .platforms()
        .register_platform(request)
        .await
        .unwrap()
        .into_inner();
    assert!(
        answer.warnings.iter().any(|w| w.contains("plaintext")),
        "{:?}",
        answer.warnings
    );
    assert_eq!(list(&world).await[0].users, ["platform/guarded"]);
    refused(remove(&world, "door").await, Reason::SecretInUse);
    let gone = pb::UnregisterPlatformRequest {
        name: "guarded".into(),
    };
    world.platforms().unregister_platform(gone).await.unwrap();
    remove(&world, "door").await.unwrap();
    world.stop().await;
}
