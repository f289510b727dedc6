//! Allow lists for property values.
//!
//! Each property has a list of patterns. In a string, `*` matches any number of characters. A map is a pattern for
//! maps: the value must have every key of the pattern that does not contain `*`, and no keys that the pattern lacks. A
//! list matches if it is not empty and each of its entries matches. An empty list would remove the template's entries,
//! so only `*` allows it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::spec::Object;

/// Key of the list that applies to properties without a list of their own.
const OTHERS: &str = "*";
/// Maximum number of patterns quoted in a refusal.
const NAMED: usize = 10;

/// Allow lists by property. Properties without a list are unrestricted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(BTreeMap<String, Vec<Value>>);

impl AllowList {
    /// Builds an allow list from the patterns of each property; `*` applies to properties without a list of their own.
    ///
    /// # Errors
    ///
    /// The offending property and the reason, if a list contains anything but strings, numbers, booleans and maps of
    /// them.
    pub fn new(lists: BTreeMap<String, Vec<Value>>) -> Result<Self, (String, String)> {
        for (property, patterns) in &lists {
            if property.is_empty() {
                return Err((String::new(), "the name of a property is empty".to_owned()));
            }
            if !patterns.iter().all(is_pattern) {
                let why = "expected texts, numbers, truth values and maps of them".to_owned();
                return Err((property.clone(), why));
            }
        }
        Ok(Self(lists))
    }

    /// Returns whether nothing is restricted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the properties that are not allowed, each with the reason. Values are never repeated because they may be
    /// secret.
    #[must_use]
    pub fn refusals(&self, properties: &Object) -> Vec<(String, String)> {
        let mut refused = Vec::new();
        for (property, value) in properties {
            let Some(patterns) = self.0.get(property).or_else(|| self.0.get(OTHERS)) else {
                continue;
            };
            let allowed = |value: &Value| patterns.iter().any(|pattern| allows(pattern, value));
            match value {
                // `null` is the same as leaving the property out.
                Value::Null => {}
                Value::Array(values) if !values.is_empty() => {
                    let wrong = values.iter().enumerate().filter(|(_, one)| !allowed(one));
                    refused.extend(
                        wrong.map(|(at, one)| (format!("{property}[{at}]"), why(patterns, one))),
                    );
                }
                value if allowed(value) => {}
                value => refused.push((property.clone(), why(patterns, value))),
            }
        }
        refused.sort();
        refused
    }
}

/// Returns whether a string matches a pattern, in which `*` stands for any number of characters.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(mut part) = parts.next() else {
        return rest.is_empty();
    };
    for next in parts {
        // Matching each part as early as possible leaves the most text for the parts that follow.
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
        part = next;
    }
    rest.ends_with(part)
}

/// Describes what the patterns allow, for error messages.
#[must_use]
pub fn describe(patterns: &[Value]) -> String {
    if patterns.is_empty() {
        return "may not be set".to_owned();
    }
    format!("is not allowed; allowed is {}", named(patterns))
}

/// Explains why a value was refused.
fn why(patterns: &[Value], value: &Value) -> String {
    if patterns.is_empty() || !has_empty_list(value) {
        return describe(patterns);
    }
    format!(
        "has an empty list, which is not allowed because it replaces the template's; allowed is {}",
        named(patterns)
    )
}

fn named(patterns: &[Value]) -> String {
    let mut named: Vec<String> = patterns.iter().take(NAMED).map(text).collect();
    if patterns.len() > NAMED {
        named.push("…".to_owned());
    }
    named.join(", ")
}

fn has_empty_list(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.is_empty() || values.iter().any(has_empty_list),
        Value::Object(fields) => fields.values().any(has_empty_list),
        _ => false,
    }
}

fn is_pattern(pattern: &Value) -> bool {
    match pattern {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => true,
        Value::Object(fields) => fields.values().all(is_pattern),
        Value::Null | Value::Array(_) => false,
    }
}

fn allows(pattern: &Value, value: &Value) -> bool {
    match (pattern, value) {
        (Value::String(pattern), _) if pattern == "*" => true,
        (_, Value::Array(values)) => {
            !values.is_empty() && values.iter().all(|value| allows(pattern, value))
        }
        (Value::String(pattern), Value::String(_) | Value::Number(_) | Value::Bool(_)) => {
            matches(pattern, &text(value))
        }
        (
            Value::Number(_) | Value::Bool(_),
            Value::String(_) | Value::Number(_) | Value::Bool(_),
        ) => text(pattern) == text(value),
        (Value::Object(pattern), Value::Object(value)) => allows_map(pattern, value),
        _ => false,
    }
}

fn allows_map(pattern: &Object, value: &Object) -> bool {
    let there = pattern
        .keys()
        .filter(|key| !key.contains('*'))
        .all(|key| value.get(key).is_some_and(|value| !value.is_null()));
    let allowed = |(key, value): (&String, &Value)| match pattern.get(key) {
        Some(own) => allows(own, value),
        None => pattern
            .iter()
            .any(|(name, of)| name.contains('*') && matches(name, key) && allows(of, value)),
    };
    there && value.iter().all(allowed)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(lists: Value, properties: Value) -> Vec<String> {
        let lists = serde_json::from_value(lists).unwrap();
        let Value::Object(properties) = properties else {
            panic!("an object")
        };
        let refusals = AllowList::new(lists).unwrap().refusals(&properties);
        refusals.into_iter().map(|(property, _)| property).collect()
    }

    #[test]
    fn an_asterisk_stands_for_anything() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "a"),
            ("orders-*", "orders-"),
            ("orders-*", "orders-eu"),
            ("*-db", "x-db"),
            ("a*b*c", "abbc"),
            ("a*b*c", "axbxc"),
            ("a", "a"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", "ab"),
            ("orders-*", "orders"),
            ("orders-*", "xorders-eu"),
            ("a*b*c", "acb"),
            ("a*a", "a"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn what_has_no_list_may_be_anything_unless_there_is_a_list_for_all_others() {
        let properties = || json!({"namespace": "shop", "diskSize": 20, "key": null});
        assert!(refused(json!({}), properties()).is_empty());
        assert!(refused(json!({"namespace": ["sh*"]}), properties()).is_empty());
        assert_eq!(
            refused(json!({"*": []}), properties()),
            ["diskSize", "namespace"]
        );
        assert_eq!(
            refused(json!({"*": [], "namespace": ["shop"]}), properties()),
            ["diskSize"]
        );
        assert_eq!(
            refused(
                json!({"namespace": ["bank"], "diskSize": [20, "1*"]}),
                properties()
            ),
            ["namespace"]
        );
    }

    #[test]
    fn each_entry_of_a_list_has_to_be_allowed() {
        let groups = json!({"securityGroups": ["sg-1", "web", "sg-2"]});
        assert_eq!(
            refused(json!({"securityGroups": ["sg-*"]}), groups),
            ["securityGroups[1]"]
        );
    }

    #[test]
    fn an_empty_list_is_allowed_only_where_anything_is() {
        let none = || json!({"securityGroups": []});
        for (lists, fits) in [
            (json!({}), true),
            (json!({"image": ["debian"]}), true),
            (json!({"securityGroups": ["*"]}), true),
            (json!({"securityGroups": ["sg-1", "*"]}), true),
            (json!({"*": ["*"]}), true),
            (json!({"securityGroups": ["sg-*"]}), false),
            (json!({"securityGroups": [{"id": "*"}]}), false),
            (json!({"securityGroups": []}), false),
            (json!({"*": []}), false),
            (json!({"*": ["sg-*"]}), false),
        ] {
            let wrong = refused(lists.clone(), none());
            let wanted: &[&str] = if fits { &[] } else { &["securityGroups"] };
            assert_eq!(wrong, wanted, "{lists}");
        }
        for (list, given, wanted) in [
            (json!(["sg-*"]), json!([[]]), "groups[0]"),
            (json!(["sg-*"]), json!([["sg-1"], []]), "groups[1]"),
            (json!([{"ids": "sg-*"}]), json!({"ids": []}), "groups"),
            (json!([{"ids": "sg-*"}]), json!([{"ids": []}]), "groups[0]"),
        ] {
            let wrong = refused(json!({"groups": list}), json!({"groups": given}));
            assert_eq!(wrong, [wanted], "{given}");
        }
        let nested = refused(
            json!({"groups": [{"ids": "*"}]}),
            json!({"groups": {"ids": []}}),
        );
        assert!(nested.is_empty(), "{nested:?}");
    }

    #[test]
    fn who_gives_an_empty_list_is_told_what_it_would_do() {
        let lists = serde_json::from_value(json!({"groups": ["sg-*", {"ids": "a"}]})).unwrap();
        let lists = AllowList::new(lists).unwrap();
        for given in [json!([]), json!({"ids": []})] {
            let given = json!({"groups": given});
            let refusals = lists.refusals(given.as_object().unwrap());
            let (property, why) = &refusals[0];
            assert_eq!(property, "groups");
            assert!(why.contains("empty list"), "{why}");
            assert!(why.contains("replaces the template's"), "{why}");
            assert!(why.contains("allowed is sg-*"), "{why}");
        }
    }

    #[test]
    fn a_map_has_every_key_of_its_pattern_and_no_other() {
        let allowed = json!({"tolerations": [{"key": "db", "operator": "Equal", "value": "x*"}]});
        for (toleration, fits) in [
            (
                json!({"key": "db", "operator": "Equal", "value": "x1"}),
                true,
            ),
            (
                json!({"key": "db", "operator": "Equal", "value": "y"}),
                false,
            ),
            (json!({"key": "db", "operator": "Equal"}), false),
            (
                json!({"key": "db", "operator": "Equal", "value": null}),
                false,
            ),
            // This one would tolerate every taint.
            (json!({"operator": "Exists"}), false),
            (
                json!({"key": "db", "operator": "Equal", "value": "x", "effect": "NoExecute"}),
                false,
            ),
            (json!("db"), false),
        ] {
            let wrong = refused(allowed.clone(), json!({"tolerations": [toleration]}));
            assert_eq!(wrong.is_empty(), fits, "{wrong:?}");
        }
        let names = json!({"env": [{"APP_*": "*"}]});
        assert!(refused(names.clone(), json!({"env": {"APP_A": "1", "APP_B": "2"}})).is_empty());
        assert_eq!(
            refused(names, json!({"env": {"APP_A": "1", "PATH": "/x"}})),
            ["env"]
        );
    }

    #[test]
    fn a_refusal_says_what_is_allowed_and_not_what_was_given() {
        let lists = BTreeMap::from([(
            "image".to_owned(),
            vec![json!("debian*"), json!({"owner": "self"})],
        )]);
        let given = json!({"image": "s3cret"});
        let refusals = AllowList::new(lists)
            .unwrap()
            .refusals(given.as_object().unwrap());
        let (_, why) = &refusals[0];
        assert!(why.contains("debian*") && why.contains("self"), "{why}");
        assert!(!why.contains("s3cret"), "{why}");
    }

    #[test]
    fn a_list_of_something_else_is_refused_with_its_property() {
        for lists in [
            json!({"image": [null]}),
            json!({"image": [["a"]]}),
            json!({"image": [{"a": []}]}),
        ] {
            let lists = serde_json::from_value(lists).unwrap();
            assert_eq!(AllowList::new(lists).unwrap_err().0, "image");
        }
    }
}
