//! What happens to pods after they are made: a node is chosen, containers start, end and start again.

use std::{
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use drover_proto::{
    common::v1::Condition,
    kubernetes::v1::{
        self as api, ContainerState, ContainerStatus, PodPhase, RestartPolicy, TaintEffect,
        TolerationOperator, env_var,
    },
};
use futures::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    State,
    shell::{Main, is_ready, main_process},
    store::{Key, Store, now, uid},
};

/// Longest pause between two starts of a container, in steps.
const MAX_BACK_OFF: u32 = 16;
/// Names end so of registries that cannot exist (RFC 2606).
const NO_REGISTRY: &str = ".invalid";
/// Exit code of a container that was killed.
pub(crate) const KILLED: i32 = 137;

/// One line of a log, with its time.
pub(crate) type Line = (SystemTime, Vec<u8>);

/// The logs of a container.
#[derive(Clone, Default)]
pub(crate) struct Logs {
    pub(crate) current: Vec<Line>,
    pub(crate) previous: Option<Vec<Line>>,
    /// How often it was started.
    pub(crate) runs: u32,
}

/// One pod, by its uid: another one of the same name is not meant.
#[derive(Clone)]
struct Subject {
    state: Weak<State>,
    key: Key,
    uid: String,
}

impl State {
    /// Begins the life of a pod.
    pub(crate) fn begin(self: &Arc<Self>, pod: &api::Pod) {
        let subject = Subject {
            state: Arc::downgrade(self),
            key: crate::store::key(pod),
            uid: uid(pod),
        };
        self.later(async move {
            // Ends when the pod does.
            let _ = subject.live().await;
        });
    }

    /// Does something in the background, for as long as the cluster exists.
    pub(crate) fn later(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    pub(crate) fn end_container(&self, (namespace, pod, container): (&str, &str, &str), code: i32) {
        let key = (namespace.to_owned(), pod.to_owned());
        self.change(|store| store.set_ended(&key, container, code));
    }
}

impl Subject {
    /// Changes the pod while it exists.
    fn change<T>(&self, change: impl FnOnce(&mut Store, &mut api::Pod) -> T) -> Option<T> {
        let state = self.state.upgrade()?;
        state.change(|store| {
            let mut pod = store.pods.get(&self.key)?.clone();
            if uid(&pod) != self.uid {
                return None;
            }
            let before = pod.clone();
            let answer = change(store, &mut pod);
            settle(&mut pod);
            if pod != before {
                store.touch(&mut pod);
                store.pods.put(pod);
            }
            Some(answer)
        })
    }

    fn look<T>(&self, look: impl FnOnce(&Store, &api::Pod) -> T) -> Option<T> {
        let state = self.state.upgrade()?;
        let store = state.store.lock();
        let pod = store.pods.get(&self.key)?;
        (uid(pod) == self.uid).then(|| look(&store, pod))
    }

    async fn step(&self) -> Option<()> {
        let step = *self.state.upgrade()?.step.lock();
        sleep(step).await;
        Some(())
    }

    /// Until something in the cluster changes.
    async fn changed(&self) -> Option<()> {
        let mut changed = self.state.upgrade()?.changed.subscribe();
        changed.changed().await.ok()
    }

    async fn live(self) -> Option<()> {
        self.step().await?;
        while !self.change(schedule)? {
            self.changed().await?;
        }
        self.step().await?;
        self.change(|store, pod| {
            let address = store.next_address();
            let status = pod.status.get_or_insert_default();
            status.start_time = Some(now());
            status.ips = vec![address.clone()];
            status.ip = address;
        })?;
        let (init, main) = self.look(|_, pod| {
            let spec = pod.spec.clone().unwrap_or_default();
            (spec.init_containers, spec.containers)
        })?;
        for container in init {
            if self.run(&container, true).await? != 0 {
                return None;
            }
        }
        let runs = main.iter().map(|container| self.run(container, false));
        join_all(runs).await;
        None
    }

    /// Runs a container until it has ended for good.
    async fn run(&self, container: &api::Container, init: bool) -> Option<i32> {
        let mut back_off = 1;
        loop {
            self.startable(container).await?;
            let Main { output, end } =
                self.look(|store, pod| main_process(store, pod, container))?;
            let name = &container.name;
            self.change(|store, pod| {
                let ready = !init && is_ready(store, pod, container);
                start(store, pod, name, ready);
                for text in output {
                    store.write_log((&self.key.0, &self.key.1, name), &text);
                }
            })?;
            let code = self.ended(name, end).await?;
            let policy = self.look(|_, pod| {
                let spec = pod.spec.as_ref();
                spec.map_or(RestartPolicy::Always, api::PodSpec::restart_policy)
            })?;
            let again = match policy {
                RestartPolicy::Never => false,
                RestartPolicy::OnFailure => code != 0,
                RestartPolicy::Always | RestartPolicy::Unspecified => !init || code != 0,
            };
            if !again {
                return Some(code);
            }
            self.change(|_, pod| {
                if let Some(status) = container_status(pod, name) {
                    wait(
                        status,
                        "CrashLoopBackOff",
                        "the container is about to start again",
                    );
                    status.restart_count += 1;
                }
            })?;
            let step = *self.state.upgrade()?.step.lock();
            sleep(step * back_off).await;
            back_off = (back_off * 2).min(MAX_BACK_OFF);
        }
    }

    /// Until a container can be started: its image is there, and what its environment names.
    async fn startable(&self, container: &api::Container) -> Option<()> {
        let registry = container.image.split('/').next().unwrap_or_default();
        let host = registry.split(':').next().unwrap_or_default();
        let no_image = container.image.contains('/') && host.ends_with(NO_REGISTRY);
        loop {
            let missing = self.look(|store, pod| missing(store, pod, container))?;
            let why = match (no_image, missing) {
                (true, _) => (
                    "ImagePullBackOff",
                    format!("cannot pull {:?}", container.image),
                ),
                (false, Some(what)) => ("CreateContainerConfigError", what),
                (false, None) => return Some(()),
            };
            self.change(|_, pod| {
                if let Some(status) = container_status(pod, &container.name) {
                    wait(status, why.0, &why.1);
                }
            })?;
            self.changed().await?;
        }
    }

    /// Until a container ends: by itself, or because somebody ends it.
    async fn ended(&self, name: &str, end: Option<(Duration, i32)>) -> Option<i32> {
        let at = end.map(|(after, code)| (Instant::now() + after, code));
        let mut changed = self.state.upgrade()?.changed.subscribe();
        loop {
            let code = self.look(|_, pod| terminated(pod, name))?;
            if code.is_some() {
                return code;
            }
            tokio::select! {
                changed = changed.changed() => changed.ok()?,
                Some(code) = async {
                    let (at, code) = at?;
                    sleep_until(at).await;
                    Some(code)
                } => {
                    self.change(|store, _| store.ends.push((self.key.clone(), name.to_owned(), code)));
                    let state = self.state.upgrade()?;
                    state.change(Store::apply_ends);
                }
            }
        }
    }
}

fn terminated(pod: &api::Pod, name: &str) -> Option<i32> {
    let status = pod.status.as_ref()?;
    let all = status.containers.iter().chain(&status.init_containers);
    let status = all.into_iter().find(|one| one.name == name)?;
    let ended = status.state() == ContainerState::Terminated;
    ended.then(|| status.exit_code.unwrap_or_default())
}

/// The status of a container.
pub(crate) fn container_status<'a>(
    pod: &'a mut api::Pod,
    name: &str,
) -> Option<&'a mut ContainerStatus> {
    let status = pod.status.as_mut()?;
    let all = status
        .containers
        .iter_mut()
        .chain(&mut status.init_containers);
    all.into_iter().find(|one| one.name == name)
}

fn wait(status: &mut ContainerStatus, reason: &str, message: &str) {
    status.state = ContainerState::Waiting as i32;
    status.ready = false;
    reason.clone_into(&mut status.reason);
    message.clone_into(&mut status.message);
}

fn start(store: &mut Store, pod: &mut api::Pod, name: &str, ready: bool) {
    let logs = store.logs.entry((uid(pod), name.to_owned())).or_default();
    if logs.runs > 0 {
        logs.previous = Some(std::mem::take(&mut logs.current));
    }
    logs.runs += 1;
    if let Some(status) = container_status(pod, name) {
        status.state = ContainerState::Running as i32;
        status.ready = ready;
        status.reason.clear();
        status.message.clear();
        status.start_time = Some(now());
    }
}

/// What a container needs and the cluster does not have.
fn missing(store: &Store, pod: &api::Pod, container: &api::Container) -> Option<String> {
    let namespace = pod.metadata.as_ref().map(|one| one.namespace.clone())?;
    container.env.iter().find_map(|variable| {
        let Some(env_var::Source::Configuration(of)) = &variable.source else {
            return None;
        };
        let found = store
            .configurations
            .get(&(namespace.clone(), of.name.clone()));
        let has = found.is_some_and(|one| one.data.contains_key(&of.key));
        (!has && !of.optional).then(|| {
            format!(
                "there is no {:?} in the configuration {:?}",
                of.key, of.name
            )
        })
    })
}

/// Chooses a node. Whether there is one.
fn schedule(store: &mut Store, pod: &mut api::Pod) -> bool {
    let spec = pod.spec.clone().unwrap_or_default();
    let wanted = !spec.node.is_empty();
    let fits = |node: &&api::Node| {
        let metadata = node.metadata.clone().unwrap_or_default();
        if wanted {
            return metadata.name == spec.node;
        }
        let equal = |(key, value): (&String, &String)| metadata.labels.get(key) == Some(value);
        node.ready
            && spec.node_selector.iter().all(equal)
            && affine(spec.affinity.as_ref(), &metadata)
            && node
                .taints
                .iter()
                .all(|taint| tolerated(taint, &spec.tolerations))
    };
    let fitting: Vec<String> = store
        .nodes
        .all()
        .filter(fits)
        .map(|node| crate::store::key(node).1)
        .collect();
    let load = |name: &String| {
        let on = |pod: &&api::Pod| pod.spec.as_ref().is_some_and(|spec| spec.node == *name);
        store.pods.all().filter(on).count()
    };
    let chosen = fitting.iter().min_by_key(|name| load(name)).cloned();
    let status = pod.status.get_or_insert_default();
    let Some(node) = chosen else {
        let message = "no node fits: taints, labels, or none is ready";
        condition(status, "PodScheduled", false, ("Unschedulable", message));
        return false;
    };
    condition(status, "PodScheduled", true, ("", ""));
    let host = store.nodes.get(&(String::new(), node.clone()));
    let address = host.and_then(|node| node.addresses.first());
    status.host_ip = address
        .map(|address| address.value.clone())
        .unwrap_or_default();
    status.node.clone_from(&node);
    if let Some(spec) = &mut pod.spec {
        spec.node = node;
    }
    true
}

fn affine(affinity: Option<&api::Affinity>, node: &api::Metadata) -> bool {
    let Some(affinity) = affinity else {
        return true;
    };
    let fits =
        |term: &api::NodeTerm| crate::selector::selects(term.selector.as_ref(), &node.labels);
    affinity.node_required.is_empty() || affinity.node_required.iter().any(fits)
}

fn tolerated(taint: &api::Taint, tolerations: &[api::Toleration]) -> bool {
    if taint.effect() == TaintEffect::PreferNoSchedule {
        return true;
    }
    tolerations.iter().any(|one| {
        let effect = one.effect == 0 || one.effect == taint.effect;
        let key = one.key.is_empty() || one.key == taint.key;
        let value = match one.operator() {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal | TolerationOperator::Unspecified => one.value == taint.value,
        };
        effect && key && value
    })
}

/// Sets a condition.
pub(crate) fn condition(
    status: &mut api::PodStatus,
    kind: &str,
    holds: bool,
    (reason, message): (&str, &str),
) {
    let new = Condition {
        r#type: kind.to_owned(),
        status: Some(holds),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Some(now()),
    };
    match status.conditions.iter_mut().find(|one| one.r#type == kind) {
        Some(old) if old.status == new.status => {
            old.reason = new.reason;
            old.message = new.message;
        }
        Some(old) => *old = new,
        None => status.conditions.push(new),
    }
}

/// Derives phase, readiness and reason of a pod from its containers.
pub(crate) fn settle(pod: &mut api::Pod) {
    let policy = pod
        .spec
        .as_ref()
        .map_or(RestartPolicy::Always, api::PodSpec::restart_policy);
    let status = pod.status.get_or_insert_default();
    if status.node.is_empty() {
        let unschedulable = status
            .conditions
            .iter()
            .find(|one| one.status == Some(false));
        let (reason, message) = unschedulable
            .map(|one| (one.reason.clone(), one.message.clone()))
            .unwrap_or_default();
        (status.reason, status.message) = (reason, message);
        return;
    }
    let ended = |one: &ContainerStatus| one.state() == ContainerState::Terminated;
    let failed = |one: &ContainerStatus| ended(one) && one.exit_code != Some(0);
    let over = match policy {
        RestartPolicy::Always | RestartPolicy::Unspecified => false,
        RestartPolicy::OnFailure | RestartPolicy::Never => {
            let again = |one: &ContainerStatus| policy == RestartPolicy::OnFailure && failed(one);
            status
                .containers
                .iter()
                .all(|one| ended(one) && !again(one))
        }
    };
    let init_failed = policy == RestartPolicy::Never && status.init_containers.iter().any(failed);
    let started =
        |one: &ContainerStatus| one.state() != ContainerState::Waiting || one.restart_count > 0;
    let phase = if init_failed || over && status.containers.iter().any(failed) {
        PodPhase::Failed
    } else if over {
        PodPhase::Succeeded
    } else if status.containers.iter().any(started) {
        PodPhase::Running
    } else {
        PodPhase::Pending
    };
    status.phase = phase as i32;
    let ready = phase == PodPhase::Running && status.containers.iter().all(|one| one.ready);
    status.ready = ready;
    let why = match phase {
        PodPhase::Succeeded => "PodCompleted",
        _ if ready => "",
        _ => "ContainersNotReady",
    };
    let initialized = status
        .init_containers
        .iter()
        .all(|one| ended(one) && !failed(one));
    condition(status, "Initialized", initialized, ("", ""));
    condition(status, "ContainersReady", ready, (why, ""));
    condition(status, "Ready", ready, (why, ""));
    let all = status.containers.iter().chain(&status.init_containers);
    let waiting = all
        .into_iter()
        .find(|one| !one.reason.is_empty() && one.state() == ContainerState::Waiting);
    let (reason, message) = waiting
        .map(|one| (one.reason.clone(), one.message.clone()))
        .unwrap_or_default();
    (status.reason, status.message) = (reason, message);
}

impl Store {
    fn next_address(&mut self) -> String {
        self.addresses += 1;
        let [_, b, c, d] = self.addresses.to_be_bytes();
        format!("10.{}.{c}.{d}", 244 + (b & 7))
    }

    /// Lets a container end.
    pub(crate) fn set_ended(&mut self, key: &Key, container: &str, code: i32) {
        self.ends.push((key.clone(), container.to_owned(), code));
        self.apply_ends();
    }

    pub(crate) fn apply_ends(&mut self) {
        for (key, container, code) in std::mem::take(&mut self.ends) {
            let Some(mut pod) = self.pods.get(&key).cloned() else {
                continue;
            };
            if let Some(status) = container_status(&mut pod, &container)
                && status.state() == ContainerState::Running
            {
                status.state = ContainerState::Terminated as i32;
                status.ready = false;
                status.exit_code = Some(code);
                status.end_time = Some(now());
                let reason = if code == 0 { "Completed" } else { "Error" };
                reason.clone_into(&mut status.reason);
            }
            settle(&mut pod);
            self.touch(&mut pod);
            self.pods.put(pod);
        }
    }

    /// Appends to the log of a container.
    pub(crate) fn write_log(
        &mut self,
        (namespace, pod, container): (&str, &str, &str),
        text: &[u8],
    ) {
        let key = (namespace.to_owned(), pod.to_owned());
        let Some(uid) = self.pods.get(&key).map(uid) else {
            return;
        };
        let logs = self.logs.entry((uid, container.to_owned())).or_default();
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match logs.current.last_mut() {
                Some((_, last)) if !last.ends_with(b"\n") => last.extend(line),
                Some(_) | None => logs.current.push((SystemTime::now(), line.to_vec())),
            }
        }
    }

    /// Removes a pod with everything in it, unless a finalizer keeps it.
    pub(crate) fn finish_deletion(&mut self, key: &Key) {
        let deleted = |pod: &api::Pod| {
            let metadata = pod.metadata.as_ref();
            metadata.is_some_and(|metadata| metadata.delete_time.is_some())
        };
        if !self.held.contains(key) && self.pods.get(key).is_some_and(deleted) {
            self.remove_pod(key);
        }
    }

    pub(crate) fn remove_pod(&mut self, key: &Key) {
        if let Some(pod) = self.pods.remove(key) {
            let uid = uid(&pod);
            self.files.forget(&uid);
            self.logs.retain(|(owner, _), _| *owner != uid);
            self.owned.remove(key);
        }
    }
}
