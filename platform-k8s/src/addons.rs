//! Addons: services around a cluster, made from templates in one namespace.
//!
//! ```text
//! KubernetesAddons ─┬─ context, keys ── what a template can read
//!                   ├─ mark ─────────── labels and identity of every object
//!                   ├─ apply ────────── objects are applied, what is no longer rendered goes
//!                   ├─ provider ───── a namespace has one OIDC provider
//!                   ├─ live ─────────── content of a ConfigMap that reaches pods at once
//!                   ├─ read, state ──── what is there, and how far it is
//!                   ├─ workloads ────── how far what runs pods is
//!                   ├─ leftovers ────── pods whose workload was deleted without them
//!                   └─ loaded ───────── what pods say in their log
//! ```

mod apply;
mod catalogue;
mod context;
mod hand;
mod keys;
mod leftovers;
mod live;
mod loaded;
mod mark;
mod provider;
mod proxies;
mod read;
mod salt;
mod settings;
mod state;
mod workloads;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_platform::addons::{AddonProgress, AddonWanted, Addons, Owner, targets};
use drover_proto::platform::v1::{
    AddonKind, AddonState, AddonTarget, ResourcePhase, Warning, addon_spec::Kind as Spec,
};
use drover_templates::Catalogue;
use tokio_util::task::AbortOnDropHandle;

use self::{
    apply::Apply,
    context::{Address, Beside, Prepared, object_name, prepare},
    live::Live,
    loaded::Loaded,
    mark::Mark,
    provider::CLAIM,
    read::{Slot, Things},
};
use crate::{
    client::{Api, Kind},
    delete::Item,
    objects::{self, Object},
    settings::Settings,
};

pub use settings::AddonsSettings;

/// When an addon is looked at again that waits for its pods to load something, for anything else, or for a mend.
const POLLS: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(10),
];

/// How often a request is tried again whose objects change meanwhile.
const MAX_CONFLICTS: usize = 5;

/// The addons of a platform.
pub struct KubernetesAddons {
    backend: Arc<Backend>,
    catalogue: Arc<Catalogue>,
    live: Arc<Live>,
    controllers: Option<Arc<dyn Controllers>>,
    _telling: AbortOnDropHandle<()>,
}

/// The management controllers of nodes that are hosts.
#[async_trait]
pub(crate) trait Controllers: Send + Sync {
    /// Address and credentials of the controllers of targets that are nodes of this owner.
    ///
    /// # Errors
    /// A host or its Secret could not be read: what is not known is not lacking.
    async fn files(&self, owner: &Owner, targets: &[AddonTarget]) -> Result<ControllerFiles>;
}

/// What the jump host needs to reach management controllers.
#[derive(Clone, Default)]
pub(crate) struct ControllerFiles {
    /// Content by name, in base64.
    pub(crate) files: BTreeMap<String, String>,
    /// Targets without, and why.
    pub(crate) lacking: Vec<String>,
}

/// What all parts need.
struct Backend {
    api: Api,
    settings: Arc<Settings>,
    namespace: String,
    kinds: Vec<Arc<Kind>>,
    pods: Arc<Kind>,
    config_maps: Arc<Kind>,
    secrets: Arc<Kind>,
    /// The proxies of this process, as a jump host has them.
    proxies: String,
    loaded: Loaded,
    /// Whether commands may be run in pods.
    may_hand: bool,
}

impl KubernetesAddons {
    /// Looks whether addons can be made. `None` if the credentials may not.
    ///
    /// # Errors
    /// `Invalid` for wrong settings or templates; otherwise as in [`crate::errors`].
    pub async fn open(api: &Api, settings: &Arc<Settings>) -> Result<Option<Self>> {
        let namespace = match &settings.addons.namespace {
            Some(namespace) => namespace.clone(),
            None => api.default_namespace(),
        };
        let deployments = ("apps", "deployments");
        if settings.addons.kinds.is_empty() {
            return Ok(None);
        }
        if !api.may_with("patch", deployments, "", &namespace).await {
            return Ok(None);
        }
        let may_hand = api
            .may_with("create", ("", "pods"), "exec", &namespace)
            .await;
        let served = api.kinds().await?;
        let named = |name: &String| {
            served
                .named(name)
                .map_err(|error| Error::invalid("addons.kinds", error.message()))
        };
        let kinds = settings.addons.kinds.iter().map(named);
        let kinds = kinds.collect::<Result<Vec<_>>>()?;
        let directory = settings.templates.clone();
        let catalogue = Catalogue::open(catalogue::CATALOGUE, directory.as_deref())?;
        let backend = Arc::new(Backend {
            api: api.clone(),
            settings: Arc::clone(settings),
            namespace,
            kinds,
            pods: served.named("pods")?,
            config_maps: served.named("configmaps")?,
            secrets: served.named("secrets")?,
            proxies: proxies::lines(std::env::vars_os().filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            })),
            loaded: Loaded::default(),
            may_hand,
        });
        let live = Arc::new(Live::new(Arc::clone(&backend)));
        let telling = Arc::clone(&live);
        Ok(Some(Self {
            backend,
            catalogue: Arc::new(catalogue),
            live,
            controllers: None,
            _telling: AbortOnDropHandle::new(tokio::spawn(async move {
                telling.keep().await;
            })),
        }))
    }

    /// Lets jump hosts reach management controllers.
    pub(crate) fn with_controllers(mut self, controllers: Arc<dyn Controllers>) -> Self {
        self.controllers = Some(controllers);
        self
    }

    /// Renders the objects of an addon, without their marks.
    async fn render(
        &self,
        prepared: &Prepared,
        more: Vec<Object>,
        mark: &Mark,
    ) -> Result<Vec<Object>> {
        let catalogue = Arc::clone(&self.catalogue);
        let template = prepared.template.clone();
        let scope = prepared.scope.clone();
        // Reads files, and may take a while with many targets.
        let rendering = tokio::task::spawn_blocking(move || {
            catalogue.reload_if_changed();
            catalogue.select_addon(&template)?.render(&scope)
        });
        let rendered = rendering
            .await
            .map_err(|_| Error::internal("the rendering of the template has failed"))??;
        let mut objects = objects::documents(&rendered, &self.backend.namespace)?;
        objects.extend(more);
        objects::sort(&mut objects);
        // A dry run does not see that a cluster IP is taken: then nothing else is there yet.
        objects.sort_by_key(|object| match object.name.as_str() {
            CLAIM => 0,
            _ if object.kind == "Service" => 1,
            _ => 2,
        });
        for object in &mut objects {
            if object.namespace != self.backend.namespace {
                return Err(object.wrong("addons have no objects in other namespaces"));
            }
            for path in objects::pod_templates(object) {
                let spec = object.map_at(&[path, &["spec"][..]].concat())?;
                prepared.constraints.apply(spec);
            }
            live::check(object)?;
            mark::stamp(object, mark, &self.backend.settings.labels)?;
        }
        Ok(objects)
    }

    /// Applies what is wanted, or tries to.
    async fn apply(
        &self,
        owner: &Owner,
        sequence: u64,
        wanted: &AddonWanted,
        dry_run: bool,
    ) -> Result<Slot> {
        let slot = Slot::of(owner, &wanted.spec.name);
        let mut tries = 0;
        loop {
            match self
                .apply_once(owner, &slot, sequence, wanted, dry_run)
                .await
            {
                // Something was replaced since it was read.
                Err(error) if error.reason() == Reason::Conflict && tries < MAX_CONFLICTS => {
                    tries += 1;
                }
                applied => return applied.map(|()| slot),
            }
        }
    }

    async fn apply_once(
        &self,
        owner: &Owner,
        slot: &Slot,
        sequence: u64,
        wanted: &AddonWanted,
        dry_run: bool,
    ) -> Result<()> {
        let kind = targets::kind(&wanted.spec);
        let there = self.backend.read(&slot.selector()).await?;
        there.check(owner, &wanted.spec.name, kind)?;
        if kind == AddonKind::OidcProvider {
            self.backend
                .check_provider(owner, &wanted.spec.name)
                .await?;
        }
        let bmc = self.bmc(owner, wanted).await?;
        let mut address = there.address(&wanted.spec.cluster_ip);
        let name = object_name(&owner.cluster_id, &wanted.spec.name);
        let salt = match kind {
            AddonKind::JumpHost | AddonKind::OidcProvider => Some(self.backend.salt(&name).await?),
            _ => None,
        };
        loop {
            if address == Address::External {
                let settings = &self.backend.settings.addons;
                settings.check_external(&wanted.spec.cluster_ip)?;
            }
            let beside = Beside {
                namespace: &self.backend.namespace,
                address,
                node_ports: self.backend.settings.addons.node_ports,
                bmc: bmc.clone(),
                proxies: &self.backend.proxies,
                salt: salt.as_deref().unwrap_or_default(),
                certificate: there.certificate(),
            };
            let prepared = prepare(owner, wanted, &beside)?;
            let mark = mark_of(owner, sequence, wanted, &prepared);
            let salted = salt.as_ref().map(|salt| self.backend.salted(&name, salt));
            let claim = (kind == AddonKind::OidcProvider).then(|| self.backend.secret(CLAIM));
            let more = salted.into_iter().chain(claim).collect();
            let objects = self.render(&prepared, more, &mark).await?;
            let apply = Apply {
                backend: &self.backend,
                there: &there,
                owner,
                mark,
                ports: &prepared.ports,
                dry_run,
            };
            match apply.run(objects).await {
                Err(error) if address == Address::Cluster && apply::is_outside(&error) => {
                    address = Address::External;
                }
                applied => return applied,
            }
        }
    }

    /// Settings of the management controllers of hosts, if a jump host is to have them.
    async fn bmc(&self, owner: &Owner, wanted: &AddonWanted) -> Result<ControllerFiles> {
        let Some(Spec::JumpHost(jump)) = &wanted.spec.kind else {
            return Ok(ControllerFiles::default());
        };
        match (&jump.bmc, &self.controllers) {
            (None, _) => Ok(ControllerFiles::default()),
            (Some(_), Some(controllers)) => controllers.files(owner, &wanted.targets).await,
            (Some(_), None) => Err(Error::invalid(
                "spec.jump_host.bmc",
                "is not possible: nodes of this platform have no management controllers",
            )),
        }
    }

    async fn progress(&self, slot: &Slot, kind: AddonKind) -> Result<AddonProgress> {
        let things = self.backend.read(&slot.selector()).await?;
        let things = things.of(slot);
        self.live.tell(&things).await?;
        let mut state = self.backend.state(&self.live, slot, &things).await;
        state.set_kind(kind);
        // What was being deleted has gone since, and is made again by the next request.
        if things.is_empty() {
            state.set_phase(ResourcePhase::Pending);
        }
        Ok(AddonProgress {
            poll_after: match state.phase() {
                ResourcePhase::Ready | ResourcePhase::Gone => None,
                ResourcePhase::Failed => Some(POLLS[2]),
                _ if state.message.starts_with(state::LOADING) => Some(POLLS[0]),
                _ => Some(POLLS[1]),
            },
            state,
        })
    }
}

#[async_trait]
impl Addons for KubernetesAddons {
    fn kinds(&self) -> Vec<AddonKind> {
        vec![
            AddonKind::LoadBalancer,
            AddonKind::JumpHost,
            AddonKind::OidcProvider,
            AddonKind::Template,
        ]
    }

    fn templates(&self) -> Option<Arc<Catalogue>> {
        Some(Arc::clone(&self.catalogue))
    }

    async fn check(&self, owner: &Owner, wanted: &AddonWanted) -> Result<()> {
        self.apply(owner, 0, wanted, true).await.map(drop)
    }

    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        wanted: &AddonWanted,
    ) -> Result<AddonProgress> {
        let slot = self.apply(owner, sequence, wanted, false).await?;
        self.progress(&slot, targets::kind(&wanted.spec)).await
    }

    async fn list(&self, cluster_id: Option<&str>) -> Result<(Vec<AddonState>, Vec<Warning>)> {
        let things = self.backend.read(&mark::selector_of(cluster_id)).await?;
        let mut states = Vec::new();
        for slot in things.slots() {
            states.push(
                self.backend
                    .state(&self.live, &slot, &things.of(&slot))
                    .await,
            );
        }
        Ok((states, Vec::new()))
    }

    async fn remove(&self, owner: &Owner, name: &str) -> Result<AddonProgress> {
        let slot = Slot::of(owner, name);
        let things = self.backend.read_all(&slot).await?;
        let is_provider = |item: &Item| {
            Mark::of(&item.meta).is_some_and(|mark| mark.kind() == AddonKind::OidcProvider)
        };
        if things.items.iter().any(is_provider) {
            self.backend.delete_provider(&things).await?;
        } else {
            self.backend.delete(things.items.iter()).await?;
        }
        let stays = self.backend.delete_leftovers(&slot, &things).await?;
        let things = self.backend.read_all(&slot).await?;
        let mut state = self.backend.state(&self.live, &slot, &things).await;
        if !things.is_empty() {
            state.set_phase(ResourcePhase::Releasing);
            let left = [state::left(&things)];
            state.message = left.into_iter().chain(stays).collect::<Vec<_>>().join("; ");
        }
        Ok(AddonProgress {
            poll_after: (!things.is_empty()).then_some(POLLS[1]),
            state,
        })
    }
}

impl Things {
    /// Checks that nothing of another owner or kind has this name.
    fn check(&self, owner: &Owner, name: &str, kind: AddonKind) -> Result<()> {
        for item in self.all() {
            let mark = Mark::of(&item.meta);
            let what = item.label();
            if !self.is_of(item, owner, name) {
                return Err(not_owned(&what));
            }
            if let Some(mark) = mark.filter(|mark| mark.kind() != kind) {
                let there = mark.kind().as_str_name();
                let there = there.strip_prefix("ADDON_KIND_").unwrap_or(there);
                let message = format!("{name} is there as {there}; its kind cannot change");
                return Err(Error::new(Reason::Immutable, &message)
                    .with_violation("spec.kind", message)
                    .with_resource("addon", name));
            }
        }
        Ok(())
    }
}

/// What is written on the objects of an addon.
fn mark_of(owner: &Owner, sequence: u64, wanted: &AddonWanted, prepared: &Prepared) -> Mark {
    Mark {
        owner: owner.owner.clone(),
        cluster_id: owner.cluster_id.clone(),
        name: wanted.spec.name.clone(),
        kind: targets::kind(&wanted.spec).as_str_name().to_owned(),
        sequence,
        targets: prepared.targets,
        note: prepared.note.clone(),
        digest: String::new(),
    }
}

fn not_owned(what: &str) -> Error {
    let message = format!("{what} is there already and belongs to somebody else");
    Error::new(Reason::NotOwned, message).with_resource("addon", what)
}

#[cfg(test)]
mod tests;
