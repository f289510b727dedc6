//! Commands, scripts, files and logs.

use drover_core::Reason;
use drover_proto::{
    common::v1::{Chunk, StdinClosed, TerminalSize, chunk::Content, process_output::Output},
    kubernetes::v1::{self as api, PodWaitCondition as Want, env_var, exec_request::Input, volume},
};
use futures::stream;

use super::{
    Subject,
    fixture::{Ran, all, assert_reason, assert_refused, bytes, labels, ran, spec},
};

fn output(answer: api::ExecResponse) -> Output {
    answer.output.unwrap().output.unwrap()
}

fn stdin(data: &[u8]) -> Input {
    Input::Stdin(Chunk {
        content: Some(Content::Data(data.to_vec())),
    })
}

async fn exec(
    subject: &Subject,
    pod: &str,
    command: &[&str],
    input: Vec<Input>,
) -> drover_core::Result<Ran> {
    let start = api::ExecStart {
        stdin: !input.is_empty(),
        ..start(subject, pod, command)
    };
    send(subject, start, input).await
}

fn start(subject: &Subject, pod: &str, command: &[&str]) -> api::ExecStart {
    api::ExecStart {
        namespace: subject.namespace.clone(),
        pod: pod.into(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        ..Default::default()
    }
}

async fn send(
    subject: &Subject,
    start: api::ExecStart,
    input: Vec<Input>,
) -> drover_core::Result<Ran> {
    let all = [Input::Start(start)].into_iter().chain(input);
    let all: Vec<_> = all
        .map(|input| api::ExecRequest { input: Some(input) })
        .collect();
    ran(subject.pods().exec(stream::iter(all)).await, output).await
}

pub(super) async fn a_command_answers_both_outputs_and_its_exit_code(subject: &Subject) {
    let pod = subject.running().await;
    let command = ["sh", "-c", "echo out; echo err >&2; exit 3"];
    let ran = exec(subject, &pod, &command, Vec::new()).await.unwrap();
    assert_eq!(
        (ran.stdout, ran.stderr, ran.code),
        (b"out\n".to_vec(), b"err\n".to_vec(), Some(3))
    );
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_command_that_does_not_exist_is_an_exit_code(subject: &Subject) {
    let pod = subject.running().await;
    let ran = exec(subject, &pod, &["never-made-this"], Vec::new())
        .await
        .unwrap();
    assert_eq!(ran.code, Some(127));
    subject.remove_pod(&pod).await;
}

pub(super) async fn standard_input_reaches_the_command_whole(subject: &Subject) {
    let pod = subject.running().await;
    let all: Vec<u8> = (0..300_000_u32)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    let mut input: Vec<Input> = all.chunks(50_000).map(stdin).collect();
    input.push(Input::StdinClosed(StdinClosed {}));
    let ran = exec(subject, &pod, &["cat"], input).await.unwrap();
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.stdout == all,
        "{} of {} bytes",
        ran.stdout.len(),
        all.len()
    );
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_command_without_input_sees_its_end(subject: &Subject) {
    let pod = subject.running().await;
    let ran = exec(subject, &pod, &["cat"], Vec::new()).await.unwrap();
    assert_eq!((ran.stdout.len(), ran.code), (0, Some(0)));
    subject.remove_pod(&pod).await;
}

pub(super) async fn binary_output_survives(subject: &Subject) {
    let pod = subject.running().await;
    let ran = subject.script(&pod, "printf '\\000\\377\\001'").await;
    assert_eq!(
        (ran.stdout, ran.code, ran.texts),
        (vec![0, 255, 1], Some(0), 0)
    );
    subject.remove_pod(&pod).await;
}

pub(super) async fn text_is_answered_as_text(subject: &Subject) {
    let pod = subject.running().await;
    let start = api::ExecStart {
        as_text: true,
        ..start(subject, &pod, &["sh", "-c", "printf 'a\\377'; echo €"])
    };
    let ran = send(subject, start, Vec::new()).await.unwrap();
    assert_eq!(ran.text(), "a\u{fffd}€\n");
    assert!(ran.texts > 0);
    subject.remove_pod(&pod).await;
}

async fn script(subject: &Subject, request: api::RunScriptRequest) -> Ran {
    let answers = subject.pods().run_script(request).await;
    let take = |answer: api::RunScriptResponse| answer.output.unwrap().output.unwrap();
    ran(answers, take).await.unwrap()
}

pub(super) async fn a_script_gets_its_arguments(subject: &Subject) {
    let pod = subject.running().await;
    let request = api::RunScriptRequest {
        namespace: subject.namespace.clone(),
        pod: pod.clone(),
        script: "echo \"$#:$1:$2\"".into(),
        args: vec!["a b".into(), "-c".into()],
        ..Default::default()
    };
    assert_eq!(script(subject, request).await.text(), "2:a b:-c\n");
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_script_is_read_from_standard_input(subject: &Subject) {
    let pod = subject.running().await;
    let text = "one line\nand another, $HOME and all\n";
    let request = api::RunScriptRequest {
        namespace: subject.namespace.clone(),
        pod: pod.clone(),
        script: text.into(),
        interpreter: vec!["cat".into()],
        ..Default::default()
    };
    assert_eq!(script(subject, request).await.text(), text);
    subject.remove_pod(&pod).await;
}

pub(super) async fn the_failure_of_a_script_is_its_exit_code(subject: &Subject) {
    let pod = subject.running().await;
    let ran = subject
        .script(&pod, "echo so far\nexit 7\necho never")
        .await;
    assert_eq!((ran.text(), ran.code), ("so far\n", Some(7)));
    subject.remove_pod(&pod).await;
}

pub(super) async fn messages_out_of_order_are_refused(subject: &Subject) {
    let pod = subject.running().await;
    let runs = ["sleep", "600"];
    let again = Input::Start(start(subject, &pod, &runs));
    let size = Input::Resize(TerminalSize {
        columns: 80,
        rows: 24,
    });
    for (field, input) in [("start", again), ("resize", size), ("stdin", stdin(b"x"))] {
        let outcome = send(subject, start(subject, &pod, &runs), vec![input]).await;
        assert_refused(field, outcome, field);
    }
    let open = api::ExecStart {
        stdin: true,
        ..start(subject, &pod, &runs)
    };
    let large = vec![stdin(&[0; 64 * 1024 + 1])];
    assert_refused(
        "too large",
        send(subject, open.clone(), large).await,
        "stdin",
    );
    let input = vec![Input::StdinClosed(StdinClosed {}), stdin(b"x")];
    assert_refused("after its end", send(subject, open, input).await, "stdin");
    subject.remove_pod(&pod).await;
}

/// What ReadFile answers: the content, the size that was announced, and the error.
async fn read(
    subject: &Subject,
    (pod, container): (&str, &str),
    path: &str,
) -> (Vec<u8>, Option<u64>, Option<drover_core::Error>) {
    let request = api::ReadFileRequest {
        namespace: subject.namespace.clone(),
        pod: pod.into(),
        container: container.into(),
        path: path.into(),
        as_text: false,
    };
    let answers = subject.pods().read_file(request).await;
    let (pieces, error) = all(answers, |answer: api::ReadFileResponse| answer).await;
    let size = pieces.first().and_then(|first| first.total_size);
    assert!(
        pieces
            .iter()
            .skip(1)
            .all(|piece| piece.total_size.is_none())
    );
    let chunks = pieces.into_iter().filter_map(|piece| piece.chunk);
    (chunks.flat_map(bytes).collect(), size, error)
}

pub(super) async fn a_file_is_read_whole_and_binary(subject: &Subject) {
    let pod = subject.running().await;
    subject
        .script(
            &pod,
            "head -c 200000 /dev/zero > /tmp/large; printf '\\377end' >> /tmp/large",
        )
        .await;
    let (data, size, error) = read(subject, (&pod, ""), "/tmp/large").await;
    assert_eq!(error, None);
    assert_eq!(data.len(), 200_004);
    assert!(data[..200_000].iter().all(|byte| *byte == 0));
    assert_eq!(&data[200_000..], b"\xffend");
    assert!(size.is_none_or(|size| size == 200_004), "{size:?}");
    subject.remove_pod(&pod).await;
}

pub(super) async fn an_empty_file_is_one_message(subject: &Subject) {
    let pod = subject.running().await;
    subject.script(&pod, "echo -n '' > /tmp/empty").await;
    let request = api::ReadFileRequest {
        namespace: subject.namespace.clone(),
        pod: pod.clone(),
        path: "/tmp/empty".into(),
        ..Default::default()
    };
    let answers = subject.pods().read_file(request).await;
    let (pieces, error) = all(answers, |answer: api::ReadFileResponse| answer).await;
    assert_eq!(error, None);
    assert!(pieces.len() == 1 && pieces[0].chunk.is_none(), "{pieces:?}");
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_file_that_does_not_exist_is_named(subject: &Subject) {
    let pod = subject.running().await;
    let (_, _, error) = read(subject, (&pod, ""), "/tmp/never-made").await;
    let error = assert_reason("file", error.map_or(Ok(()), Err), Reason::FileNotFound);
    assert!(error.message().contains("/tmp/never-made"), "{error}");
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_directory_is_no_file(subject: &Subject) {
    let pod = subject.running().await;
    let (_, _, error) = read(subject, (&pod, ""), "/tmp").await;
    assert_reason("directory", error.map_or(Ok(()), Err), Reason::NotAFile);
    subject.remove_pod(&pod).await;
}

pub(super) async fn the_container_is_chosen_by_name_and_by_default(subject: &Subject) {
    let mut pod = subject.pod();
    let metadata = pod.metadata.as_mut().unwrap();
    metadata.annotations = labels(&[("kubectl.kubernetes.io/default-container", "second")]);
    let mut second = spec(&mut pod).containers[0].clone();
    second.name = "second".into();
    second.env = vec![api::EnvVar {
        name: "WHO".into(),
        source: Some(env_var::Source::Value("second".into())),
    }];
    spec(&mut pod).containers.push(second);
    let pod = subject.started(pod).await;
    for (container, expected) in [("", "second\n"), ("second", "second\n"), ("main", "\n")] {
        let start = api::ExecStart {
            container: container.into(),
            ..start(subject, &pod, &["sh", "-c", "echo $WHO"])
        };
        let ran = send(subject, start, Vec::new()).await.unwrap();
        assert_eq!(ran.text(), expected, "{container}");
    }
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_container_that_does_not_exist_is_named(subject: &Subject) {
    let pod = subject.running().await;
    let start = api::ExecStart {
        container: "never-made".into(),
        ..start(subject, &pod, &["true"])
    };
    let outcome = send(subject, start, Vec::new()).await;
    let error = assert_reason("exec", outcome, Reason::ContainerNotFound);
    assert!(error.message().contains("never-made"), "{error}");
    let (_, _, error) = read(subject, (&pod, "never-made"), "/tmp/a").await;
    assert_reason("file", error.map_or(Ok(()), Err), Reason::ContainerNotFound);
    let request = api::StreamLogsRequest {
        container: "never-made".into(),
        ..log_of(subject, &pod)
    };
    assert_reason(
        "log",
        log(subject, request).await,
        Reason::ContainerNotFound,
    );
    subject.remove_pod(&pod).await;
}

/// A pod that has ended.
async fn ended(subject: &Subject, script: &str) -> String {
    let pod = subject.create_pod(subject.pod_once(script)).await.unwrap();
    let name = pod.metadata.unwrap().name;
    let request = subject.wait_for(&name, &[Want::Succeeded, Want::Failed]);
    let (progress, error) = subject.wait(request).await;
    assert_eq!(error, None, "{progress:?}");
    name
}

pub(super) async fn a_container_that_ended_does_not_run_commands(subject: &Subject) {
    let pod = ended(subject, "exit 0").await;
    let outcome = exec(subject, &pod, &["true"], Vec::new()).await;
    assert_reason("exec", outcome, Reason::ContainerNotRunning);
    subject.remove_pod(&pod).await;
}

fn log_of(subject: &Subject, pod: &str) -> api::StreamLogsRequest {
    api::StreamLogsRequest {
        namespace: subject.namespace.clone(),
        pod: pod.into(),
        ..Default::default()
    }
}

async fn log(subject: &Subject, request: api::StreamLogsRequest) -> drover_core::Result<String> {
    let answers = subject.pods().stream_logs(request).await;
    let (chunks, error) = all(answers, |answer: api::StreamLogsResponse| {
        answer.chunk.unwrap()
    })
    .await;
    match error {
        Some(error) => Err(error),
        None => Ok(String::from_utf8(chunks.into_iter().flat_map(bytes).collect()).unwrap()),
    }
}

pub(super) async fn logs_are_never_empty_where_something_was_written(subject: &Subject) {
    let pod = ended(subject, "echo one; echo two >&2; exit 1").await;
    let text = log(subject, log_of(subject, &pod)).await.unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "two"]);
    let request = api::StreamLogsRequest {
        timestamps: true,
        ..log_of(subject, &pod)
    };
    let text = log(subject, request).await.unwrap();
    let (time, _) = text.lines().next().unwrap().split_once(' ').unwrap();
    assert!(time.parse::<prost_types::Timestamp>().is_ok(), "{time}");
    subject.remove_pod(&pod).await;
}

pub(super) async fn only_the_last_lines_of_a_log(subject: &Subject) {
    let pod = ended(subject, "echo one; echo two; echo three").await;
    for (lines, expected) in [(2, "two\nthree\n"), (0, ""), (9, "one\ntwo\nthree\n")] {
        let request = api::StreamLogsRequest {
            tail_lines: Some(lines),
            ..log_of(subject, &pod)
        };
        assert_eq!(log(subject, request).await.unwrap(), expected, "{lines}");
    }
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_log_can_be_followed_until_the_container_ends(subject: &Subject) {
    // The container may not have started yet: it is waited for.
    let pod = subject
        .create_pod(subject.pod_once("echo begins; sleep 1; echo ends"))
        .await
        .unwrap();
    let name = pod.metadata.unwrap().name;
    let request = api::StreamLogsRequest {
        follow: true,
        ..log_of(subject, &name)
    };
    assert_eq!(log(subject, request).await.unwrap(), "begins\nends\n");
    subject.remove_pod(&name).await;
}

pub(super) async fn a_log_goes_on_in_the_container_that_is_started_again(subject: &Subject) {
    let mut pod = subject.pod_once("echo run; exit 1");
    spec(&mut pod).restart_policy = api::RestartPolicy::OnFailure as i32;
    let pod = subject.create_pod(pod).await.unwrap();
    let name = pod.metadata.unwrap().name;
    let request = api::StreamLogsRequest {
        follow: true,
        ..log_of(subject, &name)
    };
    let mut stream = subject
        .pods()
        .stream_logs(request)
        .await
        .unwrap()
        .into_inner();
    let mut text = String::new();
    while text.len() < "run\n".len() * 3 {
        let answer = stream.message().await.unwrap().expect("it goes on");
        text += std::str::from_utf8(&bytes(answer.chunk.unwrap())).unwrap();
    }
    assert_eq!(text, "run\n".repeat(3));
    drop(stream);
    subject.remove_pod(&name).await;
}

pub(super) async fn a_container_that_never_restarted_has_no_previous_log(subject: &Subject) {
    let pod = subject.running().await;
    let request = api::StreamLogsRequest {
        previous: true,
        ..log_of(subject, &pod)
    };
    assert_reason(
        "previous",
        log(subject, request).await,
        Reason::ContainerNotRunning,
    );
    subject.remove_pod(&pod).await;
}

pub(super) async fn the_log_before_a_restart_is_kept(subject: &Subject) {
    let mut pod = subject.pod_once("echo run; exit 1");
    spec(&mut pod).restart_policy = api::RestartPolicy::OnFailure as i32;
    let name = subject
        .create_pod(pod)
        .await
        .unwrap()
        .metadata
        .unwrap()
        .name;
    crate::wait::holds("the container was started again", async || {
        let status = subject.get_pod(&name).await.unwrap().status.unwrap();
        status
            .containers
            .first()
            .is_some_and(|one| one.restart_count > 0)
    })
    .await;
    let request = api::StreamLogsRequest {
        previous: true,
        ..log_of(subject, &name)
    };
    // It is started again and again: while the container before gives way to the next, its log is not there.
    crate::wait::holds("the log before is read", async || {
        log(subject, request.clone()).await.as_deref() == Ok("run\n")
    })
    .await;
    subject.remove_pod(&name).await;
}

pub(super) async fn variables_have_their_values_from_everywhere(subject: &Subject) {
    let configuration = subject
        .create_configuration(subject.configuration())
        .await
        .unwrap();
    let of = configuration.metadata.unwrap().name;
    let mut pod = subject.pod();
    let name = pod.metadata.clone().unwrap().name;
    pod.metadata.as_mut().unwrap().labels = labels(&[("app", "web")]);
    let main = &mut spec(&mut pod).containers[0];
    let key = api::KeyRef {
        name: of.clone(),
        key: "colour".into(),
        optional: false,
    };
    let sources = [
        ("A", env_var::Source::Value("plain".into())),
        ("B", env_var::Source::Field("metadata.name".into())),
        ("C", env_var::Source::Field("metadata.labels['app']".into())),
        ("D", env_var::Source::Configuration(key)),
    ];
    main.env = sources
        .into_iter()
        .map(|(name, source)| api::EnvVar {
            name: name.into(),
            source: Some(source),
        })
        .collect();
    main.env_from = vec![api::EnvSource {
        source: Some(api::env_source::Source::Configuration(of)),
        prefix: "X_".into(),
        optional: false,
    }];
    let pod = subject.started(pod).await;
    let ran = subject.script(&pod, "echo $A $B $C $D $X_colour").await;
    assert_eq!(ran.text(), format!("plain {name} web blue blue\n"));
    subject.remove_pod(&pod).await;
}

pub(super) async fn a_mounted_configuration_is_a_file(subject: &Subject) {
    let configuration = subject
        .create_configuration(subject.configuration())
        .await
        .unwrap();
    let mut pod = subject.pod();
    spec(&mut pod).volumes = vec![api::Volume {
        name: "settings".into(),
        source: Some(volume::Source::Configuration(api::FilesVolume {
            name: configuration.metadata.unwrap().name,
            items: vec![api::KeyPath {
                key: "colour".into(),
                path: "paint/it".into(),
                mode: None,
            }],
            ..Default::default()
        })),
    }];
    spec(&mut pod).containers[0].volume_mounts = vec![api::VolumeMount {
        volume: "settings".into(),
        path: "/etc/settings".into(),
        ..Default::default()
    }];
    let pod = subject.started(pod).await;
    let (data, _, error) = read(subject, (&pod, ""), "/etc/settings/paint/it").await;
    assert_eq!((data, error), (b"blue".to_vec(), None));
    subject.remove_pod(&pod).await;
}
