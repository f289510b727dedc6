//! Redaction of texts about nodes: they must not repeat secrets that the nodes were given, by the current spec or an
//! earlier one.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use drover_core::{
    Error, Reason, Result, Sym,
    secrecy::Hidden,
    spec::{Group, SecretRef, UserDataSource},
};

use super::{MAX_USERS, is_of, read};
use crate::{
    cluster::{Cluster, ClusterState, Resolved},
    request::digest_not_stored,
    shared::Shared,
};

/// Replaces a text if it is unknown what to redact in it.
const UNREADABLE: &str = "[hidden: what this may not repeat cannot be read]";

/// What to redact.
#[derive(Debug)]
pub(crate) enum Unsaid {
    Contents(Hidden),
    /// Unknown, so that nothing of the text is shown.
    Everything,
}

impl Unsaid {
    /// Redacts a text.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self {
            Self::Contents(hidden) => hidden.text(text),
            Self::Everything if text.is_empty() => Cow::Borrowed(text),
            Self::Everything => Cow::Borrowed(UNREADABLE),
        }
    }

    /// Redacts all texts of an error.
    pub(crate) fn error(&self, error: Error) -> Error {
        match self {
            Self::Contents(hidden) => hidden.error(error),
            Self::Everything => {
                let clean = Error::new(error.reason(), UNREADABLE);
                match error.retry_after() {
                    Some(after) => clean.with_retry_after(after),
                    None => clean,
                }
            }
        }
    }
}

/// References of groups to secrets, and to user data by its digest.
#[derive(Clone, Debug, Default)]
struct Named {
    secrets: BTreeSet<SecretRef>,
    user_data: BTreeSet<String>,
}

impl Named {
    fn of(group: &Group) -> Self {
        let mut named = Self {
            secrets: group.secrets.values().cloned().collect(),
            user_data: BTreeSet::new(),
        };
        match group.bootstrap.as_ref().map(|own| &own.source) {
            Some(UserDataSource::Secret(of)) => {
                named.secrets.insert(of.clone());
            }
            Some(UserDataSource::Sha256(digest)) => {
                named.user_data.insert(digest.clone());
            }
            None => {}
        }
        named
    }

    fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.user_data.is_empty()
    }

    fn add(&mut self, other: &Self) {
        self.secrets.extend(other.secrets.iter().cloned());
        self.user_data.extend(other.user_data.iter().cloned());
    }

    /// Reads all referenced contents, and those of `perhaps` that still exist.
    async fn read(&self, shared: &Shared, cluster: &Cluster, perhaps: &Self) -> Result<Hidden> {
        let mut hidden = Hidden::default();
        for digest in &self.user_data {
            let data = shared.store.user_data(cluster.uid, digest).await?;
            let known_as = || shared.digests.of_cluster(cluster.uid).user_data(digest);
            let data = data.ok_or_else(|| digest_not_stored(&known_as()))?;
            hidden = hidden.script(&data);
        }
        for of in &self.secrets {
            let found = read(&shared.store, of).await?;
            hidden = hidden.secret(&found.content);
        }
        for digest in perhaps.user_data.difference(&self.user_data) {
            if let Some(data) = shared.store.user_data(cluster.uid, digest).await? {
                hidden = hidden.script(&data);
            }
        }
        for of in perhaps.secrets.difference(&self.secrets) {
            match read(&shared.store, of).await {
                Ok(found) => hidden = hidden.secret(&found.content),
                // No known node was given this secret.
                Err(error) if error.reason() == Reason::SecretNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(hidden)
    }
}

/// A group of a retained former spec: identifies the nodes that it made and the secrets that it gave them.
#[derive(Debug)]
pub(crate) struct FormerGroup {
    path: Sym,
    /// Hashes of its choices, by all formula versions.
    hashes: Vec<Sym>,
    named: Named,
}

impl FormerGroup {
    fn of(group: &Group) -> Self {
        let hashes = (group.choices.iter())
            .flat_map(|choice| choice.former_hashes.iter().chain([&choice.spec_hash]));
        Self {
            path: group.path.clone(),
            hashes: hashes.cloned().collect(),
            named: Named::of(group),
        }
    }

    fn makes(&self, path: &str, hash: &str) -> bool {
        *self.path == *path && self.hashes.iter().any(|own| **own == *hash)
    }
}

/// The groups of all retained former specs, and the generation that these specs precede. Cached for each generation.
async fn former(shared: &Shared, cluster: &Cluster) -> Result<(u64, Arc<Vec<FormerGroup>>)> {
    // The generation is read first, because a spec is retained before another one replaces it.
    let generation = cluster.inner.lock().desired.value.generation;
    if let Some((of, groups)) = &*cluster.former.lock()
        && *of == generation
    {
        return Ok((generation, groups.clone()));
    }
    let digests = shared.digests.of_cluster(cluster.uid);
    let mut groups = Vec::new();
    for (_, row) in shared.store.revisions(cluster.uid).await? {
        let spec = Resolved::from_stored(&row.spec, &digests)?;
        groups.extend(spec.groups.iter().map(FormerGroup::of));
    }
    let groups = Arc::new(groups);
    *cluster.former.lock() = Some((generation, groups.clone()));
    Ok((generation, groups))
}

/// Redacts errors of a call about a node, because platforms may repeat what they were sent.
pub(crate) async fn hide<T>(
    shared: &Shared,
    cluster: &Cluster,
    slot: u64,
    answer: Result<T>,
) -> Result<T> {
    let error = match answer {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    // The group of a node that was removed meanwhile is unknown, so it may have been any group.
    let group = {
        let inner = cluster.inner.lock();
        let node = inner.state.node(slot);
        node.map(|node| node.group.clone()).unwrap_or_default()
    };
    Err(hidden(shared, cluster, &group).await.error(error))
}

/// What to redact in texts about a node of a group: the secrets of the current spec, and those of former specs that
/// made existing nodes of the group; those of all groups if the group no longer exists. Previous contents of a changed
/// secret are no longer known.
pub(crate) async fn hidden(shared: &Shared, cluster: &Cluster, group: &str) -> Unsaid {
    hidden_with(shared, cluster, group, &BTreeSet::new()).await
}

/// Like [`hidden`], also for nodes with these hashes: a node that is about to be recorded is not known otherwise.
pub(crate) async fn hidden_with(
    shared: &Shared,
    cluster: &Cluster,
    group: &str,
    hashes: &BTreeSet<String>,
) -> Unsaid {
    match contents(shared, cluster, group, hashes).await {
        Ok(hidden) => Unsaid::Contents(hidden),
        Err(error) => {
            tracing::warn!(
                cluster = %cluster.name,
                group,
                %error,
                "what is said of nodes is not shown: what it may not repeat cannot be read"
            );
            Unsaid::Everything
        }
    }
}

/// Whether a group makes nodes with this path and hash.
fn makes(group: &Group, path: &str, hash: &str) -> bool {
    *group.path == *path && group.choices.iter().any(|choice| choice.is_hash(hash))
}

/// Nodes of a cluster that its current spec does not make, by path and hash.
type Others = BTreeSet<(Sym, Sym)>;

/// Nodes and orphans in the selected groups that the current spec does not make.
fn others(inner: &ClusterState, meant: impl Fn(&str) -> bool) -> Others {
    let groups = &inner.spec.groups;
    let is_other = |path: &str, hash: &str| !groups.iter().any(|one| makes(one, path, hash));
    let nodes = inner.state.nodes.iter();
    let nodes = nodes.map(|node| (&node.group, &node.spec_hash));
    let orphans = inner.state.orphans.values();
    let orphans = orphans.map(|orphan| (&orphan.group, &orphan.spec_hash));
    (nodes.chain(orphans))
        .filter(|(path, hash)| meant(path) && is_other(path, hash))
        .map(|(path, hash)| (path.clone(), hash.clone()))
        .collect()
}

async fn contents(
    shared: &Shared,
    cluster: &Cluster,
    group: &str,
    hashes: &BTreeSet<String>,
) -> Result<Hidden> {
    loop {
        let (generation, former) = former(shared, cluster).await?;
        let (named, perhaps) = {
            let inner = cluster.inner.lock();
            if inner.desired.value.generation != generation {
                // The spec that was current is now a former one.
                continue;
            }
            named(&inner, &former, group, hashes)
        };
        return named.read(shared, cluster, &perhaps).await;
    }
}

/// The references that nodes of a group were given, and those that they may have been given as far as is known.
fn named(
    inner: &ClusterState,
    former: &[FormerGroup],
    group: &str,
    hashes: &BTreeSet<String>,
) -> (Named, Named) {
    let (mut named, mut perhaps) = (Named::default(), Named::default());
    let present = &inner.spec.groups;
    let gives = |group: &Group| group.bootstrap.is_some() || !group.secrets.is_empty();
    if !present.iter().any(gives) && former.iter().all(|one| one.named.is_empty()) {
        return (named, perhaps);
    }
    let known = present.iter().any(|one| *one.path == *group);
    let meant = |path: &str| !known || *path == *group;
    for one in present.iter().filter(|one| meant(&one.path)) {
        named.add(&Named::of(one));
    }
    let mut others = others(inner, meant);
    let is_made = |hash: &String| present.iter().any(|one| makes(one, group, hash));
    let told = hashes.iter().filter(|hash| !is_made(hash));
    others.extend(told.map(|hash| (group.into(), hash.as_str().into())));
    for one in former {
        if others.iter().any(|(path, hash)| one.makes(path, hash)) {
            named.add(&one.named);
        }
    }
    others.retain(|(path, hash)| !former.iter().any(|one| one.makes(path, hash)));
    // The specs that made the remaining nodes are no longer retained; those that are may share secrets with them.
    for one in former {
        if !known || others.iter().any(|(path, _)| *path == one.path) {
            perhaps.add(&one.named);
        }
    }
    (named, perhaps)
}

/// Clusters with nodes that were given a secret, or one key of it, although no current spec refers to it; at most 100.
/// Without the secret, texts about these nodes could not be redacted.
pub(crate) async fn holders(shared: &Shared, name: &str, key: Option<&str>) -> Result<Vec<String>> {
    let mut holders = Vec::new();
    for cluster in shared.by_name() {
        let (others, deleting) = {
            let inner = cluster.inner.lock();
            let running = inner.state.deleting && !inner.state.nodes.is_empty();
            let mut named = inner.spec.secrets.iter();
            let is_named = named.any(|(of, _)| is_of(of, name, key));
            (others(&inner, |_| true), running && is_named)
        };
        let mut held = deleting;
        if !held && !others.is_empty() {
            let (_, former) = former(shared, &cluster).await?;
            held = (former.iter())
                .filter(|one| others.iter().any(|(path, hash)| one.makes(path, hash)))
                .any(|one| one.named.secrets.iter().any(|of| is_of(of, name, key)));
        }
        if held {
            holders.push(format!("cluster/{}", cluster.name));
        }
    }
    holders.truncate(MAX_USERS);
    Ok(holders)
}
