//! Nodes.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Address, AddressType, Condition},
    kubernetes::v1::{self as api, TaintEffect, volume},
};
use drover_resources::parts::{Answers, Nodes};

use crate::{
    Shared, State,
    selector::selects,
    store::{Key, Store, key, named, now, uid},
    wait,
};

/// What keeps new pods off a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

fn at(name: &str) -> Key {
    (String::new(), name.to_owned())
}

fn ready(holds: bool) -> Condition {
    let (reason, message) = if holds {
        ("KubeletReady", "kubelet is posting ready status")
    } else {
        ("NodeStatusUnknown", "Kubelet stopped posting node status.")
    };
    Condition {
        r#type: "Ready".to_owned(),
        // Unknown, not false: nobody hears of the node any more.
        status: holds.then_some(true),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Some(now()),
    }
}

impl Store {
    pub(crate) fn add_node(&mut self, name: &str, mut labels: BTreeMap<String, String>) {
        labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
        let number = self.nodes.all().count() + 10;
        let quantities = [("cpu", "4"), ("memory", "8Gi"), ("pods", "110")];
        let quantities: BTreeMap<String, String> = quantities
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let mut node = api::Node {
            metadata: Some(api::Metadata {
                name: name.to_owned(),
                labels,
                ..api::Metadata::default()
            }),
            ready: true,
            unschedulable: false,
            addresses: vec![Address {
                r#type: AddressType::InternalIp as i32,
                value: format!("192.0.2.{number}"),
                interface: String::new(),
            }],
            conditions: vec![ready(true)],
            taints: Vec::new(),
            capacity: quantities.clone(),
            allocatable: quantities,
            kubelet_version: "v1.33.0".to_owned(),
            provider_id: format!("fake://{name}"),
        };
        self.stamp(&mut node);
        self.nodes.put(node);
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove(&at(name));
        for pod in self.pods_on(name) {
            self.held.remove(&pod);
            self.remove_pod(&pod);
        }
    }

    pub(crate) fn set_node_ready(&mut self, name: &str, holds: bool) {
        let Some(mut node) = self.nodes.get(&at(name)).cloned() else {
            return;
        };
        node.ready = holds;
        node.conditions = vec![ready(holds)];
        self.touch(&mut node);
        self.nodes.put(node);
        for key in self.pods_on(name) {
            let Some(mut pod) = self.pods.get(&key).cloned() else {
                continue;
            };
            let status = pod.status.get_or_insert_default();
            for container in &mut status.containers {
                let runs = container.state() == api::ContainerState::Running;
                container.ready = holds && runs;
            }
            crate::kubelet::settle(&mut pod);
            if !holds && let Some(status) = &mut pod.status {
                "NodeLost".clone_into(&mut status.reason);
            }
            self.touch(&mut pod);
            self.pods.put(pod);
        }
    }

    fn pods_on(&self, name: &str) -> Vec<Key> {
        let on = |pod: &&api::Pod| pod.spec.as_ref().is_some_and(|spec| spec.node == name);
        self.pods.all().filter(on).map(key).collect()
    }

    fn set_unschedulable(&mut self, name: &str, unschedulable: bool) -> Result<api::Node> {
        let mut node = self.nodes.find(&at(name))?.clone();
        if node.unschedulable != unschedulable {
            node.unschedulable = unschedulable;
            node.taints.retain(|taint| taint.key != UNSCHEDULABLE);
            if unschedulable {
                node.taints.push(api::Taint {
                    key: UNSCHEDULABLE.to_owned(),
                    value: String::new(),
                    effect: TaintEffect::NoSchedule as i32,
                });
            }
            self.touch(&mut node);
            self.nodes.put(node.clone());
        }
        Ok(node)
    }

    /// Refuses to evict what the request does not allow.
    fn check_drain(&self, request: &api::DrainNodeRequest) -> Result<()> {
        for key in self.pods_on(&request.name) {
            let Some(pod) = self.pods.get(&key).filter(|pod| !wait::is_over(pod)) else {
                continue;
            };
            let spec = pod.spec.clone().unwrap_or_default();
            let local = |one: &api::Volume| matches!(one.source, Some(volume::Source::EmptyDir(_)));
            let why = if !request.force && !self.owned.contains(&key) {
                "nothing makes it again (force)"
            } else if !request.delete_empty_dir_data && spec.volumes.iter().any(local) {
                "it has local data (delete_empty_dir_data)"
            } else {
                continue;
            };
            let name = named(&key);
            let message = format!("the pod {name:?} cannot be evicted: {why}");
            return Err(Error::new(Reason::Precondition, message).with_resource("pod", name));
        }
        Ok(())
    }

    /// The disruption budget that keeps a pod where it is.
    fn blocking(&self, pod: &Key) -> Option<String> {
        let labels = |pod: &api::Pod| {
            let metadata = pod.metadata.as_ref();
            metadata.map(|one| one.labels.clone()).unwrap_or_default()
        };
        let own = self.pods.get(pod).map(labels)?;
        let mut budgets = self.budgets.iter();
        let blocking = budgets.find(|((namespace, _), budget)| {
            let fits = |labels: &BTreeMap<String, String>| {
                budget
                    .labels
                    .iter()
                    .all(|(key, value)| labels.get(key) == Some(value))
            };
            let counts = |one: &&api::Pod| {
                let alive = one
                    .metadata
                    .as_ref()
                    .is_some_and(|one| one.delete_time.is_none());
                let ready = one.status.as_ref().is_some_and(|status| status.ready);
                key(*one).0 == *namespace && alive && ready && fits(&labels(one))
            };
            *namespace == pod.0
                && fits(&own)
                && self.pods.all().filter(counts).count() <= budget.min_available
        });
        blocking.map(|((_, name), _)| name.clone())
    }
}

fn drain(state: Arc<State>, request: api::DrainNodeRequest) -> Result<Answers<api::WaitProgress>> {
    let pods = state.change(|store| {
        store.nodes.find(&at(&request.name))?;
        store.check_drain(&request)?;
        store.set_unschedulable(&request.name, true)?;
        Ok::<_, Error>(store.pods_on(&request.name))
    })?;
    let grace = request.grace_period.map(|grace| grace.seconds);
    let later = Arc::downgrade(&state);
    let mut asked = Vec::new();
    wait::progress(state, move |store| {
        let mut progress = api::WaitProgress {
            matched: u32::try_from(pods.len()).unwrap_or(u32::MAX),
            ..api::WaitProgress::default()
        };
        for key in &pods {
            if store.pods.get(key).is_none() {
                progress.met += 1;
                continue;
            }
            let (reason, message) = if asked.contains(key) {
                ("Terminating", String::new())
            } else if let Some(budget) = store.blocking(key) {
                (
                    "DisruptionBudget",
                    format!("the disruption budget {budget:?} does not allow it yet"),
                )
            } else {
                asked.push(key.clone());
                store.delete_pod(key, "", grace)?;
                if let Some(state) = later.upgrade() {
                    state.finish_later(key);
                }
                ("Terminating", String::new())
            };
            let Some(uid) = store.pods.get(key).map(uid) else {
                progress.met += 1;
                continue;
            };
            progress.pending.push(api::WaitPending {
                namespace: key.0.clone(),
                name: key.1.clone(),
                reason: reason.to_owned(),
                message,
                uid,
            });
        }
        progress.done = progress.met == progress.matched;
        Ok(progress)
    })
}

impl State {
    /// Lets a pod that is being deleted be gone within a step.
    fn finish_later(self: &Arc<Self>, key: &Key) {
        let (state, key, step) = (Arc::downgrade(self), key.clone(), *self.step.lock());
        self.later(async move {
            tokio::time::sleep(step).await;
            if let Some(state) = state.upgrade() {
                state.change(|store| store.finish_deletion(&key));
            }
        });
    }
}

#[async_trait]
impl Nodes for Shared {
    async fn get(&self, name: &str) -> Result<api::Node> {
        self.call("nodes.get", async {
            self.store.lock().nodes.find(&at(name)).cloned()
        })
        .await
    }

    async fn list(&self, request: api::ListNodesRequest) -> Result<api::ListNodesResponse> {
        self.call("nodes.list", async {
            let mut store = self.store.lock();
            let revision = store.tick();
            let matches = |node: &api::Node| {
                let labels = node.metadata.as_ref().map(|one| &one.labels);
                labels.is_none_or(|labels| selects(request.selector.as_ref(), labels))
            };
            let place = (request.page_size, &*request.page_token);
            let (nodes, next_page_token) = store.nodes.page(place, revision, matches)?;
            Ok(api::ListNodesResponse {
                nodes,
                next_page_token,
            })
        })
        .await
    }

    async fn wait(&self, request: api::WaitNodesRequest) -> Result<Answers<api::WaitProgress>> {
        self.call("nodes.wait", async { wait::nodes(self.0.clone(), request) })
            .await
    }

    async fn set_unschedulable(&self, name: &str, unschedulable: bool) -> Result<api::Node> {
        self.call("nodes.set_unschedulable", async {
            self.change(|store| store.set_unschedulable(name, unschedulable))
        })
        .await
    }

    async fn drain(&self, request: api::DrainNodeRequest) -> Result<Answers<api::WaitProgress>> {
        self.call("nodes.drain", async { drain(self.0.clone(), request) })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_node_that_is_lost_nobody_knows_whether_it_is_ready() {
        let mut store = Store::new(1);
        store.add_node("node", BTreeMap::new());
        let ready = |store: &Store| store.nodes.get(&at("node")).unwrap().conditions[0].status;
        assert_eq!(ready(&store), Some(true));
        store.set_node_ready("node", false);
        assert_eq!(ready(&store), None);
    }
}
