//! Encodes tags as Compute Engine labels, which are limited to 63 lower-case letters, digits, `-` and `_`.
//!
//! The identity of a node is stored in labels only, not in metadata. `drover.dev/owner` becomes `drover-owner`, other
//! keys are kept. In keys and values, every byte that is not a lower-case letter, digit or `-` becomes `_` and two
//! hexadecimal digits; a key that would not start with a letter, or would look like one of ours, is prefixed with
//! `k__`. Text longer than 63 characters continues in `KEY_-2`, `KEY_-3`, …; pairs whose keys are too long are stored
//! together in `drover-more`. `_-` and `__` never occur in encoded text, so the encoding is reversible.

use std::collections::{BTreeMap, HashMap};

use crate::cloud::PREFIX;

/// Maximum length of a key or value.
const MAX: usize = 63;
/// Maximum length of an encoded key; the rest is reserved for the part number.
const MAX_KEY: usize = MAX - 5;
/// Prefix of the labels that Drover manages.
const OWN: &str = "drover-";
/// Prefix of keys that could be mistaken for something else.
const GUARD: &str = "k__";
/// Separates a key from its part number.
const PART: &str = "_-";
/// Label with the pairs whose keys are too long, as one JSON object.
const MORE: &str = "drover-more";

pub(super) type Labels = HashMap<String, String>;

/// Encodes tags as labels.
pub(super) fn encode(tags: &BTreeMap<String, String>) -> Labels {
    let mut labels = Labels::new();
    let mut more: BTreeMap<&str, &str> = BTreeMap::new();
    for (tag, value) in tags {
        let key = key(tag);
        if key.len() > MAX_KEY {
            more.insert(tag, value);
        } else {
            put(&mut labels, &key, &text(value));
        }
    }
    if !more.is_empty()
        && let Ok(json) = serde_json::to_string(&more)
    {
        put(&mut labels, MORE, &text(&json));
    }
    labels
}

/// Decodes labels to tags. Foreign labels that cannot be decoded are kept verbatim.
pub(super) fn decode(labels: &Labels) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::new();
    for (key, first) in labels {
        if is_part(key, labels) {
            continue;
        }
        let value = whole(labels, key, first);
        let value = read(&value).unwrap_or(value);
        if key == MORE
            && let Ok(more) = serde_json::from_str::<BTreeMap<String, String>>(&value)
        {
            tags.extend(more);
            continue;
        }
        tags.insert(tag(key).unwrap_or_else(|| key.clone()), value);
    }
    tags
}

/// Sets and removes tags of a machine. Foreign labels stay verbatim.
pub(super) fn change(labels: &Labels, set: &BTreeMap<String, String>, remove: &[String]) -> Labels {
    let mut changed = labels.clone();
    for tag in remove.iter().chain(set.keys()) {
        changed.remove(tag);
        drop_parts(&mut changed, &key(tag));
    }
    // Long keys share a label, so all of them are rewritten.
    let mut more: BTreeMap<String, String> = labels
        .get(MORE)
        .and_then(|first| read(&whole(labels, MORE, first)))
        .and_then(|json| serde_json::from_str(&json).ok())
        .unwrap_or_default();
    more.retain(|tag, _| !remove.contains(tag));
    drop_parts(&mut changed, MORE);
    more.extend(set.clone());
    changed.extend(encode(&more));
    changed
}

/// A filter expression for machines with this tag. Values of several parts are compared by the first part only, so the
/// caller has to check the tags of the results.
pub(super) fn filter(tag: &str, value: &str) -> String {
    let value = text(value);
    let first = value.get(..MAX).unwrap_or(&value);
    format!("labels.{} = \"{first}\"", key(tag))
}

fn put(labels: &mut Labels, key: &str, value: &str) {
    if value.is_empty() {
        labels.insert(key.to_owned(), String::new());
    }
    // The text is ASCII, so it can be split anywhere.
    for (at, part) in value.as_bytes().chunks(MAX).enumerate() {
        let part = String::from_utf8_lossy(part).into_owned();
        labels.insert(part_key(key, at), part);
    }
}

fn part_key(key: &str, at: usize) -> String {
    if at == 0 {
        key.to_owned()
    } else {
        format!("{key}{PART}{}", at + 1)
    }
}

fn is_part(key: &str, labels: &Labels) -> bool {
    key.rsplit_once(PART)
        .is_some_and(|(first, at)| labels.contains_key(first) && at.parse::<usize>().is_ok())
}

fn whole(labels: &Labels, key: &str, first: &str) -> String {
    let mut value = first.to_owned();
    for part in (1..).map_while(|at| labels.get(&part_key(key, at))) {
        value.push_str(part);
    }
    value
}

fn drop_parts(labels: &mut Labels, key: &str) {
    for at in 0.. {
        if labels.remove(&part_key(key, at)).is_none() {
            return;
        }
    }
}

fn key(tag: &str) -> String {
    if let Some(own) = tag.strip_prefix(PREFIX) {
        return format!("{OWN}{}", text(own));
    }
    let key = text(tag);
    if key.starts_with(|char: char| char.is_ascii_lowercase()) && !key.starts_with(OWN) {
        key
    } else {
        format!("{GUARD}{key}")
    }
}

fn tag(key: &str) -> Option<String> {
    if let Some(guarded) = key.strip_prefix(GUARD) {
        return read(guarded);
    }
    match key.strip_prefix(OWN) {
        Some(own) => Some(format!("{PREFIX}{}", read(own)?)),
        None => read(key),
    }
}

fn text(plain: &str) -> String {
    let mut out = String::with_capacity(plain.len());
    for byte in plain.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' {
            out.push(char::from(byte));
        } else {
            out.push('_');
            out.push_str(&drover_platform::identity::hex(&[byte]));
        }
    }
    out
}

fn read(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'_' {
            let (pair, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn is_allowed(labels: &Labels) -> bool {
        let plain = |text: &str| {
            text.len() <= MAX
                && text.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
                })
        };
        labels.iter().all(|(key, value)| {
            plain(key) && plain(value) && key.starts_with(|char: char| char.is_ascii_lowercase())
        })
    }

    #[test]
    fn tags_are_read_back_whatever_they_hold() {
        let seed: u64 = std::env::var("DROVER_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| fastrand::u64(..));
        println!("DROVER_SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let alphabet: Vec<char> = "abcz019-_./: =KÄ漢\"drover-k__".chars().collect();
        for _ in 0..2_000 {
            let mut word = |max: usize| -> String {
                let length = random.usize(..max);
                (0..length)
                    .map(|_| alphabet[random.usize(..alphabet.len())])
                    .collect()
            };
            let mut said = tags(&[("drover.dev/owner", "5f0c2b9a-0000-4000-8000-000000000001")]);
            for _ in 0..5 {
                said.insert(format!("{PREFIX}{}", word(20)), word(200));
                said.insert(word(80), word(200));
            }
            let labels = encode(&said);
            assert!(is_allowed(&labels), "{labels:?}");
            assert_eq!(decode(&labels), said);
        }
    }

    #[test]
    fn plain_tags_look_as_people_expect() {
        let labels = encode(&tags(&[
            ("team", "payments"),
            ("drover.dev/cluster", "orders"),
            ("app.kubernetes.io/name", "Redis"),
        ]));
        assert_eq!(labels["team"], "payments");
        assert_eq!(labels["drover-cluster"], "orders");
        assert_eq!(labels["app_2ekubernetes_2eio_2fname"], "_52edis");
        assert_eq!(
            filter("drover.dev/cluster", "Orders"),
            "labels.drover-cluster = \"_4frders\""
        );
    }

    #[test]
    fn a_change_leaves_labels_of_others_alone() {
        let mut labels = encode(&tags(&[
            ("drover.dev/slots", &"x".repeat(150)),
            (&"l".repeat(70), "long"),
            ("team", "payments"),
        ]));
        labels.insert("their_own".to_owned(), "as_it_is".to_owned());
        let changed = change(
            &labels,
            &tags(&[("drover.dev/slots", "0:0:a:x"), ("tier", "1")]),
            &["team".to_owned()],
        );
        assert_eq!(changed["their_own"], "as_it_is");
        assert_eq!(
            decode(&changed),
            tags(&[
                ("drover.dev/slots", "0:0:a:x"),
                (&"l".repeat(70), "long"),
                ("tier", "1"),
                ("their_own", "as_it_is"),
            ])
        );
        assert_eq!(
            decode(&change(&changed, &BTreeMap::new(), &["l".repeat(70)])).len(),
            3
        );
    }
}
