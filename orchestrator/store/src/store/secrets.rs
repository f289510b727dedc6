//! Secrets, and the encryption of them and of user data.

use bytes::Bytes;
use drover_core::{Error, Reason, Result, spec::digest};
use uuid::Uuid;

use super::{SEALED_FORMAT, Store, UserData, Versioned, commit, damaged, decode, read_meta};
use crate::{
    backend::{Entry, PAGE, Range, Revision},
    digest::DigestKey,
    keys::{self, Key, Name},
    seal::{Keyring, SETTING, sealed_with},
    value::{Meta, SecretRow},
};

/// Values that are in memory at once while all are looked through.
const LOOK: usize = 8;

impl Store {
    /// Takes the keys that secrets and user data are encrypted with. What another key encrypted, or none, is encrypted
    /// anew with the first one; who is cut off there goes on at the next start. Answers how many values that were. Once,
    /// before anybody works on the store.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION`, before anything is changed, if something is encrypted with a key that is not among them;
    /// the message names the file.
    pub async fn unlock(&self, keys: Keyring) -> Result<usize> {
        let first = keys.first();
        let meta = read_meta(&*self.backend).await?;
        let meta = meta.ok_or_else(|| damaged(&Name::Meta.into()))?;
        let mut changed = 0;
        if *meta.value.sealed_with != first {
            // All of it is looked at before any of it is changed.
            let other = self.sealed_otherwise(&keys).await?;
            let begun = Meta {
                format: SEALED_FORMAT,
                sealed: true,
                sealed_with: Bytes::new(),
                ..meta.value
            };
            let revision = self
                .put_record(Name::Meta.into(), begun.clone(), Some(meta.revision))
                .await?;
            for key in &other {
                changed += usize::from(self.seal_anew(&keys, key).await?);
            }
            let done = Meta {
                sealed_with: Bytes::copy_from_slice(&first),
                ..begun
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
        Ok(changed)
    }

    /// Refuses a store that is encrypted, to whoever brings no keys.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` with the name of the setting.
    pub fn require_keys(&self) -> Result<()> {
        if self.keys.get().is_some() || !self.meta.lock().value.sealed {
            return Ok(());
        }
        Err(Error::new(
            Reason::Precondition,
            format!("the store is encrypted; name the file with its keys in {SETTING}"),
        ))
    }

    /// Whether there are keys, so that secrets can be stored.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` with the name of the setting.
    pub fn keys(&self) -> Result<&Keyring> {
        self.keys.get().ok_or_else(|| {
            let message = format!(
                "this server keeps no secrets, because it has no keys to encrypt them with; name a file with one in {SETTING}"
            );
            Error::new(Reason::Precondition, message)
        })
    }

    /// Everything that is not encrypted with the first key, and can be read.
    async fn sealed_otherwise(&self, keys: &Keyring) -> Result<Vec<Key>> {
        let mut found = Vec::new();
        for prefix in [keys::kind(b's'), keys::kind(b'u')] {
            let mut scan = self.backend.scan(Range::prefix(&prefix), LOOK).await?;
            while let Some(page) = scan.next().await {
                for entry in page? {
                    if read(keys, &entry)?.1 {
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
        let (plain, other) = read(keys, &entry)?;
        if !other {
            return Ok(false);
        }
        let value = keys.seal(key, &plain)?;
        if let Some(Name::Secret(_)) = key.parse() {
            let row = SecretRow { value };
            self.put_record(key.clone(), row, Some(entry.revision))
                .await?;
        } else {
            commit::put_plain(&*self.backend, key.clone(), value, entry.revision).await?;
        }
        Ok(true)
    }

    /// User data as it is stored.
    pub(super) fn sealed(&self, uid: Uuid, mut data: UserData) -> Result<UserData> {
        if let Some(keys) = self.keys.get() {
            for (digest, value) in &mut data.put {
                let key = Key::from(Name::UserData(uid, digest.clone()));
                *value = keys.seal(&key, value)?;
            }
        }
        Ok(data)
    }

    /// User data as it was before it was stored.
    pub(super) fn opened_data(&self, entry: &Entry, wanted: &str) -> Result<Bytes> {
        match self.keys.get() {
            Some(keys) => Ok(read(keys, entry)?.0),
            None if digest(&entry.value) == wanted => Ok(entry.value.clone()),
            None => Err(damaged(&entry.key)),
        }
    }

    /// The key of digests that are shown, made when it is asked for first. It is kept as user data is: encrypted where
    /// there are keys, and encrypted anew with them.
    ///
    /// # Errors
    /// It cannot be read or stored; the system has no random numbers.
    pub async fn digest_key(&self) -> Result<DigestKey> {
        let nobody = Uuid::nil();
        for _ in 0..2 {
            // Of two that were made at once the first by name is the one.
            let known = self.user_data_digests(nobody).await?;
            if let Some(name) = known.into_iter().min() {
                let key = self.user_data(nobody, &name).await?;
                let key = key.ok_or_else(|| damaged(&Name::UserData(nobody, name).into()))?;
                return Ok(DigestKey::new(&key));
            }
            let key = Bytes::copy_from_slice(&crate::seal::new_key()?);
            let name = digest(&key);
            let mut data = UserData::default();
            data.put.insert(name.clone(), key);
            let sealed = self.sealed(nobody, data)?.put.remove(&name);
            let at = Name::UserData(nobody, name).into();
            commit::put_plain(&*self.backend, at, sealed.unwrap_or_default(), 0).await?;
        }
        Err(Error::internal(
            "the key of digests was stored and is not there",
        ))
    }

    /// Names of all secrets with their revisions.
    pub async fn secrets(&self) -> Result<Vec<Versioned<String>>> {
        let mut scan = self
            .backend
            .scan(Range::prefix(&keys::kind(b's')), LOOK.min(PAGE))
            .await?;
        let mut names = Vec::new();
        while let Some(page) = scan.next().await {
            for entry in page? {
                let Some(Name::Secret(name)) = entry.key.parse() else {
                    return Err(damaged(&entry.key));
                };
                names.push(Versioned {
                    value: name,
                    revision: entry.revision,
                });
            }
        }
        Ok(names)
    }

    /// What a secret holds, `None` when there is none. Secret.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` without keys, or with the wrong ones.
    pub async fn secret(&self, name: &str) -> Result<Option<Versioned<Bytes>>> {
        let key: Key = Name::Secret(name.into()).into();
        let Some(entry) = self.backend.get(&key).await? else {
            return Ok(None);
        };
        Ok(Some(Versioned {
            value: read(self.keys()?, &entry)?.0,
            revision: entry.revision,
        }))
    }

    /// Stores a secret, encrypted. `expected` as of [`Store::put_platform`].
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` without keys; `REVISION_MISMATCH`.
    pub async fn put_secret(
        &self,
        name: &str,
        value: Bytes,
        expected: Option<Revision>,
    ) -> Result<Revision> {
        let key: Key = Name::Secret(name.into()).into();
        let row = SecretRow {
            value: self.keys()?.seal(&key, &value)?,
        };
        self.put_record(key, row, expected).await
    }

    /// Removes a secret. `expected`: its present revision, `None` for any.
    pub async fn delete_secret(&self, name: &str, expected: Option<Revision>) -> Result<Revision> {
        self.delete_record(Name::Secret(name.into()), "secret", name, expected)
            .await
    }
}

/// What an entry says, and whether it has to be encrypted anew.
fn read(keys: &Keyring, entry: &Entry) -> Result<(Bytes, bool)> {
    match entry.key.parse() {
        Some(Name::Secret(_)) => {
            let row: SecretRow = decode(entry)?.value;
            let plain = keys.open(&entry.key, &row.value)?;
            Ok((plain, sealed_with(&row.value) != Some(keys.first())))
        }
        // From before there was a key. Nothing else has the digest that its name says.
        Some(Name::UserData(_, wanted)) if digest(&entry.value) == wanted => {
            Ok((entry.value.clone(), true))
        }
        Some(Name::UserData(_, wanted)) => {
            let plain = keys.open(&entry.key, &entry.value)?;
            if digest(&plain) != wanted {
                return Err(damaged(&entry.key));
            }
            Ok((plain, sealed_with(&entry.value) != Some(keys.first())))
        }
        _ => Err(damaged(&entry.key)),
    }
}
