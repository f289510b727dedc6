//! Streams logs and runs commands (exec) through the API server. The data is neither stored nor logged.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_platform::driver::{ExecInput, ExecOutput, LogStream, not_running};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, TerminalSize, chunk::Content, process_output::Output},
    platform::v1::{
        ExecStart, Node, StreamLogsRequest, exec_request::Input, stream_logs_request::Since,
    },
};
use drover_resources_kubernetes::{exit_code, not_run};
use futures::{SinkExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::api::{AttachParams, AttachedProcess, LogParams};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};

use crate::{
    client::{Api, Call, Kind, ListQuery, Meta as _, Shape, WatchEvent, bytes, escape, prepared},
    discover::query,
    pod::{ContainerStatus, Pod},
};

/// Annotation that names the container kubectl uses by default.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Bytes buffered in each direction between the API server and the client of a command.
const BUFFER: usize = 64 * 1024;
/// Chunks of output buffered for a slow client.
const MAX_PIECES: usize = 4;
/// Maximum silence of the watch while waiting for a container.
const SILENCE: Duration = Duration::from_secs(600);

struct Place {
    namespace: String,
    pod: String,
    container: String,
}

/// Streams the log of the node's first container, or of the one that its annotation names.
///
/// # Errors
/// `NodeNotRunning` if the node has no pod, or one that has not started and the request does not wait for it.
pub(crate) async fn logs(
    api: &Api,
    pods: &Arc<Kind>,
    node: &Node,
    request: &StreamLogsRequest,
) -> Result<LogStream> {
    let place = place(api, pods, node).await?;
    let call = Call::new("get", pods, &place.namespace, &place.pod);
    let parameters = parameters(&place, request);
    let wanted = pods.requests(&place.namespace);
    let wanted = wanted.logs(&escape(&place.pod), &parameters);
    let wanted = prepared(&call, wanted, "*/*")?;
    loop {
        let error = match bytes(api, call.clone(), wanted.clone()).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let not_started = error.message().contains("is waiting to start")
            || error.message().contains("ContainerCreating")
            || error.message().contains("does not have a host assigned");
        if !not_started {
            return Err(refused(error, node));
        }
        if !request.follow {
            return Err(not_running(&node.node_id));
        }
        started(api, pods, &place, node).await?;
    }
}

/// The API server returns BadRequest for a log that does not exist.
fn refused(error: Error, node: &Node) -> Error {
    match error.reason() {
        Reason::NotFound => not_running(&node.node_id),
        Reason::Invalid => Error::new(Reason::Precondition, error.message()),
        _ => error,
    }
}

fn parameters(place: &Place, request: &StreamLogsRequest) -> LogParams {
    let mut parameters = LogParams {
        container: Some(place.container.clone()),
        follow: request.follow,
        previous: request.previous,
        tail_lines: request.tail_lines.map(i64::from),
        ..LogParams::default()
    };
    match &request.since {
        Some(Since::SinceTime(time)) => {
            // Whole seconds: kube rounds up, which would leave lines out.
            parameters.since_time = jiff::Timestamp::from_second(time.seconds).ok();
        }
        Some(Since::SinceDuration(span)) => {
            // `sinceSeconds` takes whole seconds and must be at least 1.
            let seconds = span.seconds + i64::from(span.nanos > 0);
            parameters.since_seconds = Some(seconds.max(1));
        }
        None => {}
    }
    parameters
}

/// Waits until the container runs or has run.
async fn started(api: &Api, pods: &Kind, place: &Place, node: &Node) -> Result<()> {
    let fields = format!("metadata.name={}", place.pod);
    let query: ListQuery<'_> = query(pods, &place.namespace, "", &fields, Shape::Full);
    let has_started = |pod: &Pod| {
        let all = pod.status.container_statuses.iter();
        let mut all = all.chain(&pod.status.init_container_statuses);
        let ran =
            |it: &ContainerStatus| it.state.running.is_some() || it.state.terminated.is_some();
        all.any(|it| it.name == place.container && ran(it))
    };
    loop {
        let mut found = None;
        let version = api
            .list(&query, |page: Vec<Pod>| found = page.into_iter().next())
            .await?;
        match found {
            None => return Err(not_running(&node.node_id)),
            Some(pod) if has_started(&pod) => return Ok(()),
            Some(_) => {}
        }
        let mut events = api.watch::<Pod>(&query, &version).await?;
        while let Some(event) = events.next(SILENCE).await? {
            match event {
                WatchEvent::Deleted(_) => return Err(not_running(&node.node_id)),
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) if has_started(&pod) => {
                    return Ok(());
                }
                _ => {}
            }
        }
    }
}

/// Resolves the current pod of a node.
async fn place(api: &Api, pods: &Kind, node: &Node) -> Result<Place> {
    let (namespace, name) = node
        .provider_id
        .strip_prefix("kubernetes://")
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(|| not_running(&node.node_id))?;
    let pod: Option<Pod> = api.get(pods, namespace, name).await?;
    let pod = pod.ok_or_else(|| not_running(&node.node_id))?;
    let named = pod.metadata.annotations().get(DEFAULT_CONTAINER);
    let first = pod.spec.containers.first().map(|it| &it.name);
    let container = named
        .filter(|name| pod.spec.containers.iter().any(|it| it.name == **name))
        .or(first)
        .ok_or_else(|| not_running(&node.node_id))?;
    Ok(Place {
        namespace: namespace.to_owned(),
        pod: name.to_owned(),
        container: container.clone(),
    })
}

/// Runs a command in the node's container. Dropping the output closes the connection; the command then ends as soon as
/// it reads or writes.
///
/// # Errors
/// `NodeNotRunning` if the node has no running pod.
pub(crate) async fn exec(
    api: &Api,
    pods: &Arc<Kind>,
    node: &Node,
    start: ExecStart,
    input: ExecInput,
) -> Result<ExecOutput> {
    let place = place(api, pods, node).await?;
    let call = Call::new("create", pods, &place.namespace, &place.pod);
    let parameters = AttachParams::default()
        .container(place.container.clone())
        .stdin(start.stdin)
        .stdout(true)
        .stderr(!start.tty)
        .tty(start.tty)
        .max_stdin_buf_size(BUFFER)
        .max_stdout_buf_size(BUFFER)
        .max_stderr_buf_size(BUFFER);
    let pods = kube::Api::<ApiPod>::namespaced(api.kube(), &place.namespace);
    let command = start.command.iter().map(String::as_str);
    let opened = pods.exec(&place.pod, command, &parameters).await;
    let process = opened.map_err(|error| not_opened(&call, node, &error))?;
    let size = start.tty.then(|| {
        start.terminal_size.unwrap_or(TerminalSize {
            columns: 80,
            rows: 24,
        })
    });
    let (sender, receiver) = mpsc::channel(MAX_PIECES);
    // Ends with the process, or when the receiver of its output is dropped.
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = run(process, call, size, input, sender) => {}
            () = closed.closed() => {}
        }
    });
    Ok(futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|item| (item, receiver))
    })
    .boxed())
}

fn not_opened(call: &Call, node: &Node, error: &kube::Error) -> Error {
    let kube::Error::Api(status) = error else {
        return crate::errors::of(call, error);
    };
    let message = &status.message;
    let not_there = message.contains("container not found")
        || message.contains("does not have a host assigned")
        || message.contains("cannot exec into a container in a completed pod");
    let error = crate::errors::of(call, error);
    if not_there || error.reason() == Reason::NotFound {
        return not_running(&node.node_id);
    }
    error
}

type Output1 = mpsc::Sender<Result<ProcessOutput>>;

async fn run(
    mut process: AttachedProcess,
    call: Call,
    size: Option<TerminalSize>,
    input: ExecInput,
    output: Output1,
) {
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let write = feed(process.stdin(), process.terminal_size(), size, input);
    let read = async {
        futures::join!(
            copy(stdout, &output, Output::Stdout),
            copy(stderr, &output, Output::Stderr)
        );
        match status {
            Some(status) => status.await,
            None => None,
        }
    };
    // The input may outlast the command: the status of the command ends the session.
    tokio::pin!(read, write);
    let status = tokio::select! {
        status = &mut read => status,
        () = &mut write => read.await,
    };
    let last = match status {
        Some(status) => exit_code(&status).ok_or_else(|| not_run(&call)),
        None => Err(Error::unavailable(format!(
            "{call}: the connection to the command was cut"
        ))),
    };
    let last = last.map(|code| ProcessOutput {
        output: Some(Output::ExitCode(code)),
    });
    // Fails only if the receiver is gone.
    let _ = output.send(last).await;
}

async fn copy(from: Option<impl AsyncRead + Unpin>, to: &Output1, kind: fn(Chunk) -> Output) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; BUFFER];
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
    {
        let piece = Chunk {
            content: Some(Content::Data(buffer[..count].to_vec())),
        };
        let piece = ProcessOutput {
            output: Some(kind(piece)),
        };
        if to.send(Ok(piece)).await.is_err() {
            return;
        }
    }
}

/// Forwards input and terminal sizes until the input ends.
async fn feed(
    mut stdin: Option<impl tokio::io::AsyncWrite + Unpin>,
    mut terminal: Option<futures::channel::mpsc::Sender<kube::api::TerminalSize>>,
    size: Option<TerminalSize>,
    mut input: ExecInput,
) {
    if let (Some(terminal), Some(size)) = (&mut terminal, &size) {
        // Fails only if the command has ended.
        let _ = terminal.send(characters(size)).await;
    }
    while let Some(Ok(message)) = input.next().await {
        match message.input {
            Some(Input::Stdin(chunk)) => {
                let data = match chunk.content {
                    Some(Content::Data(data)) => data,
                    Some(Content::Text(text)) => text.into_bytes(),
                    None => continue,
                };
                let failed = match &mut stdin {
                    Some(to) => to.write_all(&data).await.is_err() || to.flush().await.is_err(),
                    None => false,
                };
                if failed {
                    stdin = None;
                }
            }
            Some(Input::Resize(size)) => {
                if let Some(terminal) = &mut terminal {
                    let _ = terminal.send(characters(&size)).await;
                }
            }
            Some(Input::StdinClosed(_)) => close(stdin.take()).await,
            Some(Input::Start(_)) | None => {}
        }
    }
    close(stdin).await;
}

async fn close(stdin: Option<impl tokio::io::AsyncWrite + Unpin>) {
    if let Some(mut stdin) = stdin {
        // Fails only if the command has ended.
        let _ = stdin.shutdown().await;
    }
}

fn characters(size: &TerminalSize) -> kube::api::TerminalSize {
    kube::api::TerminalSize {
        width: u16::try_from(size.columns).unwrap_or(u16::MAX),
        height: u16::try_from(size.rows).unwrap_or(u16::MAX),
    }
}

#[cfg(test)]
mod tests;
