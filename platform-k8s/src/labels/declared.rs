//! The labels that a cluster declares, on the objects of its nodes. There they are renamed: labels decide what
//! services, network policies and controllers select, and the author of a cluster must not decide that.
//!
//! | declared | on an object |
//! |---|---|
//! | `team` | `drover.dev/label.team` |
//! | a name of more than 57 characters | `label.drover.dev/NAME` |
//! | `example.com/team` | `example.com.label.drover.dev/team` |
//!
//! Keys listed in the settings ([`crate::Settings::plain_labels`]) keep their own names, unless an object already has
//! the key, or a service or network policy selects by it.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Error, Result};
use drover_platform::identity::Identity;
use serde_json::{Map, Value};

use super::{LabelKeys, is_key, is_ours, is_value};

/// Annotation: the keys of declared labels that an object has under their own names, as JSON. Its other labels without
/// a prefix of ours come from its template, or from others.
pub const PLAIN: &str = "drover.dev/plain-labels";

/// Prefix of declared labels whose key has no prefix.
const STEM: &str = "drover.dev/label.";
/// Suffix of the prefixes of declared labels.
const DOMAIN: &str = "label.drover.dev";

/// The name of a declared label on objects. `None` if the key is invalid, or its prefix too long.
#[must_use]
pub fn name(key: &str) -> Option<String> {
    let name = match key.split_once('/') {
        _ if !is_key(key) => return None,
        Some((prefix, name)) => format!("{prefix}.{DOMAIN}/{name}"),
        None => {
            let name = format!("{STEM}{key}");
            if is_key(&name) {
                name
            } else {
                format!("{DOMAIN}/{key}")
            }
        }
    };
    is_key(&name).then_some(name)
}

/// Checks that every key has a name on objects.
///
/// # Errors
/// `Invalid` with the field.
pub fn check<'a>(field: &str, keys: impl IntoIterator<Item = &'a String>) -> Result<()> {
    match keys.into_iter().find(|key| name(key).is_none()) {
        None => Ok(()),
        Some(key) => Err(Error::invalid(
            format!("{field}[{key:?}]"),
            "its prefix is too long to be that of a label with one of Drover's behind it",
        )),
    }
}

/// The key with which a label of an object was declared. `None` if it is not a declared label.
#[must_use]
pub fn key(name: &str) -> Option<String> {
    if let Some(key) = name.strip_prefix(STEM) {
        return Some(key.to_owned());
    }
    let (prefix, name) = name.split_once('/')?;
    if prefix == DOMAIN {
        return Some(name.to_owned());
    }
    let prefix = prefix.strip_suffix(DOMAIN)?.strip_suffix('.')?;
    Some(format!("{prefix}/{name}"))
}

/// Whether a key is the name of a declared label.
pub(super) fn is_name(key: &str) -> bool {
    self::key(key).is_some()
}

/// Whether a key has a meaning for Kubernetes, or for common software on it.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    ["kubernetes.io", "k8s.io"].iter().any(|domain| {
        let rest = prefix.strip_suffix(domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Labels of a foreign object as they would have been declared: names of declared labels are mapped to their keys,
/// others stay as they are.
pub fn shown(
    labels: &BTreeMap<String, String>,
    keys: &LabelKeys,
    most: usize,
) -> BTreeMap<String, String> {
    let marks = |key: &str| is_ours(key) || key == keys.cluster || key == keys.node;
    let others = labels.iter().filter(|(key, _)| !marks(key));
    let others = others.map(|(key, text)| (key.clone(), text.clone()));
    let declared = labels
        .iter()
        .filter_map(|(name, text)| Some((key(name)?, text.clone())));
    let mut shown: BTreeMap<String, String> = declared.take(most).collect();
    for (key, text) in others {
        if shown.len() < most {
            shown.entry(key).or_insert(text);
        }
    }
    shown
}

/// Keys of declared labels that objects may have under their own names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plain(BTreeSet<String>);

impl Plain {
    /// The declared keys that are allowed.
    #[must_use]
    pub fn of<'a>(declared: impl IntoIterator<Item = &'a String>, allowed: &[String]) -> Self {
        let declared = declared.into_iter();
        let plain =
            declared.filter(|key| allowed.contains(key) && !is_reserved(key) && !is_ours(key));
        Self(plain.cloned().collect())
    }

    /// Removes the keys that something selects by.
    #[must_use]
    pub fn without(mut self, selected: &BTreeSet<String>) -> Self {
        self.0.retain(|key| !selected.contains(key));
        self
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether objects may have this key under its own name.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.0.contains(key)
    }
}

/// The declared labels of a node that its objects carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    labels: BTreeMap<String, String>,
    plain: Plain,
}

impl Declared {
    /// The declared labels of a node.
    #[must_use]
    pub fn of(identity: &Identity, plain: &Plain) -> Self {
        Self {
            labels: identity.labels.clone(),
            plain: plain.clone(),
        }
    }

    /// The changes that set `wanted` in the labels of an object, and the keys that it then has under their own names.
    /// `has` are its labels, `recorded` the keys recorded before. A key without value is removed.
    pub fn changes<'a>(
        plain: &Plain,
        wanted: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
        has: &BTreeMap<String, String>,
        recorded: &BTreeSet<String>,
    ) -> (BTreeMap<String, Option<String>>, BTreeSet<String>) {
        let mut changes = BTreeMap::new();
        let mut recorded = recorded.clone();
        for (key, text) in wanted {
            let Some(name) = name(key) else { continue };
            let text = text.filter(|text| is_value(text)).map(str::to_owned);
            let own = recorded.contains(key);
            if text.is_some() && plain.has(key) && (own || !has.contains_key(key)) {
                changes.insert(key.to_owned(), text);
                changes.insert(name, None);
                recorded.insert(key.to_owned());
                continue;
            }
            if own {
                changes.insert(key.to_owned(), None);
                recorded.remove(key);
            }
            changes.insert(name, text);
        }
        (changes, recorded)
    }

    /// Sets the labels in the metadata of an object that is to be created.
    pub(crate) fn apply(&self, metadata: &mut Map<String, Value>) {
        let texts = |value: Option<&Value>| -> BTreeMap<String, String> {
            let map = value.and_then(Value::as_object).into_iter().flatten();
            map.map(|(key, text)| (key.clone(), text.as_str().unwrap_or_default().to_owned()))
                .collect()
        };
        let has = texts(metadata.get("labels"));
        let wanted = self.labels.iter();
        let wanted = wanted.filter(|(_, text)| is_value(text));
        let wanted = wanted.map(|(key, text)| (key.as_str(), Some(text.as_str())));
        let (changes, recorded) = Self::changes(&self.plain, wanted, &has, &BTreeSet::new());
        let labels = crate::objects::child(metadata, "labels");
        for (key, text) in changes {
            match text {
                Some(text) => labels.insert(key, Value::String(text)),
                None => labels.remove(&key),
            };
        }
        let annotations = crate::objects::child(metadata, "annotations");
        annotations.remove(PLAIN);
        annotations.extend(record(&recorded).map(|record| (PLAIN.to_owned(), record.into())));
    }
}

/// The keys that an object has under their own names, according to its annotations.
#[must_use]
pub fn recorded(annotations: &BTreeMap<String, String>) -> BTreeSet<String> {
    let record = annotations.get(PLAIN);
    record
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default()
}

/// The annotation [`PLAIN`]. `None` if there are no keys.
#[must_use]
pub fn record(keys: &BTreeSet<String>) -> Option<String> {
    // Serialising a list of strings cannot fail.
    (!keys.is_empty()).then(|| serde_json::to_string(keys).unwrap_or_default())
}

/// Why a key in the settings is refused, as a phrase that follows the key. `None` if it is not.
#[must_use]
pub fn refusal(key: &str, keys: &LabelKeys) -> Option<&'static str> {
    if !is_key(key) {
        return Some("is not a key of a label");
    }
    if is_reserved(key) {
        return Some("belongs to Kubernetes, and services and network policies select by it");
    }
    (is_ours(key) || key == keys.cluster || key == keys.node).then_some("belongs to Drover itself")
}

#[cfg(test)]
mod tests;
