//! Former specs: which nodes they made, and which secrets they gave them.

use std::collections::BTreeSet;

use drover_core::{
    Sym,
    spec::{Group, SecretRef, UserDataSource},
};

use crate::ClusterState;

/// References of groups to secrets, and to user data by its digest.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Secrets, and their keys.
    pub secrets: BTreeSet<SecretRef>,
    /// Digests of user data.
    pub user_data: BTreeSet<String>,
}

impl Named {
    fn of(group: &Group) -> Self {
        let mut named = Self {
            secrets: group.secrets.values().cloned().collect(),
            user_data: BTreeSet::new(),
        };
        match group.bootstrap.as_ref().map(|own| &own.source) {
            Some(UserDataSource::Secret(of)) => {
                named.secrets.insert(of.clone());
            }
            Some(UserDataSource::Sha256(digest)) => {
                named.user_data.insert(digest.clone());
            }
            None => {}
        }
        named
    }

    fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.user_data.is_empty()
    }

    fn add(&mut self, other: &Self) {
        self.secrets.extend(other.secrets.iter().cloned());
        self.user_data.extend(other.user_data.iter().cloned());
    }
}

/// A group of a retained former spec: identifies the nodes that it made and the secrets that it gave them.
#[derive(Debug)]
pub struct FormerGroup {
    path: Sym,
    /// Hashes of its choices, by all formula versions.
    hashes: Vec<Sym>,
    named: Named,
}

impl FormerGroup {
    /// What is remembered of a group.
    #[must_use]
    pub fn of(group: &Group) -> Self {
        let hashes = (group.choices.iter())
            .flat_map(|choice| choice.former_hashes.iter().chain([&choice.spec_hash]));
        Self {
            path: group.path.clone(),
            hashes: hashes.cloned().collect(),
            named: Named::of(group),
        }
    }

    /// Whether it made nodes with this path and hash.
    #[must_use]
    pub fn makes(&self, path: &str, hash: &str) -> bool {
        *self.path == *path && self.hashes.iter().any(|own| **own == *hash)
    }

    /// The secrets and user data that it gave to its nodes.
    #[must_use]
    pub fn named(&self) -> &Named {
        &self.named
    }
}

/// Whether a group makes nodes with this path and hash.
fn makes(group: &Group, path: &str, hash: &str) -> bool {
    *group.path == *path && group.choices.iter().any(|choice| choice.is_hash(hash))
}

impl ClusterState {
    /// Nodes and orphans in the selected groups that the current spec does not make, by path and hash.
    pub fn others(&self, meant: impl Fn(&str) -> bool) -> BTreeSet<(Sym, Sym)> {
        let groups = &self.spec.groups;
        let is_other = |path: &str, hash: &str| !groups.iter().any(|one| makes(one, path, hash));
        let nodes = self.state.nodes.iter();
        let nodes = nodes.map(|node| (&node.group, &node.spec_hash));
        let orphans = self.state.orphans.values();
        let orphans = orphans.map(|orphan| (&orphan.group, &orphan.spec_hash));
        (nodes.chain(orphans))
            .filter(|(path, hash)| meant(path) && is_other(path, hash))
            .map(|(path, hash)| (path.clone(), hash.clone()))
            .collect()
    }

    /// The references that nodes of a group, and those with these hashes, were given; and those that they may have been
    /// given as far as is known.
    #[must_use]
    pub fn named(
        &self,
        former: &[FormerGroup],
        group: &str,
        hashes: &BTreeSet<String>,
    ) -> (Named, Named) {
        let (mut named, mut perhaps) = (Named::default(), Named::default());
        let present = &self.spec.groups;
        let gives = |group: &Group| group.bootstrap.is_some() || !group.secrets.is_empty();
        if !present.iter().any(gives) && former.iter().all(|one| one.named.is_empty()) {
            return (named, perhaps);
        }
        let known = present.iter().any(|one| *one.path == *group);
        let meant = |path: &str| !known || *path == *group;
        for one in present.iter().filter(|one| meant(&one.path)) {
            named.add(&Named::of(one));
        }
        let mut others = self.others(meant);
        let is_made = |hash: &String| present.iter().any(|one| makes(one, group, hash));
        let told = hashes.iter().filter(|hash| !is_made(hash));
        others.extend(told.map(|hash| (group.into(), hash.as_str().into())));
        for one in former {
            if others.iter().any(|(path, hash)| one.makes(path, hash)) {
                named.add(&one.named);
            }
        }
        others.retain(|(path, hash)| !former.iter().any(|one| one.makes(path, hash)));
        // The specs that made the remaining nodes are no longer retained; those that are may share secrets with them.
        for one in former {
            if !known || others.iter().any(|(path, _)| *path == one.path) {
                perhaps.add(&one.named);
            }
        }
        (named, perhaps)
    }
}
