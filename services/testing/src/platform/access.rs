use drover_core::Reason;
use drover_proto::{
    common::v1::{Chunk, chunk::Content, process_output::Output},
    platform::v1::{
        Capability, ExecRequest, ExecStart, Node, NodePhase, NodeTarget, SlotKey,
        StreamLogsRequest, exec_request::Input,
    },
};
use futures::stream;
use uuid::Uuid;

use super::{
    Subject,
    fixture::{Fixture, access, error, refused, until},
};

fn target(fixture: &Fixture<'_>, node: &Node) -> NodeTarget {
    NodeTarget {
        expected_platform_uid: fixture.platform.uid.clone(),
        expected_instance_id: String::new(),
        cluster_id: node.cluster_id.clone(),
        node_id: node.node_id.clone(),
        expected_slot: node.slot.clone(),
    }
}

async fn running(fixture: &Fixture<'_>) -> Node {
    fixture.make(1).await;
    until(fixture.subject, "the node runs", || async {
        fixture
            .nodes()
            .await
            .into_iter()
            .find(|node| node.phase() == NodePhase::Running)
    })
    .await
}

pub(super) async fn logs_are_read(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::NodeLogs) {
        return;
    }
    let node = running(&fixture).await;
    for as_text in [true, false] {
        let request = StreamLogsRequest {
            node: Some(target(&fixture, &node)),
            as_text,
            ..StreamLogsRequest::default()
        };
        let mut stream = error(access(subject).stream_logs(request).await)
            .expect("logs")
            .into_inner();
        let read = async {
            while let Some(answer) = stream.message().await.expect("the log can be read") {
                let content = answer
                    .chunk
                    .and_then(|chunk| chunk.content)
                    .expect("a piece has content");
                assert_eq!(
                    matches!(content, Content::Text(_)),
                    as_text,
                    "as_text is respected"
                );
            }
        };
        tokio::time::timeout(subject.patience, read)
            .await
            .expect("without follow it ends");
    }
    fixture.clean().await;
}

pub(super) async fn commands_are_run(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::NodeExec) {
        return;
    }
    let node = running(&fixture).await;
    let start = ExecStart {
        node: Some(target(&fixture, &node)),
        command: subject.command.clone(),
        ..ExecStart::default()
    };
    let message = |input| ExecRequest { input: Some(input) };
    let call = stream::iter([message(Input::Start(start.clone()))]);
    let mut output = error(access(subject).exec(call).await)
        .expect("the command starts")
        .into_inner();
    let mut code = None;
    while let Some(answer) = output.message().await.expect("the command ends well") {
        assert_eq!(code, None, "the exit code is the last message");
        if let Some(Output::ExitCode(exit)) = answer.output.and_then(|output| output.output) {
            code = Some(exit);
        }
    }
    assert_eq!(code, Some(0));

    let chunk = || Chunk {
        content: Some(Content::Data(b"x".to_vec())),
    };
    let late_start = stream::iter([message(Input::Stdin(chunk()))]);
    refused(
        error(access(subject).exec(late_start).await).map(drop),
        Reason::Invalid,
        "input before start",
    );
    let nothing = stream::iter([message(Input::Start(ExecStart {
        command: Vec::new(),
        ..start.clone()
    }))]);
    refused(
        error(access(subject).exec(nothing).await).map(drop),
        Reason::Invalid,
        "no command",
    );
    let mut unmeant = start;
    unmeant.node.as_mut().unwrap().expected_platform_uid.clear();
    let unmeant = stream::iter([message(Input::Start(unmeant))]);
    refused(
        error(access(subject).exec(unmeant).await).map(drop),
        Reason::Invalid,
        "no uid",
    );
    fixture.clean().await;
}

pub(super) async fn wrong_targets_are_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::NodeLogs) {
        return;
    }
    let node = running(&fixture).await;
    let right = target(&fixture, &node);
    let slot = SlotKey {
        request_id: Uuid::new_v4().to_string(),
        ..node.slot.clone().unwrap()
    };
    let wrongs = [
        (
            Reason::NotFound,
            NodeTarget {
                node_id: "no-such-node".to_owned(),
                ..right.clone()
            },
        ),
        (
            Reason::NodeNotInCluster,
            NodeTarget {
                cluster_id: "another".to_owned(),
                ..right.clone()
            },
        ),
        (
            Reason::SlotMismatch,
            NodeTarget {
                expected_slot: Some(slot),
                ..right
            },
        ),
    ];
    for (reason, wrong) in wrongs {
        let request = StreamLogsRequest {
            node: Some(wrong),
            ..StreamLogsRequest::default()
        };
        refused(
            error(access(subject).stream_logs(request).await).map(drop),
            reason,
            "logs of another node",
        );
    }
    fixture.clean().await;
}
