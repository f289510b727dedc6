//! Start and stop order of groups: the suggestions of templates, merged with the user's settings, and the settings that
//! removed groups keep as long as they have nodes.

use std::{sync::Arc, time::Duration};

use drover_core::{
    Error, Result,
    spec::{DEFAULT_HOOK_TIMEOUT, Group, Hook, Lifecycle},
};
use drover_planner::Leaving;
use drover_proto::platform::v1 as wire;
use drover_store::Desired;
use prost::Message;

use crate::ClusterState;

/// Key of the removed groups in the extra fields of the desired state.
const LEAVING: &str = "leaving";

#[derive(Clone, PartialEq, Message)]
struct LeavingList {
    #[prost(message, repeated, tag = "1")]
    groups: Vec<LeavingRow>,
}

#[derive(Clone, PartialEq, Message)]
struct LeavingRow {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(bool, tag = "2")]
    ordered: bool,
    #[prost(string, repeated, tag = "3")]
    depends_on: Vec<String>,
    /// Empty if there is no hook.
    #[prost(string, repeated, tag = "4")]
    pre_stop: Vec<String>,
    #[prost(uint64, tag = "5")]
    timeout_ms: u64,
    #[prost(uint64, tag = "6")]
    grace_ms: u64,
}

impl From<&Leaving> for LeavingRow {
    fn from(one: &Leaving) -> Self {
        let hook = one.pre_stop.as_ref();
        Self {
            path: one.path.to_string(),
            ordered: one.ordered,
            depends_on: one.depends_on.iter().map(ToString::to_string).collect(),
            pre_stop: hook.map(|hook| hook.exec.clone()).unwrap_or_default(),
            timeout_ms: drover_core::millis(hook.map_or(DEFAULT_HOOK_TIMEOUT, |h| h.timeout)),
            grace_ms: drover_core::millis(one.grace),
        }
    }
}

impl From<LeavingRow> for Leaving {
    fn from(row: LeavingRow) -> Self {
        let timeout = Duration::from_millis(row.timeout_ms);
        Self {
            path: row.path.into(),
            ordered: row.ordered,
            depends_on: row.depends_on.into_iter().map(Into::into).collect(),
            pre_stop: (!row.pre_stop.is_empty()).then_some(Hook {
                exec: row.pre_stop,
                timeout,
                fences: false,
            }),
            grace: Duration::from_millis(row.grace_ms),
        }
    }
}

/// Removed groups that still have nodes.
///
/// # Errors
/// `Internal` if the stored data cannot be decoded.
pub(crate) fn leaving(desired: &Desired) -> Result<Arc<[Leaving]>> {
    let Some(bytes) = desired.extra.get(LEAVING) else {
        return Ok(Arc::default());
    };
    let list = LeavingList::decode(bytes.as_slice())
        .map_err(|_| Error::internal("the stored groups that leave cannot be read"))?;
    Ok(list.groups.into_iter().map(Into::into).collect())
}

impl ClusterState {
    /// Remembers in a new desired state how the nodes of groups that its spec lacks are to be stopped; groups without nodes
    /// are dropped.
    pub fn remember_leaving(&self, desired: &mut Desired, wanted: &[Group]) {
        let known = self.wanted();
        let known = known.as_ref().map_or(&self.spec.groups, |groups| groups);
        let rows: Vec<LeavingRow> = known
            .iter()
            .map(|group| Leaving {
                pre_stop: self.lifecycle(&group.path).and_then(|it| it.pre_stop),
                ..Leaving::of(group)
            })
            .chain(self.leaving.iter().cloned())
            .filter(|one| {
                let has_nodes = self.state.nodes.iter().any(|node| node.group == one.path);
                has_nodes && wanted.iter().all(|group| group.path != one.path)
            })
            .map(|one| LeavingRow::from(&one))
            .collect();
        if rows.is_empty() {
            desired.extra.remove(LEAVING);
        } else {
            let bytes = LeavingList { groups: rows }.encode_to_vec();
            desired.extra.insert(LEAVING.to_owned(), bytes);
        }
    }

    /// The pre-stop hook of a node's group.
    #[must_use]
    pub fn pre_stop(&self, slot: u64) -> Option<Hook> {
        let node = self.state.node(slot)?;
        if self
            .spec
            .groups
            .iter()
            .any(|group| group.path == node.group)
        {
            return self.lifecycle(&node.group)?.pre_stop;
        }
        let mut leaving = self.leaving.iter();
        leaving.find(|one| one.path == node.group)?.pre_stop.clone()
    }

    /// Grace period of a group's nodes for stopping. `None` if it is no longer known.
    #[must_use]
    pub fn grace(&self, path: &str) -> Option<Duration> {
        let mut groups = self.spec.groups.iter();
        let wanted = groups.find(|group| *group.path == *path);
        wanted.map(|group| group.grace).or_else(|| {
            let mut leaving = self.leaving.iter();
            leaving.find(|one| *one.path == *path).map(|one| one.grace)
        })
    }
}

/// Adds the suggestions of a template; the user's settings take precedence. Returns whether anything changed.
pub(crate) fn fill_in(group: &mut Group, defaults: &wire::TemplateDefaults) -> bool {
    let mut changed = false;
    if group.management.is_none() {
        // The suggestions of an invalid template are ignored.
        let suggested =
            drover_convert::lifecycle::management("management_policy", defaults.management_policy);
        group.management = suggested.ok().flatten();
        changed |= group.management.is_some();
    }
    if let Some(suggested) = &defaults.lifecycle {
        let own = group.lifecycle.as_deref().cloned();
        let whole = hooks(own, suggested).map(Box::new);
        changed |= group.lifecycle != whole;
        group.lifecycle = whole;
    }
    changed
}

/// Merged hook by hook: a store to which the user adds a hook still uses its template's hook for promotion.
fn hooks(own: Option<Lifecycle>, suggested: &wire::Lifecycle) -> Option<Lifecycle> {
    let Ok(suggested) = drover_convert::lifecycle::lifecycle("lifecycle", suggested) else {
        return own;
    };
    let whole = own.unwrap_or_default().or(&suggested);
    Some(whole).filter(|whole| *whole != Lifecycle::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_of_a_template_hold_beside_those_of_the_spec() {
        let hook = |word: &str| wire::LifecycleHook {
            exec: vec![word.to_owned()],
            timeout: None,
            fences: word == "promote",
        };
        let template = wire::Lifecycle {
            pre_stop: Some(hook("leave")),
            post_promote: Some(hook("promote")),
            sole_writer: None,
        };
        let own = wire::Lifecycle {
            pre_stop: Some(hook("notify")),
            post_promote: None,
            sole_writer: None,
        };
        let own = drover_convert::lifecycle::lifecycle("lifecycle", &own).unwrap();
        let words = |lifecycle: Option<Lifecycle>| {
            let lifecycle = lifecycle.unwrap();
            [lifecycle.pre_stop, lifecycle.post_promote].map(|hook| hook.unwrap().exec.concat())
        };
        assert_eq!(words(hooks(Some(own), &template)), ["notify", "promote"]);
        assert_eq!(words(hooks(None, &template)), ["leave", "promote"]);
        assert_eq!(hooks(None, &wire::Lifecycle::default()), None);
    }

    #[test]
    fn what_is_kept_of_a_group_survives() {
        for pre_stop in [
            None,
            Some(Hook {
                exec: vec!["leave".to_owned(), "now".to_owned()],
                timeout: Duration::from_millis(1_500),
                fences: false,
            }),
        ] {
            let one = Leaving {
                path: "data/hot".into(),
                ordered: true,
                depends_on: vec!["etcd".into()],
                pre_stop,
                grace: Duration::from_secs(7),
            };
            assert_eq!(Leaving::from(LeavingRow::from(&one)), one);
        }
    }
}
