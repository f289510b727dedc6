//! What pods ask for, and what an application is told.

use drover_core::{Error, Reason, Result};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::content::Data;
use crate::labels;

/// What a pod asks for, in the annotation [`labels::SECRETS`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// Begins the names of what nodes mount: `NAME-tls` and `NAME-app`; and `NAME-ca`.
    pub(super) name: String,
    /// Name of the service that leads to the active nodes.
    pub(super) service: String,
    /// Whether the nodes have certificates.
    #[serde(default)]
    pub(super) tls: bool,
    /// Whether certificates name the addresses of the pods, and an authority is believed only by servers that begin
    /// afterwards.
    #[serde(default)]
    pub(super) addresses: bool,
    /// The access that an application is given.
    #[serde(default)]
    pub(super) application: Option<Application>,
}

/// How an application reaches the group, and as whom.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Application {
    /// Name of the Secret that applications mount.
    pub(super) secret: String,
    pub(super) scheme: String,
    pub(super) port: u16,
    /// Who comes with a password.
    #[serde(default)]
    pub(super) user: Option<String>,
    /// Whether it comes with a certificate.
    #[serde(default)]
    pub(super) certificate: bool,
    #[serde(default)]
    pub(super) database: Option<String>,
}

impl Asked {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            let message = format!("annotation {} of its pods: {what}", labels::SECRETS);
            Error::new(Reason::Precondition, message)
        };
        let asked: Self = serde_json::from_str(text).map_err(|_| wrong("cannot be read"))?;
        // They become parts of names and addresses.
        let mut words = vec![&asked.name, &asked.service];
        if let Some(it) = &asked.application {
            words.extend([&it.secret, &it.scheme]);
            words.extend([&it.user, &it.database].into_iter().flatten());
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if words
            .iter()
            .any(|word| word.is_empty() || !word.chars().all(plain))
        {
            return Err(wrong(
                "a name in it has other characters than letters, digits, - _ .",
            ));
        }
        Ok(asked)
    }

    pub(super) fn authority(&self) -> String {
        format!("{}-ca", self.name)
    }

    pub(super) fn certificate(&self) -> String {
        format!("{}-tls", self.name)
    }

    /// The user as nodes mount it.
    pub(super) fn login(&self) -> String {
        format!("{}-app", self.name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        if self.tls {
            names.extend([self.authority(), self.certificate()]);
        }
        if let Some(application) = &self.application {
            names.push(application.secret.clone());
            names.extend(application.user.as_ref().map(|_| self.login()));
        }
        names
    }
}

impl Application {
    /// Where and as whom it comes.
    pub(super) fn data(&self, host: String, password: Option<String>) -> Data {
        let port = self.port;
        let mut data = Data::from([
            ("host".to_owned(), host.clone()),
            ("port".to_owned(), port.to_string()),
        ]);
        let mut login = String::new();
        if let Some((user, password)) = self.user.as_ref().zip(password) {
            login = format!(
                "{user}:{}@",
                utf8_percent_encode(&password, NON_ALPHANUMERIC)
            );
            data.insert("user".to_owned(), user.clone());
            data.insert("password".to_owned(), password);
        }
        let mut path = String::new();
        if let Some(database) = &self.database {
            path = format!("/{database}");
            data.insert("dbname".to_owned(), database.clone());
        }
        let uri = format!("{}://{login}{host}:{port}{path}", self.scheme);
        data.insert("uri".to_owned(), uri);
        data
    }
}
