//! What platforms say of nodes, and of commands and logs in them, is shown without secrets.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use drover_core::Reason;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{
    orchestrator::v1 as pb,
    platform::v1::{
        self as wire,
        health_policy::Probe,
        node_access_service_server::{NodeAccessService, NodeAccessServiceServer},
        watch_nodes_response::Event,
    },
};
use drover_store::{Lane, backend::Txn, keys::Name};
use futures::Stream;
use tonic::{Request, Response, Status, Streaming, service::Routes};

use super::{CONTENT, base64, logged, put, silent, telling, visible};
use crate::api::{
    late::Told,
    support::{Log, World, changed, refused, until},
};

/// A platform that refuses logs and commands with a revealing error.
#[derive(Clone, Default)]
struct Tells {
    /// Opens the stream first and fails within it.
    opens: Arc<AtomicBool>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Tells {
    /// Replaces the node access service of another platform.
    fn beside(&self) -> impl FnOnce(Routes) -> Routes {
        let service = NodeAccessServiceServer::new(self.clone());
        |routes| routes.add_service(service)
    }

    fn answer<T: Default + Send + 'static>(&self) -> Result<Response<Answers<T>>, Status> {
        let said = format!("cannot be had in an environment of PASSWORD={CONTENT}");
        let status = Status::failed_precondition(said);
        if !self.opens.load(Ordering::Relaxed) {
            return Err(status);
        }
        let items = [Ok(T::default()), Err(status)];
        let items: Answers<T> = Box::pin(futures::stream::iter(items));
        Ok(Response::new(items))
    }
}

#[tonic::async_trait]
impl NodeAccessService for Tells {
    type StreamLogsStream = Answers<wire::StreamLogsResponse>;
    type ExecStream = Answers<wire::ExecResponse>;

    async fn stream_logs(
        &self,
        _: Request<wire::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        self.answer()
    }

    async fn exec(
        &self,
        _: Request<Streaming<wire::ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        self.answer()
    }
}

/// Sets the message of the nodes that the platform shows.
async fn say(world: &World, told: &Told, message: String) {
    let mut node = world.site.backend().nodes().remove(0);
    node.message = message;
    let nodes = vec![node];
    told.says(world, [Event::Upserts(wire::NodeUpserts { nodes })])
        .await;
}

/// A cluster whose nodes are never replaced.
fn lasting(cluster: pb::Cluster) -> pb::Cluster {
    changed(cluster, |spec| {
        spec.update = Some(pb::UpdatePolicy {
            strategy: pb::UpdateStrategy::OnDelete.into(),
            ..Default::default()
        });
    })
}

#[tokio::test]
async fn what_a_platform_says_of_nodes_and_of_commands_in_them_is_heard_without_secrets() {
    let (log, _logged) = logged();
    let world = World::bare(SimulatedSettings::default()).await;
    let told = Told::beside(&world, Tells::default().beside()).await;
    put(&world, "orders-p", CONTENT).await;
    let cluster = telling("orders-p", "{{ secrets.p }}");
    world.apply(cluster.clone()).await.unwrap();
    world.ready("orders").await;

    let message = format!(
        "back-off: PASSWORD={CONTENT}, {}",
        base64(CONTENT.as_bytes())
    );
    say(&world, &told, message).await;
    let encoded = base64(CONTENT.as_bytes())[..24].to_owned();
    let shown = visible(&world, &Log::default()).await;
    assert!(shown.contains("back-off: PASSWORD"), "{shown}");
    silent(&shown, &[encoded], "of a node");

    let probed = changed(cluster, |spec| {
        let command = vec!["true".to_owned()];
        spec.health = Some(wire::HealthPolicy {
            probe: Some(Probe::Exec(wire::ExecProbe {
                command,
                ..wire::ExecProbe::default()
            })),
            ..Default::default()
        });
    });
    world.apply(probed).await.unwrap();
    let shown = until("what is wrong with the probe is told", async || {
        let shown = visible(&world, &Log::default()).await;
        shown.contains("in an environment of").then_some(shown)
    })
    .await;
    silent(&shown, &[], "of a command");
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    let targets = [
        "orchestrator",
        "executor",
        "platforms",
        "probes",
        "secrets",
        "cluster",
    ];
    let is_ours = |line: &&str| {
        let mut targets = targets.iter();
        targets.any(|target| line.contains(&format!("drover_{target}")))
    };
    let ours: Vec<&str> = logged.lines().filter(is_ours).collect();
    assert!(!ours.is_empty(), "at least that it is connected: {logged}");
    silent(&ours.join("\n"), &[], "in the log");
    world.stop().await;
}

#[tokio::test]
async fn what_nodes_of_an_earlier_spec_say_is_heard_without_what_that_spec_gave_them() {
    let inline = format!("token: {CONTENT}");
    for (earlier, what) in [
        (telling("orders-p", "{{ secrets.p }}"), "another secret"),
        (telling("orders-q", &inline), "user data of its own"),
    ] {
        let world = World::bare(SimulatedSettings::default()).await;
        let told = Told::in_front_of(&world).await;
        put(&world, "orders-p", CONTENT).await;
        put(&world, "orders-q", "nothing of the kind").await;
        world.apply(lasting(earlier)).await.unwrap();
        world.ready("orders").await;
        let now = telling("orders-q", "{{ secrets.p }}");
        world.apply(lasting(now)).await.unwrap();
        assert!(world.nodes("orders").await[0].outdated, "{what}");

        say(&world, &told, format!("back-off: PASSWORD={CONTENT}")).await;
        let shown = visible(&world, &Log::default()).await;
        assert!(shown.contains("back-off: PASSWORD"), "{what}: {shown}");
        silent(&shown, &[], what);
        world.stop().await;
    }
}

#[tokio::test]
async fn nothing_is_shown_of_what_nodes_say_whose_secret_is_there_no_more() {
    let world = World::bare(SimulatedSettings::default()).await;
    let told = Told::in_front_of(&world).await;
    put(&world, "orders-p", CONTENT).await;
    put(&world, "orders-q", "nothing of the kind").await;
    let with = |secret: &str| lasting(telling(secret, "{{ secrets.p }}"));
    world.apply(with("orders-p")).await.unwrap();
    world.ready("orders").await;
    world.apply(with("orders-q")).await.unwrap();
    let delete = pb::DeleteSecretRequest {
        name: "orders-p".to_owned(),
    };
    // No spec refers to it any more, but it is still needed to redact what a node says.
    let answer = world.secrets().delete_secret(delete).await;
    refused(answer, Reason::SecretInUse);
    lose(&world, "orders-p").await;

    say(&world, &told, format!("back-off: PASSWORD={CONTENT}")).await;
    let shown = visible(&world, &Log::default()).await;
    assert!(shown.contains("[hidden: "), "{shown}");
    assert!(!shown.contains("back-off"), "{shown}");
    silent(&shown, &[], "of a node");

    // Once no node is left that was given it, nothing needs to be redacted for the others.
    let replace = pb::ReplaceNodeRequest {
        cluster: "orders".to_owned(),
        id: world.nodes("orders").await[0].id.clone(),
    };
    world.clusters().replace_node(replace).await.unwrap();
    until("another one is in its place", async || {
        let nodes = world.nodes("orders").await;
        let is_new = |node: &pb::Node| node.state() == pb::NodeState::Ready && !node.outdated;
        (nodes.len() == 1 && nodes.iter().all(is_new)).then_some(())
    })
    .await;
    say(&world, &told, "back-off: again".to_owned()).await;
    let shown = visible(&world, &Log::default()).await;
    assert!(shown.contains("back-off: again"), "{shown}");
    world.stop().await;
}

/// Deletes a secret from the store, bypassing the checks.
async fn lose(world: &World, secret: &str) {
    let txn = Txn::default().delete(Name::Secret(secret.to_owned()).into());
    let backend = world.backend.upgrade().unwrap();
    backend.commit(txn, Lane::Bulk).await.unwrap();
}

#[tokio::test]
async fn a_secret_of_a_cluster_that_is_being_deleted_stays_as_long_as_nodes_of_it() {
    let world = World::bare(SimulatedSettings::default()).await;
    let told = Told::in_front_of(&world).await;
    put(&world, "orders-p", CONTENT).await;
    world
        .apply(lasting(telling("orders-p", "{{ secrets.p }}")))
        .await
        .unwrap();
    world.ready("orders").await;
    world.site.backend().pause_backend(true);
    world.delete("orders").await.unwrap();
    let delete = pb::DeleteSecretRequest {
        name: "orders-p".to_owned(),
    };
    let answer = world.secrets().delete_secret(delete.clone()).await;
    refused(answer, Reason::SecretInUse);
    world.site.backend().pause_backend(false);
    world.gone("orders").await;
    world.secrets().delete_secret(delete).await.unwrap();
    drop(told);
    world.stop().await;
}

/// The error with which a stream fails to open, or ends.
async fn failure<T>(opened: Result<Response<Streaming<T>>, Status>) -> Status {
    let mut stream = match opened {
        Ok(opened) => opened.into_inner(),
        Err(status) => return status,
    };
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without an error"),
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn why_there_is_no_log_and_no_shell_is_said_without_secrets() {
    let world = World::bare(SimulatedSettings::default()).await;
    let tells = Tells::default();
    let _told = Told::beside(&world, tells.beside()).await;
    put(&world, "orders-p", CONTENT).await;
    world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    world.ready("orders").await;
    let id = world.nodes("orders").await[0].id.clone();
    for opens in [false, true] {
        tells.opens.store(opens, Ordering::Relaxed);
        let logs = pb::StreamNodeLogsRequest {
            cluster: "orders".to_owned(),
            id: id.clone(),
            ..Default::default()
        };
        let start = pb::ExecNodeStart {
            cluster: "orders".to_owned(),
            id: id.clone(),
            command: vec!["true".to_owned()],
            ..Default::default()
        };
        let start = pb::ExecNodeRequest {
            input: Some(pb::exec_node_request::Input::Start(start)),
        };
        let logs = world.clusters().stream_node_logs(logs).await;
        let logs = failure(logs).await;
        let shell = futures::stream::iter([start]);
        let shell = failure(world.clusters().exec_node(shell).await).await;
        for (status, what) in [(logs, "a log"), (shell, "a shell")] {
            let said = status.message().contains("in an environment of PASSWORD");
            assert!(said, "{what}, {opens}: {status:?}");
            silent(&format!("{status:?}"), &[], what);
        }
    }
    world.stop().await;
}
