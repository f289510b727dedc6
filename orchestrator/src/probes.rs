//! Probes of nodes: gRPC health, HTTP, TCP, and commands inside them. A single schedule for all nodes, without a task
//! or timer per node.

mod exec;
pub(crate) mod network;
pub(crate) mod reach;
pub(crate) mod tls;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use drover_core::{
    Millis, Node, NodeState, Phase, Sym, back_off,
    spec::{Health, Port, Probe},
};
use drover_proto::platform::v1 as wire;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use uuid::Uuid;

use crate::{
    clock,
    cluster::{Cluster, ClusterState, ProbeOutcome},
    queue::Urgency,
    secrets,
    shared::Shared,
};

/// Maximum probes per second over all nodes. Beyond it, the intervals stretch.
const BUDGET: u64 = 1_000;
/// Maximum concurrent probes.
const CONCURRENCY: usize = 256;
/// Initial delay between probes of a node that has not responded yet; doubles with each attempt.
const EAGER: Millis = 25;
/// Maximum delay between probes of a node that has just started, since its readiness is being waited for.
const EAGER_MOST: Millis = 200;
/// `EAGER` for commands, which cost a process on the node and more than one platform call.
const EAGER_COMMAND: Millis = 250;
/// `EAGER_MOST` for commands.
const EAGER_COMMAND_MOST: Millis = 1_000;
/// Number of eager probes before a node that has not responded is probed at its regular interval.
const EAGER_TRIES: u32 = 50;

/// The probe schedule.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    schedule: Mutex<Schedule>,
    changed: Notify,
    tls: tls::Kept,
}

#[derive(Debug, Default)]
struct Schedule {
    due: BTreeSet<(Millis, Uuid, u64)>,
    tracked: HashMap<(Uuid, u64), u32>,
}

/// The probe to run, and where.
struct Target {
    cluster: Uuid,
    group: Sym,
    health: Health,
    /// The platform reports the node as not ready yet, so that no probe is needed.
    early: bool,
    address: Option<String>,
    id: String,
    platform: Sym,
    /// The node as its platform identifies it, for commands. `None` if the platform has not reported an id yet.
    inside: Option<wire::NodeTarget>,
}

#[derive(Debug, PartialEq, Eq)]
enum Failed {
    /// The node is unhealthy or does not respond.
    Node(String),
    /// The probe could not be carried out, which says nothing about the node.
    Way(String),
}

impl Failed {
    /// Prefixes the message with the probe.
    fn of(self, asked: &str) -> Self {
        match self {
            Self::Node(why) => Self::Node(format!("{asked}: {why}")),
            Self::Way(why) => Self::Way(format!("{asked}: {why}")),
        }
    }
}

fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}

impl Probes {
    /// Starts probing a running node, if its group has a probe.
    pub(crate) fn track(
        &self,
        shared: &Shared,
        cluster: Uuid,
        inner: &mut ClusterState,
        group: &Sym,
        slot: u64,
    ) {
        let at = inner.spec.groups.iter().position(|g| g.path == *group);
        let Some(health) = at.and_then(|at| health(shared, inner, at)) else {
            return;
        };
        if health.probe == Probe::Phase {
            return;
        }
        let mut schedule = self.schedule.lock();
        if schedule.tracked.insert((cluster, slot), 0).is_none() {
            schedule.due.insert((shared.now(), cluster, slot));
            drop(schedule);
            self.changed.notify_one();
        }
    }

    /// Applies a changed spec to the probes of all running nodes.
    pub(crate) fn track_all(&self, shared: &Shared, cluster: Uuid, inner: &mut ClusterState) {
        let running: Vec<(Sym, u64)> = inner
            .state
            .nodes
            .iter()
            .filter(|node| node.seen.phase == Phase::Running)
            .map(|node| (node.group.clone(), node.slot))
            .collect();
        for (group, slot) in running {
            self.track(shared, cluster, inner, &group, slot);
        }
    }

    fn next(&self, now: Millis) -> Result<(Uuid, u64, u32), Option<Millis>> {
        let mut schedule = self.schedule.lock();
        match schedule.due.first().copied() {
            Some((at, cluster, slot)) if at <= now => {
                schedule.due.pop_first();
                let tries = schedule.tracked.get(&(cluster, slot)).copied().unwrap_or(0);
                Ok((cluster, slot, tries))
            }
            Some((at, ..)) => Err(Some(at)),
            None => Err(None),
        }
    }

    fn again(&self, cluster: Uuid, slot: u64, at: Millis, tries: u32) {
        let mut schedule = self.schedule.lock();
        schedule.tracked.insert((cluster, slot), tries);
        let first = schedule.due.first().is_none_or(|(first, ..)| at < *first);
        schedule.due.insert((at, cluster, slot));
        drop(schedule);
        if first {
            self.changed.notify_one();
        }
    }

    fn drop(&self, cluster: Uuid, slot: u64) {
        self.schedule.lock().tracked.remove(&(cluster, slot));
    }
}

/// The health policy of a group: its own, that of its template, or the default.
fn health(shared: &Shared, inner: &mut ClusterState, group: usize) -> Option<Health> {
    if let Some(health) = inner.spec.groups.get(group)?.health.clone() {
        return Some(health);
    }
    let handshakes = shared.handshakes(&inner.spec.groups);
    let suggestions = inner.suggestions(&handshakes);
    let defaults = suggestions.health.clone();
    inner.follow_suggestions(suggestions);
    crate::node_counts::calmed(shared, inner);
    defaults.get(group).cloned().flatten()
}

/// Runs probes as scheduled, until the orchestrator stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let gap = Duration::from_micros(1_000_000 / BUDGET);
    loop {
        match shared.probes.next(shared.now()) {
            Ok((cluster, slot, tries)) => {
                let Ok(permit) = permits.clone().acquire_owned().await else {
                    return;
                };
                let worker = shared.clone();
                shared.spawn(async move {
                    probe(&worker, cluster, slot, tries).await;
                    drop(permit);
                });
                if shared.probes.schedule.lock().due.len() > CONCURRENCY {
                    tokio::time::sleep(gap).await;
                }
            }
            Err(next) => {
                let due = async {
                    match next {
                        Some(at) => tokio::time::sleep_until(shared.clock.instant(at)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = shared.stop.cancelled() => return,
                    () = shared.probes.changed.notified() => {}
                    () = due => {}
                }
            }
        }
        if shared.stop.is_cancelled() {
            return;
        }
    }
}

/// The next probe of a node. `None` if it has none; it is then no longer probed until it is tracked again.
fn target(shared: &Shared, uid: Uuid, slot: u64) -> Option<Target> {
    let Some(cluster) = shared.cluster(uid) else {
        shared.probes.drop(uid, slot);
        return None;
    };
    let mut inner = cluster.inner.lock();
    let target = target_of(shared, &cluster, &mut inner, slot);
    if target.is_none() {
        // Under the same lock as tracking; otherwise a node that is tracked again at this moment would be dropped.
        shared.probes.drop(uid, slot);
    }
    target
}

fn target_of(
    shared: &Shared,
    cluster: &Cluster,
    inner: &mut ClusterState,
    slot: u64,
) -> Option<Target> {
    let node = inner.state.node(slot)?;
    if node.removal.is_some() || node.state == NodeState::Failed || node.seen.gone {
        return None;
    }
    let path = node.group.clone();
    let group = inner.spec.groups.iter().position(|g| g.path == path)?;
    let health = health(shared, inner, group)?;
    let node = inner.state.node(slot)?;
    let port = match &health.probe {
        Probe::Phase => return None,
        Probe::Exec { .. } => None,
        Probe::Grpc { port, .. } | Probe::Http { port, .. } | Probe::Tcp { port } => port.clone(),
    };
    let inside = crate::executor::hook::target(cluster, node);
    let agent = node
        .seen
        .agent_address
        .split_once("://")
        .map(|(_, address)| address);
    let address = match port {
        None => agent.map(str::to_owned),
        Some(Port::Name(name)) => node
            .seen
            .endpoints
            .iter()
            .find(|(own, _)| **own == *name)
            .map(|(_, address)| address.to_string()),
        Some(Port::Number(number)) => {
            let known =
                agent.or_else(|| node.seen.endpoints.first().map(|(_, address)| &**address));
            known
                .and_then(|address| address.rsplit_once(':'))
                .map(|(host, _)| format!("{host}:{number}"))
        }
    };
    let early = is_early(node);
    Some(Target {
        cluster: cluster.uid,
        group: path,
        health,
        early,
        address,
        id: node.id(cluster.uid),
        platform: node.platform.clone(),
        inside,
    })
}

/// Whether the platform reports the node as still starting, so that it is not probed yet. A node that was ready before
/// may hang, even if this process has not seen it ready.
fn is_early(node: &Node) -> bool {
    let ran = matches!(node.state, NodeState::Ready | NodeState::Unhealthy);
    !ran && node.seen.ready == Some(false) && !node.probe.answered
}

async fn outcome(shared: &Shared, target: &Target) -> Result<(), Failed> {
    let health = &target.health;
    let asked = match (&health.probe, &target.address) {
        (Probe::Exec { command }, _) => exec::ask(shared, target, command, health.timeout).await,
        (_, None) => return Err(Failed::Node(no_address(health))),
        (probe, Some(address)) => {
            let secure = match probe.tls() {
                Some((_, tls)) => {
                    let kept = &shared.probes.tls;
                    let secure = kept.get(&shared.secrets, &shared.store, tls);
                    secure.await.map(Some)
                }
                None => Ok(None),
            };
            match secure {
                Ok(secure) => {
                    let gate = shared.gate(&target.platform);
                    network::ask(health, address, gate, &target.id, secure.as_ref()).await
                }
                Err(failed) => Err(failed),
            }
        }
    };
    let result = if asked.is_ok() { "ok" } else { "failed" };
    metrics::counter!("drover_probes_total", "result" => result).increment(1);
    asked
}

/// Explains why a node cannot be probed.
fn no_address(health: &Health) -> String {
    let port = match &health.probe {
        Probe::Grpc { port, .. } | Probe::Http { port, .. } | Probe::Tcp { port } => port.as_ref(),
        Probe::Phase | Probe::Exec { .. } => None,
    };
    match port {
        Some(Port::Name(name)) => format!("it shows no port {name:?} to probe"),
        _ => "it shows no address to probe".to_owned(),
    }
}

/// Redacts from a failure everything that the node's group was given, which the node and its platform may repeat.
/// Failures of the other kinds of probes only contain our own words.
async fn hidden(shared: &Shared, target: &Target, failed: Failed) -> Failed {
    let tells = matches!(target.health.probe, Probe::Exec { .. } | Probe::Grpc { .. });
    let Some(cluster) = shared.cluster(target.cluster).filter(|_| tells) else {
        return failed;
    };
    let hidden = secrets::hidden(shared, &cluster, &target.group).await;
    let clean = |why: String| hidden.text(&why).into_owned();
    match failed {
        Failed::Node(why) => Failed::Node(clean(why)),
        Failed::Way(why) => Failed::Way(clean(why)),
    }
}

async fn probe(shared: &Arc<Shared>, uid: Uuid, slot: u64, tries: u32) {
    let Some(target) = target(shared, uid, slot) else {
        return;
    };
    if target.early {
        shared.probes.again(uid, slot, shared.now() + EAGER, tries);
        return;
    }
    let began = tokio::time::Instant::now();
    let outcome = match outcome(shared, &target).await {
        Err(failed) => Err(hidden(shared, &target, failed).await),
        Ok(()) => Ok(()),
    };
    metrics::histogram!("drover_probe_duration_seconds").record(began.elapsed().as_secs_f64());
    let Some(cluster) = shared.cluster(uid) else {
        shared.probes.drop(uid, slot);
        return;
    };
    // If the platform is unreachable, its nodes probably are as well, which says nothing about them.
    let visible = shared
        .platform(&target.platform)
        .is_some_and(|registered| registered.platform.is_visible(shared.now()));
    let health = &target.health;
    let outcome = match outcome {
        Ok(()) => ProbeOutcome::Healthy,
        Err(Failed::Node(why)) if visible => ProbeOutcome::Unhealthy(why),
        Err(Failed::Node(why) | Failed::Way(why)) => ProbeOutcome::Unknown(why),
    };
    let mut inner = cluster.inner.lock();
    let Some(probed) = inner.probed(slot, outcome, health) else {
        shared.probes.drop(uid, slot);
        return;
    };
    if probed.troubled != 0
        && let Some(registered) = shared.platform(&probed.platform)
    {
        // Before the cluster may act on it.
        registered.platform.count(0, probed.troubled, shared.now());
    }
    drop(inner);
    if probed.crossed {
        shared.queue.push(uid, Urgency::Urgent);
    }
    let interval = clock::millis(health.interval);
    let eager = !probed.answered && tries < EAGER_TRIES;
    let wait = if eager {
        let (first, most) = match health.probe {
            Probe::Exec { .. } => (EAGER_COMMAND, EAGER_COMMAND_MOST),
            _ => (EAGER, EAGER_MOST),
        };
        back_off(first, most, tries).min(interval)
    } else {
        interval
    };
    // Jittered, so that nodes that started together do not stay in lockstep.
    let wait = if probed.healthy {
        wait - fastrand::u64(0..=wait / 10)
    } else {
        wait
    };
    shared.probes.again(
        uid,
        slot,
        shared.now() + wait,
        if probed.healthy { 0 } else { tries + 1 },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_starts_is_not_asked_before_its_platform_calls_it_ready() {
        let node = |state, ready| {
            let mut node = crate::fixture::node(1, state);
            node.seen.ready = ready;
            node
        };
        assert!(is_early(&node(NodeState::Starting, Some(false))));
        assert!(!is_early(&node(NodeState::Starting, Some(true))));
        assert!(!is_early(&node(NodeState::Starting, None)));
        for ran in [NodeState::Ready, NodeState::Unhealthy] {
            assert!(!is_early(&node(ran, Some(false))), "it may hang");
        }
    }
}
