//! The Secrets of a group: its authority, the certificate that its nodes show, and the access of an application.

mod asked;
mod content;
mod writer;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use drover_core::Result;
use tokio::time::Instant;

use super::shared::{GroupLabels, Place};
use crate::group::{Member, uid};

use asked::Asked;
use writer::Writer;

pub(super) use writer::Hand;

const PLURAL: &str = "secrets";
const DAY: Duration = Duration::from_secs(24 * 3600);

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

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use drover_core::Reason;

    use super::{asked::Application, content::service_names, *};
    use crate::labels;

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
