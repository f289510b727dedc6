//! Authors of changes: in the audit log, in events, and in the clusters.

use drover_proto::orchestrator::v1 as pb;

use crate::api::{
    access::{Door, labelled},
    support::{document, until},
};

/// The log lines about a method.
fn lines(log: &std::path::Path, method: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let own = |line: &serde_json::Value| {
        let what = line["what"].as_str().unwrap_or_default();
        what.ends_with(&format!("/{method}"))
    };
    lines.filter(own).collect()
}

#[tokio::test]
async fn who_changed_what_is_said_by_events_and_by_the_audit_log() {
    let door = Door::new().await;
    let (mut operator, mut admin) = (door.of("operator"), door.of("admin"));
    let make = labelled("orders", &[]);
    operator.apply_cluster(make).await.unwrap();
    door.world.ready("orders").await;
    let told = async || door.world.events("orders").await;
    let has = async |reason: &str, words: &str| {
        let events = told().await;
        let mut own = events.iter().filter(|event| event.reason == reason);
        own.any(|event| event.message.contains(words)).then_some(())
    };
    let scale = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "db".into(),
        size: Some(2),
        ..Default::default()
    };
    admin.scale_group(scale).await.unwrap();
    let pause = pb::PauseClusterRequest {
        name: "orders".into(),
        reason: "lunch".into(),
    };
    let paused = operator.pause_cluster(pause).await.unwrap().into_inner();
    let cluster = paused.cluster.unwrap();
    assert_eq!(cluster.author, "token:admin", "of the generation");
    let pause = cluster.status.unwrap().pause.unwrap();
    assert_eq!(pause.author, "token:operator");
    // A pause that ends before it is planned has no event.
    until("Paused", async || has("Paused", "by token:operator").await).await;
    let resume = pb::ResumeClusterRequest {
        name: "orders".into(),
    };
    admin.resume_cluster(resume).await.unwrap();
    for (reason, words) in [
        ("ClusterCreated", "generation 1 by token:operator"),
        ("ClusterChanged", "generation 2 by token:admin"),
        ("Resumed", "by token:admin"),
    ] {
        until(reason, async || has(reason, words).await).await;
    }
    let restart = pb::RestartGroupRequest {
        cluster: "orders".into(),
        ..Default::default()
    };
    admin.restart_group(restart).await.unwrap();
    until("RestartAsked", async || {
        has("RestartAsked", "by token:admin").await
    })
    .await;
    let signed = told().await;
    let signed = signed.iter().find(|event| event.reason == "RestartAsked");
    assert_eq!(signed.unwrap().author, "token:admin");

    let path = door.audit();
    let scaled = until("the change of size", async || {
        lines(&path, "ScaleGroup").pop()
    })
    .await;
    assert_eq!(scaled["generation"], 2, "{scaled}");
    assert_eq!(scaled["object"], "cluster/orders", "{scaled}");
    let more = document("orders", &[("db", 2), ("web", 1)]);
    let more = pb::ApplyClusterRequest {
        cluster: Some(more),
        ..Default::default()
    };
    operator.apply_cluster(more.clone()).await.unwrap();
    let revisions = pb::ListRevisionsRequest {
        cluster: "orders".into(),
        ..Default::default()
    };
    let revisions = operator
        .list_revisions(revisions)
        .await
        .unwrap()
        .into_inner()
        .revisions;
    let authors: Vec<&str> = revisions.iter().map(|one| one.author.as_str()).collect();
    assert_eq!(authors, ["token:operator", "token:admin"]);

    // Equal texts have equal digests, and different texts different ones.
    operator.apply_cluster(more).await.unwrap();
    let applied = until("all", async || {
        let applied = lines(&path, "ApplyCluster");
        (applied.len() == 3).then_some(applied)
    })
    .await;
    let digest = |line: &serde_json::Value| line["request"]["hmac"].as_str().unwrap().to_owned();
    assert_eq!(digest(&applied[1]), digest(&applied[2]));
    assert_ne!(digest(&applied[0]), digest(&applied[1]));
    assert_ne!(digest(&applied[0]), digest(&scaled));
    door.stop().await;
}

#[tokio::test]
async fn plans_logs_and_commands_are_written_down_without_being_asked_for() {
    let door = Door::new().await;
    let mut operator = door.of("operator");
    operator
        .apply_cluster(labelled("orders", &[]))
        .await
        .unwrap();
    door.world.ready("orders").await;
    let plan = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Name("orders".into())),
        ..Default::default()
    };
    door.of("viewer").plan_cluster(plan).await.unwrap();
    let id = door.world.nodes("orders").await[0].id.clone();
    let logs = pb::StreamNodeLogsRequest {
        cluster: "orders".into(),
        id: id.clone(),
        ..Default::default()
    };
    let mut logs = operator.stream_node_logs(logs).await.unwrap().into_inner();
    while logs.message().await.unwrap().is_some() {}
    let run = async |command: &[&str]| {
        let start = pb::exec_node_request::Input::Start(pb::ExecNodeStart {
            cluster: "orders".into(),
            id: id.clone(),
            command: command.iter().map(ToString::to_string).collect(),
            ..Default::default()
        });
        let exec = pb::ExecNodeRequest { input: Some(start) };
        let requests = futures::stream::iter([exec]);
        let mut operator = operator.clone();
        let mut output = operator.exec_node(requests).await.unwrap().into_inner();
        while output.message().await.unwrap().is_some() {}
    };
    for command in [
        &["/bin/echo", "s3cret"][..],
        &["/bin/echo", "s3cret"],
        &["/bin/echo", "other"],
    ] {
        run(command).await;
    }
    let path = door.audit();
    let object = format!("node/orders/{id}");
    for (method, object, codes) in [
        ("PlanCluster", "cluster/orders", &["OK"][..]),
        ("StreamNodeLogs", &*object, &["STARTED", "OK"]),
        (
            "ExecNode",
            &*object,
            &["STARTED", "OK", "STARTED", "OK", "STARTED", "OK"],
        ),
    ] {
        let found = until(method, async || {
            let found = lines(&path, method);
            (found.len() == codes.len()).then_some(found)
        })
        .await;
        for (line, code) in found.iter().zip(codes) {
            assert_eq!(
                (&line["object"], &line["code"]),
                (&object.into(), &(*code).into()),
                "{line}"
            );
        }
    }
    let commands: Vec<_> = (lines(&path, "ExecNode").iter())
        .map(|line| line["command"].clone())
        .collect();
    assert_eq!(commands[0]["program"], "echo");
    // Start and end of a command share its digest, as does a repetition; another command has another digest.
    assert_eq!(commands[0], commands[1]);
    assert_eq!(commands[0], commands[2]);
    assert_ne!(commands[0]["hmac"], commands[4]["hmac"]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    door.stop().await;
}
