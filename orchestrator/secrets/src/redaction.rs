//! Redaction of texts about nodes: they must not repeat secrets that the nodes were given, by the current spec or an
//! earlier one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drover_cluster::{
    Cluster, Clusters, FormerGroup, Heard, Named, Resolved, Unsaid, request::digest_not_stored,
};
use drover_core::{Reason, Result, secrecy::Hidden, spec::SecretRef};
use drover_proto::platform::v1 as wire;
use uuid::Uuid;

use crate::Vault;

impl Vault {
    /// Redacts the texts of nodes.
    pub async fn hear(&self, clusters: &Clusters, nodes: Vec<wire::Node>) -> Vec<Heard> {
        // What to redact is read once per group, however many of its nodes have texts.
        let mut talking: BTreeMap<(Uuid, String), BTreeSet<String>> = BTreeMap::new();
        for node in &nodes {
            if let Some(group) = group(node) {
                let hashes = talking.entry(group).or_default();
                hashes.insert(node.spec_hash.clone());
            }
        }
        let mut unsaid = BTreeMap::new();
        for ((owner, group), hashes) in talking {
            // Nothing is known to be secret for an unknown cluster.
            if let Some(cluster) = clusters.get(owner) {
                let hidden = self.hidden_with(&cluster, &group, &hashes).await;
                unsaid.insert((owner, group), hidden);
            }
        }
        let clean = nodes.into_iter().map(|node| {
            let hidden = group(&node).and_then(|group| unsaid.get(&group));
            Heard::of(node, hidden)
        });
        clean.collect()
    }

    /// Redacts errors of a call about a node, because platforms may repeat what they were sent.
    ///
    /// # Errors
    /// That of the answer.
    pub async fn hide<T>(&self, cluster: &Cluster, slot: u64, answer: Result<T>) -> Result<T> {
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        // The group of a node that was removed meanwhile is unknown, so it may have been any group.
        let group = {
            let inner = cluster.lock();
            let node = inner.state().node(slot);
            node.map(|node| node.group.clone()).unwrap_or_default()
        };
        Err(self.hidden(cluster, &group).await.error(error))
    }

    /// What to redact in texts about a node of a group: the secrets of the current spec, and those of former specs that
    /// made existing nodes of the group; those of all groups if the group no longer exists. Previous contents of a
    /// changed secret are no longer known.
    pub async fn hidden(&self, cluster: &Cluster, group: &str) -> Unsaid {
        self.hidden_with(cluster, group, &BTreeSet::new()).await
    }

    /// Like [`Self::hidden`], also for nodes with these hashes: a node that is about to be recorded is not known
    /// otherwise.
    async fn hidden_with(
        &self,
        cluster: &Cluster,
        group: &str,
        hashes: &BTreeSet<String>,
    ) -> Unsaid {
        match self.contents(cluster, group, hashes).await {
            Ok(hidden) => Unsaid::Contents(hidden),
            Err(error) => {
                tracing::warn!(
                    cluster = %cluster.name(),
                    group,
                    %error,
                    "what is said of nodes is not shown: what it may not repeat cannot be read"
                );
                Unsaid::Everything
            }
        }
    }

    async fn contents(
        &self,
        cluster: &Cluster,
        group: &str,
        hashes: &BTreeSet<String>,
    ) -> Result<Hidden> {
        loop {
            let (generation, former) = self.former(cluster).await?;
            let (named, perhaps) = {
                let inner = cluster.lock();
                if inner.desired().value.generation != generation {
                    // The spec that was current is now a former one.
                    continue;
                }
                inner.named(&former, group, hashes)
            };
            return self.read_all(cluster.uid(), &named, &perhaps).await;
        }
    }

    /// The groups of all retained former specs, and the generation that these specs precede. Cached for each generation.
    async fn former(&self, cluster: &Cluster) -> Result<(u64, Arc<Vec<FormerGroup>>)> {
        // The generation is read first: memory has a new one only after the store has retained the spec that it replaces.
        let generation = cluster.lock().desired().value.generation;
        if let Some(groups) = cluster.former(generation) {
            return Ok((generation, groups));
        }
        let digests = self.digests.of_cluster(cluster.uid());
        let mut groups = Vec::new();
        for (_, row) in self.store.revisions(cluster.uid()).await? {
            let spec = Resolved::from_stored(&row.spec, &digests)?;
            groups.extend(spec.groups.iter().map(FormerGroup::of));
        }
        let groups = Arc::new(groups);
        cluster.keep_former(generation, groups.clone());
        Ok((generation, groups))
    }

    /// Reads all contents of `named`, and those of `perhaps` that still exist.
    async fn read_all(&self, cluster: Uuid, named: &Named, perhaps: &Named) -> Result<Hidden> {
        let mut hidden = Hidden::default();
        for digest in &named.user_data {
            let data = self.store.user_data(cluster, digest).await?;
            let known_as = || self.digests.of_cluster(cluster).user_data(digest);
            let data = data.ok_or_else(|| digest_not_stored(&known_as()))?;
            hidden = hidden.script(&data);
        }
        for of in &named.secrets {
            let found = self.read(of).await?;
            hidden = hidden.secret(&found.content);
        }
        for digest in perhaps.user_data.difference(&named.user_data) {
            if let Some(data) = self.store.user_data(cluster, digest).await? {
                hidden = hidden.script(&data);
            }
        }
        for of in perhaps.secrets.difference(&named.secrets) {
            match self.read(of).await {
                Ok(found) => hidden = hidden.secret(&found.content),
                // No known node was given this secret.
                Err(error) if error.reason() == Reason::SecretNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(hidden)
    }

    /// Whether a cluster has nodes that were given a secret that `is` accepts, although no current spec refers to it.
    /// Without the secret, texts about these nodes could not be redacted.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn holds(&self, cluster: &Cluster, is: impl Fn(&SecretRef) -> bool) -> Result<bool> {
        let (others, deleting) = {
            let inner = cluster.lock();
            let running = inner.state().deleting && !inner.state().nodes.is_empty();
            let mut named = inner.spec().named_secrets();
            let is_named = named.any(|(of, _)| is(of));
            (inner.others(|_| true), running && is_named)
        };
        if deleting || others.is_empty() {
            return Ok(deleting);
        }
        let (_, former) = self.former(cluster).await?;
        Ok((former.iter())
            .filter(|one| others.iter().any(|(path, hash)| one.makes(path, hash)))
            .any(|one| one.named().secrets.iter().any(&is)))
    }
}

/// The cluster and the group of a node that has texts.
fn group(node: &wire::Node) -> Option<(Uuid, String)> {
    if node.message.is_empty() {
        return None;
    }
    let owner = Uuid::parse_str(&node.slot.as_ref()?.owner).ok()?;
    Some((owner, node.group.clone()))
}

#[cfg(test)]
mod tests;
