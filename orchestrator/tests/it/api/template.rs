//! Changes of a platform's templates while nodes made from them exist.

use std::{collections::BTreeSet, fs, path::Path};

use drover_client::in_process;
use drover_core::name::{node_id, node_name};
use drover_platform_cloud::{PlatformServer, Settings, drivers::simulated::SimulatedSettings};
use drover_proto::{
    orchestrator::v1::{self as pb, plan_cluster_request::Subject},
    platform::v1::{self as wire, platform_service_client::PlatformServiceClient},
};
use uuid::Uuid;

use crate::api::support::{World, changed, document, until};

const INDEX: &str = "\
default: {template: web.yaml}
stores: [{store: redis, versions: [{version: '*', template: redis.yaml}]}]
";

fn write(directory: &Path, name: &str, content: &str) {
    fs::write(directory.join(name), content).unwrap();
}

/// An orchestrator with one platform whose catalogue is in a directory.
async fn world(directory: &Path) -> (World, PlatformServer) {
    write(directory, "index.yaml", INDEX);
    write(directory, "web.yaml", "first");
    write(directory, "redis.yaml", "redis");
    let world = World::bare(SimulatedSettings::default()).await;
    let settings = Settings {
        templates: Some(directory.to_owned()),
        ..Settings::from(SimulatedSettings::default())
    };
    let server = PlatformServer::open(settings).await.unwrap();
    world.sites.put("http://sim", in_process(server.routes()));
    world.register("sim", "http://sim").await.unwrap();
    (world, server)
}

fn ids(nodes: &[pb::Node]) -> BTreeSet<String> {
    nodes.iter().map(|node| node.id.clone()).collect()
}

async fn outdated(world: &World, wanted: bool) {
    until(&format!("all nodes are outdated: {wanted}"), async || {
        let nodes = world.nodes("orders").await;
        nodes
            .iter()
            .all(|node| node.outdated == wanted)
            .then_some(())
    })
    .await;
}

async fn up_to_date(world: &World) -> (Option<bool>, String) {
    let status = world.get("orders").await.unwrap().status.unwrap();
    let mut conditions = status.conditions.into_iter();
    let found = conditions.find(|one| one.r#type == "UpToDate").unwrap();
    (found.status, found.message)
}

#[tokio::test]
async fn a_changed_template_replaces_the_nodes_of_its_entry_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let (world, server) = world(directory.path()).await;
    let cache = changed(document("cache", &[("db", 2)]), |spec| {
        spec.store = Some(pb::StoreSpec {
            software: "redis".into(),
            version: "7".into(),
        });
    });
    world
        .apply(document("orders", &[("web", 3)]))
        .await
        .unwrap();
    world.apply(cache).await.unwrap();
    world.ready("orders").await;
    world.ready("cache").await;
    let (before, others) = (world.nodes("orders").await, world.nodes("cache").await);
    write(directory.path(), "web.yaml", "second");
    until("all nodes are new", async || {
        let nodes = world.nodes("orders").await;
        let new = nodes.len() == 3 && ids(&nodes).is_disjoint(&ids(&before));
        (new && !nodes.iter().any(|node| node.outdated)).then_some(())
    })
    .await;
    let orders = world.ready("orders").await;
    let group = &orders.status.as_ref().unwrap().groups[0];
    assert_eq!(
        (group.updated, group.updated_ready, group.renewing),
        (3, 3, 0)
    );
    assert_eq!(group.update_start_time, None);
    assert_eq!(orders.generation, 1, "the spec is the same");
    assert_eq!(up_to_date(&world).await, (Some(true), String::new()));
    let events = world.events("orders").await;
    let said = |reason: &str| -> Vec<&str> {
        let of = events.iter().filter(|event| event.reason == reason);
        of.map(|event| &*event.message).collect()
    };
    assert_eq!(
        said("UpdateStarted"),
        ["3 nodes are to be replaced; their template changed"]
    );
    assert_eq!(said("UpdateFinished").len(), 1);
    let same = world.nodes("cache").await;
    assert_eq!(ids(&same), ids(&others));
    assert!(!same.iter().any(|node| node.outdated));
    world.stop().await;
    drop(server);
}

#[tokio::test]
async fn what_is_replaced_by_name_alone_is_shown_as_outdated_with_the_cause() {
    let directory = tempfile::tempdir().unwrap();
    let (world, server) = world(directory.path()).await;
    let on_delete = changed(document("orders", &[("web", 2)]), |spec| {
        spec.update = Some(pb::UpdatePolicy {
            strategy: pb::UpdateStrategy::OnDelete.into(),
            ..Default::default()
        });
    });
    world.apply(on_delete).await.unwrap();
    world.ready("orders").await;
    let before = ids(&world.nodes("orders").await);
    write(directory.path(), "web.yaml", "second");
    outdated(&world, true).await;
    let (status, message) = up_to_date(&world).await;
    assert_eq!(
        (status, &*message),
        (Some(false), "template web.yaml of platform sim changed")
    );
    // What a rolling update would do, and why.
    let request = pb::PlanClusterRequest {
        subject: Some(Subject::Cluster(document("orders", &[("web", 2)]))),
        min_revision: None,
    };
    let answer = world.clusters().plan_cluster(request).await.unwrap();
    let plan = answer.into_inner().plan.unwrap();
    let [renewal] = &plan.renewals[..] else {
        panic!("{plan:?}");
    };
    assert_eq!(renewal.nodes.len(), 2);
    for node in &renewal.nodes {
        assert_eq!(node.reason, "Outdated");
        assert_eq!(node.causes, ["template web.yaml of platform sim"]);
    }
    // Comments do not change a template, and restoring one restores its digest.
    write(directory.path(), "index.yaml", &format!("# Ours.\n{INDEX}"));
    write(directory.path(), "web.yaml", "first");
    outdated(&world, false).await;
    assert_eq!(up_to_date(&world).await, (Some(true), String::new()));
    assert_eq!(ids(&world.nodes("orders").await), before);
    world.stop().await;
    drop(server);
}

#[tokio::test]
async fn a_platform_says_from_which_template_it_made_nodes_as_long_as_it_knows() {
    let directory = tempfile::tempdir().unwrap();
    let (world, server) = world(directory.path()).await;
    let mut client = PlatformServiceClient::new(in_process(server.routes()));
    let answer = client.get_platform(wire::GetPlatformRequest {}).await;
    let platform = answer.unwrap().into_inner().platform.unwrap();
    let (owner, id) = (Uuid::now_v7(), Uuid::now_v7());
    let request = wire::ProvisionRequest {
        expected_platform_uid: platform.uid,
        fence: Some(wire::Fence {
            store_id: Uuid::now_v7().to_string(),
            shard: 0,
            epoch: 1,
        }),
        owner: owner.to_string(),
        request_id: id.to_string(),
        sequence: 1,
        slots: vec![wire::Slot {
            index: Some(0),
            id: node_id("web", 0, owner, id, 0),
            name: node_name("web", 0),
            ordinal: Some(0),
            role: wire::NodeRole::Active.into(),
            host_id: None,
        }],
        cluster: Some(wire::ClusterContext {
            id: "elsewhere".into(),
            ..Default::default()
        }),
        group: Some(wire::ResolvedGroup {
            path: "web".into(),
            size: 1,
            ..Default::default()
        }),
        spec_hash: "h1-x".into(),
        ..Default::default()
    };
    let first = client
        .provision(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.nodes.len(), 1);
    let entry = &platform.templates[0];
    assert_eq!((&*entry.template, entry.digest.len()), ("web.yaml", 64));
    assert_eq!(first.template_digest, entry.digest);
    // The node existed before the call, so it may have been made from any template.
    let again = client.provision(request).await.unwrap().into_inner();
    assert_eq!(again.nodes.len(), 1);
    assert_eq!(again.template_digest, "");
    world.stop().await;
    drop(server);
}

#[tokio::test]
async fn nodes_that_run_are_probed_as_a_changed_template_says() {
    let directory = tempfile::tempdir().unwrap();
    let (world, server) = world(directory.path()).await;
    // Remediation is disabled, so that unhealthy nodes are not replaced.
    let held = changed(document("orders", &[("web", 3)]), |spec| {
        spec.remediation = Some(pb::RemediationPolicy {
            enabled: Some(false),
            ..Default::default()
        });
    });
    world.apply(held).await.unwrap();
    world.ready("orders").await;
    let before = ids(&world.nodes("orders").await);
    let all = async |state: pb::NodeState| {
        until(&format!("all are {state:?}"), async || {
            let nodes = world.nodes("orders").await;
            nodes.iter().all(|node| node.state() == state).then_some(())
        })
        .await;
    };
    let probed = |command: &str| {
        let health = format!(
            "health: {{exec: {{command: [{command}]}}, interval: 100ms, failureThreshold: 1}}"
        );
        INDEX.replace("web.yaml}", &format!("web.yaml, {health}}}"))
    };
    for _ in 0..2 {
        write(directory.path(), "index.yaml", &probed("'false'"));
        all(pb::NodeState::Unhealthy).await;
        write(directory.path(), "index.yaml", &probed("'true'"));
        all(pb::NodeState::Ready).await;
        // Without a probe, nothing is probed; with the next one, probing resumes.
        write(directory.path(), "index.yaml", INDEX);
        all(pb::NodeState::Ready).await;
    }
    assert_eq!(ids(&world.nodes("orders").await), before);
    world.stop().await;
    drop(server);
}
