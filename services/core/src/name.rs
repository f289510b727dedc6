//! Names: validation, and names that are derived from others.

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// String shared by many records: cloning it only increments a counter. It is one pointer, half of an `Arc<str>`, because
/// records consist of such strings. An empty one is not allocated.
pub type Sym = arcstr::ArcStr;

/// Creates a shared string.
#[must_use]
pub fn sym(text: &str) -> Sym {
    text.into()
}

/// Maximum length of a cluster name. With the prefixes and suffixes that platforms add, it must fit into a label of 63
/// characters.
pub const MAX_CLUSTER_NAME: usize = 40;
/// Maximum length of a group or platform name, the limit of Kubernetes label values.
pub const MAX_NAME: usize = 63;
/// Prefix of labels, tags and annotations that are reserved for Drover.
pub const RESERVED_PREFIX: &str = "drover.dev/";
/// Maximum number of labels of a cluster.
pub const MAX_LABELS: usize = 64;

/// Validates the name of a cluster.
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name.
pub fn check_cluster_name(name: &str) -> Result<(), String> {
    check(name, MAX_CLUSTER_NAME, name)
}

/// The name of a cluster that is an object of Kubernetes: `NAMESPACE.NAME`. One that would be too long is cut, and a hash
/// of all of it follows.
#[must_use]
pub fn cluster_in_namespace(namespace: &str, name: &str) -> String {
    /// Characters of the hash, which 10,000 names of one beginning share with a probability below 1 in 10,000.
    const HASH: usize = 10;
    let whole = format!("{namespace}.{name}");
    if whole.chars().count() <= MAX_CLUSTER_NAME {
        return whole;
    }
    let hash = Sha256::digest(whole.as_bytes());
    let kept: String = whole.chars().take(MAX_CLUSTER_NAME - HASH - 1).collect();
    let kept = kept.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    let digits = hash.iter().take(HASH / 2).map(|byte| format!("{byte:02x}"));
    format!("{kept}-{}", digits.collect::<String>())
}

/// Validates the name of a group or platform.
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name.
pub fn check_name(name: &str) -> Result<(), String> {
    check(name, MAX_NAME, name)
}

/// Validates the name of an addon: 1 to 63 letters, digits and hyphens.
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name.
pub fn check_addon_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let edges = !name.starts_with('-') && !name.ends_with('-');
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(good) && edges {
        return Ok(());
    }
    Err(format!(
        "expected 1 to {MAX_NAME} letters, digits and hyphens, beginning and ending with a letter or digit"
    ))
}

/// Validates the name of a secret. The error does not repeat an invalid name: it may be secret content that was put
/// into the wrong field.
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name.
pub fn check_secret_name(name: &str) -> Result<(), String> {
    check(name, MAX_NAME, "")
}

/// Maximum length of a key in a secret, as in Kubernetes.
pub const MAX_SECRET_KEY: usize = 253;

/// Validates a key in a secret: 1 to 253 letters, digits, hyphens, underscores and dots.
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name.
pub fn check_secret_key(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=MAX_SECRET_KEY).contains(&name.len()) && name.chars().all(good) {
        return Ok(());
    }
    Err(format!(
        "expected 1 to {MAX_SECRET_KEY} of a-z, A-Z, 0-9, hyphen, underscore and dot"
    ))
}

/// Returns the key of a secret if errors may repeat it. `None` if it is invalid: it may be secret content that was put
/// into the field of the key.
#[must_use]
pub fn shown_secret_key(key: &str) -> Option<&str> {
    /// Content shorter than this is not redacted from other texts either.
    const SHORT: usize = 8;
    (key.len() < SHORT || check_secret_key(key).is_ok()).then_some(key)
}

/// Validates a reason: one word in CamelCase of at most 63 letters and digits.
///
/// # Errors
///
/// A description of what is expected instead.
pub fn check_reason(reason: &str) -> Result<(), String> {
    let begins = reason.starts_with(|c: char| c.is_ascii_uppercase());
    if begins && reason.len() <= MAX_NAME && reason.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    Err(format!(
        "expected one word in CamelCase, of at most {MAX_NAME} letters and digits (DiskFull)"
    ))
}

/// Validates a name under which templates refer to a variable.
///
/// # Errors
///
/// A description of what is expected instead.
pub fn check_variable(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && name.len() <= MAX_NAME && name.chars().all(good) {
        return Ok(());
    }
    Err(format!(
        "expected 1 to {MAX_NAME} of a-z, A-Z, 0-9 and underscore, beginning with a letter"
    ))
}

/// `shown` is the part of the name that an error may repeat.
fn check(name: &str, max: usize, shown: &str) -> Result<(), String> {
    let expected = || {
        format!(
            "expected 1 to {max} of a-z, A-Z, 0-9, hyphen, underscore and dot, beginning and ending with a letter or digit"
        )
    };
    if name.is_empty() {
        return Err(format!("is empty; {}", expected()));
    }
    if name.chars().count() > max {
        return Err(format!(
            "is {} characters long; {}",
            name.chars().count(),
            expected()
        ));
    }
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !edge(name.chars().next()) || !edge(name.chars().next_back()) || !name.chars().all(inner) {
        let what = match shown {
            "" => "is not a valid name".to_owned(),
            name => format!("{name:?} is not a valid name"),
        };
        return Err(format!("{what}; {}", expected()));
    }
    Ok(())
}

/// Validates the key and value of a label by the rules of Kubernetes
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>).
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name.
pub fn check_label(key: &str, value: &str) -> Result<(), String> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    check(name, MAX_NAME, name).map_err(|why| format!("key {key:?}: {why}"))?;
    if let Some(prefix) = prefix {
        let part = |part: &str| {
            !part.is_empty()
                && part
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        };
        if prefix.len() > 253 || !prefix.split('.').all(part) {
            return Err(format!(
                "key {key:?}: what is before the slash is not a DNS name"
            ));
        }
    }
    if value.is_empty() {
        return Ok(());
    }
    check(value, MAX_NAME, value).map_err(|why| format!("value of {key:?}: {why}"))
}

/// Returns the name of a node: the group path with slashes replaced by hyphens, a hyphen, and the ordinal
/// (`data-hot-1`).
#[must_use]
pub fn node_name(group: &str, ordinal: u32) -> String {
    format!("{}-{ordinal}", group.replace('/', "-"))
}

/// Returns the id of a node: its name, a hyphen, and five characters of the hash of its slot (`data-hot-1-x7k2p`). Ids
/// are never reused because slots are not.
#[must_use]
pub fn node_id(group: &str, ordinal: u32, owner: Uuid, request: Uuid, index: u32) -> String {
    // No vowels or lookalike characters, as in the random names of Kubernetes.
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut hash = Sha256::new();
    hash.update(owner.as_bytes());
    hash.update(request.as_bytes());
    hash.update(index.to_be_bytes());
    let digest = hash.finalize();
    let mut number = digest
        .iter()
        .take(8)
        .fold(0_u64, |n, byte| (n << 8) | u64::from(*byte));
    let mut id = node_name(group, ordinal);
    id.push('-');
    for _ in 0..5 {
        id.push(char::from(ALPHABET[(number % 27) as usize]));
        number /= 27;
    }
    id
}

/// The name that was most likely meant, if one is similar enough: at most a third of the letters are wrong, missing, too many
/// or swapped with their neighbour. Case does not matter.
pub fn closest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer names are not compared, since the work grows with the square of their length.
    const MAX_LENGTH: usize = 64;
    if wrong.len() > MAX_LENGTH {
        return None;
    }
    let wrong = wrong.to_lowercase();
    let most = (wrong.chars().count() / 3).max(1);
    let names = names.into_iter().filter(|name| name.len() <= MAX_LENGTH);
    names
        .map(|name| (strsim::osa_distance(&wrong, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_suggested_only_if_it_may_have_been_meant() {
        let known = ["local", "simulated"];
        for (wrong, meant) in [
            ("locl", Some("local")),
            ("Local", Some("local")),
            ("lcoal", Some("local")),
            ("simlated", Some("simulated")),
            ("aws", None),
            ("", None),
        ] {
            assert_eq!(closest(wrong, known), meant, "{wrong}");
        }
        assert_eq!(closest("ba", ["ab", "bc"]), Some("ab"), "the first of two");
        assert_eq!(closest(&"a".repeat(65), known), None);
    }

    #[test]
    fn names_of_the_oldest_sample_are_names() {
        for name in [
            "basic_cluster",
            "customDatacenter",
            "my-custom-plugin",
            "a",
            "0",
            "v1.2",
        ] {
            assert_eq!(check_cluster_name(name), Ok(()), "{name}");
        }
        for name in ["", "-a", "a-", "a b", "a/b", "ä", "_", &"x".repeat(41)] {
            assert!(check_cluster_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_cluster_in_a_namespace_has_a_name_that_is_valid_and_its_own() {
        assert_eq!(cluster_in_namespace("tenants", "blue"), "tenants.blue");
        let long = "a".repeat(30);
        let names: Vec<String> = ["blue", "red", "blue-"]
            .map(|name| cluster_in_namespace(&long, &format!("{name}-{long}")))
            .into();
        for name in &names {
            assert_eq!(check_cluster_name(name), Ok(()), "{name}");
        }
        assert!(names[0] != names[1] && names[0] != names[2], "{names:?}");
    }

    #[test]
    fn empty_text_is_shared() {
        assert!(Sym::ptr_eq(&sym(""), &sym("")));
    }

    #[test]
    fn labels_follow_kubernetes() {
        for (key, value) in [
            ("team", "payments"),
            ("kadende.io/version", "0.0.1"),
            ("a", ""),
        ] {
            assert_eq!(check_label(key, value), Ok(()), "{key}={value}");
        }
        for (key, value) in [
            ("", "x"),
            ("Example.com/a", "x"),
            ("a", "-"),
            ("a/b/c", "x"),
            ("-/a", "x"),
        ] {
            assert!(check_label(key, value).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn a_node_is_named_before_any_backend_names_it() {
        let (owner, request) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(node_name("data/hot", 1), "data-hot-1");
        let id = node_id("data/hot", 1, owner, request, 0);
        assert!(
            id.starts_with("data-hot-1-") && id.len() == "data-hot-1-".len() + 5,
            "{id}"
        );
        assert_eq!(id, node_id("data/hot", 1, owner, request, 0));
        assert_ne!(id, node_id("data/hot", 1, owner, request, 1));
    }
}
