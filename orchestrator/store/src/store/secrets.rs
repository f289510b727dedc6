//! Secrets, and the encryption of secrets and user data.

mod unlock;

use bytes::Bytes;
use drover_core::{Error, Reason, Result, spec::digest};
use prost::Message;
use uuid::Uuid;

use super::{
    API_WAIT, SEALED_FORMAT, Store, UserData, Versioned, commit, commit::Marker, damaged, decode,
    outcome_unknown, read_meta,
};
use crate::{
    backend::{CommitError, Entry, Expect, Lane, PAGE, RETRY_AFTER, Range, Revision, Txn},
    digest::DigestKey,
    keys::{self, Key, Name},
    seal::{Keyring, SETTING, changed, sealed_with},
    value::{Meta, SecretNumbers, SecretRow, marked, new_txn_id},
};

/// Values in memory at once while all of them are read.
const LOOK: usize = 8;
/// Attempts to write a secret while others are written: each failed attempt means that another write succeeded.
const TRIES: usize = 64;

/// Maximum number of secrets: the write numbers of all of them are one value, which is written together with each.
const MAX_SECRETS: usize = 4000;

impl Store {
    /// The keys, without which secrets cannot be stored.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION` with the name of the setting.
    pub fn keys(&self) -> Result<&Keyring> {
        self.keys.get().ok_or_else(|| {
            let message = format!(
                "this server keeps no secrets, because it has no keys to encrypt them with; name a file with one in {SETTING}, for every replica"
            );
            Error::new(Reason::Precondition, message)
        })
    }

    async fn present_meta(&self) -> Result<Versioned<Meta>> {
        let meta = read_meta(&*self.backend).await?;
        meta.ok_or_else(|| damaged(&Name::Meta.into()))
    }

    /// Writes a secret with a new write number, together with that number.
    async fn write_secret(
        &self,
        keys: &Keyring,
        name: &str,
        plain: &[u8],
        expected: Option<Revision>,
    ) -> Result<Revision> {
        let key: Key = Name::Secret(name.into()).into();
        for _ in 0..TRIES {
            let meta = self.present_meta().await?;
            let mut numbers = Numbers::of(keys, &meta.value)?;
            if numbers.of.of.len() >= MAX_SECRETS && !numbers.of.of.contains_key(name) {
                return Err(Error::new(
                    Reason::Precondition,
                    format!(
                        "there are {MAX_SECRETS} secrets already, which is all that are possible; delete one that nobody names"
                    ),
                ));
            }
            let value = keys.seal_numbered(&key, numbers.next(name), plain)?;
            let marker = Marker {
                key: key.clone(),
                txn: new_txn_id(),
            };
            let mut txn = numbers
                .put(keys, meta, &marker)?
                .put(key.clone(), marked(&SecretRow { value }, &marker.txn));
            if let Some(expected) = expected {
                txn = txn.expect(key.clone(), Expect::at(expected));
            }
            match commit::commit(&*self.backend, txn, Lane::Bulk, &marker).await {
                Ok(revision) => return Ok(revision),
                Err(CommitError::Conflict(at)) if at == Name::Meta.into() => {}
                Err(CommitError::Conflict(at)) => {
                    return Err(commit::mismatch(&*self.backend, &at).await);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(crowded())
    }

    /// Encrypts user data for storage, if there are keys.
    pub(super) fn sealed(&self, uid: Uuid, mut data: UserData) -> Result<UserData> {
        if let Some(keys) = self.keys.get() {
            for (digest, value) in &mut data.put {
                let key = Key::from(Name::UserData(uid, digest.clone()));
                *value = keys.seal(&key, value)?;
            }
        }
        Ok(data)
    }

    /// Decrypts stored user data, and checks it against its digest.
    pub(super) fn opened_data(&self, entry: &Entry, wanted: &str) -> Result<Bytes> {
        opened(self.keys.get(), entry, wanted)
    }

    /// The key of digests as whoever leads has made it, for a replica that stands by and has not set its keys. `None` if
    /// there is none yet.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is encrypted with other keys.
    pub async fn present_digest_key(&self, keys: Option<&Keyring>) -> Result<Option<DigestKey>> {
        let entries = Range::prefix(&keys::user_data(Uuid::nil()));
        let entries = self.backend.scan(entries, LOOK).await?.collect().await?;
        let named = entries
            .into_iter()
            .filter_map(|entry| match entry.key.parse() {
                Some(Name::UserData(_, name)) => Some((name, entry)),
                _ => None,
            });
        // If two were created at the same time, the first by name counts.
        let Some((name, entry)) = named.min_by(|(a, _), (b, _)| a.cmp(b)) else {
            return Ok(None);
        };
        opened(keys, &entry, &name).map(|key| Some(DigestKey::new(&key)))
    }

    /// The key of digests that are shown, created on first use. It is stored like user data: encrypted if there are
    /// keys, and encrypted anew with new ones.
    ///
    /// # Errors
    ///
    /// It cannot be read or stored, or the system provides no random numbers.
    pub async fn digest_key(&self) -> Result<DigestKey> {
        let nobody = Uuid::nil();
        for _ in 0..2 {
            if let Some(key) = self.present_digest_key(self.keys.get()).await? {
                return Ok(key);
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

    /// Names of all secrets, with their revisions.
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

    /// Content of a secret. `None` if it does not exist. Secret.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION` without keys, or with the wrong ones.
    pub async fn secret(&self, name: &str) -> Result<Option<Versioned<Bytes>>> {
        let key: Key = Name::Secret(name.into()).into();
        let mut before = None;
        loop {
            let Some(entry) = self.backend.get(&key).await? else {
                return Ok(None);
            };
            let keys = self.keys()?;
            let meta = self.present_meta().await?;
            match read(keys, &Numbers::of(keys, &meta.value)?, &entry) {
                Ok((value, _)) => {
                    let revision = entry.revision;
                    return Ok(Some(Versioned { value, revision }));
                }
                // It may have been written between the two reads.
                Err(_) if before != Some(meta.revision) => before = Some(meta.revision),
                Err(error) => return Err(error),
            }
        }
    }

    /// Stores a secret, encrypted. `expected` as for [`Store::put_platform`].
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION` without keys, and beyond 4000 secrets; `REVISION_MISMATCH`.
    pub async fn put_secret(
        &self,
        name: &str,
        value: Bytes,
        expected: Option<Revision>,
    ) -> Result<Revision> {
        self.write_secret(self.keys()?, name, &value, expected)
            .await
    }

    /// Removes a secret. `expected` is its present revision, `None` for any.
    pub async fn delete_secret(&self, name: &str, expected: Option<Revision>) -> Result<Revision> {
        let key: Key = Name::Secret(name.into()).into();
        for _ in 0..TRIES {
            let Some(present) = self.backend.get(&key).await? else {
                return Err(Error::not_found("secret", name));
            };
            let keys = self.keys()?;
            let expected = expected.unwrap_or(present.revision);
            let meta = self.present_meta().await?;
            let mut numbers = Numbers::of(keys, &meta.value)?;
            // Without a number, the removed value cannot be put back.
            numbers.of.of.remove(name);
            let marker = Marker {
                key: Name::Meta.into(),
                txn: new_txn_id(),
            };
            let txn = numbers
                .put(keys, meta, &marker)?
                .expect(key.clone(), Expect::at(expected))
                .delete(key.clone());
            match commit::commit(&*self.backend, txn, Lane::Bulk, &marker).await {
                Ok(revision) => return Ok(revision),
                Err(CommitError::Conflict(at)) if at == Name::Meta.into() => {}
                Err(CommitError::Conflict(at)) => {
                    return Err(commit::mismatch(&*self.backend, &at).await);
                }
                Err(CommitError::Unknown) => return Err(outcome_unknown()),
                Err(error) => return Err(error.into()),
            }
        }
        Err(crowded())
    }
}

fn crowded() -> Error {
    Error::unavailable("others write secrets all the time; try again").with_retry_after(RETRY_AFTER)
}

/// The write numbers of all secrets.
#[derive(Default)]
struct Numbers {
    of: SecretNumbers,
    /// Whether every secret has one. False while a store from before there were numbers assigns them.
    all: bool,
}

impl Numbers {
    fn of(keys: &Keyring, meta: &Meta) -> Result<Self> {
        let of = if meta.secrets.is_empty() {
            SecretNumbers::default()
        } else {
            let at = Name::Meta.into();
            let plain = keys.open(&at, &meta.secrets)?;
            SecretNumbers::decode(plain).map_err(|_| changed(&at))?
        };
        Ok(Self {
            of,
            all: meta.format >= SEALED_FORMAT && !meta.sealed_with.is_empty(),
        })
    }

    fn sealed(&self, keys: &Keyring) -> Result<Bytes> {
        keys.seal(&Name::Meta.into(), &self.of.encode_to_vec())
    }

    /// Assigns the number of the next write of a secret.
    fn next(&mut self, name: &str) -> u64 {
        self.of.last += 1;
        self.of.of.insert(name.to_owned(), self.of.last);
        self.of.last
    }

    /// A transaction that writes the numbers in place of those of `meta`.
    fn put(&self, keys: &Keyring, meta: Versioned<Meta>, marker: &Marker) -> Result<Txn> {
        let value = Meta {
            secrets: self.sealed(keys)?,
            ..meta.value
        };
        let at: Key = Name::Meta.into();
        let txn = Txn {
            max_wait: Some(API_WAIT),
            ..Txn::default()
        };
        Ok(txn
            .expect(at.clone(), Expect::at(meta.revision))
            .put(at, marked(&value, &marker.txn)))
    }
}

/// Decrypts an entry. Returns its content, and whether it has to be encrypted anew.
fn read(keys: &Keyring, numbers: &Numbers, entry: &Entry) -> Result<(Bytes, bool)> {
    match entry.key.parse() {
        Some(Name::Secret(name)) => {
            let row: SecretRow = decode(entry)?.value;
            match numbers.of.of.get(&name) {
                Some(number) => {
                    let plain = keys.open_numbered(&entry.key, *number, &row.value)?;
                    Ok((plain, sealed_with(&row.value) != Some(keys.first())))
                }
                None if numbers.all => Err(changed(&entry.key)),
                None => Ok((keys.open(&entry.key, &row.value)?, true)),
            }
        }
        // Stored before there was a key: nothing else has the digest that its name says.
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

fn opened(keys: Option<&Keyring>, entry: &Entry, wanted: &str) -> Result<Bytes> {
    match keys {
        Some(keys) => Ok(read(keys, &Numbers::default(), entry)?.0),
        None if digest(&entry.value) == wanted => Ok(entry.value.clone()),
        None => Err(damaged(&entry.key)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{backend::Backend, sqlite::SqliteBackend, store::Store};

    const OLD_FORMAT: u32 = 2;
    const LINE: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    /// The entry of a secret in a store of format 2.
    fn old_row(keys: &Keyring, name: &str, plain: &[u8]) -> (Key, Bytes) {
        let key: Key = Name::Secret(name.into()).into();
        let row = SecretRow {
            value: keys.seal(&key, plain).unwrap(),
        };
        (key, marked(&row, &new_txn_id()))
    }

    /// An empty store of format 2.
    async fn old_store(backend: &Arc<dyn Backend>, keys: &Keyring) -> Store {
        let store = Store::open(backend.clone()).await.unwrap();
        let meta = store.present_meta().await.unwrap();
        let old = Meta {
            format: OLD_FORMAT,
            sealed: true,
            sealed_with: Bytes::copy_from_slice(&keys.first()),
            ..meta.value
        };
        store
            .put_record(Name::Meta.into(), old, Some(meta.revision))
            .await
            .unwrap();
        store
    }

    async fn put_old(backend: &dyn Backend, keys: &Keyring, name: &str, plain: &[u8]) {
        let (key, row) = old_row(keys, name, plain);
        let txn = Txn::default().put(key, row);
        backend.commit(txn, Lane::Bulk).await.unwrap();
    }

    fn longest(number: usize) -> String {
        format!("{number:-<63}")
    }

    #[tokio::test]
    async fn one_secret_more_than_are_possible_is_refused_and_those_that_are_there_are_written_and_read()
     {
        let directory = tempfile::tempdir().unwrap();
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::open(directory.path()).unwrap());
        let keys = || Keyring::parse(LINE, "keys").unwrap();
        let store = Store::open(backend).await.unwrap();
        store.unlock(keys()).await.unwrap();
        let meta = store.present_meta().await.unwrap();
        let mut numbers = Numbers::of(&keys(), &meta.value).unwrap();
        for number in 1..MAX_SECRETS {
            numbers.next(&longest(number));
        }
        let full = Meta {
            secrets: numbers.sealed(&keys()).unwrap(),
            ..meta.value
        };
        store
            .put_record(Name::Meta.into(), full, Some(meta.revision))
            .await
            .unwrap();
        // A secret of the maximum size, too.
        let large = Bytes::from(vec![7; 256 * 1024]);
        let last = longest(0);
        for _ in 0..2 {
            store.put_secret(&last, large.clone(), None).await.unwrap();
        }
        assert_eq!(store.secret(&last).await.unwrap().unwrap().value, large);
        let refused = store.put_secret("more", large.clone(), None).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.reason(), Reason::Precondition);
        assert!(refused.message().contains("4000 secrets"), "{refused}");
        assert!(store.secret("more").await.unwrap().is_none());
        store.delete_secret(&last, None).await.unwrap();
        store.put_secret("more", large, None).await.unwrap();
    }

    #[tokio::test]
    async fn a_store_with_more_secrets_than_are_possible_is_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::open(directory.path()).unwrap());
        let keys = || Keyring::parse(LINE, "keys").unwrap();
        let store = old_store(&backend, &keys()).await;
        let numbers: Vec<usize> = (0..=MAX_SECRETS).collect();
        for some in numbers.chunks(100) {
            let txn = some.iter().fold(Txn::default(), |txn, number| {
                let (key, row) = old_row(&keys(), &longest(*number), b"x");
                txn.put(key, row)
            });
            backend.commit(txn, Lane::Bulk).await.unwrap();
        }
        let before = store.present_meta().await.unwrap();
        let refused = store.unlock(keys()).await.unwrap_err();
        assert_eq!(refused.reason(), Reason::Precondition);
        assert!(refused.message().contains("4001 secrets"), "{refused}");
        assert_eq!(
            store.present_meta().await.unwrap().revision,
            before.revision
        );
    }

    #[tokio::test]
    async fn secrets_of_an_older_store_are_read_get_their_numbers_and_cannot_be_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let keys = || Keyring::parse(LINE, "keys").unwrap();
        let backend: Arc<dyn Backend> = Arc::new(SqliteBackend::open(directory.path()).unwrap());
        let store = old_store(&backend, &keys()).await;
        put_old(&*backend, &keys(), "a", b"one").await;
        put_old(&*backend, &keys(), "b", b"two").await;
        drop(store);

        let store = Store::open(backend.clone()).await.unwrap();
        assert_eq!(store.unlock(keys()).await.unwrap(), 2);
        for (name, plain) in [("a", &b"one"[..]), ("b", b"two")] {
            assert_eq!(&*store.secret(name).await.unwrap().unwrap().value, plain);
        }
        assert_eq!(
            store.present_meta().await.unwrap().value.format,
            SEALED_FORMAT
        );
        // As it was stored before there were write numbers.
        put_old(&*backend, &keys(), "a", b"one").await;
        let refused = store.secret("a").await.unwrap_err();
        assert!(refused.message().contains("s/a was changed"), "{refused}");
        drop(store);
        let store = Store::open(backend).await.unwrap();
        assert_eq!(store.unlock(keys()).await.unwrap(), 0);
        store.secret("a").await.unwrap_err();
        assert_eq!(&*store.secret("b").await.unwrap().unwrap().value, b"two");
    }
}
