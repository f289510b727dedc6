//! Named hosts, spread and spill-over, from the document to the backend.

use std::collections::BTreeMap;

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::{
    ClassSettings, Death, DomainSettings, HostSettings, SimulatedSettings,
};
use drover_proto::{
    common::v1::LabelSelector,
    orchestrator::v1 as pb,
    platform::v1::{Spread, UnsatisfiableAction},
};

use crate::api::support::{World, changed, document, invalid, until};

fn machines(names: &[&str]) -> SimulatedSettings {
    let host = |name: &&str| HostSettings {
        id: (*name).to_owned(),
        ..HostSettings::default()
    };
    SimulatedSettings {
        hosts: names.iter().map(host).collect(),
        ..SimulatedSettings::default()
    }
}

fn on(name: &str, size: u32, hosts: &[&str]) -> pb::Cluster {
    changed(document(name, &[("db", size)]), |spec| {
        spec.groups[0].placement = Some(pb::Placement {
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            ..Default::default()
        });
    })
}

async fn hosts(world: &World, cluster: &str) -> Vec<String> {
    let nodes = world.nodes(cluster).await.into_iter();
    let mut hosts: Vec<String> = nodes.filter_map(|node| node.host_id).collect();
    hosts.sort();
    hosts
}

async fn condition(world: &World, cluster: &str, kind: &str) -> Option<String> {
    let status = world.get(cluster).await.unwrap().status.unwrap();
    let groups = status.groups.into_iter().flat_map(|group| group.conditions);
    let mut all = status.conditions.into_iter().chain(groups);
    all.find(|one| one.r#type == kind).map(|one| one.message)
}

#[tokio::test]
async fn named_machines_are_claimed_kept_and_freed() {
    let world = World::with(machines(&["m1", "m2", "m3"])).await;
    world
        .apply(on("orders", 2, &["m1", "m2", "m3"]))
        .await
        .unwrap();
    world.ready("orders").await;
    assert_eq!(hosts(&world, "orders").await, ["m1", "m2"]);
    let backend = world.site.backend();
    let on_m1 = |nodes: Vec<drover_proto::platform::v1::Node>| {
        let mut nodes = nodes.into_iter();
        nodes.find(|n| n.host_id.as_deref() == Some("m1"))
    };
    let before = on_m1(backend.nodes()).unwrap();
    backend.kill(&before.node_id, Death::Failed);
    until("it is replaced", async || {
        let nodes = backend.nodes();
        let left = nodes.iter().any(|node| node.node_id == before.node_id);
        (!left && nodes.len() == 2).then_some(())
    })
    .await;
    world.ready("orders").await;
    let used = hosts(&world, "orders").await;
    assert_eq!(used.len(), 2);
    world
        .apply(on("orders", 1, &["m1", "m2", "m3"]))
        .await
        .unwrap();
    world.ready("orders").await;
    assert_eq!(
        hosts(&world, "orders").await,
        used[..1],
        "the last one is freed"
    );
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    world
        .apply(on("other", 3, &["m1", "m2", "m3"]))
        .await
        .unwrap();
    world.ready("other").await;
    world.stop().await;
}

#[tokio::test]
async fn a_machine_of_somebody_else_or_of_nobody_is_said_and_the_others_are_made() {
    let world = World::with(machines(&["m1", "m2", "m3"])).await;
    world.site.backend().claim_host("m2", "bob");
    let wanted = on("orders", 4, &["m1", "m2", "m3", "m9"]);
    world.apply(wanted).await.unwrap();
    let said = until("both are said", async || {
        let said = condition(&world, "orders", "Rejected").await?;
        (said.contains("m2") && said.contains("m9")).then_some(said)
    })
    .await;
    assert!(said.contains("belongs to bob"), "{said}");
    assert!(said.contains("no machine \"m9\""), "{said}");
    until("the others are there", async || {
        (hosts(&world, "orders").await == ["m1", "m3"]).then_some(())
    })
    .await;
    world.site.backend().claim_host("m2", "");
    let request = pb::ReconcileClusterRequest {
        name: "orders".to_owned(),
        reset_back_off: true,
    };
    world.clusters().reconcile_cluster(request).await.unwrap();
    until("it is taken when it is free", async || {
        (hosts(&world, "orders").await == ["m1", "m2", "m3"]).then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn machines_are_refused_where_they_cannot_be_had() {
    let world = World::new().await;
    let field = "spec.groups[0].placement";
    let status = invalid(world.apply(on("orders", 1, &["m1"])).await, field);
    assert!(status.message().contains("named machines"), "{status:?}");
    world.stop().await;

    let world = World::with(machines(&["m1", "m2"])).await;
    let twice = changed(on("orders", 1, &["m1"]), |spec| {
        let mut second = spec.groups[0].clone();
        second.name = "web".to_owned();
        spec.groups.push(second);
    });
    invalid(
        world.apply(twice).await,
        "spec.groups[1].placement.hosts[0]",
    );
    world.apply(on("orders", 1, &["m1", "m2"])).await.unwrap();
    world.ready("orders").await;
    // Scaled beyond its hosts.
    let request = pb::ScaleGroupRequest {
        cluster: "orders".to_owned(),
        group: "db".to_owned(),
        size: Some(3),
        ..Default::default()
    };
    let scaled = world.clusters().scale_group(request).await;
    invalid(scaled, "spec.groups[0].placement.hosts");
    // When its host is removed from the group, the node moves to the other one.
    let mut strict = on("orders", 1, &["m2"]);
    let count = pb::count_or_percent::Amount::Count(0);
    strict.spec.as_mut().unwrap().groups[0].update = Some(pb::UpdatePolicy {
        max_unavailable: Some(pb::CountOrPercent {
            amount: Some(count),
        }),
        ..Default::default()
    });
    let field = "spec.groups[0].update.max_unavailable";
    invalid(world.apply(strict).await, field);
    world.apply(on("orders", 1, &["m2"])).await.unwrap();
    world.ready("orders").await;
    let nodes = world.nodes("orders").await;
    assert_eq!(nodes[0].host_id.as_deref(), Some("m2"), "{nodes:?}");
    world.stop().await;
}

fn zones(zones: &[(&str, Option<u32>)]) -> SimulatedSettings {
    let zone = |(name, capacity): &(&str, Option<u32>)| DomainSettings {
        name: (*name).to_owned(),
        capacity: *capacity,
        ..DomainSettings::default()
    };
    SimulatedSettings {
        failure_domains: zones.iter().map(zone).collect(),
        ..SimulatedSettings::default()
    }
}

fn spread(size: u32, per_domain: Option<u32>) -> pb::Cluster {
    changed(document("orders", &[("db", size)]), |spec| {
        spec.groups[0].placement = Some(pb::Placement {
            spread: vec![Spread {
                topology_key: "zone".to_owned(),
                when_unsatisfiable: UnsatisfiableAction::DoNotSchedule.into(),
                max_per_domain: per_domain,
                ..Default::default()
            }],
            ..Default::default()
        });
    })
}

fn by_zone(world: &World) -> Vec<usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for node in world.site.backend().nodes() {
        *counts.entry(node.failure_domain).or_default() += 1;
    }
    counts.into_values().collect()
}

#[tokio::test]
async fn a_spread_counts_who_is_placed_already_and_holds_when_it_shrinks() {
    let world = World::with(zones(&[("a", None), ("b", None), ("c", None)])).await;
    for (size, expected) in [(2, vec![1, 1]), (4, vec![1, 1, 2]), (6, vec![2, 2, 2])] {
        world.apply(spread(size, None)).await.unwrap();
        world.ready("orders").await;
        let mut counts = by_zone(&world);
        counts.sort_unstable();
        assert_eq!(counts, expected, "{size}");
    }
    world.apply(spread(3, None)).await.unwrap();
    world.ready("orders").await;
    assert_eq!(by_zone(&world), [1, 1, 1]);
    world.stop().await;
}

#[tokio::test]
async fn a_scale_down_with_room_to_spare_never_grows() {
    let world = World::with(zones(&[("a", None), ("b", None), ("c", None), ("d", None)])).await;
    world.apply(spread(4, Some(1))).await.unwrap();
    world.ready("orders").await;
    let made = world.site.backend().ledger().len();
    world.apply(spread(3, Some(1))).await.unwrap();
    world.ready("orders").await;
    assert_eq!(by_zone(&world), [1, 1, 1]);
    assert_eq!(
        world.site.backend().ledger().len(),
        made,
        "nothing was made"
    );
    world.stop().await;
}

#[tokio::test]
async fn one_more_than_the_domains_hold_waits_and_the_others_are_made() {
    let world = World::with(zones(&[("a", None), ("b", Some(1))])).await;
    world.apply(spread(3, Some(1))).await.unwrap();
    until("it is said", async || {
        condition(&world, "orders", "NoCapacity").await
    })
    .await;
    assert_eq!(by_zone(&world), [1, 1]);
    world.apply(spread(2, Some(1))).await.unwrap();
    world.ready("orders").await;
    // Without capacity anywhere, a group that is satisfied is Ready, whatever else is edited.
    let mut edited = spread(2, Some(1));
    edited
        .labels
        .insert("team".to_owned(), "payments".to_owned());
    world.apply(edited).await.unwrap();
    world.ready("orders").await;
    assert_eq!(condition(&world, "orders", "NoCapacity").await, None);
    world.stop().await;
}

#[tokio::test]
async fn a_failure_domain_that_is_not_there_is_refused_by_name() {
    let world = World::with(zones(&[("zone-a", None), ("zone-b", None)])).await;
    let cluster = changed(spread(2, None), |spec| {
        let placement = spec.groups[0].placement.as_mut().unwrap();
        placement.failure_domains = vec!["zone-a".to_owned(), "zone-c".to_owned()];
    });
    let field = "spec.groups[0].placement.failure_domains[1]";
    let status = invalid(world.apply(cluster).await, field);
    assert!(status.message().contains("zone-c"), "{status:?}");
    world.stop().await;
}

/// At most two on spot, the others on demand.
fn spot_first(name: &str, size: u32) -> pb::Cluster {
    let choice = |class: &str, max| pb::PlatformChoice {
        name: "sim".to_owned(),
        node_class: Some(class.to_owned()),
        max,
        ..Default::default()
    };
    changed(document(name, &[("db", size)]), |spec| {
        spec.platforms = vec![choice("spot", Some(2)), choice("demand", None)];
    })
}

fn of_class(world: &World, class: &str) -> usize {
    let nodes = world.site.backend().nodes().into_iter();
    nodes.filter(|node| node.node_class == class).count()
}

#[tokio::test]
async fn what_spot_lacks_is_made_on_demand_and_a_dead_spot_node_comes_back() {
    let class = |name: &str, capacity| ClassSettings {
        name: name.to_owned(),
        capacity,
        ..ClassSettings::default()
    };
    let world = World::with(SimulatedSettings {
        node_classes: vec![class("spot", Some(1)), class("demand", None)],
        ..SimulatedSettings::default()
    })
    .await;
    world.apply(spot_first("orders", 4)).await.unwrap();
    world.ready("orders").await;
    assert_eq!(
        (of_class(&world, "spot"), of_class(&world, "demand")),
        (1, 3)
    );
    // Another cluster does not even request capacity that was just exhausted.
    world.apply(spot_first("other", 1)).await.unwrap();
    world.ready("other").await;
    assert_eq!(
        (of_class(&world, "spot"), of_class(&world, "demand")),
        (1, 4)
    );
    let request = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Cluster(spot_first(
            "third", 1,
        ))),
        ..Default::default()
    };
    let plan = world.clusters().plan_cluster(request).await.unwrap();
    let plan = format!("{:?}", plan.into_inner().plan.unwrap());
    assert!(plan.contains("sim (spot) has no capacity"), "{plan}");

    world.site.backend().set_class_capacity("spot", Some(9));
    let nodes = world.site.backend().nodes();
    let spot = nodes.iter().find(|n| n.node_class == "spot").unwrap();
    let request = pb::ReconcileClusterRequest {
        name: "orders".to_owned(),
        reset_back_off: true,
    };
    world.clusters().reconcile_cluster(request).await.unwrap();
    world.site.backend().kill(&spot.node_id, Death::Terminated);
    until("it is replaced", async || {
        let nodes = world.site.backend().nodes();
        let left = nodes.iter().any(|n| n.node_id == spot.node_id);
        (!left || of_class(&world, "spot") + of_class(&world, "demand") == 6).then_some(())
    })
    .await;
    world.ready("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn a_required_spread_is_refused_where_there_are_no_domains() {
    let world = World::new().await;
    let status = world.apply(spread(2, None)).await.unwrap_err();
    assert_eq!(crate::api::support::reason(&status), Reason::Invalid);
    assert!(status.message().contains("required spread"), "{status:?}");
    world.stop().await;
}

fn labelled(name: &str, size: u32, disk: &str) -> pb::Cluster {
    changed(document(name, &[("db", size)]), |spec| {
        // For the whole cluster, and inherited.
        spec.placement = Some(pb::Placement {
            selector: Some(LabelSelector {
                match_labels: [("disk".to_owned(), disk.to_owned())].into(),
                ..Default::default()
            }),
            ..Default::default()
        });
    })
}

#[tokio::test]
async fn machines_are_chosen_by_their_labels() {
    let mut settings = machines(&["m1", "m2", "m3"]);
    for (host, disk) in settings.hosts.iter_mut().zip(["hdd", "ssd", "ssd"]) {
        host.labels.insert("disk".to_owned(), disk.to_owned());
    }
    let world = World::with(settings).await;
    world.apply(labelled("orders", 2, "ssd")).await.unwrap();
    world.ready("orders").await;
    assert_eq!(hosts(&world, "orders").await, ["m2", "m3"]);
    // Free hosts with other labels do not count, and groups that select those are not held up.
    world.apply(labelled("more", 1, "ssd")).await.unwrap();
    until("it is said", async || {
        condition(&world, "more", "NoCapacity").await
    })
    .await;
    world.apply(labelled("slow", 1, "hdd")).await.unwrap();
    world.ready("slow").await;
    assert_eq!(hosts(&world, "slow").await, ["m1"]);
    world.stop().await;
}

#[tokio::test]
async fn labels_of_machines_are_refused_where_nobody_reads_them() {
    let world = World::new().await;
    let refused = world.apply(labelled("orders", 1, "ssd")).await;
    let status = invalid(refused, "spec.placement.selector");
    assert!(status.message().contains("by their labels"), "{status:?}");
    world.stop().await;
}
