//! The common layer under the failures and delays that only the simulated backend can have on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{collections::BTreeMap, time::Duration};

use drover_client::Channel;
use drover_convert::error::{from_rpc_status, from_status};
use drover_core::{Error, Reason};
use drover_platform_cloud::{
    PlatformServer,
    drivers::simulated::{
        Death, DomainSettings, Fault, HostSettings, Operation, SimulatedHandle, SimulatedSettings,
    },
};
use drover_proto::platform::v1::{
    ClusterContext, DeprovisionRequest, DiscoverRequest, Fence, FenceRequest, GetPlatformRequest,
    Node, NodePhase, NodeRole, Placement, ProvisionRequest, ProvisionResponse, ResolvedGroup, Slot,
    Spread, UnsatisfiableAction, WatchNodesRequest, platform_service_client::PlatformServiceClient,
    watch_nodes_response::Event,
};
use futures::future::join_all;
use tokio::time::Instant;
use tonic::Request;
use uuid::Uuid;

struct World {
    server: PlatformServer,
    uid: String,
    store_id: Uuid,
    owner: Uuid,
}

impl World {
    async fn new(settings: SimulatedSettings) -> Self {
        let server = PlatformServer::open(settings.into()).await.unwrap();
        let mut world = Self {
            server,
            uid: String::new(),
            store_id: Uuid::new_v4(),
            owner: Uuid::new_v4(),
        };
        let platform = world
            .client()
            .get_platform(GetPlatformRequest {})
            .await
            .unwrap()
            .into_inner()
            .platform;
        world.uid = platform.unwrap().uid;
        world
    }

    fn client(&self) -> PlatformServiceClient<Channel> {
        PlatformServiceClient::new(drover_client::in_process(self.server.routes()))
    }

    fn simulated(&self) -> &SimulatedHandle {
        self.server.simulated().unwrap()
    }

    fn fence(&self) -> Fence {
        Fence {
            store_id: self.store_id.to_string(),
            shard: 0,
            epoch: 1,
        }
    }

    fn request(&self, cluster: &str, first: u32, count: u32) -> ProvisionRequest {
        let request_id = Uuid::new_v4();
        let slots = (0..count).map(|index| Slot {
            index: Some(index),
            id: format!(
                "db-{}-{}",
                first + index,
                &request_id.simple().to_string()[..5]
            ),
            name: format!("db-{}", first + index),
            ordinal: Some(first + index),
            role: NodeRole::Active.into(),
            host_id: None,
        });
        ProvisionRequest {
            expected_platform_uid: self.uid.clone(),
            fence: Some(self.fence()),
            owner: self.owner.to_string(),
            request_id: request_id.to_string(),
            sequence: 1,
            slots: slots.collect(),
            cluster: Some(ClusterContext {
                id: cluster.to_owned(),
                ..ClusterContext::default()
            }),
            group: Some(ResolvedGroup {
                path: "db".to_owned(),
                ..ResolvedGroup::default()
            }),
            spec_hash: "v1-0".to_owned(),
            ..ProvisionRequest::default()
        }
    }

    async fn provision(&self, request: &ProvisionRequest) -> Result<ProvisionResponse, Error> {
        let answer = self.client().provision(request.clone()).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| from_status(&status))
    }

    async fn provision_within(
        &self,
        request: &ProvisionRequest,
        limit: Duration,
    ) -> Result<ProvisionResponse, Error> {
        let mut message = Request::new(request.clone());
        message.set_timeout(limit);
        let answer = self.client().provision(message).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| from_status(&status))
    }

    fn removal(&self, request: &ProvisionRequest, node: &Node) -> DeprovisionRequest {
        DeprovisionRequest {
            expected_platform_uid: self.uid.clone(),
            fence: Some(self.fence()),
            request_id: Uuid::new_v4().to_string(),
            owner: request.owner.clone(),
            cluster_id: node.cluster_id.clone(),
            node_request_id: request.request_id.clone(),
            index: node.slot.as_ref().and_then(|slot| slot.index),
            node_id: node.node_id.clone(),
            ..DeprovisionRequest::default()
        }
    }

    async fn discover(&self, request: DiscoverRequest) -> Result<Vec<Node>, Error> {
        let answer = self
            .client()
            .discover(request)
            .await
            .map_err(|status| from_status(&status))?;
        Ok(answer.into_inner().nodes)
    }
}

fn placed(when_unsatisfiable: UnsatisfiableAction, request: &mut ProvisionRequest) {
    let spread = Spread {
        topology_key: "zone".to_owned(),
        when_unsatisfiable: when_unsatisfiable.into(),
        ..Spread::default()
    };
    request.group.as_mut().unwrap().placement = Some(Placement {
        spread: vec![spread],
        ..Placement::default()
    });
}

fn zones(capacities: &[(&str, Option<u32>)]) -> SimulatedSettings {
    let zone = |(name, capacity): &(&str, Option<u32>)| DomainSettings {
        name: (*name).to_owned(),
        capacity: *capacity,
        ..DomainSettings::default()
    };
    SimulatedSettings {
        failure_domains: capacities.iter().map(zone).collect(),
        ..SimulatedSettings::default()
    }
}

fn by_zone(nodes: &[Node]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.failure_domain.clone()).or_default() += 1;
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn no_create_starts_after_the_deadline() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let request = world.request("a", 0, 3);
    let error = world
        .provision_within(&request, Duration::from_millis(900))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::DeadlineExceeded);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        world.simulated().is_empty(),
        "nothing was made after the deadline"
    );
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 3, "a repeat makes them");
}

#[tokio::test(start_paused = true)]
async fn no_create_starts_after_the_call_was_cancelled() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let request = world.request("a", 0, 3);
    let call = world.provision(&request);
    assert!(
        tokio::time::timeout(Duration::from_millis(500), call)
            .await
            .is_err()
    );
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        world.simulated().is_empty(),
        "nothing was made after the cancellation"
    );
}

#[tokio::test(start_paused = true)]
async fn who_joins_a_call_gets_the_nodes_although_the_first_caller_gave_up() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let request = world.request("a", 0, 3);
    let first = world.provision_within(&request, Duration::from_millis(100));
    let second = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.provision(&request).await
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.unwrap_err().reason(), Reason::DeadlineExceeded);
    assert_eq!(second.unwrap().nodes.len(), 3);
    assert_eq!(world.simulated().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_answer_the_same_request_finds_its_nodes() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 5);
    world
        .simulated()
        .fail_next(Operation::Create, Fault::LoseAnswer);
    let error = world.provision(&request).await.unwrap_err();
    assert_eq!(
        error.reason(),
        Reason::Unavailable,
        "the outcome is unknown"
    );
    assert_eq!(world.simulated().len(), 5, "although they were made");
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 5);
    assert_eq!(world.simulated().doubles(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_node_was_removed_is_not_made_again_by_a_late_repeat() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 2);
    let nodes = world.provision(&request).await.unwrap().nodes;
    world
        .client()
        .deprovision(world.removal(&request, &nodes[0]))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 1);
    assert_eq!(answer.failures.len(), 1, "{answer:?}");
    assert_eq!(world.simulated().doubles(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn without_any_room_the_call_fails_and_with_some_it_says_which_slots_do() {
    let world = World::new(SimulatedSettings {
        capacity: Some(2),
        ..SimulatedSettings::default()
    })
    .await;
    let request = world.request("a", 0, 3);
    let answer = world.provision(&request).await.unwrap();
    assert_eq!(answer.nodes.len(), 2);
    let reasons: Vec<_> = answer
        .failures
        .iter()
        .map(|f| from_rpc_status(f.error.as_ref().unwrap()).reason())
        .collect();
    assert_eq!(reasons, vec![Reason::NoCapacity]);
    let full = world.request("b", 0, 2);
    assert_eq!(
        world.provision(&full).await.unwrap_err().reason(),
        Reason::NoCapacity
    );
    world.simulated().set_capacity(None);
    let again = world.provision(&request).await.unwrap();
    assert_eq!(
        (again.nodes.len(), again.failures.len()),
        (2, 1),
        "a failure that was told is final"
    );
    assert_eq!(
        world.provision(&full).await.unwrap().nodes.len(),
        2,
        "a refused call can be repeated"
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_are_spread_over_those_already_placed() {
    let world = World::new(zones(&[("a", None), ("b", None), ("c", None)])).await;
    for (first, count) in [(0, 4), (4, 2), (6, 3)] {
        let mut request = world.request("x", first, count);
        placed(UnsatisfiableAction::DoNotSchedule, &mut request);
        world.provision(&request).await.unwrap();
    }
    let counts = by_zone(&world.simulated().nodes());
    assert_eq!(counts.into_values().collect::<Vec<_>>(), vec![3, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_named_machine_is_one_node_s_at_a_time_and_belongs_to_one_owner() {
    let host = |id: &str, zone: &str, by: &str| HostSettings {
        id: id.to_owned(),
        failure_domain: zone.to_owned(),
        claimed_by: by.to_owned(),
    };
    let world = World::new(SimulatedSettings {
        hosts: vec![
            host("m1", "a", ""),
            host("m2", "b", ""),
            host("m3", "a", "bob"),
        ],
        ..zones(&[("a", None), ("b", None)])
    })
    .await;
    let on = |request: &mut ProvisionRequest, hosts: &[&str]| {
        for (slot, host) in request.slots.iter_mut().zip(hosts) {
            slot.host_id = Some((*host).to_owned());
        }
    };
    let mut request = world.request("x", 0, 4);
    on(&mut request, &["m1", "m2", "m3", "m9"]);
    let answer = world.provision(&request).await.unwrap();
    let made: Vec<_> = answer
        .nodes
        .iter()
        .map(|node| {
            (
                node.host_id.as_deref().unwrap(),
                node.failure_domain.as_str(),
            )
        })
        .collect();
    assert_eq!(made, [("m1", "a"), ("m2", "b")]);
    let reasons: Vec<Reason> = answer
        .failures
        .iter()
        .map(|failure| from_rpc_status(failure.error.as_ref().unwrap()).reason())
        .collect();
    assert_eq!(reasons, [Reason::HostClaimed, Reason::HostNotFound]);

    let mut other = world.request("y", 0, 1);
    on(&mut other, &["m1"]);
    let error = world.provision(&other).await.unwrap_err();
    assert_eq!(error.reason(), Reason::HostClaimed);
    assert!(error.message().contains("cluster x"), "{error}");
    // Nobody takes a machine that is not asked for by its name.
    let plain = world.provision(&world.request("z", 0, 3)).await.unwrap();
    assert!(plain.nodes.iter().all(|node| node.host_id.is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_required_spread_fails_where_a_preferred_one_goes_on() {
    let world = World::new(zones(&[("a", Some(1)), ("b", None)])).await;
    let mut preferred = world.request("x", 0, 4);
    placed(UnsatisfiableAction::ScheduleAnyway, &mut preferred);
    let answer = world.provision(&preferred).await.unwrap();
    assert_eq!(
        by_zone(&answer.nodes),
        [("a".to_owned(), 1), ("b".to_owned(), 3)].into()
    );
    let mut required = world.request("y", 0, 4);
    placed(UnsatisfiableAction::DoNotSchedule, &mut required);
    let answer = world.provision(&required).await.unwrap();
    assert_eq!(
        (answer.nodes.len(), answer.failures.len()),
        (1, 3),
        "a has no room, so b takes one more at most"
    );
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_backend_is_an_error_and_does_not_look_fresh() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 2);
    let nodes = world.provision(&request).await.unwrap().nodes;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let watch = WatchNodesRequest {
        heartbeat_interval: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..WatchNodesRequest::default()
    };
    let mut watch = world
        .client()
        .watch_nodes(watch)
        .await
        .unwrap()
        .into_inner();
    while !matches!(
        watch.message().await.unwrap().unwrap().event,
        Some(Event::SnapshotComplete(_))
    ) {}
    world.simulated().pause_backend(true);
    world.simulated().kill(&nodes[0].node_id, Death::Vanished);
    let error = world
        .discover(DiscoverRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable, "never a short list");
    assert_eq!(
        world
            .provision(&world.request("b", 0, 1))
            .await
            .unwrap_err()
            .reason(),
        Reason::Unavailable
    );
    let mut beats = Vec::new();
    while beats.len() < 3 {
        match watch.message().await.unwrap().unwrap().event {
            Some(Event::Heartbeat(mark)) => beats.push(mark.observe_time.unwrap()),
            other => panic!("nothing is seen of an unreachable backend: {other:?}"),
        }
    }
    assert_eq!(
        beats[0], beats[2],
        "a live stream does not make old data look fresh"
    );
    world.simulated().pause_backend(false);
    let removed = loop {
        match watch.message().await.unwrap().unwrap().event {
            Some(Event::Removals(removals)) => break removals.nodes,
            Some(Event::Heartbeat(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(removed[0].node_id, nodes[0].node_id);
}

#[tokio::test(start_paused = true)]
async fn frozen_visibility_shows_the_past() {
    let world = World::new(SimulatedSettings::default()).await;
    world.simulated().freeze_visibility(true);
    let request = world.request("a", 0, 2);
    assert_eq!(world.provision(&request).await.unwrap().nodes.len(), 2);
    assert_eq!(
        world.discover(DiscoverRequest::default()).await.unwrap(),
        vec![]
    );
    assert_eq!(
        world.provision(&request).await.unwrap().nodes.len(),
        2,
        "a repeat still finds them"
    );
    world.simulated().freeze_visibility(false);
    assert_eq!(
        world
            .discover(DiscoverRequest::default())
            .await
            .unwrap()
            .len(),
        2
    );
    assert_eq!(world.simulated().doubles(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn dead_nodes_are_listed_as_they_died() {
    let world = World::new(SimulatedSettings::default()).await;
    let request = world.request("a", 0, 3);
    let nodes = world.provision(&request).await.unwrap().nodes;
    for (node, how) in nodes
        .iter()
        .zip([Death::Failed, Death::Terminated, Death::Vanished])
    {
        assert!(world.simulated().kill(&node.node_id, how));
    }
    let listed = world.discover(DiscoverRequest::default()).await.unwrap();
    let phases: Vec<_> = listed.iter().map(Node::phase).collect();
    assert_eq!(phases, vec![NodePhase::Failed, NodePhase::Terminated]);
    assert!(
        !world.simulated().kill("sim-ffffffff", Death::Failed),
        "there is no such node"
    );
}

#[tokio::test(start_paused = true)]
async fn a_fence_gives_up_on_a_call_that_does_not_end() {
    let world = World::new(SimulatedSettings::default()).await;
    world
        .simulated()
        .fail_next(Operation::Create, Fault::Stall(Duration::from_secs(15)));
    let request = world.request("a", 0, 1);
    let fence = FenceRequest {
        expected_platform_uid: world.uid.clone(),
        fence: Some(Fence {
            epoch: 2,
            ..world.fence()
        }),
        ..FenceRequest::default()
    };
    let mut client = world.client();
    let raise = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let begin = Instant::now();
        let status = client.fence(fence.clone()).await.unwrap_err();
        assert_eq!(from_status(&status).reason(), Reason::DeadlineExceeded);
        assert_eq!(begin.elapsed().as_secs(), 10);
        client.fence(fence).await.expect("it has ended by now");
        assert_eq!(
            world.simulated().len(),
            1,
            "what the older call did is there"
        );
    };
    let (answer, ()) = tokio::join!(world.provision(&request), raise);
    assert_eq!(
        answer.unwrap().nodes.len(),
        1,
        "the call had begun before the fence"
    );
}

#[tokio::test(start_paused = true)]
async fn reads_that_wait_share_the_next_one() {
    let settings = SimulatedSettings {
        latency: Duration::from_secs(1),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let begin = Instant::now();
    let reads = (0..100).map(|at| {
        let world = &world;
        async move {
            tokio::time::sleep(Duration::from_millis(at)).await;
            world.discover(DiscoverRequest::default()).await.unwrap();
        }
    });
    join_all(reads).await;
    assert_eq!(
        begin.elapsed().as_secs(),
        2,
        "one read for the first, one for all who came during it"
    );
}

#[tokio::test(start_paused = true)]
async fn page_tokens_expire_and_pages_end_at_a_mebibyte() {
    let world = World::new(SimulatedSettings::default()).await;
    for batch in 0..10 {
        let mut request = world.request("a", 100 * batch, 100);
        let long = |at: usize| (format!("k{at}"), "v".repeat(63));
        request.cluster.as_mut().unwrap().labels = (0..60).map(long).collect();
        world.provision(&request).await.unwrap();
    }
    let first = DiscoverRequest {
        page_size: 1000,
        ..DiscoverRequest::default()
    };
    let page = world
        .client()
        .discover(first.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(
        (1..1000).contains(&page.nodes.len()),
        "the page is cut: {}",
        page.nodes.len()
    );
    let next = DiscoverRequest {
        page_token: page.next_page_token,
        ..first
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(
        !world.discover(next.clone()).await.unwrap().is_empty(),
        "a page can be asked for again"
    );
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(
        world.discover(next).await.unwrap_err().reason(),
        Reason::PageTokenExpired
    );
}

#[tokio::test(start_paused = true)]
async fn wrong_properties_are_named_without_their_values() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {"disks": {"type": "array", "items": {"type": "object", "properties": {"gb": {"type": "integer"}}}}},
        "additionalProperties": false,
    });
    let settings = SimulatedSettings {
        properties_schema: Some(schema),
        ..SimulatedSettings::default()
    };
    let world = World::new(settings).await;
    let mut request = world.request("a", 0, 1);
    let text = |text: &str| prost_types::Value {
        kind: Some(prost_types::value::Kind::StringValue(text.to_owned())),
    };
    let object = |key: &str, value| prost_types::Struct {
        fields: [(key.to_owned(), value)].into(),
    };
    let disk = prost_types::value::Kind::StructValue(object("gb", text("s3cret")));
    let disks = prost_types::ListValue {
        values: vec![prost_types::Value { kind: Some(disk) }],
    };
    let disks = prost_types::Value {
        kind: Some(prost_types::value::Kind::ListValue(disks)),
    };
    request.group.as_mut().unwrap().properties = Some(object("disks", disks));
    let error = world.provision(&request).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Invalid);
    assert_eq!(error.fields()[0].field, "group.properties.disks[0].gb");
    assert!(!format!("{error:?} {:?}", error.fields()).contains("s3cret"));
    assert!(world.simulated().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_deaths() {
    let run = || async {
        let settings = SimulatedSettings {
            seed: Some(7),
            deaths_per_hour: 1.0,
            boot_failure: 0.1,
            boot_jitter: Duration::from_secs(1),
            ..SimulatedSettings::default()
        };
        let world = World::new(settings).await;
        for first in [0, 100] {
            world
                .provision(&world.request("a", first, 100))
                .await
                .unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1800)).await;
        let mut dead: Vec<_> = world
            .simulated()
            .nodes()
            .into_iter()
            .filter(|n| n.phase() == NodePhase::Failed)
            .map(|n| n.node_id)
            .collect();
        dead.sort();
        dead
    };
    let dead = run().await;
    assert!(
        (60..140).contains(&dead.len()),
        "about a tenth and then 1 - e^-0.5 of the rest: {}",
        dead.len()
    );
    assert_eq!(dead, run().await);
}

#[tokio::test(start_paused = true)]
async fn errors_by_chance_never_make_two_nodes_of_a_slot() {
    let mut settings = SimulatedSettings {
        seed: Some(1),
        latency: Duration::from_millis(20),
        ..SimulatedSettings::default()
    };
    settings.errors.create.before = 0.3;
    settings.errors.create.after = 0.3;
    let world = World::new(settings).await;
    for first in 0..20 {
        let request = world.request("a", first * 3, 3);
        let attempts =
            (0..100_u32).map(|attempt| Duration::from_millis(u64::from(attempt % 7) * 5 + 1));
        let mut made = 0;
        for limit in attempts {
            if let Ok(answer) = world.provision_within(&request, limit).await {
                made = answer.nodes.len();
                break;
            }
        }
        assert_eq!(made, 3);
    }
    assert_eq!(world.simulated().doubles(), vec![]);
    assert_eq!(world.simulated().len(), 60);
}

/// Real time: 100,000 nodes through one watch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_shows_all_of_many_nodes() {
    const CLUSTERS: u32 = 2_000;
    const SIZE: u32 = 10;
    let world = std::sync::Arc::new(
        World::new(SimulatedSettings {
            ledger: false,
            ..SimulatedSettings::default()
        })
        .await,
    );
    let mut watch = world
        .client()
        .watch_nodes(WatchNodesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let begin = Instant::now();
    let maker = tokio::spawn({
        let world = std::sync::Arc::clone(&world);
        async move {
            for cluster in 0..CLUSTERS {
                let request = world.request(&format!("c{cluster}"), 0, SIZE);
                world.provision(&request).await.unwrap();
            }
        }
    });
    let mut ready = std::collections::HashSet::new();
    let mut messages = 0;
    while ready.len() < (CLUSTERS * SIZE) as usize {
        let message = tokio::time::timeout(Duration::from_secs(60), watch.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        messages += 1;
        if let Some(Event::Upserts(upserts)) = message.event {
            assert!(upserts.nodes.len() <= 256);
            ready.extend(
                upserts
                    .nodes
                    .into_iter()
                    .filter(|node| node.ready == Some(true))
                    .map(|node| node.node_id),
            );
        }
    }
    maker.await.unwrap();
    println!(
        "{} nodes in {:?}, {messages} messages",
        ready.len(),
        begin.elapsed()
    );
    world.server.shutdown().await;
    let end = loop {
        match watch.message().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert_eq!(
        from_status(&end.unwrap_err()).reason(),
        Reason::Unavailable,
        "a shutdown ends the watch"
    );
}
