//! Checks of convergence and invariants, and diagnostics for failures.

use std::{collections::BTreeSet, time::Duration};

use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{Node, NodePhase},
};
use tokio::time::Instant;

use super::{CALL, PATIENCE, World};

impl World {
    /// Returns the first difference from the desired state, or `None` if the world has converged.
    pub async fn difference(&mut self) -> Option<String> {
        let mut names: BTreeSet<String> = self.wanted.keys().cloned().collect();
        names.extend(self.site.all().into_iter().map(|node| node.cluster_id));
        for name in names {
            let Some(groups) = self.wanted.get(&name).cloned() else {
                return Some(format!("{name} has nodes and is not wanted"));
            };
            let Some(cluster) = self.cluster(&name).await else {
                return Some(format!("{name} is not there"));
            };
            let status = cluster.status.clone().unwrap();
            if status.observed_generation != cluster.generation {
                return Some(format!(
                    "{name}: generation {} is not taken in",
                    cluster.generation
                ));
            }
            let records = self.records(&name).await;
            let real = self.site.nodes(&name);
            for (group, size) in &groups {
                let size = *size as usize;
                let recorded = records.iter().filter(|node| node.group == *group).count();
                let ready = records
                    .iter()
                    .filter(|node| node.group == *group && node.state() == pb::NodeState::Ready)
                    .count();
                let lives =
                    |node: &&Node| node.phase() == NodePhase::Running && node.ready == Some(true);
                let living = real
                    .iter()
                    .filter(|node| node.group == *group)
                    .filter(lives)
                    .count();
                if (recorded, ready, living) != (size, size, size) {
                    return Some(format!(
                        "{name}/{group}: {size} wanted, {recorded} recorded, {ready} ready, {living} on the platform"
                    ));
                }
            }
            let recorded: BTreeSet<&str> = records
                .iter()
                .filter_map(|node| node.platform_node_id.as_deref())
                .collect();
            let living: BTreeSet<&str> = real.iter().map(|node| node.node_id.as_str()).collect();
            if recorded != living || records.len() != real.len() {
                return Some(format!(
                    "{name}: recorded {recorded:?}, on the platform {living:?}"
                ));
            }
            if status.phase() != pb::ClusterPhase::Ready {
                return Some(format!(
                    "{name}: all nodes are there and it is {:?}",
                    status.phase()
                ));
            }
        }
        let request = pb::ListClustersRequest::default();
        let answer = self
            .call(async |client| client.list_clusters(request.clone(), CALL).await)
            .await
            .unwrap();
        let known: BTreeSet<String> = answer
            .clusters
            .into_iter()
            .map(|cluster| cluster.name)
            .collect();
        let wanted: BTreeSet<String> = self.wanted.keys().cloned().collect();
        (known != wanted).then(|| format!("clusters {known:?}, wanted {wanted:?}"))
    }

    /// Waits until the world has converged.
    pub async fn converge(&mut self) {
        let end = Instant::now() + PATIENCE;
        let mut wait = Duration::from_millis(20);
        while let Some(difference) = self.difference().await {
            if Instant::now() > end {
                self.explain().await;
                panic!("not as wanted after {PATIENCE:?} of virtual time: {difference}");
            }
            self.pass(wait).await;
            wait = (wait * 3 / 2).min(Duration::from_secs(5));
        }
    }

    /// Waits for a condition of the world.
    pub async fn until(&mut self, what: &str, condition: impl AsyncFn(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut wait = Duration::from_millis(20);
        while !condition(self).await {
            if Instant::now() > end {
                self.explain().await;
                panic!("{what}: not within {PATIENCE:?} of virtual time");
            }
            self.pass(wait).await;
            wait = (wait * 3 / 2).min(Duration::from_secs(2));
        }
    }

    /// Checks that the world converges, remains stable, and that deleted clusters leave nothing behind.
    pub async fn check(&mut self) {
        self.converge().await;
        let before: BTreeSet<String> = self
            .site
            .all()
            .into_iter()
            .map(|node| node.node_id)
            .collect();
        // Long enough for everything in flight to take effect.
        self.pass(Duration::from_secs(15)).await;
        assert_eq!(self.difference().await, None, "it did not stay as wanted");
        let after: BTreeSet<String> = self
            .site
            .all()
            .into_iter()
            .map(|node| node.node_id)
            .collect();
        assert_eq!(before, after, "a converged cluster stays as it is");
        self.assert_no_doubles();
        let keys = self.disk.keys().await;
        for uid in &self.gone {
            let left: Vec<&String> = keys
                .iter()
                .filter(|key| {
                    key.contains(uid.as_str()) && (key.starts_with("c/") || key.starts_with("u/"))
                })
                .collect();
            assert!(left.is_empty(), "a deleted cluster left {left:?}");
        }
        let names: Vec<&String> = keys.iter().filter(|key| key.starts_with("n/")).collect();
        assert_eq!(
            names.len(),
            self.wanted.len(),
            "names that are taken: {names:?}"
        );
    }

    /// Asserts that no slot was ever created while a node of it existed. After a backend has lost a node without a
    /// trace, one more creation is allowed, because it is unknown whether the first ever took place.
    pub fn assert_no_doubles(&self) {
        let mut doubles = self.site.backend.doubles();
        doubles.retain(|entry| {
            let lost = self.vanished.get(&(entry.request_id.clone(), entry.index));
            entry.created > 1 + lost.copied().unwrap_or(0)
        });
        assert!(doubles.is_empty(), "made more than once: {doubles:?}");
    }

    /// Prints diagnostics for a failed test.
    pub async fn explain(&mut self) {
        let platform = self.platform("sim").await.status.unwrap();
        eprintln!(
            "platform: {:?} {} {:?}",
            platform.phase(),
            platform.message,
            platform.conditions
        );
        let request = pb::ListClustersRequest::default();
        let answer = self
            .call(async |client| client.list_clusters(request.clone(), CALL).await)
            .await
            .unwrap();
        for cluster in answer.clusters {
            let full = self.cluster(&cluster.name).await.unwrap();
            let status = full.status.unwrap();
            eprintln!(
                "{} {:?}: {:?}",
                cluster.name,
                status.phase(),
                status.conditions
            );
            for group in status.groups {
                eprintln!(
                    "  group {}: {} present, {} ready: {:?}",
                    group.path, group.present, group.ready, group.conditions
                );
            }
            for node in self.records(&cluster.name).await {
                eprintln!(
                    "  {} {:?} {:?} {} {}",
                    node.id,
                    node.state(),
                    node.platform_node_id,
                    node.reason,
                    node.message
                );
            }
            let request = pb::PlanClusterRequest {
                subject: Some(pb::plan_cluster_request::Subject::Name(
                    cluster.name.clone(),
                )),
                ..Default::default()
            };
            if let Ok(plan) = self
                .call(async |client| client.plan_cluster(request.clone(), CALL).await)
                .await
            {
                eprintln!("  plan: {:?}", plan.plan);
            }
        }
        for node in self.site.backend.nodes() {
            eprintln!(
                "  real {} {} {:?} ready {:?}",
                node.cluster_id,
                node.node_id,
                node.phase(),
                node.ready
            );
        }
    }
}
