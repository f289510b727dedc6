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
    certificates::{Authorities, Authority, Purpose, Shown},
    shared::{GroupLabels, Place},
};
use crate::{
    client::{Api, Kind, Meta as _},
    group::{Member, uid},
    labels::{self, LabelKeys},
    watch::NodeCache,
};

const PLURAL: &str = "secrets";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// When an authority, which is valid for ten years, is replaced.
const AUTHORITY_RENEWED: Duration = Duration::from_secs(8 * 365 * 24 * 3600);

/// What a pod asks for, in the annotation [`labels::SECRETS`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// Begins the names of what nodes mount: `NAME-tls` and `NAME-app`; and `NAME-ca`.
    name: String,
    /// Name of the service that leads to the active nodes.
    service: String,
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
    /// Different pods may ask for different ones: while they are renewed, and after an adoption. With when the first of those
    /// was made.
    asked: BTreeMap<String, SystemTime>,
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
            asked: BTreeMap::new(),
            addresses: BTreeSet::new(),
            oldest: made,
        });
        let since = wanted.asked.entry(asked.to_owned()).or_insert(made);
        *since = made.min(*since);
        wanted.addresses.extend(address.map(str::to_owned));
        wanted.oldest = wanted.oldest.min(made);
    }

    pub(super) fn wanted(self) -> impl Iterator<Item = DesiredSecrets> {
        self.0.into_values()
    }
}

/// What the nodes of a group show.
struct NodesShow {
    trusted: String,
    until: SystemTime,
    /// Whether it is of the current authority.
    is_through: bool,
}

/// A writer of Secrets.
#[derive(Clone, Copy)]
pub(super) struct Hand<'a> {
    pub(super) api: &'a Api,
    pub(super) keys: &'a LabelKeys,
    pub(super) cache: &'a NodeCache,
}

impl DesiredSecrets {
    /// What its pods ask for, one for each name: what any of them needs; and where they differ, what those of before do,
    /// until all agree.
    fn asked(&self) -> Vec<Asked> {
        let mut all: Vec<(SystemTime, Asked)> = Vec::new();
        for (text, since) in &self.asked {
            all.extend(Asked::parse(text).ok().map(|asked| (*since, asked)));
        }
        all.sort_by_key(|(since, _)| *since);
        let mut merged: Vec<Asked> = Vec::new();
        for (_, asked) in all {
            let Some(before) = merged.iter_mut().find(|it| it.name == asked.name) else {
                merged.push(asked);
                continue;
            };
            before.tls |= asked.tls;
            before.addresses |= asked.addresses;
            before.application = before.application.take().or(asked.application);
        }
        merged
    }

    /// The places of all of them.
    pub(super) fn places(&self) -> Vec<Place> {
        let names: BTreeSet<String> = self.asked().iter().flat_map(Asked::names).collect();
        let place = |name| (PLURAL.to_owned(), self.namespace.clone(), name);
        names.into_iter().map(place).collect()
    }

    pub(super) fn digest(&self) -> u128 {
        let (of, namespace, asked) = (&self.of, &self.namespace, self.asked());
        let named = asked.iter().any(|asked| asked.addresses);
        let addresses = named.then_some((&self.addresses, self.oldest));
        uid(&format!(
            "secrets {namespace} {of:?} {asked:?} {addresses:?}"
        ))
    }

    /// Creates or updates the Secrets. Returns when a certificate has to be looked at again.
    ///
    /// # Errors
    /// `Precondition` if a Secret of such a name does not belong to the group, or what pods ask for cannot be read;
    /// otherwise as in [`crate::errors`].
    pub(super) async fn make(&self, hand: Hand<'_>) -> Result<Option<Instant>> {
        let all = self.asked();
        let kind = hand.api.kind_of("v1", "Secret").await?;
        let secrets = Writer {
            wanted: self,
            kind: &kind,
            hand,
            now: SystemTime::now(),
        };
        let mut again = secrets.make(&all).await?;
        // What cannot be read holds up nothing else.
        for text in self.asked.keys() {
            Asked::parse(text)?;
        }
        // A clock that is set meanwhile is found out.
        if let Some(until) = &mut again {
            *until = (*until).min(secrets.now + DAY);
        }
        let later = |until: SystemTime| {
            let left = until.duration_since(secrets.now).unwrap_or_default();
            Instant::now() + left.max(Duration::from_secs(1))
        };
        Ok(again.map(later))
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
    /// Returns when to look again.
    async fn make(&self, all: &[Asked]) -> Result<Option<SystemTime>> {
        let mut authorities = Vec::new();
        // After an adoption nodes ask for another name, and go on with the authority that the others know.
        let mut elder = None;
        for asked in all.iter().filter(|asked| asked.tls) {
            let (own, content) = self.authorities(asked, elder.as_ref()).await?;
            elder.get_or_insert(content);
            authorities.push((asked, own));
        }
        // Nodes of one group believe one another, whoever is the authority of each.
        let mut trusted: Vec<&str> = Vec::new();
        for pem in authorities.iter().flat_map(|(_, own)| own.pems()) {
            if !trusted.contains(&pem) {
                trusted.push(pem);
            }
        }
        let (mut again, mut bundle, mut through) = (Vec::new(), None, Vec::new());
        for (asked, own) in &authorities {
            let shown = self.certificate(asked, own, &trusted).await?;
            bundle = Some(shown.trusted);
            again.push(shown.until);
            through.extend((shown.is_through && own.former.is_some()).then_some(*asked));
        }
        let logins = self.logins(all).await?;
        let mut seen = BTreeSet::new();
        for asked in all {
            let application = asked.application.as_ref();
            let Some(application) = application.filter(|it| seen.insert(&it.secret)) else {
                continue;
            };
            let own = authorities.iter().find(|(of, _)| of.name == asked.name);
            let own = own.map(|(_, own)| own).zip(bundle.as_deref());
            let password = self.log_in(all, application, &logins).await?;
            again.extend(self.access(asked, application, own, password).await?);
        }
        for asked in through {
            self.forget_former(asked).await?;
        }
        Ok(again.into_iter().min())
    }

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
            known(texts(there)) == data
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
        // In a merge, what is not named stays: what a person has added.
        for key in known(there.map(texts).unwrap_or_default()).into_keys() {
            content.entry(key).or_insert(None);
        }
        let body =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": content});
        if there.is_some() {
            api.patch(self.kind, namespace, name, &body).await.map(drop)
        } else {
            api.create(self.kind, namespace, &body).await.map(drop)
        }
    }

    /// The authority of the group, which is made once, and again when a person asks for that or when it is old; and the
    /// content of its Secret, which is that of `elder` if there is one and it is made first.
    async fn authorities(
        &self,
        asked: &Asked,
        elder: Option<&Data>,
    ) -> Result<(Authorities, Data)> {
        let name = asked.authority();
        let there = self.read(&name).await?;
        let before = match &there {
            Some(there) => texts(there),
            None => elder.cloned().unwrap_or_default(),
        };
        let note = |key: &str| {
            let all = there.as_ref().map(|it| it.metadata.annotations());
            all.and_then(|all| all.get(key))
                .cloned()
                .unwrap_or_default()
        };
        let current = authority_in(&before, "ca");
        if there.is_some() && current.is_none() {
            let message = format!("Secret {name:?}: its ca.crt and ca.key cannot be used");
            return Err(Error::new(Reason::Precondition, message));
        }
        let former = authority_in(&before, "former");
        let asks = note(labels::RENEW);
        let is_asked = !asks.is_empty() && asks != note(labels::RENEWED);
        let until = note(labels::RENEW_AFTER);
        let is_old = !until.is_empty() && self.now >= time(&until);
        let until = (
            labels::RENEW_AFTER.to_owned(),
            seconds(self.now + AUTHORITY_RENEWED),
        );
        if let Some(current) = current
            // One change after the other: nodes may know neither of two new ones.
            && (former.is_some() || !is_asked && !is_old)
        {
            let annotations = if there.is_some() {
                Data::new()
            } else {
                Data::from([until])
            };
            let data = known(before);
            self.write(&name, data.clone(), annotations, there.as_ref())
                .await?;
            return Ok((Authorities { current, former }, data));
        }
        let GroupLabels { cluster, group, .. } = &self.wanted.of;
        let (current, key) = Authority::new(&format!("{cluster} {group}"), self.now)?;
        let mut data = Data::from([
            ("ca.crt".to_owned(), current.pem().to_owned()),
            ("ca.key".to_owned(), key),
        ]);
        // It still issues for servers that do not know the other one yet.
        for (from, to) in [("ca.crt", "former.crt"), ("ca.key", "former.key")] {
            data.extend(before.get(from).map(|text| (to.to_owned(), text.clone())));
        }
        let annotations = Data::from([(labels::RENEWED.to_owned(), asks), until]);
        self.write(&name, data.clone(), annotations, there.as_ref())
            .await?;
        let former = authority_in(&data, "former");
        Ok((Authorities { current, former }, data))
    }

    /// The authority of before has nothing to issue any more.
    async fn forget_former(&self, asked: &Asked) -> Result<()> {
        let name = asked.authority();
        let there = self.read(&name).await?;
        let mut data = known(there.as_ref().map(texts).unwrap_or_default());
        data.retain(|key, _| !key.starts_with("former."));
        self.write(&name, data, Data::new(), there.as_ref()).await
    }

    fn oldest(&self, asked: &Asked) -> Option<SystemTime> {
        asked.addresses.then_some(self.wanted.oldest)
    }

    /// Has the nodes show a valid certificate.
    async fn certificate(
        &self,
        asked: &Asked,
        authorities: &Authorities,
        trusted: &[&str],
    ) -> Result<NodesShow> {
        let mut names = service_names(&asked.service, &self.wanted.namespace);
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
        let (shown, until) = authorities.next(&purpose, trusted, &own, self.now)?;
        let mut data = Data::new();
        if asked.addresses {
            // Those that the certificate was issued for, which may be the former one.
            let kept = before.get("names");
            let kept = kept.filter(|_| shown.certificate == own.certificate);
            let names = kept.cloned();
            let names = names.unwrap_or_else(|| purpose.names.join("\n") + "\n");
            data.insert("names".to_owned(), names);
        }
        let is_through = authorities.is_through(&purpose, &shown);
        let trusted = shown.trusted.clone();
        let annotations = pair(shown, &mut data);
        self.write(&name, data, annotations, there.as_ref()).await?;
        Ok(NodesShow {
            trusted,
            until,
            is_through,
        })
    }

    /// The Secrets from which nodes of each name know who an application is.
    async fn logins(&self, all: &[Asked]) -> Result<BTreeMap<String, Option<Secret>>> {
        let mut logins = BTreeMap::new();
        for asked in all {
            if asked
                .application
                .as_ref()
                .is_some_and(|it| it.user.is_some())
            {
                logins.insert(asked.login(), self.read(&asked.login()).await?);
            }
        }
        Ok(logins)
    }

    /// Tells nodes who comes. Returns the password: that which a person has written for applications, else that which nodes
    /// have, else a new one.
    async fn log_in(
        &self,
        all: &[Asked],
        application: &Application,
        logins: &BTreeMap<String, Option<Secret>>,
    ) -> Result<Option<String>> {
        let Some(user) = &application.user else {
            return Ok(None);
        };
        // That for applications may be somebody else's, or be left of a cluster of the same name.
        let there = self.read(&application.secret).await.ok().flatten();
        let owner =
            |it: &Secret| it.metadata.labels().get(labels::OWNER) == Some(&self.wanted.of.owner);
        let words = there
            .filter(owner)
            .into_iter()
            .chain(logins.values().flatten().cloned());
        let mut words = words.filter_map(|it| texts(&it).remove("password"));
        let password = words.find(|it| !it.is_empty()).unwrap_or_else(new_password);
        for asked in all {
            let name = asked.login();
            let Some(own) = logins.get(&name) else {
                continue;
            };
            let mut data = Data::from([
                ("user".to_owned(), user.clone()),
                ("password".to_owned(), password.clone()),
            ]);
            let database = application.database.iter();
            data.extend(database.map(|name| ("dbname".to_owned(), name.clone())));
            self.write(&name, data, Data::new(), own.as_ref()).await?;
        }
        Ok(Some(password))
    }

    /// Tells applications where to. Returns when to look again.
    async fn access(
        &self,
        asked: &Asked,
        application: &Application,
        authorities: Option<(&Authorities, &str)>,
        password: Option<String>,
    ) -> Result<Option<SystemTime>> {
        let name = &application.secret;
        let there = self.read(name).await?;
        let host = format!("{}.{}.svc", asked.service, self.wanted.namespace);
        let mut data = application.data(host, password);
        let (mut annotations, mut again) = (Data::new(), None);
        if let Some((authorities, trusted)) = authorities {
            if application.certificate {
                let purpose = Purpose {
                    names: vec!["application".to_owned()],
                    server: false,
                    oldest: self.oldest(asked),
                };
                let own = there.as_ref().map(shown).unwrap_or_default();
                let pems: Vec<&str> = authorities.pems().collect();
                let (shown, until) = authorities.next(&purpose, &pems, &own, self.now)?;
                annotations = pair(shown, &mut data);
                again = Some(until);
            }
            data.insert("ca.crt".to_owned(), trusted.to_owned());
        }
        self.write(name, data, annotations, there.as_ref()).await?;
        Ok(again)
    }
}

impl Application {
    /// Where and as whom it comes.
    fn data(&self, host: String, password: Option<String>) -> Data {
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
fn service_names(service: &str, namespace: &str) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    for service in [service, &format!("{service}-read")] {
        names.push(service.to_owned());
        for end in ["", ".svc", ".svc.cluster.local"] {
            names.push(format!("{service}.{namespace}{end}"));
        }
    }
    names
}

/// What the platform writes. All else in a Secret is of somebody who has added it.
fn known(mut data: Data) -> Data {
    let keys = [
        "ca.crt",
        "ca.key",
        "dbname",
        "former.crt",
        "former.key",
        "host",
        "names",
        "password",
        "port",
        "tls.crt",
        "tls.key",
        "uri",
        "user",
    ];
    data.retain(|key, _| keys.contains(&key.as_str()));
    data
}

fn texts(secret: &Secret) -> Data {
    let data = secret.data.iter().flatten();
    data.filter_map(|(key, ByteString(bytes))| {
        let text = std::str::from_utf8(bytes).ok()?;
        Some((key.clone(), text.to_owned()))
    })
    .collect()
}

/// An authority in the Secret of one, under this name. `None` if there is none that can be used.
fn authority_in(data: &Data, name: &str) -> Option<Authority> {
    let part = |end: &str| data.get(&format!("{name}.{end}")).map(String::as_str);
    Authority::read(part("crt")?, part("key")?)
}

fn shown(secret: &Secret) -> Shown {
    let mut data = texts(secret);
    let mut part = |key: &str| data.remove(key).unwrap_or_default();
    let note = |key: &str| {
        let all = secret.metadata.annotations();
        all.get(key).cloned().unwrap_or_default()
    };
    Shown {
        trusted: part("ca.crt"),
        certificate: part("tls.crt"),
        key: part("tls.key"),
        of: note(labels::ONCE),
        renew_after: time(&note(labels::RENEW_AFTER)),
        trusted_since: time(&note(labels::TRUSTED_SINCE)),
    }
}

/// Seconds since 1970, or then.
fn time(seconds: &str) -> SystemTime {
    let seconds: u32 = seconds.parse().unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(u64::from(seconds))
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

    const APPLICATION: &str =
        r#"{"secret": "c-db-app", "scheme": "redis", "port": 6379, "user": "app"}"#;

    fn asks(name: &str, tls: bool, application: &str) -> String {
        format!(
            r#"{{"name": "{name}", "service": "c-db", "tls": {tls}, "application": {application}}}"#
        )
    }

    #[test]
    fn a_pod_gets_the_secrets_that_it_asks_for() {
        let open = APPLICATION.replace(r#", "user": "app""#, "");
        for (asked, expected) in [
            (
                asks("x", true, APPLICATION),
                &["c-db-app", "x-app", "x-ca", "x-tls"][..],
            ),
            (asks("x", false, APPLICATION), &["c-db-app", "x-app"]),
            (asks("x", false, &open), &["c-db-app"]),
            (asks("x", false, "null"), &[]),
        ] {
            assert_eq!(names(&[&asked]), expected);
        }
        // After an adoption.
        let both = ["x", "y"].map(|name| asks(name, true, APPLICATION));
        assert_eq!(names(&[&both[0], &both[1]]).len(), 7);
    }

    #[test]
    fn while_pods_are_renewed_each_has_what_it_mounts_and_nothing_goes_back_and_forth() {
        let other = APPLICATION.replace("\"app\"}", "\"shop\"}");
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let mut secrets = Secrets::default();
        for (asked, made) in [
            (asks("x", true, &other), 9),
            (asks("x", false, APPLICATION), 7),
            (asks("x", true, &other), 8),
        ] {
            let of = GroupLabels::of("o", "c", "db");
            secrets.add(&asked, of, &member(), (None, at(made)));
        }
        let asked = secrets.wanted().next().unwrap().asked();
        let [asked] = &asked[..] else {
            panic!("{asked:?}")
        };
        assert!(asked.tls);
        let user = asked.application.as_ref().unwrap().user.as_deref();
        assert_eq!(user, Some("app"), "that of the pods of before");
    }

    #[test]
    fn what_cannot_be_part_of_a_name_or_an_address_is_refused_and_not_repeated() {
        let odd = asks(
            "x",
            false,
            &APPLICATION.replace("\"app\"}", "\"hunter2@x\"}"),
        );
        for asked in [
            "",
            "[]",
            r#"{"name": "", "service": "a"}"#,
            r#"{"name": "a/b", "service": "a"}"#,
            r#"{"name": "a", "service": "a", "other": 1}"#,
            &odd,
        ] {
            let error = Asked::parse(asked).unwrap_err();
            assert_eq!(error.reason(), Reason::Precondition);
            assert!(error.message().contains(labels::SECRETS), "{error}");
            assert!(!error.message().contains("hunter2"), "{error}");
        }
        let good = asks("x", false, APPLICATION);
        assert_eq!(wanted(&["", &good]).asked().len(), 1, "it holds up nobody");
    }

    #[test]
    fn a_certificate_is_good_for_the_services_of_its_group_and_for_nobody_elses() {
        let names = service_names("c-db", "prod");
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
        let data = application.data("c-db.prod.svc".to_owned(), Some("a:b@c/ü".to_owned()));
        assert_eq!(data["password"], "a:b@c/ü");
        assert_eq!(
            data["uri"],
            "redis://app:a%3Ab%40c%2F%C3%BC@c-db.prod.svc:6379"
        );
    }
}
