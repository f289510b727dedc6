//! Templates of platforms: a node that was made from an earlier one is outdated, like one that was made from an earlier spec.

use drover_core::{
    Node, Sym,
    node::Request,
    spec::{Choice, Template},
};

use crate::{BackOffKey, BackOffKind, Op, Planner, Rollout};

/// Between the hash of a choice and its template in the target of an update. No hash has it.
const SEPARATOR: char = '/';

/// Digest of the template that a choice has now. Empty: not known.
pub(crate) fn digest(choice: &Choice) -> Sym {
    let template = choice.template.as_ref();
    template.map_or_else(Sym::default, |template| template.digest.clone())
}

/// What an update of a group goes to, by its first choice.
pub(crate) fn target(choice: &Choice) -> Sym {
    match &choice.template {
        None => choice.spec_hash.clone(),
        Some(Template { digest, .. }) => format!("{}{SEPARATOR}{digest}", choice.spec_hash).into(),
    }
}

/// Whether an update goes on to the same target. A template that is not known, because its platform has not been reached
/// since the start or said nothing of it then, is no other one.
pub(crate) fn is_same(before: &str, now: &str) -> bool {
    let parts = |target: &str| match target.split_once(SEPARATOR) {
        Some((hash, digest)) => (hash.to_owned(), Some(digest.to_owned())),
        None => (target.to_owned(), None),
    };
    let ((old, was), (new, is)) = (parts(before), parts(now));
    old == new && (was.is_none() || is.is_none() || was == is)
}

impl Rollout {
    /// Whether a node was made from the spec that the update goes to, and from another template.
    #[must_use]
    pub fn changes_template(&self, node: &Node) -> bool {
        let target = self.target.split_once(SEPARATOR);
        target.is_some_and(|(hash, digest)| {
            *node.spec_hash == *hash && !node.template.is_empty() && *node.template != *digest
        })
    }
}

impl Planner<'_> {
    /// Whether a node was made from an earlier template. As long as its request is open, its platform may still say from
    /// which one.
    pub(crate) fn is_of_old_template(&self, at: usize) -> bool {
        let node = &self.state.nodes[at];
        let group = self.input.groups.get(usize::from(self.marks[at].group));
        group.is_some_and(|group| group.newer_template(node).is_some())
            && !self.state.requests.contains_key(&node.request)
    }

    /// The platform knows better than the record which template it has rendered.
    pub(crate) fn take_template(&mut self, node: &Node, request: &Request) {
        if let Some(digest) = request
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

    /// What an earlier template did says nothing of the present one: as after a change of the spec, nodes are made at once.
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

    /// The template from which nodes are made that a back-off holds back.
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
