//! Creates nodes for the slots of a request.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use drover_core::{Class, Error, Reason, Result};
use drover_proto::platform::v1::{NodeRole, Slot, Storage};
use prost_types::value::Kind;
use serde_json::{Map, Value, json};

use super::{
    LocalDriver, Settings, Shared,
    crash::{self, Point},
    node::{Node, blocking, unix_millis},
    peers,
    place::{self, PlacementRequest},
    ports::{self, PortNumbers},
    spec::{self, ProcessFile, Site, User},
    state::{DATA, PEERS, Record, Volume},
};
use drover_platform::{
    driver::{Batch, Outcome, Place},
    identity::{Identity, digest},
};

/// Maximum length of a node id: with a suffix it is a directory name, which is limited to 255 bytes.
const MAX_ID: usize = 200;

/// File with the user data in a node's directory.
const BOOTSTRAP: &str = "bootstrap";
/// File with the role in a node's directory, rewritten when the role changes.
pub(super) const ROLE: &str = "role";

impl LocalDriver {
    /// Does everything except creating nodes.
    pub(super) async fn try_out(&self, batch: &Batch) -> Result<()> {
        for slot in batch.slots() {
            node_id(&batch.identity(slot))?;
        }
        let Some(slot) = batch.slots().next() else {
            return Ok(());
        };
        let identity = batch.identity(slot);
        let storage = batch
            .request
            .storage
            .as_ref()
            .map(|_| storage_key(&identity));
        // Any port numbers will do for a dry run.
        let numbers = batch
            .ports()
            .iter()
            .cloned()
            .zip(self.shared.settings.ports())
            .collect();
        let site = self.site(
            batch,
            &node_id(&identity)?,
            "",
            &numbers,
            storage.as_deref(),
        );
        self.render(batch, slot, &site).await.map(|_| ())
    }

    pub(super) async fn make(&self, batch: &Batch, slot: &Slot) -> Outcome {
        match self.try_make(batch, slot).await {
            Ok(Some(node)) => Outcome::Made(Box::new(self.shared.found(&node).node)),
            Ok(None) => Outcome::NotStarted,
            Err(Failure::Final(error)) => Outcome::Failed(error),
            Err(Failure::Unknown(error)) => Outcome::Unknown(error),
        }
    }

    async fn try_make(&self, batch: &Batch, slot: &Slot) -> Result<Option<Arc<Node>>, Failure> {
        let identity = batch.identity(slot);
        let node_id = node_id(&identity)?;
        if let Some(node) = self.shared.node(&identity.cluster_id, &node_id) {
            return Ok(Some(node));
        }
        if !batch.may_start() {
            return Ok(None);
        }
        let storage = match &batch.request.storage {
            Some(_) => Some(self.choose_storage(&identity).await?),
            None => None,
        };
        let (promise, numbers) = self.promise(batch, &identity, &node_id, storage.clone())?;
        let site = self.site(
            batch,
            &node_id,
            &promise.domain,
            &numbers,
            storage.as_deref(),
        );
        let rendered = self.render(batch, slot, &site).await;
        let mut process = rendered.map_err(Failure::not_begun)?;
        if let Some(own) = self.user(&identity).await? {
            process.spec.confine(own, &site.data);
        }
        promise.add_ports(&process.ports, &numbers)?;
        let record = Record {
            node_id: node_id.clone(),
            identity,
            created: unix_millis(SystemTime::now()),
            failure_domain: promise.domain.clone(),
            host: self.shared.settings.advertised(),
            listen: Some(self.shared.settings.host),
            ports: process.ports,
            agent_address: process.agent_address,
            readiness: process.readiness,
            readiness_file: process.readiness_file,
            stop_signal: process.stop_signal,
            peers: process.peers,
            storage,
            store: store(batch),
        };
        let (state, to_write) = (Arc::clone(&self.shared.state), record.clone());
        let volume = batch
            .request
            .storage
            .as_ref()
            .map(|storage| volume(&record.identity, storage));
        let told = record.peers.then(|| peers::at_first(&self.shared, &record));
        let prepared = blocking(move || {
            let prepared =
                state.prepare(&to_write, &process.spec, &process.files, volume.as_ref())?;
            if let Some(peers) = told {
                prepared.add(PEERS, &peers)?;
            }
            Ok(prepared)
        })
        .await;
        let prepared = prepared.map_err(|error| Failure::Final(cannot_write(&error)))?;
        crash::point(Point::IntentWritten);
        if !batch.may_start() {
            return Ok(None);
        }
        blocking(move || prepared.commit())
            .await
            .map_err(|error| Failure::Unknown(cannot_write(&error)))?;
        crash::point(Point::IntentDurable);
        let node = Node::new(self.shared.state.node(&node_id), record, None);
        promise.keep();
        self.adopt(Arc::clone(&node));
        Ok(Some(node))
    }

    /// The user of a cluster, if it has its own.
    async fn user(&self, identity: &Identity) -> Result<Option<User>> {
        let (tenancy, identity) = (Arc::clone(&self.shared.tenancy), identity.clone());
        blocking(move || tenancy.user(&identity))
            .await
            .map_err(|error| {
                // Never fall back to another user: it could read foreign data, or not the cluster's own.
                Error::unavailable(format!("the cluster cannot be given a user: {error}"))
            })
    }

    /// Key of the storage that the next node with this ordinal gets.
    async fn choose_storage(&self, identity: &Identity) -> Result<String> {
        let (state, identity) = (Arc::clone(&self.shared.state), identity.clone());
        let taken = self.shared.taken_storage();
        blocking(move || state.storage_for(&identity, storage_key(&identity), &taken))
            .await
            .map_err(|error| {
                // Without knowing the existing storage, new storage would hide old data.
                Error::internal(format!(
                    "the owners of kept storage cannot be read: {error}"
                ))
            })
    }

    /// Reserves a placement while the node is created.
    fn promise(
        &self,
        batch: &Batch,
        identity: &Identity,
        node_id: &str,
        storage: Option<String>,
    ) -> Result<(Promise, PortNumbers), Failure> {
        let request = PlacementRequest {
            cluster_id: &identity.cluster_id,
            group: &identity.group,
            placement: batch
                .request
                .group
                .as_ref()
                .and_then(|group| group.placement.as_ref()),
            port_names: batch.ports(),
            storage,
        };
        let mut placements = self.shared.placements.lock();
        if placements.contains_key(node_id) {
            return Err(Failure::Unknown(Error::new(
                Reason::Conflict,
                "the node is being made by another call",
            )));
        }
        let (placement, numbers) = place::find(
            &self.shared.settings,
            self.shared.settings.host,
            &placements,
            request,
        )?;
        let domain = placement.failure_domain.clone();
        placements.insert(node_id.to_owned(), placement);
        Ok((
            Promise {
                shared: Arc::clone(&self.shared),
                node_id: node_id.to_owned(),
                domain,
                kept: false,
            },
            numbers,
        ))
    }

    fn site(
        &self,
        batch: &Batch,
        node_id: &str,
        domain: &str,
        ports: &PortNumbers,
        storage: Option<&str>,
    ) -> NodeSite {
        let data = self.shared.state.node(node_id).join(DATA);
        let bootstrap = batch
            .request
            .bootstrap
            .as_ref()
            .map(|_| data.join(BOOTSTRAP));
        NodeSite {
            domain: domain.to_owned(),
            storage: storage.map_or_else(|| data.clone(), |key| self.shared.state.storage(key)),
            bootstrap: bootstrap.unwrap_or_default(),
            peers: self.shared.state.node(node_id).join(PEERS),
            data,
            ports: ports.clone(),
        }
    }

    /// Renders the template of a slot.
    async fn render(&self, batch: &Batch, slot: &Slot, site: &NodeSite) -> Result<spec::Process> {
        let settings = &self.shared.settings;
        let has_storage = batch.request.storage.is_some();
        let place = Place {
            failure_domain: site.domain.clone(),
            platform: site.facts(settings),
            storage_path: has_storage.then(|| text(&site.storage)),
        };
        let rendered = batch.render(slot, place).await?;
        let identity = batch.identity(slot);
        let host = settings.advertised();
        let facts = [
            ("DROVER_CLUSTER_ID", identity.cluster_id),
            ("DROVER_NODE_ID", identity.id),
            ("DROVER_NODE_NAME", identity.name),
            ("DROVER_GROUP", identity.group),
            ("DROVER_HOST", settings.host.to_string()),
            ("DROVER_ADDRESS", host.clone()),
            ("DROVER_DIR", text(&site.data)),
            ("DROVER_STORAGE", text(&site.storage)),
            ("DROVER_BOOTSTRAP", text(&site.bootstrap)),
            ("DROVER_PEERS", text(&site.peers)),
            ("DROVER_ROLE_FILE", text(&site.data.join(ROLE))),
        ];
        let mut process = ProcessFile::parse(&rendered.document)?.resolve(Site {
            host: &host,
            data: &site.data,
            ports: &site.ports,
            facts: facts
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            overrides: overrides(batch)?,
            version: batch
                .request
                .group
                .as_ref()
                .map_or("", |group| group.version.as_str()),
        })?;
        process.files.push(spec::File {
            path: PathBuf::from(ROLE),
            content: role_words(slot.role()).into(),
            mode: 0o644,
        });
        if let Some(content) = rendered.bootstrap {
            process.files.push(spec::File {
                path: PathBuf::from(BOOTSTRAP),
                content,
                mode: 0o600,
            });
        }
        Ok(process)
    }
}

/// The location of a node as its template sees it.
struct NodeSite {
    domain: String,
    data: PathBuf,
    storage: PathBuf,
    /// Empty if there is no user data.
    bootstrap: PathBuf,
    peers: PathBuf,
    ports: PortNumbers,
}

impl NodeSite {
    fn facts(&self, settings: &Settings) -> Map<String, Value> {
        [
            ("host", json!(settings.host.to_string())),
            ("loopback", json!(settings.host.is_loopback())),
            ("dir", json!(text(&self.data))),
            ("storage", json!(text(&self.storage))),
            ("self", json!(text(&settings.launcher))),
            ("ports", json!(self.ports)),
            ("bootstrap", json!(text(&self.bootstrap))),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// Why a node was not created.
enum Failure {
    Final(Error),
    Unknown(Error),
}

impl Failure {
    /// The outcome for a node whose creation was not started.
    fn not_begun(error: Error) -> Self {
        if error.class() == Class::Unknown {
            Self::Unknown(error)
        } else {
            Self::Final(error)
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// A reserved placement that is released unless the node is created.
struct Promise {
    shared: Arc<Shared>,
    node_id: String,
    domain: String,
    kept: bool,
}

impl Promise {
    /// Reserves the fixed ports of the template as well.
    fn add_ports(&self, all: &PortNumbers, allocated: &PortNumbers) -> Result<()> {
        let mut placements = self.shared.placements.lock();
        for (name, port) in all
            .iter()
            .filter(|(name, port)| allocated.get(*name) != Some(*port))
        {
            let owner = placements
                .iter()
                .find(|(_, placement)| placement.ports.contains(port))
                .map(|(node_id, _)| node_id);
            let used = match owner {
                Some(node_id) => format!("by node {node_id}"),
                None if ports::free(self.shared.settings.host, *port) => continue,
                None => "by another program".to_owned(),
            };
            let what = format!("the template wants port {port} as `{name}`, which is used {used}");
            return Err(Error::new(Reason::Precondition, what));
        }
        if let Some(placement) = placements.get_mut(&self.node_id) {
            placement.ports.extend(all.values());
        }
        Ok(())
    }

    /// Keeps the placement, as the node exists now.
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if !self.kept {
            self.shared.placements.lock().remove(&self.node_id);
        }
    }
}

/// The platform's node id: the slot's id and a hash of the slot, so that it is never reused on this machine.
pub(super) fn node_id(identity: &Identity) -> Result<String> {
    let Identity {
        owner,
        cluster_id,
        request_id,
        index,
        id,
        ..
    } = identity;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if id.is_empty() || id.len() > MAX_ID || id.starts_with('.') || !id.chars().all(allowed) {
        let what = "expected letters, digits, hyphens, underscores and dots, 200 at most, not beginning with a dot";
        return Err(Error::invalid("slots[].id", what));
    }
    Ok(format!(
        "{id}-{}",
        short_hash(&[owner, cluster_id, request_id, &index.to_string()])
    ))
}

/// Key of new storage, from owner, cluster, group and ordinal.
fn storage_key(identity: &Identity) -> String {
    let Identity {
        owner,
        cluster_id,
        group,
        ordinal,
        ..
    } = identity;
    format!(
        "{}-{ordinal}-{}",
        group.replace('/', "-"),
        short_hash(&[owner, cluster_id, group, &ordinal.to_string()])
    )
}

/// The owner record of a node's storage.
fn volume(identity: &Identity, storage: &Storage) -> Volume {
    Volume {
        owner: identity.owner.clone(),
        cluster_id: identity.cluster_id.clone(),
        group: identity.group.clone(),
        ordinal: identity.ordinal,
        store_id: identity.store_id.clone(),
        size_bytes: storage.size_bytes,
        class: storage.class.clone(),
        kept: 0,
    }
}

/// Store software of the cluster.
fn store(batch: &Batch) -> String {
    let cluster = batch.request.cluster.as_ref();
    cluster
        .map(|cluster| cluster.store.clone())
        .unwrap_or_default()
}

pub(super) fn short_hash(parts: &[&str]) -> String {
    digest(parts, 5)
}

/// `env` of the group's properties.
fn overrides(batch: &Batch) -> Result<BTreeMap<String, String>> {
    let properties = batch
        .request
        .group
        .as_ref()
        .and_then(|group| group.properties.as_ref());
    let Some(env) = properties.and_then(|properties| properties.fields.get("env")) else {
        return Ok(BTreeMap::new());
    };
    let Some(Kind::StructValue(env)) = &env.kind else {
        return Err(Error::invalid(
            "group.properties.env",
            "expected names and values",
        ));
    };
    env.fields
        .iter()
        .map(|(name, value)| match &value.kind {
            Some(Kind::StringValue(value)) => Ok((name.clone(), value.clone())),
            _ => Err(Error::invalid(
                format!("group.properties.env.{name}"),
                "expected text; quote it",
            )),
        })
        .collect()
}

/// The content of the role file.
pub(super) fn role_words(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Standby => "standby\n",
        NodeRole::Unspecified | NodeRole::Active => "active\n",
    }
}

pub(super) fn cannot_write(error: &io::Error) -> Error {
    Error::internal(format!("the state directory cannot be written: {error}"))
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
