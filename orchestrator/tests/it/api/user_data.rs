//! User data: stored under its digest, passed to every node, and never shown.

use bytes::Bytes;
use drover_core::{Reason, secrecy::HIDDEN, spec::digest};
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::orchestrator::v1::{self as pb, bootstrap_source::Source};
use drover_store::{backend::Range, digest::is_keyed, keys::Name};

use crate::api::{
    access::Door,
    support::{World, changed, document, invalid, metadata, refused, until},
};

const SECRET: &str = "#cloud-config\ntoken: hush-hush\n";
/// A wrong guess of the user data.
const GUESS: &str = "#cloud-config\ntoken: hush-hash\n";

const RULES: &str = "
tokens:
  - {name: admin, token: admin-0123456789abcdef}
  - {name: looks, token: looks-0123456789abcdef}
bindings:
  - {role: admin, subjects: ['token:admin']}
  - {role: viewer, subjects: ['token:looks']}
  - {role: operator, subjects: ['token:looks'], clusters: ['carts*']}
";

fn source(source: Source) -> Option<pb::BootstrapSource> {
    Some(pb::BootstrapSource {
        source: Some(source),
        ..Default::default()
    })
}

fn text(text: &str) -> Option<pb::BootstrapSource> {
    source(Source::Text(text.to_owned()))
}

/// The user data that the nodes of a group were given.
fn given(world: &World, group: &str) -> Vec<String> {
    let backend = world.site.backend();
    let nodes = backend.nodes().into_iter().filter(|n| n.group == group);
    let mut given: Vec<String> = nodes
        .map(|n| String::from_utf8_lossy(&backend.user_data(&n.node_id).unwrap()).into_owned())
        .collect();
    given.sort();
    given
}

/// All stored keys, and all values except the user data itself.
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
    // The spec hash, which is visible to all readers, covers what a node is made from.
    assert!(nodes.iter().all(|node| node.spec_hash.starts_with("h3-")));
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
    // The previous data still exists for an undo.
    let mut back = with("second");
    back.spec.as_mut().unwrap().groups[0].bootstrap = source(Source::Sha256(digest.clone()));
    world.apply(back.clone()).await.unwrap();
    let node = world.nodes("orders").await.remove(0);
    assert_eq!((node.outdated, node.spec_hash), (false, before));
    // Ten changes later, neither a request nor a retained revision needs it, so it is dropped.
    for at in 0..12 {
        world.apply(with(&format!("data {at}"))).await.unwrap();
    }
    refused(world.apply(back).await, Reason::DigestNotStored);
    world.stop().await;
}

/// What a plan and a dry run return for a document, without values that depend on time.
async fn planned(door: &Door, who: &str, cluster: pb::Cluster) -> [String; 2] {
    let say = |plan: Option<pb::Plan>, cluster: Option<pb::Cluster>, warnings: Vec<String>| {
        let (plan, cluster) = (plan.unwrap(), cluster.unwrap());
        let renewed = plan.renewals.iter().flat_map(|group| &group.nodes);
        let renewed: Vec<_> = renewed
            .map(|node| (&node.node_name, &node.reason, &node.causes))
            .collect();
        let (spec, generation) = (cluster.spec.unwrap(), cluster.generation);
        format!("generation {generation}: {spec:?} {renewed:?} {warnings:?}")
    };
    let mut clusters = door.of(who);
    let plan = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Cluster(cluster.clone())),
        ..Default::default()
    };
    let plan = clusters.plan_cluster(plan).await.unwrap().into_inner();
    let apply = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        validate_only: true,
        ..Default::default()
    };
    let apply = clusters.apply_cluster(apply).await.unwrap().into_inner();
    let outcome = apply.outcome();
    let dry = say(apply.plan, apply.cluster, apply.warnings);
    [
        say(plan.plan, plan.cluster, plan.warnings),
        format!("{outcome:?} {dry}"),
    ]
}

#[tokio::test]
async fn who_may_only_look_finds_out_by_no_plan_whether_a_guess_is_what_is_stored() {
    let door = Door::with(SimulatedSettings::default(), RULES).await;
    let groups = [("web", 1), ("db", 1)];
    let with = |name: &str, data: &str| {
        changed(document(name, &groups), |spec| spec.bootstrap = text(data))
    };
    door.world.apply(with("orders", SECRET)).await.unwrap();
    let read = door.world.ready("orders").await;
    let Some(Source::Sha256(stored)) = read.spec.unwrap().bootstrap.unwrap().source else {
        panic!("a digest");
    };

    // For the cluster itself, and for one that does not exist.
    for name in ["orders", "stuff"] {
        let right = planned(&door, "looks", with(name, SECRET)).await;
        let wrong = planned(&door, "looks", with(name, GUESS)).await;
        assert_eq!(right, wrong, "{name}");
        for answer in right {
            assert!(!answer.contains(&stored), "{name}: {answer}");
            assert!(answer.contains(HIDDEN), "{name}: {answer}");
        }
    }
    // Stored data may be referred to in the same document, and is compared as usual.
    let beside = |guess: &str| {
        changed(document("orders", &groups), |spec| {
            spec.bootstrap = source(Source::Sha256(stored.clone()));
            spec.groups[0].bootstrap = text(guess);
        })
    };
    let right = planned(&door, "looks", beside(SECRET)).await;
    assert_eq!(right, planned(&door, "looks", beside(GUESS)).await);
    for answer in right {
        let renewed = answer.contains("web-0") && answer.contains("counts as changed");
        assert!(renewed && !answer.contains("db-0"), "{answer}");
    }

    // Callers who may change the cluster get the accurate result.
    let [plan, dry] = planned(&door, "admin", with("orders", SECRET)).await;
    assert!(dry.starts_with("Unchanged") && !plan.contains("web-0"));
    assert!(plan.contains(&stored) && dry.contains(&stored));
    let [plan, dry] = planned(&door, "admin", with("orders", GUESS)).await;
    assert!(dry.starts_with("Configured") && plan.contains("web-0"));
    // So does a caller who creates one.
    let [_, dry] = planned(&door, "looks", with("carts", GUESS)).await;
    assert!(dry.starts_with("Created") && !dry.contains(HIDDEN));

    // But not for the data of another cluster: the same data has another digest there, and its nodes have another hash.
    let [plan, dry] = planned(&door, "looks", with("carts", SECRET)).await;
    assert!(!plan.contains(&stored) && !dry.contains(&stored));
    door.world.apply(with("carts", SECRET)).await.unwrap();
    door.world.ready("carts").await;
    let mut hashes = Vec::new();
    for name in ["orders", "carts"] {
        let nodes = door.world.nodes(name).await;
        hashes.push(
            nodes
                .into_iter()
                .map(|node| node.spec_hash)
                .collect::<std::collections::BTreeSet<_>>(),
        );
    }
    assert!(hashes[0].is_disjoint(&hashes[1]), "{hashes:?}");
    door.stop().await;
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
