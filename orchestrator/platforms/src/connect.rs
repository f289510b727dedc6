//! Channels to platforms.

use std::{path::PathBuf, sync::Arc};

use drover_client::{Authorities, Bearer, Channel, ClientSettings, Identity, Target, connect};
use drover_core::{
    Error, Reason, Result, name,
    spec::{SecretRef, TLS_CERT, TLS_KEY},
};
use drover_proto::orchestrator::v1 as pb;
use drover_secrets::Vault;
use serde::{Deserialize, Serialize};

use crate::Platforms;

/// Bytes of an answer that are on their way: as many as servers take of a request. Of more, a few logs that nobody reads would
/// hold up all calls to their platform and its watch, which share a connection.
const STREAM_WINDOW: u32 = 256 << 10;

/// Creates a channel to a platform from its registration, and the certificate that it names.
pub type Connector =
    Arc<dyn Fn(&pb::PlatformSpec, Option<Identity>) -> Result<Channel> + Send + Sync>;

/// How platforms with `https` endpoints are called. The files are PEM and read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlatformTlsSettings {
    /// Authorities to trust where a registration names none. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate that is shown to platforms. Default: that of the server (`tls.cert`).
    pub cert: Option<PathBuf>,
    /// Its private key. Default: that of the server (`tls.key`).
    pub key: Option<PathBuf>,
    /// Lists of revoked certificates of platforms (CRL), one of each authority that issues, for those whose registration names
    /// no authority of its own. With it a platform is refused of which none of them says anything, and each once they have
    /// ended. Default: none is revoked.
    pub crl: Option<PathBuf>,
    /// Whether a platform is refused whose certificate does not say that it is one (`spiffe://drover/platform/NAME`, as
    /// those of `drover certs` do). Default false: one that says no role is believed; one that says another never is.
    pub require_role: bool,
}

impl PlatformTlsSettings {
    /// Uses this certificate and key, those of the server, if none are configured.
    #[must_use]
    pub fn or(mut self, cert: Option<&PathBuf>, key: Option<&PathBuf>) -> Self {
        if self.cert.is_none() && self.key.is_none() {
            self.cert = cert.cloned();
            self.key = key.cloned();
        }
        self
    }

    /// How a server is called of which there is no registration.
    #[must_use]
    pub fn client(&self) -> ClientSettings {
        self.of(&pb::PlatformTls::default(), None)
    }

    fn of(&self, tls: &pb::PlatformTls, identity: Option<Identity>) -> ClientSettings {
        let authorities = match (&self.ca, tls.ca_pem.as_str()) {
            (Some(path), "") => Authorities::File(path.clone()),
            (None, "") => Authorities::System,
            (_, pem) => Authorities::Pem(pem.to_owned()),
        };
        ClientSettings {
            authorities,
            certificate: identity.or_else(|| {
                let own = self.cert.clone().zip(self.key.clone());
                own.map(Identity::from)
            }),
            server_name: Some(tls.server_name.clone()).filter(|name| !name.is_empty()),
            crl: self.crl.clone().filter(|_| tls.ca_pem.is_empty()),
            require_role: self.require_role,
        }
    }
}

/// Creates the connector for platforms.
///
/// # Errors
/// `Invalid` if a file cannot be used, with the file and the cause.
pub fn connector(settings: PlatformTlsSettings) -> Result<Connector> {
    if settings.cert.is_some() != settings.key.is_some() {
        return Err(Error::invalid(
            "platform_tls",
            "cert and key are given together or not at all",
        ));
    }
    if settings != PlatformTlsSettings::default() {
        settings
            .client()
            .check_files()
            .map_err(|why| Error::invalid("platform_tls", why.to_string()))?;
    }
    Ok(Arc::new(move |spec: &pb::PlatformSpec, identity| {
        let mut target: Target = spec.endpoint.parse()?;
        target.stream_window = Some(STREAM_WINDOW);
        if !target.is_encrypted() {
            return Ok(connect(&target));
        }
        let tls = spec.tls.clone().unwrap_or_default();
        Ok(connect(&target.with_tls(settings.of(&tls, identity))?))
    }))
}

/// Key of a bearer token in its secret.
const TOKEN: &str = "token";

/// Field of a registration with the secret of the token.
const TOKEN_FIELD: &str = "platform.spec.token_secret";
/// Field of a registration with the secret of the client certificate.
const CERTIFICATE_FIELD: &str = "platform.spec.tls.client_certificate_secret";

/// The secrets that a registration refers to, with their fields.
pub fn named(spec: &pb::PlatformSpec) -> Vec<(&'static str, SecretRef)> {
    let of = |name: &str, key: &str| SecretRef {
        name: name.to_owned(),
        key: key.to_owned(),
    };
    let mut found = Vec::new();
    if !spec.token_secret.is_empty() {
        found.push((TOKEN_FIELD, of(&spec.token_secret, TOKEN)));
    }
    if let Some(name) = certificate_secret(spec) {
        for key in [TLS_CERT, TLS_KEY] {
            found.push((CERTIFICATE_FIELD, of(name, key)));
        }
    }
    found
}

fn certificate_secret(spec: &pb::PlatformSpec) -> Option<&str> {
    let name = spec.tls.as_ref()?.client_certificate_secret.as_str();
    (!name.is_empty()).then_some(name)
}

/// The secrets that a registration refers to.
pub fn secrets(spec: &pb::PlatformSpec) -> Vec<SecretRef> {
    named(spec).into_iter().map(|(_, of)| of).collect()
}

/// The client certificate and key in a secret.
///
/// # Errors
/// The secret is missing, incomplete or unusable (`Precondition`).
pub async fn identity(vault: &Vault, name: &str) -> Result<Identity> {
    let missing = |what: &str| Error::new(Reason::SecretNotFound, what.to_owned());
    // Read in one go, because an old certificate and a new key do not match.
    let secret = vault.content(name).await?;
    let (content, _) = secret.ok_or_else(|| missing(&format!("there is no secret {name:?}")))?;
    let [cert, key] = [TLS_CERT, TLS_KEY].map(|key| {
        let found = content.get(key).map(|found| found.content.to_vec().into());
        found.ok_or_else(|| missing(&format!("secret {name:?} has no key {key:?}")))
    });
    let identity = Identity::Pem(cert?, key?);
    let alone = ClientSettings {
        authorities: Authorities::Any,
        certificate: Some(identity.clone()),
        ..ClientSettings::default()
    };
    alone
        .check()
        .map_err(|why| Error::new(Reason::Precondition, format!("secret {name:?}: {why}")))?;
    Ok(identity)
}

/// Validates the TLS settings of a registration.
pub(crate) fn check(spec: &pb::PlatformSpec) -> Result<()> {
    let Some(tls) = &spec.tls else {
        return Ok(());
    };
    let wrong =
        |field: &str, why: String| Err(Error::invalid(format!("platform.spec.tls{field}"), why));
    if !spec.endpoint.starts_with("https://") {
        return wrong(
            "",
            format!("is for https endpoints, and {:?} is none", spec.endpoint),
        );
    }
    if !tls.client_certificate_secret.is_empty()
        && let Err(why) = name::check_name(&tls.client_certificate_secret)
    {
        return wrong(".client_certificate_secret", why);
    }
    if !tls.ca_pem.is_empty()
        && let Err(why) = drover_client::check_authorities(&tls.ca_pem)
    {
        return wrong(".ca_pem", why.to_string());
    }
    if !tls.server_name.is_empty()
        && let Err(why) = drover_client::check_server_name(&tls.server_name)
    {
        return wrong(".server_name", why.to_string());
    }
    Ok(())
}

impl Platforms {
    /// Creates a channel to a platform, with the certificate and the token of its registration.
    ///
    /// # Errors
    /// The endpoint is invalid, or a secret is missing or unusable (`Precondition`, with the field).
    pub async fn connect(&self, spec: &pb::PlatformSpec) -> Result<Channel> {
        let identity = match certificate_secret(spec) {
            Some(name) => Some(identity(&self.vault, name).await.map_err(|error| {
                let why = error.message().to_owned();
                error.with_violation(CERTIFICATE_FIELD, why)
            })?),
            None => None,
        };
        let channel = (self.connector)(spec, identity)?;
        if spec.token_secret.is_empty() {
            return Ok(channel);
        }
        let of = SecretRef {
            name: spec.token_secret.clone(),
            key: TOKEN.to_owned(),
        };
        let found = self.vault.read(&of).await?;
        let token = std::str::from_utf8(&found.content).unwrap_or_default();
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = format!("secret {of} holds no token");
            let error = Error::new(Reason::Precondition, message.as_str());
            return Err(error.with_violation(TOKEN_FIELD, message));
        }
        Ok(channel.with_bearer(Bearer::Token(token.to_owned())))
    }
}
