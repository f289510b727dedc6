//! End-to-end tests of infrastructure: created before nodes, released after them, by an orchestrator that crashes at
//! every crash point. Nothing is left over, and nothing is created twice.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use drover_simulation as sim;

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason};
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{EndpointSpec, FirewallSpec, NetworkSpec, Resource, ResourcePhase},
};
use sim::{Crash, Site, World, document, runtime};

const CALL: Duration = Duration::from_secs(60);

fn below(platform: &str, cidr: &str) -> pb::Infrastructure {
    pb::Infrastructure {
        platform: platform.to_owned(),
        network: Some(NetworkSpec {
            cidr: cidr.to_owned(),
            ..Default::default()
        }),
        endpoint: Some(EndpointSpec {
            targets: vec!["web".to_owned()],
            ..Default::default()
        }),
        firewall: Some(FirewallSpec::default()),
        ..Default::default()
    }
}

fn settings() -> SimulatedSettings {
    SimulatedSettings {
        seed: Some(1),
        ..SimulatedSettings::default()
    }
}

fn of(site: &Site, cluster: &str) -> Vec<Resource> {
    let mut list = site.backend.infrastructure();
    list.retain(|resource| resource.cluster_id == cluster);
    list
}

fn kinds(site: &Site, cluster: &str) -> Vec<String> {
    let mut kinds: Vec<String> = of(site, cluster).into_iter().map(|r| r.kind).collect();
    kinds.sort();
    kinds
}

async fn one(world: &mut World) -> pb::ClusterStatus {
    world.cluster("one").await.unwrap().status.unwrap()
}

fn condition(status: &pb::ClusterStatus, kind: &str) -> (bool, String, String) {
    let found = status.conditions.iter().find(|c| c.r#type == kind);
    let found = found.unwrap_or_else(|| panic!("{kind} in {:?}", status.conditions));
    (found.status(), found.reason.clone(), found.message.clone())
}

async fn apply(world: &mut World, cluster: pb::Cluster) -> drover_core::Result<()> {
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    };
    world
        .call(async |client| client.apply_cluster(request.clone(), CALL).await)
        .await
        .map(drop)
}

fn with(below: Vec<pb::Infrastructure>, groups: &[(&str, u32)]) -> pb::Cluster {
    let mut cluster = document("one", "sim", groups);
    cluster.spec.as_mut().unwrap().infrastructure = below;
    cluster
}

async fn reasons(world: &mut World) -> Vec<String> {
    let request = pb::ListEventsRequest {
        cluster: "one".to_owned(),
        page_size: 1000,
        ..Default::default()
    };
    let answer = world
        .call(async |client| client.list_events(request.clone(), CALL).await)
        .await
        .unwrap();
    answer
        .events
        .into_iter()
        .map(|event| event.reason)
        .collect()
}

/// Asserts that nothing was created twice, and that nothing is left of deleted clusters.
fn assert_sound(world: &World) {
    let twice: Vec<_> = world
        .site
        .backend
        .infrastructure_created()
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .collect();
    assert!(twice.is_empty(), "made more than once: {twice:?}");
    for resource in world.site.backend.infrastructure() {
        assert!(
            world.wanted.contains_key(&resource.cluster_id),
            "leaked: {resource:?}"
        );
    }
}

async fn gone(world: &mut World) {
    world
        .until("the cluster is gone", async |world| {
            world.cluster("one").await.is_none()
        })
        .await;
}

#[test]
fn it_is_made_before_nodes_told_and_released_after_them() {
    runtime().block_on(async {
        let mut world = World::new(settings(), Crash::at([])).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        world.apply("one", &[("web", 3)]).await;
        world
            .until("part of it is there", async |world| {
                !of(&world.site, "one").is_empty()
            })
            .await;
        assert!(world.site.nodes("one").is_empty(), "nodes wait");
        let waits = one(&mut world).await;
        let (ready, reason, message) = condition(&waits, "InfrastructureReady");
        assert!(!ready && reason == "Infrastructure", "{reason}: {message}");
        assert_eq!(waits.phase(), pb::ClusterPhase::Progressing);
        world.check().await;
        let status = one(&mut world).await;
        assert!(condition(&status, "InfrastructureReady").0);
        let shown = &status.infrastructure[0];
        let state = shown.state.as_ref().unwrap();
        assert_eq!(
            (shown.platform.as_str(), state.phase()),
            ("sim", ResourcePhase::Ready)
        );
        let mut names: Vec<&str> = state.resources.iter().map(|r| r.kind.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["endpoint", "firewall", "network"]);
        let outputs = state.outputs.as_ref().unwrap();
        assert_eq!(outputs.platform, "sim");
        assert!(!outputs.network_id.is_empty() && outputs.endpoint.is_some());
        let told = reasons(&mut world).await;
        for reason in ["InfrastructureRequested", "InfrastructureReady"] {
            assert!(told.contains(&reason.to_owned()), "{reason} in {told:?}");
        }
        world.delete("one").await;
        gone(&mut world).await;
        assert!(world.site.backend.infrastructure().is_empty());
        world.check().await;
        assert_sound(&world);
    });
}

#[test]
fn changes_of_what_is_made_are_refused_with_the_field_and_additions_are_made() {
    runtime().block_on(async {
        let mut world = World::new(settings(), Crash::at([])).await;
        let network = |cidr: &str| pb::Infrastructure {
            endpoint: None,
            firewall: None,
            ..below("sim", cidr)
        };
        world.below = vec![network("10.0.0.0/24")];
        world.apply("one", &[("web", 1)]).await;
        world.converge().await;
        let groups = [("web", 1)];
        let error = apply(&mut world, with(vec![network("10.1.0.0/24")], &groups))
            .await
            .unwrap_err();
        assert_eq!(error.fields()[0].field, "spec.infrastructure[0].network");
        let error = apply(&mut world, with(vec![], &groups)).await.unwrap_err();
        assert_eq!(error.fields()[0].field, "spec.infrastructure");
        assert!(error.fields()[0].description.contains("1 node;"), "{error}");
        apply(&mut world, with(vec![below("sim", "10.0.0.0/24")], &groups))
            .await
            .unwrap();
        world
            .until("the parts are added", async |world| {
                kinds(&world.site, "one") == ["endpoint", "firewall", "network"]
            })
            .await;
        world.check().await;
        // Without nodes the entry can be removed, together with its resources.
        apply(
            &mut world,
            with(vec![below("sim", "10.0.0.0/24")], &[("web", 0)]),
        )
        .await
        .unwrap();
        world.wanted.get_mut("one").unwrap().insert("web".into(), 0);
        world.converge().await;
        apply(&mut world, with(vec![], &[("web", 0)]))
            .await
            .unwrap();
        world
            .until("it is released", async |world| {
                of(&world.site, "one").is_empty()
            })
            .await;
        world
            .until("the record is gone", async |world| {
                one(world).await.infrastructure.is_empty()
            })
            .await;
        world.below = Vec::new();
        world.check().await;
        assert_sound(&world);
    });
}

#[test]
fn wrong_entries_are_refused_where_they_are_wrong() {
    runtime().block_on(async {
        let mut world = World::new(settings(), Crash::at([])).await;
        let mut wrong = below("sim", "10.0.0.1/24");
        wrong.endpoint.as_mut().unwrap().targets = vec!["data".to_owned()];
        let nobody = below("nobody", "10.0.0.0/24");
        let error = apply(&mut world, with(vec![wrong, nobody.clone()], &[("web", 1)]))
            .await
            .unwrap_err();
        let fields: Vec<&str> = error.fields().iter().map(|f| f.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.infrastructure[0].network.cidr",
                "spec.infrastructure[0].endpoint.targets[0]",
            ]
        );
        let error = apply(&mut world, with(vec![nobody], &[("web", 1)]))
            .await
            .unwrap_err();
        assert_eq!(error.fields()[0].field, "spec.infrastructure[0].platform");
        assert!(world.cluster("one").await.is_none());
    });
}

#[test]
fn what_somebody_takes_away_is_made_again() {
    runtime().block_on(async {
        let mut world = World::new(settings(), Crash::at([])).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        world.apply("one", &[("web", 2)]).await;
        world.converge().await;
        let nodes: Vec<String> = world
            .site
            .nodes("one")
            .into_iter()
            .map(|n| n.node_id)
            .collect();
        assert!(world.site.backend.remove_infrastructure("one", "firewall"));
        world.pass(Duration::from_secs(1_500)).await;
        assert_eq!(
            kinds(&world.site, "one"),
            ["endpoint", "firewall", "network"]
        );
        let after: Vec<String> = world
            .site
            .nodes("one")
            .into_iter()
            .map(|n| n.node_id)
            .collect();
        assert_eq!(nodes, after, "nodes stay");
        world.check().await;
    });
}

#[test]
fn a_deletion_waits_for_a_platform_that_is_away_names_what_is_there_and_ends() {
    runtime().block_on(async {
        let mut world = World::new(settings(), Crash::at([])).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        world.apply("one", &[("web", 0)]).await;
        world.converge().await;
        world.site.stop();
        world.pass(Duration::from_secs(60)).await;
        world.delete("one").await;
        world.pass(Duration::from_secs(60)).await;
        let blocked = world.condition("one", "DeletionBlocked").await.unwrap();
        assert!(
            blocked.contains(
                "infrastructure on sim (endpoint endpoint, firewall firewall, network network)"
            ),
            "{blocked}"
        );
        world.site.start();
        gone(&mut world).await;
        world.check().await;
        assert_sound(&world);
    });
}

#[test]
fn a_release_goes_on_when_its_platform_is_bound_again_before_it_is_answered() {
    runtime().block_on(async {
        let slow = SimulatedSettings {
            latency: Duration::from_secs(8),
            ..settings()
        };
        let mut world = World::new(slow, Crash::at([])).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        world.apply("one", &[("web", 0)]).await;
        world.converge().await;
        world.delete("one").await;
        world
            .until("it is asked for", async |world| {
                let told = reasons(world).await;
                told.contains(&"InfrastructureReleasing".to_owned())
            })
            .await;
        world.site.backend.set_uid("the-new-one");
        world.site.stop();
        world.site.start();
        world
            .until("it is refused", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Refused
            })
            .await;
        assert!(!of(&world.site, "one").is_empty(), "it is not released yet");
        world.rebind("sim", "the-new-one").await;
        gone(&mut world).await;
        world.check().await;
        assert_sound(&world);
    });
}

#[test]
fn an_abandoned_platform_leaves_its_names_in_the_events() {
    runtime().block_on(async {
        let mut world = World::new(settings(), Crash::at([])).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        world.apply("one", &[("web", 0)]).await;
        world.converge().await;
        world.site.stop();
        world.pass(Duration::from_secs(600)).await;
        world.delete("one").await;
        let request = pb::AbandonPlatformRequest {
            cluster: "one".to_owned(),
            platform: "sim".to_owned(),
            ..Default::default()
        };
        world
            .call(async |client| client.abandon_platform(request.clone(), CALL).await)
            .await
            .unwrap();
        gone(&mut world).await;
        let told = reasons(&mut world).await;
        let named = told
            .iter()
            .filter(|r| *r == "InfrastructureAbandoned")
            .count();
        assert_eq!(named, 3, "one for each resource: {told:?}");
        // The platform comes back, and the sweep finds the abandoned resources, since their cluster is known to be
        // deleted.
        world.site.start();
        world.pass(Duration::from_secs(120)).await;
        assert_eq!(of(&world.site, "one").len(), 3, "not before its grace");
        world
            .until("what was left is released", async |world| {
                of(&world.site, "one").is_empty()
            })
            .await;
    });
}

#[test]
fn what_others_have_is_counted_and_never_touched() {
    runtime().block_on(async {
        let site = Site::new(settings());
        let sites = sim::Sites::default();
        sites.put("http://sim", &site);
        let mut other =
            World::over(sim::Disk::new(), sites.clone(), site.clone(), Crash::at([])).await;
        other.below = vec![below("sim", "10.9.0.0/24")];
        other.apply("theirs", &[("web", 0)]).await;
        other.converge().await;
        let mut world = World::over(sim::Disk::new(), sites, site, Crash::at([])).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        world.apply("one", &[("web", 0)]).await;
        world.delete("one").await;
        gone(&mut world).await;
        world.pass(Duration::from_secs(600)).await;
        assert_eq!(of(&world.site, "theirs").len(), 3);
        assert!(of(&world.site, "one").is_empty());
        let status = world.platform("sim").await.status.unwrap();
        let foreign = status
            .conditions
            .iter()
            .find(|c| c.r#type == "ForeignInfrastructure")
            .expect("it is said");
        assert!(
            foreign.message.starts_with("3 resources"),
            "{}",
            foreign.message
        );
    });
}

/// Runs a scenario with crashes at these hits. Returns whether it crashed at the first of them.
fn run(at: &[usize], settings: &SimulatedSettings, script: impl AsyncFn(&mut World)) -> bool {
    let crash = Crash::at(at.iter().copied());
    let died: Arc<Crash> = crash.clone();
    runtime().block_on(async {
        let mut world = World::new(settings.clone(), crash).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        script(&mut world).await;
        world.check().await;
        for (name, groups) in world.wanted.clone() {
            if !groups.is_empty() {
                assert_eq!(
                    kinds(&world.site, &name),
                    ["endpoint", "firewall", "network"],
                    "died at {:?}",
                    world.crash.died()
                );
            }
        }
        assert_sound(&world);
    });
    died.died().first().is_some_and(|(hit, _)| *hit == at[0])
}

fn at_every_point(name: &str, least: usize, script: impl AsyncFn(&mut World) + Copy) {
    let slow = SimulatedSettings {
        latency: Duration::from_millis(200),
        jitter: Duration::from_millis(200),
        visibility_delay: Duration::from_secs(5),
        ..settings()
    };
    let mut points = 0;
    for settings in [settings(), slow] {
        points += (1..)
            .take_while(|at| run(&[*at], &settings, script))
            .count();
    }
    println!("{name}: {points} points, 0 leaked, 0 doubled");
    assert!(points >= least, "{name}: {points} points only");
}

#[test]
fn it_dies_while_it_makes_infrastructure() {
    at_every_point("make", 30, async |world| {
        world.apply("one", &[("web", 2)]).await;
    });
}

#[test]
fn it_dies_while_it_deletes() {
    at_every_point("delete", 60, async |world| {
        world.apply("one", &[("web", 1)]).await;
        world.converge().await;
        world.delete("one").await;
        gone(world).await;
        assert!(world.site.backend.infrastructure().is_empty());
    });
}

#[test]
fn it_dies_while_a_half_made_cluster_is_deleted() {
    for wait in [0, 1_000, 2_500] {
        at_every_point(&format!("delete after {wait} ms"), 10, async |world| {
            world.apply("one", &[("web", 2)]).await;
            world.pass(Duration::from_millis(wait)).await;
            world.delete("one").await;
            gone(world).await;
            assert!(world.site.backend.infrastructure().is_empty());
        });
    }
}

#[test]
fn answers_are_lost_and_calls_fail_while_it_dies() {
    at_every_point("lost answers", 60, async |world| {
        let refuse = || Fault::Refuse(Error::unavailable("not now"));
        let backend = world.site.backend.clone();
        backend.fail_next(Operation::Ensure, Fault::LoseAnswer);
        backend.fail_next(Operation::Ensure, refuse());
        backend.fail_next(Operation::Ensure, Fault::LoseAnswer);
        backend.fail_next(Operation::Release, Fault::LoseAnswer);
        backend.fail_next(Operation::Release, refuse());
        world.apply("one", &[("web", 1)]).await;
        world.pass(Duration::from_secs(20)).await;
        world.delete("one").await;
        gone(world).await;
        assert!(world.site.backend.infrastructure().is_empty());
    });
}

#[test]
fn one_backend_refusal_holds_up_only_those_who_asked() {
    runtime().block_on(async {
        let mut world = World::new(settings(), Crash::at([])).await;
        world.below = vec![below("sim", "10.0.0.0/24")];
        let quota = || {
            Fault::Refuse(Error::new(
                Reason::QuotaExceeded,
                "10 networks are the limit",
            ))
        };
        for _ in 0..3 {
            world.site.backend.fail_next(Operation::Ensure, quota());
        }
        world.apply("one", &[("web", 1)]).await;
        world.below = Vec::new();
        world.apply("two", &[("web", 2)]).await;
        world
            .until("the other one runs", async |world| {
                world.site.nodes("two").len() == 2
            })
            .await;
        world
            .until("it is said why", async |world| {
                let (ready, reason, message) = condition(&one(world).await, "InfrastructureReady");
                !ready && reason == "NoCapacity" && message.contains("10 networks are the limit")
            })
            .await;
        assert_eq!(one(&mut world).await.phase(), pb::ClusterPhase::Blocked);
        world.check().await;
        assert!(condition(&one(&mut world).await, "InfrastructureReady").0);
    });
}
