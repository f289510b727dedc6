//! The hosts at the API server: read, written and watched.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_platform::{
    driver::{Found, Listing, Target},
    identity::Identity,
};
use drover_proto::platform::v1::Node;
use drover_resources_kubernetes::{
    client::{ApiClient, Call, CallPermit},
    errors,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    runtime::watcher::{self, Event, watcher},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    cache::{Cache, Known, Source},
    claim,
    host::{self, BareMetalHost, KIND},
    lookups::Lookups,
    secrets::Secrets,
    view::Beside,
};
use crate::settings::Settings;

/// How often a write is tried again whose host has changed since it was read.
pub(super) const MAX_CONFLICTS: usize = 20;
/// Secrets that are read at once.
pub(super) const READ_TOGETHER: usize = 16;
/// How long the API server keeps a watch open. A connection that died without a word is noticed then.
const WATCH_SECONDS: u32 = 60;
/// Pauses before a watch is opened again.
const PAUSES: std::ops::Range<Duration> = Duration::from_millis(200)..Duration::from_secs(10);
/// Hosts in a page: each is some 20 kB with what metal3 found in it, and an answer has at most 32 MiB.
const MAX_PAGE: usize = 250;

/// What the watch and the calls share.
pub(super) struct Backend {
    pub(super) client: ApiClient,
    pub(super) settings: Arc<Settings>,
    pub(super) cache: Cache,
    pub(super) secrets: Secrets,
    pub(super) lookups: Lookups,
}

impl Backend {
    /// The hosts of a namespace, or of all if it is empty.
    pub(super) fn api(&self, namespace: &str) -> Api<BareMetalHost> {
        let client = self.client.kube();
        match namespace {
            "" => Api::all(client),
            namespace => Api::namespaced(client, namespace),
        }
    }

    /// One page of a list, and the token of the next.
    pub(super) async fn page(
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
        let list = self.api(namespace).list(&params).await;
        let list = list.map_err(|error| Self::list_error(namespace, &error))?;
        Ok((list.items, list.metadata.continue_.unwrap_or_default()))
    }

    pub(super) fn list_error(namespace: &str, error: &kube::Error) -> Error {
        let error = errors::of(&Call::new("list", KIND, namespace, ""), error);
        if error.reason() == Reason::NotFound {
            let message = format!("the API server does not serve {KIND}: is metal3 installed?");
            return Error::new(Reason::Precondition, message);
        }
        error
    }

    /// Whether the settings name the namespace of a host.
    pub(super) fn serves(&self, host: &BareMetalHost) -> bool {
        self.settings.serves(&host.namespace().unwrap_or_default())
    }

    /// All hosts with these labels, as they are now.
    pub(super) async fn list(&self, labels: &str) -> Result<Vec<BareMetalHost>> {
        let mut hosts = Vec::new();
        for scope in self.settings.scopes() {
            let scope = scope.unwrap_or_default();
            let mut token = String::new();
            loop {
                let (page, next) = self.page(scope, labels, &token, None).await?;
                for host in page.into_iter().filter(|host| self.serves(host)) {
                    if !self.cache.knows(&host) {
                        self.cache.changed(host.clone(), Source::Host);
                    }
                    hosts.push(host);
                }
                if next.is_empty() {
                    break;
                }
                token = next;
            }
        }
        Ok(hosts)
    }

    /// The nodes among these hosts, with their addresses.
    pub(super) async fn nodes(&self, hosts: Vec<BareMetalHost>) -> Listing {
        let see = |host: BareMetalHost| async move {
            let known = self.cache.get(&host::id(&host));
            let mut beside = known.map_or_else(Beside::default, |known| known.beside.clone());
            // A host that is no node needs no addresses.
            self.cache.reader.node(&host, &beside)?;
            beside.networks = Some(self.secrets.networks(&host).await);
            let mut seen = self.cache.reader.node(&host, &beside);
            if let Some((found, _)) = &mut seen {
                self.cache.hold_back(&mut found.node);
            }
            seen
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
    pub(super) async fn get(&self, id: &str) -> Result<Option<BareMetalHost>> {
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
    pub(super) async fn patch(
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
    pub(super) async fn watch(&self, scope: &str) {
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
    pub(super) async fn read_networks(&self) {
        loop {
            let unread = self.cache.without_networks();
            let idle = unread.is_empty();
            let read = |known: Arc<Known>| async move {
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

    /// Takes off, for ever, what says of requests that they are unfinished when they no longer are.
    pub(super) async fn end_requests(&self) {
        let mut pause = PAUSES.start;
        loop {
            tokio::time::sleep(pause).await;
            pause = PAUSES.start;
            for known in self.cache.over() {
                let id = host::id(&known.host);
                if let Err(error) = self.finish(&known).await {
                    tracing::debug!(host = id, %error, "the mark of a request that is over stays for now");
                    pause = PAUSES.end;
                }
            }
        }
    }

    /// Ends a request of which a node is being removed, so that what else there is of it serves. Whoever removes a node
    /// does not repeat its request.
    ///
    /// # Errors
    /// Those of the call that writes it.
    pub(super) async fn end_request(&self, request: &str, removed: &str) -> Result<()> {
        match self.cache.first_of(request) {
            // Its mark goes with the claim.
            Some(first) if host::id(&first.host) != removed => self.finish(&first).await,
            _ => Ok(()),
        }
    }

    async fn finish(&self, known: &Known) -> Result<()> {
        let Some(found) = &known.node else {
            return Ok(());
        };
        let target = Target {
            cluster_id: found.node.cluster_id.clone(),
            node_id: found.node.node_id.clone(),
            slot: found.node.slot.clone(),
        };
        let finish = |host: &BareMetalHost, _: Option<&Identity>| {
            claim::is_unfinished(host).then(|| claim::finish(host))
        };
        match self.change(&host::id(&known.host), &target, finish).await {
            // Then it is of another request.
            Err(error)
                if matches!(
                    error.reason(),
                    Reason::SlotMismatch | Reason::NodeNotInCluster
                ) =>
            {
                Ok(())
            }
            changed => changed.map(drop),
        }
    }

    /// Releases a host if its node is the one that is meant. Answers whether there was one.
    pub(super) async fn release(&self, id: &str, target: &Target) -> Result<bool> {
        self.change(id, target, |host, _| {
            Some(claim::release(host, &self.settings.labels))
        })
        .await
        .map(|host| host.is_some())
    }

    /// Changes a host whose node is the one that is meant, from the state in which it was read. `None` if that node is not
    /// there, or nothing is to be changed.
    pub(super) async fn change(
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
            let Some(patch) = patch(&host, claim::identity(&host).as_ref()) else {
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

    /// Nodes that fit, as they are now: those that have this label, and those that are known, as somebody may have changed
    /// their labels.
    pub(super) async fn find(
        &self,
        key: &str,
        value: String,
        fits: impl Fn(&Node) -> bool,
    ) -> Result<Vec<Found>> {
        let listed = self.lookups.of(key, value).await?.into_iter();
        let whole = listed.map(|listed| async move { self.whole(&listed).await });
        let whole = stream::iter(whole).buffered(READ_TOGETHER);
        let whole: Vec<Option<BareMetalHost>> = whole.try_collect().await?;
        let mut hosts: Vec<BareMetalHost> = whole.into_iter().flatten().collect();
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
    pub(super) async fn host_of(&self, target: &Target) -> Result<Option<String>> {
        let is =
            |node: &Node| node.cluster_id == target.cluster_id && node.node_id == target.node_id;
        let known = self.cache.found(is).into_iter().map(|found| found.node);
        if let Some(node) = meant(known, target) {
            return Ok(node.host_id);
        }
        let keys = &self.settings.labels;
        let hosts = self
            .list(&keys.of_node(&target.cluster_id, &target.node_id))
            .await?;
        let nodes = hosts
            .iter()
            .filter_map(|host| self.cache.reader.node(host, &Beside::default()));
        let nodes = nodes.map(|(found, _)| found.node).filter(is);
        Ok(meant(nodes, target).and_then(|node| node.host_id))
    }
}

/// The node with the slot of the target, if there is one. Nothing keeps two owners, or two requests, from one node id.
fn meant(nodes: impl Iterator<Item = Node>, target: &Target) -> Option<Node> {
    let mut first = None;
    for node in nodes {
        if node.slot == target.slot {
            return Some(node);
        }
        first.get_or_insert(node);
    }
    first
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
