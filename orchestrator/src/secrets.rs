//! Secrets: stored encrypted. Memory only holds their names, users and digests.

mod unsaid;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use drover_convert::value::to_timestamp;
use drover_core::{Error, Reason, Result, spec::SecretRef};
use drover_proto::orchestrator::v1::{self as pb, SecretPurpose};
use drover_store::{DigestKey, Revision, Store};
use parking_lot::RwLock;
use prost::Message;
use uuid::Uuid;

use crate::shared::Shared;

pub(crate) use unsaid::{FormerGroup, hidden, hidden_with, hide, holders};

/// Maximum number of users that are named.
const MAX_USERS: usize = 100;

/// All secrets, without their content.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    known: RwLock<BTreeMap<String, Arc<Known>>>,
    /// Write-locked while a secret is changed, read-locked while something that refers to a secret is stored.
    pub(crate) changing: tokio::sync::RwLock<()>,
}

/// A secret, without its content.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Known {
    pub(crate) keys: BTreeMap<String, KnownKey>,
    pub(crate) revision: Revision,
    pub(crate) create_time_ms: u64,
    pub(crate) update_time_ms: u64,
    /// The stored purpose, which may be unspecified.
    purpose: SecretPurpose,
}

/// A key of a secret, without its content.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KnownKey {
    /// The digest as shown to users.
    pub(crate) digest: String,
    /// Changes with the content and reveals nothing about it. Stored in requests.
    pub(crate) version: Bytes,
    pub(crate) text: bool,
}

/// The stored content of a secret.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Content {
    #[prost(message, repeated, tag = "1")]
    pub(crate) keys: Vec<ContentKey>,
    #[prost(uint64, tag = "2")]
    pub(crate) create_time_ms: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) update_time_ms: u64,
    /// [`SecretPurpose`]. Unspecified counts as workload.
    #[prost(enumeration = "SecretPurpose", tag = "4")]
    pub(crate) purpose: i32,
}

/// A key with its content.
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
    /// A key with new content and therefore a new version.
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

    /// Strips the content.
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

/// The purpose as users write it.
pub(crate) fn word(purpose: SecretPurpose) -> &'static str {
    match purpose {
        SecretPurpose::Unspecified | SecretPurpose::Workload => "workload",
        SecretPurpose::Probe => "probe",
        SecretPurpose::Platform => "platform",
    }
}

impl Known {
    /// The effective purpose.
    pub(crate) fn purpose(&self) -> SecretPurpose {
        match self.purpose {
            SecretPurpose::Unspecified => SecretPurpose::Workload,
            purpose => purpose,
        }
    }

    /// The secret in the wire format.
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

    /// The current version of a key. Empty if the key does not exist.
    pub(crate) fn version(&self, of: &SecretRef) -> Bytes {
        let known = self.known.read();
        let key = known
            .get(&of.name)
            .and_then(|known| known.keys.get(&of.key));
        key.map(|key| key.version.clone()).unwrap_or_default()
    }

    /// Looks up a key; the error says whether the secret or the key is missing.
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

/// The error for a missing key, without a list of the existing ones.
pub(crate) fn not_there(of: &SecretRef) -> Error {
    not_found(
        of,
        &format!("there is no key {:?} of a secret {:?}", of.key, of.name),
    )
}

/// Why a secret cannot be used for a purpose. `None` if it can.
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

/// Reads a secret completely. `None` if it does not exist.
pub(crate) async fn content(store: &Store, name: &str) -> Result<Option<(Content, Revision)>> {
    let Some(stored) = store.secret(name).await? else {
        return Ok(None);
    };
    let content = Content::decode(stored.value)
        .map_err(|_| Error::internal(format!("the stored secret {name:?} cannot be read")))?;
    Ok(Some((content, stored.revision)))
}

/// Reads one key of a secret. Returns `SecretNotFound` if it does not exist.
pub(crate) async fn read(store: &Store, of: &SecretRef) -> Result<ContentKey> {
    let secret = content(store, &of.name).await?;
    let key = secret.and_then(|(content, _)| content.get(&of.key).cloned());
    key.ok_or_else(|| not_there(of))
}

/// The users of a secret, or of one key of it: platforms and clusters that are not being deleted; at most 100.
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

fn is_of(of: &SecretRef, name: &str, key: Option<&str>) -> bool {
    of.name == name && key.is_none_or(|key| of.key == key)
}

/// The users of each secret, at most 100 per secret.
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

/// Loads the stored secrets at startup. Returns `FAILED_PRECONDITION` if they are encrypted and there are no keys.
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

/// Stores the purpose of secrets that have none, derived from their users once these are loaded. Platforms take
/// precedence, because their credentials are the most sensitive.
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
