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
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use uuid::Uuid;

use crate::{clock, cluster::Inner, queue::Urgency, shared::Shared};

/// Probes a second, over all nodes. Beyond it intervals stretch.
const BUDGET: u64 = 1_000;
/// Probes under way at once.
const CONCURRENCY: usize = 256;
/// First wait between probes of a node that has not answered yet; it doubles.
const EAGER: Millis = 25;
/// Longest wait between probes of a node that has just started: somebody waits for it.
const EAGER_MOST: Millis = 200;
/// Probes of a node that has not answered yet after which it is probed at its interval.
const EAGER_TRIES: u32 = 50;

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
    /// The platform itself says that it is not ready yet: no need to ask.
    early: bool,
    address: Option<String>,
    id: String,
    platform: Sym,
}

impl Probes {
    /// A node runs: it is probed from now on, if its group is.
    pub(crate) fn track(
        &self,
        shared: &Shared,
        cluster: Uuid,
        inner: &mut Inner,
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

/// The health policy of a group: its own, its template's, or the defaults.
fn health(shared: &Shared, inner: &mut Inner, group: usize) -> Option<Health> {
    if let Some(health) = inner.spec.groups.get(group)?.health.clone() {
        return Some(health);
    }
    inner
        .health_defaults(&shared.handshakes())
        .get(group)
        .cloned()
        .flatten()
}

/// Probes as the schedule says, until the orchestrator stops.
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
    let early = node.seen.ready == Some(false) && !node.probe.answered;
    Some(Target {
        health,
        early,
        address,
        id: node.id(cluster.uid),
        platform: node.platform.clone(),
    })
}

async fn probe(shared: &Arc<Shared>, uid: Uuid, slot: u64, tries: u32) {
    let Some(target) = target(shared, uid, slot) else {
        shared.probes.drop(uid, slot);
        return;
    };
    if target.early {
        shared.probes.again(uid, slot, shared.now() + EAGER, tries);
        return;
    }
    let outcome = match &target.address {
        Some(address) => {
            let began = tokio::time::Instant::now();
            let outcome = ask(&target.health, address, &target.id).await;
            let result = if outcome.is_ok() { "ok" } else { "failed" };
            metrics::counter!("drover_probes_total", "result" => result).increment(1);
            metrics::histogram!("drover_probe_duration_seconds")
                .record(began.elapsed().as_secs_f64());
            outcome
        }
        None => Err("it shows no address to probe".to_owned()),
    };
    let Some(cluster) = shared.cluster(uid) else {
        return;
    };
    // Whoever cannot see the platform is likely to be cut off from its nodes, too: that says nothing of them.
    let visible = shared
        .platform(&target.platform)
        .is_some_and(|registered| registered.platform.is_visible(shared.now()));
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
        Err(why) if !visible => {
            (probe.good, probe.bad) = (0, 0);
            probe.message = why.into();
            false
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
    let eager = !answered && tries < EAGER_TRIES;
    let wait = if eager {
        (EAGER << tries.min(16)).min(EAGER_MOST).min(interval)
    } else {
        interval
    };
    // Spread, so that nodes that began together are not probed together for ever.
    let wait = if settled {
        wait - fastrand::u64(0..=wait / 10)
    } else {
        wait
    };
    shared.probes.again(
        uid,
        slot,
        shared.now() + wait,
        if settled { 0 } else { tries + 1 },
    );
}

/// Asks a node. The error says why it is not well.
async fn ask(health: &Health, address: &str, id: &str) -> Result<(), String> {
    let asked = async {
        match &health.probe {
            Probe::Phase => Ok(()),
            Probe::Tcp { .. } => TcpStream::connect(address)
                .await
                .map(drop)
                .map_err(|e| format!("tcp {address}: {}", plain(&e))),
            Probe::Http { path, .. } => http(address, path)
                .await
                .map_err(|e| format!("http {address}{path}: {e}")),
            Probe::Grpc { service, .. } => grpc(address, service, id)
                .await
                .map_err(|e| format!("grpc {address}: {e}")),
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
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|e| plain(&e))?;
    let mut line = Vec::with_capacity(STATUS_LINE);
    while line.len() < 12 {
        if stream.read_buf(&mut line).await.map_err(|e| plain(&e))? == 0 {
            return Err("it closed the connection without an answer".to_owned());
        }
    }
    let text = String::from_utf8_lossy(&line);
    let code = text
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|code| code.parse::<u16>().ok());
    match code {
        Some(200..=399) => Ok(()),
        Some(code) => Err(format!("status {code}")),
        None => Err("it does not speak HTTP".to_owned()),
    }
}

async fn grpc(address: &str, service: &str, id: &str) -> Result<(), String> {
    let target = format!("http://{address}")
        .parse()
        .map_err(|e: drover_core::Error| e.message().to_owned())?;
    let channel = drover_client::connect(&target);
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(channel.clone())
        .check(request)
        .await
        .map_err(|status| {
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
    match AgentServiceClient::new(channel)
        .get_info(GetInfoRequest {})
        .await
    {
        Ok(info) if info.get_ref().node_id == id || info.get_ref().node_id.is_empty() => Ok(()),
        Ok(info) => Err(format!("it is another node ({})", info.get_ref().node_id)),
        // It has no agent of ours.
        Err(status) if status.code() == tonic::Code::Unimplemented => Ok(()),
        Err(status) => Err(format!("{:?}: {}", status.code(), status.message())),
    }
}

/// Whether an agent at this address proves that the node of this id lives.
pub(crate) async fn agent_says(address: &str, id: &str, within: Duration) -> bool {
    let Some((scheme, address)) = address.split_once("://") else {
        return false;
    };
    if scheme != "grpc" {
        return false;
    }
    let Ok(target) = format!("http://{address}").parse() else {
        return false;
    };
    let mut client = AgentServiceClient::new(drover_client::connect(&target));
    matches!(timeout(within, client.get_info(GetInfoRequest {})).await, Ok(Ok(info)) if info.get_ref().node_id == id)
}

#[cfg(test)]
mod tests {
    use drover_proto::agent::v1::{
        GetInfoResponse,
        agent_service_server::{AgentService, AgentServiceServer},
    };
    use tokio::net::TcpListener;

    use super::*;

    struct Agent(&'static str);

    #[tonic::async_trait]
    impl AgentService for Agent {
        async fn get_info(
            &self,
            _: tonic::Request<GetInfoRequest>,
        ) -> Result<tonic::Response<GetInfoResponse>, tonic::Status> {
            Ok(tonic::Response::new(GetInfoResponse {
                node_id: self.0.to_owned(),
                ..Default::default()
            }))
        }
    }

    fn health(probe: Probe) -> Health {
        Health {
            probe,
            timeout: Duration::from_millis(500),
            ..Health::default()
        }
    }

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// Answers every connection with these bytes and closes it.
    async fn answering(bytes: &'static [u8]) -> String {
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(bytes).await;
            }
        });
        address
    }

    /// Accepts connections and says nothing.
    async fn silent() -> String {
        let (listener, address) = listener().await;
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                kept.push(stream);
            }
        });
        address
    }

    /// A port at which nobody listens.
    async fn refusing() -> String {
        listener().await.1
    }

    async fn grpc_server(
        agent: Option<&'static str>,
        status: Option<tonic_health::ServingStatus>,
    ) -> String {
        let (listener, address) = listener().await;
        let (reporter, service) = tonic_health::server::health_reporter();
        if let Some(status) = status {
            reporter.set_service_status("db", status).await;
        }
        let agent = agent.map(|id| AgentServiceServer::new(Agent(id)));
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .add_optional_service(agent);
        tokio::spawn(server.serve_with_incoming(incoming));
        address
    }

    #[tokio::test]
    async fn tcp_is_well_if_somebody_listens() {
        let probe = health(Probe::Tcp { port: None });
        assert_eq!(ask(&probe, &silent().await, "n").await, Ok(()));
        let refused = ask(&probe, &refusing().await, "n").await.unwrap_err();
        assert!(refused.contains("connection refused"), "{refused}");
    }

    #[tokio::test]
    async fn http_is_well_below_400_and_says_what_it_saw() {
        let probe = health(Probe::Http {
            port: None,
            path: "/healthz".into(),
        });
        for good in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"HTTP/1.0 302 Found\r\n\r\n",
        ] {
            assert_eq!(ask(&probe, &answering(good).await, "n").await, Ok(()));
        }
        for (answer, word) in [
            (&b"HTTP/1.1 503 Unavailable\r\n\r\n"[..], "status 503"),
            (b"SSH-2.0-OpenSSH_9.6", "does not speak HTTP"),
            (
                b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7\xf6\xf5\xf4",
                "does not speak HTTP",
            ),
            (b"", "closed the connection"),
        ] {
            let why = ask(&probe, &answering(answer).await, "n")
                .await
                .unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        let why = ask(&probe, &silent().await, "n").await.unwrap_err();
        assert!(why.contains("no answer within"), "{why}");
        let why = ask(&probe, &refusing().await, "n").await.unwrap_err();
        assert!(why.contains("connection refused"), "{why}");
    }

    #[tokio::test]
    async fn grpc_is_well_if_it_serves_and_is_not_another_node() {
        use tonic_health::ServingStatus::{NotServing, Serving};
        let probe = health(Probe::Grpc {
            port: None,
            service: "db".into(),
        });
        for agent in [None, Some("db-0-aaaaa"), Some("")] {
            let address = grpc_server(agent, Some(Serving)).await;
            assert_eq!(
                ask(&probe, &address, "db-0-aaaaa").await,
                Ok(()),
                "{agent:?}"
            );
        }
        for (agent, status, word) in [
            (Some("db-0-bbbbb"), Some(Serving), "another node"),
            (Some("db-0-aaaaa"), Some(NotServing), "NotServing"),
            (Some("db-0-aaaaa"), None, "NotFound"),
        ] {
            let why = ask(&probe, &grpc_server(agent, status).await, "db-0-aaaaa")
                .await
                .unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        let why = ask(&probe, &silent().await, "n").await.unwrap_err();
        assert!(why.contains("no answer within"), "{why}");
        assert!(ask(&probe, &refusing().await, "n").await.is_err());
    }

    #[tokio::test]
    async fn only_the_agent_of_the_very_node_proves_that_it_lives() {
        let second = Duration::from_secs(1);
        let address = grpc_server(Some("db-0-aaaaa"), None).await;
        assert!(agent_says(&format!("grpc://{address}"), "db-0-aaaaa", second).await);
        assert!(!agent_says(&format!("grpc://{address}"), "db-0-bbbbb", second).await);
        assert!(!agent_says(&format!("http://{address}"), "db-0-aaaaa", second).await);
        assert!(!agent_says(&address, "db-0-aaaaa", second).await);
        assert!(
            !agent_says(
                &format!("grpc://{}", refusing().await),
                "db-0-aaaaa",
                second
            )
            .await
        );
    }
}
