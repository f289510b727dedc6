//! The Secrets of a group: its authority, the certificate that its nodes show, and the access of an application.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drover_core::{Error, Reason, Result};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    certificates::{Authority, Purpose, Shown},
    shared::{GroupLabels, Place},
};
use crate::{
    client::{Api, Kind, Meta as _},
    group::{Member, uid},
    labels::{self, LabelKeys},
    watch::NodeCache,
};

const PLURAL: &str = "secrets";

/// What a pod asks for, in the annotation [`labels::SECRETS`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Begins the names of what nodes mount: `NAME-tls` and `NAME-app`; and `NAME-ca`.
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
    /// Name of the Secret that applications mount.
    secret: String,
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

impl Asked {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            let message = format!("annotation {} of its pods: {what}", labels::SECRETS);
            Error::new(Reason::Precondition, message)
        };
        let asked: Self = serde_json::from_str(text).map_err(|_| wrong("cannot be read"))?;
        // They become parts of names and addresses.
        let mut words = vec![&asked.name];
        if let Some(it) = &asked.application {
            words.extend([&it.secret, &it.scheme, &it.service]);
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

    fn authority(&self) -> String {
        format!("{}-ca", self.name)
    }

    fn certificate(&self) -> String {
        format!("{}-tls", self.name)
    }

    /// The user as nodes mount it.
    fn login(&self) -> String {
        format!("{}-app", self.name)
    }

    fn names(&self) -> Vec<String> {
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

/// The Secrets that the pods of a cluster ask for, by namespace and owner.
#[derive(Default)]
pub(super) struct Secrets(BTreeMap<(String, GroupLabels), DesiredSecrets>);

/// Desired state of the Secrets of one group.
pub(super) struct DesiredSecrets {
    namespace: String,
    of: GroupLabels,
    /// Different pods may ask for different ones: while they are renewed, and after an adoption.
    asked: BTreeSet<String>,
    /// Of the pods that have one.
    addresses: BTreeSet<String>,
    /// When the first of the pods was made.
    oldest: SystemTime,
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
        let wanted = self.0.entry((namespace.clone(), of.clone()));
        let wanted = wanted.or_insert_with(|| DesiredSecrets {
            namespace,
            of,
            asked: BTreeSet::new(),
            addresses: BTreeSet::new(),
            oldest: made,
        });
        wanted.asked.insert(asked.to_owned());
        wanted.addresses.extend(address.map(str::to_owned));
        wanted.oldest = wanted.oldest.min(made);
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
    /// What can be read of what its pods ask for.
    fn asked(&self) -> impl Iterator<Item = Asked> {
        self.asked.iter().filter_map(|it| Asked::parse(it).ok())
    }

    /// The places of all of them.
    pub(super) fn places(&self) -> Vec<Place> {
        let names = self.asked().flat_map(|asked| asked.names());
        let place = |name| (PLURAL.to_owned(), self.namespace.clone(), name);
        names.map(place).collect()
    }

    pub(super) fn digest(&self) -> u128 {
        let (of, asked) = (&self.of, &self.asked);
        let named = self.asked().any(|asked| asked.addresses);
        let addresses = named.then_some((&self.addresses, self.oldest));
        uid(&format!("secrets {of:?} {asked:?} {addresses:?}"))
    }

    /// Creates or updates the Secrets. Returns when a certificate has to be looked at again.
    ///
    /// # Errors
    /// `Precondition` if a Secret of such a name does not belong to the group, or what pods ask for cannot be read;
    /// otherwise as in [`crate::errors`].
    pub(super) async fn make(&self, hand: Hand<'_>) -> Result<Option<Instant>> {
        let all: Result<Vec<Asked>> = self.asked.iter().map(|it| Asked::parse(it)).collect();
        let all = all?;
        let kind = hand.api.kind_of("v1", "Secret").await?;
        let secrets = Writer {
            wanted: self,
            kind: &kind,
            hand,
            now: SystemTime::now(),
        };
        let mut authorities = Vec::new();
        for asked in all.iter().filter(|asked| asked.tls) {
            authorities.push((asked, secrets.authority(asked).await?));
        }
        // Nodes of one group believe one another, whoever is the authority of each.
        let trusted: Vec<&str> = authorities.iter().map(|(_, own)| own.pem()).collect();
        let (mut again, mut bundle) = (Vec::new(), None);
        for (asked, authority) in &authorities {
            let shown = secrets.certificate(asked, authority, &trusted).await?;
            bundle = Some(shown.0);
            again.push(shown.1);
        }
        for asked in &all {
            if let Some(application) = &asked.application {
                let authority = authorities.iter().find(|(of, _)| of.name == asked.name);
                let authority = authority
                    .map(|(_, authority)| authority)
                    .zip(bundle.as_deref());
                again.extend(secrets.access(asked, application, authority).await?);
            }
        }
        let later = |until: SystemTime| {
            let left = until.duration_since(secrets.now).unwrap_or_default();
            Instant::now() + left.max(Duration::from_secs(1))
        };
        Ok(again.into_iter().min().map(later))
    }
}

/// Content of a Secret, as text.
type Data = BTreeMap<String, String>;

struct Writer<'a> {
    wanted: &'a DesiredSecrets,
    kind: &'a Kind,
    hand: Hand<'a>,
    now: SystemTime,
}

impl Writer<'_> {
    /// A Secret of the group. `None` if there is none.
    async fn read(&self, name: &str) -> Result<Option<Secret>> {
        let Hand { api, keys, cache } = self.hand;
        let namespace = &self.wanted.namespace;
        let there = api.get::<Secret>(self.kind, namespace, name).await?;
        if let Some(there) = &there {
            let meta = &there.metadata;
            self.wanted.of.check(self.kind, meta, keys, cache)?;
        }
        Ok(there)
    }

    /// Writes a Secret in place of the one that was read, unless that is as it should be.
    async fn write(
        &self,
        name: &str,
        data: Data,
        annotations: Data,
        there: Option<&Secret>,
    ) -> Result<()> {
        let Hand { api, keys, .. } = self.hand;
        let namespace = &self.wanted.namespace;
        let mut metadata = self.wanted.of.metadata(namespace, name, keys);
        let said = metadata.annotations.get_or_insert_default();
        said.extend(annotations);
        let is_it = |there: &Secret| {
            let own = |key: &String, text: &String, all: &Data| all.get(key) == Some(text);
            let (labelled, noted) = (there.metadata.labels(), there.metadata.annotations());
            texts(there) == data
                && metadata
                    .labels
                    .iter()
                    .flatten()
                    .all(|(key, text)| own(key, text, labelled))
                && said.iter().all(|(key, text)| own(key, text, noted))
        };
        if there.is_some_and(is_it) {
            return Ok(());
        }
        // It may be replaced or changed meanwhile.
        metadata.uid = there.map(|it| it.metadata.uid().to_owned());
        metadata.resource_version = there.map(|it| it.metadata.version().to_owned());
        let mut content: BTreeMap<String, Option<ByteString>> = BTreeMap::new();
        for (key, text) in data {
            content.insert(key, Some(ByteString(text.into_bytes())));
        }
        // In a merge, what is not named stays.
        let former = there.and_then(|it| it.data.as_ref()).into_iter().flatten();
        for (key, _) in former {
            content.entry(key.clone()).or_insert(None);
        }
        let body =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content});
        if there.is_some() {
            api.patch(self.kind, namespace, name, &body).await.map(drop)
        } else {
            api.create(self.kind, namespace, &body).await.map(drop)
        }
    }

    /// The authority of the group, which is made once.
    async fn authority(&self, asked: &Asked) -> Result<Authority> {
        let name = asked.authority();
        if let Some(there) = self.read(&name).await? {
            let data = texts(&there);
            let part = |key: &str| data.get(key).map_or("", String::as_str);
            let authority = Authority::read(part("ca.crt"), part("ca.key")).ok_or_else(|| {
                let message = format!("Secret {name:?}: its ca.crt and ca.key cannot be used");
                Error::new(Reason::Precondition, message)
            })?;
            self.write(&name, data, Data::new(), Some(&there)).await?;
            return Ok(authority);
        }
        let GroupLabels { cluster, group, .. } = &self.wanted.of;
        let (authority, key) = Authority::new(&format!("{cluster} {group}"), self.now)?;
        let data = Data::from([
            ("ca.crt".to_owned(), authority.pem().to_owned()),
            ("ca.key".to_owned(), key),
        ]);
        self.write(&name, data, Data::new(), None).await?;
        Ok(authority)
    }

    fn oldest(&self, asked: &Asked) -> Option<SystemTime> {
        asked.addresses.then_some(self.wanted.oldest)
    }

    /// Has the nodes show a valid certificate. Returns whom they trust, and when to look again.
    async fn certificate(
        &self,
        asked: &Asked,
        authority: &Authority,
        trusted: &[&str],
    ) -> Result<(String, SystemTime)> {
        let mut names = service_names(asked, &self.wanted.namespace);
        if asked.addresses {
            names.extend(self.wanted.addresses.iter().cloned());
        }
        let purpose = Purpose {
            names,
            server: true,
            oldest: self.oldest(asked),
        };
        let name = asked.certificate();
        let there = self.read(&name).await?;
        let before = there.as_ref().map(texts).unwrap_or_default();
        let own = there.as_ref().map(shown).unwrap_or_default();
        let (shown, until) = authority.next(&purpose, trusted, &own, self.now)?;
        let mut data = Data::new();
        if asked.addresses {
            // Those that the certificate was issued for, which may be the former one.
            let kept = before
                .get("names")
                .filter(|_| shown.certificate == own.certificate);
            let names = kept
                .cloned()
                .unwrap_or_else(|| purpose.names.join("\n") + "\n");
            data.insert("names".to_owned(), names);
        }
        let bundle = shown.trusted.clone();
        let annotations = pair(shown, &mut data);
        self.write(&name, data, annotations, there.as_ref()).await?;
        Ok((bundle, until))
    }

    /// Tells nodes and applications who comes, and applications where to. What somebody writes as the password stays.
    /// Returns when to look again.
    async fn access(
        &self,
        asked: &Asked,
        application: &Application,
        authority: Option<(&Authority, &str)>,
    ) -> Result<Option<SystemTime>> {
        // Nodes mount a Secret whose name no other group can have. That for applications may be somebody else's.
        let there = self.read(&application.secret).await;
        let before = there.as_ref().ok().and_then(Option::as_ref).map(texts);
        let before = before.unwrap_or_default();
        let mut password = None;
        if let Some(user) = &application.user {
            let name = asked.login();
            let own = self.read(&name).await?;
            let known = own.as_ref().map(texts).unwrap_or_default();
            let mut words = [&before, &known]
                .into_iter()
                .filter_map(|it| it.get("password"));
            let word = words
                .find(|it| !it.is_empty())
                .cloned()
                .unwrap_or_else(new_password);
            let mut data = Data::from([
                ("user".to_owned(), user.clone()),
                ("password".to_owned(), word.clone()),
            ]);
            data.extend(
                application
                    .database
                    .iter()
                    .map(|name| ("dbname".to_owned(), name.clone())),
            );
            self.write(&name, data, Data::new(), own.as_ref()).await?;
            password = Some(word);
        }
        let there = there?;
        let mut data = application.data(&self.wanted.namespace, password);
        let Some((authority, trusted)) = authority else {
            let name = &application.secret;
            self.write(name, data, Data::new(), there.as_ref()).await?;
            return Ok(None);
        };
        let mut annotations = Data::new();
        let mut again = None;
        if application.certificate {
            let purpose = Purpose {
                names: vec!["application".to_owned()],
                server: false,
                oldest: self.oldest(asked),
            };
            let own = there.as_ref().map(shown).unwrap_or_default();
            let (shown, until) = authority.next(&purpose, &[authority.pem()], &own, self.now)?;
            annotations = pair(shown, &mut data);
            again = Some(until);
        }
        data.insert("ca.crt".to_owned(), trusted.to_owned());
        let name = &application.secret;
        self.write(name, data, annotations, there.as_ref()).await?;
        Ok(again)
    }
}

impl Application {
    /// Where and as whom it comes.
    fn data(&self, namespace: &str, password: Option<String>) -> Data {
        let (host, port) = (format!("{}.{namespace}.svc", self.service), self.port);
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

/// Adds a pair and whom to trust to the content of a Secret. Returns what is said of them.
fn pair(shown: Shown, data: &mut Data) -> Data {
    data.extend([
        ("ca.crt".to_owned(), shown.trusted),
        ("tls.crt".to_owned(), shown.certificate),
        ("tls.key".to_owned(), shown.key),
    ]);
    Data::from([
        (labels::ONCE.to_owned(), shown.of),
        (labels::RENEW_AFTER.to_owned(), seconds(shown.renew_after)),
        (
            labels::TRUSTED_SINCE.to_owned(),
            seconds(shown.trusted_since),
        ),
    ])
}

/// Names under which clients and nodes of the group reach its nodes.
fn service_names(asked: &Asked, namespace: &str) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let service = asked
        .application
        .as_ref()
        .map_or(&asked.name, |it| &it.service);
    for service in [service, &format!("{service}-read")] {
        names.push(service.clone());
        for end in ["", ".svc", ".svc.cluster.local"] {
            names.push(format!("{service}.{namespace}{end}"));
        }
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

    fn names(asked: &[&str]) -> Vec<String> {
        let places = wanted(asked).places();
        places.into_iter().map(|(_, _, name)| name).collect()
    }

    const APPLICATION: &str = r#"{"secret": "c-db-app", "scheme": "redis", "service": "c-db", "port": 6379, "user": "app"}"#;

    #[test]
    fn a_pod_gets_the_secrets_that_it_asks_for() {
        let all = format!(r#"{{"name": "x", "tls": true, "application": {APPLICATION}}}"#);
        let access = format!(r#"{{"name": "x", "application": {APPLICATION}}}"#);
        let open = access.replace(r#", "user": "app""#, "");
        for (asked, expected) in [
            (all.as_str(), &["x-ca", "x-tls", "c-db-app", "x-app"][..]),
            (&access, &["c-db-app", "x-app"]),
            (&open, &["c-db-app"]),
            (r#"{"name": "x"}"#, &[]),
        ] {
            assert_eq!(names(&[asked]), expected);
        }
        let adopted = all.replace("\"x\"", "\"y\"");
        assert_eq!(names(&[&all, &adopted]).len(), 8);
    }

    #[test]
    fn what_cannot_be_part_of_a_name_or_an_address_is_refused_and_not_repeated() {
        let odd = format!(r#"{{"name": "x", "application": {APPLICATION}}}"#);
        let odd = odd.replace("\"app\"", "\"hunter2@x\"");
        for asked in [
            "",
            "[]",
            r#"{"name": ""}"#,
            r#"{"name": "a/b"}"#,
            r#"{"name": "a", "other": 1}"#,
            &odd,
        ] {
            let error = Asked::parse(asked).unwrap_err();
            assert_eq!(error.reason(), Reason::Precondition);
            assert!(error.message().contains(labels::SECRETS), "{error}");
            assert!(!error.message().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_certificate_is_good_for_the_services_of_its_group_and_for_nobody_elses() {
        let all = format!(r#"{{"name": "x", "tls": true, "application": {APPLICATION}}}"#);
        let names = service_names(&Asked::parse(&all).unwrap(), "prod");
        for name in [
            "localhost",
            "127.0.0.1",
            "c-db",
            "c-db.prod.svc",
            "c-db-read.prod.svc.cluster.local",
        ] {
            assert!(names.iter().any(|it| it == name), "{name} {names:?}");
        }
        assert_eq!(names.len(), 10);
    }

    #[test]
    fn a_password_of_a_person_may_have_any_characters() {
        let application: Application = serde_json::from_str(APPLICATION).unwrap();
        let data = application.data("prod", Some("a:b@c/ü".to_owned()));
        assert_eq!(data["password"], "a:b@c/ü");
        assert_eq!(
            data["uri"],
            "redis://app:a%3Ab%40c%2F%C3%BC@c-db.prod.svc:6379"
        );
    }
}
