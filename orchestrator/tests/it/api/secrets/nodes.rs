//! Secrets of nodes: how they are named, what a node is given of them, and when.

use drover_core::{Error, Reason};
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::orchestrator::v1::{self as pb, secret_value::Value};

use super::{
    PLAIN, all_given, given, list, naming, put, remove, rendering, secret, seeing, seen, text,
};
use crate::api::support::{World, changed, document, fields, invalid, metadata, refused, until};

type Naming = fn(&str, u32, &str, &str) -> pb::Cluster;

async fn scale(world: &World, size: u32) {
    let request = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "web".into(),
        size: Some(size),
        ..Default::default()
    };
    world.clusters().scale_group(request).await.unwrap();
}

#[tokio::test]
async fn a_secret_reaches_nodes_and_its_change_replaces_none() {
    for naming in [naming as Naming, seeing] {
        reaches_nodes(naming).await;
    }
}

async fn reaches_nodes(naming: Naming) {
    let world = World::new().await;
    put(&world, secret("join", &[("init", text("one"))]))
        .await
        .unwrap();
    world
        .apply(naming("orders", 2, "join", "init"))
        .await
        .unwrap();
    world.ready("orders").await;
    assert_eq!(all_given(&world), ["one", "one"]);
    let before: Vec<String> = world
        .nodes("orders")
        .await
        .into_iter()
        .map(|n| n.id)
        .collect();

    let changed = put(&world, secret("join", &[("init", text("two"))]))
        .await
        .unwrap();
    assert_eq!(changed.outcome(), pb::ApplyOutcome::Configured);
    assert_eq!(changed.secret.unwrap().users, ["cluster/orders"]);
    // Applying the same document again changes nothing, and nothing is outdated.
    let again = world
        .apply(naming("orders", 2, "join", "init"))
        .await
        .unwrap();
    assert_eq!(again.outcome(), pb::ApplyOutcome::Unchanged);
    scale(&world, 3).await;
    world.ready("orders").await;
    let nodes = world.nodes("orders").await;
    assert!(nodes.iter().all(|node| !node.outdated));
    assert!(
        before
            .iter()
            .all(|id| nodes.iter().any(|node| node.id == *id))
    );
    assert_eq!(all_given(&world), ["one", "one", "two"]);
    world.stop().await;
}

#[tokio::test]
async fn a_request_under_way_is_never_sent_with_other_content() {
    for naming in [naming as Naming, seeing] {
        is_sent_as_it_was(naming).await;
    }
}

async fn is_sent_as_it_was(naming: Naming) {
    let world = World::new().await;
    put(&world, secret("join", &[("init", text("one"))]))
        .await
        .unwrap();
    let backend = world.site.backend().clone();
    // The node is created but the response is lost; then the platform fails for a while.
    backend.fail_next(Operation::Create, Fault::LoseAnswer);
    for _ in 0..2 {
        let refuse = Fault::Refuse(Error::unavailable("not now"));
        backend.fail_next(Operation::Create, refuse);
    }
    world
        .apply(naming("orders", 3, "join", "init"))
        .await
        .unwrap();
    until("something was made", async || {
        (!backend.nodes().is_empty()).then_some(())
    })
    .await;
    put(&world, secret("join", &[("init", text("two"))]))
        .await
        .unwrap();
    world.ready("orders").await;
    for (request, data) in given(&world) {
        assert!(
            data.windows(2).all(|two| two[0] == two[1]),
            "{request}: {data:?}"
        );
    }
    assert_eq!(backend.nodes().len(), 3);
    world.stop().await;
}

#[tokio::test]
async fn a_repeated_request_brings_the_same_content_after_a_restart() {
    for naming in [naming as Naming, seeing] {
        is_repeated_after_a_restart(naming).await;
    }
}

async fn is_repeated_after_a_restart(naming: Naming) {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    let made = put(&world, secret("join", &[("init", text(PLAIN))]))
        .await
        .unwrap();
    let backend = world.site.backend().clone();
    for _ in 0..3 {
        let refuse = Fault::Refuse(Error::unavailable("not now"));
        backend.fail_next(Operation::Create, refuse);
    }
    world
        .apply(naming("orders", 2, "join", "init"))
        .await
        .unwrap();
    world.restart(directory.path()).await;
    world.ready("orders").await;
    assert_eq!(all_given(&world), [PLAIN, PLAIN]);
    let kept = list(&world).await.remove(0);
    assert_eq!(kept.keys, made.secret.unwrap().keys);
    assert_eq!(kept.users, ["cluster/orders"]);
    world.stop().await;
}

#[tokio::test]
async fn what_is_named_has_to_be_there_and_stays() {
    has_to_be_there(naming, "spec.groups[0].bootstrap.secret_key").await;
    has_to_be_there(seeing, "spec.groups[0].secrets[0].secret_key_ref").await;
}

async fn has_to_be_there(naming: Naming, at: &str) {
    let world = World::new().await;
    let status = refused(
        world.apply(naming("orders", 1, "join", "init")).await,
        Reason::SecretNotFound,
    );
    assert_eq!(fields(&status), [format!("{at}.name")]);
    put(
        &world,
        secret(
            "join",
            &[
                ("init", text("one")),
                ("other", text("x")),
                ("none", text("")),
            ],
        ),
    )
    .await
    .unwrap();
    let status = refused(
        world.apply(naming("orders", 1, "join", "inti")).await,
        Reason::SecretNotFound,
    );
    assert_eq!(fields(&status), [format!("{at}.key")]);
    assert!(status.message().contains("init, none, other"), "{status:?}");
    invalid(
        world.apply(naming("orders", 1, "join", "none")).await,
        &format!("{at}.key"),
    );
    world
        .apply(naming("orders", 1, "join", "init"))
        .await
        .unwrap();
    world.ready("orders").await;

    let status = refused(remove(&world, "join").await, Reason::SecretInUse);
    assert_eq!(metadata(&status, "user").unwrap(), "cluster/orders");
    invalid(
        put(&world, secret("join", &[("other", text("x"))])).await,
        "data.init",
    );
    // An unused key can be removed.
    put(&world, secret("join", &[("init", text("one"))]))
        .await
        .unwrap();
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    remove(&world, "join").await.unwrap();
    assert!(list(&world).await.is_empty());
    remove(&world, "join").await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn templates_see_secrets_by_the_names_of_the_spec() {
    let world = World::new().await;
    let keys = [
        ("user", text("app")),
        ("first", text("1")),
        ("second", text("2")),
    ];
    put(&world, secret("db", &keys)).await.unwrap();
    let seeing = |password: &str| {
        changed(document("orders", &[("web", 1)]), |spec| {
            // Secrets of the cluster apply to its groups, except for names that the groups define themselves.
            spec.secrets = vec![seen("user", "db", "user"), seen("password", "db", "user")];
            spec.groups[0].secrets = vec![seen("password", "db", password)];
            rendering(spec, "{{ secrets.user }}:{{ secrets.password }}");
        })
    };
    world.apply(seeing("first")).await.unwrap();
    world.ready("orders").await;
    assert_eq!(all_given(&world), ["app:1"]);
    // Another key makes another spec.
    world.apply(seeing("second")).await.unwrap();
    until("the node is a new one", async || {
        (all_given(&world) == ["app:2"]).then_some(())
    })
    .await;
    assert_eq!(list(&world).await[0].users, ["cluster/orders"]);
    world.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_secret_for_templates_is_named() {
    let world = World::new().await;
    let keys = [
        ("text", text("x")),
        ("bytes", Value::Binary(vec![0xff])),
        ("long", text(&"x".repeat(65 * 1024))),
    ];
    put(&world, secret("db", &keys)).await.unwrap();
    let with = |secrets: Vec<pb::TemplateSecret>| {
        changed(document("orders", &[("web", 1)]), |spec| {
            spec.groups[0].secrets = secrets;
        })
    };
    let at = |index: usize, field: &str| format!("spec.groups[0].secrets[{index}]{field}");
    let good = seen("token", "db", "text");
    for (secrets, field) in [
        (vec![seen("a-b", "db", "text")], at(0, ".name")),
        (vec![seen("", "db", "text")], at(0, ".name")),
        (vec![good.clone(), good.clone()], at(1, ".name")),
        (vec![seen("token", "db", "bytes")], at(0, ".secret_key_ref")),
        (
            vec![seen("token", "db", "long")],
            at(0, ".secret_key_ref.key"),
        ),
        (
            vec![pb::TemplateSecret {
                secret_key_ref: None,
                ..good.clone()
            }],
            at(0, ".secret_key_ref"),
        ),
    ] {
        invalid(world.apply(with(secrets)).await, &field);
    }
    let many = (0..33).map(|at| seen(&format!("a{at}"), "db", "text"));
    invalid(
        world.apply(with(many.collect())).await,
        "spec.groups[0].secrets",
    );
    world.stop().await;
}
