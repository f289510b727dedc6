//! End-to-end tests of addons: they follow the nodes that they serve, never hold them up, go before them when a cluster
//! is deleted, and survive an orchestrator that crashes at every crash point. Nothing is left over or made twice.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crashes;
mod hosts;
mod leftovers;
mod processes;

use drover_simulation as sim;

use std::time::Duration;

use drover_core::Error;
use drover_platform_cloud::drivers::simulated::{
    AddonSettings, Death, Fault, Operation, SimulatedSettings,
};
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{
        AddonKind, AddonState, AddonTarget, JumpHost, PortRef, ResourcePhase, port_ref::Port,
    },
};
use sim::{World, immortal, runtime};

const CALL: Duration = Duration::from_secs(60);
/// Resolution at which an order of events is watched.
const TICK: Duration = Duration::from_millis(50);

fn settings(addons: AddonSettings) -> SimulatedSettings {
    SimulatedSettings {
        addons,
        ..sim::settings()
    }
}

fn quick() -> SimulatedSettings {
    settings(AddonSettings::default())
}

fn balancer(port: u32) -> pb::Addon {
    pb::Addon {
        name: "lb".to_owned(),
        r#type: AddonKind::LoadBalancer.into(),
        platform: "sim".to_owned(),
        targets: vec!["web".to_owned()],
        port: Some(port),
        target_port: Some(PortRef {
            port: Some(Port::Number(8080)),
        }),
        ..pb::Addon::default()
    }
}

fn jump_host() -> pb::Addon {
    pb::Addon {
        name: "jump".to_owned(),
        r#type: AddonKind::JumpHost.into(),
        platform: "sim".to_owned(),
        targets: vec!["web".to_owned()],
        jump_host: Some(JumpHost::default()),
        ..pb::Addon::default()
    }
}

/// Applies the cluster with this number of web nodes.
async fn apply(world: &mut World, addons: Vec<pb::Addon>, web: u32) -> drover_core::Result<()> {
    apply_with(world, addons, web, &|_| {}).await
}

async fn apply_with(
    world: &mut World,
    addons: Vec<pb::Addon>,
    web: u32,
    change: &dyn Fn(&mut pb::ClusterSpec),
) -> drover_core::Result<()> {
    let change = |spec: &mut pb::ClusterSpec| {
        spec.addons.clone_from(&addons);
        spec.termination_grace_period = Some(prost_types::Duration {
            seconds: 30,
            nanos: 0,
        });
        change(spec);
    };
    let groups = [("web", web)];
    let applied = world.try_apply_with("one", &groups, &change).await;
    applied.map(drop)
}

/// Takes over what is there, with these addons.
async fn adopt_with(world: &mut World, addons: Vec<pb::Addon>, web: u32) {
    let mut cluster = sim::document("one", "sim", &[("web", web)]);
    cluster.spec.as_mut().unwrap().addons = addons;
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        adopt: true,
        ..Default::default()
    };
    let call = async |client: drover_client::OrchestratorClient| {
        client.apply_cluster(request.clone(), CALL).await
    };
    world.call(call).await.unwrap();
    let wanted = [("web".to_owned(), web)].into();
    world.wanted.insert("one".to_owned(), wanted);
}

fn there(world: &World, name: &str) -> Option<AddonState> {
    let addons = world.site.backend.addons().into_iter();
    addons
        .filter(|it| it.cluster_id == "one" && !it.owner.is_empty())
        .find(|it| it.name == name)
}

fn served(world: &World) -> u32 {
    there(world, "lb").map_or(0, |it| it.target_count)
}

fn is_ready(world: &World, name: &str) -> bool {
    there(world, name).is_some_and(|it| it.phase() == ResourcePhase::Ready)
}

/// Targets as they were last sent.
fn targets(world: &World, name: &str) -> Vec<AddonTarget> {
    let wanted = world.site.backend.addon_wanted("one", name);
    wanted.map(|it| it.targets).unwrap_or_default()
}

async fn status(world: &mut World) -> pb::ClusterStatus {
    world.cluster("one").await.unwrap().status.unwrap()
}

async fn addons_ready(world: &mut World) -> (bool, String) {
    let status = status(world).await;
    let found = status
        .conditions
        .iter()
        .find(|it| it.r#type == "AddonsReady");
    found.map_or((false, "not said".to_owned()), |it| {
        (it.status(), format!("{}: {}", it.reason, it.message))
    })
}

fn both() -> Vec<pb::Addon> {
    vec![balancer(30_001), jump_host()]
}

/// Waits until this number of nodes is ready.
async fn nodes_ready(world: &mut World, count: usize) {
    world
        .until("the nodes are ready", async |world| {
            let records = world.records("one").await;
            let ready = |it: &&pb::Node| it.state() == pb::NodeState::Ready;
            records.iter().filter(ready).count() == count
        })
        .await;
}

async fn reasons(world: &mut World) -> Vec<String> {
    let request = pb::ListEventsRequest {
        cluster: "one".to_owned(),
        page_size: 1000,
        ..Default::default()
    };
    let answer = world
        .call(async |client| client.list_events(request.clone(), CALL).await)
        .await;
    let events = answer.unwrap().events.into_iter();
    events.map(|event| event.reason).collect()
}

async fn gone(world: &mut World) {
    world
        .until("the cluster is gone", async |world| {
            world.cluster("one").await.is_none()
        })
        .await;
}

/// Asserts that no addon was made twice, and that none is left of clusters that are not wanted.
fn assert_sound(world: &World) {
    for ((cluster, name), ledger) in world.site.backend.addon_ledger() {
        assert!(ledger.created <= 1, "{cluster}/{name}: {ledger:?}");
    }
    for addon in world.site.backend.addons() {
        assert!(
            addon.owner.is_empty() || world.wanted.contains_key(&addon.cluster_id),
            "leaked: {addon:?}"
        );
    }
}

#[test]
fn addons_are_made_beside_nodes_serve_them_and_go_with_the_cluster() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        let addons = vec![balancer(30_001), jump_host()];
        apply(&mut world, addons, 3).await.unwrap();
        world
            .until("both serve the nodes", async |world| {
                let all = ["lb", "jump"].map(|name| there(world, name));
                all.into_iter().flatten().all(|it| it.target_count == 3)
                    && is_ready(world, "lb")
                    && is_ready(world, "jump")
            })
            .await;
        world.check().await;
        assert!(addons_ready(&mut world).await.0);
        let shown = status(&mut world).await.addons;
        let names: Vec<_> = shown.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["lb", "jump"], "in the order of the spec");
        assert_eq!(shown[0].endpoints[0].port, 30_001);
        let nodes = world.site.nodes("one");
        for target in targets(&world, "lb") {
            let node = nodes.iter().find(|node| node.node_id == target.node_id);
            let node = node.expect("a target is a node");
            assert_eq!((&target.name, &target.group), (&node.name, &node.group));
            assert_eq!(target.addresses, node.addresses);
        }
        world.delete("one").await;
        gone(&mut world).await;
        assert_eq!(world.site.backend.addons(), vec![]);
        world.check().await;
        assert_sound(&world);
    });
}

#[test]
fn an_addon_that_cannot_be_made_holds_no_node_up_and_is_named() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        for _ in 0..5 {
            let refusal = Fault::Refuse(Error::unavailable("the balancers are on strike"));
            world
                .site
                .backend
                .fail_next(Operation::EnsureAddon, refusal);
        }
        apply(&mut world, vec![balancer(30_001)], 2).await.unwrap();
        nodes_ready(&mut world, 2).await;
        assert_eq!(there(&world, "lb"), None);
        let (ready, why) = addons_ready(&mut world).await;
        assert!(!ready && why.contains("lb"), "{why}");
        world
            .until("it is made in the end", async |world| served(world) == 2)
            .await;
        world.check().await;
        assert!(addons_ready(&mut world).await.0);
    });
}

#[test]
fn a_balancer_learns_at_once_of_nodes_that_come() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        apply(&mut world, vec![balancer(30_001)], 2).await.unwrap();
        world.converge().await;
        world.scale("one", "web", 5).await;
        nodes_ready(&mut world, 5).await;
        world.pass(Duration::from_secs(1)).await;
        assert_eq!(served(&world), 5, "within a second");
    });
}

#[test]
fn a_node_goes_only_when_the_balancer_has_let_go_of_it() {
    runtime().block_on(async {
        // It takes a balancer 5 s to use a change.
        let mut world = World::new(
            settings(AddonSettings {
                apply_delay: Duration::from_secs(5),
                ..AddonSettings::default()
            }),
            immortal(),
        )
        .await;
        apply(&mut world, vec![balancer(30_001)], 3).await.unwrap();
        world
            .until("all are served", async |world| served(world) == 3)
            .await;
        world.converge().await;
        world.scale("one", "web", 2).await;
        let (mut drained, mut waited) = (false, 0);
        while world.site.nodes("one").len() == 3 {
            drained |= targets(&world, "lb").iter().any(|it| it.draining);
            waited += 1;
            assert!(waited < 600, "it is never removed");
            world.pass(TICK).await;
        }
        assert!(drained, "it was told to let go");
        assert_eq!(served(&world), 2, "and had done so");
        world.check().await;
    });
}

#[test]
fn a_node_does_not_wait_longer_than_its_grace_for_a_balancer_that_is_away() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        apply(&mut world, vec![balancer(30_001)], 3).await.unwrap();
        world
            .until("all are served", async |world| served(world) == 3)
            .await;
        world.converge().await;
        for _ in 0..100 {
            let away = Fault::Refuse(Error::unavailable("away"));
            world.site.backend.fail_next(Operation::EnsureAddon, away);
        }
        world.scale("one", "web", 2).await;
        world.pass(Duration::from_secs(20)).await;
        assert_eq!(world.site.nodes("one").len(), 3, "it waits");
        world.pass(Duration::from_secs(40)).await;
        assert_eq!(world.site.nodes("one").len(), 2, "not for ever");
    });
}

#[test]
fn a_standby_that_is_promoted_is_served_and_a_lost_node_is_not() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        let addons = vec![balancer(30_001), jump_host()];
        let standby = |spec: &mut pb::ClusterSpec| spec.groups[0].standby = Some(1);
        apply_with(&mut world, addons, 2, &standby).await.unwrap();
        world
            .until("two of three are served", async |world| {
                served(world) == 2 && there(world, "jump").is_some_and(|it| it.target_count == 3)
            })
            .await;
        // Only a standby that is ready is promoted.
        nodes_ready(&mut world, 3).await;
        let standby = |world: &World| {
            let targets = targets(world, "lb").into_iter();
            targets
                .filter(|it| it.role == 2)
                .map(|it| it.node_id)
                .collect::<Vec<_>>()
        };
        let before = standby(&world);
        assert_eq!(before.len(), 1, "the standby is a target, too");
        let active = targets(&world, "lb")
            .into_iter()
            .find(|it| !before.contains(&it.node_id));
        let lost = active.unwrap().node_id;
        assert!(world.site.backend.kill(&lost, Death::Vanished));
        world
            .until("the standby is served instead", async |world| {
                let targets = targets(world, "lb");
                let is_active = |it: &AddonTarget| it.node_id == before[0] && it.role != 2;
                targets.iter().any(is_active) && targets.iter().all(|it| it.node_id != lost)
            })
            .await;
        world
            .until("there is another standby", async |world| {
                served(world) == 2 && standby(world).len() == 1
            })
            .await;
        assert_ne!(standby(&world), before);
    });
}

#[test]
fn a_changed_spec_is_brought_in_and_a_dropped_addon_is_removed() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        let both = |port| vec![balancer(port), jump_host()];
        apply(&mut world, both(30_001), 2).await.unwrap();
        world.converge().await;
        let nodes = world.site.nodes("one");
        apply(&mut world, both(30_002), 2).await.unwrap();
        world
            .until("it listens on the other port", async |world| {
                there(world, "lb").is_some_and(|it| it.endpoints[0].port == 30_002)
            })
            .await;
        world.check().await;
        assert_eq!(world.site.nodes("one").len(), nodes.len());
        for node in &nodes {
            let same = world.site.nodes("one");
            assert!(
                same.iter().any(|it| it.node_id == node.node_id),
                "nodes stay"
            );
        }
        apply(&mut world, vec![jump_host()], 2).await.unwrap();
        world
            .until("the balancer is removed", async |world| {
                there(world, "lb").is_none()
            })
            .await;
        world.check().await;
        assert!(is_ready(&world, "jump"));
        let told = reasons(&mut world).await;
        for reason in ["AddonReady", "AddonRemoved"] {
            assert!(told.contains(&reason.to_owned()), "{reason} in {told:?}");
        }
        assert_sound(&world);
    });
}

#[test]
fn what_somebody_takes_away_of_an_addon_is_made_again() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        apply(&mut world, vec![balancer(30_001)], 2).await.unwrap();
        world.converge().await;
        let backend = world.site.backend.clone();
        assert!(backend.remove_addon_object("one", "lb", "service"));
        world.pass(Duration::from_secs(1_500)).await;
        let addon = there(&world, "lb").unwrap();
        assert_eq!(addon.phase(), ResourcePhase::Ready);
        assert_eq!(addon.resources.len(), 2, "{addon:?}");
        world.check().await;
        assert_sound(&world);
    });
}

#[test]
fn a_deletion_removes_addons_before_nodes() {
    runtime().block_on(async {
        let slow = AddonSettings {
            remove_delay: Duration::from_secs(10),
            ..AddonSettings::default()
        };
        let mut world = World::new(settings(slow), immortal()).await;
        apply(&mut world, vec![balancer(30_001), jump_host()], 3)
            .await
            .unwrap();
        world
            .until("all are served", async |world| served(world) == 3)
            .await;
        world.converge().await;
        world.delete("one").await;
        let mut waited = 0;
        while !world.site.backend.addons().is_empty() {
            assert_eq!(
                world.site.nodes("one").len(),
                3,
                "the nodes are still there"
            );
            waited += 1;
            assert!(waited < 1_200, "they are never removed");
            world.pass(TICK).await;
        }
        gone(&mut world).await;
        world.check().await;
        assert_sound(&world);
    });
}

#[test]
fn a_deletion_waits_for_a_platform_that_is_away_names_its_addons_and_ends() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        apply(&mut world, vec![balancer(30_001)], 1).await.unwrap();
        world
            .until("it is served", async |world| served(world) == 1)
            .await;
        world.converge().await;
        world.site.stop();
        world.pass(Duration::from_secs(60)).await;
        world.delete("one").await;
        world.pass(Duration::from_secs(60)).await;
        let blocked = world.condition("one", "DeletionBlocked").await.unwrap();
        assert!(
            blocked.contains("sim") && blocked.contains("lb"),
            "{blocked}"
        );
        world.site.start();
        gone(&mut world).await;
        world.check().await;
        assert_eq!(world.site.backend.addons(), vec![]);
    });
}

#[test]
fn addons_of_others_are_left_alone() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        let backend = world.site.backend.clone();
        backend.create_foreign_addon("one", AddonKind::LoadBalancer, "lb");
        backend.create_foreign_addon("elsewhere", AddonKind::JumpHost, "theirs");
        let refused = apply(&mut world, vec![balancer(30_001)], 1).await;
        if let Err(error) = refused {
            assert!(format!("{error:?}").contains("lb"), "{error:?}");
            apply(&mut world, vec![jump_host()], 1).await.unwrap();
        }
        world.pass(Duration::from_secs(600)).await;
        world.delete("one").await;
        gone(&mut world).await;
        world.pass(Duration::from_secs(600)).await;
        let mut left = backend.addons();
        left.sort_by(|a, b| a.name.cmp(&b.name));
        let left: Vec<_> = left.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(left, ["lb", "theirs"]);
    });
}

#[test]
fn wrong_addons_are_refused_where_they_are_wrong() {
    runtime().block_on(async {
        let mut world = World::new(quick(), immortal()).await;
        let with = |change: &dyn Fn(&mut pb::Addon)| {
            let mut addon = balancer(30_001);
            change(&mut addon);
            vec![jump_host(), addon]
        };
        let table = [
            (
                "spec.addons[1].name",
                with(&|it| it.name = "jump".to_owned()),
            ),
            (
                "spec.addons[1].platform",
                with(&|it| it.platform = "nobody".to_owned()),
            ),
            (
                "spec.addons[1].targets[0]",
                with(&|it| it.targets = vec!["data".to_owned()]),
            ),
            ("spec.addons[1].port", with(&|it| it.port = Some(70_000))),
            // What only the platform knows.
            ("spec.addons[1].port", with(&|it| it.port = Some(80))),
        ];
        for (field, addons) in table {
            let error = apply(&mut world, addons, 1).await.unwrap_err();
            let fields: Vec<_> = error.fields().iter().map(|it| &it.field).collect();
            assert!(fields.iter().any(|it| *it == field), "{field}: {error:?}");
            assert!(world.cluster("one").await.is_none());
        }
        assert_eq!(world.site.backend.addons(), vec![]);
    });
}
