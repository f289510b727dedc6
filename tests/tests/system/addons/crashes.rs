//! The orchestrator crashes at every crash point of what it does about addons: nothing is left over or made twice.

use std::{sync::Arc, time::Duration};

use drover_core::Error;
use drover_platform::identity::Identity;
use drover_platform_cloud::drivers::simulated::{
    AddonSettings, Death, Fault, Operation, SimulatedSettings,
};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{AddonTarget, NodeRole},
};
use drover_simulation as sim;
use sim::{Crash, World, runtime};

use super::{
    adopt_with, apply, apply_with, assert_sound, balancer, both, gone, hosts, is_ready, jump_host,
    nodes_ready, quick, served, settings, targets,
};

/// Runs a scenario with a crash at this hit, after which so many of the web nodes stand by. Returns whether it crashed
/// there.
fn run(
    at: usize,
    settings: &SimulatedSettings,
    standby: u32,
    script: impl AsyncFn(&mut World),
) -> bool {
    let crash = Crash::at([at]);
    let died: Arc<Crash> = crash.clone();
    runtime().block_on(async {
        let mut world = World::new(settings.clone(), crash).await;
        script(&mut world).await;
        world.check().await;
        let died = world.crash.died();
        if let Some(groups) = world.wanted.get("one").cloned() {
            world
                .until("the addons serve all nodes", async |world| {
                    served(world) == groups["web"] - standby && is_ready(world, "jump")
                })
                .await;
        } else {
            assert_eq!(world.site.backend.addons(), vec![], "died at {died:?}");
        }
        assert_sound(&world);
    });
    died.died().first().is_some_and(|(hit, _)| *hit == at)
}

fn at_every_point(name: &str, least: usize, script: impl AsyncFn(&mut World) + Copy) {
    at_every_point_of(name, least, &quick(), 0, script);
}

/// Crashes at every point of a scenario on a platform with these settings: with addons that are made at once, and on a
/// slow one that makes them step by step.
fn at_every_point_of(
    name: &str,
    least: usize,
    quick: &SimulatedSettings,
    standby: u32,
    script: impl AsyncFn(&mut World) + Copy,
) {
    let slow = SimulatedSettings {
        latency: Duration::from_millis(200),
        jitter: Duration::from_millis(200),
        addons: AddonSettings {
            steps: true,
            apply_delay: Duration::from_secs(1),
            ..AddonSettings::default()
        },
        ..quick.clone()
    };
    let mut points = 0;
    for settings in [quick, &slow] {
        let dies = |at: &usize| run(*at, settings, standby, script);
        points += (1..).take_while(dies).count();
    }
    println!("{name}: {points} points, 0 leaked, 0 doubled");
    assert!(points >= least, "{name}: {points} points only");
}

#[test]
fn it_dies_while_it_makes_addons() {
    at_every_point("make", 40, async |world| {
        apply(world, both(), 2).await.unwrap();
    });
}

#[test]
fn it_dies_while_membership_changes() {
    at_every_point("change", 60, async |world| {
        apply(world, both(), 2).await.unwrap();
        world.pass(Duration::from_secs(5)).await;
        world.scale("one", "web", 3).await;
        world.pass(Duration::from_secs(5)).await;
        world.scale("one", "web", 1).await;
    });
}

#[test]
fn it_dies_while_a_cluster_with_addons_is_deleted() {
    at_every_point("delete", 60, async |world| {
        apply(world, both(), 2).await.unwrap();
        world.pass(Duration::from_secs(5)).await;
        world.delete("one").await;
        gone(world).await;
    });
}

#[test]
fn answers_about_addons_are_lost_while_it_dies() {
    at_every_point("lost answers", 60, async |world| {
        let backend = world.site.backend.clone();
        for operation in [Operation::EnsureAddon, Operation::RemoveAddon] {
            backend.fail_next(operation, Fault::LoseAnswer);
            let refusal = Fault::Refuse(Error::unavailable("not now"));
            backend.fail_next(operation, refusal);
            backend.fail_next(operation, Fault::LoseAnswer);
        }
        apply(world, both(), 1).await.unwrap();
        world.pass(Duration::from_secs(20)).await;
        world.delete("one").await;
        gone(world).await;
    });
}

#[test]
fn it_dies_while_a_standby_is_promoted() {
    at_every_point_of("promote", 60, &quick(), 1, async |world| {
        let standby = |spec: &mut pb::ClusterSpec| spec.groups[0].standby = Some(1);
        apply_with(world, both(), 2, &standby).await.unwrap();
        // The standby counts, too.
        world
            .wanted
            .get_mut("one")
            .unwrap()
            .insert("web".to_owned(), 3);
        nodes_ready(world, 3).await;
        let is_served = async |world: &mut World| served(world) == 2 && is_ready(world, "jump");
        world.until("two are served", is_served).await;
        let told = targets(world, "lb");
        let is_active = |it: &&AddonTarget| it.role() != NodeRole::Standby;
        let active = told.iter().find(is_active).unwrap();
        assert!(world.site.backend.kill(&active.node_id, Death::Failed));
        let lost = active.node_id.clone();
        world
            .until("the standby is served instead", async |world| {
                let told = targets(world, "lb");
                told.iter().all(|it| it.node_id != lost) && served(world) == 2
            })
            .await;
    });
}

#[test]
fn it_dies_while_nodes_that_were_there_are_adopted_and_get_addons() {
    at_every_point("adopt", 60, async |world| {
        for ordinal in 0..2 {
            let identity = Identity {
                cluster_id: "one".to_owned(),
                group: "web".to_owned(),
                name: format!("web-{ordinal}"),
                ordinal,
                id: format!("web-{ordinal}-old"),
                ..Identity::default()
            };
            world.site.backend.create_as(identity).unwrap();
        }
        adopt_with(world, both(), 3).await;
        world.pass(Duration::from_secs(5)).await;
    });
}

#[test]
fn it_dies_while_nodes_wait_until_the_balancer_has_let_go_of_them() {
    let lingering = settings(AddonSettings {
        apply_delay: Duration::from_secs(2),
        ..AddonSettings::default()
    });
    at_every_point_of("drain", 80, &lingering, 0, async |world| {
        apply(world, both(), 3).await.unwrap();
        let all = async |world: &mut World| served(world) == 3;
        world.until("all are served", all).await;
        world.scale("one", "web", 1).await;
    });
}

#[test]
fn it_dies_while_an_addon_changes_and_another_is_dropped() {
    at_every_point("drop", 80, async |world| {
        let mut provider = jump_host();
        provider.name = "second".to_owned();
        let three = [both(), vec![provider]].concat();
        apply(world, three, 2).await.unwrap();
        world.pass(Duration::from_secs(5)).await;
        apply(world, vec![balancer(31_001), jump_host()], 2)
            .await
            .unwrap();
        let only_two = async |world: &mut World| world.site.backend.addons().len() == 2;
        world.until("the third is gone", only_two).await;
    });
}

#[test]
fn it_dies_while_hosts_are_claimed_and_given_back() {
    at_every_point_of("claim", 100, &hosts::pool(5), 0, async |world| {
        apply(world, both(), 2).await.unwrap();
        nodes_ready(world, 2).await;
        world.scale("one", "web", 4).await;
        nodes_ready(world, 4).await;
        world.scale("one", "web", 1).await;
        hosts::until_claimed(world, 1).await;
    });
}

#[test]
fn it_dies_while_a_cluster_of_hosts_is_deleted() {
    at_every_point_of("release", 80, &hosts::pool(3), 0, async |world| {
        apply(world, both(), 3).await.unwrap();
        nodes_ready(world, 3).await;
        world.delete("one").await;
        gone(world).await;
        hosts::until_claimed(world, 0).await;
    });
}

#[test]
fn it_dies_while_standby_hosts_take_the_place_of_those_in_error_and_of_deleted_ones() {
    at_every_point_of("take over", 100, &hosts::pool(6), 1, async |world| {
        let spare = |spec: &mut pb::ClusterSpec| {
            spec.groups[0].standby = Some(1);
            spec.health = Some(hosts::strict());
        };
        apply_with(world, both(), 2, &spare).await.unwrap();
        // The standby counts, too.
        let groups = world.wanted.get_mut("one").unwrap();
        groups.insert("web".to_owned(), 3);
        nodes_ready(world, 3).await;
        let two = async |world: &mut World| served(world) == 2;
        for error in [true, false] {
            world.until("two are served", two).await;
            let told = targets(world, "lb");
            let is_active = |it: &&AddonTarget| it.role() != NodeRole::Standby && !it.draining;
            let lost = told.iter().find(is_active).unwrap().node_id.clone();
            let backend = &world.site.backend;
            assert!(match error {
                true => backend.set_ready(&lost, false),
                false => backend.kill(&lost, Death::Terminated),
            });
            let without = async |world: &mut World| {
                let told = targets(world, "lb");
                told.iter().all(|it| it.node_id != lost)
            };
            world.until("it is served no more", without).await;
            nodes_ready(world, 3).await;
        }
    });
}

#[test]
fn it_dies_while_labels_of_hosts_change() {
    at_every_point_of("labels", 60, &hosts::pool(4), 0, async |world| {
        for tenant in ["blue", "red"] {
            let change = |spec: &mut pb::ClusterSpec| hosts::label(spec, &[("tenant", tenant)]);
            apply_with(world, both(), 2, &change).await.unwrap();
            hosts::until_labelled(world, 2, "tenant", tenant).await;
        }
        assert_eq!(world.site.backend.ledger().len(), 2, "no host was replaced");
    });
}
