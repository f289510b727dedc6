//! Bearer tokens that authenticate the caller.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drover_core::{Error, Reason, Result, secrecy::Hidden};
use http::HeaderValue;
use tokio::{io::AsyncReadExt, sync::Mutex};
use zeroize::{Zeroize, Zeroizing};

/// Maximum length of a token: the headers of a request must stay within the limits of servers.
const MAX_BYTES: u64 = 8 * 1024;
/// Minimum interval between two reads of a token file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Source of the bearer token of every call. The token is never shown.
#[derive(Clone, PartialEq, Eq)]
pub enum Bearer {
    /// A fixed token.
    Token(String),
    /// A file that contains only the token; read again at most once a second, when there are calls.
    File(PathBuf),
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Drop for Bearer {
    fn drop(&mut self) {
        if let Self::Token(token) = self {
            token.zeroize();
        }
    }
}

/// Provides the current authorization header.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    bearer: Bearer,
    read: Arc<Mutex<Option<Read>>>,
}

#[derive(Clone, Debug)]
struct Read {
    value: HeaderValue,
    looked: tokio::time::Instant,
}

impl Header {
    pub(crate) fn new(bearer: Bearer) -> Self {
        Self {
            bearer,
            read: Arc::default(),
        }
    }

    /// Returns `Bearer …`, marked as sensitive. Fails if the file cannot be read or does not contain a token; nothing
    /// is sent in that case.
    pub(crate) async fn value(&self) -> Result<HeaderValue> {
        let path = match &self.bearer {
            Bearer::Token(token) => return header(token),
            Bearer::File(path) => path,
        };
        let mut read = self.read.lock().await;
        if let Some(read) = &*read
            && read.looked.elapsed() < LOOK_INTERVAL
        {
            return Ok(read.value.clone());
        }
        let wrong = |why: String| {
            Error::new(
                Reason::Unauthenticated,
                format!("token file {}: {why}", path.display()),
            )
        };
        // Read in full each time: modification times are too coarse to tell apart two tokens written in quick
        // succession.
        let text = read_at_most(path, MAX_BYTES)
            .await
            .map_err(|e| wrong(e.to_string()))?;
        let value = header(text.trim()).map_err(|e| wrong(e.message().to_owned()))?;
        *read = Some(Read {
            value: value.clone(),
            looked: tokio::time::Instant::now(),
        });
        Ok(value)
    }
}

async fn read_at_most(path: &Path, most: u64) -> std::io::Result<Zeroizing<String>> {
    use std::io::{Error, ErrorKind};
    // Allocated at full capacity up front, because reallocation would leave a copy that is not wiped.
    let capacity = usize::try_from(most + 1).unwrap_or_default();
    let mut text = Zeroizing::new(String::with_capacity(capacity));
    let file = tokio::fs::File::open(path).await?;
    file.take(most + 1).read_to_string(&mut text).await?;
    if text.len() as u64 > most {
        let message = format!("holds more than {most} bytes, which no token has");
        return Err(Error::new(ErrorKind::InvalidData, message));
    }
    Ok(text)
}

/// The token, which no response to a call with this header may repeat.
pub(crate) fn hidden(header: &HeaderValue) -> Hidden {
    let token = header.as_bytes().strip_prefix(b"Bearer ");
    Hidden::default().secret(token.unwrap_or_default())
}

fn header(token: &str) -> Result<HeaderValue> {
    let wrong = || Error::new(Reason::Unauthenticated, "holds no token");
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(wrong());
    }
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok(value)
}
