//! Deny rules, which take precedence over all grants.

use drover_core::{Error, Reason};
use serde::Deserialize;

use super::{Identity, oidc, policy};

/// Denied subjects as written in an access file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DenialFile {
    subjects: Vec<String>,
}

/// Denied subjects.
#[derive(Debug, Default)]
pub(super) struct Denials(Vec<String>);

impl Denials {
    pub(super) fn read(files: Vec<DenialFile>) -> Result<Self, String> {
        let mut all = Vec::new();
        for (at, file) in files.into_iter().enumerate() {
            let place = |why: String| format!("deny[{at}]: {why}");
            if file.subjects.is_empty() {
                return Err(place("subjects is empty".to_owned()));
            }
            for subject in &file.subjects {
                policy::check_subject(subject).map_err(place)?;
            }
            all.extend(file.subjects);
        }
        Ok(Self(all))
    }

    /// Whether an identity matches a denied subject.
    fn include(&self, who: &Identity) -> bool {
        self.0.iter().any(|subject| who.is(subject))
    }

    /// Rejects a caller that is denied by its identity, or by the certificate that it presented besides a token. Also
    /// rejects a caller for whom this cannot be determined, because its token does not contain all of its groups.
    pub(super) fn check(&self, who: &Identity, shown: Option<&Identity>) -> Result<(), Error> {
        match std::iter::once(who)
            .chain(shown)
            .find(|who| self.include(who))
        {
            None if who.groups_withheld && self.names_groups() => Err(oidc::refused(
                "its groups cannot be read in full: the provider has left them out of it, and the access rules deny groups",
            )),
            None => Ok(()),
            Some(who) => Err(Error::new(
                Reason::PermissionDenied,
                format!("{who} is denied by the access rules"),
            )),
        }
    }

    /// Whether groups are needed to decide about an identity.
    fn names_groups(&self) -> bool {
        self.0.iter().any(|subject| subject.starts_with("group:"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::access::policy::Policy;

    #[test]
    fn a_denial_that_means_nobody_is_refused_with_its_place() {
        for (text, words) in [
            ("deny: [{subjects: []}]", "deny[0]: subjects is empty"),
            (
                "deny: [{subjects: ['cn:a']}, {subjects: [bob]}]",
                "deny[1]: \"bob\" is not a subject",
            ),
            ("deny: ['cn:a']", "line 1"),
            ("deny: [{subjects: ['cn:a'], role: admin}]", "role"),
        ] {
            let why = Policy::read(Path::new("x.yaml"), text, None).unwrap_err();
            assert!(why.to_string().contains(words), "{why}");
        }
    }
}
