//! Hashes of the fields that define a node, and of its capacity pool.

use std::borrow::Cow;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Bootstrap, Choice, ClusterSpec, Group, Object, Requirement, Selector, UserDataSource};
use crate::{
    name::{self, Sym},
    storage::Storage,
};

/// A formula for the hash of a node's spec, and the version that its hashes begin with.
type Formula = (u8, fn(&mut Sha256, &ClusterSpec, &Group, &Choice));
/// The formulas of hashes that nodes may carry, oldest first; new nodes use the last one. A formula that covers other
/// fields is appended and the existing ones are kept, so that a new formula is never mistaken for a changed spec.
const FORMULAS: [Formula; 3] = [(1, cover), (2, cover_keyed), (3, cover_of_cluster)];

/// SHA-256 of user data as returned by reads: 64 lower-case hexadecimal digits.
#[must_use]
pub fn digest(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a hash uses a formula that this version does not know, such as `h2-…` where only `h1-…` is known.
pub(super) fn is_of_unknown_formula(hash: &str) -> bool {
    let version = hash
        .strip_prefix('h')
        .and_then(|rest| rest.split_once('-'))
        .and_then(|(version, _)| version.parse::<u32>().ok());
    version.is_some_and(|version| {
        FORMULAS
            .iter()
            .all(|(known, _)| u32::from(*known) != version)
    })
}

/// Property with the labels that the hosts of a group get: platforms change it in place, so it defines no node.
pub const HOST_LABELS: &str = "hostLabels";

/// The properties that define a node.
fn defining(properties: &Object) -> Cow<'_, Object> {
    if !properties.contains_key(HOST_LABELS) {
        return Cow::Borrowed(properties);
    }
    let mut left = properties.clone();
    left.remove(HOST_LABELS);
    Cow::Owned(left)
}

/// Hash of the labels that the hosts of a group get. Empty if there are none.
pub(super) fn labels_hash(properties: &Object) -> Sym {
    let labels = properties.get(HOST_LABELS).and_then(Value::as_object);
    let Some(labels) = labels.filter(|labels| !labels.is_empty()) else {
        return Sym::default();
    };
    let mut hash = Sha256::new();
    digest_object(&mut hash, labels);
    hex(&hash.finalize()[..8]).into()
}

/// Hashes of the fields that define a node, over sorted keys, by every applicable formula, oldest first. Each has at
/// most 63 characters, so that it fits into a label.
pub(super) fn spec_hashes(cluster: &ClusterSpec, group: &Group, choice: &Choice) -> Vec<Sym> {
    let mut hashes = hashes_over(cluster, group, choice);
    if let Cow::Owned(properties) = defining(&choice.properties) {
        // Nodes from before hosts were labelled in place carry hashes over all properties.
        let choice = Choice {
            properties,
            ..choice.clone()
        };
        hashes.extend(hashes_over(cluster, group, &choice));
    }
    hashes
}

fn hashes_over(cluster: &ClusterSpec, group: &Group, choice: &Choice) -> Vec<Sym> {
    let unsized_ones = unsized_over(cluster, group, choice);
    let sized = |one: Unsized| one.with(group.storage.as_deref());
    unsized_ones.into_iter().map(sized).collect()
}

/// A hash over everything that defines a node but its storage, which is covered last.
#[derive(Clone, Debug)]
struct Unsized {
    version: u8,
    hash: Sha256,
}

impl Unsized {
    fn with(self, storage: Option<&Storage>) -> Sym {
        let Self { version, mut hash } = self;
        if let Some(Storage { size, class, .. }) = storage {
            hash.update(b"s");
            hash.update(size.unwrap_or(u64::MAX).to_be_bytes());
            hash.update((class.len() as u64).to_be_bytes());
            hash.update(class);
        }
        format!("h{version}-{}", hex(&hash.finalize()[..16])).into()
    }
}

fn unsized_over(cluster: &ClusterSpec, group: &Group, choice: &Choice) -> Vec<Unsized> {
    let by = |(version, formula): &Formula| {
        let mut hash = Sha256::new();
        hash.update([*version]);
        formula(&mut hash, cluster, group, choice);
        Unsized {
            version: *version,
            hash,
        }
    };
    // Without data to hide, all formulas cover the same fields, and the oldest hash is kept.
    let formulas = if hides(group) { FORMULAS.len() } else { 1 };
    FORMULAS[..formulas].iter().map(by).collect()
}

/// Recognises nodes that are made of the same as those of a choice, but for the size of their storage.
#[derive(Clone, Debug, Default)]
pub struct Sizes(Vec<Unsized>);

/// They follow from the other fields of a choice.
impl PartialEq for Sizes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Sizes {
    /// Those of a choice. None without storage of a declared size.
    #[must_use]
    pub fn of(cluster: &ClusterSpec, group: &Group, choice: &Choice) -> Self {
        if group.storage.as_ref().and_then(|it| it.size).is_none() {
            return Self::default();
        }
        let mut all = unsized_over(cluster, group, choice);
        if let Cow::Owned(properties) = defining(&choice.properties) {
            let choice = Choice {
                properties,
                ..choice.clone()
            };
            all.extend(unsized_over(cluster, group, &choice));
        }
        Self(all)
    }

    /// Whether a hash identifies nodes with storage of this size.
    #[must_use]
    pub fn has(&self, hash: &str, size: u64, class: &str) -> bool {
        let storage = Storage {
            size: Some(size),
            class: class.to_owned(),
            ..Storage::default()
        };
        let mut all = self.0.iter();
        all.any(|one| *one.clone().with(Some(&storage)) == *hash)
    }
}

/// Whether a group has inline data that is identified by something other than its SHA-256.
fn hides(group: &Group) -> bool {
    let bootstrap = group.bootstrap.as_ref();
    bootstrap.is_some_and(|own| !own.known_as.is_empty())
}

fn cover(hash: &mut Sha256, cluster: &ClusterSpec, group: &Group, choice: &Choice) {
    cover_with(hash, cluster, group, choice, |_, digest| digest);
}

/// The hash must not allow anyone who knows all other hashed fields to guess the data.
fn cover_keyed(hash: &mut Sha256, cluster: &ClusterSpec, group: &Group, choice: &Choice) {
    cover_with(hash, cluster, group, choice, |own, _| {
        &own.formerly_known_as
    });
}

/// Nor may a tenant find out the data of another cluster by trying candidates in a cluster of its own.
fn cover_of_cluster(hash: &mut Sha256, cluster: &ClusterSpec, group: &Group, choice: &Choice) {
    cover_with(hash, cluster, group, choice, |own, _| &own.known_as);
}

fn cover_with(
    hash: &mut Sha256,
    cluster: &ClusterSpec,
    group: &Group,
    choice: &Choice,
    data: for<'a> fn(&'a Bootstrap, &'a str) -> &'a str,
) {
    let fields: [&str; 5] = [
        &cluster.software,
        &group.version,
        &choice.platform,
        &choice.class,
        &group.role,
    ];
    for field in fields {
        hash.update((field.len() as u64).to_be_bytes());
        hash.update(field);
    }
    digest_object(hash, &group.attributes);
    digest_object(hash, &choice.properties);
    // Only hashed if present, so that specs without this field keep the hash they had before it existed.
    if let Some(bootstrap) = &group.bootstrap {
        match &bootstrap.source {
            UserDataSource::Sha256(digest) => {
                hash.update(b"b");
                hash.update(data(bootstrap, digest));
            }
            // The content is not covered, so that changing it replaces nothing.
            UserDataSource::Secret(secret) => {
                hash.update(b"k");
                for field in [&secret.name, &secret.key] {
                    hash.update((field.len() as u64).to_be_bytes());
                    hash.update(field);
                }
            }
        }
        hash.update([u8::from(bootstrap.render)]);
    }
    for (name, secret) in &group.secrets {
        hash.update(b"t");
        for field in [name, &secret.name, &secret.key] {
            hash.update((field.len() as u64).to_be_bytes());
            hash.update(field);
        }
    }
}

/// The capacity pool of a choice: its class, plus a hash of its properties and of the required machine labels, if there
/// are any (spot or on demand, zone).
pub(super) fn pool(class: &str, properties: &Object, selector: Option<&Selector>) -> Sym {
    let properties = &*defining(properties);
    if properties.is_empty() && selector.is_none() {
        return name::sym(class);
    }
    let mut hash = Sha256::new();
    digest_object(&mut hash, properties);
    if let Some(selector) = selector {
        // Every list is length-prefixed, so that no two selectors produce the same bytes.
        let mut list = |texts: &[&str]| {
            hash.update((texts.len() as u64).to_be_bytes());
            for text in texts {
                hash.update((text.len() as u64).to_be_bytes());
                hash.update(text);
            }
        };
        for (key, value) in &selector.labels {
            list(&[key, value]);
        }
        for Requirement {
            key,
            operator,
            values,
        } in &selector.requirements
        {
            let operator = format!("{operator:?}");
            let head = [key.as_str(), &operator, ""];
            let values = values.iter().map(String::as_str);
            list(&head.into_iter().chain(values).collect::<Vec<_>>());
        }
    }
    format!("{class}#{}", hex(&hash.finalize()[..8])).into()
}

fn digest_object(hash: &mut Sha256, object: &Object) {
    let mut keys: Vec<&String> = object.keys().collect();
    keys.sort();
    hash.update(b"{");
    for key in keys {
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(key);
        digest_value(hash, &object[key]);
    }
    hash.update(b"}");
}

fn digest_value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Object(object) => digest_object(hash, object),
        Value::Array(values) => {
            hash.update(b"[");
            for value in values {
                digest_value(hash, value);
            }
            hash.update(b"]");
        }
        Value::String(text) => {
            hash.update(b"s");
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            hash.update(b"v");
            hash.update(value.to_string());
            hash.update(b";");
        }
    }
}
