//! A deletion completes from whatever state it began in.

use std::time::Duration;

use drover_core::{Error, Reason};
use drover_platform_cloud::drivers::simulated::{Death, Fault, Operation, SimulatedSettings};
use drover_proto::orchestrator::v1 as pb;

use drover_simulation::{World, immortal, runtime, settings};

/// Brings a cluster into a state, makes the platform unavailable, deletes the cluster, and restores the platform.
fn deleted_from(state: &str, by_server: bool, script: impl AsyncFn(&mut World)) {
    println!(
        "deleted from: {state}, platform {}",
        if by_server {
            "server down"
        } else {
            "backend away"
        }
    );
    runtime().block_on(async {
        let slow = SimulatedSettings {
            stop_delay: Duration::from_secs(3),
            ..settings()
        };
        let mut world = World::new(slow, immortal()).await;
        world
            .until("the platform is ready", async |world| {
                world.platform("sim").await.status.unwrap().phase() == pb::PlatformPhase::Ready
            })
            .await;
        script(&mut world).await;
        let away = |world: &World, away: bool| match (by_server, away) {
            (true, true) => world.site.stop(),
            (true, false) => world.site.start(),
            (false, away) => world.site.backend.pause_backend(away),
        };
        away(&world, true);
        world.pass(Duration::from_secs(20)).await;
        world.delete("one").await;
        world.pass(Duration::from_secs(60)).await;
        if world.cluster("one").await.is_some() {
            world
                .until("it is said what blocks the deletion", async |world| {
                    world
                        .condition("one", "DeletionBlocked")
                        .await
                        .is_some_and(|why| why.contains("sim"))
                })
                .await;
        } else {
            assert!(
                world.site.all().is_empty(),
                "it is finished although nodes are there"
            );
        }
        let refused = world.try_apply("one", &[("web", 1)]).await;
        if let Err(error) = refused {
            assert_eq!(error.reason(), Reason::ClusterDeleting, "{error}");
        } else {
            world.delete("one").await;
        }
        away(&world, false);
        world.check().await;
        assert!(world.cluster("one").await.is_none());
        world.apply("one", &[("web", 1)]).await;
        world.check().await;
    });
}

#[test]
fn a_deletion_ends_from_every_half_made_state_once_its_platform_is_back() {
    for by_server in [true, false] {
        deleted_from("ready", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.converge().await;
        });
        deleted_from("asked for", by_server, async |world| {
            world
                .site
                .backend
                .fail_next(Operation::Create, Fault::Stall(Duration::from_secs(5)));
            world.apply("one", &[("web", 4)]).await;
            world.pass(Duration::from_secs(1)).await;
        });
        deleted_from("made, and nobody was told", by_server, async |world| {
            world
                .site
                .backend
                .fail_next(Operation::Create, Fault::LoseAnswer);
            world.apply("one", &[("web", 4)]).await;
        });
        deleted_from("booting", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.pass(Duration::from_millis(20)).await;
        });
        deleted_from("half dead", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.converge().await;
            world.kill("one", 1, Death::Failed);
            world.kill("one", 1, Death::Vanished);
        });
        deleted_from("being scaled down", by_server, async |world| {
            world.apply("one", &[("web", 4)]).await;
            world.converge().await;
            world.scale("one", "web", 1).await;
            world.pass(Duration::from_millis(200)).await;
        });
        deleted_from("refused by the backend", by_server, async |world| {
            for _ in 0..3 {
                let error = Error::new(Reason::NoCapacity, "there is nothing left");
                world
                    .site
                    .backend
                    .fail_next(Operation::Create, Fault::Refuse(error));
            }
            world.apply("one", &[("web", 4)]).await;
            world.pass(Duration::from_secs(1)).await;
        });
    }
}
