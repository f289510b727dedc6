//! Secrets: stored encrypted; in memory is only which there are, by whom they are used, and digests.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use drover_convert::value::to_timestamp;
use drover_core::{
    Error, Reason, Result, Sym,
    secrecy::Hidden,
    spec::{Group, SecretRef, UserDataSource},
};
use drover_proto::orchestrator::v1::{self as pb, SecretPurpose};
use drover_store::{DigestKey, Revision, Store};
use parking_lot::RwLock;
use prost::Message;
use uuid::Uuid;

use crate::{
    calls::digest_not_stored,
    cluster::{Cluster, Inner},
    shared::Shared,
};

/// Most users that are named.
const MAX_USERS: usize = 100;
/// What stands for a text of which nobody can say what it may not repeat.
const UNREADABLE: &str = "[hidden: what this may not repeat cannot be read]";

/// All secrets, without their content.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    known: RwLock<BTreeMap<String, Arc<Known>>>,
    /// Held for writing by whoever changes a secret, for reading by whoever stores something that names one.
    pub(crate) changing: tokio::sync::RwLock<()>,
}

/// A secret, without its content.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Known {
    pub(crate) keys: BTreeMap<String, KnownKey>,
    pub(crate) revision: Revision,
    pub(crate) create_time_ms: u64,
    pub(crate) update_time_ms: u64,
    /// As it is stored.
    purpose: SecretPurpose,
}

/// One key of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KnownKey {
    /// As it is shown.
    pub(crate) digest: String,
    /// Changes whenever the content does, and says nothing of it: what requests keep.
    pub(crate) version: Bytes,
    pub(crate) text: bool,
}

/// What a secret holds, as it is stored.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Content {
    #[prost(message, repeated, tag = "1")]
    pub(crate) keys: Vec<ContentKey>,
    #[prost(uint64, tag = "2")]
    pub(crate) create_time_ms: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) update_time_ms: u64,
    /// What it is for. Unspecified: nobody has said, and it is for workload.
    #[prost(enumeration = "SecretPurpose", tag = "4")]
    pub(crate) purpose: i32,
}

/// One key of it.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct ContentKey {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) content: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) version: Bytes,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.keys).finish()
    }
}

impl fmt::Debug for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} bytes)", self.name, self.content.len())
    }
}

impl ContentKey {
    /// A key with new content.
    pub(crate) fn new(name: &str, content: Bytes) -> Self {
        Self {
            name: name.to_owned(),
            content,
            version: Bytes::copy_from_slice(Uuid::new_v4().as_bytes()),
        }
    }
}

impl Content {
    pub(crate) fn get(&self, key: &str) -> Option<&ContentKey> {
        self.keys.iter().find(|own| own.name == key)
    }

    /// The same without the content.
    pub(crate) fn known(&self, revision: Revision, digests: &DigestKey) -> Known {
        let keys = self.keys.iter().map(|key| {
            let known = KnownKey {
                digest: digests.secret(&key.content),
                version: key.version.clone(),
                text: std::str::from_utf8(&key.content).is_ok(),
            };
            (key.name.clone(), known)
        });
        Known {
            keys: keys.collect(),
            revision,
            create_time_ms: self.create_time_ms,
            update_time_ms: self.update_time_ms,
            purpose: self.purpose(),
        }
    }
}

/// A purpose as people write it.
pub(crate) fn word(purpose: SecretPurpose) -> &'static str {
    match purpose {
        SecretPurpose::Unspecified | SecretPurpose::Workload => "workload",
        SecretPurpose::Probe => "probe",
        SecretPurpose::Platform => "platform",
    }
}

impl Known {
    /// What it is for.
    pub(crate) fn purpose(&self) -> SecretPurpose {
        match self.purpose {
            SecretPurpose::Unspecified => SecretPurpose::Workload,
            purpose => purpose,
        }
    }

    /// As it is answered.
    pub(crate) fn to_proto(&self, name: &str, users: Vec<String>) -> pb::Secret {
        let keys = self.keys.iter().map(|(name, key)| pb::SecretKey {
            name: name.clone(),
            sha256: key.digest.clone(),
        });
        pb::Secret {
            name: name.to_owned(),
            keys: keys.collect(),
            revision: self.revision,
            create_time: Some(to_timestamp(self.create_time_ms)),
            update_time: Some(to_timestamp(self.update_time_ms)),
            users,
            purpose: self.purpose().into(),
        }
    }
}

impl Secrets {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Known>> {
        self.known.read().get(name).cloned()
    }

    pub(crate) fn put(&self, name: &str, known: Known) {
        self.known.write().insert(name.to_owned(), Arc::new(known));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.known.write().remove(name);
    }

    pub(crate) fn all(&self) -> Vec<(String, Arc<Known>)> {
        let known = self.known.read();
        let all = known.iter();
        all.map(|(name, known)| (name.clone(), known.clone()))
            .collect()
    }

    /// What the content of a key is known by now. Empty: there is none.
    pub(crate) fn version(&self, of: &SecretRef) -> Bytes {
        let known = self.known.read();
        let key = known
            .get(&of.name)
            .and_then(|known| known.keys.get(&of.key));
        key.map(|key| key.version.clone()).unwrap_or_default()
    }

    /// A key of a secret, or what is missing of it.
    pub(crate) fn find(&self, of: &SecretRef) -> Result<KnownKey> {
        let known = self.get(&of.name);
        match known {
            Some(known) => match known.keys.get(&of.key) {
                Some(key) => Ok(key.clone()),
                None => {
                    let keys: Vec<&str> = known.keys.keys().map(String::as_str).take(10).collect();
                    Err(not_found(
                        of,
                        &format!(
                            "secret {:?} has no key {:?} (it has: {})",
                            of.name,
                            of.key,
                            keys.join(", ")
                        ),
                    ))
                }
            },
            None => Err(not_found(of, &format!("there is no secret {:?}", of.name))),
        }
    }
}

/// The error for a key that is not there, without which others are.
pub(crate) fn not_there(of: &SecretRef) -> Error {
    not_found(
        of,
        &format!("there is no key {:?} of a secret {:?}", of.key, of.name),
    )
}

/// Why a secret cannot be named for a purpose. None: it can.
pub(crate) fn wrong_purpose(
    secrets: &Secrets,
    of: &SecretRef,
    wanted: SecretPurpose,
) -> Option<String> {
    let has = secrets.get(&of.name)?.purpose();
    let (has, wanted) = (word(has), word(wanted));
    (has != wanted).then(|| {
        format!(
            "secret {:?} is for purpose {has}, and this names it for {wanted}; give it a secret of its own, with \
             `purpose: {wanted}`",
            of.name
        )
    })
}

fn not_found(of: &SecretRef, message: &str) -> Error {
    Error::new(Reason::SecretNotFound, message).with_resource("secret", of.to_string())
}

/// Reads a secret whole. `None`: there is none.
pub(crate) async fn content(store: &Store, name: &str) -> Result<Option<(Content, Revision)>> {
    let Some(stored) = store.secret(name).await? else {
        return Ok(None);
    };
    let content = Content::decode(stored.value)
        .map_err(|_| Error::internal(format!("the stored secret {name:?} cannot be read")))?;
    Ok(Some((content, stored.revision)))
}

/// Reads one key of a secret. Errors: `SecretNotFound`.
pub(crate) async fn read(store: &Store, of: &SecretRef) -> Result<ContentKey> {
    let secret = content(store, &of.name).await?;
    let key = secret.and_then(|(content, _)| content.get(&of.key).cloned());
    key.ok_or_else(|| not_there(of))
}

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
#[derive(Debug, Default)]
struct Named {
    secrets: BTreeSet<SecretRef>,
    user_data: BTreeSet<String>,
}

impl Named {
    fn is_any(group: &Group) -> bool {
        group.bootstrap.is_some() || !group.secrets.is_empty()
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

    fn add(&mut self, group: &Group) {
        self.secrets.extend(group.secrets.values().cloned());
        match group.bootstrap.as_ref().map(|own| &own.source) {
            Some(UserDataSource::Secret(of)) => {
                self.secrets.insert(of.clone());
            }
            Some(UserDataSource::Sha256(digest)) => {
                self.user_data.insert(digest.clone());
            }
            None => {}
        }
    }
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

/// Whether a group, as some spec has it, makes nodes that have this path and this hash.
fn makes(group: &Group, path: &str, hash: &str) -> bool {
    *group.path == *path && group.choices.iter().any(|choice| choice.is_hash(hash))
}

/// Nodes of a cluster that its present spec does not make, by path and hash.
type Others = BTreeSet<(Sym, Sym)>;

/// Of these paths, what runs or is there without a record.
fn others(inner: &Inner, meant: impl Fn(&str) -> bool) -> Others {
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
    let former = cluster.former(shared).await?;
    let (mut named, mut perhaps) = (Named::default(), Named::default());
    {
        let inner = cluster.inner.lock();
        let present = &inner.spec.groups;
        if !present.iter().chain(&*former).any(Named::is_any) {
            return Ok(Hidden::default());
        }
        let known = present.iter().any(|one| *one.path == *group);
        let meant = |path: &str| !known || *path == *group;
        for one in present.iter().filter(|one| meant(&one.path)) {
            named.add(one);
        }
        let mut others = others(&inner, meant);
        let is_made = |hash: &String| present.iter().any(|one| makes(one, group, hash));
        let told = hashes.iter().filter(|hash| !is_made(hash));
        others.extend(told.map(|hash| (group.into(), hash.as_str().into())));
        for one in &*former {
            if others.iter().any(|(path, hash)| makes(one, path, hash)) {
                named.add(one);
            }
        }
        others.retain(|(path, hash)| !former.iter().any(|one| makes(one, path, hash)));
        // The specs of the rest are not kept any more; those that are may have had something in common with them.
        for one in &*former {
            if !known || others.iter().any(|(path, _)| *path == one.path) {
                perhaps.add(one);
            }
        }
    }
    named.read(shared, cluster, &perhaps).await
}

/// Who names a secret, or one key of it: clusters that are not being deleted and platforms, the first 100.
pub(crate) fn users(shared: &Shared, name: &str, key: Option<&str>) -> Vec<String> {
    let mut users = Vec::new();
    for cluster in shared.by_name() {
        let inner = cluster.inner.lock();
        let mut named = inner.spec.secrets.iter();
        if !inner.state.deleting && named.any(|(of, _)| is_of(of, name, key)) {
            users.push(format!("cluster/{}", cluster.name));
        }
    }
    for (platform, registered) in &*shared.platforms.read() {
        let spec = registered.platform.registration().spec;
        let mut named = crate::connect::secrets(&spec).into_iter();
        if named.any(|of| is_of(&of, name, key)) {
            users.push(format!("platform/{platform}"));
        }
    }
    users.truncate(MAX_USERS);
    users
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
        let held = deleting
            || (!others.is_empty() && {
                let former = cluster.former(shared).await?;
                let made = |one: &&Group| others.iter().any(|(path, hash)| makes(one, path, hash));
                former.iter().filter(made).any(|one| {
                    let mut named = Named::default();
                    named.add(one);
                    named.secrets.iter().any(|of| is_of(of, name, key))
                })
            });
        if held {
            holders.push(format!("cluster/{}", cluster.name));
        }
    }
    holders.truncate(MAX_USERS);
    Ok(holders)
}

fn is_of(of: &SecretRef, name: &str, key: Option<&str>) -> bool {
    of.name == name && key.is_none_or(|key| of.key == key)
}

/// Who names each secret, the first 100 of each.
pub(crate) fn all_users(shared: &Shared) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |named: BTreeSet<&str>, user: &str| {
        for name in named {
            let users = all.entry(name.to_owned()).or_default();
            if users.len() < MAX_USERS {
                users.push(user.to_owned());
            }
        }
    };
    for cluster in shared.by_name() {
        let inner = cluster.inner.lock();
        if !inner.state.deleting && !inner.spec.secrets.is_empty() {
            let named = inner.spec.secrets.iter().map(|(of, _)| of.name.as_str());
            add(named.collect(), &format!("cluster/{}", cluster.name));
        }
    }
    for (platform, registered) in &*shared.platforms.read() {
        let named = crate::connect::secrets(&registered.platform.registration().spec);
        let named = named.iter().map(|of| of.name.as_str()).collect();
        add(named, &format!("platform/{platform}"));
    }
    all
}

/// Looks through what is stored, at the start. Errors: `FAILED_PRECONDITION` if it is encrypted and there are no keys.
pub(crate) async fn load(shared: &Shared) -> Result<()> {
    shared.store.require_keys()?;
    for row in shared.store.secrets().await? {
        if let Some((content, revision)) = content(&shared.store, &row.value).await? {
            shared
                .secrets
                .put(&row.value, content.known(revision, &shared.digests));
        }
    }
    Ok(())
}

/// Keeps what stored secrets without a purpose are named for, once it is known who names what. Platforms come first: what
/// opens them is in most need of it.
pub(crate) async fn keep_purposes(shared: &Shared) -> Result<()> {
    let mut named: BTreeMap<String, SecretPurpose> = BTreeMap::new();
    for cluster in shared.by_name() {
        let inner = cluster.inner.lock();
        let probes = inner.spec.secrets.iter();
        let probes = probes.filter(|(_, purpose)| *purpose == SecretPurpose::Probe);
        named.extend(probes.map(|(of, purpose)| (of.name.clone(), *purpose)));
    }
    for registered in shared.platforms.read().values() {
        let spec = registered.platform.registration().spec;
        let platforms = crate::connect::secrets(&spec).into_iter();
        named.extend(platforms.map(|of| (of.name, SecretPurpose::Platform)));
    }
    for (name, purpose) in named {
        let known = shared.secrets.get(&name);
        if known.is_none_or(|known| known.purpose != SecretPurpose::Unspecified) {
            continue;
        }
        let Some((mut stored, revision)) = content(&shared.store, &name).await? else {
            continue;
        };
        stored.purpose = purpose.into();
        let value = stored.encode_to_vec().into();
        let revision = shared
            .store
            .put_secret(&name, value, Some(revision))
            .await?;
        tracing::info!(
            secret = name,
            purpose = word(purpose),
            "a secret has the purpose that it is named for"
        );
        shared.wrote(revision);
        shared
            .secrets
            .put(&name, stored.known(revision, &shared.digests));
    }
    Ok(())
}
