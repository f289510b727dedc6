//! Versions as people write them, and version requirements.

use std::fmt;

use drover_core::{Error, Result};
use semver::{BuildMetadata, Prerelease, Version, VersionReq};
use serde::Deserialize;

/// A version requirement: comma-separated semver comparators, or `*` for any version.
///
/// A bare version implies a caret: `3.4` accepts 3.4 and up, below 4.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Requirement {
    text: String,
    /// `None` accepts any version.
    parsed: Option<VersionReq>,
}

impl Requirement {
    /// Parses a requirement.
    ///
    /// # Errors
    ///
    /// `Invalid`, with a description of what is expected.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if text == "*" {
            return Ok(Self {
                text: text.to_owned(),
                parsed: None,
            });
        }
        let plain = text
            .split(',')
            .map(|part| strip_v(part.trim()))
            .collect::<Vec<_>>()
            .join(", ");
        let parsed = VersionReq::parse(&plain).map_err(|error| {
            Error::invalid(
                "version",
                format!("`{text}` is not a version requirement ({error}); write ^16, 3.4, \">=3.4, <5\" or \"*\""),
            )
        })?;
        Ok(Self {
            text: text.to_owned(),
            parsed: Some(parsed),
        })
    }

    /// Whether a version satisfies the requirement. A version that is not a number (`latest`) satisfies only `*`; an
    /// empty version, which leaves the choice to the catalogue, satisfies all requirements.
    #[must_use]
    pub fn accepts(&self, version: &str) -> bool {
        let Some(required) = &self.parsed else {
            return true;
        };
        if version.trim().is_empty() {
            return true;
        }
        let Some(mut version) = comparable(version) else {
            return false;
        };
        // In semver a pre-release matches only requirements that name one. Here `^8` is meant to include 8.0.0-rc1.
        if required
            .comparators
            .iter()
            .all(|comparator| comparator.pre.is_empty())
        {
            version.pre = Prerelease::EMPTY;
        }
        required.matches(&version)
    }
}

impl TryFrom<String> for Requirement {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Removes the `v` of `v1.30` or `>=v1.30`.
fn strip_v(part: &str) -> String {
    let operator = part.len()
        - part
            .trim_start_matches(['=', '<', '>', '^', '~', ' '])
            .len();
    let (operator, version) = part.split_at(operator);
    let version = match version.strip_prefix(['v', 'V']) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => rest,
        _ => version,
    };
    format!("{operator}{version}")
}

/// Parses `16`, `3.4`, `v1.30.2`, `17beta1` or `6.2.14-alpine`; a fourth number is not compared.
fn comparable(text: &str) -> Option<Version> {
    let text = strip_v(text.trim());
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (numbers, suffix) = text.split_at(end);
    let mut numbers = numbers
        .trim_end_matches('.')
        .split('.')
        .map(str::parse::<u64>);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next().transpose().ok()?.unwrap_or(0);
    let patch = numbers.next().transpose().ok()?.unwrap_or(0);
    let pre = suffix
        .split('+')
        .next()
        .unwrap_or("")
        .trim_start_matches(['-', '.', '_']);
    let pre = if pre.is_empty() {
        Prerelease::EMPTY
    } else {
        Prerelease::new(pre).unwrap_or(Prerelease::EMPTY)
    };
    Some(Version {
        major,
        minor,
        patch,
        pre,
        build: BuildMetadata::EMPTY,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_people_write_them_compare() {
        for (requirement, version, expected) in [
            ("^16", "16", true),
            ("^16", "16.4", true),
            ("^16", "v16.4", true),
            ("^16", "17", false),
            ("3.4", "3.4", true),
            ("3.4", "3.9.1", true),
            ("3.4", "3.3", false),
            (">=3.4, <5", "4.0.12", true),
            (">=3.4, <5", "5", false),
            (">= v1.30, <v1.31", "v1.30.2", true),
            ("~7.0", "7.0.12", true),
            ("~7.0", "7.1", false),
            ("=7.0.12", "7.0.12", true),
            ("^17", "17beta1", true),
            ("<17", "17beta1", false),
            ("^8", "8.0.0-rc1", true),
            (">=8.0.0-rc2, <9", "8.0.0-rc1", false),
            ("^6.2", "6.2.14-alpine", true),
            ("^1", "1.2.3.4", true),
            ("16.*", "16.9", true),
            ("*", "latest", true),
            ("^1", "latest", false),
            ("^16", "", true),
            ("*", "", true),
            ("^99999999999999999999999", "1", false),
        ] {
            match Requirement::parse(requirement) {
                Ok(parsed) => assert_eq!(
                    parsed.accepts(version),
                    expected,
                    "{requirement} against {version}"
                ),
                Err(_) => assert!(!expected, "{requirement}"),
            }
        }
    }

    #[test]
    fn a_requirement_that_is_none_says_what_was_expected() {
        for text in ["", "newest", ">=1 || <3", "1.x.y.z"] {
            let error = Requirement::parse(text).expect_err(text);
            assert!(error.message().contains("write ^16"), "{error}");
        }
    }
}
