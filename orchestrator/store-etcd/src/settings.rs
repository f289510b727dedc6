//! Settings of the connection to etcd.

use std::{net::IpAddr, path::PathBuf};

use drover_client::{Authorities, ClientSettings, Identity, Target};
use drover_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::login::Login;

/// The etcd that holds the store, for several orchestrators of which one leads. Files are read again when they change;
/// those of certificates and keys are PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EtcdSettings {
    /// Client URLs of the members, such as `https://etcd-1:2379`; list all of them. Default: none, so that the store is
    /// in `data_dir`, for this orchestrator alone.
    pub endpoints: Vec<String>,
    /// What all keys begin with, so that one etcd can serve several stores. Default `drover/`.
    pub prefix: String,
    /// Authorities to trust. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate that is shown to etcd, whose common name is the user there. Default: none.
    pub cert: Option<PathBuf>,
    /// Its private key. Default: none.
    pub key: Option<PathBuf>,
    /// User who logs in to etcd with a password, where the common name of no certificate is a user. Default: none.
    pub user: Option<String>,
    /// File that holds only the password of `user`; read again for each login. Default: none.
    pub password_file: Option<PathBuf>,
    /// Bytes that the members' databases may have (`--quota-backend-bytes` of etcd), for members that do not say so
    /// themselves, as those before 3.6. From 70 % of it on, new clusters and groups are refused. Default 2147483648
    /// (2 GiB), as in etcd.
    pub quota: u64,
}

/// The default of etcd's `--quota-backend-bytes`.
const QUOTA: u64 = 2 * 1024 * 1024 * 1024;

impl Default for EtcdSettings {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            prefix: "drover/".to_owned(),
            ca: None,
            cert: None,
            key: None,
            user: None,
            password_file: None,
            quota: QUOTA,
        }
    }
}

impl EtcdSettings {
    /// Whether the store is in etcd at all.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// The members, checked.
    pub(crate) fn targets(&self) -> Result<Vec<Target>> {
        if self.prefix.is_empty() {
            return Err(Error::invalid(
                "etcd.prefix",
                "must not be empty: the keys of others would be taken for ours",
            ));
        }
        if self.quota == 0 {
            return Err(Error::invalid("etcd.quota", "must not be 0"));
        }
        if self.cert.is_some() != self.key.is_some() {
            return Err(Error::invalid(
                "etcd.cert",
                "cert and key are given together or not at all",
            ));
        }
        let tls = ClientSettings {
            authorities: self
                .ca
                .clone()
                .map_or(Authorities::System, Authorities::File),
            certificate: self.cert.clone().zip(self.key.clone()).map(Identity::from),
            ..ClientSettings::default()
        };
        let mut targets: Vec<Target> = Vec::new();
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            let field = format!("etcd.endpoints[{i}]");
            let target: Target = endpoint
                .parse()
                .map_err(|error: Error| Error::invalid(&field, error.message()))?;
            if self.password_file.is_some() && !target.is_encrypted() && !is_here(&target) {
                return Err(Error::invalid(
                    &field,
                    format!(
                        "{target} is plaintext: a password needs https://, except on this machine"
                    ),
                ));
            }
            if targets.iter().any(|known| known.uri() == target.uri()) {
                return Err(Error::invalid(&field, format!("{target} is listed twice")));
            }
            let target = if target.is_encrypted() {
                target
                    .with_tls(tls.clone())
                    .map_err(|error| Error::invalid("etcd", error.message()))?
            } else if tls == ClientSettings::default() {
                target
            } else {
                return Err(Error::invalid(
                    &field,
                    format!("{target} is plaintext: certificates are for https://"),
                ));
            };
            targets.push(target);
        }
        Ok(targets)
    }

    /// The user who logs in with a password, checked.
    pub(crate) fn login(&self) -> Result<Option<Login>> {
        let together = |missing| {
            let why = "is missing: user and password_file are given together or not at all";
            Error::invalid(missing, why)
        };
        match (&self.user, &self.password_file) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(together("etcd.user")),
            (Some(_), None) => Err(together("etcd.password_file")),
            (Some(user), Some(_)) if user.is_empty() => {
                Err(Error::invalid("etcd.user", "must not be empty"))
            }
            (Some(user), Some(file)) => {
                let login = Login::new(user.clone(), file.clone());
                let login = login.map_err(|why| Error::invalid("etcd.password_file", why))?;
                Ok(Some(login))
            }
        }
    }
}

/// Whether what is sent there stays on this machine.
fn is_here(target: &Target) -> bool {
    let host = target.uri().host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<IpAddr>();
    ip.map_or(bare.eq_ignore_ascii_case("localhost"), |ip| {
        ip.to_canonical().is_loopback()
    })
}
