//! Ways to platforms.

use std::{path::PathBuf, sync::Arc};

use drover_client::{Authorities, ClientSettings, Target, connect};
use drover_core::{Error, Result};
use drover_proto::orchestrator::v1 as pb;
use serde::{Deserialize, Serialize};

use crate::Connector;

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
}

impl PlatformTlsSettings {
    /// The same with the certificate of the server where none is named.
    #[must_use]
    pub fn or(mut self, server: &drover_server::settings::TlsSettings) -> Self {
        if self.cert.is_none() && self.key.is_none() {
            self.cert.clone_from(&server.cert);
            self.key.clone_from(&server.key);
        }
        self
    }

    fn of(&self, tls: &pb::PlatformTls) -> ClientSettings {
        let authorities = match (&self.ca, tls.ca_pem.as_str()) {
            (Some(path), "") => Authorities::File(path.clone()),
            (None, "") => Authorities::System,
            (_, pem) => Authorities::Pem(pem.to_owned()),
        };
        ClientSettings {
            authorities,
            certificate: self.cert.clone().zip(self.key.clone()),
            server_name: Some(tls.server_name.clone()).filter(|name| !name.is_empty()),
        }
    }
}

/// Connects to platforms with these files. Errors: `Invalid` if one of them cannot be used, with which and why.
pub(crate) fn connector(settings: PlatformTlsSettings) -> Result<Connector> {
    if settings.cert.is_some() != settings.key.is_some() {
        return Err(Error::invalid(
            "platform_tls",
            "cert and key are given together or not at all",
        ));
    }
    if settings != PlatformTlsSettings::default() {
        let ours = settings.of(&pb::PlatformTls::default());
        ours.check_files()
            .map_err(|why| Error::invalid("platform_tls", why.to_string()))?;
    }
    Ok(Arc::new(move |spec: &pb::PlatformSpec| {
        let target: Target = spec.endpoint.parse()?;
        if !target.is_encrypted() {
            return Ok(connect(&target));
        }
        let tls = spec.tls.clone().unwrap_or_default();
        Ok(connect(&target.with_tls(settings.of(&tls))?))
    }))
}

/// What is wrong with the TLS settings of a registration.
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
    if !tls.client_certificate_secret.is_empty() {
        return wrong(
            ".client_certificate_secret",
            "secrets are not available in this version; leave the field out: the orchestrator shows its own certificate"
                .to_owned(),
        );
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
