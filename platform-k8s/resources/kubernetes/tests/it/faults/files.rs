//! Files that change while they are read, and terminals without input, on the real kubelet.

use drover_core::{Error, Reason};
use drover_proto::{common::v1::process_output::Output, kubernetes::v1 as api};
use drover_resources::bytes;
use futures::StreamExt as _;

use super::{
    outages::{input, start, world},
    world::{World, done, stream as all},
};

/// More than buffers between a container and here hold.
const SIZE: usize = 32 * 1024 * 1024;

async fn shell(world: &World, script: &str) -> String {
    let command = start(world, &["sh", "-c", script]);
    let told = all(world.pods().exec(input(command)), async {})
        .await
        .unwrap();
    let mut said = Vec::new();
    for output in told {
        match output.output.unwrap().output.unwrap() {
            Output::Stdout(chunk) => said.extend(bytes(chunk)),
            Output::ExitCode(code) => assert_eq!(code, 0, "{script}"),
            Output::Stderr(chunk) => panic!("{:?}", bytes(chunk)),
        }
    }
    String::from_utf8(said).unwrap()
}

/// The size that was announced, how much came, and how it ended, when a script runs after the first piece.
async fn read(world: &World, path: &str, meanwhile: &str) -> (Option<u64>, usize, Option<Error>) {
    let request = api::ReadFileRequest {
        namespace: world.namespace.name.clone(),
        pod: "a".to_owned(),
        path: path.to_owned(),
        ..api::ReadFileRequest::default()
    };
    let mut answers = done(world.pods().read_file(request)).await.unwrap();
    let (mut announced, mut count) = (None, 0);
    while let Some(answer) = answers.next().await {
        let answer = match answer {
            Ok(answer) => answer,
            Err(status) => {
                return (
                    announced,
                    count,
                    Some(drover_convert::error::from_status(&status)),
                );
            }
        };
        if count == 0 {
            announced = answer.total_size;
            shell(world, meanwhile).await;
        }
        count += answer.chunk.map(bytes).unwrap_or_default().len();
    }
    (announced, count, None)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_read_is_whole_or_an_error() {
    let Some(world) = world().await else { return };
    let size = u64::try_from(SIZE).unwrap();
    let make = format!("head -c {SIZE} /dev/zero > /dev/shm/f");
    for (meanwhile, whole) in [
        ("echo more >> /dev/shm/f", true),
        // It has no name any more, and is still open.
        ("rm /dev/shm/f", true),
        (": > /dev/shm/f", false),
    ] {
        shell(&world, &make).await;
        let (announced, count, error) = read(&world, "/dev/shm/f", meanwhile).await;
        assert_eq!(announced, Some(size), "{meanwhile}");
        assert_eq!(error.is_none(), whole, "{meanwhile}: {error:?}");
        assert_eq!(count >= SIZE, whole, "{meanwhile}: {count}");
        if let Some(error) = error {
            assert_eq!(error.reason(), Reason::Unavailable, "{meanwhile}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_without_input_shows_what_a_command_writes() {
    let Some(world) = world().await else { return };
    let mut command = start(&world, &["sh", "-c", "echo one; echo two >&2; test -t 1"]);
    command.tty = true;
    let told = all(world.pods().exec(input(command)), async {})
        .await
        .unwrap();
    let mut said = Vec::new();
    let mut code = None;
    for output in told {
        match output.output.unwrap().output.unwrap() {
            // A terminal has one output.
            Output::Stdout(chunk) => said.extend(bytes(chunk)),
            Output::Stderr(chunk) => panic!("{:?}", bytes(chunk)),
            Output::ExitCode(ended) => code = Some(ended),
        }
    }
    assert_eq!((&*said, code), (&b"one\r\ntwo\r\n"[..], Some(0)));
}
