//! Tag encoding. DigitalOcean's tags are plain names of letters, digits, `:`, `-` and `_`, up to 255 characters, and an
//! existing tag keeps the case in which it was first written in the account. So a key and its value become `key:value`
//! in lower-case letters, digits and `-`; every other byte is `_` with two hexadecimal digits, and the prefix
//! `drover.dev/` is `drover:`. Values that are too long are split into parts, `key:__0:…`, `key:__1:…`.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};

use crate::cloud::PREFIX;

/// Maximum length of a tag.
const MAX: usize = 255;
/// Encoding of [`PREFIX`].
const SHORT: &str = "drover:";
/// Marks a part. No escaped byte starts like this.
const PART: &str = "__";
/// Prefix of the keys of an identity that is to replace another.
const STAGED: &str = "drover.dev/next-";
/// Encoding of [`STAGED`].
const SHORT_STAGED: &str = "drover:next-";
/// The tag with which the staged keys count instead of the others.
pub(super) const FLIP: &str = "drover:next:1";

/// Encodes one key and value.
///
/// # Errors
/// `Precondition` for a key that does not fit in a tag.
pub(super) fn encode(key: &str, value: &str) -> Result<Vec<String>> {
    let key = match key.strip_prefix(PREFIX) {
        Some(rest) => format!("{SHORT}{}", escape(rest, false)),
        // Must not be mistaken for the prefix.
        None if key == "drover" => "_64rover".to_owned(),
        None => escape(key, false),
    };
    let value = escape(value, true);
    if key.len() + 1 + value.len() <= MAX {
        return Ok(vec![format!("{key}:{value}")]);
    }
    // Leave room for the numbers of a hundred parts.
    let room = MAX.saturating_sub(key.len() + "::".len() + PART.len() + 2);
    if room == 0 {
        return Err(Error::new(
            Reason::Precondition,
            format!("no tag of DigitalOcean can hold the key {key:?}: {MAX} characters at most"),
        ));
    }
    let parts = value.as_bytes().chunks(room).enumerate();
    // The value is ASCII only, so a chunk never splits a character.
    Ok(parts
        .map(|(at, part)| format!("{key}:{PART}{at}:{}", String::from_utf8_lossy(part)))
        .collect())
}

/// Encodes all tags of a machine.
///
/// # Errors
/// `Precondition` for a key that does not fit in a tag.
pub(super) fn encode_all(tags: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut all = Vec::with_capacity(tags.len());
    for (key, value) in tags {
        all.extend(encode(key, value)?);
    }
    Ok(all)
}

/// Encodes keys of Drover's own under keys that do not count yet.
///
/// # Errors
/// `Precondition` for a key that does not fit in a tag.
pub(super) fn encode_staged(tags: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut all = Vec::with_capacity(tags.len());
    for (key, value) in tags {
        let key = key.strip_prefix(PREFIX).unwrap_or(key);
        all.extend(encode(&format!("{STAGED}{key}"), value)?);
    }
    Ok(all)
}

pub(super) fn is_staged(name: &str) -> bool {
    key(name).is_some_and(|key| key.starts_with(STAGED))
}

/// The tag for which a staged one stands.
pub(super) fn unstaged(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    match name.strip_prefix(SHORT_STAGED) {
        Some(rest) => format!("{SHORT}{rest}"),
        None => name,
    }
}

/// Whether a tag has no value.
pub(super) fn is_blank(name: &str) -> bool {
    split(name).is_some_and(|(_, value)| value.is_empty())
}

/// The decoded tags of a machine. Names without a colon are not ours and are skipped. If a key has several values, as
/// after an interrupted change, the alphabetically first one is used and the key is listed in `doubled`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Decoded {
    pub(super) tags: BTreeMap<String, String>,
    pub(super) doubled: Vec<String>,
}

pub(super) fn decode<'a>(names: impl IntoIterator<Item = &'a str>) -> Decoded {
    let mut whole: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut parts: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
    for name in names {
        let Some((key, value)) = split(name) else {
            continue;
        };
        match part(&value) {
            Some((at, part)) => {
                parts.entry(key).or_default().insert(at, part.to_owned());
            }
            None => whole.entry(key).or_default().push(unescape(&value)),
        }
    }
    for (key, parts) in parts {
        let value: String = parts.into_values().collect();
        whole.entry(key).or_default().push(unescape(&value));
    }
    exchange(&mut whole);
    let mut decoded = Decoded::default();
    for (key, mut values) in whole {
        values.sort();
        if values.len() > 1 {
            decoded.doubled.push(key.clone());
        }
        decoded
            .tags
            .extend(values.into_iter().next().map(|value| (key, value)));
    }
    decoded
}

/// Applies an exchange of identities. With the flip, staged values replace those of the plain keys. Without it they are
/// ignored, and so are plain values that are the same: these are new already.
fn exchange(whole: &mut BTreeMap<String, Vec<String>>) {
    let counts = key(FLIP).is_some_and(|flip| whole.remove(&flip).is_some());
    let is_staged = |key: &str| key.starts_with(STAGED);
    let staged: Vec<String> = whole.keys().filter(|key| is_staged(key)).cloned().collect();
    for key in staged {
        let values = whole.remove(&key).unwrap_or_default();
        let plain = format!("{PREFIX}{}", &key[STAGED.len()..]);
        if counts {
            whole.insert(plain, values);
        } else if let Some(known) = whole.get_mut(&plain) {
            known.retain(|value| !values.contains(value));
        }
    }
    whole.retain(|_, values| !values.is_empty());
}

/// The key of an encoded tag.
pub(super) fn key(name: &str) -> Option<String> {
    split(name).map(|(key, _)| key)
}

/// Splits a tag into its key and its encoded value.
fn split(name: &str) -> Option<(String, String)> {
    let name = name.to_ascii_lowercase();
    let (prefix, rest) = match name.strip_prefix(SHORT) {
        Some(rest) if rest.contains(':') => (PREFIX, rest),
        _ => ("", name.as_str()),
    };
    let (key, value) = rest.split_once(':')?;
    Some((format!("{prefix}{}", unescape(key)), value.to_owned()))
}

fn part(value: &str) -> Option<(usize, &str)> {
    let (at, part) = value.strip_prefix(PART)?.split_once(':')?;
    Some((at.parse().ok()?, part))
}

fn escape(text: &str, colon: bool) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => out.push(char::from(byte)),
            b':' if colon => out.push(':'),
            // Writing to a `String` cannot fail.
            _ => _ = write!(out, "_{byte:02x}"),
        }
    }
    out
}

/// Text that is not an escaped byte is literal, as in foreign tags.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'_');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(tags: &BTreeMap<String, String>) -> Decoded {
        let names = encode_all(tags).unwrap();
        for name in &names {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_');
            assert!(name.len() <= MAX && name.chars().all(allowed), "{name}");
        }
        // The same tags were created in capitals before.
        let names: Vec<String> = names.iter().map(|name| name.to_ascii_uppercase()).collect();
        decode(names.iter().map(String::as_str))
    }

    #[test]
    fn every_key_and_value_comes_back_whatever_the_case() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let alphabet: Vec<char> = "abzAZ09-_:./=@ äß€__drover".chars().collect();
        for _ in 0..2_000 {
            let mut word = |most: usize| -> String {
                let length = random.usize(..=most);
                (0..length)
                    .map(|_| alphabet[random.usize(..alphabet.len())])
                    .collect()
            };
            let tags = BTreeMap::from([
                (format!("k{}", word(12)), word(20)),
                (format!("{PREFIX}{}", word(12)), word(200)),
                ("drover".to_owned(), word(9)),
                ("Drover".to_owned(), word(9)),
            ]);
            let decoded = back(&tags);
            for (key, value) in &tags {
                assert_eq!(decoded.tags.get(key), Some(value), "{key:?}, seed {seed}");
            }
            assert_eq!(decoded.tags.len(), tags.len());
        }
    }

    #[test]
    fn tags_of_people_are_read_as_they_are() {
        let decoded = decode(["web", "env:Prod", "Team_x:a_b", "drover:cluster:Orders"]);
        let expected = [
            ("drover.dev/cluster", "orders"),
            ("env", "prod"),
            ("team_x", "a_b"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(decoded.tags, BTreeMap::from(expected));
        assert!(decoded.doubled.is_empty());
    }

    #[test]
    fn two_values_of_a_key_are_named() {
        let decoded = decode(["role:b", "role:a", "x:y"]);
        assert_eq!(decoded.tags["role"], "a");
        assert_eq!(decoded.doubled, ["role"]);
    }

    #[test]
    fn a_staged_identity_counts_from_the_flip_on_and_not_before() {
        let own = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned()))
                .collect()
        };
        let long = "B".repeat(250);
        let former = own(&[
            ("owner", "z"),
            ("cluster", "a"),
            ("role", "standby"),
            ("group", "g"),
        ]);
        let next = own(&[
            ("owner", "b"),
            ("cluster", "c"),
            ("role", ""),
            ("slots", &long),
        ]);
        let mut names = encode_all(&former).unwrap();
        names.extend(encode_staged(&next).unwrap());
        // What lists are filtered by is there under its own key already.
        names.push("drover:cluster:c".to_owned());
        let read = |names: &[String]| decode(names.iter().map(String::as_str));
        let before = read(&names);
        assert_eq!((&before.tags, before.doubled.len()), (&former, 0));
        names.push(FLIP.to_owned());
        let after = read(&names);
        let mut expected = next;
        expected.extend(own(&[("group", "g")]));
        assert_eq!((&after.tags, after.doubled.len()), (&expected, 0));
        let plain = names.iter().filter(|name| is_staged(name));
        let plain: Vec<String> = plain.map(|name| unstaged(name)).collect();
        assert!(plain.contains(&"drover:owner:b".to_owned()), "{plain:?}");
        assert_eq!(plain.iter().filter(|name| is_blank(name)).count(), 1);
    }

    #[test]
    fn long_values_are_cut_into_parts_and_joined_again() {
        let long = "A".repeat(250);
        let tags = BTreeMap::from([(format!("{PREFIX}slots"), long)]);
        assert!(encode_all(&tags).unwrap().len() > 1);
        assert_eq!(back(&tags).tags, tags);
        assert!(encode(&"K".repeat(300), "").is_err());
    }
}
