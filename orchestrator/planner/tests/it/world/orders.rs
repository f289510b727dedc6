//! What users order.

use drover_core::{
    Sym,
    spec::{Group, UpdateStrategy},
};
use drover_planner::{Leaving, Op, apply};

use super::World;

impl World {
    /// Changes the desired groups.
    pub fn want(&mut self, groups: Vec<Group>) {
        if std::env::var_os("PLANNER_TRACE").is_some() {
            for g in &groups {
                let hash = g.choices.first().map(|c| &*c.spec_hash);
                eprintln!(
                    "at {}: want {} x{:?}+{} {hash:?} {:?}, kept: {:?}",
                    self.now - 1_000_000_000,
                    g.path,
                    g.size,
                    g.standby,
                    g.budget(),
                    g.storage.as_ref().map(|storage| storage.policy)
                );
            }
        }
        let gone: Vec<Sym> = self.groups.iter().map(|g| g.path.clone()).collect();
        self.sizes
            .extend(gone.into_iter().map(|path| (self.now, path, 0, 0)));
        for group in &groups {
            let mut most = group.total() as usize;
            let rolls = group.update.strategy == UpdateStrategy::Rolling;
            if rolls || group.expire_after.is_some() || group.management.is_some() {
                most += group.budget().surge as usize;
            }
            if group.remediation.create_first && most == group.total() as usize {
                most += 1;
            }
            let marked = most.max(group.total() as usize + group.budget().surge as usize);
            self.sizes
                .push((self.now, group.path.clone(), most, marked));
            let actives = match group.standby {
                0 => marked,
                _ => group.size.unwrap_or(1) as usize,
            };
            self.actives.push((self.now, group.path.clone(), actives));
        }
        for group in &groups {
            self.ask_size(group);
            if let Some(storage) = &group.storage {
                for state in [&mut self.state, &mut self.durable] {
                    state.storage.insert(group.path.clone(), storage.policy);
                }
            }
        }
        self.leaving.extend(self.groups.iter().map(Leaving::of));
        let kept = |one: &Leaving| groups.iter().all(|group| group.path != one.path);
        self.leaving.retain(kept);
        self.groups = groups;
        self.state.generation += 1;
        self.durable.generation += 1;
    }

    pub fn delete(&mut self) {
        self.want(Vec::new());
        self.state.deleting = true;
        self.durable.deleting = true;
    }

    /// Abandons a platform. With `keep`, what it may still show is left alone.
    pub fn abandon(&mut self, platform: &Sym, keep: bool) {
        let uid = self.views[platform].uid.clone();
        let left = self.platforms[platform].things.keys().cloned();
        self.given_up.extend(left);
        let there = |node: &&drover_core::Node| node.platform == *platform;
        let mut ops: Vec<Op> = self
            .state
            .requests
            .values()
            .filter(|request| request.platform == *platform)
            .map(|request| Op::Close {
                request: request.id,
                maybe_until: self.now,
                settled: self.now,
            })
            .collect();
        ops.extend(
            self.state
                .nodes
                .iter()
                .filter(there)
                .map(|node| Op::RecordDropped {
                    slot: node.slot,
                    reason: "Abandoned",
                    message: "".into(),
                    lost: false,
                }),
        );
        ops.push(Op::Abandon {
            platform: platform.clone(),
            uid,
            keep,
            last: true,
        });
        for state in [&mut self.state, &mut self.durable] {
            apply(state, &ops, self.now);
        }
    }

    /// Allows what an abandoned platform shows to be swept after all.
    pub fn sweep(&mut self, platform: &Sym) {
        let op = Op::Sweep {
            uid: self.views[platform].uid.clone(),
            shown_by: Some(platform.clone()),
        };
        for state in [&mut self.state, &mut self.durable] {
            apply(state, std::slice::from_ref(&op), self.now);
        }
    }

    /// Orders the adoption of what platforms show of the cluster and has no record.
    pub fn order_adoption(&mut self) {
        for state in [&mut self.state, &mut self.durable] {
            state.adopt += 1;
        }
    }

    pub fn mark(&mut self, slot: u64) {
        for state in [&mut self.state, &mut self.durable] {
            if let Some(node) = state.node_mut(slot) {
                node.marked = true;
            }
        }
    }

    /// Names a node that is to go because its group is scaled down.
    pub fn scale_away(&mut self, slot: u64) {
        self.mark(slot);
        self.state.scaled_away.insert(slot);
        self.durable.scaled_away.insert(slot);
    }

    pub fn pause(&mut self, paused: bool) {
        self.state.paused = paused;
        self.durable.paused = paused;
    }
}
