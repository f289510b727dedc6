//! Secrets: stored encrypted. Memory only holds their names, purposes and digests.

mod content;
mod given;
mod redaction;

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use drover_core::{Error, Reason, Result, spec::SecretRef};
use drover_proto::orchestrator::v1::SecretPurpose;
use drover_store::{DigestKey, Revision, Store};
use futures::{TryStreamExt, stream};
use parking_lot::RwLock;
use prost::Message;

pub use content::{Content, ContentKey, Known, KnownKey, word};
pub use given::of_addon;

/// Secrets that are read at the same time at the start.
const READ_TOGETHER: usize = 16;

/// All secrets: what is known of them without their content, and the way to read it.
pub struct Vault {
    store: Arc<Store>,
    digests: Arc<DigestKey>,
    known: RwLock<BTreeMap<String, Arc<Known>>>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").finish_non_exhaustive()
    }
}

impl Vault {
    /// Loads the names and digests of what is stored. `digests` is the key of digests that are shown.
    ///
    /// # Errors
    /// Those of the store; `FAILED_PRECONDITION` if secrets are encrypted and there are no keys.
    pub async fn load(store: Arc<Store>, digests: Arc<DigestKey>) -> Result<Self> {
        store.require_keys()?;
        let vault = Self {
            store,
            digests,
            known: RwLock::default(),
        };
        let names = vault.store.secrets().await?.into_iter();
        stream::iter(names.map(Ok::<_, Error>))
            .try_for_each_concurrent(READ_TOGETHER, async |row| {
                if let Some((content, revision)) = vault.content(&row.value).await? {
                    vault.put(&row.value, &content, revision);
                }
                Ok(())
            })
            .await?;
        Ok(vault)
    }

    /// A secret, without its content.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Known>> {
        self.known.read().get(name).cloned()
    }

    /// Follows a secret that was stored. Returns what is known of it.
    pub fn put(&self, name: &str, content: &Content, revision: Revision) -> Arc<Known> {
        let known = Arc::new(content.known(revision, &self.digests));
        self.known.write().insert(name.to_owned(), known.clone());
        known
    }

    /// Forgets a secret that was deleted.
    pub fn remove(&self, name: &str) {
        self.known.write().remove(name);
    }

    /// All secrets, by name, without their content.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Arc<Known>)> {
        let known = self.known.read();
        let all = known.iter();
        all.map(|(name, known)| (name.clone(), known.clone()))
            .collect()
    }

    /// The current version of a key. Empty if the key does not exist.
    #[must_use]
    pub fn version(&self, of: &SecretRef) -> Bytes {
        let known = self.known.read();
        let key = known
            .get(&of.name)
            .and_then(|known| known.keys.get(&of.key));
        key.map(|key| key.version.clone()).unwrap_or_default()
    }

    /// Looks up a key.
    ///
    /// # Errors
    /// `SecretNotFound`, which says whether the secret or the key is missing.
    pub fn find(&self, of: &SecretRef) -> Result<KnownKey> {
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

    /// Why a secret cannot be used for a purpose. `None` if it can, or does not exist.
    #[must_use]
    pub fn wrong_purpose(&self, of: &SecretRef, wanted: SecretPurpose) -> Option<String> {
        let has = self.get(&of.name)?.purpose();
        let (has, wanted) = (word(has), word(wanted));
        (has != wanted).then(|| {
            format!(
                "secret {:?} is for purpose {has}, and this names it for {wanted}; give it a secret of its own, with \
                 `purpose: {wanted}`",
                of.name
            )
        })
    }

    /// Reads a secret completely. `None` if it does not exist.
    ///
    /// # Errors
    /// Those of the store; `Internal` if it is damaged.
    pub async fn content(&self, name: &str) -> Result<Option<(Content, Revision)>> {
        let Some(stored) = self.store.secret(name).await? else {
            return Ok(None);
        };
        let content = Content::decode(stored.value)
            .map_err(|_| Error::internal(format!("the stored secret {name:?} cannot be read")))?;
        Ok(Some((content, stored.revision)))
    }

    /// Reads one key of a secret.
    ///
    /// # Errors
    /// Those of the store; `SecretNotFound` if it does not exist.
    pub async fn read(&self, of: &SecretRef) -> Result<ContentKey> {
        let secret = self.content(&of.name).await?;
        let key = secret.and_then(|(content, _)| content.get(&of.key).cloned());
        key.ok_or_else(|| not_there(of))
    }
}

/// The error for a missing secret.
#[must_use]
pub fn no_secret(name: &str) -> Error {
    Error::new(
        Reason::SecretNotFound,
        format!("there is no secret {name:?}"),
    )
    .with_resource("secret", name)
}

/// The error for a missing key, without a list of the existing ones.
#[must_use]
pub fn not_there(of: &SecretRef) -> Error {
    not_found(
        of,
        &format!("there is no key {:?} of a secret {:?}", of.key, of.name),
    )
}

fn not_found(of: &SecretRef, message: &str) -> Error {
    Error::new(Reason::SecretNotFound, message).with_resource("secret", of.to_string())
}
