//! Commands, files and logs on the real kubelet, and what kwok's pods without processes answer.

use std::time::Duration;

use drover_core::{Error, Reason};
use drover_proto::{
    common::v1::{Chunk, StdinClosed, TerminalSize, process_output::Output},
    kubernetes::v1::{self as api, exec_request},
};
use drover_resources::{
    bytes,
    parts::{Answers, Input, Pods as _},
};
use drover_testing::kubernetes::until;
use futures::{StreamExt as _, channel::mpsc, stream};
use sha2::{Digest as _, Sha256};

use crate::{
    bench::{Bench, next},
    kubelet::{IMAGE, bench},
};

fn words(of: &[&str]) -> Vec<String> {
    of.iter().map(|&it| it.to_owned()).collect()
}

fn running(bench: &Bench, name: &str, command: &[&str]) -> api::Pod {
    let mut pod = bench.pod(name);
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].image = IMAGE.to_owned();
    spec.containers[0].image_pull_policy = api::ImagePullPolicy::Never.into();
    spec.containers[0].command = words(command);
    spec.termination_grace_period = Some(prost_types::Duration::default());
    // The image has no such directory.
    spec.volumes = vec![scratch("tmp")];
    spec.containers[0].volume_mounts = vec![mount("tmp", "/tmp")];
    pod
}

fn scratch(name: &str) -> api::Volume {
    api::Volume {
        name: name.to_owned(),
        source: Some(api::volume::Source::EmptyDir(api::EmptyDirVolume::default())),
    }
}

fn mount(volume: &str, path: &str) -> api::VolumeMount {
    api::VolumeMount {
        volume: volume.to_owned(),
        path: path.to_owned(),
        ..api::VolumeMount::default()
    }
}

const SLEEP: [&str; 3] = ["sh", "-c", "sleep 3600"];

fn start(bench: &Bench, pod: &str, command: &[&str]) -> api::ExecStart {
    api::ExecStart {
        namespace: bench.namespace.name.clone(),
        pod: pod.to_owned(),
        command: words(command),
        ..api::ExecStart::default()
    }
}

fn nothing() -> Input {
    stream::empty().boxed()
}

#[derive(Debug, Default, PartialEq)]
struct Ran {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

async fn ran(mut output: Answers<drover_proto::common::v1::ProcessOutput>) -> Result<Ran, Error> {
    let mut ran = Ran::default();
    while let Some(piece) = next(&mut output).await {
        assert_eq!(ran.code, None, "the exit code is the last answer");
        let text = |chunk| String::from_utf8(bytes(chunk)).unwrap();
        match piece?.output.unwrap() {
            Output::Stdout(chunk) => ran.stdout += &text(chunk),
            Output::Stderr(chunk) => ran.stderr += &text(chunk),
            Output::ExitCode(code) => ran.code = Some(code),
        }
    }
    Ok(ran)
}

fn input(messages: Vec<exec_request::Input>) -> Input {
    stream::iter(messages.into_iter().map(Ok))
        .chain(stream::pending())
        .boxed()
}

fn stdin(text: &str) -> exec_request::Input {
    use drover_proto::common::v1::chunk::Content;
    exec_request::Input::Stdin(Chunk {
        content: Some(Content::Data(text.as_bytes().to_vec())),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_answers_what_it_writes_and_its_exit_code() {
    let Some(bench) = bench().await else { return };
    bench.ready(running(&bench, "a", &SLEEP)).await;
    let run = async |command: &[&str]| {
        let start = start(&bench, "a", command);
        ran(bench.pods.exec(start, nothing()).await.unwrap())
            .await
            .unwrap()
    };
    // In Cloudsim, what a failed command wrote was always empty.
    let got = run(&["sh", "-c", "echo out; echo err >&2; exit 7"]).await;
    let expected = Ran {
        stdout: "out\n".to_owned(),
        stderr: "err\n".to_owned(),
        code: Some(7),
    };
    assert_eq!(got, expected);
    assert_eq!(run(&["no-such-command"]).await.code, Some(127));
    assert_eq!(run(&["/etc"]).await.code, Some(126));
    // The end of standard input is told, while the call stays open.
    let mut cat = start(&bench, "a", &["sh", "-s", "--", "x"]);
    cat.stdin = true;
    let script = input(vec![
        stdin("cat <<E\n$1\nE\n"),
        exec_request::Input::StdinClosed(StdinClosed {}),
    ]);
    let got = ran(bench.pods.exec(cat, script).await.unwrap())
        .await
        .unwrap();
    assert_eq!((&*got.stdout, got.code), ("x\n", Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_the_size_that_it_is_given() {
    let Some(bench) = bench().await else { return };
    bench.ready(running(&bench, "a", &SLEEP)).await;
    let mut shell = start(&bench, "a", &["sh"]);
    (shell.stdin, shell.tty) = (true, true);
    let (sender, receiver) = mpsc::unbounded();
    let mut output = bench
        .pods
        .exec(shell, receiver.map(Ok).boxed())
        .await
        .unwrap();
    let mut seen = String::new();
    for (size, expected) in [(None, "24 80"), (Some((132, 50)), "50 132")] {
        if let Some((columns, rows)) = size {
            let resize = exec_request::Input::Resize(TerminalSize { columns, rows });
            sender.unbounded_send(resize).unwrap();
        }
        while !seen.contains(expected) {
            sender.unbounded_send(stdin("stty size\n")).unwrap();
            match next(&mut output).await.unwrap().unwrap().output.unwrap() {
                Output::Stdout(chunk) => seen += &String::from_utf8_lossy(&bytes(chunk)),
                other => panic!("{other:?}"),
            }
        }
    }
    sender.unbounded_send(stdin("exit 3\n")).unwrap();
    let code = loop {
        if let Some(Output::ExitCode(code)) = next(&mut output).await.unwrap().unwrap().output {
            break code;
        }
    };
    assert_eq!(code, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_up_nobody_else_and_its_end_ends_the_command() {
    let Some(bench) = bench().await else { return };
    bench.ready(running(&bench, "a", &SLEEP)).await;
    let endless = start(&bench, "a", &["yes"]);
    let mut unread = bench.pods.exec(endless, nothing()).await.unwrap();
    next(&mut unread).await.unwrap().unwrap();
    let mut reader = start(
        &bench,
        "a",
        &["sh", "-c", "echo $$ > /tmp/pid; echo begun; exec cat"],
    );
    reader.stdin = true;
    let mut output = bench.pods.exec(reader, input(vec![])).await.unwrap();
    next(&mut output).await.unwrap().unwrap();
    let run = async |command: &str| {
        let start = start(&bench, "a", &["sh", "-c", command]);
        ran(bench.pods.exec(start, nothing()).await.unwrap())
            .await
            .unwrap()
    };
    assert_eq!(run("kill -0 $(cat /tmp/pid)").await.code, Some(0));
    drop(output);
    let gone = run("while kill -0 $(cat /tmp/pid) 2>/dev/null; do sleep 0.1; done").await;
    assert_eq!(gone.code, Some(0));
}

async fn file(bench: &Bench, path: &str) -> Result<(Option<u64>, u64, Vec<u8>), Error> {
    let request = api::ReadFileRequest {
        namespace: bench.namespace.name.clone(),
        pod: "a".to_owned(),
        path: path.to_owned(),
        ..api::ReadFileRequest::default()
    };
    let mut answers = bench.pods.read_file(request).await?;
    let (mut total, mut count, mut hash) = (None, 0, Sha256::new());
    while let Some(piece) = next(&mut answers).await {
        let piece = piece?;
        total = total.or(piece.total_size);
        let data = piece.chunk.map(bytes).unwrap_or_default();
        count += data.len() as u64;
        hash.update(data);
    }
    Ok((total, count, hash.finalize().to_vec()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_of_any_bytes_is_read_as_it_is() {
    let Some(bench) = bench().await else { return };
    bench.ready(running(&bench, "a", &SLEEP)).await;
    let make = "head -c 268435456 /dev/urandom > /tmp/f; sha256sum < /tmp/f; : > /tmp/empty";
    let start = start(&bench, "a", &["sh", "-c", make]);
    let made = ran(bench.pods.exec(start, nothing()).await.unwrap())
        .await
        .unwrap();
    let (total, count, digest) = file(&bench, "/tmp/f").await.unwrap();
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((total, count), (Some(268_435_456), 268_435_456));
    assert_eq!(made.stdout.split(' ').next(), Some(&*digest));
    let (total, count, _) = file(&bench, "/tmp/empty").await.unwrap();
    assert_eq!((total, count), (Some(0), 0));
    // It has no size before it is read.
    let (total, count, _) = file(&bench, "/proc/self/status").await.unwrap();
    assert!(total.is_none() && count > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_in_a_container_without_stat_has_a_size_too() {
    let Some(bench) = bench().await else { return };
    let begin =
        "/bin/mkdir /tmp/bin; for it in cat wc tail; do /bin/ln -s /bin/busybox /tmp/bin/$it; done
        echo 12345 >/tmp/f; exec /bin/sleep 3600";
    let mut pod = running(&bench, "a", &["/bin/sh", "-c", begin]);
    let container = &mut pod.spec.as_mut().unwrap().containers[0];
    container.env = vec![api::EnvVar {
        name: "PATH".to_owned(),
        source: Some(api::env_var::Source::Value("/tmp/bin".to_owned())),
    }];
    bench.ready(pod).await;
    until("the file is written", || async {
        file(&bench, "/tmp/f").await.ok().map(drop)
    })
    .await;
    let (total, count, _) = file(&bench, "/tmp/f").await.unwrap();
    assert_eq!((total, count), (Some(6), 6));
    let error = file(&bench, "/no").await.unwrap_err();
    assert_eq!(error.reason(), Reason::FileNotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_read_says_why() {
    let Some(bench) = bench().await else { return };
    let mut pod = running(&bench, "a", &SLEEP);
    pod.spec.as_mut().unwrap().security = Some(api::PodSecurity {
        run_as_user: Some(1000),
        ..api::PodSecurity::default()
    });
    bench.ready(pod).await;
    let make = "echo x > /tmp/f; chmod 0 /tmp/f; mkfifo /tmp/pipe";
    let start = start(&bench, "a", &["sh", "-c", make]);
    ran(bench.pods.exec(start, nothing()).await.unwrap())
        .await
        .unwrap();
    for (path, reason) in [
        ("/no", Reason::FileNotFound),
        ("/tmp/f/x", Reason::FileNotFound),
        ("/tmp", Reason::NotAFile),
        ("/tmp/pipe", Reason::NotAFile),
        ("/dev/zero", Reason::NotAFile),
        ("/tmp/f", Reason::PermissionDenied),
    ] {
        let error = file(&bench, path).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{path}: {error}");
    }
}

fn log(bench: &Bench, pod: &str) -> api::StreamLogsRequest {
    api::StreamLogsRequest {
        namespace: bench.namespace.name.clone(),
        pod: pod.to_owned(),
        ..api::StreamLogsRequest::default()
    }
}

async fn read(bench: &Bench, request: api::StreamLogsRequest) -> Result<String, Error> {
    let mut pieces = bench.pods.logs(request).await?;
    let mut text = String::new();
    while let Some(piece) = next(&mut pieces).await {
        text += &String::from_utf8(bytes(piece?)).unwrap();
    }
    Ok(text)
}

// In Cloudsim, logs were always empty.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_what_the_container_wrote_from_where_it_is_asked_for() {
    let Some(bench) = bench().await else { return };
    let command = [
        "sh",
        "-c",
        "for i in 1 2 3; do echo line $i; done; sleep 3600",
    ];
    bench.ready(running(&bench, "a", &command)).await;
    assert_eq!(
        read(&bench, log(&bench, "a")).await.unwrap(),
        "line 1\nline 2\nline 3\n"
    );
    let mut tail = log(&bench, "a");
    (tail.tail_lines, tail.timestamps) = (Some(1), true);
    let tail = read(&bench, tail).await.unwrap();
    let (time, line) = tail.split_once(' ').unwrap();
    assert_eq!((line, &time[..2]), ("line 3\n", "20"));
    let mut previous = log(&bench, "a");
    previous.previous = true;
    let error = read(&bench, previous).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ContainerNotRunning);
    let mut other = log(&bench, "a");
    other.container = "other".to_owned();
    let error = read(&bench, other).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ContainerNotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_followed_from_before_the_start_over_a_restart_to_the_end() {
    let Some(bench) = bench().await else { return };
    let command = "if [ -e /tmp/2 ]; then echo third; exit 0; fi
        if [ -e /tmp/1 ]; then touch /tmp/2; echo second; exit 1; fi
        touch /tmp/1; echo first; exit 1";
    let mut pod = running(&bench, "a", &["sh", "-c", command]);
    let spec = pod.spec.as_mut().unwrap();
    spec.restart_policy = api::RestartPolicy::OnFailure.into();
    bench.pods.create(pod).await.unwrap();
    let mut follow = log(&bench, "a");
    follow.follow = true;
    let text = tokio::time::timeout(Duration::from_secs(120), read(&bench, follow)).await;
    assert_eq!(text.unwrap().unwrap(), "first\nsecond\nthird\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_the_container_before_the_last_restart_is_read() {
    let Some(bench) = bench().await else { return };
    let command = "[ -e /tmp/1 ] && exec sleep 3600; touch /tmp/1; echo first; exit 1";
    bench
        .pods
        .create(running(&bench, "a", &["sh", "-c", command]))
        .await
        .unwrap();
    until("it was started again", || async {
        let pod = bench.pods.get(&bench.namespace.name, "a").await.unwrap();
        let containers = pod.status.unwrap().containers;
        containers
            .first()
            .filter(|it| it.ready && it.restart_count == 1)
            .map(drop)
    })
    .await;
    let mut previous = log(&bench, "a");
    previous.previous = true;
    assert_eq!(read(&bench, previous).await.unwrap(), "first\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_has_not_started_is_not_entered() {
    let bench = Bench::start().await;
    bench.pods.create(bench.unplaced("a")).await.unwrap();
    let outcome = bench
        .pods
        .exec(start(&bench, "a", &["true"]), nothing())
        .await;
    let error = outcome.err().expect("an error");
    assert_eq!(error.reason(), Reason::ContainerNotRunning, "{error}");
    let error = read(&bench, log(&bench, "a")).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ContainerNotRunning, "{error}");
    let outcome = bench
        .pods
        .exec(start(&bench, "no", &["true"]), nothing())
        .await;
    assert_eq!(outcome.err().unwrap().reason(), Reason::NotFound);
    let mut other = start(&bench, "a", &["true"]);
    other.container = "no".to_owned();
    let outcome = bench.pods.exec(other, nothing()).await;
    assert_eq!(outcome.err().unwrap().reason(), Reason::ContainerNotFound);
}
