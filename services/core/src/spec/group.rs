//! A group with inheritance applied, and the comparison of nodes with it.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Amount, Bootstrap, Budget, Health, Lifecycle, Management, Object, Placement, Remediation,
    RemovalOrder, SecretRef, SoleWriter, Update, UpdateStrategy, hash,
};
use crate::{
    name::Sym,
    node::CHANGING,
    storage::{Retention, Storage},
};

/// A group of nodes with all inherited settings merged in. Every cluster keeps its groups in memory, so what is large and
/// often absent is boxed.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Path (`data/hot`).
    pub path: Sym,
    /// Path in the spec (`spec.groups[0].groups[1]`).
    pub field: String,
    /// Desired number of active nodes. `None` if not specified.
    pub size: Option<u32>,
    /// Desired number of additional standby nodes.
    pub standby: u32,
    /// Possible locations of its nodes, in order of preference.
    pub choices: Vec<Choice>,
    /// Role, an arbitrary word for templates.
    pub role: String,
    /// Store version of its nodes. Empty if none.
    pub version: Sym,
    /// Values for templates and matchers.
    pub attributes: Object,
    /// Where nodes may be placed.
    pub placement: Placement,
    /// User data for new nodes.
    pub bootstrap: Option<Box<Bootstrap>>,
    /// Keys of secrets by the names that templates use for them.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Storage of each node.
    pub storage: Option<Box<Storage>>,
    /// Order in which its nodes are created and removed. `None` for the template's default, or else parallel.
    pub management: Option<Management>,
    /// Lifecycle hooks that run inside its nodes. `None` for the template's default, or else no hooks.
    pub lifecycle: Option<Box<Lifecycle>>,
    /// Paths of the groups of nodes that are created and rolled before it, and deleted after it.
    pub depends_on: Vec<Sym>,
    /// When a node is considered healthy. `None` for the template's default, or else the default policy.
    pub health: Option<Box<Health>>,
    /// How unhealthy nodes are handled.
    pub remediation: Remediation,
    /// How changes are rolled out to existing nodes.
    pub update: Update,
    /// Maximum number of nodes that are created or removed concurrently, per platform.
    pub max_in_flight: Option<u32>,
    /// Time that a node gets to stop gracefully.
    pub grace: Duration,
    /// Age at which a node is replaced, with a jitter of 10 %. `None` for never.
    pub expire_after: Option<Duration>,
    /// Which nodes are removed first, all else being equal.
    pub removal_order: RemovalOrder,
    /// Refuses operations that would delete nodes permanently.
    pub protection: bool,
    /// Time from accepted to running, after which a node is considered unhealthy. `None` for the default of the kind of
    /// platform.
    pub provision_timeout: Option<Duration>,
    /// Time that a node must be Ready before the backoff is reset.
    pub stable_after: Duration,
}

/// A platform of a resolved group.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Name of the platform.
    pub platform: Sym,
    /// Node class. Empty for the platform's default.
    pub class: Sym,
    /// Maximum number of nodes of the group from this choice.
    pub max: Option<u32>,
    /// Merged properties for the platform.
    pub properties: Object,
    /// Version requirement for the platform server. Empty for any.
    pub version_requirement: String,
    /// Capacity pool on the platform. Choices with the same class and properties share a pool across clusters: when
    /// capacity is exhausted for one, it is exhausted for all.
    pub pool: Sym,
    /// Hash of the fields that define a node of this choice; nodes with a different hash are outdated.
    pub spec_hash: Sym,
    /// Hashes by the formulas of earlier versions, oldest first. Nodes that carry one of these are up to date, and are
    /// assigned the current hash.
    pub former_hashes: Vec<Sym>,
    /// Hash of the labels that its hosts get. Empty if there are none.
    pub labels_hash: Sym,
    /// Hashes with other sizes of storage.
    pub sizes: hash::Sizes,
    /// The template that the platform currently creates these nodes from; not part of the spec. `None` if not known.
    pub template: Option<Template>,
}

/// A template of a platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Name in the platform's catalogue.
    pub name: Sym,
    /// Digest of the content that nodes are created from. Never empty.
    pub digest: Sym,
}

impl Group {
    /// Desired total number of nodes, active and standby.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.size.unwrap_or(1).saturating_add(self.standby)
    }

    /// Whether the promotion of a standby keeps the active node of before out, dead or alive. Only where there is one:
    /// otherwise nobody could say which of them.
    #[must_use]
    pub fn fences(&self) -> bool {
        let hook = self
            .lifecycle
            .as_ref()
            .and_then(|it| it.post_promote.as_ref());
        hook.is_some_and(|hook| hook.fences) && self.standby > 0 && self.size.unwrap_or(1) == 1
    }

    /// How its active node may acknowledge alone, and how many standbys it needs otherwise.
    #[must_use]
    pub fn sole_writer(&self) -> Option<(&SoleWriter, u32)> {
        let writer = self.lifecycle.as_ref()?.sole_writer.as_ref()?;
        Some((writer, writer.needs(&self.attributes)))
    }

    /// Whether a node can be replaced only after it is gone, because a named machine or retained storage can serve only
    /// one node at a time.
    #[must_use]
    pub fn delete_first(&self) -> bool {
        !self.placement.hosts.is_empty() || self.hands_on_storage()
    }

    /// Whether the replacement of a node takes over its storage.
    #[must_use]
    pub fn hands_on_storage(&self) -> bool {
        let storage = self.storage.as_ref();
        storage.is_some_and(|storage| storage.policy.replaced == Retention::Retain)
    }

    /// How many of its nodes may be replaced concurrently.
    #[must_use]
    pub fn budget(&self) -> Budget {
        self.budget_in(false)
    }

    /// How many of its nodes may be replaced concurrently. In a finite pool, which may be full, a node goes before its
    /// replacement comes, unless the spec says otherwise.
    #[must_use]
    pub fn budget_in(&self, finite_pool: bool) -> Budget {
        let size = self.size.unwrap_or(1);
        let update = match self.update.strategy {
            UpdateStrategy::Rolling => self.update,
            // Nodes that are only replaced on explicit request use the default, conservative budget.
            UpdateStrategy::OnDelete => Update::default(),
        };
        if self.delete_first() {
            let unavailable = update.max_unavailable.unwrap_or(Amount::Count(1));
            return Budget {
                surge: 0,
                unavailable: unavailable.down(size),
            };
        }
        let kept = update
            .max_unavailable
            .is_some_and(|most| most.down(size) == 0);
        let (surge, unavailable) = if finite_pool && !kept { (0, 1) } else { (1, 0) };
        let surge = update.max_surge.unwrap_or(Amount::Count(surge));
        let unavailable = update.max_unavailable.unwrap_or(Amount::Count(unavailable));
        Budget {
            surge: surge.up(self.total()),
            unavailable: unavailable.down(size),
        }
    }

    /// Whether a node matches this group, by its spec hash and its location.
    #[must_use]
    pub fn makes(&self, node: &crate::Node) -> bool {
        let hosts = &self.placement.hosts;
        (hosts.is_empty() || hosts.contains(&node.host))
            && self.choice_of(&node.spec_hash).is_some()
    }

    /// The template that the platform has now, if it differs from the one that the node was created from. `None` if it
    /// is the same, or if either is not known.
    #[must_use]
    pub fn newer_template(&self, node: &crate::Node) -> Option<&Template> {
        if node.template.is_empty() {
            return None;
        }
        // All choices of a platform have the same template, because it depends on the group only.
        let mut choices = self.choices.iter();
        let choice = choices.find(|choice| choice.platform == node.platform)?;
        let template = choice.template.as_ref()?;
        (node.template != template.digest).then_some(template)
    }

    /// The choice that makes such a node on its platform. `None` for an outdated one.
    #[must_use]
    pub fn choice_for(&self, node: &crate::Node) -> Option<&Choice> {
        let mut choices = self.choices.iter();
        choices.find(|choice| choice.platform == node.platform && choice.is_hash(&node.spec_hash))
    }

    /// The choice that would make a node if it had as much storage as the group wants, and its size in bytes. `None` for a
    /// node that has it, and for one that is outdated for another reason.
    #[must_use]
    pub fn growth_of(&self, node: &crate::Node) -> Option<(&Choice, u64)> {
        let wanted = self.storage.as_ref()?;
        let size = wanted.size?;
        let has = node.storage_size.filter(|has| *has < size)?;
        let hosts = &self.placement.hosts;
        let mut choices = self.choices.iter().filter(|choice| {
            choice.platform == node.platform && (hosts.is_empty() || hosts.contains(&node.host))
        });
        let choice = choices.find(|it| it.sizes.has(&node.spec_hash, has, &wanted.class))?;
        Some((choice, size))
    }

    /// The first choice that creates nodes with this hash. A hash by an unknown formula is attributed to the first
    /// choice: a hash that cannot be compared must never cause a replacement.
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
    /// The labels that its hosts get.
    #[must_use]
    pub fn host_labels(&self) -> BTreeMap<String, String> {
        let labels = self.properties.get(hash::HOST_LABELS);
        let labels = labels.and_then(serde_json::Value::as_object).into_iter();
        let texts = labels.flatten().filter_map(|(key, value)| {
            let text = value.as_str()?;
            Some((key.clone(), text.to_owned()))
        });
        texts.collect()
    }

    /// Hash of the labels that the host of a node has, as far as is recorded.
    #[must_use]
    pub fn labels_of<'a>(&'a self, node: &'a crate::Node) -> &'a Sym {
        // A hash from before labels were recorded covers them.
        if *node.labels_hash == *CHANGING && self.covers_labels(&node.spec_hash) {
            &self.labels_hash
        } else {
            &node.labels_hash
        }
    }

    /// Whether a hash is over all properties, the labels of hosts among them.
    pub(super) fn covers_labels(&self, hash: &str) -> bool {
        if !self.properties.contains_key(hash::HOST_LABELS) {
            return false;
        }
        let over_all = self.former_hashes.len().div_ceil(2);
        let mut over_all = self.former_hashes[..over_all].iter();
        over_all.any(|former| **former == *hash)
    }

    /// Whether a hash identifies nodes of this choice, by the current formula or an earlier one.
    #[must_use]
    pub fn is_hash(&self, hash: &str) -> bool {
        // Usually the same allocation, so that the bytes need not be compared.
        std::ptr::eq(&*self.spec_hash, hash)
            || *self.spec_hash == *hash
            || self.former_hashes.iter().any(|former| **former == *hash)
    }
}
