//! Simulated addons: ready after a delay, on ports that all of them share.

mod store;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use drover_core::{Error, Result};
use drover_platform::addons::{AddonProgress, AddonWanted, Addons, Owner, targets};
use drover_proto::platform::v1::{
    AddonKind, AddonState, AddonTarget, NodeRole, Warning, addon_spec::Kind,
};
use drover_templates::{AddonScope, Catalogue, ClusterContext, Context, Scope};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Simulated,
    faults::{Operation, lost},
    settings::AddonWord,
};
use store::{Pace, Plan, PortWish, Served};

pub use store::AddonLedger;
pub(super) use store::AddonStore;

/// Number of left-out targets that a message names.
const NAMED: usize = 3;

/// The part of a rendered document that names an object.
#[derive(Deserialize)]
struct Document {
    kind: String,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

impl Simulated {
    async fn addon_call<T>(
        &self,
        operation: Operation,
        change: impl FnOnce(&mut AddonStore) -> Result<T>,
    ) -> Result<T> {
        let lost_answer = self.call(operation).await?;
        let mut store = self.addons.lock();
        store.settle();
        let outcome = change(&mut store);
        if lost_answer { Err(lost()) } else { outcome }
    }

    fn pace(&self) -> Pace {
        let settings = &self.settings.addons;
        Pace {
            ready: self.settings.scaled(settings.ready_delay),
            apply: self.settings.scaled(settings.apply_delay),
            remove: self.settings.scaled(settings.remove_delay),
            ports: settings.first_port..=settings.last_port,
            steps: settings.steps,
        }
    }

    fn plan(&self, owner: &Owner, wanted: &AddonWanted) -> Result<Plan> {
        let spec = &wanted.spec;
        let mut properties = spec.properties.iter().flat_map(|it| it.fields.keys());
        if let Some(key) = properties.next() {
            return Err(Error::invalid(
                format!("spec.properties.{key}"),
                "is unknown; simulated addons have no properties",
            ));
        }
        let objects = |kinds: &[&str]| -> Vec<(String, String)> {
            let named = kinds.iter();
            named
                .map(|kind| ((*kind).to_owned(), spec.name.clone()))
                .collect()
        };
        let port = |field: &str, listen: Option<u32>| PortWish {
            field: field.to_owned(),
            listen,
            count: 1,
        };
        Ok(match &spec.kind {
            Some(Kind::LoadBalancer(balancer)) => Plan {
                objects: objects(&["deployment", "service"]),
                ports: (0..)
                    .zip(&balancer.ports)
                    .map(|(at, mapping): (usize, _)| PortWish {
                        field: format!("spec.load_balancer.ports[{at}].listen"),
                        listen: mapping.listen,
                        count: mapping.count.max(1),
                    })
                    .collect(),
                served: served(wanted, |target| {
                    targets::balanced(target, &spec.interface, &balancer.ports)
                }),
            },
            Some(Kind::JumpHost(host)) => Plan {
                objects: objects(&["secret", "deployment", "service"]),
                ports: vec![port("spec.jump_host.port", host.port)],
                served: served(wanted, |target| addressed(target, &spec.interface)),
            },
            Some(Kind::OidcProvider(provider)) => Plan {
                objects: objects(&["secret", "deployment", "service"]),
                ports: vec![port("spec.oidc_provider.port", provider.port)],
                served: Served::default(),
            },
            Some(Kind::Template(it)) => Plan {
                objects: match &self.addon_templates {
                    Some(_) => self.rendered(owner, wanted, &it.template)?,
                    None => objects(&["document"]),
                },
                ports: Vec::new(),
                served: served(wanted, |target| addressed(target, &spec.interface)),
            },
            None => return Err(Error::invalid("spec.kind", "is required")),
        })
    }

    /// The objects that a template renders.
    fn rendered(
        &self,
        owner: &Owner,
        wanted: &AddonWanted,
        template: &str,
    ) -> Result<Vec<(String, String)>> {
        let Some(catalogue) = &self.addon_templates else {
            return Ok(Vec::new());
        };
        let selected = catalogue.select_addon(template)?;
        let spec = &wanted.spec;
        let target = |target: &AddonTarget| {
            json!({
                "id": target.node_id,
                "name": target.name,
                "group": target.group,
                "role": if target.role() == NodeRole::Standby { "standby" } else { "active" },
                "draining": target.draining,
                "host": targets::host(target, &spec.interface).ok(),
                "endpoints": target.endpoints,
            })
        };
        let context = Context {
            cluster: ClusterContext {
                id: owner.cluster_id.clone(),
                ..ClusterContext::default()
            },
            ..Context::default()
        };
        let scope = Scope::from(context).of_addon(&AddonScope {
            addon: json!({
                "name": spec.name,
                "image": spec.image,
                "interface": spec.interface,
                "cluster_ip": spec.cluster_ip,
            }),
            targets: wanted.targets.iter().map(target).collect::<Vec<Value>>(),
            ..AddonScope::default()
        });
        let documents: Vec<Document> = selected.render(&scope)?.parse_all()?;
        if documents.is_empty() {
            return Err(Error::new(
                drover_core::Reason::Precondition,
                format!("template {template} renders no document"),
            ));
        }
        Ok(documents
            .into_iter()
            .map(|document| (document.kind, document.metadata.name))
            .collect())
    }
}

/// Whether a target has an address on the interface, and what it lacks otherwise.
fn addressed(target: &AddonTarget, interface: &str) -> (bool, Vec<String>) {
    let lacking = targets::host(target, interface).err();
    (lacking.is_none(), lacking.into_iter().collect())
}

/// Counts the targets that can be served. For a load balancer, only those that take connections.
fn served(wanted: &AddonWanted, reach: impl Fn(&AddonTarget) -> (bool, Vec<String>)) -> Served {
    let balances = targets::kind(&wanted.spec) == AddonKind::LoadBalancer;
    let (mut count, mut lacking) = (0, Vec::new());
    for target in &wanted.targets {
        if balances && !targets::takes_connections(target) {
            continue;
        }
        let (reached, lacks) = reach(target);
        count += u32::from(reached);
        lacking.extend(lacks);
    }
    let more = lacking.len().saturating_sub(NAMED);
    lacking.truncate(NAMED);
    let mut note = lacking.join("; ");
    if more > 0 {
        note.push_str(&format!("; and {more} more"));
    }
    Served { count, note }
}

#[async_trait]
impl Addons for Simulated {
    fn kinds(&self) -> Vec<AddonKind> {
        let kind = |word: &AddonWord| match word {
            AddonWord::LoadBalancer => AddonKind::LoadBalancer,
            AddonWord::JumpHost => AddonKind::JumpHost,
            AddonWord::OidcProvider => AddonKind::OidcProvider,
            AddonWord::Template => AddonKind::Template,
        };
        self.settings.addons.kinds.iter().map(kind).collect()
    }

    fn templates(&self) -> Option<Arc<Catalogue>> {
        self.addon_templates.clone()
    }

    async fn check(&self, owner: &Owner, wanted: &AddonWanted) -> Result<()> {
        let plan = self.plan(owner, wanted)?;
        let pace = self.pace();
        self.addon_call(Operation::ListAddons, |store| {
            store.check(owner, wanted, &plan, &pace)
        })
        .await
    }

    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        wanted: &AddonWanted,
    ) -> Result<AddonProgress> {
        let plan = self.plan(owner, wanted)?;
        let pace = self.pace();
        self.addon_call(Operation::EnsureAddon, |store| {
            store.ensure(owner, sequence, wanted, &plan, &pace)
        })
        .await
    }

    async fn list(&self, _cluster_id: Option<&str>) -> Result<(Vec<AddonState>, Vec<Warning>)> {
        self.addon_call(Operation::ListAddons, |store| {
            Ok((store.states(), Vec::new()))
        })
        .await
    }

    async fn remove(&self, owner: &Owner, name: &str) -> Result<AddonProgress> {
        let pace = self.pace();
        self.addon_call(Operation::RemoveAddon, |store| {
            Ok(store.remove(owner, name, &pace))
        })
        .await
    }
}

/// For tests.
impl AddonStore {
    /// All existing addons.
    pub(super) fn all(&mut self) -> Vec<AddonState> {
        self.settle();
        self.states()
    }

    /// How often each addon was created and changed, by cluster id and name.
    pub(super) fn ledger(&self) -> BTreeMap<(String, String), AddonLedger> {
        self.ledger.clone()
    }

    /// What was last wanted of an addon. `None` if it does not exist, or since a restart.
    pub(super) fn wanted(&self, cluster_id: &str, name: &str) -> Option<AddonWanted> {
        let key = (cluster_id.to_owned(), name.to_owned());
        self.made.get(&key)?.wanted.clone()
    }

    /// Lets an addon fail with this message, or work again. Returns whether it exists.
    pub(super) fn fail(&mut self, cluster_id: &str, name: &str, why: Option<&str>) -> bool {
        let key = (cluster_id.to_owned(), name.to_owned());
        let made = self.made.get_mut(&key);
        made.map(|made| made.failure = why.map(str::to_owned))
            .is_some()
    }

    /// Removes an object of an addon out of band. Returns whether it existed.
    pub(super) fn vanish(&mut self, cluster_id: &str, name: &str, kind: &str) -> bool {
        let key = (cluster_id.to_owned(), name.to_owned());
        let Some(made) = self.made.get_mut(&key) else {
            return false;
        };
        let before = made.objects.len();
        made.objects.retain(|object| object.kind != kind);
        made.objects.len() < before
    }

    /// Creates an addon that belongs to no cluster record.
    pub(super) fn foreign(&mut self, cluster_id: &str, kind: AddonKind, name: &str) {
        self.create_foreign(cluster_id, kind, name);
    }
}
