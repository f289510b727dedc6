//! Keyed digests of contents that must not be guessed: they show whether two contents are the same, and reveal nothing
//! without the key.

use std::fmt;

use ring::hmac;
use uuid::Uuid;

/// Prefix of digests. Another format has another prefix.
const FORM: &str = "k1-";
/// Number of hexadecimal digits after the prefix.
const DIGITS: usize = 64;

/// Key of the digests. It does not leave the store; `Debug` does not show it.
pub struct DigestKey(hmac::Key);

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey")
    }
}

impl DigestKey {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Whether another one makes the same digests.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let of = |key: &Self| hmac::sign(&key.0, b"the same");
        of(self).as_ref() == of(other).as_ref()
    }

    /// Creates a key that is lost with the process.
    ///
    /// # Errors
    ///
    /// The system provides no random numbers.
    pub fn random() -> drover_core::Result<Self> {
        Ok(Self::new(&crate::seal::new_key()?))
    }

    /// The digests of one cluster.
    #[must_use]
    pub fn of_cluster(&self, uid: Uuid) -> ClusterDigests<'_> {
        let key = self.sign("cluster", uid.as_bytes());
        ClusterDigests {
            own: Self::new(key.as_ref()),
            store: self,
        }
    }

    fn user_data(&self, sha256: &str) -> String {
        self.of("user data", sha256.as_bytes())
    }

    /// Digest of the content of one key of a secret.
    #[must_use]
    pub fn secret(&self, content: &[u8]) -> String {
        self.of("secret", content)
    }

    /// Equal contents of different kinds have different digests.
    fn of(&self, kind: &str, data: &[u8]) -> String {
        let digits = self.sign(kind, data);
        let digits = digits.as_ref().iter().map(|byte| format!("{byte:02x}"));
        format!("{FORM}{}", digits.collect::<String>())
    }

    fn sign(&self, kind: &str, data: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(kind.as_bytes());
        context.update(b"\0");
        context.update(data);
        context.sign()
    }
}

/// The digests of one cluster. Equal contents in two clusters have different digests: otherwise a user who may change
/// one of the clusters could try out there what the other one contains.
#[derive(Debug)]
pub struct ClusterDigests<'a> {
    own: DigestKey,
    store: &'a DigestKey,
}

impl ClusterDigests<'_> {
    /// Digest of inline user data that is stored under this SHA-256.
    #[must_use]
    pub fn user_data(&self, sha256: &str) -> String {
        self.own.user_data(sha256)
    }

    /// The digest from when all clusters shared the same digests. Never shown; nodes carry hashes of it, and documents
    /// that were written then contain it.
    #[must_use]
    pub fn former_user_data(&self, sha256: &str) -> String {
        self.store.user_data(sha256)
    }
}

/// Whether a text has the format of such a digest.
#[must_use]
pub fn is_keyed(text: &str) -> bool {
    text.strip_prefix(FORM).is_some_and(|rest| {
        rest.len() == DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_have_equal_digests_under_one_key_and_others_under_another() {
        let (one, two) = (DigestKey::new(&[1; 32]), DigestKey::new(&[2; 32]));
        assert_eq!(one.secret(b"hush"), one.secret(b"hush"));
        assert_ne!(one.secret(b"hush"), one.secret(b"hushed"));
        assert_ne!(one.secret(b"hush"), two.secret(b"hush"));
        assert_ne!(one.secret(b"hush"), one.user_data("hush"));
        let (this, that) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let of = |key: &DigestKey, uid| key.of_cluster(uid).user_data("hush");
        assert_eq!(of(&one, this), of(&one, this));
        assert_ne!(of(&one, this), of(&one, that), "another cluster");
        assert_ne!(of(&one, this), of(&two, this), "another store");
        let former = |uid| one.of_cluster(uid).former_user_data("hush");
        assert_eq!(former(this), former(that));
        assert!(is_keyed(&one.secret(b"hush")));
        assert!(!is_keyed(&drover_core::spec::digest(b"hush")));
        assert_eq!(format!("{one:?}"), "DigestKey");
    }
}
