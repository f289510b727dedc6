//! `POST /provision`.

use drover_convert::{error::from_rpc_status, value::to_struct};
use drover_core::{Class, Error, Reason, Result, error::Violation};
use drover_proto::platform::v1::{
    ClusterContext, Node, NodePhase, Peer, ProvisionRequest, ProvisionResponse, ResolvedGroup, Slot,
};
use prost::Message;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    OWNER, ReplicanteApi,
    document::Provision,
    fence,
    plans::{End, Seen, Wish},
};
use drover_platform::{driver::Found, identity::hex, limits, provision::reused};

/// A `NodeProvisionResponse`: the actual number of nodes, and their final ids.
#[derive(Debug, Serialize)]
pub(crate) struct Provisioned {
    count: usize,
    node_ids: Vec<String>,
}

impl Provisioned {
    fn of(mut nodes: Vec<Node>) -> Self {
        nodes.sort_by_key(|node| node.slot.as_ref().and_then(|slot| slot.index));
        Self {
            count: nodes.len(),
            node_ids: nodes.into_iter().map(|node| node.node_id).collect(),
        }
    }
}

impl ReplicanteApi {
    /// Creates nodes of one group. Fails if there is none in the end.
    pub(crate) async fn provision(
        &self,
        document: &Value,
        key: Option<String>,
        deadline: Option<Instant>,
    ) -> Result<Provisioned> {
        let asked = Provision::read(document)?;
        let spec_hash = spec_hash(&asked);
        let request_id = key.as_deref().map_or_else(Uuid::new_v4, request_id);
        if key.is_some()
            && !self.plans.knows(request_id)
            && let Some(made) = self.made(&asked, request_id, &spec_hash).await?
        {
            return Ok(made);
        }
        let limits = self.platform.description().limits;
        let began = Instant::now();
        let reading = self.platform.reading(&asked.cluster_id).await?;
        let nodes = || {
            let all = reading.listing.nodes.iter().map(|found| &found.node);
            all.filter(|node| node.cluster_id == asked.cluster_id)
        };
        let seen = Seen {
            ordinals: nodes()
                .filter(|node| node.group == asked.group_id && exists(node))
                .filter_map(|node| node.ordinal)
                .collect(),
            began,
            visibility_delay: limits::visibility_delay(&limits),
            creation_time: limits::max_creation_time(&limits),
            request_memory: limits::request_memory(&limits),
        };
        // A request for zero nodes is validated like any other.
        let validate_only = asked.count == 0;
        let wish = Wish {
            request_id,
            cluster_id: &asked.cluster_id,
            group_id: &asked.group_id,
            count: usize::from(asked.count.max(1)).min(limits::max_batch(&limits)),
        };
        let planned = self.plans.plan(wish, &seen)?;
        let request = ProvisionRequest {
            expected_platform_uid: self.uid(),
            request_id: request_id.to_string(),
            slots: planned.slots.clone(),
            peers: peers(nodes()),
            spec_hash,
            validate_only,
            ..request(&asked)
        };
        // No caller name: the user data is not rendered, so it never waits for a rendering turn.
        let outcome = self.platform.provision(request, deadline, "").await;
        let end = match &outcome {
            _ if validate_only => End::NothingMade,
            Err(error) if promises_nothing(error) => End::NothingMade,
            Ok(response) if response.unknown.is_empty() => End::Known,
            _ => End::Unknown,
        };
        let slots = planned.slots.clone();
        planned.ended(end);
        let response = outcome.map_err(|error| in_this_document(error, &asked))?;
        report(&asked, &slots, &response);
        // Unknown outcomes take precedence over failures, so that the error does not sound final.
        match response.unknown.first().or(response.failures.first()) {
            Some(failed) if response.nodes.is_empty() => {
                let status = failed.error.clone().unwrap_or_default();
                Err(in_this_document(from_rpc_status(&status), &asked))
            }
            _ => Ok(Provisioned::of(response.nodes)),
        }
    }

    /// Returns the nodes that a request created before this server was started. Its slots are no longer known, so
    /// missing nodes are not created: fewer nodes than requested are a valid response.
    async fn made(
        &self,
        asked: &Provision,
        request_id: Uuid,
        spec_hash: &str,
    ) -> Result<Option<Provisioned>> {
        let request_id = request_id.to_string();
        let found = self.platform.driver().of_request(&request_id).await?;
        let same = |found: &Found| {
            let node = &found.node;
            let owner = node.slot.as_ref().map(|slot| slot.owner.as_str());
            owner == Some(OWNER.to_string().as_str())
                && node.cluster_id == asked.cluster_id
                && node.group == asked.group_id
                && node.spec_hash == spec_hash
        };
        if !found.iter().all(same) {
            return Err(reused(&request_id));
        }
        let nodes: Vec<_> = found.into_iter().map(|found| found.node).collect();
        Ok((!nodes.is_empty()).then(|| Provisioned::of(nodes)))
    }
}

/// Converts the parts of a request that come from the document.
fn request(asked: &Provision) -> ProvisionRequest {
    ProvisionRequest {
        fence: fence(),
        owner: OWNER.to_string(),
        // This owner keeps no counter.
        sequence: 1,
        cluster: Some(ClusterContext {
            id: asked.cluster_id.clone(),
            store: asked.store.clone(),
            version: asked.version.clone(),
            attributes: Some(to_struct(&asked.attributes)),
            ..ClusterContext::default()
        }),
        group: Some(ResolvedGroup {
            path: asked.group_id.clone(),
            size: asked.group.desired_count,
            node_class: asked.group.node_class.clone(),
            version: asked.group.version.clone(),
            attributes: Some(to_struct(&asked.group.attributes)),
            ..ResolvedGroup::default()
        }),
        storage: asked.group.storage.clone(),
        bootstrap: asked.group.bootstrap.clone(),
        ..ProvisionRequest::default()
    }
}

/// Hash of the fields that define the nodes. The size of the group is not covered, nor is the user data: whoever reads the
/// hash could guess a password.
fn spec_hash(asked: &Provision) -> String {
    let request = request(asked);
    let mut group = request.group.unwrap_or_default();
    group.size = 0;
    let mut hash = Sha256::new();
    // Deterministic, because the keys of a Struct are sorted.
    hash.update(
        request
            .cluster
            .unwrap_or_default()
            .encode_length_delimited_to_vec(),
    );
    hash.update(group.encode_length_delimited_to_vec());
    if let Some(storage) = request.storage {
        hash.update(storage.encode_length_delimited_to_vec());
    }
    hex(&hash.finalize()[..16])
}

/// Derives the request id from a key: the key itself if it is a UUID, otherwise a hash of it.
fn request_id(key: &str) -> Uuid {
    Uuid::try_parse(key).unwrap_or_else(|_| {
        let mut hash = Sha256::new();
        hash.update(OWNER.as_bytes());
        hash.update(key.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    })
}

/// Whether a listed node still exists as far as is known.
pub(crate) fn exists(node: &Node) -> bool {
    node.phase() != NodePhase::Terminated
}

/// The living nodes that this owner has in the cluster, for templates.
fn peers<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<Peer> {
    let owner = OWNER.to_string();
    let lives = |node: &&Node| {
        let ours = node.slot.as_ref().is_some_and(|slot| slot.owner == owner);
        let dead = [
            NodePhase::Deprovisioning,
            NodePhase::Failed,
            NodePhase::Terminated,
        ];
        ours && !dead.contains(&node.phase())
    };
    let mut peers: Vec<Peer> = nodes
        .filter(lives)
        .map(|node| Peer {
            name: node.name.clone(),
            group: node.group.clone(),
            ordinal: node.ordinal.unwrap_or_default(),
            role: node.role,
            endpoints: node.endpoints.clone(),
            ready: node.ready.unwrap_or_default(),
        })
        .collect();
    peers.sort_by(|a, b| (&a.group, a.ordinal).cmp(&(&b.group, b.ordinal)));
    peers
}

fn promises_nothing(error: &Error) -> bool {
    matches!(
        error.class(),
        Class::Cannot | Class::NoCapacity | Class::Credentials | Class::Stale
    )
}

/// Logs the nodes that were not created or whose outcome is unknown, for which the response has no field.
fn report(asked: &Provision, slots: &[Slot], response: &ProvisionResponse) {
    for (failed, unknown) in response
        .failures
        .iter()
        .map(|failed| (failed, false))
        .chain(response.unknown.iter().map(|failed| (failed, true)))
    {
        let node = slots.get(failed.index as usize).map(|slot| &slot.id);
        let error = failed.error.clone().unwrap_or_default().message;
        tracing::warn!(
            cluster = asked.cluster_id,
            node,
            unknown,
            error,
            "a node that was asked for over HTTP was not made"
        );
    }
}

/// Translates the fields of the gRPC request to those of the document.
fn in_this_document(error: Error, asked: &Provision) -> Error {
    if error.reason() != Reason::Invalid || error.fields().is_empty() {
        return error;
    }
    let group = format!("cluster.nodes.{}", asked.group_id);
    let name = |field: &str| match field {
        "cluster.id" => "cluster.cluster_id".to_owned(),
        "cluster.version" => "cluster.store_version".to_owned(),
        "group.path" => "provision.node_group_id".to_owned(),
        "group.version" => format!("{group}.store_version"),
        "bootstrap" => format!("{group}.user_data"),
        storage if storage.split('.').next() == Some("storage") => format!("{group}.{storage}"),
        other => match other.strip_prefix("group.") {
            Some(rest) => format!("{group}.{rest}"),
            None => other.to_owned(),
        },
    };
    let fields = error.fields().iter().map(|v| Violation {
        field: name(&v.field),
        description: v.description.clone(),
    });
    // The names of the slots are derived from the group.
    Error::violations(fields.filter(|v| !v.field.starts_with("slots[")).collect())
}
