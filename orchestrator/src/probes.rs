//! Network probes of nodes: gRPC health, HTTP, TCP. One schedule for all of them, no task or timer a node.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use drover_core::{
    Millis, NodeState, Phase, Sym,
    spec::{Health, Port, Probe},
};
use drover_proto::agent::v1::{GetInfoRequest, agent_service_client::AgentServiceClient};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, Semaphore},
    time::timeout,
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use uuid::Uuid;

use crate::{clock, cluster::Inner, queue::Urgency, shared::Shared};

/// Probes a second, over all nodes. Beyond it intervals stretch.
const BUDGET: u64 = 1_000;
/// Probes under way at once.
const CONCURRENCY: usize = 256;
/// First wait between probes of a node that has not answered yet; it doubles up to the interval.
const EAGER: Millis = 50;

/// The schedule.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    schedule: Mutex<Schedule>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Schedule {
    due: BTreeSet<(Millis, Uuid, u64)>,
    tracked: HashMap<(Uuid, u64), u32>,
}

/// What to ask, and where.
struct Target {
    health: Health,
    address: Option<String>,
    id: String,
}

impl Probes {
    /// A node runs: it is probed from now on, if its group is.
    pub(crate) fn track(&self, shared: &Shared, cluster: Uuid, inner: &mut Inner, group: &Sym, slot: u64) {
        let at = inner.spec.groups.iter().position(|g| g.path == *group);
        let Some(health) = at.and_then(|at| health(shared, inner, at)) else { return };
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

    /// The spec of a cluster changed: what runs is probed as it says now.
    pub(crate) fn track_all(&self, shared: &Shared, cluster: Uuid, inner: &mut Inner) {
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
        schedule.due.insert((at, cluster, slot));
    }

    fn drop(&self, cluster: Uuid, slot: u64) {
        self.schedule.lock().tracked.remove(&(cluster, slot));
    }
}

/// The health policy of a group: its own, its template's, or the defaults.
fn health(shared: &Shared, inner: &mut Inner, group: usize) -> Option<Health> {
    if let Some(health) = inner.spec.groups.get(group)?.health.clone() {
        return Some(health);
    }
    inner.health_defaults(&shared.handshakes()).get(group).cloned().flatten()
}

/// Probes as the schedule says, until the orchestrator stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let gap = Duration::from_micros(1_000_000 / BUDGET);
    loop {
        match shared.probes.next(shared.now()) {
            Ok((cluster, slot, tries)) => {
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
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

fn target(shared: &Shared, cluster: Uuid, slot: u64) -> Option<Target> {
    let cluster = shared.cluster(cluster)?;
    let mut inner = cluster.inner.lock();
    let node = inner.state.node(slot)?;
    if node.removal.is_some() || node.state == NodeState::Failed || node.seen.gone {
        return None;
    }
    let path = node.group.clone();
    let group = inner.spec.groups.iter().position(|g| g.path == path)?;
    let health = health(shared, &mut inner, group)?;
    let node = inner.state.node(slot)?;
    let port = match &health.probe {
        Probe::Phase => return None,
        Probe::Grpc { port, .. } | Probe::Http { port, .. } | Probe::Tcp { port } => port.clone(),
    };
    let agent = node.seen.agent_address.split_once("://").map(|(_, address)| address);
    let address = match port {
        None => agent.map(str::to_owned),
        Some(Port::Name(name)) => {
            node.seen.endpoints.iter().find(|(own, _)| **own == *name).map(|(_, address)| address.to_string())
        }
        Some(Port::Number(number)) => {
            let known = agent.or_else(|| node.seen.endpoints.first().map(|(_, address)| &**address));
            known.and_then(|address| address.rsplit_once(':')).map(|(host, _)| format!("{host}:{number}"))
        }
    };
    Some(Target { health, address, id: node.id(cluster.uid) })
}

async fn probe(shared: &Arc<Shared>, uid: Uuid, slot: u64, tries: u32) {
    let Some(target) = target(shared, uid, slot) else {
        shared.probes.drop(uid, slot);
        return;
    };
    let outcome = match &target.address {
        Some(address) => ask(&target.health, address, &target.id).await,
        None => Err("it shows no address to probe".to_owned()),
    };
    let Some(cluster) = shared.cluster(uid) else { return };
    let mut inner = cluster.inner.lock();
    let Some(node) = inner.state.node_mut(slot) else {
        shared.probes.drop(uid, slot);
        return;
    };
    let probe = &mut node.probe;
    let (good, bad) = (u32::from(probe.good), u32::from(probe.bad));
    let health = &target.health;
    let crossed = match outcome {
        Ok(()) => {
            probe.good = probe.good.saturating_add(1);
            probe.bad = 0;
            probe.answered = true;
            probe.message = Box::default();
            good < health.success_threshold && good + 1 >= health.success_threshold
        }
        Err(why) => {
            probe.bad = probe.bad.saturating_add(1);
            probe.good = 0;
            let count = format!("{why}, {} of {}", probe.bad, health.failure_threshold);
            probe.message = count.into();
            bad < health.failure_threshold && bad + 1 >= health.failure_threshold
        }
    };
    let answered = probe.answered;
    let settled = probe.good > 0;
    drop(inner);
    if crossed {
        shared.queue.push(uid, Urgency::Urgent);
    }
    let interval = clock::millis(health.interval);
    let wait = if answered && settled { interval } else { (EAGER << tries.min(16)).min(interval) };
    // Spread, so that nodes that began together are not probed together for ever.
    let wait = if settled { wait - fastrand::u64(0..=wait / 10) } else { wait };
    shared.probes.again(uid, slot, shared.now() + wait, if settled { 0 } else { tries + 1 });
}

/// Asks a node. The error says why it is not well.
async fn ask(health: &Health, address: &str, id: &str) -> Result<(), String> {
    let asked = async {
        match &health.probe {
            Probe::Phase => Ok(()),
            Probe::Tcp { .. } => {
                TcpStream::connect(address).await.map(drop).map_err(|e| format!("tcp {address}: {}", plain(&e)))
            }
            Probe::Http { path, .. } => http(address, path).await.map_err(|e| format!("http {address}{path}: {e}")),
            Probe::Grpc { service, .. } => {
                grpc(address, service, id).await.map_err(|e| format!("grpc {address}: {e}"))
            }
        }
    };
    timeout(health.timeout, asked)
        .await
        .unwrap_or_else(|_| Err(format!("{address}: no answer within {:?}", health.timeout)))
}

fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}

async fn http(address: &str, path: &str) -> Result<(), String> {
    /// A status line is all that is read.
    const STATUS_LINE: usize = 64;
    let mut stream = TcpStream::connect(address).await.map_err(|e| plain(&e))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|e| plain(&e))?;
    let mut line = Vec::with_capacity(STATUS_LINE);
    while line.len() < 12 {
        if stream.read_buf(&mut line).await.map_err(|e| plain(&e))? == 0 {
            return Err("it closed the connection without an answer".to_owned());
        }
    }
    let text = String::from_utf8_lossy(&line);
    let code = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse::<u16>().ok());
    match code {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!("status {code}")),
        None => Err("it does not speak HTTP".to_owned()),
    }
}

async fn grpc(address: &str, service: &str, id: &str) -> Result<(), String> {
    let target = format!("http://{address}").parse().map_err(|e: drover_core::Error| e.message().to_owned())?;
    let channel = drover_client::connect(&target);
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = HealthClient::new(channel.clone()).check(request).await.map_err(|status| {
        if drover_client::is_unreachable(&drover_client::to_error(&status)) {
            "cannot be reached".to_owned()
        } else {
            format!("{:?}: {}", status.code(), status.message())
        }
    })?;
    let status = answer.into_inner().status();
    if status != ServingStatus::Serving {
        return Err(format!("{status:?}"));
    }
    // Another node may have taken over the address: its good health says nothing of this one.
    match AgentServiceClient::new(channel).get_info(GetInfoRequest {}).await {
        Ok(info) if info.get_ref().node_id == id || info.get_ref().node_id.is_empty() => Ok(()),
        Ok(info) => Err(format!("it is another node ({})", info.get_ref().node_id)),
        // It has no agent of ours.
        Err(status) if status.code() == tonic::Code::Unimplemented => Ok(()),
        Err(status) => Err(format!("{:?}: {}", status.code(), status.message())),
    }
}

/// Whether an agent at this address proves that the node of this id lives.
pub(crate) async fn agent_says(address: &str, id: &str, within: Duration) -> bool {
    let Some((scheme, address)) = address.split_once("://") else { return false };
    if scheme != "grpc" {
        return false;
    }
    let Ok(target) = format!("http://{address}").parse() else { return false };
    let mut client = AgentServiceClient::new(drover_client::connect(&target));
    matches!(timeout(within, client.get_info(GetInfoRequest {})).await, Ok(Ok(info)) if info.get_ref().node_id == id)
}
