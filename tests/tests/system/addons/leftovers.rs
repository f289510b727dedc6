//! Addons that nobody accounts for: of deleted clusters, and of living ones whose store has lost their records.

use std::time::Duration;

use drover_core::Error;
use drover_platform_cloud::drivers::simulated::{Fault, Operation};
use drover_proto::{orchestrator::v1 as pb, platform::v1::NetworkSpec};
use drover_simulation as sim;
use sim::{World, immortal, restored, runtime};

use super::{CALL, adopt_with, apply, apply_with, balancer, both, gone, is_ready, quick, served};

#[test]
fn a_list_that_fails_keeps_nothing_of_the_other_kind_from_being_released() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        world.below = vec![pb::Infrastructure {
            platform: "sim".to_owned(),
            network: Some(NetworkSpec {
                cidr: "10.0.0.0/24".to_owned(),
                ..NetworkSpec::default()
            }),
            ..pb::Infrastructure::default()
        }];
        apply(&mut world, vec![balancer(30_001)], 1).await.unwrap();
        world
            .until("it is served", async |world| served(world) == 1)
            .await;
        world.converge().await;
        world.site.stop();
        world.pass(Duration::from_secs(600)).await;
        world.delete("one").await;
        let request = pb::AbandonPlatformRequest {
            cluster: "one".to_owned(),
            platform: "sim".to_owned(),
            ..Default::default()
        };
        let call = async |client: drover_client::OrchestratorClient| {
            client.abandon_platform(request.clone(), CALL).await
        };
        world.call(call).await.unwrap();
        gone(&mut world).await;
        let backend = world.site.backend.clone();
        let refuse = |count| {
            for _ in 0..count {
                let refusal = Fault::Refuse(Error::unavailable("addons cannot be listed"));
                backend.fail_next(Operation::ListAddons, refusal);
            }
        };
        refuse(10_000);
        world.site.start();
        world
            .until("the network is released", async |world| {
                world.site.backend.infrastructure().is_empty()
            })
            .await;
        assert_eq!(
            world.site.backend.addons().len(),
            1,
            "it is not known what is there"
        );
    });
}

#[test]
fn addons_that_a_restored_store_does_not_know_freeze_it_until_they_are_adopted() {
    runtime().block_on(async {
        let later = async |world: &mut World| {
            apply_with(world, both(), 3, &|_| {}).await.unwrap();
            let is_there = async |world: &mut World| served(world) == 3 && is_ready(world, "jump");
            world.until("both are there", is_there).await;
        };
        let (mut world, nodes) = restored::restored(later, immortal()).await;
        world
            .until("it is said that the store is behind", async |world| {
                let behind = world.condition("one", "StoreBehind").await;
                behind.is_some_and(|it| it.contains("sim shows request number"))
            })
            .await;
        world.pass(sim::LONG).await;
        assert_eq!(world.site.backend.addons().len(), 2, "nothing is removed");
        let refusal = world.adopt("one", &[("web", 3)], false).await.unwrap_err();
        for name in ["jump", "lb"] {
            let words = format!("lacks addon \"{name}\", which sim shows");
            assert!(refusal.message().contains(&words), "{refusal:?}");
        }
        adopt_with(&mut world, both(), 3).await;
        world.converge().await;
        assert_eq!(world.site.backend.addons().len(), 2, "both are its own");
        apply_with(&mut world, Vec::new(), 3, &|_| {})
            .await
            .unwrap();
        world
            .until("they are removed, as the spec says", async |world| {
                world.site.backend.addons().is_empty()
            })
            .await;
        world.check().await;
        assert_eq!(restored::ids(&world.site), nodes);
        assert_eq!(world.condition("one", "StoreBehind").await, None);
    });
}
