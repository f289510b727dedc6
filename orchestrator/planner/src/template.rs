//! Templates of platforms: a node that was created from an earlier template is outdated, like one from an earlier spec.

use drover_core::{
    Node, Sym,
    node::Request,
    spec::{Choice, Template},
};

use crate::{BackOffKey, BackOffKind, Op, Planner, Rollout};

/// Separates the hash of a choice from the digest of its template in the target of a rollout. Never part of a hash.
const SEPARATOR: char = '/';

/// Digest of the present template of a choice. Empty if not known.
pub(crate) fn digest(choice: &Choice) -> Sym {
    let template = choice.template.as_ref();
    template.map_or_else(Sym::default, |template| template.digest.clone())
}

/// Target of a rollout of a group, by its first choice.
pub(crate) fn target(choice: &Choice) -> Sym {
    match &choice.template {
        None => choice.spec_hash.clone(),
        Some(Template { digest, .. }) => format!("{}{SEPARATOR}{digest}", choice.spec_hash).into(),
    }
}

/// Whether two targets are the same rollout. A template that is not known, because its platform has not been reached
/// since the start or did not report it, does not count as a different one.
pub(crate) fn is_same(before: &str, now: &str) -> bool {
    let parts = |target: &str| match target.split_once(SEPARATOR) {
        Some((hash, digest)) => (hash.to_owned(), Some(digest.to_owned())),
        None => (target.to_owned(), None),
    };
    let ((old, was), (new, is)) = (parts(before), parts(now));
    old == new && (was.is_none() || is.is_none() || was == is)
}

impl Rollout {
    /// Whether a node was created from the spec of the rollout, but from another template.
    #[must_use]
    pub fn changes_template(&self, node: &Node) -> bool {
        let target = self.target.split_once(SEPARATOR);
        target.is_some_and(|(hash, digest)| {
            *node.spec_hash == *hash && !node.template.is_empty() && *node.template != *digest
        })
    }
}

impl Planner<'_> {
    /// Whether a node was created from an earlier template. Never while its request is open, because its platform may
    /// still report which one it used.
    pub(crate) fn is_of_old_template(&self, at: usize) -> bool {
        let node = &self.state.nodes[at];
        let group = self.input.groups.get(usize::from(self.marks[at].group));
        group.is_some_and(|group| group.newer_template(node).is_some())
            && !self.state.requests.contains_key(&node.request)
    }

    /// Records the template that the platform rendered, which it knows better than the record.
    pub(crate) fn take_template(&mut self, node: &Node, request: &Request) {
        if let Some(digest) = request
            .in_flight
            .rendered
            .as_ref()
            .filter(|said| **said != node.template)
        {
            self.op(Op::Template {
                slot: node.slot,
                digest: digest.clone(),
            });
        }
    }

    /// Clears back-offs that an earlier template caused, because they say nothing about the present one: as after a
    /// change of the spec, nodes are created immediately.
    pub(crate) fn end_back_offs_of_old_templates(&mut self, group: usize) {
        for choice in &self.input.groups[group].choices {
            let Some(now) = &choice.template else {
                continue;
            };
            let path = &self.input.groups[group].path;
            let key = BackOffKey::of(path, &choice.spec_hash, &choice.platform);
            let is_over = self.back_off(&key).is_some_and(|back_off| {
                let about_nodes = match back_off.kind {
                    BackOffKind::Failure | BackOffKind::Rejected => true,
                    BackOffKind::Credentials | BackOffKind::NoCapacity => false,
                };
                about_nodes && !back_off.template.is_empty() && back_off.template != now.digest
            });
            if is_over {
                self.set_back_off(key, None);
            }
        }
    }

    /// Template of the nodes that a back-off holds back.
    pub(crate) fn template_of(&self, key: &BackOffKey) -> Sym {
        let group = self.paths.get(&*key.group);
        let group = group.and_then(|&at| self.input.groups.get(usize::from(at)));
        let choice = group.and_then(|group| {
            let mut choices = group.choices.iter();
            choices.find(|choice| choice.platform == key.platform)
        });
        choice.map_or_else(Sym::default, digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_is_not_known_is_no_other_target() {
        for (before, now, same) in [
            ("h1-a", "h1-a", true),
            ("h1-a", "h1-b", false),
            ("h1-a", "h1-a/d", true),
            ("h1-a/d", "h1-a", true),
            ("h1-a/d", "h1-a/d", true),
            ("h1-a/d", "h1-a/e", false),
            ("h1-a/d", "h1-b/d", false),
            ("h1-a/d", "h1-b", false),
        ] {
            assert_eq!(is_same(before, now), same, "{before} {now}");
        }
    }
}
