//! The operator's actions: every call of the API, with valid and invalid arguments.

use std::time::Duration;

use drover_client::OrchestratorClient;
use drover_core::Result;
use drover_platform::identity::Identity;
use drover_proto::{orchestrator::v1 as pb, platform::v1::NodePhase};
use tokio::time::Instant;

use super::{
    Run,
    model::{ClusterModel, Kept, NodeKey, total},
    specs,
};

/// Virtual deadline of a call.
pub(super) const CALL: Duration = Duration::from_secs(30);
/// Maximum number of clusters at a time.
const CLUSTERS: usize = 3;

impl Run {
    pub(super) async fn operate(&mut self) {
        let wanted = self.model.wanted();
        if wanted.is_empty() {
            return self.create().await;
        }
        let name = wanted[self.random.usize(..wanted.len())].clone();
        let empty = self.model.sites.iter().position(|site| site.impostor);
        if let (Some(at), 0) = (empty, self.random.u8(..6)) {
            // The first thing that an operator tries with a platform that shows no nodes.
            return self.register_again(at).await;
        }
        match self.random.u8(..109) {
            0..8 if wanted.len() < CLUSTERS => self.create().await,
            8..12 if wanted.len() < CLUSTERS => self.take_over().await,
            12..26 => self.change(&name).await,
            26..44 => self.scale(&name).await,
            44..48 => self.undo(&name).await,
            48..52 => self.restart_group(&name).await,
            52..58 => self.replace(&name).await,
            58..61 => self.repair(&name).await,
            61..65 => self.pause_or_resume(&name).await,
            65..70 => self.delete(&name).await,
            70..75 => self.abandon(&name).await,
            75..80 => self.register().await,
            80..83 => self.unregister().await,
            83..86 => self.rotate_token().await,
            86..88 => self.confirm_loss().await,
            88..91 => self.delete_storage().await,
            91..94 => self.reconcile(&name).await,
            94..101 => self.look(&name).await,
            101..105 => self.rotate_secret().await,
            105 => self.delete_secret().await,
            106 => self.back_up().await,
            107 => self.restore().await,
            _ => self.confirm_restore().await,
        }
    }

    /// Makes a call and counts whether it was granted.
    pub(super) async fn ask<T>(
        &mut self,
        what: &'static str,
        call: impl AsyncFn(OrchestratorClient) -> Result<T>,
    ) -> Option<T> {
        let answer = self.world.call(call).await;
        self.count(what, answer.is_ok());
        if let Err(error) = &answer {
            self.note(format!("  refused: {error}"));
        }
        answer.ok()
    }

    /// Reads the current spec of a cluster, regardless of the response to the call that changed it.
    pub(super) async fn learn(&mut self, name: &str) {
        let now = self.world.cluster(name).await;
        self.learn_from(name, now);
    }

    pub(super) fn learn_from(&mut self, name: &str, now: Option<pb::Cluster>) {
        let Some(known) = self.model.clusters.get_mut(name) else {
            return;
        };
        match now {
            Some(cluster) if cluster.uid == known.uid || known.uid.is_empty() => {
                known.uid = cluster.uid;
                known.wants(cluster.spec.unwrap_or_default());
                known.deleted = cluster.delete_time.is_some();
                known.gone_since = None;
                let status = cluster.status.unwrap_or_default();
                let groups = status.groups.iter().flat_map(|group| &group.conditions);
                let blamed = groups.filter(|it| it.r#type == "Rejected" && it.status == Some(true));
                let blamed = blamed
                    .map(|it| &it.message)
                    .find(|it| it.contains("was changed since"));
                if let Some(message) = blamed {
                    self.wrong = Some(format!("{name} is rejected for a new secret: {message}"));
                }
            }
            // The cluster may still appear later: the response to its creation may have been lost.
            _ => {
                known.deleted = true;
                known.gone_since.get_or_insert_with(Instant::now);
            }
        }
    }

    fn free_name(&mut self) -> String {
        self.model.next_name += 1;
        format!("c{}", self.model.next_name)
    }

    /// Returns the name of a deleted cluster, or a new one.
    async fn any_name(&mut self) -> String {
        let clusters = self.model.clusters.iter();
        let deleted = clusters.filter(|(_, cluster)| cluster.deleted && !cluster.forgotten);
        let deleted: Vec<_> = deleted.map(|(name, _)| name.clone()).collect();
        if deleted.is_empty() || self.random.bool() {
            return self.free_name();
        }
        let name = deleted[self.random.usize(..deleted.len())].clone();
        if self.world.cluster(&name).await.is_some() {
            return self.free_name();
        }
        // Leftovers of the old cluster do not belong to the new one.
        let again = ClusterModel {
            reuses_name: true,
            ..ClusterModel::default()
        };
        self.model.clusters.insert(name.clone(), again);
        self.model.nodes.retain(|_, node| node.cluster != name);
        self.model
            .unready
            .retain(|key| self.model.nodes.contains_key(key));
        name
    }

    async fn create(&mut self) {
        let name = self.any_name().await;
        let offers = self.model.offers();
        let spec = specs::cluster(&mut self.random, &offers);
        self.note(format!("apply {name}: {}", shown(&spec)));
        self.apply(&name, spec, false).await;
    }

    async fn apply(&mut self, name: &str, spec: pb::ClusterSpec, adopt: bool) -> bool {
        let sent = spec.clone();
        let remove_groups = match self.model.clusters.get(name) {
            Some(known) => {
                let gone = known.spec.groups.iter().map(|group| group.name.clone());
                gone.filter(|old| spec.groups.iter().all(|group| group.name != *old))
                    .collect()
            }
            None => Vec::new(),
        };
        let request = pb::ApplyClusterRequest {
            cluster: Some(pb::Cluster {
                name: name.to_owned(),
                spec: Some(spec),
                ..pb::Cluster::default()
            }),
            adopt,
            remove_groups,
            ..pb::ApplyClusterRequest::default()
        };
        // Recorded before the call: the orchestrator may crash after it took effect.
        let known = self.model.clusters.entry(name.to_owned()).or_default();
        known.wants(sent);
        let granted = self
            .ask("ApplyCluster", async |client| {
                client.apply_cluster(request.clone(), CALL).await
            })
            .await
            .is_some();
        self.learn(name).await;
        granted
    }

    /// Adopts nodes that the orchestrator did not create into a cluster.
    async fn take_over(&mut self) {
        let name = self.free_name();
        let offers = self.model.offers();
        let mut spec = specs::cluster(&mut self.random, &offers);
        spec.platforms = offers.platforms.into_iter().map(choice).collect();
        spec.groups.truncate(1);
        let group = &mut spec.groups[0];
        group.platforms.clear();
        group.storage = None;
        group.standby = None;
        let path = group.name.clone();
        let mut found = 0;
        for at in 0..self.model.sites.len() {
            if self.model.sites[at].lost {
                continue;
            }
            for _ in 0..self.random.u32(..4) {
                let identity = Identity {
                    cluster_id: name.clone(),
                    group: path.clone(),
                    name: format!("{path}-{found}"),
                    ordinal: found,
                    id: format!("{path}-{found}-old{found}"),
                    ..Identity::default()
                };
                if let Ok(node) = self.model.sites[at].real.backend.create_as(identity) {
                    let tracked = super::model::Tracked {
                        cluster: name.clone(),
                        group: path.clone(),
                        since: Instant::now(),
                        sound: true,
                        found: true,
                    };
                    self.model.nodes.insert((at, node.node_id), tracked);
                    found += 1;
                }
            }
        }
        spec.groups[0].size = Some(found + self.random.u32(..2));
        self.note(format!("{found} nodes of {name} are there already"));
        let time = self.pause();
        self.world.pass(time).await;
        self.note(format!("apply --adopt {name}: {}", shown(&spec)));
        self.apply(&name, spec, true).await;
    }

    async fn change(&mut self, name: &str) {
        let mut spec = self.model.clusters[name].spec.clone();
        let offers = self.model.offers();
        let what = specs::change(&mut self.random, &mut spec, &offers);
        self.note(format!("apply {name}, which {what}: {}", shown(&spec)));
        self.apply(name, spec, false).await;
    }

    async fn scale(&mut self, name: &str) {
        let groups = self.model.clusters[name].spec.groups.clone();
        if groups.is_empty() {
            return;
        }
        let group = &groups[self.random.usize(..groups.len())];
        let size = self.random.u32(..6);
        let mut remove_nodes = Vec::new();
        let records = self.world.records(name).await;
        if size < group.size.unwrap_or(1) && self.random.bool() {
            let of = records.iter().filter(|node| node.group == group.name);
            let mut ids: Vec<_> = of.map(|node| node.id.clone()).collect();
            self.random.shuffle(&mut ids);
            ids.truncate((group.size.unwrap_or(1) - size) as usize);
            remove_nodes = ids;
        }
        self.note(format!(
            "scale {name}/{} to {size}, without {remove_nodes:?}",
            group.name
        ));
        let request = pb::ScaleGroupRequest {
            cluster: name.to_owned(),
            group: group.name.clone(),
            size: Some(size),
            remove_nodes: remove_nodes.clone(),
            ..pb::ScaleGroupRequest::default()
        };
        let granted = self
            .ask("ScaleGroup", async |client| {
                client.scale_group(request.clone(), CALL).await
            })
            .await
            .is_some();
        let keeps = group
            .storage
            .as_ref()
            .is_some_and(|storage| storage.when_scaled() != pb::StorageRetention::Delete);
        for node in records
            .iter()
            .filter(|node| remove_nodes.contains(&node.id))
        {
            if granted && keeps {
                self.must_keep_storage_of(name, node);
            }
        }
        self.learn(name).await;
        if group.storage.is_some() && !remove_nodes.is_empty() {
            // A node kept beyond the group's size makes room for a lower slot, for which a retained volume is waiting.
            for _ in 0..size {
                self.model.one_too_many(name, &group.name);
            }
        }
    }

    /// Requires the storage of a node that is scaled away to be kept.
    fn must_keep_storage_of(&mut self, name: &str, node: &pb::Node) {
        let Some(key) = self.key(node) else {
            return;
        };
        // If the node is already gone, its end has already decided about the storage.
        let storage = self.model.sites[key.0].real.backend.storage();
        let volume = storage
            .into_iter()
            .find(|(_, has)| has.as_deref() == Some(key.1.as_str()));
        let sound = self.model.nodes.get(&key).is_some_and(|node| node.sound);
        // If the node is already being removed, the earlier decision applies.
        let stays = !node.marked
            && !matches!(
                node.state(),
                pb::NodeState::Draining | pb::NodeState::Deprovisioning
            );
        if let (Some((volume, _)), true, Some(cluster)) =
            (volume, sound && stays, self.model.clusters.get_mut(name))
        {
            let why = format!("{} was scaled away, and whenScaled is Retain", node.id);
            let kept = Kept {
                group: node.group.clone(),
                node: key.1,
                why,
            };
            cluster.kept.insert((key.0, volume.id), kept);
        }
    }

    /// Platform and id of the node of a record.
    pub(super) fn key(&self, node: &pb::Node) -> Option<NodeKey> {
        let at = self
            .model
            .sites
            .iter()
            .position(|site| site.name == node.platform)?;
        Some((at, node.platform_node_id.clone()?))
    }

    async fn undo(&mut self, name: &str) {
        self.note(format!("undo {name}"));
        let request = pb::UndoClusterRequest {
            name: name.to_owned(),
            ..pb::UndoClusterRequest::default()
        };
        // If it takes effect and the response is lost, nodes may be removed before the spec is read the next time.
        self.ask("UndoCluster", async |client| {
            client.undo_cluster(request.clone(), CALL).await
        })
        .await;
        self.learn(name).await;
    }

    async fn restart_group(&mut self, name: &str) {
        self.note(format!("restart {name}"));
        let request = pb::RestartGroupRequest {
            cluster: name.to_owned(),
            group: None,
        };
        if let Some(cluster) = self.model.clusters.get_mut(name) {
            cluster.renews(None);
        }
        self.ask("RestartGroup", async |client| {
            client.restart_group(request.clone(), CALL).await
        })
        .await;
    }

    /// A random record of the cluster.
    pub(super) async fn any_node(&mut self, name: &str) -> Option<pb::Node> {
        let records = self.world.records(name).await;
        if records.is_empty() {
            return None;
        }
        let at = self.random.usize(..records.len());
        records.into_iter().nth(at)
    }

    async fn replace(&mut self, name: &str) {
        let Some(node) = self.any_node(name).await else {
            return;
        };
        self.note(format!("replace {name} {}", node.id));
        if let (Some(key), Some(cluster)) = (self.key(&node), self.model.clusters.get_mut(name)) {
            cluster.named.insert(key);
        }
        let request = pb::ReplaceNodeRequest {
            cluster: name.to_owned(),
            id: node.id,
        };
        self.ask("ReplaceNode", async |client| {
            client.replace_node(request.clone(), CALL).await
        })
        .await;
    }

    async fn repair(&mut self, name: &str) {
        let Some(node) = self.any_node(name).await else {
            return;
        };
        let under_repair = self.random.bool();
        self.note(format!("repair {name} {}: {under_repair}", node.id));
        let request = pb::SetNodeRepairRequest {
            cluster: name.to_owned(),
            id: node.id,
            under_repair,
        };
        self.ask("SetNodeRepair", async |client| {
            client.set_node_repair(request.clone(), CALL).await
        })
        .await;
    }

    async fn pause_or_resume(&mut self, name: &str) {
        let paused = self.model.clusters[name].paused;
        self.note(format!(
            "{} {name}",
            if paused { "resume" } else { "pause" }
        ));
        let granted = if paused {
            self.resume(name).await
        } else {
            let request = pb::PauseClusterRequest {
                name: name.to_owned(),
                reason: "looked at".to_owned(),
            };
            self.ask("PauseCluster", async |client| {
                client.pause_cluster(request.clone(), CALL).await
            })
            .await
            .is_some()
        };
        if let (true, Some(cluster)) = (granted, self.model.clusters.get_mut(name)) {
            cluster.paused = !paused;
        }
    }

    pub(super) async fn resume(&mut self, name: &str) -> bool {
        let request = pb::ResumeClusterRequest {
            name: name.to_owned(),
        };
        self.ask("ResumeCluster", async |client| {
            client.resume_cluster(request.clone(), CALL).await
        })
        .await
        .is_some()
    }

    async fn delete(&mut self, name: &str) {
        self.note(format!("delete {name}"));
        let request = pb::DeleteClusterRequest {
            name: name.to_owned(),
            ..pb::DeleteClusterRequest::default()
        };
        if let Some(cluster) = self.model.clusters.get_mut(name) {
            // Recorded before the call.
            cluster.deleted = true;
        }
        self.ask("DeleteCluster", async |client| {
            client.delete_cluster(request.clone(), CALL).await
        })
        .await;
    }

    async fn abandon(&mut self, name: &str) {
        let at = self.where_it_would_hurt(name);
        if self.random.u8(..4) == 0 {
            // A restarted orchestrator has not observed any platform yet.
            self.restart_with_another_clock().await;
        }
        let delete_nodes = self.random.u8(..4) == 0;
        let platform = self.model.sites[at].name.clone();
        self.note(format!(
            "abandon {platform} for {name}, delete nodes: {delete_nodes}"
        ));
        let request = pb::AbandonPlatformRequest {
            cluster: name.to_owned(),
            platform: platform.clone(),
            platform_uid: None,
            delete_nodes,
        };
        let answer = self
            .ask("AbandonPlatform", async |client| {
                client.abandon_platform(request.clone(), CALL).await
            })
            .await;
        if let (true, Some(cluster)) = (answer.is_some(), self.model.clusters.get_mut(name)) {
            cluster.abandoned.insert(at);
        }
        if answer.is_some() && delete_nodes {
            let of = self.model.nodes.iter();
            let there: Vec<_> = of
                .filter(|(key, node)| key.0 == at && node.cluster == name)
                .map(|(key, _)| key.clone())
                .collect();
            if let Some(cluster) = self.model.clusters.get_mut(name) {
                cluster.named.extend(there);
            }
        }
    }

    /// Mostly the platform that hosts most of a cluster.
    fn where_it_would_hurt(&mut self, name: &str) -> usize {
        let any = self.random.usize(..self.model.sites.len());
        if self.random.u8(..3) == 0 {
            return any;
        }
        let nodes = || self.model.nodes.iter();
        let count = |at: &usize| {
            nodes()
                .filter(|(key, node)| key.0 == *at && node.cluster == name)
                .count()
        };
        let most = (0..self.model.sites.len()).max_by_key(count);
        most.unwrap_or(any)
    }

    async fn reconcile(&mut self, name: &str) {
        self.note(format!("reconcile {name}"));
        let request = pb::ReconcileClusterRequest {
            name: name.to_owned(),
            reset_back_off: self.random.bool(),
        };
        self.ask("ReconcileCluster", async |client| {
            client.reconcile_cluster(request.clone(), CALL).await
        })
        .await;
    }
}

fn choice(name: String) -> pb::PlatformChoice {
    pb::PlatformChoice {
        name,
        ..pb::PlatformChoice::default()
    }
}

/// A spec in one line.
fn shown(spec: &pb::ClusterSpec) -> String {
    let names = |choices: &[pb::PlatformChoice]| {
        let names: Vec<_> = choices.iter().map(|choice| choice.name.as_str()).collect();
        names.join(",")
    };
    let groups = spec.groups.iter().map(|group| {
        let class = group.node_class.as_deref().unwrap_or_default();
        let storage = group.storage.as_ref().map_or(String::new(), |storage| {
            format!(
                " storage {:?}/{:?}/{:?}",
                storage.when_replaced(),
                storage.when_scaled(),
                storage.when_deleted()
            )
        });
        format!(
            "{} {} [{}] {class}{storage}",
            group.name,
            total(group),
            names(&group.platforms)
        )
    });
    let groups: Vec<_> = groups.collect();
    let class = spec.node_class.as_deref().unwrap_or_default();
    let addons = spec.addons.iter().map(|addon| {
        let secret = addon.jump_host.as_ref().map(|it| &*it.private_keys_secret);
        let targets = addon.targets.join(",");
        format!(
            "; {} on {} over {targets} {}",
            addon.name,
            addon.platform,
            secret.unwrap_or_default()
        )
    });
    let addons: String = addons.collect();
    format!(
        "[{}] {class} {}{addons}",
        names(&spec.platforms),
        groups.join("; ")
    )
}

/// Whether a node of a backend is running and ready.
pub(super) fn serves(node: &drover_proto::platform::v1::Node) -> bool {
    node.phase() == NodePhase::Running && node.ready == Some(true)
}
