//! Commands in a node, and its log.

use std::fs;

use drover_core::{Reason, error::KILLED};
use drover_platform::driver::Driver;
use drover_proto::{
    common::v1::{Chunk, StdinClosed, chunk::Content, process_output::Output},
    platform::v1::{ExecRequest, ExecStart, StreamLogsRequest, exec_request::Input},
};
use futures::{StreamExt, stream};

use crate::local_support::{World, kill, pid, processes_of, request, until};

pub(super) async fn exec(
    world: &World,
    node: &drover_proto::platform::v1::Node,
    command: &[&str],
    input: &[&str],
) -> (String, i32) {
    let start = ExecStart {
        command: command.iter().map(|part| (*part).to_owned()).collect(),
        stdin: !input.is_empty(),
        ..ExecStart::default()
    };
    let chunks = input.iter().map(|part| {
        Input::Stdin(Chunk {
            content: Some(Content::Text((*part).to_owned())),
        })
    });
    let messages = chunks
        .chain([Input::StdinClosed(StdinClosed {})])
        .map(|input| Ok(ExecRequest { input: Some(input) }));
    let input = stream::iter(messages.collect::<Vec<_>>())
        .chain(stream::pending())
        .boxed();
    let mut output = world.driver.exec(node, start, input).await.unwrap();
    let (mut written, mut code) = (Vec::new(), None);
    while let Some(item) = output.next().await {
        assert!(code.is_none(), "the exit code is the last message");
        match item.unwrap().output.unwrap() {
            Output::Stdout(Chunk {
                content: Some(Content::Data(data)),
            })
            | Output::Stderr(Chunk {
                content: Some(Content::Data(data)),
            }) => written.extend(data),
            Output::ExitCode(number) => code = Some(number),
            other => panic!("{other:?}"),
        }
    }
    (String::from_utf8(written).unwrap(), code.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_beside_the_node_with_its_variables_input_and_exit_code() {
    let world = World::new();
    let node = world.start(&request("redis", "r1", 1)).await.remove(0);
    let ping = ["sh", "-c", "redis-cli -p $DROVER_PORT_CLIENT ping"];
    assert_eq!(
        exec(&world, &node, &ping, &[]).await,
        ("PONG\n".to_owned(), 0)
    );
    assert_eq!(
        exec(&world, &node, &["cat"], &["a", "b\n"]).await,
        ("ab\n".to_owned(), 0)
    );
    assert_eq!(
        exec(&world, &node, &["sh", "-c", "echo x >&2; exit 5"], &[]).await,
        ("x\n".to_owned(), 5)
    );
    assert_eq!(
        exec(&world, &node, &["no-such-program"], &[]).await,
        ("no-such-program: not found\n".to_owned(), 127)
    );
    assert_eq!(
        exec(&world, &node, &["sh", "-c", "kill -9 $$"], &[]).await,
        (String::new(), 137)
    );
    assert_eq!(
        exec(&world, &node, &["true"], &["ignored", "input"]).await,
        (String::new(), 0)
    );
    assert_eq!(
        exec(&world, &node, &["sh", "-c", "sleep 1000 & echo left"], &[]).await,
        ("left\n".to_owned(), 0)
    );
    let sleeps = |pid: u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"sleep\x001000\0")
    };
    until("nothing of the commands is left", async || {
        !processes_of(&world.state()).into_keys().any(sleeps)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_killed_with_its_children_when_its_call_is_dropped_or_its_node_ends() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let start = || ExecStart {
        command: ["sh", "-c", "sleep 1000 & echo on; wait"]
            .map(str::to_owned)
            .to_vec(),
        ..ExecStart::default()
    };
    let mut output = world
        .driver
        .exec(&node, start(), stream::pending().boxed())
        .await
        .unwrap();
    output.next().await.unwrap().unwrap();
    assert_eq!(processes_of(&world.state()).len(), 3);
    drop(output);
    until("only the node is left", async || {
        processes_of(&world.state()).len() == 1
    })
    .await;

    let mut output = world
        .driver
        .exec(&node, start(), stream::pending().boxed())
        .await
        .unwrap();
    output.next().await.unwrap().unwrap();
    kill(pid(&node), "KILL");
    let error = output.next().await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Reason::NodeNotRunning);
    // It may have done all that it was to do.
    assert!(error.metadata().contains_key(KILLED), "{error:?}");
    until("nothing is left", async || {
        processes_of(&world.state()).is_empty()
    })
    .await;
    let error = world
        .driver
        .exec(&node, start(), stream::pending().boxed())
        .await
        .err()
        .unwrap();
    assert_eq!(error.reason(), Reason::NodeNotRunning);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_refused_in_clear_words() {
    let world = World::new();
    let node = world.start(&request("sleeper", "r1", 1)).await.remove(0);
    let start = ExecStart {
        command: vec!["true".to_owned()],
        tty: true,
        ..ExecStart::default()
    };
    let error = world
        .driver
        .exec(&node, start, stream::pending().boxed())
        .await
        .err()
        .unwrap();
    assert_eq!(error.reason(), Reason::Unimplemented);
    assert!(error.message().contains("without a terminal"), "{error}");
}

async fn log(
    world: &World,
    node: &drover_proto::platform::v1::Node,
    request: StreamLogsRequest,
) -> String {
    let mut pieces = world.driver.logs(node, &request).await.unwrap();
    let mut log = Vec::new();
    while let Some(piece) = pieces.next().await {
        log.extend(piece.unwrap());
    }
    String::from_utf8(log).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_both_outputs_can_be_tailed_and_followed_to_the_end_of_the_node() {
    let world = World::new();
    let node = world.start(&request("printer", "r1", 1)).await.remove(0);
    until("it has written", async || {
        log(&world, &node, StreamLogsRequest::default()).await == "one\ntwo\n"
    })
    .await;
    let tail = StreamLogsRequest {
        tail_lines: Some(1),
        ..StreamLogsRequest::default()
    };
    assert_eq!(log(&world, &node, tail.clone()).await, "two\n");

    let mut followed = world
        .driver
        .logs(
            &node,
            &StreamLogsRequest {
                follow: true,
                ..tail
            },
        )
        .await
        .unwrap();
    assert_eq!(followed.next().await.unwrap().unwrap(), b"two\n");
    fs::write(world.node_directory(&node).join("data/more"), "").unwrap();
    assert_eq!(followed.next().await.unwrap().unwrap(), b"three\n");
    world.remove(&node).await;
    assert!(followed.next().await.is_none());

    let previous = StreamLogsRequest {
        previous: true,
        ..StreamLogsRequest::default()
    };
    let other = world.start(&request("sleeper", "r2", 1)).await.remove(0);
    assert_eq!(
        world
            .driver
            .logs(&other, &previous)
            .await
            .err()
            .unwrap()
            .reason(),
        Reason::NodeNotRunning
    );
}
