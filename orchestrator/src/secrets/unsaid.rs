//! What texts about nodes may not repeat: what the nodes were given, by the present spec or by one before it.

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

/// What stands for a text of which nobody can say what it may not repeat.
const UNREADABLE: &str = "[hidden: what this may not repeat cannot be read]";

/// What a text may not repeat.
#[derive(Debug)]
pub(crate) enum Unsaid {
    /// These contents.
    Contents(Hidden),
    /// Nobody knows what, so that nothing of the text is shown.
    Everything,
}

impl Unsaid {
    /// A text without it.
    pub(crate) fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self {
            Self::Contents(hidden) => hidden.text(text),
            Self::Everything if text.is_empty() => Cow::Borrowed(text),
            Self::Everything => Cow::Borrowed(UNREADABLE),
        }
    }

    /// An error without it, in any of its texts.
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

/// What groups name of secrets, and of user data by its digest.
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

    /// All of its content, and of what was perhaps named what is still there.
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
                // No node is known that was given it.
                Err(error) if error.reason() == Reason::SecretNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(hidden)
    }
}

/// A group as a spec had it that is kept: which nodes it made, and what it gave them.
#[derive(Debug)]
pub(crate) struct FormerGroup {
    path: Sym,
    /// Of its choices, by all formulas.
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

/// The groups of all specs that are kept of before a generation, and that generation. They are read once for each.
async fn former(shared: &Shared, cluster: &Cluster) -> Result<(u64, Arc<Vec<FormerGroup>>)> {
    // Before they are read: a spec is kept before another one takes its place.
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

/// An error of a call about a node without what its group was given: platforms may repeat what they were sent.
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
    // Of a node that has gone meanwhile nobody knows the group: it may have been any.
    let group = {
        let inner = cluster.inner.lock();
        let node = inner.state.node(slot);
        node.map(|node| node.group.clone()).unwrap_or_default()
    };
    Err(hidden(shared, cluster, &group).await.error(error))
}

/// What no text about a node of a group may repeat: what the spec gives the group, and what those gave it that made the
/// nodes that it has; or what any group was given if there is no such group any more. What a secret held before it was
/// changed is not known any more.
pub(crate) async fn hidden(shared: &Shared, cluster: &Cluster, group: &str) -> Unsaid {
    hidden_with(shared, cluster, group, &BTreeSet::new()).await
}

/// The same if it has nodes with these hashes, too: of a node that is only about to be recorded nobody else knows.
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

/// Whether a group makes nodes that have this path and this hash.
fn makes(group: &Group, path: &str, hash: &str) -> bool {
    *group.path == *path && group.choices.iter().any(|choice| choice.is_hash(hash))
}

/// Nodes of a cluster that its present spec does not make, by path and hash.
type Others = BTreeSet<(Sym, Sym)>;

/// Of these paths, what runs or is there without a record.
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
                // What was the present spec then is one of before now.
                continue;
            }
            named(&inner, &former, group, hashes)
        };
        return named.read(shared, cluster, &perhaps).await;
    }
}

/// What nodes of a group were given, and what they may have been given as far as anybody knows.
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
    // The specs of the rest are not kept any more; those that are may have had something in common with them.
    for one in former {
        if !known || others.iter().any(|(path, _)| *path == one.path) {
            perhaps.add(&one.named);
        }
    }
    (named, perhaps)
}

/// Who has nodes that were given a secret, or one key of it, though no spec names it any more, the first 100: what they say
/// could not be told from it without it.
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
