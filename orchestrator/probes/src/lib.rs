//! Probes of nodes: gRPC health, HTTP, TCP, and commands inside them. A single schedule for all nodes, without a task
//! or timer per node.

mod exec;
mod network;
mod reach;
mod second_way;
mod tls;

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use drover_cluster::{Cluster, ClusterState, Clusters, ProbeOutcome};
use drover_core::{
    Millis, Node, NodeState, Phase, Sym, back_off,
    spec::{Health, Port, Probe},
};
use drover_platforms::Platforms;
use drover_proto::platform::v1 as wire;
use drover_secrets::Vault;
use drover_store::Clock;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use second_way::Way;

pub use network::agent_says;
pub use reach::{Gate, ProbeSettings, Reach};
pub use tls::read as read_tls;

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

/// Delay between probes of a node that was silent: each takes two seconds itself.
const SILENT: Millis = 500;

/// The probes of all nodes.
#[derive(Debug)]
pub struct Probes {
    clusters: Arc<Clusters>,
    platforms: Arc<Platforms>,
    vault: Arc<Vault>,
    clock: Arc<Clock>,
    reach: Reach,
    schedule: Mutex<Schedule>,
    changed: Notify,
    tls: tls::Kept,
}

#[derive(Debug, Default)]
struct Schedule {
    due: BTreeSet<(Millis, Uuid, u64)>,
    tracked: HashMap<(Uuid, u64), Tracked>,
}

/// A node that is probed.
#[derive(Clone, Copy, Debug, Default)]
struct Tracked {
    /// Probes in a row that have not succeeded.
    tries: u32,
    /// The way that commands do not take.
    way: Way,
}

/// The probe to run, and where.
struct Target {
    cluster: Uuid,
    group: Sym,
    health: Health,
    /// The platform reports the node as not ready yet, so that no probe is needed.
    early: bool,
    /// A template suggests the probe, and the node may be older than the suggestion.
    unjudged: bool,
    /// Where it is probed, or for a command, where else it may be reached.
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
    /// The probe could not be carried out, and the node does not answer otherwise.
    Silent(String),
}

impl Failed {
    /// Prefixes the message with the probe.
    fn of(self, asked: &str) -> Self {
        match self {
            Self::Node(why) => Self::Node(format!("{asked}: {why}")),
            Self::Way(why) => Self::Way(format!("{asked}: {why}")),
            Self::Silent(why) => Self::Silent(format!("{asked}: {why}")),
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
    /// No node is probed yet.
    #[must_use]
    pub fn new(
        clusters: Arc<Clusters>,
        platforms: Arc<Platforms>,
        vault: Arc<Vault>,
        clock: Arc<Clock>,
        reach: Reach,
    ) -> Self {
        Self {
            clusters,
            platforms,
            vault,
            clock,
            reach,
            schedule: Mutex::default(),
            changed: Notify::new(),
            tls: tls::Kept::default(),
        }
    }

    /// The restrictions for probes of a platform's nodes.
    pub fn gate(&self, platform: &str) -> Gate<'_> {
        let registered = self.platforms.get(platform);
        Gate {
            reach: &self.reach,
            local: registered.is_some_and(|it| it.platform.is_local()),
        }
    }

    fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Starts probing a running node, if its group has a probe.
    pub fn track(&self, inner: &mut ClusterState, group: &Sym, slot: u64) {
        let cluster = inner.uid();
        let at = inner.spec().groups.iter().position(|g| g.path == *group);
        let Some(health) = at.and_then(|at| self.health(inner, at)) else {
            return;
        };
        if health.probe == Probe::Phase {
            return;
        }
        let mut schedule = self.schedule.lock();
        let tracked = schedule.tracked.entry((cluster, slot));
        let is_new = matches!(tracked, Entry::Vacant(_));
        tracked.or_default().tries = 0;
        if is_new {
            schedule.due.insert((self.now(), cluster, slot));
            drop(schedule);
            self.changed.notify_one();
        }
    }

    /// Applies a changed spec to the probes of all running nodes.
    pub fn track_all(&self, inner: &mut ClusterState) {
        let running: Vec<(Sym, u64)> = inner
            .state()
            .nodes
            .iter()
            .filter(|node| node.seen.phase == Phase::Running)
            .map(|node| (node.group.clone(), node.slot))
            .collect();
        for (group, slot) in running {
            self.track(inner, &group, slot);
        }
    }

    fn next(&self, now: Millis) -> Result<(Uuid, u64, Tracked), Option<Millis>> {
        let mut schedule = self.schedule.lock();
        match schedule.due.first().copied() {
            Some((at, cluster, slot)) if at <= now => {
                schedule.due.pop_first();
                let tracked = schedule.tracked.get(&(cluster, slot)).copied();
                Ok((cluster, slot, tracked.unwrap_or_default()))
            }
            Some((at, ..)) => Err(Some(at)),
            None => Err(None),
        }
    }

    fn again(&self, cluster: Uuid, slot: u64, at: Millis, tracked: Tracked) {
        let mut schedule = self.schedule.lock();
        schedule.tracked.insert((cluster, slot), tracked);
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

impl Probes {
    /// The health policy of a group: its own, that of its template, or the default.
    fn health(&self, inner: &mut ClusterState, group: usize) -> Option<Health> {
        if let Some(health) = inner.spec().groups.get(group)?.health.as_deref() {
            return Some(health.clone());
        }
        let handshakes = self.platforms.handshakes(&inner.spec().groups);
        let suggestions = inner.suggestions(&handshakes);
        let defaults = suggestions.health.clone();
        inner.follow_suggestions(suggestions);
        self.platforms.calmed(inner.take_calmed());
        defaults.get(group).cloned().flatten()
    }

    /// Runs probes as scheduled, until the orchestrator stops.
    ///
    /// Probes in progress are aborted at the end; `tasks` has them until they are gone.
    /// `crossed` is called with each cluster that is to be planned because of a result.
    pub async fn run(
        self: Arc<Self>,
        stop: CancellationToken,
        tasks: TaskTracker,
        crossed: impl Fn(Uuid) + Clone + Send + 'static,
    ) {
        let mut running = JoinSet::new();
        let permits = Arc::new(Semaphore::new(CONCURRENCY));
        let gap = Duration::from_micros(1_000_000 / BUDGET);
        loop {
            match self.next(self.now()) {
                Ok((cluster, slot, tracked)) => {
                    let Ok(permit) = permits.clone().acquire_owned().await else {
                        return;
                    };
                    while running.try_join_next().is_some() {}
                    let (probes, crossed) = (self.clone(), crossed.clone());
                    running.spawn(tasks.track_future(async move {
                        if probes.probe(cluster, slot, tracked).await {
                            crossed(cluster);
                        }
                        drop(permit);
                    }));
                    if self.schedule.lock().due.len() > CONCURRENCY {
                        tokio::time::sleep(gap).await;
                    }
                }
                Err(next) => {
                    let due = async {
                        match next {
                            Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = self.changed.notified() => {}
                        () = due => {}
                    }
                }
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }

    /// The next probe of a node. `None` if it has none; it is then no longer probed until it is tracked again.
    fn target(&self, uid: Uuid, slot: u64) -> Option<Target> {
        let Some(cluster) = self.clusters.get(uid) else {
            self.drop(uid, slot);
            return None;
        };
        let mut inner = cluster.lock();
        let target = self.target_of(&cluster, &mut inner, slot);
        if target.is_none() {
            // Under the same lock as tracking; otherwise a node that is tracked again at this moment would be dropped.
            self.drop(uid, slot);
        }
        target
    }

    fn target_of(&self, cluster: &Cluster, inner: &mut ClusterState, slot: u64) -> Option<Target> {
        let node = inner.state().node(slot)?;
        if node.removal.is_some() || node.state == NodeState::Failed || node.seen.gone {
            return None;
        }
        let path = node.group.clone();
        let group = inner.spec().groups.iter().position(|g| g.path == path)?;
        let health = self.health(inner, group)?;
        let node = inner.state().node(slot)?;
        if health.probe == Probe::Phase {
            return None;
        }
        let suggested = inner.spec().groups.get(group)?.health.is_none();
        let unjudged = suggested && !health.probe.judges(node);
        let inside = drover_cluster::request::target(cluster, node);
        let address = match health.probe {
            Probe::Exec { .. } => node.seen.endpoints.first().map(|(_, at)| at.to_string()),
            _ => health.probe.address(&node.seen).map(Cow::into_owned),
        };
        let early = is_early(node);
        Some(Target {
            cluster: cluster.uid(),
            group: path,
            health,
            early,
            unjudged,
            address,
            id: node.id(cluster.uid()),
            platform: node.platform.clone(),
            inside,
        })
    }

    /// Asks a node. Returns what it lacks if it is healthy, a bit for each impairment of the probe.
    async fn outcome(&self, target: &Target, way: &mut Way) -> Result<u16, Failed> {
        let health = &target.health;
        let asked = match (&health.probe, &target.address) {
            (
                Probe::Exec {
                    command,
                    impairments,
                },
                address,
            ) => {
                let asked = self.exec(target, command, impairments, health.timeout);
                let gate = self.gate(&target.platform);
                match address {
                    Some(at) => {
                        let asked = if way.is_known() {
                            let answers = || second_way::answers(at, gate);
                            second_way::or_silent(asked, at, answers).await
                        } else {
                            asked.await
                        };
                        if asked.is_ok() {
                            *way = way.learn(at, gate).await;
                        }
                        asked
                    }
                    None => asked.await,
                }
            }
            (_, None) if target.unjudged => return Err(Failed::Way(no_address(health))),
            (_, None) => return Err(Failed::Node(no_address(health))),
            (probe, Some(address)) => {
                let secure = match probe.tls() {
                    Some((_, tls)) => {
                        let kept = &self.tls;
                        let secure = kept.get(&self.vault, tls);
                        secure.await.map(Some)
                    }
                    None => Ok(None),
                };
                match secure {
                    Ok(secure) => {
                        let gate = self.gate(&target.platform);
                        let asked =
                            network::ask(health, address, gate, &target.id, secure.as_ref());
                        asked.await.map(|()| 0)
                    }
                    Err(failed) => Err(failed),
                }
            }
        };
        let result = if asked.is_ok() { "ok" } else { "failed" };
        metrics::counter!("drover_probes_total", "result" => result).increment(1);
        asked
    }

    /// Redacts from a failure everything that the node's group was given, which the node and its platform may repeat.
    /// Failures of the other kinds of probes only contain our own words.
    async fn hidden(&self, target: &Target, failed: Failed) -> Failed {
        let tells = matches!(target.health.probe, Probe::Exec { .. } | Probe::Grpc { .. });
        let Some(cluster) = self.clusters.get(target.cluster).filter(|_| tells) else {
            return failed;
        };
        let hidden = self.vault.hidden(&cluster, &target.group).await;
        let clean = |why: String| hidden.text(&why).into_owned();
        match failed {
            Failed::Node(why) => Failed::Node(clean(why)),
            Failed::Way(why) => Failed::Way(clean(why)),
            Failed::Silent(why) => Failed::Silent(clean(why)),
        }
    }

    /// Probes a node once. Returns whether its cluster is to be planned.
    async fn probe(&self, uid: Uuid, slot: u64, tracked: Tracked) -> bool {
        let Tracked { tries, mut way } = tracked;
        let Some(target) = self.target(uid, slot) else {
            return false;
        };
        if target.early {
            self.again(uid, slot, self.now() + EAGER, tracked);
            return false;
        }
        let began = tokio::time::Instant::now();
        let outcome = match self.outcome(&target, &mut way).await {
            Err(failed) => Err(self.hidden(&target, failed).await),
            Ok(impaired) => Ok(impaired),
        };
        metrics::histogram!("drover_probe_duration_seconds").record(began.elapsed().as_secs_f64());
        let Some(cluster) = self.clusters.get(uid) else {
            self.drop(uid, slot);
            return false;
        };
        // If the platform is unreachable, its nodes probably are as well, which says nothing about them.
        let visible = self
            .platforms
            .get(&target.platform)
            .is_some_and(|registered| registered.platform.is_visible(self.now()));
        let health = &target.health;
        let is_silent = matches!(outcome, Err(Failed::Silent(_)));
        let outcome = match outcome {
            Ok(impaired) => ProbeOutcome::Healthy { impaired },
            Err(Failed::Node(why) | Failed::Silent(why)) if visible => ProbeOutcome::Unhealthy(why),
            Err(Failed::Node(why) | Failed::Way(why) | Failed::Silent(why)) => {
                ProbeOutcome::Unknown(why)
            }
        };
        let mut inner = cluster.lock();
        let Some(probed) = inner.probed(slot, outcome, health) else {
            self.drop(uid, slot);
            return false;
        };
        if probed.troubled != 0
            && let Some(registered) = self.platforms.get(&probed.platform)
        {
            // Before the cluster may act on it.
            registered.platform.count(0, probed.troubled, self.now());
        }
        drop(inner);
        let interval = drover_core::millis(health.interval);
        let eager = !probed.answered && tries < EAGER_TRIES;
        let wait = if eager {
            let (first, most) = match health.probe {
                Probe::Exec { .. } => (EAGER_COMMAND, EAGER_COMMAND_MOST),
                _ => (EAGER, EAGER_MOST),
            };
            back_off(first, most, tries).min(interval)
        } else if is_silent {
            SILENT.min(interval)
        } else {
            interval
        };
        // Jittered, so that nodes that started together do not stay in lockstep.
        let wait = if probed.healthy {
            wait - fastrand::u64(0..=wait / 10)
        } else {
            wait
        };
        let tries = if probed.healthy { 0 } else { tries + 1 };
        self.again(uid, slot, self.now() + wait, Tracked { tries, way });
        probed.crossed
    }
}

/// Whether the platform reports the node as still starting, so that it is not probed yet. A node that was ready before
/// may hang, even if this process has not seen it ready.
fn is_early(node: &Node) -> bool {
    let ran = matches!(node.state, NodeState::Ready | NodeState::Unhealthy);
    !ran && node.seen.ready == Some(false) && !node.probe.answered
}

/// Explains why a node cannot be probed.
fn no_address(health: &Health) -> String {
    match health.probe.port() {
        Some(Port::Name(name)) => format!("it shows no port {name:?} to probe"),
        _ => "it shows no address to probe".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_starts_is_not_asked_before_its_platform_calls_it_ready() {
        let node = |state, ready| {
            let mut node = drover_cluster::fixture::node(1, state);
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
