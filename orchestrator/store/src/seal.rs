//! Encryption of secrets and user data, which must not be readable for anyone who gets hold of the files.
//!
//! A sealed value consists of a version (1 byte), the id of its key (8 bytes), a random nonce (12 bytes) and the
//! ciphertext of ChaCha20-Poly1305. The place where it is stored is its associated data: a value that was moved
//! elsewhere cannot be opened. A secret, which is written repeatedly, is also bound to its write number, which is
//! stored elsewhere: a former value that was put back cannot be opened either.

use std::{
    collections::BTreeSet,
    fmt,
    fs::File,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};

use zeroize::Zeroizing;

use crate::keys::Key;

/// Name of the setting, for messages.
pub const SETTING: &str = "secrets.key_file";
/// Length of a key in bytes.
const KEY_BYTES: usize = 32;
/// Version of values that are bound to their place.
const PLACED: u8 = 1;
/// Version of values that are bound to their place and their write number.
const NUMBERED: u8 = 2;
/// Length of the id of a key in bytes.
const ID_BYTES: usize = 8;
/// Offset of the ciphertext.
const HEADER: usize = 1 + ID_BYTES + NONCE_LEN;
/// Maximum size of a key file, which has one key per line, and comments.
const MAX_FILE: u64 = 64 * 1024;
/// Bits of a file's mode that give access to others. Its group may read it, because that is how services receive files.
const TOO_OPEN: u32 = 0o027;

/// Identifies a key without revealing it.
pub(crate) type KeyId = [u8; ID_BYTES];

/// The keys of secrets and user data: the first one encrypts, all of them decrypt. Never shown.
pub struct Keyring {
    keys: Vec<(KeyId, LessSafeKey)>,
    file: PathBuf,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Keyring({} keys of {})",
            self.keys.len(),
            self.file.display()
        )
    }
}

impl Keyring {
    /// Reads a key file: one key per line, 32 bytes in base64; empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    ///
    /// `Invalid` for `secrets.key_file`, with the file and the cause: it cannot be read, others may read it or its
    /// group may write it, it has no key, a line is not a key, or a key occurs twice.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let wrong = |why: String| Error::invalid(SETTING, format!("{}: {why}", path.display()));
        let mut file = File::open(path).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        let meta = file
            .metadata()
            .map_err(|e| wrong(format!("cannot be read: {e}")))?;
        if !meta.is_file() {
            return Err(wrong("is not a file".to_owned()));
        }
        let mode = meta.mode() & 0o777;
        if mode & TOO_OPEN != 0 {
            let why = format!(
                "has mode {mode:04o}, so others can get at it; chmod 600 {}",
                path.display()
            );
            return Err(wrong(why));
        }
        if meta.len() > MAX_FILE {
            return Err(wrong(format!("is longer than {MAX_FILE} bytes")));
        }
        let capacity = usize::try_from(meta.len() + 1).unwrap_or_default();
        let mut text = Zeroizing::new(String::with_capacity(capacity));
        file.read_to_string(&mut text)
            .map_err(|e| wrong(format!("cannot be read: {e}")))?;
        Self::parse(&text, path).map_err(wrong)
    }

    /// Parses a text in the format of a key file; `file` is its name in messages.
    ///
    /// # Errors
    ///
    /// The cause, with its line, and without any of the content.
    pub fn parse(text: &str, file: impl AsRef<Path>) -> Result<Self, String> {
        let file = file.as_ref();
        let mut keys = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bytes = Zeroizing::new(STANDARD.decode(line).unwrap_or_default());
            let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes).map_err(|_| {
                format!(
                    "line {} is not a key; expected {KEY_BYTES} bytes in base64 (openssl rand -base64 {KEY_BYTES})",
                    index + 1
                )
            })?;
            let id = id_of(&bytes);
            if !seen.insert(id) {
                return Err(format!("line {} repeats a key", index + 1));
            }
            keys.push((id, LessSafeKey::new(key)));
        }
        if keys.is_empty() {
            return Err("has no key".to_owned());
        }
        Ok(Self {
            keys,
            file: file.to_owned(),
        })
    }

    /// Generates a key, as a line of a key file.
    ///
    /// # Errors
    ///
    /// The system provides no random numbers.
    pub fn generate() -> Result<String> {
        Ok(format!("{}\n", STANDARD.encode(new_key()?)))
    }

    /// The file that the keys were read from.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Ids of its keys, that of the one that encrypts first.
    #[must_use]
    pub fn ids(&self) -> Vec<Bytes> {
        let ids = self.keys.iter();
        ids.map(|(id, _)| Bytes::copy_from_slice(id)).collect()
    }

    /// The same keys, of which this one encrypts. Unchanged if it is not among them.
    pub(crate) fn led_by(mut self, first: &[u8]) -> Self {
        if let Some(at) = self.keys.iter().position(|(id, _)| id == first) {
            self.keys[..=at].rotate_right(1);
        }
        self
    }

    /// Id of the key that encrypts.
    pub(crate) fn first(&self) -> KeyId {
        self.keys.first().map_or([0; ID_BYTES], |(id, _)| *id)
    }

    /// Encrypts a value for storage under a key of the store.
    pub(crate) fn seal(&self, at: &Key, plain: &[u8]) -> Result<Bytes> {
        self.encrypt(PLACED, at.as_bytes(), plain)
    }

    /// Like [`Self::seal`], bound to a write number.
    pub(crate) fn seal_numbered(&self, at: &Key, number: u64, plain: &[u8]) -> Result<Bytes> {
        self.encrypt(NUMBERED, &numbered(at, number), plain)
    }

    fn encrypt(&self, form: u8, bound: &[u8], plain: &[u8]) -> Result<Bytes> {
        let (id, key) = self
            .keys
            .first()
            .ok_or_else(|| Error::internal("a keyring without a key"))?;
        let mut nonce = [0; NONCE_LEN];
        random(&mut nonce)?;
        let tag = key.algorithm().tag_len();
        let mut sealed = Vec::with_capacity(HEADER + plain.len() + tag);
        sealed.push(form);
        sealed.extend_from_slice(id);
        sealed.extend_from_slice(&nonce);
        let mut body = Vec::with_capacity(plain.len() + tag);
        body.extend_from_slice(plain);
        key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(bound),
            &mut body,
        )
        .map_err(|_| Error::internal("what is to be stored cannot be encrypted"))?;
        sealed.append(&mut body);
        Ok(sealed.into())
    }

    /// Decrypts a value that is stored under a key of the store.
    pub(crate) fn open(&self, at: &Key, sealed: &[u8]) -> Result<Bytes> {
        self.decrypt(PLACED, at, at.as_bytes(), sealed)
    }

    /// Like [`Self::open`], bound to a write number.
    pub(crate) fn open_numbered(&self, at: &Key, number: u64, sealed: &[u8]) -> Result<Bytes> {
        self.decrypt(NUMBERED, at, &numbered(at, number), sealed)
    }

    fn decrypt(&self, form: u8, at: &Key, bound: &[u8], sealed: &[u8]) -> Result<Bytes> {
        let damaged = || changed(at);
        let id = sealed_with(sealed).ok_or_else(damaged)?;
        if sealed.first() != Some(&form) {
            return Err(damaged());
        }
        let Some((_, key)) = self.keys.iter().find(|(own, _)| *own == id) else {
            return Err(Error::new(
                Reason::Precondition,
                format!(
                    "what is stored under {at} is encrypted with a key that {} does not have; add that key to it",
                    self.file.display()
                ),
            ));
        };
        let nonce = &sealed[1 + ID_BYTES..HEADER];
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let mut body = sealed[HEADER..].to_vec();
        let plain = key
            .open_in_place(nonce, Aad::from(bound), &mut body)
            .map_err(|_| damaged())?
            .len();
        body.truncate(plain);
        Ok(body.into())
    }
}

/// Id of the key that a value is sealed with. `None` if it is not sealed.
pub(crate) fn sealed_with(value: &[u8]) -> Option<KeyId> {
    if !matches!(value.first(), Some(&(PLACED | NUMBERED))) || value.len() < HEADER {
        return None;
    }
    value[1..].first_chunk().copied()
}

/// The error for a value that is not the one that was stored there.
pub(crate) fn changed(at: &Key) -> Error {
    Error::new(
        Reason::Precondition,
        format!(
            "what is stored under {at} was changed by somebody else, or is damaged; restore a backup"
        ),
    )
}

fn numbered(at: &Key, number: u64) -> Vec<u8> {
    // The number has a fixed length behind the variable part, so that no two places and numbers look the same.
    [&[NUMBERED], at.as_bytes(), &number.to_be_bytes()].concat()
}

fn id_of(key: &[u8]) -> KeyId {
    let hash = digest(&SHA256, &Zeroizing::new([b"drover key id ", key].concat()));
    let mut id = [0; ID_BYTES];
    id.copy_from_slice(&hash.as_ref()[..ID_BYTES]);
    id
}

pub(crate) fn new_key() -> Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    random(&mut key)?;
    Ok(key)
}

fn random(into: &mut [u8]) -> Result<()> {
    SystemRandom::new()
        .fill(into)
        .map_err(|_| Error::unavailable("the system gives no random numbers"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Name;

    fn ring(lines: &[&str]) -> Keyring {
        Keyring::parse(&lines.join("\n"), Path::new("keys")).unwrap()
    }

    #[test]
    fn what_is_sealed_opens_where_it_was_put_and_nowhere_else() {
        let (one, two) = (Keyring::generate().unwrap(), Keyring::generate().unwrap());
        let (old, both) = (ring(&[&one]), ring(&[&two, "# before", &one]));
        let (here, there) = (
            Key::from(Name::Secret("a".into())),
            Key::from(Name::Secret("b".into())),
        );
        let sealed = old.seal(&here, b"hush").unwrap();
        assert_eq!(&*both.open(&here, &sealed).unwrap(), b"hush");
        assert!(!String::from_utf8_lossy(&sealed).contains("hush"));
        assert_ne!(sealed, old.seal(&here, b"hush").unwrap(), "another nonce");
        for at in [0, 5, 12, sealed.len() - 1] {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert!(both.open(&here, &changed).is_err(), "byte {at}");
        }
        assert!(both.open(&there, &sealed).is_err(), "moved");
        let stranger = ring(&[&two]).open(&here, &sealed).unwrap_err();
        assert!(
            stranger.message().contains("keys does not have"),
            "{stranger}"
        );
        for short in [&sealed[..0], &sealed[..HEADER], &sealed[..HEADER + 3]] {
            assert!(both.open(&here, short).is_err());
        }
    }

    #[test]
    fn a_keyring_shows_no_key() {
        let line = Keyring::generate().unwrap();
        let shown = format!("{:?}", ring(&[&line]));
        assert_eq!(shown, "Keyring(1 keys of keys)");
    }

    #[test]
    fn what_is_no_key_is_named_by_its_line_and_not_shown() {
        let good = Keyring::generate().unwrap();
        for (text, word) in [
            ("", "has no key"),
            ("# nothing\n\n", "has no key"),
            ("hunter2", "line 1 is not a key"),
            ("\naHVudGVyMg==", "line 2 is not a key"),
            (&format!("{good}{good}"), "line 2 repeats a key"),
        ] {
            let why = Keyring::parse(text, Path::new("keys")).unwrap_err();
            assert!(why.contains(word) && !why.contains("hunter"), "{why}");
            assert!(!why.contains("aHVud"), "{why}");
        }
    }
}
