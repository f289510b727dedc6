//! Credentials for Google's APIs.

use std::{fmt, path::PathBuf};

use drover_core::{Error, Reason, Result};
use google_cloud_auth::{
    credentials::{
        self, CacheableResource, Credentials, CredentialsProvider, EntityTag, anonymous,
        service_account,
    },
    errors::CredentialsError,
};

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
        let shown = file.display();
        let text = tokio::fs::read(file)
            .await
            .map_err(|error| refused(&format!("{shown} cannot be read: {error}")))?;
        // A parser message could quote the key.
        let key = serde_json::from_slice(&text)
            .map_err(|_| refused(&format!("{shown} is no JSON key file of a service account")))?;
        return service_account::Builder::new(key)
            .build()
            .map_err(|error| refused(&format!("{shown} is not a usable key file: {error}")));
    }
    credentials::Builder::default().build().map_err(|error| {
        refused(&format!(
            "there are no application default credentials: {error}"
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
