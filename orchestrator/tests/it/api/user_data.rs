//! User data: kept under its digest, given to every node, and never shown.

use bytes::Bytes;
use drover_core::{Reason, spec::digest};
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source};
use drover_store::{backend::Range, digest::is_keyed, keys::Name};

use crate::api::support::{World, changed, document, invalid, metadata, refused, until};

const SECRET: &str = "#cloud-config\ntoken: hush-hush\n";

fn source(source: Source) -> Option<pb::BootstrapSource> {
    Some(pb::BootstrapSource {
        source: Some(source),
        ..Default::default()
    })
}

fn text(text: &str) -> Option<pb::BootstrapSource> {
    source(Source::Text(text.to_owned()))
}

/// What the nodes of a group were given.
fn given(world: &World, group: &str) -> Vec<String> {
    let backend = world.site.backend();
    let nodes = backend.nodes().into_iter().filter(|n| n.group == group);
    let mut given: Vec<String> = nodes
        .map(|n| String::from_utf8_lossy(&backend.user_data(&n.node_id).unwrap()).into_owned())
        .collect();
    given.sort();
    given
}

/// All keys, and all values but those of the user data itself.
async fn stored(world: &World) -> String {
    let backend = world.backend.upgrade().unwrap();
    let scan = backend.scan(Range::all(), 100).await.unwrap();
    let entries = scan.collect().await.unwrap().into_iter();
    let lines = entries.map(|entry| {
        let secret = matches!(entry.key.parse(), Some(Name::UserData(..)));
        let value = if secret { Bytes::new() } else { entry.value };
        format!("{} {}\n", entry.key, String::from_utf8_lossy(&value))
    });
    lines.collect()
}

#[tokio::test]
async fn user_data_reaches_the_nodes_and_nobody_else() {
    let world = World::new().await;
    let cluster = changed(document("orders", &[("web", 2), ("db", 1)]), |spec| {
        spec.bootstrap = text(SECRET);
        spec.groups[1].bootstrap = source(Source::Binary(vec![0, 159, 146, 150]));
    });
    let answer = world.apply(cluster.clone()).await.unwrap();
    let read = world.ready("orders").await;
    assert_eq!(given(&world, "web"), [SECRET, SECRET], "inherited");
    let node = world.site.backend().nodes();
    let db = node.iter().find(|n| n.group == "db").unwrap();
    assert_eq!(
        world.site.backend().user_data(&db.node_id).unwrap(),
        [0, 159, 146, 150]
    );

    let digest = digest(SECRET.as_bytes());
    let shown = read.spec.as_ref().unwrap().bootstrap.clone().unwrap();
    let Some(Source::Sha256(shown)) = shown.source else {
        panic!("{shown:?}");
    };
    assert!(is_keyed(&shown), "{shown}");
    let revisions = pb::ListRevisionsRequest {
        cluster: "orders".into(),
        ..Default::default()
    };
    let nodes = world.nodes("orders").await;
    let everything = format!(
        "{answer:?} {read:?} {:?} {nodes:?} {:?}",
        world.events("orders").await,
        world.clusters().list_revisions(revisions).await.unwrap()
    );
    assert!(!everything.contains("hush"), "{everything}");
    assert!(!everything.contains(&digest), "by that it can be guessed");
    assert!(everything.contains(&shown));
    // What a node is made from is covered by a hash that everybody sees, too.
    assert!(nodes.iter().all(|node| node.spec_hash.starts_with("h2-")));
    let dump = stored(&world).await;
    assert!(dump.contains(&format!("/{digest}")) && !dump.contains("hush"));

    let answer = world.apply(cluster).await.unwrap();
    assert_eq!(answer.outcome(), pb::ApplyOutcome::Unchanged);
    let mut again = read;
    again.spec.as_mut().unwrap().groups[0].size = Some(3);
    world.apply(again).await.unwrap();
    until("a third is made by what is stored", async || {
        (given(&world, "web") == [SECRET; 3]).then_some(())
    })
    .await;

    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    let dump = stored(&world).await;
    assert!(!dump.contains(&digest), "nothing is left of it: {dump}");
    world.stop().await;
}

#[tokio::test]
async fn a_digest_stands_for_what_is_stored_of_the_cluster_alone() {
    let world = World::new().await;
    let digest = digest(SECRET.as_bytes());
    let by_digest = |name: &str| {
        changed(document(name, &[("web", 1)]), |spec| {
            spec.groups[0].bootstrap = source(Source::Sha256(digest.clone()));
        })
    };
    let status = refused(
        world.apply(by_digest("orders")).await,
        Reason::DigestNotStored,
    );
    assert_eq!(metadata(&status, "sha256").unwrap(), digest);
    let with = |data: &str| {
        let data = data.to_owned();
        changed(document("orders", &[("web", 1)]), move |spec| {
            spec.groups[0].bootstrap = text(&data);
            spec.update = Some(pb::UpdatePolicy {
                strategy: pb::UpdateStrategy::OnDelete.into(),
                ..Default::default()
            });
        })
    };
    world.apply(with(SECRET)).await.unwrap();
    world.ready("orders").await;
    refused(
        world.apply(by_digest("other")).await,
        Reason::DigestNotStored,
    );

    let before = world.nodes("orders").await[0].spec_hash.clone();
    world.apply(with("second")).await.unwrap();
    assert!(world.nodes("orders").await[0].outdated);
    // Back to what was before: it is still there.
    let mut back = with("second");
    back.spec.as_mut().unwrap().groups[0].bootstrap = source(Source::Sha256(digest.clone()));
    world.apply(back.clone()).await.unwrap();
    let node = world.nodes("orders").await.remove(0);
    assert_eq!((node.outdated, node.spec_hash), (false, before));
    // Ten changes on, nothing that could be sent or gone back to needs it: it goes.
    for at in 0..12 {
        world.apply(with(&format!("data {at}"))).await.unwrap();
    }
    refused(world.apply(back).await, Reason::DigestNotStored);
    world.stop().await;
}

#[tokio::test]
async fn user_data_is_rendered_for_each_node() {
    let world = World::new().await;
    let rendered = |template: &str| {
        let source = Source::Text(template.to_owned());
        changed(document("orders", &[("web", 2)]), move |spec| {
            spec.groups[0].bootstrap = Some(pb::BootstrapSource {
                source: Some(source),
                render: true,
            });
        })
    };
    let status = world.apply(rendered("{{ hush.hush }}")).await.unwrap_err();
    assert_eq!(
        crate::api::support::fields(&status),
        ["spec.platforms[0]"],
        "{status:?}"
    );
    world
        .apply(rendered("{{ cluster.id }}/{{ node.name }}"))
        .await
        .unwrap();
    world.ready("orders").await;
    assert_eq!(given(&world, "web"), ["orders/web-0", "orders/web-1"]);
    world.stop().await;
}

#[tokio::test]
async fn user_data_that_no_platform_takes_is_refused_at_apply() {
    let world = World::with(SimulatedSettings {
        max_bootstrap_bytes: Some(16),
        ..SimulatedSettings::default()
    })
    .await;
    let cluster = changed(document("orders", &[("web", 2)]), |spec| {
        spec.bootstrap = text(SECRET);
    });
    let status = invalid(world.apply(cluster).await, "spec.bootstrap");
    assert!(status.message().contains("at most 16 bytes"), "{status:?}");
    assert!(!format!("{status:?}").contains("hush"));
    world.stop().await;
}

#[tokio::test]
async fn a_repeated_request_brings_the_same_user_data_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::in_directory(directory.path(), SimulatedSettings::default()).await;
    world.register("sim", "http://sim").await.unwrap();
    let backend = world.site.backend().clone();
    for _ in 0..3 {
        let refuse = Fault::Refuse(drover_core::Error::unavailable("not now"));
        backend.fail_next(Operation::Create, refuse);
    }
    let cluster = changed(document("orders", &[("web", 2)]), |spec| {
        spec.bootstrap = text(SECRET);
    });
    world.apply(cluster).await.unwrap();
    world.restart(directory.path()).await;
    world.ready("orders").await;
    assert_eq!(given(&world, "web"), [SECRET, SECRET]);
    world.stop().await;
}
