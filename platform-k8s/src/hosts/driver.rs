//! The driver: hosts are claimed, released and changed by patches of their labels.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_platform::{
    addons::Addons,
    driver::{
        Batch, Change, Changes, Deleted, Deletion, Description, Driver, Found, Listing, Live,
        Outcome, Target, index,
    },
    identity::Identity,
    inventory::{Inventory, metal3, properties::Properties},
    locks::Locks,
    placement::domains,
};
use drover_proto::platform::v1::{DeprovisionState, Host, Node, Slot};
use drover_resources_kubernetes::client::Clients;
use futures::{StreamExt as _, stream};
use tokio_util::task::AbortOnDropHandle;

use super::{
    backend::{Backend, READ_TOGETHER},
    cache::Cache,
    claim,
    claims::Claims,
    describe::{describe, rights},
    host::{self, BareMetalHost},
    lookups::Lookups,
    secrets::Secrets,
    view::{Beside, Reader},
};
use crate::{
    addons::{Controllers, KubernetesAddons},
    client::Api,
    labels,
    settings::Settings,
};

/// How long [`HostDriver::open`] waits until all hosts are known.
const MAX_START: Duration = Duration::from_secs(60);

/// The platform driver for hosts of metal3.
pub struct HostDriver {
    backend: Arc<Backend>,
    fixed: Description,
    addons: Option<KubernetesAddons>,
    /// Claims, by the id of the cluster that they are for.
    claiming: Locks,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl HostDriver {
    /// Contacts the API server, and returns once all hosts are known.
    ///
    /// # Errors
    /// `Invalid` for wrong settings; `Precondition` or `CredentialsRefused` if the API server lacks or refuses something.
    pub async fn open(settings: Settings, clients: &Clients) -> Result<Self> {
        settings.check()?;
        settings.hosts.check()?;
        let client = clients.get(&settings.client()).await?;
        let mut fixed = describe(&client, &settings).await?;
        fixed.warnings = rights(&client, &settings).await?;
        for warning in &fixed.warnings {
            tracing::warn!("{warning}");
        }
        let reader = Reader {
            keys: settings.labels.clone(),
            settings: settings.hosts.clone(),
        };
        let scopes: Vec<String> = settings
            .scopes()
            .map(|scope| scope.unwrap_or_default().to_owned())
            .collect();
        let settings = Arc::new(settings);
        let api = Api::over(client.clone(), &settings);
        let (lookups, waiting) = Lookups::new();
        let backend = Arc::new(Backend {
            lookups,
            cache: Cache::new(reader, scopes.iter().cloned()),
            secrets: Secrets::new(client.clone()),
            settings: Arc::clone(&settings),
            client,
        });
        let controllers: Arc<dyn Controllers> = Arc::<Backend>::clone(&backend);
        let addons = KubernetesAddons::open(&api, &settings).await?;
        let addons = addons.map(|addons| addons.with_controllers(controllers));
        for scope in &scopes {
            backend.page(scope, "", "", Some(1)).await?;
        }
        let spawn = |task| AbortOnDropHandle::new(tokio::spawn(task));
        let mut tasks = Vec::new();
        for scope in scopes {
            let backend = Arc::clone(&backend);
            tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
                backend.watch(&scope).await;
            })));
        }
        let power = Arc::clone(&backend);
        tasks.push(spawn(
            Box::pin(async move { power.cache.watch_power().await })
                as futures::future::BoxFuture<'static, ()>,
        ));
        let ending = Arc::clone(&backend);
        tasks.push(spawn(Box::pin(async move { ending.end_requests().await })));
        let looking = Arc::clone(&backend);
        tasks.push(spawn(Box::pin(
            async move { looking.look_up(waiting).await },
        )));
        let reading = Arc::clone(&backend);
        tasks.push(spawn(Box::pin(
            async move { reading.read_networks().await },
        )));
        tokio::time::timeout(MAX_START, backend.cache.ready())
            .await
            .map_err(|_| {
                Error::unavailable("the API server does not say within a minute which hosts exist")
            })?;
        Ok(Self {
            backend,
            fixed,
            addons,
            claiming: Locks::default(),
            _tasks: tasks,
        })
    }
}

#[async_trait]
impl Driver for HostDriver {
    fn description(&self) -> Description {
        Description {
            failure_domains: self.backend.cache.failure_domains(),
            ..self.fixed.clone()
        }
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        let group = batch.request.group.as_ref();
        let class = group.map_or("", |group| group.node_class.as_str());
        if !class.is_empty() {
            let message = "hosts have no node classes; placement.selector chooses by labels";
            return Err(
                Error::new(Reason::NodeClassNotFound, message).with_resource("node class", class)
            );
        }
        let properties = Properties::of(batch)?;
        let cluster = batch.request.cluster.as_ref();
        claim::check(
            "group.properties.hostLabels",
            &properties.host_labels,
            cluster.map_or("", |cluster| &cluster.id),
            &self.backend.cache.reader,
        )?;
        let placement = group.and_then(|group| group.placement.as_ref());
        let keys = placement
            .into_iter()
            .flat_map(|placement| &placement.spread)
            .map(|spread| spread.topology_key.as_str());
        // Networks may not have been read yet.
        let known =
            |key: &&str| key.starts_with(metal3::PREFIX) || self.backend.cache.has_label(key);
        let known: Vec<&str> = keys.filter(known).collect();
        domains::check(&self.description().failure_domains, placement, &known)
    }

    async fn list(&self) -> Result<Listing> {
        let hosts = self.backend.list("").await?;
        Ok(self.backend.nodes(hosts).await)
    }

    async fn of_request(&self, request_id: &str) -> Result<Vec<Found>> {
        let is = |node: &Node| {
            let slot = node.slot.as_ref();
            slot.is_some_and(|slot| slot.request_id == request_id)
        };
        let value = labels::value(request_id);
        self.backend.find(labels::REQUEST, value, is).await
    }

    fn is_unfinished(&self, request_id: &str) -> bool {
        self.backend.cache.is_unfinished(request_id)
    }

    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        let key = &self.backend.settings.labels.node;
        let is = |node: &Node| node.node_id == node_id;
        let found = self.backend.find(key, labels::value(node_id), is).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        let host = self.backend.get(node_id).await?;
        let mut found = self.backend.nodes(host.into_iter().collect()).await.nodes;
        found.retain(|found| is(&found.node));
        Ok(found)
    }

    async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        let cluster = batch.request.cluster.as_ref();
        let cluster = cluster.map_or("", |cluster| cluster.id.as_str());
        let _claiming = self.claiming.take(cluster).await;
        let properties = match Properties::of(batch) {
            Ok(properties) => properties,
            Err(error) => {
                return batch
                    .slots()
                    .map(|_| Outcome::Failed(error.clone()))
                    .collect();
            }
        };
        let request = &batch.request;
        let cache = &self.backend.cache;
        let given_away = cache.given_away(&request.owner, &request.request_id);
        let is_given_away = |slot: &&Slot| given_away.contains(&index(slot));
        if let Some(slot) = batch.slots().find(is_given_away) {
            let message = format!("{} was made, and belongs to another owner now", slot.name);
            let error = Error::new(Reason::Precondition, message);
            return batch
                .slots()
                .map(|_| Outcome::Failed(error.clone()))
                .collect();
        }
        let claims = Claims::new(&self.backend, batch, properties);
        let mut outcomes = claims.run().await;
        let outcome = |slot| outcomes.remove(&index(slot)).unwrap_or(Outcome::NotStarted);
        batch.slots().map(outcome).collect()
    }

    async fn delete(&self, target: &Target, _: &Deletion) -> Result<Deleted> {
        if let Some(id) = self.backend.host_of(target).await? {
            if let Some(slot) = &target.slot {
                self.backend.end_request(&slot.request_id, &id).await?;
            }
            self.backend.release(&id, target).await?;
        }
        Ok(Deleted {
            state: DeprovisionState::Gone,
            retained_storage: Vec::new(),
        })
    }

    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        let gone = || Error::not_found("node", &target.node_id);
        let id = match self.backend.host_of(target).await? {
            Some(id) => id,
            // A host that another tool has labelled has none of our labels to find it by.
            None => target.node_id.clone(),
        };
        let keys = &self.backend.settings.labels;
        let changed = match change {
            Change::Edit {
                role,
                set_labels,
                remove_labels,
                host_labels,
                ..
            } => {
                labels::declared::check("change.set_labels", set_labels.keys())?;
                if let Some(wanted) = host_labels {
                    let reader = &self.backend.cache.reader;
                    let field = "change.host_labels.labels";
                    claim::check(field, wanted, &target.cluster_id, reader)?;
                }
                let edit = claim::Edit {
                    role: *role,
                    set_labels,
                    remove_labels,
                    host_labels: host_labels.as_ref(),
                };
                let edit = |host: &BareMetalHost, identity: Option<&Identity>| {
                    Some(edit.of(host, identity?, keys))
                };
                self.backend.change(&id, target, edit).await?
            }
            Change::Adopt(heir) => {
                let adopt = |host: &BareMetalHost, former: Option<&Identity>| {
                    Some(claim::adopt(host, &target.node_id, former, heir, keys))
                };
                self.backend.change(&id, target, adopt).await?
            }
        };
        let nodes = self
            .backend
            .nodes(vec![changed.ok_or_else(gone)?])
            .await
            .nodes;
        nodes
            .into_iter()
            .next()
            .map(|found| found.node)
            .ok_or_else(gone)
    }

    fn live(&self) -> Option<&dyn Live> {
        Some(self)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }

    fn addons(&self) -> Option<&dyn Addons> {
        let addons = self.addons.as_ref()?;
        Some(addons)
    }
}

impl Live for HostDriver {
    fn connect(&self, changes: Changes) {
        self.backend.cache.connect(changes);
    }

    fn node(&self, cluster_id: &str, node_id: &str) -> Option<Node> {
        self.backend.cache.node(cluster_id, node_id)
    }

    fn is_current(&self) -> bool {
        self.backend.cache.is_current()
    }
}

#[async_trait]
impl Inventory for HostDriver {
    async fn hosts(&self) -> Result<Vec<Host>> {
        let backend = &self.backend;
        let see = |host: BareMetalHost| async move {
            let known = backend.cache.get(&host::id(&host));
            let mut beside = known.map_or_else(Beside::default, |known| known.beside.clone());
            beside.networks = Some(backend.secrets.networks(&host).await);
            backend.cache.reader.entry(&host, &beside)
        };
        let hosts = backend.list("").await?;
        let entries = stream::iter(hosts.into_iter().map(see)).buffered(READ_TOGETHER);
        Ok(entries.collect().await)
    }
}
