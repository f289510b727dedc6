//! Infrastructure: created before the nodes, checked for drift, released after them.

use drover_core::{
    Sym,
    resource::{ResourceKey, ResourceKind, ResourceRecord, Wanted},
};

use super::{Told, Want, words::progress};
use crate::{ConditionKey, ConditionKind, Planner};

impl<'a> Planner<'a> {
    pub(super) fn wanted_infrastructure(&self) -> &'a [Wanted] {
        if self.state.deleting {
            &[]
        } else {
            self.input.infrastructure
        }
    }

    pub(crate) fn plan_infrastructure(&mut self) {
        let state = self.state;
        let want = |wanted| Want {
            wanted,
            told: Some(Told::default()),
        };
        let records = state.resources.iter();
        for (key, record) in records.filter(|(key, _)| !key.is_addon()) {
            if self.full() {
                break;
            }
            let wanted = self
                .wanted_infrastructure()
                .iter()
                .find(|wanted| wanted.platform == key.platform && self.is_current(key));
            self.keep(key, record, wanted.map(want).as_ref());
        }
        for wanted in self.wanted_infrastructure() {
            self.begin(ResourceKind::Infrastructure, &want(wanted));
        }
        self.note_lacking();
    }

    /// Determines what nodes have to wait for.
    pub(crate) fn note_lacking(&mut self) {
        self.lacks = self.lacking();
    }

    /// Nodes and addons that may still use a resource, for people. `None` if nothing does: nothing uses an addon.
    pub(super) fn users(&self, key: &ResourceKey) -> Option<String> {
        if key.is_addon() {
            return None;
        }
        let (platform, uid) = (&key.platform, &key.uid);
        let state = self.state;
        let here = |name: &Sym, own: &Sym| state.deleting || (name == platform && own == uid);
        let nodes = state
            .nodes
            .iter()
            .filter(|node| here(&node.platform, &node.platform_uid))
            .count();
        let requests = state
            .requests
            .values()
            .filter(|request| here(&request.platform, &request.platform_uid))
            .count();
        // Requests that this plan records are not visible here; they are planned after this.
        let orphans = state
            .orphans
            .iter()
            .filter(|((name, _), orphan)| here(name, &orphan.platform_uid))
            .count();
        // One on another platform does not need it, however long its removal takes.
        let addons = state.resources.keys().filter(|key| key.is_addon());
        let addons = addons.filter(|key| key.is_on(platform, uid)).count();
        if nodes + requests + orphans > 0 {
            Some(drover_core::words::count(nodes + orphans, "node"))
        } else {
            (addons > 0).then(|| "its addons".to_owned())
        }
    }

    /// The infrastructure that nodes wait for. `None` if all of it is up to date and was so before this plan: its
    /// outputs go into requests as recorded.
    fn lacking(&self) -> Option<String> {
        let mut lacks = Vec::new();
        for wanted in self.wanted_infrastructure() {
            let platform = &wanted.platform;
            let uid = self.input.platforms.get(platform).map(|view| &view.uid);
            let records = uid.map_or([None, None], |uid| {
                self.record_of(&ResourceKey::infrastructure(platform.clone(), uid.clone()))
            });
            let ready =
                |record: &ResourceRecord| record.is_ready() && record.spec_hash == wanted.spec_hash;
            match records {
                [Some(before), Some(after)] if ready(before) && ready(after) => {}
                [_, Some(after)] => lacks.push(format!("{platform}: {}", progress(after))),
                [_, None] => lacks.push(format!("{platform}: not asked for yet")),
            }
        }
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }

    /// Why no node may be created on a platform now. `None` if infrastructure does not prevent it.
    pub(crate) fn awaits_infrastructure(&self, platform: &Sym) -> Option<String> {
        if let Some(lacks) = &self.lacks {
            return Some(lacks.clone());
        }
        let mut keys = self.state.resources.keys().filter(|key| !key.is_addon());
        keys.any(|key| {
            key.platform == *platform
                && self.record_of(key)[1].is_some_and(|record| record.releasing)
        })
        .then(|| format!("{platform}: what was there is being released first"))
    }

    pub(crate) fn wait_for_infrastructure(&mut self, group: &Sym, why: &str) {
        let key = ConditionKey {
            group: group.clone(),
            kind: ConditionKind::WaitingForInfrastructure,
        };
        self.hold(key, "Infrastructure", why);
        self.note(group, None, false, "Infrastructure", || why.to_owned());
    }

    /// Whether all infrastructure is up to date as of this plan.
    pub(crate) fn state_infrastructure(&mut self) -> bool {
        if self.wanted_infrastructure().is_empty() {
            return true;
        }
        if self.lacks.is_some() {
            return false;
        }
        let key = ConditionKey {
            group: Sym::default(),
            kind: ConditionKind::InfrastructureReady,
        };
        self.hold(key, "AsWanted", "");
        true
    }
}
