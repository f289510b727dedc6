//! A group once everything is inherited, and what it makes of nodes.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Amount, Bootstrap, Budget, Health, Lifecycle, Management, Object, Placement, Remediation,
    RemovalOrder, SecretRef, Update, UpdateStrategy, hash,
};
use crate::{
    name::Sym,
    storage::{Retention, Storage},
};

/// A group of nodes with everything inherited merged in.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Path (`data/hot`).
    pub path: Sym,
    /// Where it stands in the spec (`spec.groups[0].groups[1]`).
    pub field: String,
    /// Active nodes wanted. Absent: not said.
    pub size: Option<u32>,
    /// Standby nodes wanted besides.
    pub standby: u32,
    /// Where its nodes can be, in order of preference.
    pub choices: Vec<Choice>,
    /// Role.
    pub role: String,
    /// Store version of its nodes. Empty: none.
    pub version: Sym,
    /// For templates and matchers.
    pub attributes: Object,
    /// Where nodes may be placed.
    pub placement: Placement,
    /// User data for new nodes.
    pub bootstrap: Option<Bootstrap>,
    /// Keys of secrets by the names that templates have for them.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Storage of each node.
    pub storage: Option<Storage>,
    /// In which order its nodes are made and removed. Absent: the template's default, else parallel.
    pub management: Option<Management>,
    /// What is run inside its nodes. Absent: the template's default, else nothing.
    pub lifecycle: Option<Lifecycle>,
    /// Paths of the groups of nodes that are made and rolled before it, and deleted after it.
    pub depends_on: Vec<Sym>,
    /// When a node counts as healthy. Absent: the template's default, else all defaults.
    pub health: Option<Health>,
    /// What becomes of sick nodes.
    pub remediation: Remediation,
    /// How changes reach existing nodes.
    pub update: Update,
    /// Most nodes being made or removed at a time, on each platform.
    pub max_in_flight: Option<u32>,
    /// Time that a node gets to stop by itself.
    pub grace: Duration,
    /// Age at which a node is replaced, give or take 10 %. Absent: never.
    pub expire_after: Option<Duration>,
    /// Which nodes go first when all else is equal.
    pub removal_order: RemovalOrder,
    /// Refuses what would delete nodes for good.
    pub protection: bool,
    /// Time from accepted to running before a node is sick. Absent: by the kind of platform.
    pub provision_timeout: Option<Duration>,
    /// Time that a node must be Ready before the back-off is reset.
    pub stable_after: Duration,
}

/// One platform of a resolved group.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Name of the platform.
    pub platform: Sym,
    /// Node class. Empty: the platform's default.
    pub class: Sym,
    /// Most nodes of the group by this choice.
    pub max: Option<u32>,
    /// For the platform, merged.
    pub properties: Object,
    /// Requirement on the version of the platform server. Empty: any.
    pub version_requirement: String,
    /// What capacity of the platform it takes: choices of the same class and properties, of whichever cluster, have the
    /// same one, and what is out for one is out for all of them.
    pub pool: Sym,
    /// Hash of what makes a node by this choice; nodes that carry another one are outdated.
    pub spec_hash: Sym,
    /// The same by the formulas of earlier versions, oldest first: nodes that carry one of these are as wanted, and get
    /// the present one.
    pub former_hashes: Vec<Sym>,
    /// The template that its platform makes these nodes from now; no part of a spec. Absent: not known.
    pub template: Option<Template>,
}

/// A template of a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Its name in the catalogue of the platform.
    pub name: Sym,
    /// Digest of what it makes nodes from. Never empty.
    pub digest: Sym,
}

impl Group {
    /// Nodes wanted in all, active and standby.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.size.unwrap_or(1).saturating_add(self.standby)
    }

    /// Whether a node can be replaced only after it is gone: on a named machine, and on kept storage, there is room for
    /// one.
    #[must_use]
    pub fn delete_first(&self) -> bool {
        !self.placement.hosts.is_empty() || self.hands_on_storage()
    }

    /// Whether who replaces a node gets its storage.
    #[must_use]
    pub fn hands_on_storage(&self) -> bool {
        let storage = self.storage.as_ref();
        storage.is_some_and(|storage| storage.policy.replaced == Retention::Retain)
    }

    /// How many of its nodes may be renewed at a time.
    #[must_use]
    pub fn budget(&self) -> Budget {
        let size = self.size.unwrap_or(1);
        let update = match self.update.strategy {
            UpdateStrategy::Rolling => self.update,
            // What is replaced by name alone goes the gentle way.
            UpdateStrategy::OnDelete => Update::default(),
        };
        if self.delete_first() {
            let unavailable = update.max_unavailable.unwrap_or(Amount::Count(1));
            return Budget {
                surge: 0,
                unavailable: unavailable.down(size),
            };
        }
        let surge = update.max_surge.unwrap_or(Amount::Count(1));
        let unavailable = update.max_unavailable.unwrap_or(Amount::Count(0));
        Budget {
            surge: surge.up(self.total()),
            unavailable: unavailable.down(size),
        }
    }

    /// Whether a node is as this group wants it, by what made it and by where it is.
    #[must_use]
    pub fn makes(&self, node: &crate::Node) -> bool {
        let hosts = &self.placement.hosts;
        (hosts.is_empty() || hosts.contains(&node.host))
            && self.choice_of(&node.spec_hash).is_some()
    }

    /// The template that its platform has now instead of the one that a node was made from. None: it is the same, or
    /// one of both is not known.
    #[must_use]
    pub fn newer_template(&self, node: &crate::Node) -> Option<&Template> {
        if node.template.is_empty() {
            return None;
        }
        // The choices of a platform have one template: it follows from the group.
        let mut choices = self.choices.iter();
        let choice = choices.find(|choice| choice.platform == node.platform)?;
        let template = choice.template.as_ref()?;
        (node.template != template.digest).then_some(template)
    }

    /// The first choice that makes nodes with this hash. A hash by a formula that this version does not know says
    /// nothing, and passes as the first choice's: what cannot be compared is never replaced for it.
    #[must_use]
    pub fn choice_of(&self, hash: &str) -> Option<&Choice> {
        let known = self.choices.iter().find(|choice| choice.is_hash(hash));
        known.or_else(|| {
            self.choices
                .first()
                .filter(|_| hash::is_of_unknown_formula(hash))
        })
    }
}

impl Choice {
    /// Whether a hash is of what this choice makes, by the present formula or an earlier one.
    #[must_use]
    pub fn is_hash(&self, hash: &str) -> bool {
        // Mostly one and the same text, which need not be compared.
        std::ptr::eq(&*self.spec_hash, hash)
            || *self.spec_hash == *hash
            || self.former_hashes.iter().any(|former| **former == *hash)
    }
}
