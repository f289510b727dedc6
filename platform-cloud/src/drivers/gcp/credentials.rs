//! Credentials for Google's APIs.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use drover_core::{Error, Reason, Result};
use google_cloud_auth::{
    credentials::{
        self, CacheableResource, Credentials, CredentialsProvider, EntityTag, anonymous,
        external_account, impersonated, service_account, user_account,
    },
    errors::CredentialsError,
};
use parking_lot::Mutex;
use serde_json::Value;

use super::Settings;

/// The credentials selected by the settings.
///
/// # Errors
/// `CredentialsRefused` if there are none or they cannot be read.
pub(super) async fn open(settings: &Settings) -> Result<Credentials> {
    // Fails if another client in this process has installed a provider already; it is the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if settings.anonymous {
        return Ok(anonymous::Builder::new().build());
    }
    if let Some(file) = &settings.access_token_file {
        let provider = TokenFile(file.clone());
        provider
            .read()
            .await
            .map_err(|error| refused(&error.to_string()))?;
        return Ok(provider.into());
    }
    if let Some(file) = &settings.credentials_file {
        let file = CredentialsFile::open(file.clone()).await?;
        return Ok(file.into());
    }
    credentials::Builder::default().build().map_err(|error| {
        refused(&format!(
            "there are no application default credentials: {error}"
        ))
    })
}

/// Credentials from a JSON file, which is read again when it changes.
struct CredentialsFile {
    path: PathBuf,
    current: Mutex<Loaded>,
}

#[derive(Clone)]
struct Loaded {
    text: Vec<u8>,
    credentials: Credentials,
}

impl fmt::Debug for CredentialsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CredentialsFile").field(&self.path).finish()
    }
}

impl CredentialsFile {
    async fn open(path: PathBuf) -> Result<Self> {
        let text = tokio::fs::read(&path)
            .await
            .map_err(|error| refused(&format!("{} cannot be read: {error}", path.display())))?;
        let credentials = parse(&path, &text)?;
        Ok(Self {
            path,
            current: Mutex::new(Loaded { text, credentials }),
        })
    }

    /// The credentials of the file as it is now. A file that is just being written leaves those from before.
    async fn now(&self) -> Credentials {
        let text = tokio::fs::read(&self.path).await;
        let known = self.current.lock().clone();
        let Some(text) = text.ok().filter(|text| *text != known.text) else {
            return known.credentials;
        };
        match parse(&self.path, &text) {
            Ok(credentials) => {
                tracing::info!(file = %self.path.display(), "the credentials have changed");
                let new = Loaded { text, credentials };
                self.current.lock().clone_from(&new);
                new.credentials
            }
            Err(error) => {
                tracing::warn!(%error, "the credentials have changed and cannot be used");
                known.credentials
            }
        }
    }
}

impl CredentialsProvider for CredentialsFile {
    async fn headers(
        &self,
        extensions: http::Extensions,
    ) -> Result<CacheableResource<http::HeaderMap>, CredentialsError> {
        self.now().await.headers(extensions).await
    }

    async fn universe_domain(&self) -> Option<String> {
        self.now().await.universe_domain().await
    }
}

/// Credentials of any type that `gcloud` and the console write.
fn parse(path: &Path, text: &[u8]) -> Result<Credentials> {
    let shown = path.display();
    // A parser message could quote the key.
    let json: Value = serde_json::from_slice(text)
        .map_err(|_| refused(&format!("{shown} is not a JSON file with credentials")))?;
    let kind = json["type"].as_str().unwrap_or_default().to_owned();
    let built = match kind.as_str() {
        "service_account" => service_account::Builder::new(json).build(),
        "authorized_user" => user_account::Builder::new(json).build(),
        "external_account" => external_account::Builder::new(json).build(),
        "impersonated_service_account" => impersonated::Builder::new(json).build(),
        _ => {
            return Err(refused(&format!(
                "{shown} has no `type` that is known: service_account, authorized_user, external_account or \
                 impersonated_service_account"
            )));
        }
    };
    built.map_err(|error| {
        refused(&format!(
            "{shown} holds no usable credentials of type {kind}: {error}"
        ))
    })
}

fn refused(why: &str) -> Error {
    Error::new(
        Reason::CredentialsRefused,
        format!(
            "{why}. Set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default login`, or say \
             credentials_file or access_token_file in the settings of the platform"
        ),
    )
}

/// An access token that is renewed externally.
struct TokenFile(PathBuf);

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenFile").field(&self.0).finish()
    }
}

impl TokenFile {
    async fn read(&self) -> Result<http::HeaderValue, CredentialsError> {
        let shown = self.0.display();
        let text = tokio::fs::read_to_string(&self.0).await.map_err(|error| {
            CredentialsError::from_msg(
                false,
                format!("the access token file {shown} cannot be read: {error}"),
            )
        })?;
        let mut value =
            http::HeaderValue::try_from(format!("Bearer {}", text.trim())).map_err(|_| {
                CredentialsError::from_msg(
                    false,
                    format!("the access token file {shown} holds no token"),
                )
            })?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl CredentialsProvider for TokenFile {
    async fn headers(
        &self,
        _extensions: http::Extensions,
    ) -> Result<CacheableResource<http::HeaderMap>, CredentialsError> {
        let data = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, self.read().await?)]);
        Ok(CacheableResource::New {
            entity_tag: EntityTag::new(),
            data,
        })
    }

    async fn universe_domain(&self) -> Option<String> {
        None
    }
}
