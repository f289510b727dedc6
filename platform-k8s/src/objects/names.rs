//! Names of Kubernetes objects.

use drover_platform::identity::{digest, hex};
use sha2::{Digest, Sha256};

/// Maximum length: a StatefulSet may have 52 characters, and templates add suffixes.
const MAX: usize = 40;
/// Characters kept in front of the hash.
const KEPT: usize = 31;

/// A node id as a DNS label that starts with a letter, which is a valid name for all kinds: unchanged if possible,
/// otherwise its first characters and a hash.
#[must_use]
pub fn dns_name(id: &str) -> String {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let begins = id.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if begins && id.len() <= MAX && id.bytes().all(inner) && !id.ends_with('-') {
        return id.to_owned();
    }
    let kept: String = id
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .skip_while(|c| !c.is_ascii_lowercase())
        .take(KEPT)
        .collect();
    let kept = if kept.is_empty() { "n" } else { &kept };
    let hash = hex(&Sha256::digest(id.as_bytes())[..4]);
    format!("{}-{hash}", kept.trim_end_matches('-'))
}

/// Name of the Secret with the user data of a node.
#[must_use]
pub fn bootstrap_secret(id: &str) -> String {
    format!("bootstrap-{}", dns_name(id))
}

/// Name for objects that the nodes of a group share, derived from cluster and group.
pub(crate) fn group_name(cluster_id: &str, group: &str) -> String {
    dns_name(&format!("{cluster_id}-{group}"))
}

/// Name for objects that no other group may have, whoever owns it.
pub(crate) fn own_group_name(owner: &str, cluster_id: &str, group: &str) -> String {
    let hash = digest([owner, cluster_id, group], 8);
    let name: String = group_name(cluster_id, group)
        .chars()
        .take(MAX - 17)
        .collect();
    format!("{}-{hash}", name.trim_end_matches('-'))
}

/// Whether a name can be a segment of an API path. The API server checks the other rules of a kind for names.
pub(crate) fn is_path_segment(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name != "."
        && name != ".."
        && !name
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || matches!(c, '/' | '%' | '?' | '#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_a_name_stays_as_it_is() {
        assert_eq!(dns_name("db-1-x7k2p"), "db-1-x7k2p");
        assert_eq!(bootstrap_secret("db-1-x7k2p"), "bootstrap-db-1-x7k2p");
    }

    #[test]
    fn every_other_id_becomes_a_valid_name_of_its_own() {
        let long = "data-".repeat(30) + "0-x7k2p";
        let ids = [
            "Db-1-x7k2p",
            "dB-1-x7k2p",
            "db_1-x7k2p",
            "db.1-x7k2p",
            "1-db",
            "_",
            "ü",
            "db-",
            &long,
        ];
        let mut seen = std::collections::BTreeSet::new();
        for id in ids {
            let name = dns_name(id);
            assert!(name.len() <= MAX, "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
            assert!(!name.ends_with('-'), "{name}");
            assert_eq!(dns_name(&name), name, "a name is its own name");
            assert!(seen.insert(name));
        }
    }

    #[test]
    fn two_groups_never_have_one_name_of_their_own() {
        let groups = [("o", "a-b", "c"), ("o", "a", "b-c"), ("p", "a", "b-c")];
        let names = groups.map(|(owner, cluster, group)| own_group_name(owner, cluster, group));
        for name in &names {
            assert!(name.starts_with("a-b-c-"), "{name}");
            assert_eq!(dns_name(name), *name);
        }
        assert!(names[0] != names[1] && names[1] != names[2]);
        assert_eq!(
            dns_name(&own_group_name("o", &"a".repeat(60), "db")).len(),
            MAX
        );
    }

    #[test]
    fn a_name_cannot_leave_its_path() {
        assert!(is_path_segment("db-1"));
        for name in ["", ".", "..", "a/b", "a%2fb", "a?b", "a#b", "a b", "a\n"] {
            assert!(!is_path_segment(name), "{name:?}");
        }
    }
}
