//! Invariants after every step, and convergence at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::Duration,
};

use drover_client::OrchestratorClient;
use drover_proto::{
    orchestrator::v1::{self as pb, plan_cluster_request::Subject},
    platform::v1::{Node, NodePhase},
};
use tokio::time::Instant;

use super::{
    Run,
    faults::FEW,
    model::{ClusterModel, NodeKey, Tracked, total},
    operator::{CALL, serves},
    panicked,
};

/// Virtual time within which everything must converge once no more faults are injected: beyond every deadline and
/// backoff.
const PATIENCE: Duration = Duration::from_secs(6 * 3600);

/// Virtual time within which the effect of a request with a lost response must be visible.
const LATEST: Duration = Duration::from_secs(300);

impl Run {
    /// Checks the invariants.
    pub(super) async fn check(&mut self) -> Result<(), String> {
        if let Some(panic) = panicked() {
            return Err(format!("a task panicked: {panic}"));
        }
        self.nobody_sound_was_removed()?;
        self.nothing_was_made_twice()?;
        self.no_network_was_made_twice()?;
        self.no_addon_was_made_twice()?;
        self.what_is_kept_is_there()?;
        self.nobody_begins_with_an_old_secret()?;
        self.no_secret_in_use_was_deleted().await?;
        self.learn_what_was_done_after_all().await;
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        self.meet_who_is_ready().await;
        self.watch().await;
        Ok(())
    }

    /// A call may have had an effect although its response was lost or it failed halfway.
    async fn learn_what_was_done_after_all(&mut self) {
        let clusters = self.world.clusters().await.into_iter();
        let mut now: BTreeMap<_, _> = clusters.map(|it| (it.name.clone(), it)).collect();
        for name in self.model.clusters.keys().cloned().collect::<Vec<_>>() {
            let known = &self.model.clusters[&name];
            if known.gone_since.is_none_or(|at| at.elapsed() < LATEST) {
                self.learn_from(&name, now.remove(&name));
            }
        }
    }

    fn real(&self, key: &NodeKey) -> Option<Node> {
        let all = self.model.sites[key.0].real.backend.nodes();
        all.into_iter().find(|node| node.node_id == key.1)
    }

    /// Invariant: no serving node is removed without a reason given by the operator.
    fn nobody_sound_was_removed(&mut self) -> Result<(), String> {
        let mut lost = Vec::new();
        for (at, site) in self.model.sites.iter().enumerate() {
            let living: BTreeSet<String> = site
                .real
                .backend
                .nodes()
                .into_iter()
                .filter(|node| node.phase() == NodePhase::Running)
                .map(|node| node.node_id)
                .collect();
            let here = self.model.nodes.iter().filter(|(key, _)| key.0 == at);
            let gone = here.filter(|(key, _)| !living.contains(&key.1));
            lost.extend(gone.map(|(key, node)| (key.clone(), node.clone())));
        }
        for at in 0..self.model.sites.len() {
            let Some(asked) = self.model.sites[at].deaf.clone() else {
                continue;
            };
            // With so few left, their failed probes are plausible. Nodes removed before that were not among the few.
            let goes = lost
                .iter()
                .filter(|(key, node)| key.0 == at && node.cluster == asked);
            if self.asked(at, &asked).saturating_sub(goes.count()) < FEW {
                self.hurt(at, |cluster| cluster == asked);
            }
        }
        for (key, node) in lost {
            // A node that was there before may still be starting.
            if node.found
                && self
                    .real(&key)
                    .is_some_and(|real| real.phase() == NodePhase::Pending)
            {
                continue;
            }
            self.model.nodes.remove(&key);
            self.model.unready.remove(&key);
            // A node that was there before may have failed to start.
            let failed = |real: Node| real.phase() == NodePhase::Failed;
            if node.found && self.real(&key).is_some_and(failed) {
                continue;
            }
            let Some(cluster) = self.model.clusters.get_mut(&node.cluster) else {
                continue;
            };
            if node.sound && !cluster.may_go(&key, &node) {
                return Err(format!(
                    "{} of {}/{}{} was removed, and there was no reason to",
                    key.1,
                    node.cluster,
                    node.group,
                    if node.found {
                        ", which was there before,"
                    } else {
                        ""
                    }
                ));
            }
        }
        Ok(())
    }

    /// Invariant: no slot is created while a node of it exists.
    fn nothing_was_made_twice(&self) -> Result<(), String> {
        for site in &self.model.sites {
            for double in site.real.backend.doubles() {
                let slot = (double.request_id.clone(), double.index);
                let lost = self.model.vanished.get(&slot).copied().unwrap_or_default();
                if double.created > 1 + lost {
                    return Err(format!(
                        "made {} times on {}: {double:?}",
                        double.created, site.name
                    ));
                }
            }
        }
        Ok(())
    }

    fn what_is_kept_is_there(&mut self) -> Result<(), String> {
        let there: BTreeMap<(usize, String), Option<String>> = self
            .model
            .sites
            .iter()
            .enumerate()
            .flat_map(|(at, site)| {
                let storage = site.real.backend.storage().into_iter();
                storage.map(move |(storage, node)| ((at, storage.id), node))
            })
            .collect();
        for (name, cluster) in &mut self.model.clusters {
            if cluster.deleted {
                // The storage of a deleted cluster is subject to a different policy.
                cluster.kept.clear();
            }
            // A volume that was handed on shares the fate of its new node.
            cluster.kept.retain(|volume, kept| {
                let holder = there.get(volume).and_then(Option::as_ref);
                holder.is_none_or(|holder| *holder == kept.node)
            });
            let mut kept = cluster.kept.iter();
            if let Some((volume, kept)) = kept.find(|(volume, _)| !there.contains_key(volume)) {
                return Err(format!(
                    "storage {} of {name} is gone: {}",
                    volume.1, kept.why
                ));
            }
        }
        Ok(())
    }

    /// Starts to track nodes that serve and are recorded as ready: they must not be removed without a reason.
    async fn meet_who_is_ready(&mut self) {
        let now = Instant::now();
        let wanted = self.model.wanted();
        for record in self.world.records_of(None).await {
            if record.state() != pb::NodeState::Ready || !wanted.contains(&record.cluster) {
                continue;
            }
            let Some(key) = self.key(&record) else {
                continue;
            };
            if self.model.nodes.contains_key(&key) || self.model.unready.contains(&key) {
                continue;
            }
            if !self.real(&key).is_some_and(|node| serves(&node)) {
                continue;
            }
            let node = Tracked {
                cluster: record.cluster,
                group: record.group,
                since: now,
                sound: true,
                found: false,
            };
            self.model.nodes.insert(key, node);
        }
    }

    /// Repairs all faults and checks that everything converges.
    pub(super) async fn end(&mut self) -> Result<(), String> {
        self.note("everything is mended");
        self.world.crash.disarm();
        self.world.clock_error.store(0, Ordering::Relaxed);
        self.world.disk.faults().restart();
        self.world.disk.delay(Duration::ZERO, Duration::ZERO);
        self.world.end_overtaken().await;
        self.confirm_restore().await;
        for site in &mut self.model.sites {
            if site.lost {
                continue;
            }
            let backend = &site.real.backend;
            site.deaf = None;
            backend.deafen(false);
            backend.pause_backend(false);
            backend.freeze_visibility(false);
            backend.set_capacity(None);
            if site.impostor {
                self.world.sites.put(&site.endpoint, &site.real);
                site.impostor = false;
                site.real.stop();
                site.down = true;
            }
            if site.down {
                site.real.start();
                site.down = false;
            }
        }
        for key in std::mem::take(&mut self.model.unready) {
            self.model.sites[key.0].real.backend.set_ready(&key.1, true);
        }
        for name in self.model.clusters.keys().cloned().collect::<Vec<_>>() {
            self.resume(&name).await;
        }
        self.trust_all().await?;
        self.converge().await?;
        self.check().await?;
        self.what_is_watched_is_there().await
    }

    /// Waits until all platforms are ready under their current uid.
    async fn trust_all(&mut self) -> Result<(), String> {
        for at in 0..self.model.sites.len() {
            if self.model.sites[at].lost {
                continue;
            }
            let end = Instant::now() + PATIENCE;
            while !self.trusted(at).await {
                if Instant::now() > end {
                    return Err(format!("{} is never seen", self.model.sites[at].name));
                }
                self.check().await?;
                self.world.pass(Duration::from_secs(5)).await;
            }
        }
        Ok(())
    }

    async fn seen(&mut self, at: usize) -> pb::PlatformStatus {
        let request = pb::GetPlatformRequest {
            name: self.model.sites[at].name.clone(),
            ..pb::GetPlatformRequest::default()
        };
        let wait = Duration::from_secs(30);
        let answer = self
            .world
            .call(async |client| client.get_platform(request.clone(), wait).await)
            .await;
        let platform = answer
            .ok()
            .and_then(|answer| answer.platform)
            .unwrap_or_default();
        platform.status.unwrap_or_default()
    }

    async fn trusted(&mut self, at: usize) -> bool {
        let status = self.seen(at).await;
        if status.phase() == pb::PlatformPhase::Ready {
            return true;
        }
        let wait = Duration::from_secs(30);
        if status.vanished_count > 0 {
            // These nodes have indeed vanished.
            let request = pb::ConfirmNodeLossRequest {
                platform: self.model.sites[at].name.clone(),
                vanished_count: status.vanished_count,
            };
            let confirm = async |client: OrchestratorClient| {
                client.confirm_node_loss(request.clone(), wait).await
            };
            let _ = self.world.call(confirm).await;
        }
        let site = &self.model.sites[at];
        // At another address the platform may be waiting for a token that was never written.
        self.world.sites.put(&site.endpoint, &site.real);
        let (uid, registered) = (site.uid.clone(), site.registered);
        if status.phase() == pb::PlatformPhase::Refused {
            self.enroll(at, false, Some(uid)).await;
        } else if !registered || status.phase() == pb::PlatformPhase::Unspecified {
            self.enroll(at, false, None).await;
        }
        false
    }

    async fn converge(&mut self) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        let mut wait = Duration::from_secs(1);
        loop {
            let Some(difference) = self.difference().await else {
                return Ok(());
            };
            if Instant::now() > end {
                return Err(format!(
                    "not as wanted after {PATIENCE:?} without faults, and nothing says why: {difference}"
                ));
            }
            self.give_up_what_is_lost().await;
            self.world.pass(wait).await;
            self.check().await?;
            wait = (wait * 3 / 2).min(Duration::from_secs(300));
        }
    }

    /// Returns the first deviation from the desired state that is not explained by a condition.
    async fn difference(&mut self) -> Option<String> {
        for name in self.model.clusters.keys().cloned().collect::<Vec<_>>() {
            let cluster = self.world.cluster(&name).await;
            let known = &self.model.clusters[&name];
            let (deleted, spec) = (known.deleted, known.spec.clone());
            let forgotten = known.forgotten;
            let Some(cluster) = cluster else {
                if forgotten || deleted || self.model.clusters[&name].uid.is_empty() {
                    continue;
                }
                return Some(format!("{name} is not there"));
            };
            let status = cluster.status.clone().unwrap_or_default();
            let lost = self.model.sites.iter().any(|site| site.lost);
            if says_why(&status, lost && !deleted) {
                continue;
            }
            if deleted {
                return Some(format!("{name} is being deleted"));
            }
            if status.observed_generation != cluster.generation {
                return Some(format!(
                    "{name}: generation {} is not taken in",
                    cluster.generation
                ));
            }
            for group in &spec.groups {
                let there = self.serving(&name, &group.name).await;
                if there != total(group) as usize {
                    return Some(format!(
                        "{name}/{}: {} wanted, {there} ready",
                        group.name,
                        total(group)
                    ));
                }
            }
            if let Some(difference) = self.addon_difference(&name).await {
                return Some(difference);
            }
            if status.phase() != pb::ClusterPhase::Ready {
                return Some(format!("{name} has all nodes and is {:?}", status.phase()));
            }
        }
        if let Some(node) = self.late_nodes().await {
            return Some(node);
        }
        self.left_over().await
    }

    /// Returns nodes of deleted clusters that appeared late.
    async fn late_nodes(&mut self) -> Option<String> {
        for (at, site) in self.model.sites.iter().enumerate() {
            // After the restore of an older store or a change of a backend's uid, finding them is up to the operator.
            if self.restored || site.lost || site.renamed {
                continue;
            }
            for node in site.real.all() {
                let Some(slot) = &node.slot else { continue };
                let known = self.model.clusters.get(&node.cluster_id);
                let gone = |known: &&ClusterModel| {
                    known.gone_since.is_some() && !known.abandoned.contains(&at)
                };
                let late = known
                    .filter(gone)
                    .is_some_and(|known| known.uid == slot.owner);
                if late {
                    return Some(format!(
                        "{} of {} is left over",
                        node.node_id, node.cluster_id
                    ));
                }
            }
        }
        None
    }

    /// Number of nodes of a group that are recorded as ready and actually serve.
    async fn serving(&mut self, name: &str, group: &str) -> usize {
        let records = self.world.records(name).await;
        let of = records
            .iter()
            .filter(|node| node.group == group && node.state() == pb::NodeState::Ready);
        of.filter(|record| {
            let node = self.key(record).and_then(|key| self.real(&key));
            node.is_some_and(|node| serves(&node))
        })
        .count()
    }

    async fn events(&mut self, name: &str) -> Vec<pb::Event> {
        let request = pb::ListEventsRequest {
            cluster: name.to_owned(),
            page_size: 100,
            ..pb::ListEventsRequest::default()
        };
        let wait = Duration::from_secs(30);
        let answer = self
            .world
            .call(async |client| client.list_events(request.clone(), wait).await)
            .await;
        answer.map(|answer| answer.events).unwrap_or_default()
    }

    /// The next actions for a cluster and what it is waiting for.
    async fn next_of(&mut self, name: &str) -> Vec<String> {
        let request = pb::PlanClusterRequest {
            subject: Some(Subject::Name(name.to_owned())),
            ..pb::PlanClusterRequest::default()
        };
        let plan =
            async |client: OrchestratorClient| client.plan_cluster(request.clone(), CALL).await;
        let answer = self.world.call(plan).await.unwrap_or_default();
        let plan = answer.plan.unwrap_or_default();
        let actions = plan.actions.iter().map(|it| format!("  next {it:?}"));
        let waits = plan.report.iter().map(|it| format!("  waits {it:?}"));
        actions.chain(waits).collect()
    }

    /// Prints diagnostics.
    pub(super) async fn explain(&mut self) {
        for name in self.model.clusters.keys().cloned().collect::<Vec<_>>() {
            for event in self.events(&name).await {
                let at = event.event_time.unwrap_or_default();
                self.note(format!(
                    "{name} event {}.{:03} {} {}",
                    at.seconds % 100_000,
                    at.nanos / 1_000_000,
                    event.reason,
                    event.message
                ));
            }
            let Some(cluster) = self.world.cluster(&name).await else {
                continue;
            };
            let status = cluster.status.unwrap_or_default();
            self.note(format!(
                "{name} is {:?}: {}",
                status.phase(),
                conditions(&status.conditions)
            ));
            for group in &status.groups {
                self.note(format!(
                    "  {}: {}",
                    group.path,
                    conditions(&group.conditions)
                ));
            }
            for waits in self.next_of(&name).await {
                self.note(waits);
            }
            for node in self.world.records(&name).await {
                self.note(format!(
                    "  {} {:?} {} {:?} {} {}",
                    node.id,
                    node.state(),
                    node.platform,
                    node.platform_node_id,
                    node.reason,
                    node.message
                ));
            }
        }
        for at in 0..self.model.sites.len() {
            let status = self.seen(at).await;
            let what = format!(
                "{} is {:?} {}: {}",
                self.model.sites[at].name,
                status.phase(),
                status.message,
                conditions(&status.conditions)
            );
            self.note(what);
            for node in self.model.sites[at].real.backend.nodes() {
                self.note(format!(
                    "  real {} {} {} {:?} ready {:?}",
                    node.cluster_id,
                    node.group,
                    node.node_id,
                    node.phase(),
                    node.ready
                ));
            }
        }
    }
}

/// Whether a condition names what a person has to do or to wait for. For a `lost` platform, waiting is not an
/// explanation.
fn says_why(status: &pb::ClusterStatus, lost: bool) -> bool {
    let groups = status.groups.iter().flat_map(|group| &group.conditions);
    let mut all = status.conditions.iter().chain(groups);
    all.any(|condition| {
        let kind = condition.r#type.as_str();
        let explains = EXPLAINS.contains(&kind) || lost && kind == "PlatformUnavailable";
        let waits = ["InfrastructureReady", "AddonsReady"].contains(&kind);
        condition.status == Some(true) && explains
            || lost && condition.status == Some(false) && waits
    })
}

/// Conditions under which a cluster may legitimately remain as it is.
const EXPLAINS: [&str; 12] = [
    "DeletionBlocked",
    "Failed",
    "ForeignNodes",
    "HostLost",
    "NoCapacity",
    "Orphans",
    "ProbeUnreachable",
    "PromotionFailed",
    "Rejected",
    "RemediationBlocked",
    "StoreBehind",
    "UpdateBlocked",
];

fn conditions(all: &[drover_proto::common::v1::Condition]) -> String {
    let holding = all
        .iter()
        .filter(|condition| condition.status == Some(true));
    let said = holding.map(|condition| {
        format!(
            "{} ({}: {})",
            condition.r#type, condition.reason, condition.message
        )
    });
    said.collect::<Vec<_>>().join("; ")
}
