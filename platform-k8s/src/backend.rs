//! Which platform this is. Nodes are where a platform's records say that they are: the same platform over fewer namespaces
//! would take the nodes in the rest for gone, and one over other namespaces would be taken for it.
//!
//! With a list of namespaces, each has a ConfigMap with the uid and the whole list. So the uid stays when namespaces come, and
//! when one of them is made anew.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Class, Error, Reason, Result};
use drover_platform::identity::hex;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    client::{Api, Kind, Meta as _},
    settings::Settings,
};

/// Name of the ConfigMap.
const RECORD: &str = "drover-platform";

/// The backend with its scope.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) uid: String,
    pub(crate) scope: BTreeMap<String, String>,
    pub(crate) warnings: Vec<String>,
}

/// What the ConfigMap of a namespace says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    uid: String,
    namespaces: BTreeSet<String>,
}

/// A namespace of the list.
#[derive(Debug)]
struct Listed {
    name: String,
    /// None if it does not exist.
    uid: Option<String>,
    record: Option<Record>,
    /// Its record may not be read.
    is_closed: bool,
}

/// Finds out which platform this is, and has each namespace say so.
///
/// # Errors
/// `Precondition` if a namespace does not exist and never did, if some are those of another platform, or if one that was
/// served before still exists and is not in the list.
pub(crate) async fn identify(api: &Api, settings: &Settings) -> Result<Backend> {
    let kinds = api.kinds().await?;
    let kind = kinds.named("namespaces")?;
    let mut scope = BTreeMap::new();
    if !settings.selector.is_empty() {
        scope.insert("selector".to_owned(), settings.selector.clone());
    }
    if settings.namespaces.is_empty() {
        let name = "kube-system";
        let meta = api.get_meta(&kind, "", name).await?;
        let uid = meta.ok_or_else(|| missing(name))?.uid().to_owned();
        scope.insert("namespaces".to_owned(), "*".to_owned());
        return Ok(Backend {
            uid: hashed([(name, &*uid)], true),
            scope,
            warnings: Vec::new(),
        });
    }
    let mut names = settings.namespaces.clone();
    names.sort_unstable();
    scope.insert("namespaces".to_owned(), names.join(","));
    let records = kinds.named("configmaps")?;
    let listed = list(api, &kind, &records, names).await?;
    let record = record_of(&listed)?;
    for name in former(&listed) {
        match api.get_meta(&kind, "", &name).await {
            Ok(None) => {}
            Err(error) if error.class() == Class::Unknown => return Err(error),
            Ok(Some(_)) | Err(_) => return Err(unserved(&name, &listed)),
        }
    }
    let warnings = keep(api, &records, &listed, &record).await?;
    Ok(Backend {
        uid: record.uid,
        scope,
        warnings,
    })
}

/// Reads what is known of each namespace.
async fn list(
    api: &Api,
    namespaces: &Kind,
    records: &Kind,
    names: Vec<String>,
) -> Result<Vec<Listed>> {
    let mut listed = Vec::with_capacity(names.len());
    for name in names {
        let meta = api.get_meta(namespaces, "", &name).await?;
        let uid = meta.map(|meta| meta.uid().to_owned());
        let record = match &uid {
            Some(uid) => read(api, records, &name, uid).await,
            None => Ok(None),
        };
        let is_closed = record.as_ref().is_err_and(crate::errors::is_forbidden);
        let record = if is_closed { None } else { record? };
        listed.push(Listed {
            name,
            uid,
            record,
            is_closed,
        });
    }
    Ok(listed)
}

/// Has each namespace say what is served. Returns warnings.
async fn keep(
    api: &Api,
    records: &Kind,
    listed: &[Listed],
    record: &Record,
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for one in listed {
        let Some(uid) = &one.uid else {
            let gone = format!("namespace {} is gone, with what was in it", one.name);
            warnings.push(gone);
            continue;
        };
        if one.is_closed {
            warnings.push(unkept(&one.name));
            continue;
        }
        if one.record.as_ref() == Some(record) {
            continue;
        }
        match write(api, records, &one.name, uid, record).await {
            // No right, a quota, a namespace that is about to go. A record that named fewer would let the rest be forgotten.
            Err(error) if one.record.is_none() && error.class() != Class::Unknown => {
                warnings.push(unkept(&one.name));
            }
            written => written?,
        }
    }
    Ok(warnings)
}

/// A uid by names and uids of namespaces. Orchestrators have it in their records, so it is not made in another way.
fn hashed<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>, all: bool) -> String {
    let mut hash = Sha256::new();
    for (name, uid) in parts {
        for part in [name, uid] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        hash.update([u8::from(all)]);
    }
    format!("kubernetes:{}", hex(&hash.finalize()[..16]))
}

/// What each namespace is to say: the uid that they have, or one of the namespaces that are there first.
fn record_of(listed: &[Listed]) -> Result<Record> {
    let mut uid: Option<(&str, &str)> = None;
    for one in listed {
        let Some(record) = &one.record else { continue };
        match uid {
            Some((uid, _)) if uid == record.uid => {}
            Some((_, other)) => {
                let message = format!(
                    "namespaces {other} and {} are those of two platforms, as their ConfigMaps {RECORD} say: one platform \
                     for each; or delete that ConfigMap in the one that has no nodes",
                    one.name
                );
                return Err(Error::new(Reason::Precondition, message));
            }
            None => uid = Some((&record.uid, &one.name)),
        }
    }
    let known = former_and_listed(listed);
    let mut parts = Vec::with_capacity(listed.len());
    for one in listed {
        match &one.uid {
            Some(uid) => parts.push((&*one.name, &**uid)),
            None if known.contains(&one.name) => {}
            None => return Err(missing(&one.name)),
        }
    }
    Ok(Record {
        uid: uid.map_or_else(|| hashed(parts, false), |(uid, _)| uid.to_owned()),
        namespaces: listed.iter().map(|one| one.name.clone()).collect(),
    })
}

/// All namespaces that the records name.
fn former_and_listed(listed: &[Listed]) -> BTreeSet<String> {
    let records = listed.iter().filter_map(|one| one.record.as_ref());
    records
        .flat_map(|record| record.namespaces.iter().cloned())
        .collect()
}

/// Namespaces that were served before, and are not in the list.
fn former(listed: &[Listed]) -> Vec<String> {
    let is_listed = |name: &String| listed.iter().any(|one| one.name == *name);
    let known = former_and_listed(listed).into_iter();
    known.filter(|name| !is_listed(name)).collect()
}

fn missing(name: &str) -> Error {
    let message = format!("there is no namespace {name:?}");
    Error::new(Reason::Precondition, message).with_resource("namespace", name)
}

fn unkept(name: &str) -> String {
    format!(
        "the ConfigMap {RECORD} of namespace {name} may not be read or written: over another list of namespaces this is another platform \
         (drover rebind)"
    )
}

fn unserved(name: &str, listed: &[Listed]) -> Error {
    let left: Vec<&str> = listed.iter().map(|one| &*one.name).collect();
    let left = left.join(",");
    let commands: Vec<String> = listed
        .iter()
        .filter(|one| one.uid.is_some())
        .map(|one| {
            format!(
                "kubectl -n {} patch configmap {RECORD} --type merge -p '{{\"data\":{{\"namespaces\":\"{left}\"}}}}'",
                one.name
            )
        })
        .collect();
    // With the record that it has it would be this same platform to whoever serves it alone.
    let message = format!(
        "namespace {name} was served, and its nodes would be taken for gone: serve it, too; or once it has none any more: \
         kubectl -n {name} delete configmap {RECORD}; {}",
        commands.join("; ")
    );
    Error::new(Reason::Precondition, message).with_resource("namespace", name)
}

async fn read(
    api: &Api,
    kind: &Kind,
    namespace: &str,
    namespace_uid: &str,
) -> Result<Option<Record>> {
    let there = api.get::<ConfigMap>(kind, namespace, RECORD).await?;
    Ok(there.and_then(|there| said(there.data.unwrap_or_default(), namespace_uid)))
}

/// What a ConfigMap says, if it was written for this namespace: it may have been copied from another cluster.
fn said(mut data: BTreeMap<String, String>, namespace_uid: &str) -> Option<Record> {
    if data.get("namespaceUid")? != namespace_uid {
        return None;
    }
    let namespaces = data.remove("namespaces")?;
    let names = namespaces.split(',').map(str::trim);
    Some(Record {
        uid: data.remove("uid").filter(|uid| !uid.is_empty())?,
        namespaces: names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

async fn write(
    api: &Api,
    kind: &Kind,
    namespace: &str,
    namespace_uid: &str,
    record: &Record,
) -> Result<()> {
    let namespaces: Vec<&str> = record.namespaces.iter().map(String::as_str).collect();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": RECORD, "namespace": namespace},
        "data": {
            "uid": record.uid,
            "namespaces": namespaces.join(","),
            "namespaceUid": namespace_uid,
        },
    });
    api.apply_ours(kind, namespace, &object, false)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(uid: &str, namespaces: &[&str]) -> Record {
        Record {
            uid: uid.to_owned(),
            namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn listed(name: &str, uid: Option<&str>, record: Option<Record>) -> Listed {
        Listed {
            name: name.to_owned(),
            uid: uid.map(str::to_owned),
            record,
            is_closed: false,
        }
    }

    #[test]
    fn the_first_list_makes_the_uid_and_a_longer_one_keeps_it() {
        let first = record_of(&[listed("a", Some("1"), None)]).unwrap();
        assert_eq!(first.uid, hashed([("a", "1")], false));
        let more = [
            listed("a", Some("1"), Some(first.clone())),
            listed("b", Some("2"), None),
        ];
        let now = record_of(&more).unwrap();
        assert_eq!(now, record(&first.uid, &["a", "b"]));
        assert!(former(&more).is_empty());
        // The other one is made anew, and this one later.
        let anew = [
            listed("a", Some("3"), None),
            listed("b", Some("2"), Some(now.clone())),
        ];
        assert_eq!(record_of(&anew).unwrap(), now);
        let other = record_of(&[listed("b", Some("2"), None)]).unwrap();
        assert_ne!(other.uid, first.uid);
    }

    #[test]
    fn a_namespace_that_is_gone_is_one_that_was_there() {
        let kept = record("x", &["a", "b"]);
        let gone = [
            listed("a", Some("1"), Some(kept.clone())),
            listed("b", None, None),
        ];
        assert_eq!(record_of(&gone).unwrap(), kept);
        let never = [
            listed("a", Some("1"), Some(record("x", &["a"]))),
            listed("b", None, None),
        ];
        let error = record_of(&never).unwrap_err();
        assert_eq!(error.message(), "there is no namespace \"b\"");
    }

    #[test]
    fn two_platforms_do_not_become_one_by_a_list() {
        let both = [
            listed("a", Some("1"), Some(record("x", &["a"]))),
            listed("b", Some("2"), Some(record("y", &["b"]))),
        ];
        let error = record_of(&both).unwrap_err();
        assert!(
            error
                .message()
                .starts_with("namespaces a and b are those of two platforms"),
            "{error}"
        );
    }

    #[test]
    fn a_record_counts_in_the_namespace_for_which_it_was_written() {
        let data = |of: &str| {
            let data = [("uid", "x"), ("namespaces", "a, b"), ("namespaceUid", of)];
            data.map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into()
        };
        assert_eq!(said(data("1"), "1"), Some(record("x", &["a", "b"])));
        assert_eq!(said(data("1"), "2"), None, "copied");
        assert_eq!(said(BTreeMap::new(), "1"), None);
    }
}
