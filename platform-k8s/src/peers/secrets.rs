//! The Secrets of a group: its authority, the certificate that its nodes show, and the access of an application.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drover_core::{Error, Reason, Result};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde::Deserialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    certificates::{Authority, Next, Purpose, Shown},
    shared::{GroupLabels, Place},
};
use crate::{
    client::{Api, Kind, Meta as _},
    group::{Member, uid},
    labels::{self, LabelKeys},
    watch::NodeCache,
};

const PLURAL: &str = "secrets";

/// What the pods of a group ask for, in the annotation [`labels::SECRETS`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Begins the names of the Secrets: `NAME-ca`, `NAME-tls`, `NAME-app`.
    name: String,
    /// Whether the nodes have certificates.
    #[serde(default)]
    tls: bool,
    /// Whether certificates name the addresses of the pods, and an authority is believed only by servers that begin
    /// afterwards.
    #[serde(default)]
    addresses: bool,
    /// The access that an application is given.
    #[serde(default)]
    application: Option<Application>,
}

/// How an application reaches the group, and as whom.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Application {
    scheme: String,
    /// Name of the service that leads to the active nodes.
    service: String,
    port: u16,
    /// Who comes with a password.
    #[serde(default)]
    user: Option<String>,
    /// Whether it comes with a certificate.
    #[serde(default)]
    certificate: bool,
    #[serde(default)]
    database: Option<String>,
}

/// The Secrets that the pods of a cluster ask for, by namespace and owner.
#[derive(Default)]
pub(super) struct Secrets(BTreeMap<(String, GroupLabels), DesiredSecrets>);

/// Desired state of the Secrets of one group.
pub(super) struct DesiredSecrets {
    namespace: String,
    of: GroupLabels,
    asked: String,
    /// Of the pods that have one.
    addresses: BTreeSet<String>,
    /// When the first of the pods was made.
    oldest: SystemTime,
    /// Whether pods ask for different ones, as while they are renewed: what is there stays.
    is_disputed: bool,
}

impl Secrets {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a pod of a group that asks for Secrets, its address and when it was made.
    pub(super) fn add(
        &mut self,
        asked: &str,
        of: GroupLabels,
        member: &Member,
        (address, made): (Option<&str>, SystemTime),
    ) {
        let namespace = member.namespace.to_string();
        let wanted = self
            .0
            .entry((namespace.clone(), of.clone()))
            .or_insert_with(|| DesiredSecrets {
                namespace,
                of,
                asked: asked.to_owned(),
                addresses: BTreeSet::new(),
                oldest: made,
                is_disputed: false,
            });
        wanted.addresses.extend(address.map(str::to_owned));
        wanted.oldest = wanted.oldest.min(made);
        if wanted.asked != asked {
            wanted.is_disputed = true;
            // The one of most letters: whoever asks for more mounts more.
            if (asked.len(), asked) > (wanted.asked.len(), wanted.asked.as_str()) {
                asked.clone_into(&mut wanted.asked);
            }
        }
    }

    pub(super) fn wanted(self) -> impl Iterator<Item = DesiredSecrets> {
        self.0.into_values()
    }
}

/// A writer of Secrets.
#[derive(Clone, Copy)]
pub(super) struct Hand<'a> {
    pub(super) api: &'a Api,
    pub(super) keys: &'a LabelKeys,
    pub(super) cache: &'a NodeCache,
}

impl DesiredSecrets {
    /// The places of all of them.
    pub(super) fn places(&self) -> Vec<Place> {
        let Ok(asked) = self.asked() else {
            return Vec::new();
        };
        let mut names = Vec::new();
        if asked.tls {
            names.extend([authority(&asked.name), certificate(&asked.name)]);
        }
        if asked.application.is_some() {
            names.push(access(&asked.name));
        }
        let place = |name| (PLURAL.to_owned(), self.namespace.clone(), name);
        names.into_iter().map(place).collect()
    }

    pub(super) fn digest(&self) -> u128 {
        let (of, asked, disputed) = (&self.of, &self.asked, self.is_disputed);
        let named = self.asked().is_ok_and(|asked| asked.addresses);
        let addresses = named.then_some((&self.addresses, self.oldest));
        uid(&format!("secrets {of:?} {asked} {disputed} {addresses:?}"))
    }

    fn asked(&self) -> Result<Asked> {
        let wrong = |what: &str| {
            let message = format!("annotation {} of its pods: {what}", labels::SECRETS);
            Error::new(Reason::Precondition, message)
        };
        let asked: Asked =
            serde_json::from_str(&self.asked).map_err(|_| wrong("cannot be read"))?;
        // They become parts of names and addresses.
        let application = asked.application.as_ref();
        let words = application.into_iter().flat_map(|it| {
            let named = [Some(&it.scheme), Some(&it.service)];
            named
                .into_iter()
                .chain([it.user.as_ref(), it.database.as_ref()])
                .flatten()
        });
        for word in words.chain([&asked.name]) {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if word.is_empty() || !word.chars().all(plain) {
                return Err(wrong(
                    "a name in it has other characters than letters, digits, - _ .",
                ));
            }
        }
        Ok(asked)
    }

    /// Creates or updates the Secrets. Returns when the certificate has to be looked at again.
    ///
    /// # Errors
    /// `Precondition` if a Secret of such a name does not belong to the group, or what pods ask for cannot be read;
    /// otherwise as in [`crate::errors`].
    pub(super) async fn make(&self, hand: Hand<'_>) -> Result<Option<Instant>> {
        let asked = self.asked()?;
        let kind = hand.api.kind_of("v1", "Secret").await?;
        let secrets = Writer {
            wanted: self,
            kind: &kind,
            hand,
        };
        let mut again = None;
        let mut authority = None;
        let now = SystemTime::now();
        if asked.tls {
            let own = secrets.authority(&asked.name).await?;
            let (trusted, until) = secrets.certificate(&asked, &own, now).await?;
            again = Some(until);
            authority = Some((own, trusted));
        }
        if let Some(application) = &asked.application {
            let access = secrets.access(&asked, application, authority.as_ref(), now);
            again = [again, access.await?].into_iter().flatten().min();
        }
        let later = |until: SystemTime| {
            let left = until.duration_since(now).unwrap_or_default();
            Instant::now() + left.max(Duration::from_secs(1))
        };
        Ok(again.map(later))
    }
}

fn authority(name: &str) -> String {
    format!("{name}-ca")
}

fn certificate(name: &str) -> String {
    format!("{name}-tls")
}

fn access(name: &str) -> String {
    format!("{name}-app")
}

/// Content of a Secret, as text.
type Data = BTreeMap<String, String>;

struct Writer<'a> {
    wanted: &'a DesiredSecrets,
    kind: &'a Kind,
    hand: Hand<'a>,
}

impl Writer<'_> {
    /// A Secret of the group. `None` if there is none.
    async fn read(&self, name: &str) -> Result<Option<Secret>> {
        let Hand { api, keys, cache } = self.hand;
        let namespace = &self.wanted.namespace;
        let there = api.get::<Secret>(self.kind, namespace, name).await?;
        if let Some(there) = &there {
            self.wanted
                .of
                .check(self.kind, &there.metadata, keys, cache)?;
        }
        Ok(there)
    }

    /// Writes a Secret in place of the one that was read.
    async fn write(
        &self,
        name: &str,
        data: Data,
        annotations: BTreeMap<String, String>,
        there: Option<&Secret>,
    ) -> Result<()> {
        let Hand { api, keys, .. } = self.hand;
        let namespace = &self.wanted.namespace;
        let mut metadata = self.wanted.of.metadata(namespace, name, keys);
        metadata
            .annotations
            .get_or_insert_default()
            .extend(annotations);
        // It may be replaced or changed meanwhile.
        metadata.uid = there.map(|it| it.metadata.uid().to_owned());
        metadata.resource_version = there.map(|it| it.metadata.version().to_owned());
        let bytes = |(key, text): (String, String)| (key, ByteString(text.into_bytes()));
        let secret = Secret {
            metadata,
            data: Some(data.into_iter().map(bytes).collect()),
            ..Secret::default()
        };
        let body = serde_json::to_value(&secret)
            .map_err(|_| Error::internal("a Secret of a group cannot be written as JSON"))?;
        if there.is_some() {
            api.patch(self.kind, namespace, name, &body).await.map(drop)
        } else {
            api.create(self.kind, namespace, &body).await.map(drop)
        }
    }

    /// The authority of the group, which is made once.
    async fn authority(&self, name: &str) -> Result<Authority> {
        let name = authority(name);
        if let Some(there) = self.read(&name).await? {
            let data = texts(&there);
            let part = |key: &str| data.get(key).map_or("", String::as_str);
            return Authority::read(part("ca.crt"), part("ca.key")).ok_or_else(|| {
                let message = format!("Secret {name:?}: its ca.crt and ca.key cannot be used");
                Error::new(Reason::Precondition, message)
            });
        }
        let GroupLabels { cluster, group, .. } = &self.wanted.of;
        let (authority, key) = Authority::new(&format!("{cluster} {group}"), SystemTime::now())?;
        let data = Data::from([
            ("ca.crt".to_owned(), authority.pem().to_owned()),
            ("ca.key".to_owned(), key),
        ]);
        self.write(&name, data, BTreeMap::new(), None).await?;
        Ok(authority)
    }

    /// Has the nodes show a valid certificate. Returns whom they trust, and when to look again.
    async fn certificate(
        &self,
        asked: &Asked,
        authority: &Authority,
        now: SystemTime,
    ) -> Result<(String, SystemTime)> {
        let mut names = names(&asked.name, &self.wanted.namespace);
        if asked.addresses {
            names.extend(self.wanted.addresses.iter().cloned());
        }
        let purpose = Purpose {
            names,
            server: true,
            oldest: asked.addresses.then_some(self.wanted.oldest),
        };
        let name = certificate(&asked.name);
        let there = self.read(&name).await?;
        let own = there.as_ref().map(shown);
        let (shown, until) = match authority.next(&purpose, own.as_ref(), now)? {
            Next::Keep(until) => return Ok((own.unwrap_or_default().trusted, until)),
            Next::Show(shown, until) => (shown, until),
        };
        let trusted = shown.trusted.clone();
        let mut data = Data::new();
        if asked.addresses {
            // Only of the certificate that is shown.
            let before = there.as_ref().map(texts).unwrap_or_default();
            let kept = before
                .get("names")
                .filter(|_| before.get("tls.crt") == Some(&shown.certificate));
            let names = kept
                .cloned()
                .unwrap_or_else(|| purpose.names.join("\n") + "\n");
            data.insert("names".to_owned(), names);
        }
        let annotations = pair(shown, &mut data);
        self.write(&name, data, annotations, there.as_ref()).await?;
        Ok((trusted, until))
    }

    /// What an application needs. A password that is there stays. Returns when to look again.
    async fn access(
        &self,
        asked: &Asked,
        application: &Application,
        authority: Option<&(Authority, String)>,
        now: SystemTime,
    ) -> Result<Option<SystemTime>> {
        let namespace = &self.wanted.namespace;
        let name = access(&asked.name);
        let there = self.read(&name).await?;
        if there.is_some() && self.wanted.is_disputed {
            return Ok(None);
        }
        let before = there.as_ref().map(texts).unwrap_or_default();
        let mut data = application.data(namespace, &before);
        let mut annotations = BTreeMap::new();
        let mut again = None;
        match authority {
            None => {}
            Some((_, trusted)) if !application.certificate => {
                data.insert("ca.crt".to_owned(), trusted.clone());
            }
            Some((authority, _)) => {
                let purpose = Purpose {
                    names: vec!["application".to_owned()],
                    server: false,
                    oldest: asked.addresses.then_some(self.wanted.oldest),
                };
                let own = there.as_ref().map(shown).unwrap_or_default();
                let (shown, until) = match authority.next(&purpose, Some(&own), now)? {
                    Next::Show(shown, until) => (shown, until),
                    Next::Keep(until) => (own, until),
                };
                annotations = pair(shown, &mut data);
                again = Some(until);
            }
        }
        if data != before {
            self.write(&name, data, annotations, there.as_ref()).await?;
        }
        Ok(again)
    }
}

impl Application {
    /// Where and as whom it comes.
    fn data(&self, namespace: &str, before: &Data) -> Data {
        let (host, port) = (format!("{}.{namespace}.svc", self.service), self.port);
        let mut data = Data::from([
            ("host".to_owned(), host.clone()),
            ("port".to_owned(), port.to_string()),
        ]);
        let mut login = String::new();
        if let Some(user) = &self.user {
            let kept = before.get("password").filter(|it| !it.is_empty());
            let password = kept.cloned().unwrap_or_else(new_password);
            login = format!("{user}:{password}@");
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

/// Adds a pair and whom to trust to the content of a Secret. Returns what is said of them.
fn pair(shown: Shown, data: &mut Data) -> BTreeMap<String, String> {
    data.extend([
        ("ca.crt".to_owned(), shown.trusted),
        ("tls.crt".to_owned(), shown.certificate),
        ("tls.key".to_owned(), shown.key),
    ]);
    BTreeMap::from([
        (labels::ONCE.to_owned(), shown.of),
        (labels::RENEW_AFTER.to_owned(), seconds(shown.renew_after)),
        (
            labels::TRUSTED_SINCE.to_owned(),
            seconds(shown.trusted_since),
        ),
    ])
}

/// Names under which clients and nodes of the group reach its nodes.
fn names(name: &str, namespace: &str) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    for service in [name, &format!("{name}-read"), "*"] {
        if service != "*" {
            names.push(service.to_owned());
        }
        let inside = format!("{service}.{namespace}");
        names.extend([
            format!("{inside}.svc.cluster.local"),
            format!("{inside}.svc"),
            inside,
        ]);
    }
    names
}

fn texts(secret: &Secret) -> Data {
    let data = secret.data.iter().flatten();
    data.map(|(key, ByteString(bytes))| (key.clone(), String::from_utf8_lossy(bytes).into_owned()))
        .collect()
}

fn shown(secret: &Secret) -> Shown {
    let mut data = texts(secret);
    let mut part = |key: &str| data.remove(key).unwrap_or_default();
    let annotation = |key: &str| {
        secret
            .metadata
            .annotations()
            .get(key)
            .cloned()
            .unwrap_or_default()
    };
    let time = |key: &str| {
        let seconds: u32 = annotation(key).parse().unwrap_or_default();
        UNIX_EPOCH + Duration::from_secs(u64::from(seconds))
    };
    Shown {
        trusted: part("ca.crt"),
        certificate: part("tls.crt"),
        key: part("tls.key"),
        of: annotation(labels::ONCE),
        renew_after: time(labels::RENEW_AFTER),
        trusted_since: time(labels::TRUSTED_SINCE),
    }
}

fn seconds(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().to_string()
}

/// 122 random bits.
fn new_password() -> String {
    Uuid::new_v4().simple().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Member {
        Member {
            uid: 1,
            kind: 0,
            namespace: "prod".into(),
            name: "db-0".into(),
            deleting: false,
            kept_by: None,
            anchor: true,
            pod: None,
            warning: None,
        }
    }

    fn wanted(asked: &[&str]) -> DesiredSecrets {
        let mut secrets = Secrets::default();
        for asked in asked {
            let made = (None, UNIX_EPOCH);
            secrets.add(asked, GroupLabels::of("o", "c", "db"), &member(), made);
        }
        secrets.wanted().next().unwrap()
    }

    #[test]
    fn a_pod_gets_the_secrets_that_it_asks_for() {
        let application = r#"{"scheme": "redis", "service": "c-db", "port": 6379, "user": "app"}"#;
        let all = format!(r#"{{"name": "c-db", "tls": true, "application": {application}}}"#);
        let access = format!(r#"{{"name": "c-db", "application": {application}}}"#);
        for (asked, expected) in [
            (all.as_str(), &["c-db-ca", "c-db-tls", "c-db-app"][..]),
            (&access, &["c-db-app"]),
            (r#"{"name": "c-db"}"#, &[]),
        ] {
            let places = wanted(&[asked]).places();
            let names: Vec<&str> = places.iter().map(|(_, _, name)| name.as_str()).collect();
            assert_eq!(names, expected);
        }
        // While they are renewed, some ask for less.
        for order in [[all.as_str(), &access], [access.as_str(), &all]] {
            let disputed = wanted(&order);
            assert!(disputed.is_disputed);
            assert_eq!(disputed.places().len(), 3);
        }
        assert!(!wanted(&[&all, &all]).is_disputed);
    }

    #[test]
    fn what_cannot_be_part_of_a_name_or_an_address_is_refused_and_not_repeated() {
        for asked in [
            "",
            "[]",
            r#"{"name": ""}"#,
            r#"{"name": "a/b"}"#,
            r#"{"name": "a", "other": 1}"#,
            r#"{"name": "a", "application": {"scheme": "redis", "service": "s", "port": 1, "user": "hunter2@x"}}"#,
        ] {
            let error = wanted(&[asked]).asked().unwrap_err();
            assert_eq!(error.reason(), Reason::Precondition);
            assert!(error.message().contains(labels::SECRETS), "{error}");
            assert!(!error.message().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_certificate_is_good_for_the_services_of_its_group_and_for_each_of_its_nodes() {
        let names = names("c-db", "prod");
        for name in [
            "localhost",
            "127.0.0.1",
            "c-db",
            "c-db.prod.svc",
            "c-db-read.prod.svc.cluster.local",
            "*.prod.svc",
        ] {
            assert!(names.iter().any(|it| it == name), "{name} {names:?}");
        }
    }
}
