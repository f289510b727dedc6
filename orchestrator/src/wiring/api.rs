//! Builds what answers calls.

use std::sync::Arc;

use super::Wiring;
use crate::{
    api::{
        Abandonment, Access, Applier, ClusterApi, Creator, Editor, Edits, Events, Forecaster,
        Guard, NodeStreams, Passes, Plans, PlatformApi, PlatformCalls, Reads, Revisions, SecretApi,
        SecretCalls, Storage, Validator, Watches,
    },
    gauges::Gauges,
    limits::Limits,
    locks::Locks,
    registry::Registry,
    secrets::Secrets,
    services::Services,
};

impl Wiring {
    /// What answers calls.
    pub(crate) fn services(
        &self,
        registry: &Arc<Registry>,
        secrets: &Arc<Secrets>,
        limits: Limits,
    ) -> Services {
        Services {
            clusters: self.cluster_api(secrets, &Arc::new(limits)).into_service(),
            platforms: self.platform_api(registry, secrets).into_service(),
            secrets: self.secret_api(registry, secrets).into_service(),
            gauges: Gauges::new(
                self.records.clone(),
                self.viewer(),
                self.queue.clone(),
                self.space.clone(),
            ),
            store: self.store.clone(),
        }
    }

    fn guard(&self) -> Guard {
        Guard {
            store: self.store.clone(),
            tasks: self.tasks.clone(),
        }
    }

    fn access(&self) -> Access {
        Access::closed(self.clusters.clone(), self.platforms.clone())
    }

    fn revisions(&self) -> Revisions {
        Revisions {
            store: self.store.clone(),
            digests: self.digests.clone(),
        }
    }

    fn forecaster(&self) -> Forecaster {
        Forecaster {
            planner: self.planner(),
            viewer: self.viewer(),
            records: self.records.clone(),
        }
    }

    fn validator(&self) -> Validator {
        Validator {
            access: self.access(),
            platforms: self.platforms.clone(),
            vault: self.vault.clone(),
            store: self.store.clone(),
            digests: self.digests.clone(),
            interner: self.interner.clone(),
        }
    }

    fn storage(&self) -> Storage {
        Storage {
            access: self.access(),
            records: self.records.clone(),
            platforms: self.platforms.clone(),
            store: self.store.clone(),
        }
    }

    fn editor(&self, changing: &Arc<Locks>) -> Editor {
        Editor {
            access: self.access(),
            changing: changing.clone(),
            store: self.store.clone(),
            records: self.records.clone(),
            committer: self.committer.clone(),
            revisions: self.revisions(),
            planner: self.planner(),
            probes: self.probes.clone(),
            queue: self.queue.clone(),
            tasks: self.tasks.clone(),
            clock: self.clock.clone(),
            hooks: self.hooks.clone(),
        }
    }

    fn edits(&self, editor: Editor) -> Edits {
        Edits {
            access: self.access(),
            editor,
            forecaster: self.forecaster(),
            validator: self.validator(),
            viewer: self.viewer(),
            clock: self.clock.clone(),
            digests: self.digests.clone(),
            interner: self.interner.clone(),
        }
    }

    fn creator(&self) -> Creator {
        Creator {
            access: self.access(),
            forecaster: self.forecaster(),
            viewer: self.viewer(),
            storage: self.storage(),
            store: self.store.clone(),
            records: self.records.clone(),
            platforms: self.platforms.clone(),
            tombstones: self.tombstones.clone(),
            space: self.space.clone(),
            interner: self.interner.clone(),
            queue: self.queue.clone(),
            clock: self.clock.clone(),
            hooks: self.hooks.clone(),
        }
    }

    fn applier(&self, editor: Editor, secrets: &Arc<Secrets>, limits: &Arc<Limits>) -> Applier {
        Applier {
            access: self.access(),
            validator: self.validator(),
            creator: self.creator(),
            editor,
            forecaster: self.forecaster(),
            revisions: self.revisions(),
            viewer: self.viewer(),
            records: self.records.clone(),
            platforms: self.platforms.clone(),
            secrets: secrets.clone(),
            limits: limits.clone(),
            space: self.space.clone(),
            clock: self.clock.clone(),
        }
    }

    fn reads(&self) -> Reads {
        Reads {
            access: self.access(),
            records: self.records.clone(),
            viewer: self.viewer(),
            revisions: self.revisions(),
        }
    }

    fn watches(&self, limits: &Arc<Limits>) -> Watches {
        Watches {
            access: self.access(),
            records: self.records.clone(),
            viewer: self.viewer(),
            limits: limits.clone(),
            readiness: self.readiness.clone(),
        }
    }

    fn events(&self, limits: &Arc<Limits>) -> Events {
        Events {
            access: self.access(),
            store: self.store.clone(),
            records: self.records.clone(),
            tombstones: self.tombstones.clone(),
            limits: limits.clone(),
            readiness: self.readiness.clone(),
            clock: self.clock.clone(),
        }
    }

    fn nodes(&self, limits: &Arc<Limits>) -> NodeStreams {
        NodeStreams {
            access: self.access(),
            platforms: self.platforms.clone(),
            vault: self.vault.clone(),
            store: self.store.clone(),
            tasks: self.tasks.clone(),
            limits: limits.clone(),
        }
    }

    fn passes(&self) -> Passes {
        Passes {
            access: self.access(),
            reconciling: Arc::default(),
            waiters: self.waiters.clone(),
            queue: self.queue.clone(),
            tasks: self.tasks.clone(),
            store: self.store.clone(),
            records: self.records.clone(),
            viewer: self.viewer(),
            clock: self.clock.clone(),
        }
    }

    fn abandonment(&self, changing: &Arc<Locks>) -> Abandonment {
        Abandonment {
            access: self.access(),
            changing: changing.clone(),
            platforms: self.platforms.clone(),
            records: self.records.clone(),
            committer: self.committer.clone(),
            interner: self.interner.clone(),
            viewer: self.viewer(),
            queue: self.queue.clone(),
            clock: self.clock.clone(),
        }
    }

    fn cluster_api(&self, secrets: &Arc<Secrets>, limits: &Arc<Limits>) -> ClusterApi {
        let changing = Arc::new(Locks::default());
        let editor = self.editor(&changing);
        let applier = self.applier(editor.clone(), secrets, limits);
        let edits = self.edits(editor);
        ClusterApi {
            guard: self.guard(),
            access: self.access(),
            reads: self.reads(),
            watches: self.watches(limits),
            events: self.events(limits),
            nodes: self.nodes(limits),
            passes: self.passes(),
            abandonment: self.abandonment(&changing),
            plans: Plans {
                access: self.access(),
                applier: applier.clone(),
                edits: edits.clone(),
                forecaster: self.forecaster(),
                revisions: self.revisions(),
                viewer: self.viewer(),
                records: self.records.clone(),
                limits: limits.clone(),
            },
            applier,
            edits,
        }
    }

    fn platform_api(&self, registry: &Arc<Registry>, secrets: &Arc<Secrets>) -> PlatformApi {
        PlatformApi {
            guard: self.guard(),
            access: self.access(),
            calls: PlatformCalls {
                access: self.access(),
                registry: registry.clone(),
                platforms: self.platforms.clone(),
                records: self.records.clone(),
                vault: self.vault.clone(),
                secrets: secrets.clone(),
                clock: self.clock.clone(),
            },
            storage: self.storage(),
        }
    }

    fn secret_api(&self, registry: &Arc<Registry>, secrets: &Arc<Secrets>) -> SecretApi {
        SecretApi {
            guard: self.guard(),
            access: self.access(),
            calls: SecretCalls {
                access: self.access(),
                secrets: secrets.clone(),
                vault: self.vault.clone(),
                store: self.store.clone(),
                records: self.records.clone(),
                registry: registry.clone(),
                digests: self.digests.clone(),
                queue: self.queue.clone(),
                clock: self.clock.clone(),
                hooks: self.hooks.clone(),
            },
        }
    }
}
