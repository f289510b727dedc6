//! Commands in containers. What they read and write is neither stored nor logged.

use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, TerminalSize, chunk::Content, process_output::Output},
    kubernetes::v1::{self as api, exec_request},
};
use drover_resources::parts::{Answers, Input};
use futures::{SinkExt as _, StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};

use crate::{
    client::{ApiClient, Call, escape},
    place::Place,
};

/// Bytes buffered in each direction between the API server and the client of a command.
const BUFFER: usize = 64 * 1024;
/// Pieces of output buffered for a slow client.
const MAX_PIECES: usize = 4;
/// Exit codes of shells for a command that was not found, and for one that is not executable.
pub(crate) const NOT_FOUND: i32 = 127;
pub(crate) const NOT_EXECUTABLE: i32 = 126;

/// The size of a terminal whose client does not say it.
const TERMINAL: TerminalSize = TerminalSize {
    columns: 80,
    rows: 24,
};

/// Runs a command. Dropping the output closes the connection; the command then ends as soon as it reads or writes.
pub(crate) async fn exec(
    client: &ApiClient,
    start: api::ExecStart,
    input: Input,
) -> Result<Answers<ProcessOutput>> {
    let (place, pod) = Place::find(client, &start.namespace, &start.pod, &start.container).await?;
    let call = place.call("create", "pods/exec");
    let parameters = AttachParams::default()
        .container(place.container.clone())
        .stdin(start.stdin)
        .stdout(true)
        .stderr(!start.tty)
        .tty(start.tty)
        .max_stdin_buf_size(BUFFER)
        .max_stdout_buf_size(BUFFER)
        .max_stderr_buf_size(BUFFER);
    let command = start.command.iter().map(String::as_str);
    let pods = place.api(client);
    let opened = pods.exec(&escape(&place.pod), command, &parameters).await;
    let process = opened.map_err(|error| place.refused(&call, &pod, error))?;
    let size = start.tty.then(|| start.terminal_size.unwrap_or(TERMINAL));
    let (sender, receiver) = mpsc::channel(MAX_PIECES);
    // Ends with the process, or when the receiver of its output is dropped.
    tokio::spawn(async move {
        let closed = sender.clone();
        tokio::select! {
            () = run(process, place, call, size, input, sender) => {}
            () = closed.closed() => {}
        }
    });
    Ok(stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|item| (item, receiver))
    })
    .boxed())
}

type Sender = mpsc::Sender<Result<ProcessOutput>>;

async fn run(
    mut process: AttachedProcess,
    place: Place,
    call: Call,
    size: Option<TerminalSize>,
    input: Input,
    output: Sender,
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
    let last = tokio::select! {
        status = &mut read => ended(&place, &call, status),
        fed = &mut write => match fed {
            Ok(()) => ended(&place, &call, read.await),
            Err(error) => Err(error),
        },
    };
    // Fails only if the receiver is gone.
    let _ = output.send(last).await;
}

fn ended(place: &Place, call: &Call, status: Option<Status>) -> Result<ProcessOutput> {
    let cut = || Error::unavailable(format!("{call}: the connection to the command was cut"));
    let code = exit_code(place, call, &status.ok_or_else(cut)?)?;
    Ok(ProcessOutput {
        output: Some(Output::ExitCode(code)),
    })
}

async fn copy(from: Option<impl AsyncRead + Unpin>, to: &Sender, kind: fn(Chunk) -> Output) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; BUFFER];
    while let Ok(count) = from.read(&mut buffer).await
        && count > 0
    {
        let piece = ProcessOutput {
            output: Some(kind(chunk(&buffer[..count]))),
        };
        if to.send(Ok(piece)).await.is_err() {
            return;
        }
    }
}

pub(crate) fn chunk(data: &[u8]) -> Chunk {
    Chunk {
        content: Some(Content::Data(data.to_vec())),
    }
}

/// Forwards input and terminal sizes until the input ends, well or with an error.
async fn feed(
    mut stdin: Option<impl AsyncWrite + Unpin>,
    mut terminal: Option<futures::channel::mpsc::Sender<kube::api::TerminalSize>>,
    size: Option<TerminalSize>,
    mut input: Input,
) -> Result<()> {
    if let (Some(terminal), Some(size)) = (&mut terminal, &size) {
        // Fails only if the command has ended.
        let _ = terminal.send(characters(size)).await;
    }
    while let Some(message) = input.next().await {
        match message? {
            exec_request::Input::Stdin(chunk) => {
                let data = drover_resources::bytes(chunk);
                let failed = match &mut stdin {
                    Some(to) => to.write_all(&data).await.is_err() || to.flush().await.is_err(),
                    None => false,
                };
                if failed {
                    stdin = None;
                }
            }
            exec_request::Input::Resize(size) => {
                if let Some(terminal) = &mut terminal {
                    let _ = terminal.send(characters(&size)).await;
                }
            }
            exec_request::Input::StdinClosed(_) => close(stdin.take()).await,
            exec_request::Input::Start(_) => {}
        }
    }
    close(stdin).await;
    Ok(())
}

async fn close(stdin: Option<impl AsyncWrite + Unpin>) {
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

/// Maps the status of an exec to the exit code of the command.
fn exit_code(place: &Place, call: &Call, status: &Status) -> Result<i32> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status
        .details
        .iter()
        .filter_map(|it| it.causes.as_ref())
        .flatten();
    let code = causes
        .filter(|it| it.reason.as_deref() == Some("ExitCode"))
        .find_map(|it| it.message.as_deref()?.parse().ok());
    if let Some(code) = code {
        return Ok(code);
    }
    let message = status.message.as_deref().unwrap_or_default();
    if message.contains("executable file not found")
        || message.contains("no such file or directory")
    {
        return Ok(NOT_FOUND);
    }
    if message.contains("permission denied") {
        return Ok(NOT_EXECUTABLE);
    }
    if message.contains("container not found") || message.contains("is not running") {
        return Err(place.not_running("does not run any more"));
    }
    // The message of the container runtime may repeat the command line.
    Err(Error::unavailable(format!(
        "{call}: the container runtime could not run the command"
    )))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};

    use super::*;

    fn code(message: &str, cause: Option<(&str, &str)>) -> Result<i32> {
        let place = Place {
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            container: "c".to_owned(),
        };
        let cause = cause.map(|(reason, message)| StatusCause {
            field: None,
            message: Some(message.to_owned()),
            reason: Some(reason.to_owned()),
        });
        let status = Status {
            status: Some("Failure".to_owned()),
            message: Some(message.to_owned()),
            details: cause.map(|it| StatusDetails {
                causes: Some(vec![it]),
                ..StatusDetails::default()
            }),
            ..Status::default()
        };
        exit_code(&place, &place.call("create", "pods/exec"), &status)
    }

    #[test]
    fn a_command_that_cannot_be_started_has_an_exit_code_as_in_a_shell() {
        assert_eq!(code("it ended", Some(("ExitCode", "3"))).unwrap(), 3);
        let missing = r#"exec: "x": executable file not found in $PATH: unknown"#;
        assert_eq!(code(missing, None).unwrap(), NOT_FOUND);
        let denied = r#"exec: "/etc/passwd": permission denied: unknown"#;
        assert_eq!(code(denied, None).unwrap(), NOT_EXECUTABLE);
    }

    #[test]
    fn an_error_does_not_repeat_the_command() {
        let error = code("OCI runtime exec failed: hunter2", None).unwrap_err();
        assert!(!error.message().contains("hunter2"), "{error}");
    }
}
