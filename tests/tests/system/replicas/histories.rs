//! What callers are told could have happened one after the other, whatever befalls the leader and etcd.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use drover_client::{Channel, connect, to_error};
use drover_core::{Error, Reason};
use drover_proto::orchestrator::v1::{self as pb, cluster_service_client::ClusterServiceClient};
use drover_testing::{
    history::{Answer, Call, Content, MOST, Op, is_linear},
    wait,
};
use fastrand::Rng;
use tokio::time::{Instant, sleep, timeout};

use super::{REPLICAS, Site, signal};

const CALLERS: usize = 6;
const NAMES: usize = 3;
/// Calls of a caller for one name: all together fit into a history, with a last one.
const CALLS: usize = (MOST - 1) / CALLERS;
/// Members of etcd.
const MEMBERS: usize = 3;
/// How long a caller waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Rounds, each with a fault. For more: `REPLICAS_HISTORIES=1000`.
fn rounds() -> usize {
    let more = std::env::var("REPLICAS_HISTORIES").ok();
    more.map_or(8, |rounds| rounds.parse().unwrap())
}

/// Time as all callers share it, and values that are written once.
#[derive(Default)]
struct Shared {
    time: AtomicU64,
    value: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    fn value(&self) -> u64 {
        self.value.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// A caller, which makes each call once, at whichever server.
struct Caller<'a> {
    shared: &'a Shared,
    servers: Vec<ClusterServiceClient<Channel>>,
    random: Rng,
    /// The server that answered last.
    at: usize,
    /// The newest generation that it knows of each name.
    known: [u64; NAMES],
    ops: Vec<(usize, Op)>,
}

impl Caller<'_> {
    async fn run(mut self, round: usize) -> Vec<(usize, Op)> {
        while self.ops.len() < CALLS * NAMES {
            let name = self.random.usize(..NAMES);
            if self.ops.iter().filter(|(of, _)| *of == name).count() == CALLS {
                continue;
            }
            let call = match self.random.u8(..10) {
                0..4 => Call::Read,
                4..7 => Call::Write(self.shared.value()),
                _ => Call::Swap {
                    expected: self.known[name],
                    value: self.shared.value(),
                },
            };
            self.call(&format!("history-{round}-{name}"), name, call)
                .await;
            let pause = self.random.u64(..60);
            sleep(Duration::from_millis(pause)).await;
        }
        self.ops
    }

    async fn call(&mut self, cluster: &str, name: usize, call: Call) {
        let began = self.shared.now();
        // Also one that may believe that it still leads.
        if self.random.u8(..10) == 0 {
            self.at = self.random.usize(..REPLICAS);
        }
        let mut server = self.servers[self.at].clone();
        let made = async {
            match call {
                Call::Read => read(&mut server, cluster).await,
                Call::Write(value) => write(&mut server, cluster, value, None).await,
                Call::Swap { expected, value } => {
                    write(&mut server, cluster, value, Some(expected)).await
                }
            }
        };
        let made = timeout(PATIENCE, made)
            .await
            .unwrap_or_else(|_| Err(Error::new(Reason::Unavailable, "no answer")));
        let ended = self.shared.now();
        let answer = match made {
            Ok(content) => {
                self.known[name] = self.known[name].max(content.generation);
                Answer::Is(content)
            }
            Err(error) => {
                let Some(answer) = meaning(call, &error) else {
                    // Nothing was done: it leads no more, or not yet.
                    self.at = self.random.usize(..REPLICAS);
                    return;
                };
                if answer == Answer::Unknown {
                    self.at = self.random.usize(..REPLICAS);
                }
                answer
            }
        };
        let op = Op {
            call,
            answer,
            began,
            ended,
        };
        self.ops.push((name, op));
    }
}

/// What an error says of what was done. `None`: nothing was, and that is all.
fn meaning(call: Call, error: &Error) -> Option<Answer> {
    match (error.reason(), call) {
        (Reason::NotLeader | Reason::NotSent, _) => None,
        (Reason::NotFound, Call::Read) => Some(Answer::Is(Content::default())),
        (Reason::GenerationMismatch, Call::Swap { .. }) => Some(Answer::Mismatch),
        (Reason::Unavailable | Reason::DeadlineExceeded | Reason::Cancelled, _) => {
            Some(Answer::Unknown)
        }
        _ => panic!("{call:?} is answered with {error:?}"),
    }
}

async fn read(server: &mut ClusterServiceClient<Channel>, name: &str) -> Result<Content, Error> {
    let request = pb::GetClusterRequest {
        name: name.to_owned(),
        ..Default::default()
    };
    let answer = server.get_cluster(request).await;
    let answer = answer.map_err(|status| to_error(&status))?;
    Ok(content(answer.into_inner().cluster.as_ref().unwrap()))
}

async fn write(
    server: &mut ClusterServiceClient<Channel>,
    name: &str,
    value: u64,
    expected_generation: Option<u64>,
) -> Result<Content, Error> {
    // Without nodes, so that nothing else changes it.
    let group = pb::GroupSpec {
        name: "web".to_owned(),
        size: Some(0),
        ..Default::default()
    };
    let cluster = pb::Cluster {
        name: name.to_owned(),
        labels: [("value".to_owned(), value.to_string())].into(),
        spec: Some(pb::ClusterSpec {
            platforms: vec![pb::PlatformChoice {
                name: "local".to_owned(),
                ..Default::default()
            }],
            groups: vec![group],
            ..Default::default()
        }),
        ..Default::default()
    };
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        expected_generation,
        ..Default::default()
    };
    let answer = server.apply_cluster(request).await;
    let answer = answer.map_err(|status| to_error(&status))?;
    Ok(content(answer.into_inner().cluster.as_ref().unwrap()))
}

/// What a name has after all calls, from whoever leads.
async fn last(shared: &Shared, servers: &[ClusterServiceClient<Channel>], cluster: &str) -> Op {
    let begin = Instant::now();
    loop {
        for server in servers {
            let began = shared.now();
            let answer = timeout(PATIENCE, read(&mut server.clone(), cluster)).await;
            let content = match answer {
                Ok(Ok(content)) => content,
                Ok(Err(error)) if error.reason() == Reason::NotFound => Content::default(),
                Ok(Err(_)) | Err(_) => continue,
            };
            return Op {
                call: Call::Read,
                answer: Answer::Is(content),
                began,
                ended: shared.now(),
            };
        }
        assert!(begin.elapsed() < wait::PATIENCE, "nobody leads any more");
        sleep(Duration::from_millis(50)).await;
    }
}

fn content(cluster: &pb::Cluster) -> Content {
    Content {
        generation: cluster.generation,
        value: cluster.labels["value"].parse().unwrap(),
    }
}

impl Site {
    /// Something that happens to the leader or to etcd, while calls are made. Afterwards all is well again.
    async fn suffer(&mut self, round: usize, random: &mut Rng) -> String {
        sleep(Duration::from_millis(random.u64(..300))).await;
        let (leader, _) = self.leader_after(None).await;
        let pid = self.server(leader).pid();
        let millis = random.u64(100..4_000);
        let member = random.usize(..MEMBERS);
        match round % 6 {
            0 => {
                self.server(leader).kill();
                self.server(leader).start().await;
                format!("r{leader} killed")
            }
            1 => {
                signal(pid, "STOP");
                sleep(Duration::from_millis(millis)).await;
                signal(pid, "CONT");
                format!("r{leader} stood still for {millis} ms")
            }
            2 => {
                self.etcd.pause(member, true);
                sleep(Duration::from_millis(millis)).await;
                self.etcd.pause(member, false);
                format!("m{member} stood still for {millis} ms")
            }
            3 => {
                let member = self.etcd.leader();
                self.etcd.kill(member);
                sleep(Duration::from_millis(millis)).await;
                self.etcd.restart(member);
                format!("m{member}, which led, was killed for {millis} ms")
            }
            4 => {
                for member in 0..MEMBERS {
                    self.etcd.pause(member, true);
                }
                sleep(Duration::from_millis(millis)).await;
                for member in 0..MEMBERS {
                    self.etcd.pause(member, false);
                }
                format!("etcd stood still for {millis} ms")
            }
            _ => {
                signal(pid, "TERM");
                let (ended, said) = self.server(leader).ended().await;
                assert!(ended, "{said}");
                self.server(leader).kill();
                self.server(leader).start().await;
                format!("r{leader} was asked to end")
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_callers_are_told_could_have_happened_one_after_the_other() {
    let mut random = Rng::with_seed(drover_testing::seed::seed());
    let mut site = Site::new(MEMBERS).await;
    let shared = Shared::default();
    let mut counts = [0; 3];
    for round in 0..rounds() {
        let servers: Vec<_> = (0..REPLICAS)
            .map(|at| {
                let target = site.server(at).endpoint().parse().unwrap();
                ClusterServiceClient::new(connect(&target))
            })
            .collect();
        let callers = (0..CALLERS).map(|_| {
            let caller = Caller {
                shared: &shared,
                servers: servers.clone(),
                at: random.usize(..REPLICAS),
                random: random.fork(),
                known: [0; NAMES],
                ops: Vec::new(),
            };
            caller.run(round)
        });
        let callers = futures::future::join_all(callers);
        let mut fork = random.fork();
        let (what, histories) = tokio::join!(site.suffer(round, &mut fork), callers);
        for name in 0..NAMES {
            let of_name = histories.iter().flatten().filter(|(of, _)| *of == name);
            let mut ops: Vec<Op> = of_name.map(|(_, op)| *op).collect();
            // What was written last is not lost either.
            ops.push(last(&shared, &servers, &format!("history-{round}-{name}")).await);
            for op in &ops {
                let kind = match op.answer {
                    Answer::Is(_) => 0,
                    Answer::Mismatch => 1,
                    Answer::Unknown => 2,
                };
                counts[kind] += 1;
            }
            assert!(
                is_linear(&ops),
                "round {round}, {what}, name {name}: {ops:#?}"
            );
        }
    }
    let [told, mismatches, unknown] = counts;
    println!("{told} answers, {mismatches} mismatches, {unknown} calls without an answer");
    assert!(told > unknown && mismatches > 0, "faults are the exception");
}
