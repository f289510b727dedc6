//! Authentication: HMAC as verified by metal-stack's `security` library, or a bearer token.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use drover_core::{Error, Reason, Result};
use sha2::{Digest, Sha256};

use super::Settings;
use drover_platform::identity::hex;

/// Characters of a salt.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Source of the secret. Read for every call, so that a new secret takes effect at once.
enum Source {
    File(PathBuf),
    Environment(String),
}

/// Credentials for calls.
pub(super) struct Credentials {
    source: Source,
    /// HMAC auth type. `None` for a bearer token.
    hmac: Option<String>,
}

pub(super) type Headers = Vec<(&'static str, String)>;

impl Credentials {
    /// The credentials selected by the settings.
    ///
    /// # Errors
    /// `CredentialsRefused` if none of the configured sources exists.
    pub(super) fn of(settings: &Settings) -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).is_some();
        let (source, hmac) = if let Some(file) = &settings.token_file {
            (Source::File(file.clone()), false)
        } else if let Some(file) = &settings.hmac_file {
            (Source::File(file.clone()), true)
        } else if set(&settings.token_env) {
            (Source::Environment(settings.token_env.clone()), false)
        } else if set(&settings.hmac_env) {
            (Source::Environment(settings.hmac_env.clone()), true)
        } else {
            return Err(refused(format!(
                "there are no credentials for metal-stack: set the environment variable {} (token) or {} (HMAC), or name a file in token_file or hmac_file",
                settings.token_env, settings.hmac_env
            )));
        };
        Ok(Self {
            source,
            hmac: hmac.then(|| settings.hmac_type.clone()),
        })
    }

    /// Human-readable location of the credentials.
    pub(super) fn place(&self) -> String {
        match &self.source {
            Source::File(path) => format!("the file {}", path.display()),
            Source::Environment(name) => format!("the environment variable {name}"),
        }
    }

    /// The authentication headers of a call with this method, valid for the current time.
    pub(super) async fn headers(&self, method: &str) -> Result<Headers> {
        let secret = match &self.source {
            Source::File(path) => tokio::fs::read_to_string(path).await.map_err(|error| {
                refused(format!(
                    "the credentials in {} cannot be read: {error}",
                    path.display()
                ))
            })?,
            Source::Environment(name) => std::env::var(name).unwrap_or_default(),
        };
        let secret = secret.trim();
        if secret.is_empty() {
            return Err(refused(format!(
                "there are no credentials in {}",
                self.place()
            )));
        }
        let Some(kind) = &self.hmac else {
            return Ok(vec![("authorization", format!("Bearer {secret}"))]);
        };
        let date = now();
        let salt: String = (0..24)
            .map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())]))
            .collect();
        let mac = hmac(secret.as_bytes(), &[&date, method, &salt]);
        Ok(vec![
            ("authorization", format!("{kind} {mac}")),
            ("x-date", date),
            ("x-data-salt", salt),
        ])
    }
}

fn refused(message: String) -> Error {
    Error::new(Reason::CredentialsRefused, message)
}

/// The current time as RFC 3339 in UTC, in whole seconds.
fn now() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or_default(),
        nanos: 0,
    }
    .to_string()
}

/// HMAC-SHA256 (RFC 2104) of the concatenated parts, in hexadecimal.
fn hmac(key: &[u8], parts: &[&str]) -> String {
    const BLOCK: usize = 64;
    let mut padded = [0_u8; BLOCK];
    if key.len() > BLOCK {
        padded[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let mut inner = Sha256::new_with_prefix(padded.map(|byte| byte ^ 0x36));
    for part in parts {
        inner.update(part.as_bytes());
    }
    let mut outer = Sha256::new_with_prefix(padded.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    hex(&outer.finalize())
}

/// Base64 with the standard alphabet and padding (RFC 4648).
pub(super) fn base64(data: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            if at <= chunk.len() {
                let index = (bits >> (18 - 6 * at)) & 63;
                text.push(char::from(ALPHABET[index as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_cases_of_rfc_4231_hold() {
        assert_eq!(
            hmac(b"Jefe", &["what do ya want ", "for nothing?"]),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hmac(
                &[0xaa; 131],
                &["Test Using Larger Than Block-Size Key - Hash Key First"]
            ),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn the_test_vectors_of_rfc_4648_hold() {
        let vectors = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let expected = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        assert_eq!(vectors.map(|text| base64(text.as_bytes())), expected);
    }

    #[test]
    fn the_date_is_in_the_form_that_the_api_reads() {
        let date = now();
        assert!(
            date.ends_with('Z') && date.len() == "2026-11-21T12:00:00Z".len(),
            "{date}"
        );
    }
}
