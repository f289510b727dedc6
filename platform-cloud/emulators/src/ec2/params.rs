//! Parameters of a call in the query protocol, and its errors.

use std::collections::BTreeMap;

use crate::ec2::model::Tags;

/// Maximum number of values in all filters of a call.
const FILTER_VALUES: usize = 200;

/// An error in the API's terms.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wrong {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
}

pub(crate) type Outcome<T> = Result<T, Wrong>;

/// A client error.
pub(crate) fn wrong(code: &str, message: impl Into<String>) -> Wrong {
    Wrong {
        status: 400,
        code: code.into(),
        message: message.into(),
    }
}

pub(crate) fn invalid_value(name: &str, value: &str, why: &str) -> Wrong {
    wrong(
        "InvalidParameterValue",
        format!("Value ({value}) for parameter {name} is invalid. {why}"),
    )
}

/// Parameters by name; nested names are separated by dots, and list elements are numbered from 1.
#[derive(Clone, Default)]
pub(crate) struct Params(BTreeMap<String, String>);

impl Params {
    pub(crate) fn new(pairs: Vec<(String, String)>) -> Params {
        Params(pairs.into_iter().collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the value, or the API's error for a missing parameter.
    pub(crate) fn need(&self, name: &str) -> Outcome<&str> {
        match self.get(name) {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(wrong(
                "MissingParameter",
                format!("The request must contain the parameter {name}"),
            )),
        }
    }

    pub(crate) fn int(&self, name: &str) -> Outcome<Option<i64>> {
        let parse = |value: &str| {
            value
                .parse()
                .map_err(|_| invalid_value(name, value, "It must be a whole number."))
        };
        self.get(name).map(parse).transpose()
    }

    pub(crate) fn bool(&self, name: &str) -> Outcome<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(value) => Err(invalid_value(name, value, "It must be true or false.")),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter()
    }

    /// Whether the parameter, or any nested in it, is present.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name) || self.below(name).next().is_some()
    }

    fn below<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let prefix = format!("{name}.");
        let from = prefix.clone();
        self.0.range(from..).map_while(move |(key, value)| {
            key.strip_prefix(&prefix).map(|rest| (rest, value.as_str()))
        })
    }

    /// Returns the parameters nested in this name.
    pub(crate) fn part(&self, name: &str) -> Params {
        Params(
            self.below(name)
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// Returns a list of plain values, in the order of their numbers.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let numbered = self
            .below(name)
            .filter_map(|(key, value)| Some((key.parse::<u32>().ok()?, value)));
        numbered
            .collect::<BTreeMap<_, _>>()
            .into_values()
            .map(str::to_owned)
            .collect()
    }

    /// Returns a list of nested values, in the order of their numbers.
    pub(crate) fn items(&self, name: &str) -> Vec<Params> {
        let mut items: BTreeMap<u32, Params> = BTreeMap::new();
        for (key, value) in self.below(name) {
            let Some((number, rest)) = key.split_once('.') else {
                continue;
            };
            if let Ok(number) = number.parse() {
                items
                    .entry(number)
                    .or_default()
                    .0
                    .insert(rest.to_owned(), value.to_owned());
            }
        }
        items.into_values().collect()
    }

    /// Merges these parameters over those of a launch template: a parameter of the request replaces that of the
    /// template as a whole, except for tags, which are merged.
    pub(crate) fn over(&self, template: &Params) -> Params {
        let mut merged = BTreeMap::new();
        for (key, value) in &self.0 {
            let number = key
                .strip_prefix("TagSpecification.")
                .and_then(|rest| rest.split_once('.'));
            let after = number.and_then(|(number, rest)| Some((number.parse::<u32>().ok()?, rest)));
            // Numbered after those of the template, so that they take precedence.
            let key = after.map_or_else(
                || key.clone(),
                |(n, rest)| format!("TagSpecification.{}.{rest}", n + 1000),
            );
            merged.insert(key, value.clone());
        }
        for (key, value) in &template.0 {
            let top = key.split('.').next().unwrap_or_default();
            if top == "TagSpecification" || !self.has(top) {
                merged.insert(key.clone(), value.clone());
            }
        }
        Params(merged)
    }

    /// Returns the tags of a list of keys and values.
    pub(crate) fn tags(&self, name: &str) -> Outcome<Tags> {
        let mut tags = Tags::new();
        for item in self.items(name) {
            let key = item.need("Key")?.to_owned();
            let value = item.get("Value").unwrap_or_default().to_owned();
            check_tag(&key, &value)?;
            if tags.insert(key.clone(), value).is_some() {
                return Err(wrong(
                    "InvalidParameterValue",
                    format!("Duplicate tag key '{key}' specified."),
                ));
            }
        }
        if tags.len() > 50 {
            return Err(wrong(
                "TagLimitExceeded",
                "The maximum number of Tags for a resource has been reached.",
            ));
        }
        Ok(tags)
    }

    /// Returns the tags for each type of resource that the call creates.
    pub(crate) fn tag_specifications(&self, kinds: &[&str]) -> Outcome<BTreeMap<String, Tags>> {
        let mut all: BTreeMap<String, Tags> = BTreeMap::new();
        for item in self.items("TagSpecification") {
            let kind = item.need("ResourceType")?;
            if !kinds.contains(&kind) {
                let message =
                    format!("'{kind}' is not a valid taggable resource type for this operation.");
                return Err(wrong("InvalidParameterValue", message));
            }
            all.entry(kind.to_owned())
                .or_default()
                .append(&mut item.tags("Tag")?);
        }
        Ok(all)
    }

    pub(crate) fn tags_for(&self, kind: &str) -> Outcome<Tags> {
        Ok(self
            .tag_specifications(&[kind])?
            .remove(kind)
            .unwrap_or_default())
    }
}

fn check_tag(key: &str, value: &str) -> Outcome<()> {
    if key.to_ascii_lowercase().starts_with("aws:") {
        let message = "Tag keys starting with 'aws:' are reserved for internal use";
        return Err(wrong("InvalidParameterValue", message));
    }
    if key.chars().count() > 128 {
        return Err(wrong(
            "InvalidParameterValue",
            format!("Tag key exceeds the maximum length of 128 characters: {key}"),
        ));
    }
    if value.chars().count() > 256 {
        let message =
            format!("Tag value exceeds the maximum length of 256 characters, of the key '{key}'");
        return Err(wrong("InvalidParameterValue", message));
    }
    Ok(())
}

/// Filters of a list: all must match, each by at least one of its values, with the wildcards `*` and `?`.
pub(crate) struct Filters(Vec<(String, Vec<String>)>);

impl Filters {
    /// `known` lists the filters that the call supports; filters by tag are always supported.
    pub(crate) fn new(params: &Params, known: &[&str]) -> Outcome<Filters> {
        let mut filters = Vec::new();
        for item in params.items("Filter") {
            let name = item.need("Name")?.to_owned();
            if !(name.starts_with("tag:") || name == "tag-key" || known.contains(&name.as_str())) {
                return Err(wrong(
                    "InvalidParameterValue",
                    format!("The filter '{name}' is invalid"),
                ));
            }
            let values = item.list("Value");
            if values.is_empty() {
                return Err(wrong(
                    "InvalidParameterValue",
                    "The filter 'null' is invalid",
                ));
            }
            filters.push((name, values));
        }
        if filters
            .iter()
            .map(|(_, values)| values.len())
            .sum::<usize>()
            > FILTER_VALUES
        {
            let message = format!(
                "The maximum number of filter values specified on a single call is {FILTER_VALUES}"
            );
            return Err(wrong("FilterLimitExceeded", message));
        }
        Ok(Filters(filters))
    }

    pub(crate) fn hold(&self, tags: &Tags, field: impl Fn(&str) -> Vec<String>) -> bool {
        self.0.iter().all(|(name, values)| {
            let any = |text: &str| values.iter().any(|value| like(value, text));
            if let Some(key) = name.strip_prefix("tag:") {
                tags.get(key).is_some_and(|value| any(value))
            } else if name == "tag-key" {
                tags.keys().any(|key| any(key))
            } else {
                field(name).iter().any(|text| any(text))
            }
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.0
            .iter()
            .map(|(name, values)| (name.as_str(), values.as_slice()))
    }
}

/// Whether a text matches a pattern in which `*` is any text and `?` any character.
pub(crate) fn like(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['*', '?']) {
        return pattern == text;
    }
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                p = at + 1;
                t = from + 1;
                star = Some((at, from + 1));
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::{Params, like};

    #[test]
    fn patterns_match_as_the_api_documents() {
        assert!(like("debian-12-amd64-*", "debian-12-amd64-20260101"));
        assert!(like("*a?c*", "xxabcyy"));
        assert!(like("*", ""));
        assert!(!like("a*b", "abc"));
        assert!(!like("?", ""));
    }

    #[test]
    fn lists_come_in_the_order_of_their_numbers() {
        let pairs = (1..=11).map(|n| (format!("InstanceId.{n}"), format!("i-{n}")));
        let list = Params::new(pairs.collect()).list("InstanceId");
        assert_eq!(list.first().map(String::as_str), Some("i-1"));
        assert_eq!(list.last().map(String::as_str), Some("i-11"));
    }
}
