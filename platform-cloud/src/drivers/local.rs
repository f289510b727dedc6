//! Nodes as processes of the local machine.
//!
//! # Process templates
//!
//! A template renders to one YAML document:
//!
//! ```yaml
//! requires:                        # programs that its scripts need, and their packages; optional: `directory`
//!   - {program: redis-cli, package: redis-tools}
//! command: redis-server            # a name that is looked up in PATH, or an absolute path
//! arguments: ["--port", "{{ platform.ports.client }}"]
//! environment: {TERM: dumb}        # in addition to PATH, HOME, LANG and the variables below
//! workingDirectory: work           # below the node's directory; default: that directory
//! user: redis                      # only used if the platform runs as root; default: the user of the cluster,
//!                                  # or else of the platform
//! ports: {admin: 7000}             # fixed port numbers, in addition to or instead of allocated ones
//! files:                           # written before the start, below the node's directory
//!   - {path: redis.conf, content: "dir .", mode: "0600"}
//! agent: {scheme: tcp, port: client}     # grpc, grpcs, http, https or tcp; default: no agent address
//! readiness: {port: client, file: ready}   # ready once the file exists, and then the port accepts connections;
//!                                          # default: once the process runs
//! peers: true                      # provides the list of peers, see below; default: false
//! stopSignal: SIGINT               # SIGTERM (default), SIGINT, SIGQUIT, SIGHUP or SIGKILL
//! ```
//!
//! In the template context, `platform` has `host` (listen address), `loopback` (whether only this machine can reach
//! it), `dir` (the node's directory), `storage` (directory for its data: the declared storage, or `dir`), `self` (path
//! of the program that runs the node agent), `ports` (an allocated port for each name in `ports` of the catalogue
//! entry) and `bootstrap` (path of the user data; empty if there is none). The process gets the same as `DROVER_HOST`,
//! `DROVER_DIR`, `DROVER_STORAGE`, `DROVER_BOOTSTRAP` and `DROVER_PORT_<NAME>`, the address by which others reach it as
//! `DROVER_ADDRESS`, its current role in the file `DROVER_ROLE_FILE` (`active` or `standby`, rewritten on change), and
//! its identity as `DROVER_CLUSTER_ID`, `DROVER_NODE_ID`, `DROVER_NODE_NAME` and `DROVER_GROUP`.
//!
//! With `peers: true`, `DROVER_PEERS` names a file that is rewritten whenever the cluster changes: a JSON list of the
//! nodes of the cluster whose processes have not ended, including this one, each with `name`, `id`, `group`, `ordinal`,
//! `role`, `host` and `ports`.
//!
//! # Endpoints
//!
//! The same nodes are told to programs of this machine, group by group: `endpoints/CLUSTER-GROUP.env` in the state
//! directory has the addresses of those that are ready, as variables.
//!
//! # Storage
//!
//! Declared storage is a separate directory per owner, cluster, group and ordinal. If the deletion of a node retains
//! it, it outlives the node and is reused by the next node with that ordinal. The storage of an adopted node passes to
//! its new owner without being moved. `size` and `class` are recorded only: there is no quota.
//!
//! # Properties
//!
//! `env`: environment variables of the group, overriding those of the template.
//!
//! # Users
//!
//! A platform that runs as root gives each cluster its own user, with a uid from `local.user_range`. The cluster's
//! nodes, and commands in them, run as that user, without capabilities and without a way to gain privileges. A node's
//! directory and storage are accessible to that user only. `user` of a template takes precedence, and is then shared by
//! all clusters whose templates name it. Nodes that were created before this isolation existed are left as they are.
//! Where isolation is not possible, clusters share the platform's user, and the platform warns about it.
//!
//! The total resources (memory, processes, CPUs) of the nodes of such a cluster are limited by kernel control groups as
//! configured.
//!
//! # Crashes
//!
//! A node exists from the moment its directory is renamed into place. Its process is started by a launcher that records
//! itself before it becomes the process. Wherever the platform is killed, its successor finds the same nodes, starts
//! those that were not started, watches those that run and resumes deletions. Nodes keep running without the platform.

mod cgroup;
mod clean;
mod confine;
mod crash;
mod endpoints;
mod exec;
mod files;
mod give;
mod launch;
mod logs;
mod make;
mod node;
mod peers;
mod place;
mod ports;
mod process;
mod settings;
mod spec;
mod state;
mod storage;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    DeprovisionState, ExecStart, KeptStorage, Node as ProtoNode, RemovalEvidence,
    StreamLogsRequest, Warning,
};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use self::{
    crash::Point,
    make::cannot_write,
    node::{Node, blocking, unix_millis},
    place::NodePlacement,
    spec::ProcessSpec,
    state::{NODE, REMOVAL, Record, Removal, SPEC, StateDir},
    users::Tenancy,
};
use drover_platform::{
    driver::{
        Batch, Change, Changes, Deleted, Deletion, Description, Driver, ExecInput, ExecOutput,
        Found, Listing, Live, LogStream, Outcome, Target,
    },
    identity::Identity,
};

pub use self::{
    cgroup::ClusterLimits,
    clean::{Removed, remove_all},
    launch::{command_main, launch_main},
    settings::{CATALOGUE, Isolation, Settings, USERS},
};

/// Maximum number of nodes of one request that are written concurrently. Writing mostly waits for the disk.
const CONCURRENT_CREATES: usize = 16;

/// The driver. Dropping it, or the exit of the program, leaves the nodes running.
pub struct LocalDriver {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    cancel: CancellationToken,
    /// Whether nodes may be created, changed and deleted. Read-locked for the duration of each change, so that a
    /// shutdown waits for it.
    open: RwLock<bool>,
}

/// State shared by the supervisors of all nodes.
struct Shared {
    settings: Settings,
    state: Arc<StateDir>,
    host_name: String,
    tenancy: Arc<Tenancy>,
    nodes: Mutex<BTreeMap<String, Arc<Node>>>,
    /// Resources held by existing nodes and reserved for nodes that are being created, by node id.
    placements: Mutex<BTreeMap<String, NodePlacement>>,
    /// Nodes that were started with the full privileges of the platform.
    unconfined: Mutex<BTreeSet<String>>,
    changes: OnceLock<Changes>,
    /// Tells nodes about changes of their peers.
    peer_notifier: peers::PeerNotifier,
}

impl Shared {
    fn changed(&self, cluster_id: &str, node_id: &str) {
        self.peer_notifier.changed(cluster_id);
        if let Some(changes) = self.changes.get() {
            changes.changed(cluster_id, node_id);
        }
    }

    /// Removes a deleted node and releases its resources.
    fn forget(&self, node_id: &str) {
        if let Some(node) = self.nodes.lock().remove(node_id) {
            self.peer_notifier.changed(&node.cluster_id());
        }
        self.placements.lock().remove(node_id);
        self.unconfined.lock().remove(node_id);
    }

    fn node(&self, cluster_id: &str, node_id: &str) -> Option<Arc<Node>> {
        let node = self.nodes.lock().get(node_id).cloned()?;
        (node.cluster_id() == cluster_id).then_some(node)
    }

    fn found(&self, node: &Node) -> Found {
        node.found(&self.host_name)
    }
}

impl LocalDriver {
    /// Opens the state directory and takes over the nodes of the previous platform process. Must be called within a
    /// runtime; blocks while it reads.
    ///
    /// # Errors
    /// `Precondition` if the directory is in use by another platform or unusable, or if a setting is invalid.
    pub fn open(settings: Settings) -> Result<Self> {
        settings.check()?;
        let state = StateDir::open(&settings.state_dir)?;
        let unusable = |error: io::Error| {
            let path = state.root().display();
            Error::new(
                Reason::Precondition,
                format!("the state directory {path} cannot be used: {error}"),
            )
        };
        state.sweep().map_err(unusable)?;
        let ids = state.node_ids().map_err(unusable)?;
        let tenancy = Tenancy::open(&settings, &state)?;
        let shared = Arc::new(Shared {
            tenancy: Arc::new(tenancy),
            settings,
            state: Arc::new(state),
            host_name: process::host_name(),
            nodes: Mutex::default(),
            placements: Mutex::default(),
            unconfined: Mutex::default(),
            changes: OnceLock::new(),
            peer_notifier: peers::PeerNotifier::default(),
        });
        let driver = Self {
            shared,
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
            open: RwLock::new(true),
        };
        for node_id in ids {
            if let Err(error) = driver.load(&node_id) {
                // Every list reports it as a warning.
                warn!(node = node_id, %error, "a node cannot be read");
            }
        }
        driver.tasks.spawn(peers::keep(
            Arc::clone(&driver.shared),
            driver.cancel.clone(),
        ));
        Ok(driver)
    }

    /// Held by every call that changes something.
    async fn while_open(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let open = self.open.read().await;
        if *open {
            Ok(open)
        } else {
            Err(Error::unavailable("the platform is shutting down"))
        }
    }

    /// Takes over a node from its directory.
    fn load(&self, node_id: &str) -> io::Result<()> {
        let directory = self.shared.state.node(node_id);
        let record: Record = files::read_json(&directory.join(NODE))?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the record is missing"))?;
        if record.node_id != node_id {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the record is that of another node",
            ));
        }
        let removal = files::read_json(&directory.join(REMOVAL))?;
        let spec: Option<ProcessSpec> = files::read_json(&directory.join(SPEC))?;
        if spec.as_ref().is_some_and(|spec| !spec.confined) {
            self.shared.unconfined.lock().insert(node_id.to_owned());
        }
        if let (Some(groups), Some(group)) = (
            self.shared.tenancy.groups(),
            spec.as_ref()
                .and_then(|spec| self.shared.tenancy.group(spec)),
        ) {
            groups.know(&group);
        }
        self.shared
            .placements
            .lock()
            .insert(node_id.to_owned(), record.placement());
        if let Some(key) = &record.storage
            && let Err(error) = self.shared.state.hand_over(key, &record.identity)
        {
            // Repeated at the latest when the storage is retained.
            warn!(node = node_id, %error, "whose the storage of a node is cannot be written down");
        }
        self.adopt(Node::new(directory, record, removal));
        Ok(())
    }

    /// Starts to supervise a node.
    fn adopt(&self, node: Arc<Node>) {
        let record = node.record();
        self.shared
            .nodes
            .lock()
            .insert(record.node_id.clone(), Arc::clone(&node));
        self.shared
            .changed(&record.identity.cluster_id, &record.node_id);
        let life = node::supervise(Arc::clone(&self.shared), node, self.cancel.clone());
        // The start of its process belongs to the trace that created it.
        let trace = drover_telemetry::current();
        self.tasks
            .spawn(drover_telemetry::context::scope(trace, life));
    }
}

#[async_trait]
impl Driver for LocalDriver {
    fn description(&self) -> Description {
        self.shared.describe()
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        self.try_out(batch).await
    }

    async fn list(&self) -> Result<Listing> {
        // Read first: a node that is created in the meantime is in the map by then.
        let state = Arc::clone(&self.shared.state);
        let directories = blocking(move || state.node_ids()).await.map_err(|error| {
            Error::unavailable(format!("the state directory cannot be read: {error}"))
        })?;
        let nodes = self
            .shared
            .nodes
            .lock()
            .values()
            .cloned()
            .collect::<Vec<_>>();
        let mut warnings = Vec::new();
        for node_id in directories {
            let known = self.shared.nodes.lock().contains_key(&node_id)
                || self.shared.placements.lock().contains_key(&node_id);
            // Checked again, because a deletion may have ended in between.
            if !known && self.shared.state.node(&node_id).exists() {
                warnings.push(Warning {
                    message: format!(
                        "the directory of node {node_id} cannot be read; repair or remove it"
                    ),
                    id: Some(node_id),
                    ..Warning::default()
                });
            }
        }
        Ok(Listing {
            nodes: nodes.iter().map(|node| self.shared.found(node)).collect(),
            warnings,
        })
    }

    async fn by_node_id(&self, node_id: &str) -> Result<Vec<Found>> {
        let node = self.shared.nodes.lock().get(node_id).cloned();
        Ok(node.iter().map(|node| self.shared.found(node)).collect())
    }

    async fn create(&self, batch: &Batch) -> Vec<Outcome> {
        let Ok(_open) = self.while_open().await else {
            return batch.slots().map(|_| Outcome::NotStarted).collect();
        };
        let mut creates = Vec::new();
        for slot in batch.slots() {
            creates.push(self.make(batch, slot));
        }
        let outcomes = stream::iter(creates)
            .buffered(CONCURRENT_CREATES)
            .collect()
            .await;
        crash::point(Point::BeforeAnswer);
        outcomes
    }

    async fn delete(&self, target: &Target, options: &Deletion) -> Result<Deleted> {
        let _open = self.while_open().await?;
        let gone = || Deleted {
            state: DeprovisionState::Gone,
            retained_storage: Vec::new(),
        };
        let Some(node) = self.shared.nodes.lock().get(&target.node_id).cloned() else {
            return Ok(gone());
        };
        let _writing = node.writing.lock().await;
        target.matches(&self.shared.found(&node).node)?;
        let grace = options
            .grace_period
            .unwrap_or(self.shared.settings.grace_period);
        let deadline = unix_millis(SystemTime::now())
            .saturating_add(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let before = node.removal();
        let removal = Removal {
            // A second call may shorten the grace period but not extend it.
            deadline: before
                .as_ref()
                .map_or(deadline, |before| before.deadline.min(deadline)),
            retain_storage: options.retain_storage
                || before.as_ref().is_some_and(|before| before.retain_storage),
        };
        let record = node.record();
        if before.as_ref() != Some(&removal) {
            if !self.shared.state.node(&record.node_id).exists() {
                return Ok(gone());
            }
            node::write_removal(&node, removal.clone())
                .await
                .map_err(|error| cannot_write(&error))?;
            crash::point(Point::RemovalRecorded);
            node.set_removal(removal.clone());
            self.shared
                .changed(&record.identity.cluster_id, &record.node_id);
        }
        let retained_storage = record
            .storage
            .filter(|_| removal.retain_storage)
            .into_iter()
            .collect();
        Ok(Deleted {
            state: DeprovisionState::Deprovisioning,
            retained_storage,
        })
    }

    async fn kept_storage(&self) -> Result<Vec<KeptStorage>> {
        self.list_kept().await
    }

    async fn delete_storage(&self, meant: &KeptStorage) -> Result<DeprovisionState> {
        self.delete_kept(meant).await
    }

    async fn update(&self, target: &Target, change: &Change) -> Result<ProtoNode> {
        let _open = self.while_open().await?;
        let node = self.shared.nodes.lock().get(&target.node_id).cloned();
        let node = node.ok_or_else(|| Error::not_found("node", &target.node_id))?;
        let _writing = node.writing.lock().await;
        target.matches(&self.shared.found(&node).node)?;
        let mut record = node.record();
        let cluster_before = record.identity.cluster_id.clone();
        match change {
            Change::Edit {
                role,
                set_labels,
                remove_labels,
                spec_hash,
                ..
            } => {
                if let Some(role) = role {
                    record.identity.role = (*role).into();
                }
                if !spec_hash.is_empty() {
                    record.identity.spec_hash.clone_from(spec_hash);
                }
                record.identity.labels.extend(set_labels.clone());
                record
                    .identity
                    .labels
                    .retain(|key, _| !remove_labels.contains(key));
            }
            Change::Adopt(identity) => {
                let Identity {
                    version,
                    node_class,
                    labels,
                    ..
                } = record.identity;
                record.identity = Identity {
                    version,
                    node_class,
                    labels,
                    ..(**identity).clone()
                };
            }
        }
        if let Change::Edit {
            role: Some(role), ..
        } = change
        {
            node::write_role(&node, *role)
                .await
                .map_err(|error| cannot_write(&error))?;
        }
        if let Change::Edit {
            storage_size: Some(size),
            ..
        } = change
        {
            self.grow(record.placement().storage, *size).await?;
        }
        node::write_record(&node, record.clone())
            .await
            .map_err(|error| cannot_write(&error))?;
        self.shared
            .placements
            .lock()
            .insert(record.node_id.clone(), record.placement());
        let (cluster_now, node_id) = (record.identity.cluster_id.clone(), record.node_id.clone());
        node.set_record(record.clone());
        if matches!(change, Change::Adopt(_)) {
            crash::point(Point::NodeAdopted);
            self.hand_over(record).await;
        }
        if cluster_now != cluster_before {
            self.shared.peer_notifier.changed(&cluster_before);
            if let Some(changes) = self.shared.changes.get() {
                changes.removed(&cluster_before, &node_id, RemovalEvidence::Confirmed);
            }
        }
        self.shared.changed(&cluster_now, &node_id);
        Ok(self.shared.found(&node).node)
    }

    async fn logs(&self, node: &ProtoNode, request: &StreamLogsRequest) -> Result<LogStream> {
        logs::stream(self.known(node)?, request)
    }

    async fn exec(
        &self,
        node: &ProtoNode,
        start: ExecStart,
        input: ExecInput,
    ) -> Result<ExecOutput> {
        exec::run(
            &self.shared.settings.launcher,
            &self.shared.tenancy,
            &self.known(node)?,
            start,
            input,
        )
    }

    fn live(&self) -> Option<&dyn Live> {
        Some(self)
    }

    async fn shutdown(&self) {
        *self.open.write().await = false;
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.shared.state.release();
    }
}

impl Live for LocalDriver {
    fn connect(&self, changes: Changes) {
        // Called once; a second listener would be a bug of the caller.
        if self.shared.changes.set(changes).is_ok() {
            let nodes = self
                .shared
                .nodes
                .lock()
                .values()
                .cloned()
                .collect::<Vec<_>>();
            for node in nodes {
                let record = node.record();
                self.shared
                    .changed(&record.identity.cluster_id, &record.node_id);
            }
        }
    }

    fn node(&self, cluster_id: &str, node_id: &str) -> Option<ProtoNode> {
        self.shared
            .node(cluster_id, node_id)
            .map(|node| self.shared.found(&node).node)
    }

    fn is_current(&self) -> bool {
        true
    }
}

impl LocalDriver {
    /// Passes the storage of an adopted node to its new owner. The node's record is written first and is authoritative
    /// until the storage's record follows: at the latest at the next start, or when the storage is retained.
    async fn hand_over(&self, record: Record) {
        let Some(key) = record.storage else {
            return;
        };
        let (state, identity) = (Arc::clone(&self.shared.state), record.identity);
        if let Err(error) = blocking(move || state.hand_over(&key, &identity)).await {
            warn!(node = record.node_id, %error, "the storage of an adopted node does not say yet whose it is");
        }
    }

    fn known(&self, node: &ProtoNode) -> Result<Arc<Node>> {
        self.shared
            .node(&node.cluster_id, &node.node_id)
            .ok_or_else(|| Error::not_found("node", &node.node_id))
    }
}

impl Drop for LocalDriver {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
