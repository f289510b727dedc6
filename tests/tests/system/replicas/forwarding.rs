//! Every replica answers every call: one that stands by asks the one that leads.

use std::fs;

use drover_client::{Bearer, is_unreachable};
use drover_proto::orchestrator::v1::watch_clusters_response::Event;
use drover_server::Shutdown;

use super::*;

fn named(name: &str) -> pb::GetClusterRequest {
    pb::GetClusterRequest {
        name: name.to_owned(),
        ..Default::default()
    }
}

fn empty(name: &str) -> pb::ApplyClusterRequest {
    let group = pb::GroupSpec {
        name: "web".to_owned(),
        size: Some(0),
        platforms: vec![pb::PlatformChoice {
            name: "local".to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let cluster = pb::Cluster {
        name: name.to_owned(),
        spec: Some(pb::ClusterSpec {
            groups: vec![group],
            ..Default::default()
        }),
        ..Default::default()
    };
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_answers_every_call() {
    let mut site = Site::new(1).await;
    let (leader, _) = site.leader_after(None).await;
    let mut watches = Vec::new();
    for at in 0..REPLICAS {
        let request = pb::WatchClustersRequest::default();
        let watch = site.once(at).watch_clusters(request).await.unwrap();
        watches.push(watch.into_inner());
    }
    for at in 0..REPLICAS {
        let name = format!("by-r{at}");
        site.once(at).apply_cluster(empty(&name)).await.unwrap();
        for other in 0..REPLICAS {
            site.once(other).get_cluster(named(&name)).await.unwrap();
        }
        let error = refused_as(site.once(at).get_cluster(named("absent")).await);
        assert_eq!(
            error.reason(),
            Reason::NotFound,
            "an error arrives as it is"
        );
    }
    for watch in &mut watches {
        let mut seen = BTreeSet::new();
        while seen.len() < REPLICAS {
            let event = watch.message().await.unwrap().unwrap().event.unwrap();
            if let Event::Upserts(upserts) = event {
                let names = upserts.clusters.into_iter().map(|cluster| cluster.name);
                seen.extend(names.filter(|name| name.starts_with("by-")));
            }
        }
    }
    for at in 0..REPLICAS {
        let request = pb::ListReplicasRequest {};
        let answer = site.alone(at).list_replicas(request, CALL).await.unwrap();
        assert_eq!(
            (answer.replicas.len(), answer.store.as_str()),
            (REPLICAS, "etcd")
        );
        for (number, replica) in answer.replicas.iter().enumerate() {
            assert_eq!(
                (replica.leads, replica.answers, &replica.address),
                (
                    number == leader,
                    number == at,
                    &site.server(number).endpoint()
                )
            );
        }
        assert!(status(site.server(at), "/readyz").contains(" 200 "));
        let leads = get(site.server(at), "/metrics");
        let expected = format!("\ndrover_leader {}\n", u8::from(at == leader));
        assert!(leads.contains(&expected), "{leads}");
    }
}

/// How long a call waits for a leader.
const HELD: Duration = Duration::from_secs(5);
/// Replicas that do not answer each other for so long take the other one for dead.
const ANSWERED: Duration = Duration::from_secs(2);

/// Who asks a replica that stands by learns of no death of a leader but by a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_at_a_replica_that_stands_by_waits_for_the_next_leader() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 1).await.unwrap();
    for _ in 0..3 {
        let (leader, _) = site.leader_after(None).await;
        let asked = (leader + 1) % REPLICAS;
        let stop = Shutdown::new();
        let reads = tokio::spawn({
            let (mut client, stop) = (site.once(asked), stop.clone());
            async move {
                let (mut count, mut longest) = (0, Duration::ZERO);
                while !stop.is_cancelled() {
                    let began = Instant::now();
                    match client.get_cluster(named("prey")).await {
                        Err(status) if began.elapsed() < HELD => return Err(status),
                        // The next leader was late.
                        answer => count += u32::from(answer.is_ok()),
                    }
                    longest = longest.max(began.elapsed());
                }
                Ok::<_, tonic::Status>((count, longest))
            }
        });
        site.server(leader).kill();
        site.leader_after(Some(leader)).await;
        site.world.scale("prey", 1).await.unwrap();
        stop.cancel();
        let (count, longest) = reads.await.unwrap().unwrap();
        assert!(count > 0);
        println!("{count} reads over the death of r{leader}, the longest took {longest:?}");
        site.server(leader).start().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_while_the_lead_is_handed_over() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 2).await.unwrap();
    site.world.ready("prey", 2).await;
    let mut whole = 0;
    for _ in 0..ROUNDS {
        let (leader, _) = site.leader_after(None).await;
        let stop = Shutdown::new();
        // Over connections that neither repeat a call nor go elsewhere.
        let callers = (0..REPLICAS).map(|at| {
            let (mut client, stop) = (site.once(at), stop.clone());
            tokio::spawn(async move {
                let (mut count, mut longest) = (0_u32, Duration::ZERO);
                while !stop.is_cancelled() {
                    let began = Instant::now();
                    let name = format!("c{at}-{}", count % 5);
                    let within = |status| (status, began.elapsed());
                    client.apply_cluster(empty(&name)).await.map_err(within)?;
                    client.get_cluster(named(&name)).await.map_err(within)?;
                    longest = longest.max(began.elapsed());
                    count += 1;
                }
                Ok::<_, (tonic::Status, Duration)>((count, longest))
            })
        });
        let callers: Vec<_> = callers.collect();
        signal(site.server(leader).pid(), "TERM");
        let (ended, said) = site.server(leader).ended().await;
        assert!(ended, "{said}");
        site.leader_after(Some(leader)).await;
        stop.cancel();
        let mut late = 0;
        for (at, caller) in callers.into_iter().enumerate() {
            match caller.await.unwrap() {
                Ok((count, longest)) => {
                    assert!(count > 0);
                    println!("{count} changes and reads, of which two took at most {longest:?}");
                }
                Err((status, within)) => {
                    let error = to_error(&status);
                    // The process is gone, and says so by a closed port.
                    if at != leader || !is_unreachable(&error) {
                        assert!(within >= ANSWERED, "r{at} after {within:?}: {error:?}");
                        late += 1;
                    }
                }
            }
        }
        site.server(leader).kill();
        site.server(leader).start().await;
        whole += usize::from(late == 0);
        if whole == REPLICAS {
            break;
        }
    }
    assert_eq!(whole, REPLICAS, "of {ROUNDS} hand-overs");
    site.exactly(2).await;
}

/// Docker and many others kill a process that takes longer.
const ENDS: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_ends_in_time_though_it_is_alone_or_etcd_is_away() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 1).await.unwrap();
    let (leader, _) = site.leader_after(None).await;
    for at in (0..REPLICAS).filter(|at| *at != leader) {
        site.server(at).kill();
    }
    for is_away in [false, true] {
        site.leader_after(None).await;
        if is_away {
            site.etcd.kill(0);
        }
        let began = Instant::now();
        signal(site.server(leader).pid(), "TERM");
        let (ended, said) = site.server(leader).ended().await;
        assert!(ended, "{said}");
        assert!(began.elapsed() < ENDS, "it took {:?}", began.elapsed());
        site.server(leader).kill();
        if !is_away {
            site.server(leader).start().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_taking_the_lead_ends_in_time_though_etcd_stands_still() {
    let mut site = Site::new(1).await;
    site.world.apply("prey", "", 1).await.unwrap();
    let (leader, mut epoch) = site.leader_after(None).await;
    for at in (0..REPLICAS).filter(|at| *at != leader) {
        site.server(at).kill();
    }
    for _ in 0..3 {
        site.server(leader).kill();
        site.server(leader).start().await;
        let alone = site.alone(leader);
        let begin = Instant::now();
        // The first of its claims is seen, the others are under way.
        while !is_taking(&alone, epoch).await {
            assert!(begin.elapsed() < PATIENCE, "nobody leads");
        }
        site.etcd.pause(0, true);
        let began = Instant::now();
        signal(site.server(leader).pid(), "TERM");
        let (ended, said) = site.server(leader).ended().await;
        site.etcd.pause(0, false);
        assert!(ended, "{said}");
        assert!(began.elapsed() < ENDS, "it took {:?}", began.elapsed());
        site.server(leader).kill();
        site.server(leader).start().await;
        epoch = site.leader_after(None).await.1;
    }
}

async fn is_taking(alone: &OrchestratorClient, former: u64) -> bool {
    let answer = alone.list_replicas(pb::ListReplicasRequest {}, CALL).await;
    let replicas = answer.map(|answer| answer.replicas).unwrap_or_default();
    replicas.iter().any(|it| it.leads && it.epoch > former)
}

/// Rights of a replica's callers.
const RULES: &str = "
tokens:
  - {name: writer, token: writer-0123456789}
  - {name: reader, token: reader-0123456789}
bindings:
  - {role: admin, subjects: ['token:writer']}
  - {role: viewer, subjects: ['token:reader']}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_call_has_the_rights_of_its_caller_and_nobody_can_pretend() {
    let etcd = Etcd::start(1);
    let world = World::stopped();
    let rules = world.directory.path().join("access.yaml");
    fs::write(&rules, RULES).unwrap();
    let mut site = Site { world, etcd };
    for at in 0..REPLICAS {
        let mut server = replica(ORCHESTRATOR, &site.world, &site.etcd, &format!("r{at}"));
        let audit = site.world.directory.path().join(format!("audit-{at}"));
        server.add(&["--access", rules.to_str().unwrap()]);
        server.add(&["--audit-log", audit.to_str().unwrap()]);
        server.start().await;
        match at {
            0 => site.world.orchestrator = server,
            _ => site.world.others.push(server),
        }
    }
    let mut as_whom = |at: usize, token: &str| {
        let bearer = Bearer::Token(format!("{token}-0123456789"));
        let target = site.server(at).endpoint().parse().unwrap();
        connect(&target).with_bearer(bearer)
    };
    let request = pb::RegisterPlatformRequest {
        platform: Some(pb::Platform {
            name: "local".to_owned(),
            spec: Some(pb::PlatformSpec {
                endpoint: format!("http://127.0.0.1:{}", free_port()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let writer = OrchestratorClient::new(as_whom(0, "writer"));
    writer.register_platform(request, CALL).await.unwrap();
    let mut as_whom = |at, token: &str| ClusterServiceClient::new(as_whom(at, token));
    for at in 0..REPLICAS {
        let name = format!("c{at}");
        let mut writer = as_whom(at, "writer");
        writer.apply_cluster(empty(&name)).await.unwrap();
        let mut reader = as_whom(at, "reader");
        reader.get_cluster(named(&name)).await.unwrap();
        let error = refused_as(reader.apply_cluster(empty(&name)).await);
        assert_eq!(error.reason(), Reason::PermissionDenied, "{error}");
        let mut nobody = as_whom(at, "nobody");
        let error = refused_as(nobody.get_cluster(named(&name)).await);
        assert_eq!(error.reason(), Reason::Unauthenticated, "{error}");
        // What a replica says of a caller, said by somebody else.
        for header in ["x", "e30.AAAA"] {
            let mut request = tonic::Request::new(empty(&name));
            let value = header.parse().unwrap();
            request.metadata_mut().insert("drover-caller", value);
            let error = refused_as(reader.apply_cluster(request).await);
            assert_eq!(error.reason(), Reason::Unauthenticated, "{error}");
        }
    }
    // Whoever leads has recorded each change under the name of its caller, and by whom it came.
    let leaders = (0..REPLICAS).filter(|at| {
        let log = fs::read_to_string(site.world.directory.path().join(format!("audit-{at}")));
        let log = log.unwrap();
        let is_change = |line: &&str| {
            let words = ["\"token:writer\"", "ApplyCluster", "OK"];
            words.iter().all(|word| line.contains(word))
        };
        let changes: Vec<&str> = log.lines().filter(is_change).collect();
        let came_by = |other: &usize| {
            let via = format!("\"via\":\"r{other}\"");
            changes.iter().filter(|line| line.contains(&via)).count() == 1
        };
        let forwarded = (0..REPLICAS).filter(came_by).count();
        changes.len() == REPLICAS && forwarded == REPLICAS - 1
    });
    assert_eq!(leaders.count(), 1);
}

fn refused_as<T: std::fmt::Debug>(answer: Result<tonic::Response<T>, tonic::Status>) -> Error {
    to_error(&answer.expect_err("it is refused"))
}
