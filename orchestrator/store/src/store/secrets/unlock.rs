//! The keys that encrypt secrets and user data, and which of them all replicas have.

use bytes::Bytes;
use drover_core::{Error, Reason, Result};

use super::{LOOK, MAX_SECRETS, Numbers, read};
use crate::{
    backend::Range,
    keys::{self, Key, Name},
    seal::{Keyring, SETTING},
    store::{SEALED_FORMAT, Store, Versioned, commit},
    value::Meta,
};

impl Store {
    /// Sets the keys that encrypt secrets and user data. Values that are not encrypted, or with another key, are
    /// encrypted anew with the first one; if that is interrupted, the next start continues it. Returns the number of
    /// these values. Call it once, before the store is used.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION`, before anything is changed, if a value is encrypted with a key that is not among them
    /// (the message names the file), or if there are more than 4000 secrets.
    pub async fn unlock(&self, keys: Keyring) -> Result<usize> {
        let first = keys.first();
        let meta = self.present_meta().await?;
        let mut renewed = 0;
        if *meta.value.sealed_with != first || meta.value.format < SEALED_FORMAT {
            // All values are checked before any of them is changed.
            let other = self
                .sealed_otherwise(&keys, &Numbers::of(&keys, &meta.value)?)
                .await?;
            let count = self.secrets().await?.len();
            if count > MAX_SECRETS {
                return Err(Error::new(
                    Reason::Precondition,
                    format!(
                        "the store holds {count} secrets, and at most {MAX_SECRETS} are possible; delete some with the version \
                         that wrote them"
                    ),
                ));
            }
            let begun = Meta {
                format: SEALED_FORMAT,
                sealed: true,
                sealed_with: Bytes::new(),
                ..meta.value
            };
            self.put_record(Name::Meta.into(), begun, Some(meta.revision))
                .await?;
            for key in &other {
                renewed += usize::from(self.seal_anew(&keys, key).await?);
            }
            let Versioned { value, revision } = self.present_meta().await?;
            let done = Meta {
                sealed_with: Bytes::copy_from_slice(&first),
                secrets: Numbers::of(&keys, &value)?.sealed(&keys)?,
                ..value
            };
            let revision = self
                .put_record(Name::Meta.into(), done.clone(), Some(revision))
                .await?;
            *self.meta.lock() = Versioned {
                value: done,
                revision,
            };
        }
        self.keys
            .set(keys)
            .map_err(|_| Error::internal("the store has its keys already"))?;
        Ok(renewed)
    }

    /// The keys in the order in which they are to be used: the first one of their file encrypts once every replica that lives
    /// has it, and until then the one that everything is encrypted with. `None` if nothing is encrypted yet.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    pub async fn agreed(&self, keys: Keyring) -> Result<Option<Keyring>> {
        let meta = self.present_meta().await?.value;
        let first = keys.first();
        let has = |id: &[u8]| keys.ids().iter().any(|own| own == id);
        // What was begun is brought to its end, whoever lacks the key by now.
        let was_begun = meta.sealed && meta.sealed_with.is_empty();
        let is_other = meta.sealed && !has(&meta.sealed_with);
        if was_begun || is_other || *meta.sealed_with == first {
            return Ok(Some(keys));
        }
        let mut lack = Vec::new();
        for replica in self.replicas().await?.into_iter().filter(|it| !it.is_this) {
            let report = replica.report.unwrap_or_default();
            if !report.secret_keys.iter().any(|id| **id == first) {
                lack.push(replica.name);
            }
        }
        if lack.is_empty() {
            return Ok(Some(keys));
        }
        tracing::warn!(
            file = %keys.file().display(),
            replicas = lack.join(", "),
            "replicas lack the first key of the secrets; it encrypts once they have it"
        );
        Ok(meta.sealed.then(|| keys.led_by(&meta.sealed_with)))
    }

    /// Id of the key that everything is encrypted with. Empty if nothing is, or while another key takes its place.
    ///
    /// # Errors
    ///
    /// Those of the backend.
    pub async fn sealed_with(&self) -> Result<Bytes> {
        Ok(self.present_meta().await?.value.sealed_with)
    }

    /// Refuses keys with which this store cannot be read, before that is tried.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION` with the name of the setting and of the file, and those of the backend.
    pub async fn check_keys(&self, keys: Option<&Keyring>) -> Result<()> {
        let meta = self.present_meta().await?.value;
        let Some(keys) = keys else {
            return if meta.sealed {
                Err(needs_keys())
            } else {
                Ok(())
            };
        };
        let sealed_with = &meta.sealed_with;
        if sealed_with.is_empty() || keys.ids().contains(sealed_with) {
            return Ok(());
        }
        let message = format!(
            "the store is encrypted with a key that {} does not have; add that key to it ({SETTING})",
            keys.file().display()
        );
        Err(Error::new(Reason::Precondition, message))
    }

    /// Refuses an encrypted store for which no keys were set.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION` with the name of the setting.
    pub fn require_keys(&self) -> Result<()> {
        if self.keys.get().is_some() || !self.meta.lock().value.sealed {
            return Ok(());
        }
        Err(needs_keys())
    }

    /// Keys of the values that are not encrypted with the first key, or not in the present format. Fails if a value
    /// cannot be read.
    async fn sealed_otherwise(&self, keys: &Keyring, numbers: &Numbers) -> Result<Vec<Key>> {
        let mut found = Vec::new();
        for prefix in [keys::kind(b's'), keys::kind(b'u')] {
            let mut scan = self.backend.scan(Range::prefix(&prefix), LOOK).await?;
            while let Some(page) = scan.next().await {
                for entry in page? {
                    if read(keys, numbers, &entry)?.1 {
                        found.push(entry.key);
                    }
                }
            }
        }
        Ok(found)
    }

    async fn seal_anew(&self, keys: &Keyring, key: &Key) -> Result<bool> {
        let Some(entry) = self.backend.get(key).await? else {
            return Ok(false);
        };
        let numbers = Numbers::of(keys, &self.present_meta().await?.value)?;
        let (plain, other) = read(keys, &numbers, &entry)?;
        if !other {
            return Ok(false);
        }
        if let Some(Name::Secret(name)) = key.parse() {
            self.write_secret(keys, &name, &plain, Some(entry.revision))
                .await?;
        } else {
            let value = keys.seal(key, &plain)?;
            commit::put_plain(&*self.backend, key.clone(), value, entry.revision).await?;
        }
        Ok(true)
    }
}

fn needs_keys() -> Error {
    let message = format!("the store is encrypted; name the file with its keys in {SETTING}");
    Error::new(Reason::Precondition, message)
}
