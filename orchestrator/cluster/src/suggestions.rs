//! What templates suggest for groups whose spec says nothing: health, hooks, order.

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{
    Sym,
    spec::{Group, Health, Lifecycle, Probe},
};
use drover_proto::platform::v1 as wire;

use crate::{ClusterState, Resolved, order, template};

/// The suggestions that plans are made with, and what has to be told because they changed.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    suggestions: Suggestions,
    /// Whether other templates became known and nobody was told yet.
    news: bool,
    /// The spec that they complete. Together they say how nodes are probed.
    spec: Arc<Resolved>,
    /// Whether nodes are not probed yet as the suggested health demands.
    unprobed: bool,
}

/// What the templates of a cluster's platforms suggest.
#[derive(Clone, Debug)]
pub struct Suggestions {
    /// The generation and the etags of the platforms that they were made from.
    made_of: (u64, Vec<Sym>),
    /// Suggested health, by position of the group in the spec. Empty if there is none.
    pub health: Arc<[Option<Health>]>,
    /// The groups with everything filled in. `None` if they are as in the spec.
    pub groups: Option<Arc<Vec<Group>>>,
}

impl ClusterState {
    /// The groups of the spec with their templates and the start order that these suggest. `None` if they are as in the
    /// spec.
    pub fn wanted(&self) -> Option<Arc<Vec<Group>>> {
        let generation = self.desired.value.generation;
        let defaults = self.defaults.as_ref();
        let current = defaults.filter(|defaults| defaults.suggestions.made_of.0 == generation);
        current.and_then(|defaults| defaults.suggestions.groups.clone())
    }

    /// The hooks of a group of the current spec. The template's suggestion is determined anew for each generation;
    /// until then that of the previous generation applies: without its hook, a node would be recorded as active without
    /// having been promoted.
    pub fn lifecycle(&self, path: &str) -> Option<Lifecycle> {
        let of = |groups: &[Group]| groups.iter().find(|g| *g.path == *path).cloned();
        let own = of(&self.spec.groups)?.lifecycle.map(|own| *own);
        let suggested = self
            .defaults
            .as_ref()
            .and_then(|it| it.suggestions.groups.as_ref());
        let Some(last) = suggested.and_then(|groups| of(groups)?.lifecycle) else {
            return own;
        };
        if self.wanted().is_some() {
            return Some(*last);
        }
        Some(own.unwrap_or_default().or(&last))
    }

    /// What the templates of these platforms suggest. Changes nothing, so that previews can ask for it.
    pub fn suggestions(&self, handshakes: &BTreeMap<Sym, Arc<wire::Platform>>) -> Suggestions {
        let generation = self.desired.value.generation;
        let etags = || {
            let choices = self.spec.groups.iter().flat_map(|group| &group.choices);
            let handshakes = choices.filter_map(|choice| handshakes.get(&choice.platform));
            handshakes.map(|handshake| handshake.etag.as_str())
        };
        let same = |(of, tags): &(u64, Vec<Sym>)| {
            *of == generation && etags().eq(tags.iter().map(|tag| &**tag))
        };
        let known = self.defaults.as_ref().map(|defaults| &defaults.suggestions);
        if let Some(same) = known.filter(|known| same(&known.made_of)) {
            return same.clone();
        }
        let made_of = (generation, etags().map(Sym::from).collect());
        let mut health = Vec::new();
        let mut groups = self.spec.groups.clone();
        let mut filled = false;
        for group in &mut groups {
            let defaults = self.template_defaults(group, handshakes);
            let first = group.choices.first();
            let handshake = first.and_then(|first| handshakes.get(&first.platform));
            let can_exec = handshake.is_some_and(|it| can_exec(it));
            health.push(defaults.and_then(|defaults| suggested_health(defaults, can_exec)));
            filled |= defaults.is_some_and(|defaults| order::fill_in(group, defaults));
            filled |= template::fill_in(group, &self.spec.software, handshakes);
        }
        let health: Arc<[_]> = if health.iter().all(Option::is_none) {
            Arc::default()
        } else {
            health.into()
        };
        Suggestions {
            made_of,
            health,
            groups: filled.then(|| Arc::new(groups)),
        }
    }

    /// Plans are made with these suggestions from now on. Results of probes that are not made any more are forgotten.
    pub fn follow_suggestions(&mut self, suggestions: Suggestions) {
        let before = self.defaults.as_ref();
        if before.is_some_and(|before| before.suggestions.made_of == suggestions.made_of) {
            return;
        }
        let groups = suggestions.groups.as_deref();
        let known = template::known(groups.unwrap_or(&self.spec.groups));
        let told = before.and_then(|before| before.suggestions.groups.as_ref());
        let told = told.map_or_else(Vec::new, |told| template::known(told));
        let news = before.is_some_and(|before| before.news) || told != known;
        // Nodes that run already are not shown to begin to run again.
        let unprobed = before.is_some_and(|before| {
            before.unprobed || before.suggestions.health != suggestions.health
        });
        let others: Vec<Sym> = before.map_or_else(Vec::new, |before| {
            let was = probes(&before.spec, &before.suggestions.health);
            let now = probes(&self.spec, &suggestions.health);
            let others = now.into_iter().filter(|(path, probe)| {
                let mut was = was.iter();
                was.any(|(before, old)| before == path && old != probe)
            });
            others.map(|(path, _)| path.clone()).collect()
        });
        self.forget_probes(&others);
        self.defaults = Some(Defaults {
            suggestions,
            news,
            spec: self.spec.clone(),
            unprobed,
        });
    }

    /// Forgets results of probes of groups whose probe was replaced: they say nothing about the new one.
    fn forget_probes(&mut self, groups: &[Sym]) {
        for path in groups {
            for node in &mut self.state.nodes {
                if node.group == *path {
                    let troubled = drover_planner::is_troubled(node);
                    (node.probe.good, node.probe.bad) = (0, 0);
                    node.probe.impaired = 0;
                    node.probe.message = Box::default();
                    if troubled && !drover_planner::is_troubled(node) {
                        self.calmed.push(node.platform.clone());
                    }
                }
            }
        }
    }

    fn template_defaults<'a>(
        &self,
        group: &Group,
        handshakes: &'a BTreeMap<Sym, Arc<wire::Platform>>,
    ) -> Option<&'a wire::TemplateDefaults> {
        let handshake = handshakes.get(&group.choices.first()?.platform)?;
        let entry = template::entry(handshake, &self.spec.software, group)?;
        entry.defaults.as_ref()
    }

    /// Whether the known templates of the groups changed since the last call.
    pub fn take_template_news(&mut self) -> bool {
        let defaults = self.defaults.as_mut();
        defaults.is_some_and(|defaults| std::mem::take(&mut defaults.news))
    }

    /// Whether the health suggested by templates changed since the last call.
    pub fn take_health_news(&mut self) -> bool {
        let defaults = self.defaults.as_mut();
        defaults.is_some_and(|defaults| std::mem::take(&mut defaults.unprobed))
    }
}

/// The probe of each group, by its path.
fn probes<'a>(
    spec: &'a Resolved,
    suggested: &'a [Option<Health>],
) -> Vec<(&'a Sym, Option<&'a Probe>)> {
    let groups = spec.groups.iter().enumerate();
    groups
        .map(|(at, group)| {
            let suggested = || suggested.get(at).and_then(Option::as_ref);
            let health = group.health.as_deref().or_else(suggested);
            (&group.path, health.map(|it| &it.probe))
        })
        .collect()
}

fn can_exec(handshake: &wire::Platform) -> bool {
    let exec = i32::from(wire::Capability::NodeExec);
    handshake.capabilities.contains(&exec)
}

/// The health policy that a template suggests.
fn suggested_health(defaults: &wire::TemplateDefaults, can_exec: bool) -> Option<Health> {
    let suggested = defaults.health.as_ref()?;
    let mut health = drover_convert::spec::health_policy("health", suggested).ok()?;
    // A platform must not choose which node is shown which secret.
    if let Some((_, tls)) = health.probe.tls()
        && !tls.secrets().is_empty()
    {
        return None;
    }
    if matches!(health.probe, Probe::Exec { .. }) && !can_exec {
        // The user did not ask for this probe, so the platform's own readiness is used instead.
        health.probe = Probe::Phase;
    }
    Some(health)
}

#[cfg(test)]
mod tests;
