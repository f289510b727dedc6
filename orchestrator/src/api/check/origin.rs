//! Where a spec says what a group inherits, for messages about it.

use drover_proto::orchestrator::v1 as pb;

/// Where a group has from what it does not say itself: paths of the groups around it, or its own.
pub(in crate::api) struct Origin {
    pub(super) platforms: String,
    /// Which of the choices name a class themselves.
    pub(super) own_class: Vec<bool>,
    pub(super) class: String,
    pub(super) placement: String,
    pub(super) bootstrap: String,
    pub(super) storage: String,
    pub(super) health: String,
    pub(super) lifecycle: String,
}

impl Origin {
    /// Of the group at this path of the spec (`spec.groups[0].groups[1]`).
    pub(in crate::api) fn of(spec: &pb::ClusterSpec, field: &str) -> Self {
        let own_class = |choices: &[pb::PlatformChoice]| {
            choices.iter().map(|c| c.node_class.is_some()).collect()
        };
        let top = || "spec".to_owned();
        let mut origin = Self {
            platforms: top(),
            own_class: own_class(&spec.platforms),
            class: top(),
            placement: top(),
            bootstrap: top(),
            storage: top(),
            health: top(),
            lifecycle: top(),
        };
        let (mut at, mut groups) = (top(), &spec.groups);
        for part in field.split(".groups[").skip(1) {
            let index = part.trim_end_matches(']').parse().unwrap_or(usize::MAX);
            let Some(group) = groups.get(index) else {
                break;
            };
            at = format!("{at}.groups[{index}]");
            if !group.platforms.is_empty() {
                origin.platforms.clone_from(&at);
                origin.own_class = own_class(&group.platforms);
            }
            if group.node_class.is_some() {
                origin.class.clone_from(&at);
            }
            if group.placement.is_some() {
                origin.placement.clone_from(&at);
            }
            if group.bootstrap.is_some() {
                origin.bootstrap.clone_from(&at);
            }
            if group.storage.is_some() {
                origin.storage.clone_from(&at);
            }
            if group.health.is_some() {
                origin.health.clone_from(&at);
            }
            if group.lifecycle.is_some() {
                origin.lifecycle.clone_from(&at);
            }
            groups = &group.groups;
        }
        origin
    }

    pub(in crate::api) fn bootstrap(&self) -> String {
        format!("{}.bootstrap", self.bootstrap)
    }

    pub(super) fn choice(&self, index: usize) -> String {
        format!("{}.platforms[{index}]", self.platforms)
    }

    pub(super) fn node_class(&self, index: usize) -> String {
        if self.own_class.get(index).copied().unwrap_or(false) {
            return format!("{}.node_class", self.choice(index));
        }
        format!("{}.node_class", self.class)
    }
}
