//! Pages of lists. A token belongs to its query: with another one it is refused, instead of leaving objects out. It is
//! sealed, because the backend's own tokens name objects, and the next of them may be nobody's business.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use drover_core::{Error, Reason, Result};
use prost::Message;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use sha2::{Digest, Sha256};

/// Objects in a page of a list that does not say how many.
const PAGE_SIZE: usize = 500;
/// Most objects in a page.
const MAX_PAGE_SIZE: usize = 1000;
/// Length of the digest of a query.
const DIGEST: usize = 16;

/// Where a list goes on: in which namespace, and behind what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) scope: String,
    /// The backend's own token. Empty: at the beginning of the scope.
    pub(crate) token: String,
}

/// Seals the tokens of one server. After a restart lists begin anew.
pub(crate) struct Tokens {
    key: LessSafeKey,
    random: SystemRandom,
}

/// The query of a list: its request without the fields about pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query([u8; DIGEST]);

impl Query {
    pub(crate) fn of(request: &impl Message, call: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(call.as_bytes());
        hash.update([0]);
        hash.update(request.encode_to_vec());
        let mut digest = [0; DIGEST];
        digest.copy_from_slice(&hash.finalize()[..DIGEST]);
        Self(digest)
    }
}

impl Tokens {
    /// # Errors
    /// `Internal` if the system has no random numbers.
    pub(crate) fn new() -> Result<Self> {
        let random = SystemRandom::new();
        let mut key = [0; 32];
        random.fill(&mut key).map_err(|_| unsealed())?;
        let key = UnboundKey::new(&AES_256_GCM, &key).map_err(|_| unsealed())?;
        let key = LessSafeKey::new(key);
        Ok(Self { key, random })
    }

    pub(crate) fn token(&self, query: Query, place: &Place) -> Result<String> {
        // A namespace has at most 63 characters.
        let mut sealed = vec![u8::try_from(place.scope.len()).unwrap_or(u8::MAX)];
        sealed.extend(place.scope.as_bytes());
        sealed.extend(place.token.as_bytes());
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| unsealed())?;
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(unique, Aad::from(query.0), &mut sealed)
            .map_err(|_| unsealed())?;
        let token = [&query.0[..], &nonce, &sealed].concat();
        Ok(URL_SAFE_NO_PAD.encode(token))
    }

    /// `None` for the first page.
    pub(crate) fn place(&self, query: Query, token: &str) -> Result<Option<Place>> {
        if token.is_empty() {
            return Ok(None);
        }
        let wrong = |why: &str| Error::invalid("page_token", why);
        let damaged = || wrong("is no token of this server");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| damaged())?;
        let (digest, rest) = bytes.split_at_checked(DIGEST).ok_or_else(damaged)?;
        if digest != query.0 {
            return Err(wrong(
                "is of another query: the other fields must stay the same from page to page",
            ));
        }
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let mut sealed = sealed.to_vec();
        let opened = self
            .key
            .open_in_place(nonce, Aad::from(query.0), &mut sealed)
            .map_err(|_| {
                let why = "the page token is not of this start of the server; list again";
                Error::new(Reason::PageTokenExpired, why)
            })?;
        let (length, rest) = opened.split_first().ok_or_else(damaged)?;
        let (scope, token) = rest
            .split_at_checked(usize::from(*length))
            .ok_or_else(damaged)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| damaged());
        Ok(Some(Place {
            scope: text(scope)?,
            token: text(token)?,
        }))
    }
}

fn unsealed() -> Error {
    Error::internal("a page token cannot be sealed")
}

/// The size of a page.
pub(crate) fn size(asked: i32) -> Result<usize> {
    match usize::try_from(asked) {
        Ok(0) => Ok(PAGE_SIZE),
        Ok(size) => Ok(size.min(MAX_PAGE_SIZE)),
        Err(_) => Err(Error::invalid("page_size", "is negative")),
    }
}

#[cfg(test)]
mod tests;
