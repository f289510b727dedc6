//! Label selectors in settings.

use std::collections::{BTreeMap, BTreeSet};

use kube::core::{Expression, SelectorExt as _};

/// A label selector: `a=b,c!=d,e in (f,g),h notin (i),j,!k`. kube matches selectors, but does not parse them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector(Vec<Expression>);

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
        parts.map(expression).collect::<Option<_>>().map(Self)
    }

    /// The first requirement that the labels do not meet, for people.
    #[must_use]
    pub fn unmet(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let unmet = self.0.iter().find(|it| !it.matches(labels));
        unmet.map(Expression::to_string)
    }
}

fn expression(part: &str) -> Option<Expression> {
    let key = |text: &str| {
        let text = text.trim();
        crate::labels::is_key(text).then(|| text.to_owned())
    };
    let one = |text: &str| BTreeSet::from([text.trim().to_owned()]);
    if let Some(rest) = part.strip_prefix('!') {
        return Some(Expression::DoesNotExist(key(rest)?));
    }
    if let Some((left, right)) = part.split_once("!=") {
        return Some(Expression::NotIn(key(left)?, one(right)));
    }
    if let Some((left, right)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(Expression::In(key(left)?, one(right)));
    }
    if let Some((left, right)) = part.split_once('(') {
        let values = right.strip_suffix(')')?;
        let values = values.split(',').map(|it| it.trim().to_owned()).collect();
        let left = left.trim();
        let (name, word) = left.split_once(char::is_whitespace)?;
        return Some(match word.trim() {
            "in" => Expression::In(key(name)?, values),
            "notin" => Expression::NotIn(key(name)?, values),
            _ => return None,
        });
    }
    Some(Expression::Exists(key(part)?))
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
