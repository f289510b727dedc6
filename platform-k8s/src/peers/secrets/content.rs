//! Content and annotations of the Secrets of a group.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use uuid::Uuid;

use crate::{
    client::Meta as _,
    labels,
    peers::certificates::{Authority, Shown},
};

/// Content of a Secret, as text.
pub(super) type Data = BTreeMap<String, String>;

/// Adds a pair and whom to trust to the content of a Secret. Returns what is said of them.
pub(super) fn pair(shown: Shown, data: &mut Data) -> Data {
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
pub(super) fn service_names(service: &str, namespace: &str) -> Vec<String> {
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
pub(super) fn known(mut data: Data) -> Data {
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

pub(super) fn texts(secret: &Secret) -> Data {
    let data = secret.data.iter().flatten();
    data.filter_map(|(key, ByteString(bytes))| {
        let text = std::str::from_utf8(bytes).ok()?;
        Some((key.clone(), text.to_owned()))
    })
    .collect()
}

/// An authority in the Secret of one, under this name. `None` if there is none that can be used.
pub(super) fn authority_in(data: &Data, name: &str) -> Option<Authority> {
    let part = |end: &str| data.get(&format!("{name}.{end}")).map(String::as_str);
    Authority::read(part("crt")?, part("key")?)
}

pub(super) fn shown(secret: &Secret) -> Shown {
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
pub(super) fn time(seconds: &str) -> SystemTime {
    let seconds: u32 = seconds.parse().unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(u64::from(seconds))
}

pub(super) fn seconds(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().to_string()
}

/// 122 random bits.
pub(super) fn new_password() -> String {
    Uuid::new_v4().simple().to_string()
}
