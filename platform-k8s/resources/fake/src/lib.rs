//! A Kubernetes in memory: its nodes, pods, services, ingresses, network policies and configurations, as an API server,
//! a scheduler and a kubelet would show them. No cluster, no network, no container.
//!
//! ```text
//! parts (nodes, pods, services, …) ── store (objects, revisions, pages)      what an API server does
//!                                  ├─ kubelet (scheduling, containers)       what happens to pods
//!                                  ├─ shell, files                           what runs in them
//!                                  └─ faults                                 what goes wrong
//! ```

mod configurations;
mod defaults;
mod exec;
mod faults;
mod files;
mod ingresses;
mod kubelet;
mod network_policies;
mod nodes;
mod pods;
mod quantity;
mod selector;
mod services;
mod shell;
mod store;
mod wait;

use std::{collections::BTreeMap, ops::Deref, sync::Arc, time::Duration};

use drover_proto::kubernetes::v1 as api;
use drover_resources::{Cluster, Parts};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet};

pub use self::{
    exec::{Command, Outcome},
    faults::Fault,
};
use self::{faults::Faults, store::Store};

/// Time of each step in the life of a pod, unless set: short, and long enough that what comes before can be seen.
const STEP: Duration = Duration::from_millis(20);

/// A Kubernetes in memory. Clones are handles of the same one.
#[derive(Clone)]
pub struct Fake(Arc<State>);

pub(crate) struct State {
    store: Mutex<Store>,
    /// The revision of the last change.
    changed: watch::Sender<u64>,
    faults: Mutex<Faults>,
    commands: Mutex<Vec<(Command, Outcome)>>,
    step: Mutex<Duration>,
    /// Everything that happens to pods later. Ends with the last handle.
    tasks: Mutex<JoinSet<()>>,
}

impl Fake {
    /// An empty cluster with the nodes `node-1` and `node-2`. Uids are a function of the seed and of the calls.
    ///
    /// Must be called within a runtime of tokio, which is where its pods live.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let fake = Self(Arc::new(State {
            store: Mutex::new(Store::new(seed)),
            changed: watch::Sender::new(0),
            faults: Mutex::default(),
            commands: Mutex::default(),
            step: Mutex::new(STEP),
            tasks: Mutex::default(),
        }));
        fake.add_node("node-1", BTreeMap::new());
        fake.add_node("node-2", BTreeMap::new());
        fake
    }

    /// All seven parts.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let state = Shared(self.0.clone());
        Parts {
            nodes: Some(Arc::new(state.clone())),
            pods: Some(Arc::new(state.clone())),
            services: Some(Arc::new(state.clone())),
            ingresses: Some(Arc::new(state.clone())),
            ingress_rules: Some(Arc::new(state.clone())),
            network_policies: Some(Arc::new(state.clone())),
            configurations: Some(Arc::new(state.clone())),
        }
    }

    /// A cluster of all seven parts.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        Cluster::custom(self.parts())
    }

    /// Sets how long each step in the life of a pod takes from now on. Default 20 ms.
    pub fn set_step(&self, step: Duration) {
        *self.0.step.lock() = step;
    }

    /// The next calls of this name (`pods.create`, `configurations.update`, …) go wrong, as many as `times`.
    pub fn fail(&self, call: &str, fault: Fault, times: usize) {
        self.0.faults.lock().add(call, fault, times);
    }

    /// How often a call of this name was made.
    #[must_use]
    pub fn calls(&self, call: &str) -> u64 {
        self.0.faults.lock().made(call)
    }

    /// What a command does in the containers that it matches. The first match wins, before what the shell knows itself.
    pub fn on_exec(&self, command: Command, outcome: Outcome) {
        self.0.commands.lock().push((command, outcome));
    }

    /// Puts a file into a container.
    pub fn put_file(
        &self,
        (namespace, pod, container): (&str, &str, &str),
        path: &str,
        data: &[u8],
    ) {
        self.0.change(|store| {
            let key = (namespace.to_owned(), pod.to_owned());
            if let Some(pod) = store.pods.get(&key) {
                let uid = store::uid(pod);
                store.files.put(&uid, container, path, data.to_vec());
            }
        });
    }

    /// Appends to the log of a running container.
    pub fn write_log(&self, (namespace, pod, container): (&str, &str, &str), text: &str) {
        self.0.change(|store| {
            store.write_log((namespace, pod, container), text.as_bytes());
        });
    }

    /// Adds a ready node with labels.
    pub fn add_node(&self, name: &str, labels: BTreeMap<String, String>) {
        self.0.change(|store| store.add_node(name, labels));
    }

    /// Removes a node, and with it its pods.
    pub fn remove_node(&self, name: &str) {
        self.0.change(|store| store.remove_node(name));
    }

    /// Sets whether a node is ready. Pods of one that is not are no longer ready either.
    pub fn set_node_ready(&self, name: &str, ready: bool) {
        self.0.change(|store| store.set_node_ready(name, ready));
    }

    /// Lets a container of a running pod end.
    pub fn end_container(&self, (namespace, pod, container): (&str, &str, &str), exit_code: i32) {
        self.0.end_container((namespace, pod, container), exit_code);
    }

    /// A finalizer that keeps a pod after its deletion, until it is released.
    pub fn hold_pod(&self, namespace: &str, pod: &str) {
        self.0.change(|store| {
            store.held.insert((namespace.to_owned(), pod.to_owned()));
        });
    }

    /// Removes the finalizer. A pod that was deleted is gone then.
    pub fn release_pod(&self, namespace: &str, pod: &str) {
        let key = (namespace.to_owned(), pod.to_owned());
        self.0.change(|store| {
            store.held.remove(&key);
            store.finish_deletion(&key);
        });
    }

    /// Only these namespaces exist from now on. Until this is called, all do.
    pub fn set_namespaces(&self, names: &[&str]) {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        self.0.change(|store| store.namespaces = Some(names));
    }

    /// Removes a namespace with everything in it.
    pub fn delete_namespace(&self, name: &str) {
        self.0.change(|store| store.delete_namespace(name));
    }

    /// Most pods of a namespace.
    pub fn set_pod_quota(&self, namespace: &str, pods: usize) {
        self.0.change(|store| {
            store.quotas.insert(namespace.to_owned(), pods);
        });
    }

    /// A disruption budget: at least so many pods with these labels stay ready through a drain.
    pub fn set_budget(
        &self,
        namespace: &str,
        name: &str,
        labels: BTreeMap<String, String>,
        min_available: usize,
    ) {
        self.0.change(|store| {
            let budget = store::Budget {
                labels,
                min_available,
            };
            let key = (namespace.to_owned(), name.to_owned());
            store.budgets.insert(key, budget);
        });
    }

    /// Marks a pod as one that a controller makes again, so that a drain needs no force for it.
    pub fn own_pod(&self, namespace: &str, pod: &str) {
        self.0.change(|store| {
            store.owned.insert((namespace.to_owned(), pod.to_owned()));
        });
    }

    /// Adds an upstream of Gloo that leads to a service, beside the one that is discovered.
    pub fn add_upstream(&self, (namespace, name): (&str, &str), service: &str, port: u32) {
        self.0.change(|store| {
            let key = (namespace.to_owned(), name.to_owned());
            store.upstreams.insert(key, (service.to_owned(), port));
        });
    }

    /// Chooses which kinds of ingresses the API server offers. Default: all.
    pub fn set_backends(&self, backends: &[api::IngressBackend]) {
        let backends = backends.to_vec();
        self.0.change(|store| store.backends = backends);
    }

    /// Forgets old revisions, so that lists that have begun cannot go on.
    pub fn compact(&self) {
        self.0.change(Store::compact);
    }
}

/// The cluster as each of its parts has it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<State>);

impl Deref for Shared {
    type Target = Arc<State>;

    fn deref(&self) -> &Arc<State> {
        &self.0
    }
}

impl State {
    /// Changes the store, and tells all that wait.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let (answer, revision) = {
            let mut store = self.store.lock();
            let answer = change(&mut store);
            (answer, store.tick())
        };
        self.changed.send_if_modified(|last| {
            let newer = revision > *last;
            *last = revision.max(*last);
            newer
        });
        answer
    }
}
