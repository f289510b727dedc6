//! Pages of lists. A token belongs to its query: with another one it is refused, instead of leaving objects out.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use drover_core::{Error, Result};
use prost::Message;
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

    pub(crate) fn token(self, place: &Place) -> String {
        let mut bytes = self.0.to_vec();
        // A namespace has at most 63 characters.
        bytes.push(u8::try_from(place.scope.len()).unwrap_or(u8::MAX));
        bytes.extend(place.scope.as_bytes());
        bytes.extend(place.token.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// `None` for the first page.
    pub(crate) fn place(self, token: &str) -> Result<Option<Place>> {
        if token.is_empty() {
            return Ok(None);
        }
        let wrong = |why: &str| Error::invalid("page_token", why);
        let damaged = || wrong("is no token of this server");
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| damaged())?;
        let (digest, rest) = bytes.split_at_checked(DIGEST).ok_or_else(damaged)?;
        if digest != self.0 {
            return Err(wrong(
                "is of another query: the other fields must stay the same from page to page",
            ));
        }
        let (length, rest) = rest.split_first().ok_or_else(damaged)?;
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
