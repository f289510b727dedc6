//! The platform registry, platforms without watches, and nodes that vanish.

mod loss;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use drover_client::{Channel, in_process};
use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{
    orchestrator::v1::{self as pb, ApplyOutcome},
    platform::v1::{
        self as wire,
        platform_service_client::PlatformServiceClient,
        platform_service_server::{PlatformService, PlatformServiceServer},
    },
};
use futures::Stream;
use tonic::{Request, Response, Status, service::Routes};

use crate::api::support::{
    Site, World, changed, document, invalid, metadata, refused, registration, until,
};

fn named(uid: &str) -> SimulatedSettings {
    SimulatedSettings {
        uid: Some(uid.to_owned()),
        ..SimulatedSettings::default()
    }
}

fn unregister(name: &str) -> pb::UnregisterPlatformRequest {
    pb::UnregisterPlatformRequest { name: name.into() }
}

/// A platform without watches, node access and the capabilities in `lacks`, whose lists the test can empty.
#[derive(Clone)]
pub(super) struct Polled {
    client: PlatformServiceClient<Channel>,
    lacks: Vec<wire::Capability>,
    empty: Arc<AtomicBool>,
    /// From 1 on, lists lack their first node, and those of a single cluster are outdated and empty; counts the latter.
    old: Arc<AtomicUsize>,
}

impl Polled {
    pub(super) fn over(site: &Site) -> (Channel, Arc<AtomicBool>) {
        Self::without(site, &[])
    }

    fn without(site: &Site, more: &[wire::Capability]) -> (Channel, Arc<AtomicBool>) {
        use wire::Capability::{NodeExec, NodeLogs, Watch};
        let polled = Self {
            client: PlatformServiceClient::new(site.channel()),
            lacks: [&[Watch, NodeLogs, NodeExec], more].concat(),
            empty: Arc::default(),
            old: Arc::default(),
        };
        let empty = polled.empty.clone();
        (polled.channel(), empty)
    }

    /// A platform whose lists can be made outdated.
    fn with_old_lists(site: &Site) -> (Channel, Arc<AtomicUsize>) {
        let polled = Self {
            client: PlatformServiceClient::new(site.channel()),
            lacks: vec![wire::Capability::Watch],
            empty: Arc::default(),
            old: Arc::default(),
        };
        let old = polled.old.clone();
        (polled.channel(), old)
    }

    fn channel(self) -> Channel {
        in_process(Routes::new(PlatformServiceServer::new(self)))
    }
}

#[tonic::async_trait]
impl PlatformService for Polled {
    type WatchNodesStream =
        Pin<Box<dyn Stream<Item = Result<wire::WatchNodesResponse, Status>> + Send>>;

    async fn get_platform(
        &self,
        request: Request<wire::GetPlatformRequest>,
    ) -> Result<Response<wire::GetPlatformResponse>, Status> {
        let mut answer = self
            .client
            .clone()
            .get_platform(request.into_inner())
            .await?;
        let platform = answer.get_mut().platform.as_mut().unwrap();
        let lacks = |one: &i32| self.lacks.iter().any(|it| i32::from(*it) == *one);
        platform.capabilities.retain(|one| !lacks(one));
        platform.limits.get_or_insert_default().min_poll_interval = Some(prost_types::Duration {
            seconds: 0,
            nanos: 50_000_000,
        });
        Ok(answer)
    }

    async fn discover(
        &self,
        request: Request<wire::DiscoverRequest>,
    ) -> Result<Response<wire::DiscoverResponse>, Status> {
        let request = request.into_inner();
        let whole = request.cluster_id.is_empty();
        let mut answer = self.client.clone().discover(request).await?;
        if self.old.load(Ordering::Relaxed) > 0 {
            let answer = answer.get_mut();
            if whole {
                answer.nodes.remove(0);
            } else {
                self.old.fetch_add(1, Ordering::Relaxed);
                answer.nodes.clear();
                answer.observe_time = Some(prost_types::Timestamp {
                    seconds: 1,
                    nanos: 0,
                });
            }
        }
        if self.empty.load(Ordering::Relaxed) {
            answer.get_mut().nodes.clear();
        }
        Ok(answer)
    }

    async fn watch_nodes(
        &self,
        _: Request<wire::WatchNodesRequest>,
    ) -> Result<Response<Self::WatchNodesStream>, Status> {
        Err(Status::unimplemented("it cannot be watched"))
    }

    async fn fence(
        &self,
        request: Request<wire::FenceRequest>,
    ) -> Result<Response<wire::FenceResponse>, Status> {
        self.client.clone().fence(request.into_inner()).await
    }

    async fn provision(
        &self,
        request: Request<wire::ProvisionRequest>,
    ) -> Result<Response<wire::ProvisionResponse>, Status> {
        self.client.clone().provision(request.into_inner()).await
    }

    async fn deprovision(
        &self,
        request: Request<wire::DeprovisionRequest>,
    ) -> Result<Response<wire::DeprovisionResponse>, Status> {
        self.client.clone().deprovision(request.into_inner()).await
    }

    async fn update_node(
        &self,
        request: Request<wire::UpdateNodeRequest>,
    ) -> Result<Response<wire::UpdateNodeResponse>, Status> {
        self.client.clone().update_node(request.into_inner()).await
    }
}

#[tokio::test]
async fn a_platform_is_registered_changed_and_unregistered() {
    let world = World::bare(named("one")).await;
    let mut platforms = world.platforms();
    let look = pb::RegisterPlatformRequest {
        validate_only: true,
        ..registration("sim", "http://sim")
    };
    let answer = platforms
        .register_platform(look.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.outcome(), ApplyOutcome::Created);
    let get = pb::GetPlatformRequest {
        name: "sim".into(),
        ..Default::default()
    };
    refused(platforms.get_platform(get.clone()).await, Reason::NotFound);

    let created = world.register("sim", "http://sim").await.unwrap();
    assert_eq!(
        (created.outcome(), created.warnings.len()),
        (ApplyOutcome::Created, 0)
    );
    let status = created.platform.unwrap().status.unwrap();
    assert_eq!(
        (status.phase(), status.uid.as_str()),
        (pb::PlatformPhase::Ready, "one")
    );
    assert_eq!(
        world.register("sim", "http://sim").await.unwrap().outcome(),
        ApplyOutcome::Unchanged
    );
    let answer = platforms
        .register_platform(look)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.outcome(), ApplyOutcome::Unchanged);

    // A new address of the same backend.
    world.sites.put("http://moved", world.site.channel());
    let moved = world.register("sim", "http://moved").await.unwrap();
    assert_eq!(
        (moved.outcome(), moved.platform.unwrap().generation),
        (ApplyOutcome::Configured, 2)
    );
    world.apply(document("orders", &[("db", 2)])).await.unwrap();
    world.ready("orders").await;
    assert_eq!(world.platform("sim").await.node_count, 2);

    let status = refused(
        platforms.unregister_platform(unregister("sim")).await,
        Reason::PlatformInUse,
    );
    assert_eq!(metadata(&status, "clusters").as_deref(), Some("orders"));
    refused(
        platforms.unregister_platform(unregister("other")).await,
        Reason::NotFound,
    );
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    platforms
        .unregister_platform(unregister("sim"))
        .await
        .unwrap();
    refused(platforms.get_platform(get).await, Reason::NotFound);
    world.register("sim", "http://sim").await.unwrap();
    world.stop().await;
}

#[tokio::test]
async fn a_platform_that_does_not_answer_is_registered_and_tried_until_it_does() {
    let world = World::bare(named("one")).await;
    let answer = world.register("late", "http://late").await.unwrap();
    assert_eq!(
        (answer.outcome(), answer.warnings.len()),
        (ApplyOutcome::Created, 1)
    );
    let mut cluster = document("orders", &[("db", 1)]);
    cluster.spec.as_mut().unwrap().platforms[0].name = "late".into();
    let applied = world.apply(cluster).await.unwrap();
    assert!(
        applied
            .warnings
            .iter()
            .any(|warning| warning.contains("late")),
        "{:?}",
        applied.warnings
    );
    until("a condition says why nothing happens", async || {
        let status = world.get("orders").await.unwrap().status.unwrap();
        status.groups[0]
            .conditions
            .iter()
            .any(|c| c.r#type == "PlatformUnavailable")
            .then_some(())
    })
    .await;
    let unreachable = world.platform("late").await;
    assert!(
        unreachable
            .conditions
            .iter()
            .any(|c| c.r#type == "Reachable" && c.status == Some(false))
    );
    world.sites.put("http://late", world.site.channel());
    world.ready("orders").await;
    world.stop().await;
}

#[tokio::test]
async fn one_backend_is_registered_once_and_another_one_is_not_taken_for_it() {
    let world = World::with(named("one")).await;
    let status = refused(
        world.register("again", "http://sim").await,
        Reason::PlatformUidTaken,
    );
    assert_eq!(metadata(&status, "platform").as_deref(), Some("sim"));
    // Registered while the platform was unreachable; the duplicate is detected later.
    world.register("twin", "http://twin").await.unwrap();
    world.sites.put("http://twin", world.site.channel());
    until("it is refused", async || {
        let status = world.platform("twin").await;
        let accepted = status
            .conditions
            .iter()
            .find(|c| c.r#type == "Accepted")
            .unwrap()
            .clone();
        (status.phase() == pb::PlatformPhase::Refused && accepted.reason == "PLATFORM_UID_TAKEN")
            .then_some(())
    })
    .await;

    let other = Site::new(named("two")).await;
    world.sites.put("http://other", other.channel());
    let status = refused(
        world.register("sim", "http://other").await,
        Reason::PlatformMismatch,
    );
    assert_eq!(metadata(&status, "platform_uid").as_deref(), Some("two"));
    let rebind = |uid: &str, endpoint: &str| pb::RegisterPlatformRequest {
        rebind_uid: Some(uid.into()),
        ..registration("sim", endpoint)
    };
    let mut platforms = world.platforms();
    invalid(
        platforms
            .register_platform(rebind("three", "http://other"))
            .await,
        "rebind_uid",
    );
    invalid(
        platforms
            .register_platform(rebind("two", "http://nobody"))
            .await,
        "rebind_uid",
    );
    let rebound = platforms
        .register_platform(rebind("two", "http://other"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(rebound.platform.unwrap().status.unwrap().uid, "two");
    world.stop().await;
}

#[tokio::test]
async fn platforms_are_listed_by_name_and_show_what_nobody_manages() {
    let world = World::with(named("one")).await;
    let second = Site::new(named("two")).await;
    world.sites.put("http://b", second.channel());
    world.register("b", "http://b").await.unwrap();
    world.site.backend().create_foreign("theirs", "x").unwrap();
    world
        .site
        .backend()
        .create_foreign("theirs-too", "y")
        .unwrap();
    second.backend().create_foreign("theirs", "z").unwrap();
    let mut platforms = world.platforms();
    let list = |page_token: String| pb::ListPlatformsRequest {
        page_size: 1,
        page_token,
        ..Default::default()
    };
    let first = platforms
        .list_platforms(list(String::new()))
        .await
        .unwrap()
        .into_inner();
    let next = platforms
        .list_platforms(list(first.next_page_token))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (
            first.platforms[0].name.as_str(),
            next.platforms[0].name.as_str()
        ),
        ("b", "sim")
    );
    assert!(next.next_page_token.is_empty());

    let found = until("all three are seen", async || {
        let mut request = pb::ListDiscoveredClustersRequest {
            page_size: 1,
            ..Default::default()
        };
        let mut found = Vec::new();
        loop {
            let answer = world
                .platforms()
                .list_discovered_clusters(request.clone())
                .await
                .unwrap()
                .into_inner();
            found.extend(
                answer
                    .clusters
                    .into_iter()
                    .map(|c| (c.platform, c.cluster_id, c.node_count)),
            );
            if answer.next_page_token.is_empty() {
                break;
            }
            request.page_token = answer.next_page_token;
        }
        (found.len() == 3).then_some(found)
    })
    .await;
    let expected = [("b", "theirs"), ("sim", "theirs"), ("sim", "theirs-too")];
    assert_eq!(
        found,
        expected.map(|(platform, cluster)| (platform.to_owned(), cluster.to_owned(), 1))
    );
    let nowhere = pb::ListDiscoveredClustersRequest {
        platform: Some("nowhere".into()),
        ..Default::default()
    };
    refused(
        platforms.list_discovered_clusters(nowhere).await,
        Reason::NotFound,
    );
    let hosts = |platform: &str| pb::ListHostsRequest {
        platform: platform.into(),
        ..Default::default()
    };
    refused(
        platforms.list_hosts(hosts("sim")).await,
        Reason::CapabilityMissing,
    );
    refused(
        platforms.list_hosts(hosts("nowhere")).await,
        Reason::NotFound,
    );
    assert_eq!(
        world.site.backend().len(),
        2,
        "what is foreign is never touched"
    );
    world.stop().await;
}

#[tokio::test]
async fn a_platform_that_cannot_be_watched_is_polled() {
    let world = World::bare(named("one")).await;
    let (channel, _) = Polled::over(&world.site);
    world.sites.put("http://polled", channel);
    world.register("sim", "http://polled").await.unwrap();
    world.apply(document("orders", &[("db", 3)])).await.unwrap();
    world.ready("orders").await;
    let node = &world.nodes("orders").await[0];
    let id = node.platform_node_id.clone().unwrap();
    let logs = pb::StreamNodeLogsRequest {
        cluster: "orders".into(),
        id: node.id.clone(),
        ..Default::default()
    };
    let status = refused(
        world.clusters().stream_node_logs(logs).await.map(drop),
        Reason::CapabilityMissing,
    );
    assert_eq!(
        metadata(&status, "capability").as_deref(),
        Some("CAPABILITY_NODE_LOGS")
    );
    let start = pb::ExecNodeStart {
        cluster: "orders".into(),
        id: node.id.clone(),
        command: vec!["true".into()],
        ..Default::default()
    };
    let start = pb::ExecNodeRequest {
        input: Some(pb::exec_node_request::Input::Start(start)),
    };
    let exec = world
        .clusters()
        .exec_node(futures::stream::iter([start]))
        .await;
    refused(exec.map(drop), Reason::CapabilityMissing);
    assert!(world.site.backend().kill(
        &id,
        drover_platform_cloud::drivers::simulated::Death::Failed
    ));
    until("it is replaced", async || {
        let nodes = world.nodes("orders").await;
        let ready = nodes
            .iter()
            .filter(|n| n.state() == pb::NodeState::Ready)
            .count();
        (ready == 3 && nodes.iter().all(|n| n.id != node.id)).then_some(())
    })
    .await;
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    assert!(world.site.backend().is_empty());
    world.stop().await;
}

#[tokio::test]
async fn storage_that_a_platform_cannot_give_or_keep_is_refused() {
    use wire::Capability::{RetainStorage, Storage};
    let stored = |kept: pb::StorageRetention| {
        changed(document("orders", &[("db", 1)]), |spec| {
            spec.groups[0].storage = Some(pb::StorageSpec {
                when_replaced: kept.into(),
                when_scaled: pb::StorageRetention::Delete.into(),
                when_deleted: pb::StorageRetention::Delete.into(),
                ..Default::default()
            });
        })
    };
    let (keep, delete) = (pb::StorageRetention::Retain, pb::StorageRetention::Delete);
    for (lacks, kept, refused) in [
        (
            vec![Storage, RetainStorage],
            delete,
            Some("no storage to declare"),
        ),
        (vec![RetainStorage], keep, Some("cannot keep storage")),
        (vec![RetainStorage], delete, None),
    ] {
        let world = World::bare(named("one")).await;
        let (channel, _) = Polled::without(&world.site, &lacks);
        world.sites.put("http://polled", channel);
        world.register("sim", "http://polled").await.unwrap();
        let answer = world.apply(stored(kept)).await;
        match refused {
            None => drop(answer.unwrap()),
            Some(why) => {
                let status = invalid(answer, "spec.groups[0].storage");
                assert!(status.message().contains(why), "{status:?}");
                assert!(world.site.backend().nodes().is_empty());
            }
        }
        world.stop().await;
    }
}
