//! Writes the Secrets of a group, where they are not as they should be.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use drover_core::{Error, Reason, Result};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::json;

use super::{
    DesiredSecrets,
    asked::{Application, Asked},
    content::{
        Data, authority_in, known, new_password, pair, seconds, service_names, shown, texts, time,
    },
};
use crate::{
    client::{Api, Kind, Meta as _},
    labels::{self, LabelKeys},
    peers::{
        certificates::{AUTHORITY_RENEWED, Authorities, Authority, Purpose},
        shared::GroupLabels,
    },
    watch::NodeCache,
};

/// A writer of Secrets.
#[derive(Clone, Copy)]
pub(in crate::peers) struct Hand<'a> {
    pub(in crate::peers) api: &'a Api,
    pub(in crate::peers) keys: &'a LabelKeys,
    pub(in crate::peers) cache: &'a NodeCache,
}

/// What the nodes of a group show.
struct NodesShow {
    trusted: String,
    until: SystemTime,
    /// Whether it is of the current authority.
    is_through: bool,
}

pub(super) struct Writer<'a> {
    pub(super) wanted: &'a DesiredSecrets,
    pub(super) kind: &'a Kind,
    pub(super) hand: Hand<'a>,
    pub(super) now: SystemTime,
}

impl Writer<'_> {
    /// Returns when to look again.
    pub(super) async fn make(&self, all: &[Asked]) -> Result<Option<SystemTime>> {
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
