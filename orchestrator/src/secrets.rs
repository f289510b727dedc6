//! Secrets, and their users: clusters and platforms.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drover_cluster::Clusters;
use drover_core::{Result, spec::SecretRef};
use drover_platforms::{Platforms, connect};
use drover_proto::orchestrator::v1::SecretPurpose;
use drover_secrets::{Vault, word};
use drover_store::Store;
use prost::Message;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::records::Records;

/// Maximum number of users that are named.
const MAX_USERS: usize = 100;

/// The secrets, guarded against references to one that is about to go.
pub(crate) struct Secrets {
    vault: Arc<Vault>,
    clusters: Arc<Clusters>,
    platforms: Arc<Platforms>,
    /// Write-locked while a secret is changed, read-locked while something that refers to a secret is stored.
    changing: RwLock<()>,
}

impl Secrets {
    pub(crate) fn new(
        vault: Arc<Vault>,
        clusters: Arc<Clusters>,
        platforms: Arc<Platforms>,
    ) -> Self {
        Self {
            vault,
            clusters,
            platforms,
            changing: RwLock::default(),
        }
    }

    /// Held while something that refers to secrets is validated and stored: none of them is changed meanwhile.
    pub(crate) async fn refer(&self) -> RwLockReadGuard<'_, ()> {
        self.changing.read().await
    }

    /// Held while a secret is changed: nothing begins to refer to it meanwhile.
    pub(crate) async fn change(&self) -> RwLockWriteGuard<'_, ()> {
        self.changing.write().await
    }

    /// The users of a secret, or of one key of it: platforms and clusters that are not being deleted; at most 100.
    pub(crate) fn users(&self, name: &str, key: Option<&str>) -> Vec<String> {
        let mut users = Vec::new();
        for cluster in self.clusters.by_name() {
            let inner = cluster.lock();
            let mut named = inner.spec().named_secrets();
            if !inner.state().deleting && named.any(|(of, _)| is_of(of, name, key)) {
                users.push(format!("cluster/{}", cluster.name()));
            }
        }
        for (platform, registered) in &*self.platforms.read() {
            let spec = registered.platform.registration().spec;
            let mut named = connect::secrets(&spec).into_iter();
            if named.any(|of| is_of(&of, name, key)) {
                users.push(format!("platform/{platform}"));
            }
        }
        users.truncate(MAX_USERS);
        users
    }

    /// The users of each secret, at most 100 per secret.
    pub(crate) fn all_users(&self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut add = |named: BTreeSet<&str>, user: &str| {
            for name in named {
                let users = all.entry(name.to_owned()).or_default();
                if users.len() < MAX_USERS {
                    users.push(user.to_owned());
                }
            }
        };
        for cluster in self.clusters.by_name() {
            let inner = cluster.lock();
            let named = inner.spec().named_secrets();
            let named: BTreeSet<&str> = named.map(|(of, _)| of.name.as_str()).collect();
            if !inner.state().deleting && !named.is_empty() {
                add(named, &format!("cluster/{}", cluster.name()));
            }
        }
        for (platform, registered) in &*self.platforms.read() {
            let named = connect::secrets(&registered.platform.registration().spec);
            let named = named.iter().map(|of| of.name.as_str()).collect();
            add(named, &format!("platform/{platform}"));
        }
        all
    }

    /// Clusters with nodes that were given a secret, or one key of it, although no current spec refers to it; at most 100.
    pub(crate) async fn holders(&self, name: &str, key: Option<&str>) -> Result<Vec<String>> {
        let mut holders = Vec::new();
        for cluster in self.clusters.by_name() {
            if (self.vault)
                .holds(&cluster, |of| is_of(of, name, key))
                .await?
            {
                holders.push(format!("cluster/{}", cluster.name()));
            }
        }
        holders.truncate(MAX_USERS);
        Ok(holders)
    }

    /// Stores the purpose of secrets that have none, derived from their users once these are loaded. Platforms take
    /// precedence, because their credentials are the most sensitive.
    pub(crate) async fn keep_purposes(&self, store: &Store, records: &Records) -> Result<()> {
        let known = self.vault.all();
        if known.iter().all(|(_, known)| known.is_given_purpose()) {
            return Ok(());
        }
        let mut named: BTreeMap<String, SecretPurpose> = BTreeMap::new();
        for cluster in self.clusters.by_name() {
            let inner = cluster.lock();
            let probes = inner.spec().secrets.iter();
            let probes = probes.filter(|(_, purpose)| *purpose == SecretPurpose::Probe);
            named.extend(probes.map(|(of, purpose)| (of.name.clone(), *purpose)));
        }
        for registered in self.platforms.read().values() {
            let spec = registered.platform.registration().spec;
            let platforms = connect::secrets(&spec).into_iter();
            named.extend(platforms.map(|of| (of.name, SecretPurpose::Platform)));
        }
        for (name, purpose) in named {
            let known = self.vault.get(&name);
            if known.is_none_or(|known| known.is_given_purpose()) {
                continue;
            }
            let Some((mut stored, revision)) = self.vault.content(&name).await? else {
                continue;
            };
            stored.purpose = purpose.into();
            let value = stored.encode_to_vec().into();
            let revision = store.put_secret(&name, value, Some(revision)).await?;
            tracing::info!(
                secret = name,
                purpose = word(purpose),
                "a secret has the purpose that it is named for"
            );
            records.wrote(revision);
            self.vault.put(&name, &stored, revision);
        }
        Ok(())
    }
}

fn is_of(of: &SecretRef, name: &str, key: Option<&str>) -> bool {
    of.name == name && key.is_none_or(|key| of.key == key)
}
