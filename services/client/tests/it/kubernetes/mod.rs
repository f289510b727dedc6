//! The client of the resources of a Kubernetes: reads, waits that resume, commands, files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod script;

use std::{net::SocketAddr, time::Duration};

use drover_client::{
    KubernetesClient, Target, connect, in_process, is_unreachable,
    kubernetes::{Update, Wait},
    retry::Policy,
};
use drover_core::{Error, Reason};
use drover_proto::{
    common::v1::{Chunk, chunk::Content, process_output},
    kubernetes::v1::{
        self as api, PodWaitCondition, WaitPending, WaitProgress,
        pod_service_server::PodServiceServer,
    },
};
use drover_server::{Running, ServerSettings, Shutdown};
use futures::{StreamExt, TryStreamExt};
use script::{
    Script,
    Step::{Fails, Hangs, Says},
};
use tonic::service::Routes;

/// Far longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn client(script: &Script) -> KubernetesClient {
    KubernetesClient::new(in_process(Routes::new(PodServiceServer::new(
        script.clone(),
    ))))
}

async fn serve(script: &Script, address: Option<SocketAddr>) -> Running {
    let mut settings = ServerSettings::default();
    settings.listen = address.unwrap_or(settings.listen);
    let listener = drover_server::listen(&settings).await.unwrap();
    let server = PodServiceServer::new(script.clone());
    let service = drover_server::Service::new("script", "0.0.0").add(server);
    drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap()
}

fn unavailable() -> Error {
    Error::unavailable("gone for a moment")
}

/// Progress with these pods missing.
fn missing<const N: usize>(matched: u32, names: [&str; N]) -> WaitProgress {
    let pending: Vec<_> = names
        .iter()
        .map(|&name| WaitPending {
            namespace: "apps".to_owned(),
            name: name.to_owned(),
            reason: "ImagePullBackOff".to_owned(),
            uid: format!("uid-{name}"),
            ..Default::default()
        })
        .collect();
    WaitProgress {
        matched,
        met: matched - u32::try_from(N).unwrap(),
        pending,
        done: false,
    }
}

fn done(matched: u32) -> WaitProgress {
    WaitProgress {
        done: true,
        ..missing(matched, [])
    }
}

async fn next(wait: &mut Wait) -> Option<Update> {
    let next = tokio::time::timeout(PATIENCE, wait.next()).await.unwrap();
    next.map(Result::unwrap)
}

#[tokio::test(start_paused = true)]
async fn a_wait_goes_on_after_lost_connections_until_it_is_done() {
    let script = Script::default();
    script.waits([
        vec![Says(missing(2, ["a", "b"]))],
        vec![Fails(unavailable())],
        vec![Says(missing(2, ["b"])), Says(done(2))],
    ]);
    let message = api::WaitPodsRequest {
        fail_if_none: true,
        ..Default::default()
    };
    let wait = client(&script).wait_pods(message, PATIENCE);
    let updates: Vec<Update> = wait.try_collect().await.unwrap();
    let progress: Vec<_> = updates
        .iter()
        .map(|update| match update {
            Update::Progress(progress) => Some(progress.met),
            Update::Reconnecting(error) => {
                assert_eq!(error.reason(), Reason::Unavailable);
                None
            }
        })
        .collect();
    assert_eq!(progress, [Some(0), None, None, Some(1), Some(2)]);
    // What vanished while nobody looked is waited for.
    let asked: Vec<_> = script.asked().iter().map(|it| it.fail_if_none).collect();
    assert_eq!(asked, [true, false, false]);
}

#[tokio::test]
async fn a_wait_survives_a_restart_of_the_server() {
    let script = Script::default();
    script.waits([vec![Says(missing(1, ["a"])), Hangs], vec![Says(done(1))]]);
    let server = serve(&script, None).await;
    let address = server.address();
    let target: Target = format!("http://{address}").parse().unwrap();
    let client = KubernetesClient::new(connect(&target));
    let mut wait = client.wait_pods(api::WaitPodsRequest::default(), PATIENCE);
    let first = next(&mut wait).await;
    assert_eq!(first, Some(Update::Progress(missing(1, ["a"]))));

    drop(server);
    assert!(matches!(
        next(&mut wait).await,
        Some(Update::Reconnecting(_))
    ));
    let _server = serve(&script, Some(address)).await;
    assert_eq!(wait.done().await.unwrap(), done(1));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_what_waiting_cannot_change() {
    for reason in [
        Reason::NothingMatches,
        Reason::WaitImpossible,
        Reason::PermissionDenied,
        Reason::Invalid,
    ] {
        let script = Script::default();
        script.waits([
            vec![Says(missing(1, ["a"])), Fails(Error::new(reason, "no"))],
            vec![Says(done(1))],
        ]);
        let wait = client(&script).wait_pods(api::WaitPodsRequest::default(), PATIENCE);
        assert_eq!(wait.done().await.unwrap_err().reason(), reason);
        assert_eq!(script.asked().len(), 1, "{reason:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_comes_too_late_says_what_is_missing() {
    let script = Script::default();
    script.waits([vec![Says(missing(3, ["web-0"])), Hangs]]);
    let start = tokio::time::Instant::now();
    let wait = client(&script).wait_pods(api::WaitPodsRequest::default(), PATIENCE);
    let error = wait.done().await.unwrap_err();
    assert_eq!(error.reason(), Reason::DeadlineExceeded);
    let message = error.message();
    assert!(
        message.contains("2 of 3; web-0 is ImagePullBackOff"),
        "{message}"
    );
    assert_eq!(start.elapsed(), PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_gone_goes_on_with_the_pods_that_were_left() {
    let script = Script::default();
    script.waits([
        vec![Says(missing(3, ["b", "c"])), Fails(unavailable())],
        vec![Says(missing(2, ["c"])), Fails(unavailable())],
        vec![Says(done(1))],
    ]);
    let message = api::WaitPodsRequest {
        conditions: vec![PodWaitCondition::Gone as i32],
        ..Default::default()
    };
    let wait = client(&script).wait_pods(message, PATIENCE);
    wait.done().await.unwrap();
    let names: Vec<_> = script.asked().into_iter().map(|it| it.names).collect();
    assert_eq!(names, [vec![], vec!["b", "c"], vec!["c"]]);
    // A pod that was made anew under one of the names is another one.
    let uids: Vec<_> = script.asked().into_iter().map(|it| it.uids).collect();
    assert_eq!(uids, [vec![], vec!["uid-b", "uid-c"], vec!["uid-c"]]);
}

#[tokio::test]
async fn a_server_that_was_never_reached_is_given_up_before_the_deadline() {
    let script = Script::default();
    let server = serve(&script, None).await;
    let target: Target = format!("http://{}", server.address()).parse().unwrap();
    server.shutdown().await;
    let client = KubernetesClient::new(connect(&target)).with_policy(Policy {
        unreachable: Duration::from_millis(50),
        ..Policy::default()
    });
    let wait = client.wait_pods(api::WaitPodsRequest::default(), PATIENCE * 100);
    let error = tokio::time::timeout(PATIENCE, wait.done()).await.unwrap();
    assert!(is_unreachable(&error.unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn reads_are_repeated_and_writes_are_not() {
    let script = Script::default();
    let client = client(&script);
    script.fail([Reason::Unavailable, Reason::Overloaded]);
    client
        .get_pod(api::GetPodRequest::default(), PATIENCE)
        .await
        .unwrap();
    assert_eq!(script.calls(), 3);

    script.fail([Reason::Unavailable, Reason::Unavailable]);
    let created = client
        .create_pod(api::CreatePodRequest::default(), PATIENCE)
        .await;
    assert_eq!(created.unwrap_err().reason(), Reason::Unavailable);
    let deleted = client
        .delete_pod(api::DeletePodRequest::default(), PATIENCE)
        .await;
    assert_eq!(deleted.unwrap_err().reason(), Reason::Unavailable);
    assert_eq!(script.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_list_has_all_pages_and_begins_again_once_if_they_expire() {
    let script = Script::default();
    let client = client(&script);
    script.fail([Reason::PageTokenExpired]);
    let pods = client
        .list_pods(api::ListPodsRequest::default(), PATIENCE)
        .await
        .unwrap();
    let names: Vec<_> = pods
        .into_iter()
        .map(|pod| pod.metadata.unwrap().name)
        .collect();
    assert_eq!(names, ["pod-0", "pod-1", "pod-2"]);

    script.fail([Reason::PageTokenExpired; 2]);
    let error = client
        .list_pods(api::ListPodsRequest::default(), PATIENCE)
        .await;
    assert_eq!(error.unwrap_err().reason(), Reason::PageTokenExpired);
}

fn start(command: &str) -> api::ExecStart {
    api::ExecStart {
        command: vec![command.to_owned()],
        stdin: true,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_command_gets_input_in_pieces_of_64_kib_and_answers_while_it_comes() {
    let (input, output) = client(&Script::default())
        .exec(start("cat"), PATIENCE)
        .await
        .unwrap();
    let content: Vec<u8> = (0..1_000_000_u32).map(|it| it.to_le_bytes()[1]).collect();
    let writing = async {
        input.resize(120, 40).await.unwrap();
        input.write(&content).await.unwrap();
        input.close().await.unwrap();
    };
    let ((), finished) = tokio::join!(writing, output.finish(2_000_000));
    let finished = finished.unwrap();
    let (size, echo) = finished.stdout.split_at("120x40".len());
    assert_eq!(size, b"120x40");
    assert!(echo == content, "another content came back");
    assert_eq!(finished.exit_code, 64 << 10);
    assert_eq!(format!("{finished:?}"), "Finished { exit_code: 65536, .. }");
}

#[tokio::test]
async fn input_that_is_dropped_ends_the_input_of_the_command() {
    let (input, output) = client(&Script::default())
        .exec(start("cat"), PATIENCE)
        .await
        .unwrap();
    drop(input);
    assert_eq!(output.finish(0).await.unwrap().exit_code, 0);
}

#[tokio::test]
async fn a_command_without_an_exit_code_has_an_unknown_outcome() {
    let (_input, mut output) = client(&Script::default())
        .exec(start("sleep"), PATIENCE)
        .await
        .unwrap();
    let first = output.next().await.unwrap().unwrap();
    assert!(matches!(first, process_output::Output::Stdout(_)));
    let error = output.next().await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    assert!(error.message().contains("the outcome is unknown"));
    assert!(output.next().await.is_none());
}

#[tokio::test]
async fn a_script_answers_both_outputs_and_its_exit_code_within_a_limit() {
    let client = client(&Script::default());
    let message = api::RunScriptRequest {
        script: "good".to_owned(),
        ..Default::default()
    };
    let output = client.run_script(message.clone(), PATIENCE).await.unwrap();
    let finished = output.finish(7).await.unwrap();
    assert_eq!(finished.stdout, b"good");
    assert_eq!(finished.stderr, b"bad");
    assert_eq!(finished.exit_code, 3);

    let output = client.run_script(message, PATIENCE).await.unwrap();
    let error = output.finish(6).await.unwrap_err();
    assert_eq!(error.reason(), Reason::OutOfRange);
}

fn piece(data: &[u8]) -> api::ReadFileResponse {
    api::ReadFileResponse {
        chunk: Some(Chunk {
            content: Some(Content::Data(data.to_vec())),
        }),
        total_size: None,
    }
}

#[tokio::test]
async fn a_file_is_read_in_pieces_or_into_a_writer() {
    let script = Script::default();
    let client = client(&script);
    let first = api::ReadFileResponse {
        total_size: Some(5),
        ..piece(&[0, 0xff, 1])
    };
    script.file(vec![Says(first), Says(piece(b"\n\0"))]);
    let message = api::ReadFileRequest::default();
    let file = client.read_file(message.clone(), PATIENCE).await.unwrap();
    assert_eq!(file.total_size(), Some(5));
    let pieces: Vec<_> = file.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"\0\xff\x01\n\0");

    let mut writer = Vec::new();
    let size = client
        .read_file_into(message.clone(), &mut writer, PATIENCE)
        .await;
    assert_eq!(size.unwrap(), 5);
    assert_eq!(writer, b"\0\xff\x01\n\0");

    // An empty one has a message without content.
    script.file(vec![Says(api::ReadFileResponse {
        chunk: None,
        total_size: Some(0),
    })]);
    let size = client
        .read_file_into(message.clone(), &mut writer, PATIENCE)
        .await;
    assert_eq!(size.unwrap(), 0);
    assert_eq!(writer.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_cut_short_is_an_error() {
    let script = Script::default();
    let client = client(&script);
    let message = api::ReadFileRequest::default();
    script.file(vec![Says(piece(b"half")), Fails(unavailable())]);
    let file = client.read_file(message.clone(), PATIENCE).await.unwrap();
    let pieces: Vec<_> = file.collect().await;
    assert_eq!(pieces[0].as_ref().unwrap(), &b"half"[..]);
    assert_eq!(
        pieces[1].as_ref().unwrap_err().reason(),
        Reason::Unavailable
    );
    let read = client
        .read_file_into(message.clone(), &mut Vec::new(), PATIENCE)
        .await;
    assert_eq!(read.unwrap_err().reason(), Reason::Unavailable);

    script.file(vec![Says(piece(b"half")), Hangs]);
    let read = client
        .read_file_into(message, &mut Vec::new(), PATIENCE)
        .await;
    assert_eq!(read.unwrap_err().reason(), Reason::DeadlineExceeded);
}

#[tokio::test]
async fn a_log_comes_in_pieces() {
    let log = client(&Script::default())
        .stream_logs(api::StreamLogsRequest::default(), PATIENCE)
        .await
        .unwrap();
    let pieces: Vec<_> = log.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"one\ntwo\n");
}
