//! Pods.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, chunk::Content},
    kubernetes::v1::{
        self as api, ContainerState, ContainerStatus, PodPhase, RestartPolicy,
        stream_logs_request::Since,
    },
};
use drover_resources::parts::{Answers, Input, Pods};
use futures::{StreamExt, stream};

use crate::{
    Shared, State, defaults,
    exec::{self, PIECE, container_of, not_running, running},
    kubelet::Line,
    selector::selects,
    store::{Key, Store, exists, key, now, uid},
    wait,
};

/// Those that every cluster has.
const PRIORITY_CLASSES: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

impl Store {
    fn create_pod(&mut self, mut pod: api::Pod) -> Result<api::Pod> {
        let key = key(&pod);
        self.check_namespace(&key.0)?;
        let others = self
            .pods
            .all()
            .filter(|pod| crate::store::key(*pod).0 == key.0)
            .count();
        if self.quotas.get(&key.0).is_some_and(|most| others >= *most) {
            let message = format!(
                "the namespace {:?} may have {others} pods, and has them",
                key.0
            );
            return Err(Error::new(Reason::QuotaExceeded, message));
        }
        let spec = pod.spec.get_or_insert_default();
        let class = spec.priority_class.as_str();
        if !class.is_empty() && !PRIORITY_CLASSES.contains(&class) {
            let message = format!("there is no priority class {class:?}");
            return Err(Error::new(Reason::Precondition, message));
        }
        defaults::pod(spec);
        if self.pods.get(&key).is_some() {
            return Err(exists::<api::Pod>(&key));
        }
        let waiting = |container: &api::Container| ContainerStatus {
            name: container.name.clone(),
            state: ContainerState::Waiting as i32,
            reason: "ContainerCreating".to_owned(),
            ..ContainerStatus::default()
        };
        pod.status = Some(api::PodStatus {
            phase: PodPhase::Pending as i32,
            containers: spec.containers.iter().map(waiting).collect(),
            init_containers: spec.init_containers.iter().map(waiting).collect(),
            ..api::PodStatus::default()
        });
        self.stamp(&mut pod);
        self.pods.put(pod.clone());
        Ok(pod)
    }

    /// Asks for the deletion of a pod. The time that it still has, or `None` if there is none of it.
    pub(crate) fn delete_pod(
        &mut self,
        key: &Key,
        wanted: &str,
        grace: Option<i64>,
    ) -> Result<Option<Duration>> {
        let Some(mut pod) = self.pods.get(key).cloned() else {
            return Ok(None);
        };
        if !wanted.is_empty() && uid(&pod) != wanted {
            let name = crate::store::named(key);
            let message = format!("the pod {name:?} has another uid");
            let error = Error::new(Reason::RevisionMismatch, message);
            return Err(error.with_resource("pod", name));
        }
        let own = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.termination_grace_period);
        let own = own.map_or(defaults::GRACE, |grace| grace.seconds);
        let seconds = grace.unwrap_or(own);
        let metadata = pod.metadata.get_or_insert_default();
        if metadata.delete_time.is_none() {
            metadata.delete_time = Some(now());
            self.touch(&mut pod);
            self.pods.put(pod);
        }
        if seconds == 0 {
            self.finish_deletion(key);
        }
        Ok(Some(Duration::from_secs(
            u64::try_from(seconds).unwrap_or_default(),
        )))
    }
}

impl State {
    /// Deletes a pod; its containers stop by themselves within a step.
    pub(crate) fn delete_pod(
        self: &Arc<Self>,
        key: &Key,
        wanted: &str,
        grace: Option<i64>,
    ) -> Result<bool> {
        let left = self.change(|store| store.delete_pod(key, wanted, grace))?;
        let Some(left) = left else { return Ok(false) };
        let step = left.min(*self.step.lock());
        let (state, key) = (Arc::downgrade(self), key.clone());
        self.later(async move {
            tokio::time::sleep(step).await;
            if let Some(state) = state.upgrade() {
                state.change(|store| store.finish_deletion(&key));
            }
        });
        Ok(true)
    }
}

#[async_trait]
impl Pods for Shared {
    async fn create(&self, pod: api::Pod) -> Result<api::Pod> {
        self.call("pods.create", async {
            let pod = self.change(|store| store.create_pod(pod))?;
            self.begin(&pod);
            Ok(pod)
        })
        .await
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<api::Pod> {
        let key = (namespace.to_owned(), name.to_owned());
        self.call("pods.get", async {
            self.store.lock().pods.find(&key).cloned()
        })
        .await
    }

    async fn list(&self, request: api::ListPodsRequest) -> Result<api::ListPodsResponse> {
        self.call("pods.list", async {
            let mut store = self.store.lock();
            let revision = store.tick();
            let matches = |pod: &api::Pod| {
                let metadata = pod.metadata.clone().unwrap_or_default();
                let node = pod.spec.as_ref().map(|spec| spec.node.clone());
                (request.namespace.is_empty() || metadata.namespace == request.namespace)
                    && (request.node.is_empty() || node.as_ref() == Some(&request.node))
                    && selects(request.selector.as_ref(), &metadata.labels)
            };
            let place = (request.page_size, &*request.page_token);
            let (pods, next_page_token) = store.pods.page(place, revision, matches)?;
            Ok(api::ListPodsResponse {
                pods,
                next_page_token,
            })
        })
        .await
    }

    async fn delete(&self, request: api::DeletePodRequest) -> Result<bool> {
        self.call("pods.delete", async {
            let key = (request.namespace.clone(), request.name.clone());
            let before = self.store.lock().pods.get(&key).map(uid);
            let grace = request.grace_period.map(|grace| grace.seconds);
            let mut changed = self.changed.subscribe();
            let existed = self.delete_pod(&key, &request.uid, grace)?;
            while request.wait && existed && self.store.lock().pods.get(&key).map(uid) == before {
                if changed.changed().await.is_err() {
                    break;
                }
            }
            Ok(existed)
        })
        .await
    }

    async fn wait(&self, request: api::WaitPodsRequest) -> Result<Answers<api::WaitProgress>> {
        self.call("pods.wait", async { wait::pods(self.0.clone(), request) })
            .await
    }

    async fn exec(&self, start: api::ExecStart, input: Input) -> Result<Answers<ProcessOutput>> {
        self.call("pods.exec", async { exec::exec(&self.0, &start, input) })
            .await
    }

    async fn read_file(
        &self,
        request: api::ReadFileRequest,
    ) -> Result<Answers<api::ReadFileResponse>> {
        self.call("pods.read_file", async {
            let place = (&*request.namespace, &*request.pod, &*request.container);
            let (pod, container) = running(self, place)?;
            let data = self
                .store
                .lock()
                .read(&pod, &container.name, &request.path)?;
            let size = u64::try_from(data.len()).ok();
            if data.is_empty() {
                let only = api::ReadFileResponse {
                    chunk: None,
                    total_size: size,
                };
                return Ok(stream::iter([Ok(only)]).boxed());
            }
            let pieces: Vec<_> = data
                .chunks(PIECE)
                .enumerate()
                .map(|(at, piece)| {
                    Ok(api::ReadFileResponse {
                        chunk: Some(chunk(piece.to_vec())),
                        total_size: size.filter(|_| at == 0),
                    })
                })
                .collect();
            Ok(stream::iter(pieces).boxed())
        })
        .await
    }

    async fn logs(&self, request: api::StreamLogsRequest) -> Result<Answers<Chunk>> {
        self.call("pods.logs", async { logs(&self.0, request).await })
            .await
    }
}

fn chunk(data: Vec<u8>) -> Chunk {
    Chunk {
        content: Some(Content::Data(data)),
    }
}

/// How far a log has been read: the run, and the line in it.
#[derive(Clone, Copy)]
struct Position {
    run: u32,
    line: usize,
}

async fn logs(state: &Arc<State>, request: api::StreamLogsRequest) -> Result<Answers<Chunk>> {
    let key = (request.namespace.clone(), request.pod.clone());
    let mut changed = state.changed.subscribe();
    let (uid, container) = loop {
        let (uid, container, runs) = {
            let store = state.store.lock();
            let pod = store.pods.find(&key)?;
            let container = container_of(pod, &request.container)?;
            let logs = store.logs.get(&(uid(pod), container.name.clone()));
            (uid(pod), container.name, logs.map_or(0, |logs| logs.runs))
        };
        let started = runs > u32::from(request.previous);
        if started {
            break (uid, container);
        }
        if request.previous || !request.follow || changed.changed().await.is_err() {
            return Err(not_running(&container));
        }
    };
    let begin = since(request.since.as_ref());
    let (first, position) = {
        let store = state.store.lock();
        let logs = store
            .logs
            .get(&(uid.clone(), container.clone()))
            .cloned()
            .unwrap_or_default();
        let lines = if request.previous {
            logs.previous.clone().unwrap_or_default()
        } else {
            logs.current.clone()
        };
        let position = Position {
            run: logs.runs,
            line: logs.current.len(),
        };
        (tail(lines, begin, request.tail_lines), position)
    };
    let stamped = request.timestamps;
    let first = stream::iter(pieces(first, stamped));
    if !request.follow || request.previous {
        return Ok(first.boxed());
    }
    let place = (state.clone(), key, uid, container);
    let begin = (place, position, changed);
    let rest = stream::unfold(
        begin,
        move |((state, key, uid, container), mut position, mut changed)| async move {
            loop {
                let (lines, ended) = more(&state, &key, (&uid, &container), &mut position);
                if !lines.is_empty() {
                    let pieces = stream::iter(pieces(lines, stamped));
                    return Some((pieces, ((state, key, uid, container), position, changed)));
                }
                if ended || changed.changed().await.is_err() {
                    return None;
                }
            }
        },
    );
    Ok(first.chain(rest.flatten()).boxed())
}

/// New lines, and whether none can come any more: the container has ended, and is not started again.
fn more(
    state: &State,
    key: &Key,
    (owner, container): (&str, &str),
    position: &mut Position,
) -> (Vec<Line>, bool) {
    let store = state.store.lock();
    let logs = store.logs.get(&(owner.to_owned(), container.to_owned()));
    let Some(logs) = logs else {
        return (Vec::new(), true);
    };
    let mut lines = Vec::new();
    if logs.runs != position.run {
        // The rest of the run before this one.
        let before = logs
            .previous
            .iter()
            .filter(|_| logs.runs == position.run + 1);
        lines.extend(before.flat_map(|lines| lines.iter().skip(position.line).cloned()));
        *position = Position {
            run: logs.runs,
            line: 0,
        };
    }
    let current = logs.current.get(position.line..).unwrap_or_default();
    position.line += current.len();
    lines.extend_from_slice(current);
    let pod = store.pods.get(key).filter(|pod| uid(*pod) == owner);
    (lines, pod.is_none_or(|pod| is_over(pod, container)))
}

/// Whether a container of a pod neither runs nor will again.
fn is_over(pod: &api::Pod, container: &str) -> bool {
    let policy = pod.spec.as_ref().map(api::PodSpec::restart_policy);
    let Some(status) = &pod.status else {
        return false;
    };
    let mut all = status.containers.iter().chain(&status.init_containers);
    let Some(own) = all.find(|one| one.name == container) else {
        return true;
    };
    let runs = own.state() == ContainerState::Running;
    let leaves = pod
        .metadata
        .as_ref()
        .is_some_and(|it| it.delete_time.is_some());
    let over = matches!(status.phase(), PodPhase::Succeeded | PodPhase::Failed);
    let stays = own.state() == ContainerState::Terminated
        && match policy {
            Some(RestartPolicy::Never) => true,
            Some(RestartPolicy::OnFailure) => own.exit_code.unwrap_or_default() == 0,
            _ => false,
        };
    over || stays || (leaves && !runs)
}

fn since(since: Option<&Since>) -> Option<SystemTime> {
    match since? {
        // Whole seconds, as Kubernetes has it.
        Since::SinceTime(time) => {
            let whole = prost_types::Timestamp { nanos: 0, ..*time };
            SystemTime::try_from(whole).ok()
        }
        Since::SinceDuration(span) => {
            SystemTime::now().checked_sub(Duration::try_from(*span).ok()?)
        }
    }
}

fn tail(mut lines: Vec<Line>, begin: Option<SystemTime>, most: Option<u32>) -> Vec<Line> {
    lines.retain(|(time, _)| begin.is_none_or(|begin| *time >= begin));
    let most = most.map_or(usize::MAX, |most| {
        usize::try_from(most).unwrap_or(usize::MAX)
    });
    let from = lines.len().saturating_sub(most);
    lines.split_off(from)
}

fn pieces(lines: Vec<Line>, stamped: bool) -> Vec<Result<Chunk>> {
    let mut text = Vec::new();
    for (time, line) in lines {
        if stamped {
            let time = prost_types::Timestamp::from(time);
            text.extend(format!("{time} ").into_bytes());
        }
        text.extend(line);
    }
    text.chunks(PIECE)
        .map(|piece| Ok(chunk(piece.to_vec())))
        .collect()
}
