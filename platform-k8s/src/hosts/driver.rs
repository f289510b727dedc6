//! The driver: hosts are claimed, released and changed by patches of their labels.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use drover_convert::value::to_duration;
use drover_core::{Class, Error, Reason, Result};
use drover_platform::{
    driver::{
        Batch, Change, Changes, Deleted, Deletion, Description, Driver, Found, Listing, Live,
        Outcome, Target, index,
    },
    identity::{Identity, hex},
    inventory::Inventory,
    placement::domains,
};
use drover_proto::platform::v1::{
    Capability, DeprovisionState, FailureDomain, Host, Limits, Node, Slot,
};
use drover_resources_kubernetes::{
    client::{ApiClient, Call, CallPermit, Clients},
    errors,
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::Namespace,
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::watcher::{self, Event, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{
    cache::{Cache, Source},
    choice::{Choice, Properties},
    claim,
    host::{self, BareMetalHost, KIND},
    network,
    secrets::Secrets,
    settings::RACK,
    view::{Beside, Reader},
};
use crate::{labels, settings::Settings};

/// Maximum number of slots per request.
const MAX_BATCH: u32 = 1000;
/// Maximum time from the first write of a request to its last.
const MAX_CREATION_TIME: Duration = Duration::from_secs(120);
/// How long [`HostDriver::open`] waits until all hosts are known.
const MAX_START: Duration = Duration::from_secs(60);
/// How often a write is tried again whose host has changed since it was read.
const MAX_CONFLICTS: usize = 20;
/// How long an API server works on a request at most, unless it is told otherwise (`--request-timeout`).
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause before hosts are chosen again that another request was about to claim.
const RESERVED_PAUSE: Duration = Duration::from_millis(5);
/// How long the API server keeps a watch open. A connection that died without a word is noticed then.
const WATCH_SECONDS: u32 = 60;
/// Pauses before a watch is opened again.
const PAUSES: std::ops::Range<Duration> = Duration::from_millis(200)..Duration::from_secs(10);
/// Hosts in a page: each is some 20 kB with what metal3 found in it, and an answer has at most 32 MiB.
const MAX_PAGE: usize = 250;
/// Secrets that are read at once.
const READ_TOGETHER: usize = 16;

/// The platform driver for hosts of metal3.
pub struct HostDriver {
    backend: Arc<Backend>,
    fixed: Description,
    /// Held while hosts are claimed for a cluster, by its id.
    claiming: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// What the watch and the calls share.
struct Backend {
    client: ApiClient,
    settings: Arc<Settings>,
    cache: Cache,
    secrets: Secrets,
}

impl HostDriver {
    /// Contacts the API server, and returns once all hosts are known.
    ///
    /// # Errors
    /// `Invalid` for wrong settings; `Precondition` or `PermissionDenied` if the API server lacks or refuses something.
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
        let backend = Arc::new(Backend {
            cache: Cache::new(reader, scopes.iter().cloned()),
            secrets: Secrets::new(client.clone()),
            settings: Arc::new(settings),
            client,
        });
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
            claiming: Mutex::default(),
            _tasks: tasks,
        })
    }

    fn lock(&self, cluster: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut claiming = self.claiming.lock();
        claiming.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = claiming.get(cluster).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        claiming.insert(cluster.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

impl Backend {
    /// The hosts of a namespace, or of all if it is empty.
    fn api(&self, namespace: &str) -> Api<BareMetalHost> {
        let client = self.client.kube();
        match namespace {
            "" => Api::all(client),
            namespace => Api::namespaced(client, namespace),
        }
    }

    /// One page of a list, and the token of the next.
    async fn page(
        &self,
        namespace: &str,
        labels: &str,
        token: &str,
        limit: Option<u32>,
    ) -> Result<(Vec<BareMetalHost>, String)> {
        let page = self.settings.page_size.min(MAX_PAGE);
        let page = u32::try_from(page).unwrap_or(u32::MAX);
        let mut params = ListParams::default().limit(limit.unwrap_or(page));
        if !labels.is_empty() {
            params = params.labels(labels);
        }
        if !token.is_empty() {
            params = params.continue_token(token);
        }
        let list = self.api(namespace).list(&params).await.map_err(|error| {
            let error = errors::of(&Call::new("list", KIND, namespace, ""), &error);
            if error.reason() == Reason::NotFound {
                let message = format!("the API server does not serve {KIND}: is metal3 installed?");
                return Error::new(Reason::Precondition, message);
            }
            error
        })?;
        Ok((list.items, list.metadata.continue_.unwrap_or_default()))
    }

    /// Whether the settings name the namespace of a host.
    fn serves(&self, host: &BareMetalHost) -> bool {
        self.settings.serves(&host.namespace().unwrap_or_default())
    }

    /// All hosts with these labels, as they are now.
    async fn list(&self, labels: &str) -> Result<Vec<BareMetalHost>> {
        let mut hosts = Vec::new();
        for scope in self.settings.scopes() {
            let scope = scope.unwrap_or_default();
            let mut token = String::new();
            loop {
                let (page, next) = self.page(scope, labels, &token, None).await?;
                hosts.extend(page.into_iter().filter(|host| self.serves(host)));
                if next.is_empty() {
                    break;
                }
                token = next;
            }
        }
        Ok(hosts)
    }

    /// The nodes among these hosts, with their addresses.
    async fn nodes(&self, hosts: Vec<BareMetalHost>) -> Listing {
        let see = |host: BareMetalHost| async move {
            let known = self.cache.get(&host::id(&host));
            let mut beside = known.map_or_else(Beside::default, |known| known.beside);
            // A host that is no node needs no addresses.
            self.cache.reader.node(&host, &beside)?;
            beside.networks = Some(self.secrets.networks(&host).await);
            self.cache.reader.node(&host, &beside)
        };
        let seen = stream::iter(hosts.into_iter().map(see)).buffered(READ_TOGETHER);
        let seen: Vec<_> = seen.filter_map(|node| async { node }).collect().await;
        let (nodes, warnings): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
        Listing {
            nodes,
            warnings: warnings.into_iter().flatten().collect(),
        }
    }

    /// Reads a host. `None` if there is none in the namespaces of the settings.
    async fn get(&self, id: &str) -> Result<Option<BareMetalHost>> {
        let Some((namespace, name)) = id.split_once('/') else {
            return Ok(None);
        };
        if !self.settings.serves(namespace) {
            return Ok(None);
        }
        let before = self.cache.get(id).and_then(|known| known.host.uid());
        match self.api(namespace).get(name).await {
            Ok(host) => {
                self.cache.changed(host.clone(), Source::Host);
                Ok(Some(host))
            }
            // Whoever does not serve the kind says 404, too, and nothing about a host.
            Err(kube::Error::Api(status)) if status.reason == "NotFound" => {
                if before.is_some() {
                    self.cache.removed(id, before);
                }
                Ok(None)
            }
            Err(error) => {
                let error = errors::of(&Call::new("get", KIND, namespace, name), &error);
                Err(match error.reason() {
                    Reason::NotFound => Error::unavailable(error.message()),
                    _ => error,
                })
            }
        }
    }

    /// Writes on a host, and answers it as it is then.
    async fn patch(
        &self,
        permit: CallPermit,
        host: &BareMetalHost,
        patch: &Value,
    ) -> Result<BareMetalHost> {
        let (namespace, name) = (host.namespace().unwrap_or_default(), host.name_any());
        let call = Call::new("patch", KIND, &namespace, &name);
        let params = PatchParams {
            field_manager: Some(self.settings.field_manager.clone()),
            ..PatchParams::default()
        };
        let url = BareMetalHost::url_path(&(), Some(&namespace));
        let request = kube::core::Request::new(url).patch(&name, &params, &Patch::Merge(patch));
        let mut request =
            request.map_err(|error| errors::of(&call, &kube::Error::BuildRequest(error)))?;
        request.extensions_mut().insert(permit);
        let patched: BareMetalHost = self
            .client
            .kube()
            .request(request)
            .await
            .map_err(|error| errors::of(&call, &error))?;
        self.cache.changed(patched.clone(), Source::Host);
        Ok(patched)
    }

    /// Follows the hosts of a namespace, for ever.
    async fn watch(&self, scope: &str) {
        let mut pause = PAUSES.start;
        loop {
            let page = u32::try_from(MAX_PAGE).unwrap_or(u32::MAX);
            let longest = self.settings.watch_timeout().as_secs().max(1);
            let seconds = WATCH_SECONDS.min(u32::try_from(longest).unwrap_or(WATCH_SECONDS));
            let config = watcher::Config::default().timeout(seconds).page_size(page);
            let mut events = std::pin::pin!(watcher(self.api(scope), config));
            let mut listed = BTreeSet::new();
            let mut begun = Instant::now();
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Init) => {
                        listed.clear();
                        begun = Instant::now();
                    }
                    Ok(Event::InitApply(host) | Event::Apply(host)) if !self.serves(&host) => {}
                    Ok(Event::InitApply(host)) => {
                        listed.insert(host::id(&host));
                        self.cache.changed(host, Source::List(begun));
                    }
                    Ok(Event::InitDone) => {
                        self.cache.keep(scope, &listed, begun);
                        self.cache.set_current(scope, true);
                        pause = PAUSES.start;
                    }
                    Ok(Event::Apply(host)) => self.cache.changed(host, Source::Host),
                    Ok(Event::Delete(host)) => {
                        self.cache.removed(&host::id(&host), host.uid());
                    }
                    Err(error) => {
                        if self.cache.is_current() {
                            let kind = kind_of(&error);
                            tracing::warn!(namespace = scope, kind, "the watch of hosts has ended");
                        }
                        self.cache.set_current(scope, false);
                        // With the credentials of then, and from a new list.
                        break;
                    }
                }
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(PAUSES.end);
        }
    }

    /// Reads the secrets of hosts that became nodes, for ever: whoever watches nodes wants their addresses.
    async fn read_networks(&self) {
        loop {
            let unread = self.cache.without_networks();
            let idle = unread.is_empty();
            let read = |known: super::cache::Known| async move {
                let networks = self.secrets.networks(&known.host).await;
                let id = host::id(&known.host);
                self.cache.set_networks(&id, &known.host, networks);
            };
            stream::iter(unread.into_iter().map(read))
                .buffer_unordered(READ_TOGETHER)
                .collect::<()>()
                .await;
            if idle {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Releases a host if its node is the one that is meant. Answers whether there was one.
    async fn release(&self, id: &str, target: &Target) -> Result<bool> {
        self.change(id, target, |host, _| {
            Some(claim::release(host, &self.settings.labels))
        })
        .await
        .map(|host| host.is_some())
    }

    /// Changes a host whose node is the one that is meant, from the state in which it was read. `None` if that node is not
    /// there, or nothing is to be changed.
    async fn change(
        &self,
        id: &str,
        target: &Target,
        patch: impl Fn(&BareMetalHost, Option<&Identity>) -> Option<Value>,
    ) -> Result<Option<BareMetalHost>> {
        let mut last = None;
        for _ in 0..MAX_CONFLICTS {
            let Some(host) = self.get(id).await? else {
                return Ok(None);
            };
            let Some((found, _)) = self.cache.reader.node(&host, &Beside::default()) else {
                return Ok(None);
            };
            if found.node.node_id != target.node_id {
                return Ok(None);
            }
            target.matches(&found.node)?;
            let mark = labels::read(&host.metadata, &self.settings.labels);
            let identity = mark.and_then(|mark| mark.identity);
            let Some(patch) = patch(&host, identity.as_ref()) else {
                return Ok(None);
            };
            let permit = self.client.permit().await;
            match self.patch(permit, &host, &patch).await {
                Err(error) if error.reason() == Reason::Conflict => last = Some(error),
                patched => return patched.map(Some),
            }
        }
        Err(last.unwrap_or_else(|| Error::unavailable("the host changes all the time")))
    }

    /// Nodes that fit, as they are now: those that have these labels, and those that are known, as somebody may have
    /// changed their labels.
    async fn find(&self, labels: &str, fits: impl Fn(&Node) -> bool) -> Result<Vec<Found>> {
        let mut hosts = self.list(labels).await?;
        let listed: BTreeSet<String> = hosts.iter().map(host::id).collect();
        for found in self.cache.found(&fits) {
            let id = found.node.host_id.unwrap_or_default();
            if !listed.contains(&id) {
                hosts.extend(self.get(&id).await?);
            }
        }
        let mut nodes = self.nodes(hosts).await.nodes;
        nodes.retain(|found| fits(&found.node));
        Ok(nodes)
    }

    /// The host of a node. `None` if it has none.
    async fn host_of(&self, target: &Target) -> Result<Option<String>> {
        let is =
            |node: &Node| node.cluster_id == target.cluster_id && node.node_id == target.node_id;
        if let Some(found) = self.cache.found(is).pop() {
            return Ok(found.node.host_id);
        }
        let keys = &self.settings.labels;
        let hosts = self
            .list(&keys.of_node(&target.cluster_id, &target.node_id))
            .await?;
        let nodes = hosts
            .iter()
            .filter_map(|host| self.cache.reader.node(host, &Beside::default()));
        let mut nodes = nodes.map(|(found, _)| found.node).filter(is);
        Ok(nodes.next().and_then(|node| node.host_id))
    }
}

/// What became of the slots of a request.
struct Claims<'a> {
    backend: &'a Backend,
    batch: &'a Batch,
    properties: Properties,
    left: Vec<&'a Slot>,
    made: Vec<(&'a Slot, BareMetalHost)>,
    unknown: Vec<(&'a Slot, Error)>,
}

/// Whether a claim may have been made.
fn is_open(error: &Error) -> bool {
    error.class() == Class::Unknown && error.reason() != Reason::Conflict
}

fn changed() -> Error {
    Error::new(Reason::Conflict, "the host has changed")
}

impl<'a> Claims<'a> {
    /// Claims hosts for all slots, or for none.
    async fn run(mut self) -> BTreeMap<u32, Outcome> {
        let mut refusal = None;
        let mut conflicts = 0;
        while !self.left.is_empty() && self.unknown.is_empty() && self.batch.may_start() {
            match self.round().await {
                Ok(()) => {}
                Err(error) if error.reason() == Reason::Conflict && conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                }
                Err(error) => {
                    refusal = Some(error);
                    break;
                }
            }
        }
        match refusal {
            Some(error) => self.give_back(&error).await,
            None => self.outcomes(None).await,
        }
    }

    /// Chooses hosts for what is left, and claims them.
    ///
    /// # Errors
    /// `Conflict` if a host has changed since it was seen; then the others are to be chosen again.
    async fn round(&mut self) -> Result<()> {
        self.settle().await?;
        let Backend { cache, secrets, .. } = self.backend;
        let choice = Choice::new(cache, secrets, self.batch, &self.properties).await;
        let chosen = choice.choose(self.batch, &self.left)?;
        let ids = chosen
            .iter()
            .map(|(_, known)| host::id(&known.host))
            .collect();
        let Some(_reserved) = cache.reserve(ids) else {
            // Another request has one of them in its hands, and not for long.
            tokio::time::sleep(RESERVED_PAUSE).await;
            return Ok(());
        };
        for (slot, known) in chosen {
            if !self.claim(slot, &known.host).await? {
                break;
            }
        }
        Ok(())
    }

    /// Finds out what became of claims of these slots without an answer, before another host is chosen for them: a claim
    /// that arrives late would make two nodes of one slot.
    async fn settle(&mut self) -> Result<()> {
        for slot in self.left.clone() {
            let Some(host) = self.backend.cache.open(&self.key(slot)) else {
                continue;
            };
            match self.claim(slot, &host).await {
                Err(error) if error.reason() == Reason::Conflict => {}
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_of(&self, host: &BareMetalHost, identity: &Identity) -> bool {
        let mark = labels::read(&host.metadata, &self.backend.settings.labels);
        mark.and_then(|mark| mark.identity).as_ref() == Some(identity)
    }

    fn key(&self, slot: &Slot) -> (String, u32) {
        (self.batch.request.request_id.clone(), index(slot))
    }

    /// Claims a host in the state in which it was seen. Answers whether others may be claimed after it.
    ///
    /// # Errors
    /// `Conflict` if it has changed; others if it certainly was not claimed.
    async fn claim(&mut self, slot: &'a Slot, host: &Arc<BareMetalHost>) -> Result<bool> {
        let permit = self.backend.client.permit().await;
        // After the wait: what has not begun by now must not begin.
        if !self.batch.may_start() {
            return Ok(false);
        }
        let identity = self.batch.identity(slot);
        let keys = &self.backend.settings.labels;
        let patch = claim::claim(host, &identity, keys, &self.properties.host_labels);
        let claimed = match self.backend.patch(permit, host, &patch).await {
            Err(error) if is_open(&error) => self.look_again(host, &identity, &patch, error).await,
            patched => patched,
        };
        let key = self.key(slot);
        match claimed {
            Ok(host) => self.made.push((slot, host)),
            Err(error) if is_open(&error) => {
                self.backend.cache.set_open(key, Some(Arc::clone(host)));
                self.unknown.push((slot, error));
                self.left.retain(|other| index(other) != index(slot));
                return Ok(false);
            }
            Err(error) => {
                self.backend.cache.set_open(key.clone(), None);
                if !matches!(error.reason(), Reason::Conflict | Reason::NotFound) {
                    return Err(error);
                }
                // What is known of the host is not what it is; it may be this very claim, which arrived late.
                let now = self.backend.get(&host::id(host)).await?;
                match now.filter(|now| self.is_of(now, &identity)) {
                    Some(now) => self.made.push((slot, now)),
                    None => return Err(changed()),
                }
            }
        }
        self.backend.cache.set_open(key, None);
        self.left.retain(|other| index(other) != index(slot));
        Ok(true)
    }

    /// What became of a claim without an answer. As long as the host is as it was, the claim may still arrive; the same
    /// claim made again decides it: one of the two is made, and the other finds the host changed.
    async fn look_again(
        &self,
        host: &BareMetalHost,
        identity: &Identity,
        patch: &Value,
        error: Error,
    ) -> Result<BareMetalHost> {
        let look = || async {
            // An error of the look says nothing about the claim.
            self.backend
                .get(&host::id(host))
                .await
                .map_err(|_| error.clone())
        };
        match look().await? {
            Some(now) if self.is_of(&now, identity) => return Ok(now),
            Some(now) if now.resource_version() == host.resource_version() => {}
            _ => return Err(changed()),
        }
        let permit = self.backend.client.permit().await;
        match self.backend.patch(permit, host, patch).await {
            Ok(host) => Ok(host),
            Err(again) if again.reason() == Reason::Conflict => match look().await? {
                Some(now) if self.is_of(&now, identity) => Ok(now),
                _ => Err(changed()),
            },
            // A refusal of the second says nothing about the first.
            Err(_) => Err(error),
        }
    }

    /// Releases what was claimed, because the rest cannot be.
    async fn give_back(mut self, error: &Error) -> BTreeMap<u32, Outcome> {
        let mut kept = Vec::new();
        for (slot, host) in std::mem::take(&mut self.made) {
            let identity = self.batch.identity(slot);
            let target = Target {
                cluster_id: identity.cluster_id.clone(),
                node_id: identity.id.clone(),
                slot: Some(identity.key()),
            };
            match self.backend.release(&host::id(&host), &target).await {
                Ok(_) => self.left.push(slot),
                // It is a node still, and its owner hears of it.
                Err(_) => kept.push((slot, host)),
            }
        }
        self.made = kept;
        self.outcomes(Some(error)).await
    }

    async fn outcomes(self, refusal: Option<&Error>) -> BTreeMap<u32, Outcome> {
        let mut outcomes = BTreeMap::new();
        for (slot, host) in self.made {
            let listing = self.backend.nodes(vec![host]).await;
            let node = listing.nodes.into_iter().next();
            let outcome = match node {
                Some(found) => Outcome::Made(Box::new(found.node)),
                None => Outcome::Unknown(Error::internal("a claimed host is no node")),
            };
            outcomes.insert(index(slot), outcome);
        }
        for (slot, error) in self.unknown {
            outcomes.insert(index(slot), Outcome::Unknown(error));
        }
        for slot in self.left {
            let outcome = match refusal {
                Some(error) => Outcome::not_begun(error.clone()),
                None => Outcome::NotStarted,
            };
            outcomes.insert(index(slot), outcome);
        }
        outcomes
    }
}

#[async_trait]
impl Driver for HostDriver {
    fn description(&self) -> Description {
        let domain = |name: String| FailureDomain {
            labels: BTreeMap::from([(RACK.to_owned(), name.clone())]),
            name,
            control_plane: true,
        };
        let racks = self.backend.cache.racks();
        Description {
            failure_domains: racks.into_iter().map(domain).collect(),
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
        let reader = &self.backend.cache.reader;
        let mut known = BTreeSet::new();
        for host in self.backend.cache.all() {
            let networks = host.beside.networks.as_deref();
            known.extend(reader.labels(&host.host, networks).into_keys());
        }
        // Networks may not have been read yet.
        let spread = placement
            .into_iter()
            .flat_map(|placement| &placement.spread);
        let in_network = spread.map(|spread| &spread.topology_key);
        known.extend(
            in_network
                .filter(|key| key.starts_with(network::PREFIX))
                .cloned(),
        );
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        domains::check(&self.description().failure_domains, placement, &known)
    }

    async fn list(&self) -> Result<Listing> {
        let hosts = self.backend.list("").await?;
        Ok(self.backend.nodes(hosts).await)
    }

    async fn of_request(&self, request_id: &str) -> Result<Vec<Found>> {
        let labels = self.backend.settings.labels.of_request(request_id);
        let is = |node: &Node| {
            let slot = node.slot.as_ref();
            slot.is_some_and(|slot| slot.request_id == request_id)
        };
        self.backend.find(&labels, is).await
    }

    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        let key = &self.backend.settings.labels.node;
        let labelled = format!("{key}={}", labels::value(node_id));
        let is = |node: &Node| node.node_id == node_id;
        let found = self.backend.find(&labelled, is).await?;
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
        let lock = self.lock(cluster.map_or("", |cluster| cluster.id.as_str()));
        let _claiming = lock.lock().await;
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
        let given_away = |slot: &&Slot| {
            let cache = &self.backend.cache;
            cache.is_given_away(&request.owner, &request.request_id, index(slot))
        };
        if let Some(slot) = batch.slots().find(given_away) {
            let message = format!("{} was made, and belongs to another owner now", slot.name);
            let error = Error::new(Reason::Precondition, message);
            return batch
                .slots()
                .map(|_| Outcome::Failed(error.clone()))
                .collect();
        }
        let claims = Claims {
            backend: &self.backend,
            batch,
            properties,
            left: batch.slots().collect(),
            made: Vec::new(),
            unknown: Vec::new(),
        };
        let mut outcomes = claims.run().await;
        let outcome = |slot| outcomes.remove(&index(slot)).unwrap_or(Outcome::NotStarted);
        batch.slots().map(outcome).collect()
    }

    async fn delete(&self, target: &Target, _: &Deletion) -> Result<Deleted> {
        if let Some(id) = self.backend.host_of(target).await? {
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
            } => {
                labels::declared::check("change.set_labels", set_labels.keys())?;
                let edit = |host: &BareMetalHost, identity: Option<&Identity>| {
                    let identity = identity?;
                    Some(claim::edit(
                        host,
                        identity,
                        keys,
                        *role,
                        set_labels,
                        remove_labels,
                    ))
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
            let mut beside = known.map_or_else(Beside::default, |known| known.beside);
            beside.networks = Some(backend.secrets.networks(&host).await);
            backend.cache.reader.entry(&host, &beside)
        };
        let hosts = backend.list("").await?;
        let entries = stream::iter(hosts.into_iter().map(see)).buffered(READ_TOGETHER);
        Ok(entries.collect().await)
    }
}

/// What is fixed at the start.
async fn describe(client: &ApiClient, settings: &Settings) -> Result<Description> {
    let api: Api<Namespace> = Api::all(client.kube());
    let name = "kube-system";
    let namespace = api.get(name).await;
    let namespace =
        namespace.map_err(|error| errors::of(&Call::new("get", "namespaces", "", name), &error))?;
    let version = client.kube().apiserver_version().await;
    // Namespaces are a scope, and one more of them is no other backend.
    let digest = Sha256::digest(namespace.uid().unwrap_or_default().as_bytes());
    let namespaces = match &settings.namespaces[..] {
        [] => "*".to_owned(),
        named => named.join(","),
    };
    Ok(Description {
        uid: format!("metal3:{}", hex(&digest[..16])),
        name: "metal3".to_owned(),
        kind: "metal".to_owned(),
        driver: "metal3".to_owned(),
        backend_version: version.map_or_else(|_| String::new(), |it| it.git_version),
        scope: BTreeMap::from([("namespaces".to_owned(), namespaces)]),
        capabilities: vec![
            Capability::HostLabels,
            Capability::NamedHosts,
            Capability::FailureDomains,
            Capability::SpreadRequired,
            Capability::SpreadPreferred,
            Capability::UpdateNode,
            Capability::Adopt,
        ],
        limits: Limits {
            max_batch: Some(MAX_BATCH),
            min_poll_interval: Some(to_duration(Duration::from_secs(10))),
            max_creation_time: Some(to_duration(MAX_CREATION_TIME)),
            visibility_delay: Some(to_duration(settings.watch_timeout())),
            // A claim that was sent before a crash may arrive until the API server gives it up, which is after a minute;
            // the same process settles its own.
            replay_delay: Some(to_duration(settings.call_timeout() + API_SERVER_TIMEOUT)),
            ..Limits::default()
        },
        failure_domains: Vec::new(),
        node_classes: Vec::new(),
        properties_schema: Some(Arc::new(schema())),
        properties_example: Some(Arc::new(json!({
            "interfaces": ["oam-ipv4"],
            "requireBmcCredentials": true,
            "hostLabels": {"tenant": "blue"}
        }))),
        warnings: Vec::new(),
    })
}

/// Looks whether the credentials suffice. Answers what works in part only.
async fn rights(client: &ApiClient, settings: &Settings) -> Result<Vec<String>> {
    let (group, plural) = KIND
        .split_once('.')
        .map_or(("", KIND), |(plural, group)| (group, plural));
    let mut warnings = Vec::new();
    for scope in settings.scopes() {
        let namespace = scope.unwrap_or_default();
        for verb in ["get", "list", "watch", "patch"] {
            if !may(client, verb, group, plural, namespace).await? {
                let call = Call::new(verb, KIND, namespace, "");
                let message = format!("the credentials may not {call}");
                return Err(Error::new(Reason::PermissionDenied, message));
            }
        }
        if !may(client, "get", "", "secrets", namespace).await? {
            let place = match namespace {
                "" => "any namespace".to_owned(),
                named => format!("namespace {named}"),
            };
            warnings.push(format!(
                "may not get secrets in {place}: addresses, networks and credentials of hosts there are not known"
            ));
        }
    }
    Ok(warnings)
}

async fn may(
    client: &ApiClient,
    verb: &str,
    group: &str,
    resource: &str,
    namespace: &str,
) -> Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let kind = "selfsubjectaccessreviews.authorization.k8s.io";
    let api: Api<SelfSubjectAccessReview> = Api::all(client.kube());
    let answer = api.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| errors::of(&Call::new("create", kind, "", ""), &error))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// JSON Schema of the properties of a group.
fn schema() -> Value {
    let names = |what: &str| {
        json!({
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 253},
            "maxItems": 64,
            "description": what
        })
    };
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "interfaces": names("Networks in which each host must have an address, by their ids in its network data."),
            "networks": names("Networks in which each host must be."),
            "requireBmcCredentials": {
                "type": "boolean",
                "description": "Whether a host must have user name and password of its management controller. Default false."
            },
            "hostLabels": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "maxProperties": 64,
                "description": "Labels that a host has while it is claimed."
            }
        }
    })
}

/// The kind of failure of a watch: its words may quote what was sent.
fn kind_of(error: &watcher::Error) -> &'static str {
    match error {
        watcher::Error::InitialListFailed(_) => "list failed",
        watcher::Error::WatchStartFailed(_) => "watch refused",
        watcher::Error::WatchError(_) => "watch expired",
        watcher::Error::WatchFailed(_) => "watch cut off",
        watcher::Error::NoResourceVersion => "list without resource version",
    }
}
