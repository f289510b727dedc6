//! Wording of messages.

use std::collections::BTreeSet;

use drover_core::name;

use super::path;

/// What is said of a name that no registered platform has.
pub(crate) fn no_platform(wanted: &str, registered: &BTreeSet<String>) -> String {
    let names: Vec<&str> = registered.iter().map(String::as_str).collect();
    let known = match names.as_slice() {
        [] => "none is registered".to_owned(),
        names => format!("registered: {}", names.join(", ")),
    };
    if let Some(meant) = name::closest(wanted, names) {
        return format!("no platform `{wanted}`, did you mean `{meant}`? ({known})");
    }
    let simulated = match name::check_name(wanted) {
        Ok(()) => format!("; to try it simulated: drover dev --simulate {wanted}"),
        Err(_) => String::new(),
    };
    format!("no platform `{wanted}` ({known}); to register one: docs/tasks/platform.md{simulated}")
}

/// Words with which a message goes on after the field that it is about.
const VERBS: [&str; 16] = [
    "are", "asks", "belongs", "brings", "cannot", "contains", "does", "has", "is", "lacks", "must",
    "names", "needs", "overlaps", "takes", "would",
];

/// A message about a field as a sentence.
pub(crate) fn sentence(path: &str, words: &str) -> String {
    let subject = path::last(path);
    let first = words.split(' ').next().unwrap_or_default();
    if subject.is_empty() {
        words.to_owned()
    } else if VERBS.contains(&first) {
        format!("`{subject}` {words}")
    } else if first == "expected" {
        format!("`{subject}`: {words}")
    } else {
        words.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_begins_with_its_verb_is_told_of_its_field() {
        let path = "spec.groups.db.health.interval";
        for (words, told) in [
            ("is negative", "`interval` is negative"),
            ("asks for nothing", "`interval` asks for nothing"),
            ("must be above 0", "`interval` must be above 0"),
            (
                "expected at least 100ms",
                "`interval`: expected at least 100ms",
            ),
            ("isolated", "isolated"),
            (
                "a cluster needs at least one group",
                "a cluster needs at least one group",
            ),
        ] {
            assert_eq!(sentence(path, words), told);
        }
        assert_eq!(sentence("", "is missing"), "is missing");
        assert_eq!(
            sentence("spec.groups.a.dependsOn[0]", "names itself"),
            "`dependsOn[0]` names itself"
        );
    }

    #[test]
    fn a_platform_that_is_not_registered_resembles_one_or_can_be_added() {
        let registered: BTreeSet<String> = ["local".to_owned()].into();
        assert_eq!(
            no_platform("locl", &registered),
            "no platform `locl`, did you mean `local`? (registered: local)"
        );
        assert_eq!(
            no_platform("aws", &registered),
            "no platform `aws` (registered: local); to register one: docs/tasks/platform.md; to try it simulated: drover \
             dev --simulate aws"
        );
        let text = no_platform("a b", &BTreeSet::new());
        assert_eq!(
            text,
            "no platform `a b` (none is registered); to register one: docs/tasks/platform.md"
        );
    }
}
