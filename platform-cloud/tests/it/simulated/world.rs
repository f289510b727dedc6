//! A server with simulated nodes, and helpers to call it.

use std::{collections::BTreeMap, time::Duration};

use drover_client::Channel;
use drover_convert::error::from_status;
use drover_core::Error;
use drover_platform_cloud::{
    PlatformServer,
    drivers::simulated::{DomainSettings, SimulatedHandle, SimulatedSettings},
};
use drover_proto::platform::v1::{
    ClusterContext, DeprovisionRequest, DiscoverRequest, Fence, GetPlatformRequest, Node, NodeRole,
    Placement, ProvisionRequest, ProvisionResponse, ResolvedGroup, Slot, Spread,
    UnsatisfiableAction, platform_service_client::PlatformServiceClient,
};
use tonic::Request;
use uuid::Uuid;

pub(super) struct World {
    pub(super) server: PlatformServer,
    pub(super) uid: String,
    store_id: Uuid,
    owner: Uuid,
}

impl World {
    pub(super) async fn new(settings: SimulatedSettings) -> Self {
        Self::of(PlatformServer::open(settings.into()).await.unwrap()).await
    }

    pub(super) async fn of(server: PlatformServer) -> Self {
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

    pub(super) fn with_policy(self, policy: &str) -> Self {
        let policy: drover_platform::PolicySettings = serde_json::from_str(policy).unwrap();
        Self {
            server: self.server.with_policy(policy.read().unwrap()),
            ..self
        }
    }

    pub(super) fn client(&self) -> PlatformServiceClient<Channel> {
        PlatformServiceClient::new(drover_client::in_process(self.server.routes()))
    }

    pub(super) fn simulated(&self) -> &SimulatedHandle {
        self.server.simulated().unwrap()
    }

    pub(super) fn fence(&self) -> Fence {
        Fence {
            store_id: self.store_id.to_string(),
            shard: 0,
            epoch: 1,
        }
    }

    pub(super) fn request(&self, cluster: &str, first: u32, count: u32) -> ProvisionRequest {
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

    pub(super) async fn provision(
        &self,
        request: &ProvisionRequest,
    ) -> Result<ProvisionResponse, Error> {
        let answer = self.client().provision(request.clone()).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| from_status(&status))
    }

    pub(super) async fn provision_within(
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

    pub(super) fn removal(&self, request: &ProvisionRequest, node: &Node) -> DeprovisionRequest {
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

    pub(super) async fn discover(&self, request: DiscoverRequest) -> Result<Vec<Node>, Error> {
        let answer = self
            .client()
            .discover(request)
            .await
            .map_err(|status| from_status(&status))?;
        Ok(answer.into_inner().nodes)
    }
}

pub(super) fn placed(when_unsatisfiable: UnsatisfiableAction, request: &mut ProvisionRequest) {
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

pub(super) fn zones(capacities: &[(&str, Option<u32>)]) -> SimulatedSettings {
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

pub(super) fn by_zone(nodes: &[Node]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.failure_domain.clone()).or_default() += 1;
    }
    counts
}
