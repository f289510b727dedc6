//! The driver: ties the modules together.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use drover_convert::value::to_duration;
use drover_core::{Error, Reason, Result};
use drover_platform::{
    addons::Addons,
    driver::{
        Batch, Change, Deleted, Deletion, Description, Driver, ExecInput, ExecOutput, Found,
        Listing, Live, LogStream, Outcome, Target,
    },
    identity::Identity,
};
use drover_proto::platform::v1::{
    Capability, DeprovisionState, ExecStart, FailureDomain, KeptStorage, Limits, Node, NodeClass,
    StreamLogsRequest,
};
use drover_resources_kubernetes::client::Clients;
use k8s_openapi::apimachinery::pkg::version::Info;
use serde_json::{Value, json};

use crate::{
    access,
    addons::KubernetesAddons,
    backend::{self, Backend},
    client::{Api, Kind, Meta as _, partial},
    create::{Creator, Nodes},
    delete::{Item, Remover},
    discover::{self, Filter},
    labels,
    objects::MAX_BOOTSTRAP_BYTES,
    owner,
    pod::Pod,
    selected,
    settings::{ClassSettings, Settings},
    update::Updater,
    watch::{NodeCache, Watches},
};

/// Maximum number of slots per request.
const MAX_BATCH: u32 = 500;
/// Maximum time from the first create call of a slot to its last.
const MAX_CREATION_TIME: Duration = Duration::from_secs(120);
/// How long [`KubernetesDriver::open`] waits for the first complete read.
const MAX_START: Duration = Duration::from_secs(60);

/// The platform driver for Kubernetes.
pub struct KubernetesDriver {
    api: Api,
    settings: Arc<Settings>,
    pods: Arc<Kind>,
    watches: Watches,
    remover: Arc<Remover>,
    creator: Creator,
    updater: Updater,
    addons: Option<KubernetesAddons>,
    fixed: Description,
}

impl KubernetesDriver {
    /// Contacts the API server, and returns once all existing nodes are known.
    ///
    /// # Errors
    /// `Invalid` for wrong settings; `Precondition` or `CredentialsRefused` if the API server lacks or refuses something.
    pub async fn open(settings: Settings, clients: &Clients) -> Result<Self> {
        settings.check()?;
        let settings = Arc::new(settings);
        let api = Api::over(clients.get(&settings.client()).await?, &settings);
        let fixed = describe(&api, &settings).await?;
        let watches = Watches::start(&api, &settings).await?;
        let cache = Arc::clone(watches.cache());
        if let Ok(ready) = tokio::time::timeout(MAX_START, cache.ready()).await {
            ready?;
        } else {
            return Err(Error::unavailable(
                "the API server does not say within a minute what exists",
            ));
        }
        for warning in fixed.warnings.iter().cloned().chain(cache.warnings()) {
            tracing::warn!("{warning}");
        }
        let kinds = cache.kinds().to_vec();
        let pods = kinds.iter().find(|kind| discover::is_pod(kind)).cloned();
        let pods = pods.ok_or_else(|| Error::invalid("kinds", "pods are missing"))?;
        let remover = Arc::new(Remover::new(api.clone(), Arc::clone(&settings), kinds));
        let creator = Creator::new(
            api.clone(),
            Arc::clone(&settings),
            Arc::clone(&remover),
            Arc::new(Made(cache)),
        );
        let updater = Updater::new(api.clone(), Arc::clone(&settings), Arc::clone(&remover));
        let addons = KubernetesAddons::open(&api, &settings).await?;
        Ok(Self {
            api,
            settings,
            pods,
            watches,
            remover,
            creator,
            updater,
            addons,
            fixed,
        })
    }

    /// The cache that the watches maintain.
    #[must_use]
    pub fn cache(&self) -> &Arc<NodeCache> {
        self.watches.cache()
    }

    /// Updates the cache with the new owner of a node before its watch does.
    async fn hear(&self, speaker: &Item) {
        let Item { kind, meta } = speaker;
        if !discover::is_pod(kind) {
            return self.cache().changed_object(kind, &partial(meta.clone()));
        }
        let pod = self
            .api
            .get::<Pod>(kind, meta.namespace(), meta.name())
            .await;
        if let Ok(Some(pod)) = pod
            && pod.metadata.uid() == meta.uid()
        {
            self.cache().changed_pod(&pod);
        }
    }

    async fn read(&self, filter: &Filter) -> Result<Listing> {
        discover::read(&self.api, &self.settings, self.cache(), filter).await
    }
}

#[async_trait]
impl Driver for KubernetesDriver {
    fn description(&self) -> Description {
        let mut description = self.fixed.clone();
        let label = short(&self.settings.failure_domain_label);
        let domain = |name: String| FailureDomain {
            labels: BTreeMap::from([(label.to_owned(), name.clone())]),
            name,
            control_plane: true,
        };
        let domains = self.cache().failure_domains();
        description.failure_domains = domains.into_iter().map(domain).collect();
        description.warnings.extend(self.cache().warnings());
        description
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        self.creator.check(batch).await
    }

    async fn list(&self) -> Result<Listing> {
        self.read(&Filter::default()).await
    }

    async fn list_cluster(&self, cluster_id: &str) -> Result<Option<Listing>> {
        let filter = Filter {
            labels: self.settings.labels.of_cluster(cluster_id),
            ..Filter::default()
        };
        let mut listing = self.read(&filter).await?;
        listing
            .nodes
            .retain(|found| found.node.cluster_id == cluster_id);
        Ok(Some(listing))
    }

    async fn of_request(&self, request_id: &str) -> Result<Vec<Found>> {
        // Names are unique: an object that the cache lacks cannot be created twice, and is completed.
        if let Some(found) = self.cache().of_request(request_id) {
            return Ok(found);
        }
        let filter = Filter {
            labels: self.settings.labels.of_request(request_id),
            whole: true,
            ..Filter::default()
        };
        let listing = self.read(&filter).await?;
        let of_request = |found: &Found| {
            let slot = found.node.slot.as_ref();
            slot.is_some_and(|slot| slot.request_id == request_id)
        };
        Ok(listing.nodes.into_iter().filter(of_request).collect())
    }

    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        if let Some(found) = self.cache().by_node_id(node_id) {
            return Ok(found);
        }
        let labelled = Filter {
            labels: format!("{}={}", self.settings.labels.node, labels::value(node_id)),
            ..Filter::default()
        };
        let named = Filter {
            labels: format!("!{}", self.settings.labels.node),
            pod: node_id.to_owned(),
            ..Filter::default()
        };
        let (labelled, named) = futures::try_join!(self.read(&labelled), self.read(&named))?;
        let mut all = labelled.nodes;
        all.extend(named.nodes);
        all.retain(|found| found.node.node_id == node_id);
        all.dedup_by(|a, b| a.node.cluster_id == b.node.cluster_id);
        Ok(all)
    }

    async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        let group = batch.request.group.as_ref();
        let class = group.map(|it| it.node_class.clone()).unwrap_or_default();
        let likeness = (class, batch.request.spec_hash.clone());
        if let Some(words) = self.cache().full(&likeness) {
            let full = Error::new(
                Reason::NoCapacity,
                format!("pods like these find no place: {words}"),
            );
            return batch
                .slots()
                .map(|_| Outcome::Failed(full.clone()))
                .collect();
        }
        self.creator.create(batch).await
    }

    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted> {
        let _removing = self.cache().removing(&target.cluster_id, &target.node_id);
        let known = self.cache().places(&target.cluster_id, &target.node_id);
        self.remover.delete(target, options, &known).await
    }

    async fn update(&self, target: &Target, change: &Change) -> Result<Node> {
        let known = self.cache().places(&target.cluster_id, &target.node_id);
        let (identity, speaker) = self.updater.update(target, change, &known).await?;
        if let Some(speaker) = &speaker {
            self.hear(speaker).await;
        }
        let found = self.cache().by_node_id(&target.node_id).unwrap_or_default();
        let mut found = found.into_iter().map(|found| found.node);
        let node = found.find(|node| node.cluster_id == identity.cluster_id);
        let mut node = node.unwrap_or_else(|| identity.node(&target.node_id));
        if speaker.is_some() && node.slot != Some(identity.key()) {
            node = identity.node(&target.node_id);
        }
        // The watch may lag behind.
        (node.role, node.labels) = (identity.role, identity.labels);
        node.spec_hash = identity.spec_hash;
        Ok(node)
    }

    async fn kept_storage(&self) -> Result<Vec<KeptStorage>> {
        crate::storage::list(&self.api, &self.settings).await
    }

    async fn delete_storage(&self, meant: &KeptStorage) -> Result<DeprovisionState> {
        crate::storage::delete(&self.api, &self.settings, meant).await
    }

    async fn logs(&self, node: &Node, request: &StreamLogsRequest) -> Result<LogStream> {
        access::logs(&self.api, &self.pods, node, request).await
    }

    async fn exec(&self, node: &Node, start: ExecStart, input: ExecInput) -> Result<ExecOutput> {
        access::exec(&self.api, &self.pods, node, start, input).await
    }

    fn live(&self) -> Option<&dyn Live> {
        Some(&**self.cache())
    }

    fn addons(&self) -> Option<&dyn Addons> {
        let addons = self.addons.as_ref()?;
        Some(addons)
    }

    async fn shutdown(&self) {
        self.watches.shutdown().await;
    }
}

/// Passes created nodes to the cache.
struct Made(Arc<NodeCache>);

impl Nodes for Made {
    fn making(&self, cluster_id: &str, node_id: &str) -> Box<dyn Send + Sync> {
        Box::new(self.0.creating(cluster_id, node_id))
    }

    fn made(&self, identity: &Identity, items: &[Item], pod: Option<&Pod>) -> Node {
        for item in items {
            if !discover::is_pod(&item.kind) {
                self.0.made_object(&item.kind, &partial(item.meta.clone()));
            }
        }
        if let Some(pod) = pod {
            self.0.made_pod(pod);
        }
        self.0
            .node(&identity.cluster_id, &identity.id)
            .unwrap_or_else(|| identity.node(&identity.id))
    }
}

async fn describe(api: &Api, settings: &Settings) -> Result<Description> {
    let version: Info = api.read_path("/version", "application/json").await?;
    if version.git_version.is_empty() {
        return Err(Error::unavailable(
            "the API server does not say its version",
        ));
    }
    let Backend {
        uid,
        scope,
        warnings,
    } = backend::identify(api, settings).await?;
    let (logs, exec, patch) = futures::join!(
        may(api, settings, "get", "log"),
        may(api, settings, "create", "exec"),
        may(api, settings, "patch", "")
    );
    Ok(Description {
        uid,
        name: "kubernetes".to_owned(),
        kind: "kubernetes".to_owned(),
        driver: "kubernetes".to_owned(),
        backend_version: version.git_version,
        scope,
        capabilities: [
            Capability::Bootstrap,
            Capability::BootstrapRender,
            Capability::FailureDomains,
            Capability::GracePeriod,
            Capability::HostLabels,
            Capability::RetainStorage,
            Capability::SpreadPreferred,
            Capability::SpreadRequired,
            Capability::Storage,
        ]
        .into_iter()
        .chain(logs.then_some(Capability::NodeLogs))
        .chain(exec.then_some(Capability::NodeExec))
        .chain(patch.then_some(Capability::UpdateNode))
        .chain(patch.then_some(Capability::Adopt))
        .chain(patch.then_some(Capability::GrowStorage))
        .collect(),
        limits: limits(settings),
        failure_domains: Arc::default(),
        node_classes: settings
            .node_classes
            .iter()
            .map(|(name, class)| node_class(name, class))
            .collect(),
        properties_schema: Some(Arc::new(schema())),
        properties_example: Some(Arc::new(json!({
            "nodeSelector": {"disk": "ssd"},
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}
        }))),
        warnings: [
            warnings,
            selected::unseen(api, settings).await,
            owner::unread(api, settings).await,
        ]
        .concat(),
    })
}

/// Whether the credentials allow this on pods in every namespace that nodes may be in.
async fn may(api: &Api, settings: &Settings, verb: &str, subresource: &str) -> bool {
    for namespace in settings.scopes() {
        if !api
            .may(verb, subresource, namespace.unwrap_or_default())
            .await
        {
            return false;
        }
    }
    true
}

fn limits(settings: &Settings) -> Limits {
    Limits {
        max_batch: Some(MAX_BATCH),
        max_bootstrap_bytes: Some(MAX_BOOTSTRAP_BYTES),
        min_poll_interval: Some(to_duration(Duration::from_secs(10))),
        max_creation_time: Some(to_duration(MAX_CREATION_TIME)),
        // A silent watch is trusted this long.
        visibility_delay: Some(to_duration(settings.watch_timeout())),
        // Names are unique, and existing objects are read before anything is created again.
        replay_delay: Some(to_duration(Duration::from_millis(100))),
        ..Limits::default()
    }
}

fn node_class(name: &str, class: &ClassSettings) -> NodeClass {
    let amount = |resource: &str| {
        let text = class
            .requests
            .get(resource)
            .or_else(|| class.limits.get(resource))?;
        quantity(text)
    };
    let bytes = |resource: &str| {
        amount(resource)
            .filter(|it| (0.0..1e18).contains(it))
            .map(|it| it as u64)
    };
    NodeClass {
        name: name.to_owned(),
        description: class.description.clone(),
        cpus: amount("cpu"),
        memory_bytes: bytes("memory"),
        disk_bytes: bytes("ephemeral-storage"),
    }
}

/// Parses a Kubernetes quantity: `500m`, `2`, `1.5Gi`, `1e3`.
pub(crate) fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: &[(&str, f64)] = &[
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (suffix, factor) = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(suffix))?;
    let number: f64 = text.strip_suffix(suffix)?.parse().ok()?;
    Some(number * factor)
}

/// The name of a label without its prefix: people write `zone`.
fn short(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, name)| name)
}

/// JSON Schema of the properties of a group.
fn schema() -> Value {
    let text = |what: &str| json!({"type": "string", "minLength": 1, "maxLength": 253, "description": what});
    let texts = |what: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": what});
    let amounts = json!({"type": "object", "additionalProperties": {"type": ["string", "number"]}});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "namespace": text("Namespace of the nodes; one that the platform serves. Default: its first."),
            "nodeSelector": texts("Labels that the Kubernetes node must have."),
            "tolerations": {
                "type": "array",
                "description": "Taints of Kubernetes nodes that do not matter.",
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "properties": {
                        "key": {"type": "string"},
                        "operator": {"enum": ["Exists", "Equal"]},
                        "value": {"type": "string"},
                        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                        "tolerationSeconds": {"type": "integer", "minimum": 0}
                    }
                }
            },
            "annotations": texts("Annotations of the pods."),
            "priorityClassName": text("Priority class of the pods."),
            "runtimeClassName": text("Runtime class of the pods."),
            "serviceAccountName": text("Service account of the pods."),
            "resources": {
                "x-drover-node-class": true,
                "type": "object",
                "additionalProperties": false,
                "description": "Resources of the first container; they go before those of the node class.",
                "properties": {"requests": amounts, "limits": amounts}
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        let cases = [
            ("2", Some(2.0)),
            ("500m", Some(0.5)),
            ("1.5Gi", Some(1_610_612_736.0)),
            ("128M", Some(128e6)),
            ("1e3", Some(1000.0)),
            ("much", None),
            ("Gi", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(quantity(text), expected, "{text}");
        }
    }
}
