//! Commands in containers. What they read and write is neither stored nor logged.

mod session;

use std::pin::Pin;

use bytes::Bytes;
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, TerminalSize, chunk::Content, process_output::Output},
    kubernetes::v1 as api,
};
use drover_resources::parts::{Answers, Input};
use futures::{Sink, SinkExt as _, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{
    Resource as _,
    api::{AttachParams, Request},
};
use tokio::sync::mpsc;
use tower::BoxError;

use self::session::Client;
use crate::{
    client::{ApiClient, Call, escape},
    place::Place,
};

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
        .tty(start.tty);
    let kube = client.kube();
    let pods = Pod::url_path(&(), Some(&escape(&place.namespace)));
    let request = Request::new(pods)
        .exec(&escape(&place.pod), &start.command, &parameters)
        .map_err(|_| Error::internal(format!("{call}: the request cannot be written")))?;
    let opened = kube.connect(request).await;
    let connection = opened.map_err(|error| place.refused(&call, &pod, error))?;
    let (sender, receiver) = mpsc::channel(MAX_PIECES);
    let client = Client {
        input,
        output: sender.clone(),
        stdin: start.stdin,
        terminal: start.tty.then(|| start.terminal_size.unwrap_or(TERMINAL)),
        closes: connection.supports_stream_close(),
    };
    let (to, from) = connection.into_stream().split();
    // Text, and what keeps the connection alive, tells nothing.
    let frames = from.map_ok(|it| {
        if it.is_binary() {
            it.into_data()
        } else {
            Bytes::new()
        }
    });
    let to = to
        .sink_map_err(BoxError::from)
        .with(|frame: Vec<u8>| std::future::ready(Ok::<_, BoxError>(frame.into())));
    let (frames, to) = (frames.boxed(), Box::pin(to) as Frames);
    // Ends with the process, or when the receiver of its output is dropped.
    tokio::spawn(async move {
        let talked = async {
            let status = session::talk(frames, to, client).await;
            let last = status.and_then(|status| ended(&place, &call, status));
            // Fails only if the receiver is gone.
            let _ = sender.send(last).await;
        };
        tokio::select! {
            () = talked => {}
            () = sender.closed() => {}
        }
    });
    Ok(stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|item| (item, receiver))
    })
    .boxed())
}

/// Where frames for a command go.
type Frames = Pin<Box<dyn Sink<Vec<u8>, Error = BoxError> + Send>>;
type Sender = mpsc::Sender<Result<ProcessOutput>>;

fn ended(place: &Place, call: &Call, status: Option<Status>) -> Result<ProcessOutput> {
    let cut = || Error::unavailable(format!("{call}: the connection to the command was cut"));
    let code = exit_code_of(place, call, &status.ok_or_else(cut)?)?;
    Ok(ProcessOutput {
        output: Some(Output::ExitCode(code)),
    })
}

pub(crate) fn chunk(data: impl Into<Vec<u8>>) -> Chunk {
    Chunk {
        content: Some(Content::Data(data.into())),
    }
}

fn exit_code_of(place: &Place, call: &Call, status: &Status) -> Result<i32> {
    if let Some(code) = exit_code(status) {
        return Ok(code);
    }
    let message = status.message.as_deref().unwrap_or_default();
    if message.contains("container not found") || message.contains("is not running") {
        return Err(place.not_running("does not run any more"));
    }
    Err(not_run(call))
}

/// Maps the status of an exec to the exit code of the command, or to that of a shell for a command that cannot be started.
/// `None` if it was not run.
#[must_use]
pub fn exit_code(status: &Status) -> Option<i32> {
    if status.status.as_deref() == Some("Success") {
        return Some(0);
    }
    let causes = status
        .details
        .iter()
        .filter_map(|it| it.causes.as_ref())
        .flatten();
    let code = causes
        .filter(|it| it.reason.as_deref() == Some("ExitCode"))
        .find_map(|it| it.message.as_deref()?.parse().ok());
    let said = |words: &str| {
        let message = status.message.as_deref();
        message.is_some_and(|message| message.contains(words))
    };
    let is_missing = said("executable file not found") || said("no such file or directory");
    let of_shell = match (is_missing, said("permission denied")) {
        (true, _) => Some(NOT_FOUND),
        (false, true) => Some(NOT_EXECUTABLE),
        (false, false) => None,
    };
    code.or(of_shell)
}

/// The error for a command that the container runtime did not run, whose message may repeat the command line.
#[must_use]
pub fn not_run(call: &Call) -> Error {
    Error::unavailable(format!(
        "{call}: the container runtime could not run the command"
    ))
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
        exit_code_of(&place, &place.call("create", "pods/exec"), &status)
    }

    #[test]
    fn a_command_that_cannot_be_started_has_an_exit_code_as_in_a_shell() {
        let success = Status {
            status: Some("Success".to_owned()),
            ..Status::default()
        };
        assert_eq!(exit_code(&success), Some(0));
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
