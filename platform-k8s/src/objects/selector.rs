//! Label selectors in settings.

use std::collections::BTreeMap;

/// A label selector: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector(Vec<(String, Requirement)>);

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl Selector {
    /// Parses a selector. An empty one matches everything. `None` if it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = vec![String::new()];
        let mut depth = 0_u32;
        for c in text.chars() {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.checked_sub(1)?,
                _ => {}
            }
            match c {
                ',' if depth == 0 => parts.push(String::new()),
                c => parts.last_mut()?.push(c),
            }
        }
        if depth != 0 {
            return None;
        }
        let parts = parts.iter().map(|part| part.trim());
        let parts = parts.filter(|part| !part.is_empty());
        parts.map(requirement).collect::<Option<_>>().map(Self)
    }

    /// The first requirement that the labels do not meet, for people.
    #[must_use]
    pub fn unmet(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let meets = |key: &str, requirement: &Requirement| {
            let value = labels.get(key);
            match requirement {
                Requirement::In(values) => value.is_some_and(|value| values.contains(value)),
                Requirement::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Requirement::Exists => value.is_some(),
                Requirement::Missing => value.is_none(),
            }
        };
        let unmet = self.0.iter().find(|(key, it)| !meets(key, it))?;
        Some(match &unmet.1 {
            Requirement::In(values) => format!("{} in ({})", unmet.0, values.join(",")),
            Requirement::NotIn(values) => format!("{} notin ({})", unmet.0, values.join(",")),
            Requirement::Exists => unmet.0.clone(),
            Requirement::Missing => format!("!{}", unmet.0),
        })
    }
}

fn requirement(part: &str) -> Option<(String, Requirement)> {
    let key = |text: &str| {
        let text = text.trim();
        crate::labels::is_key(text).then(|| text.to_owned())
    };
    let one = |text: &str| vec![text.trim().to_owned()];
    if let Some(rest) = part.strip_prefix('!') {
        return Some((key(rest)?, Requirement::Missing));
    }
    if let Some((left, right)) = part.split_once("!=") {
        return Some((key(left)?, Requirement::NotIn(one(right))));
    }
    if let Some((left, right)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some((key(left)?, Requirement::In(one(right))));
    }
    if let Some((left, right)) = part.split_once('(') {
        let values = right.strip_suffix(')')?;
        let values = values.split(',').map(|it| it.trim().to_owned()).collect();
        let left = left.trim();
        let (name, word) = left.split_once(char::is_whitespace)?;
        return Some(match word.trim() {
            "in" => (key(name)?, Requirement::In(values)),
            "notin" => (key(name)?, Requirement::NotIn(values)),
            _ => return None,
        });
    }
    Some((key(part)?, Requirement::Exists))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmet(selector: &str) -> Option<String> {
        let labels = [("a", "b"), ("e", "f")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Selector::parse(selector)
            .unwrap()
            .unmet(&BTreeMap::from(labels))
    }

    #[test]
    fn every_form_is_understood() {
        for met in [
            "",
            "a=b",
            "a==b, e=f",
            "a != c",
            "a in (b, c),e notin (g)",
            "a",
            "!x",
            "x!=y",
            "x notin (y)",
        ] {
            assert_eq!(unmet(met), None, "{met}");
        }
        for not in [
            "a=c",
            "a!=b",
            "a in (c,d)",
            "e notin (f)",
            "x",
            "!a",
            "a,x=1",
        ] {
            assert!(unmet(not).is_some(), "{not}");
        }
    }

    #[test]
    fn anything_else_is_none() {
        for bad in ["a in (b", "a)", "a within (b)", "in (b)", "-a=b", "a b"] {
            assert_eq!(Selector::parse(bad), None, "{bad}");
        }
    }
}
