//! Commands next to the process of a node, with its environment, directory and user.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use drover_core::{Error, Reason, Result, error::KILLED};
use drover_proto::{
    common::v1::{Chunk, ProcessOutput, chunk::Content, process_output::Output},
    platform::v1::{ExecRequest, ExecStart, exec_request::Input},
};
use futures::StreamExt;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;

use super::{
    cgroup::Group,
    files,
    node::Node,
    process::{Process, ProcessId},
    spec::ProcessSpec,
    state::{DATA, SPEC},
    users::Tenancy,
};
use drover_platform::driver::{ExecInput, ExecOutput};

/// Exit code for a command that does not exist, as in a shell.
const NOT_FOUND: i32 = 127;

/// A shell adds this to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Maximum chunk of output: the largest chunk of the API.
const PIECE: usize = 64 * 1024;

/// Chunks buffered for a slow client; when the buffer is full, the command blocks.
const QUEUE: usize = 16;

/// How long output is still drained after the command has ended.
const DRAIN: Duration = Duration::from_millis(250);

/// Runs a command. The command and its descendants are killed when the stream is dropped or the node ends.
pub(super) fn run(
    launcher: &Path,
    tenancy: &Tenancy,
    node: &Arc<Node>,
    start: ExecStart,
    input: ExecInput,
) -> Result<ExecOutput> {
    if start.tty {
        return Err(Error::new(
            Reason::Unimplemented,
            "this platform runs commands without a terminal",
        ));
    }
    let process = node
        .process()
        .filter(|_| node.removal().is_none())
        .ok_or_else(|| {
            Error::new(
                Reason::NodeNotRunning,
                "the process of the node does not run",
            )
        })?;
    let (send, receive) = mpsc::channel(QUEUE);
    let child = match spawn(launcher, tenancy, &node.directory, &start) {
        Ok(child) => Some(child),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(Error::new(
                Reason::Precondition,
                format!("the command cannot be run: {error}"),
            ));
        }
    };
    let Some(child) = child else {
        // Reported on stderr as by a shell: the exit code alone could be the command's own.
        let program = start.command.first().map_or("", String::as_str);
        let said = ProcessOutput {
            output: Some(Output::Stderr(Chunk {
                content: Some(Content::Data(
                    format!("{program}: not found\n").into_bytes(),
                )),
            })),
        };
        return Ok(Box::pin(futures::stream::iter([
            Ok(said),
            Ok(exit(NOT_FOUND)),
        ])));
    };
    let task = AbortOnDropHandle::new(tokio::spawn(attend(
        child,
        start.stdin,
        input,
        process,
        send,
    )));
    // The task lives as long as the stream.
    Ok(Box::pin(ReceiverStream::new(receive).map(move |item| {
        let _ = &task;
        item
    })))
}

fn spawn(
    launcher: &Path,
    tenancy: &Tenancy,
    directory: &Path,
    start: &ExecStart,
) -> io::Result<Running> {
    let spec: ProcessSpec = files::read_json(&directory.join(SPEC))?
        .ok_or_else(|| io::Error::other("the node is being removed"))?;
    let [program, arguments @ ..] = start.command.as_slice() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command"));
    };
    let mut command = if spec.confined {
        // Only our own program can drop its privileges before it becomes the command.
        let mut command = Command::new(launcher);
        command
            .arg("launch")
            .arg(directory)
            .arg(program)
            .env_clear()
            .envs(tenancy.group(&spec).as_ref().map(Group::tell));
        command
    } else {
        let mut command = Command::new(program);
        command.env_clear().envs(&spec.environment).current_dir(
            spec.working_directory
                .unwrap_or_else(|| directory.join(DATA)),
        );
        if let Some(user) = spec.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    };
    command
        .args(arguments)
        .stdin(if start.stdin {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let child = command.spawn()?;
    let pid = child.id().unwrap_or_default();
    let group = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let held = match ProcessId::of(pid)? {
        Some(id) => id.hold()?,
        None => None,
    };
    Ok(Running { child, group, held })
}

/// A running command. It is reaped only after its process group was killed, so that the group id cannot be reused
/// before. Dropping it kills both.
struct Running {
    child: Child,
    group: Option<Pid>,
    /// `None` if it ended before it could be opened.
    held: Option<Process>,
}

impl Running {
    async fn ended(&self) {
        if let Some(process) = &self.held {
            // It cannot be watched, but its output still ends with it.
            if process.died().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn kill(&self) {
        if let Some(group) = self.group {
            // It may be gone already.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A command that was reaped has no id any more.
        if self.child.id().is_some() {
            self.kill();
        }
    }
}

async fn attend(
    mut running: Running,
    with_input: bool,
    input: ExecInput,
    process: Arc<Process>,
    send: mpsc::Sender<Result<ProcessOutput>>,
) {
    let (stdout, stderr, stdin) = (
        running.child.stdout.take(),
        running.child.stderr.take(),
        running.child.stdin.take(),
    );
    let outputs = async {
        tokio::join!(
            forward(stdout, &send, Output::Stdout),
            forward(stderr, &send, Output::Stderr)
        );
    };
    let done = async {
        tokio::pin!(outputs);
        tokio::select! {
            () = &mut outputs => running.ended().await,
            // Its descendants may keep its output open.
            () = running.ended() => drop(timeout(DRAIN, outputs).await),
        }
    };
    let feed = async {
        match feed(stdin.filter(|_| with_input), input).await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let ended = tokio::select! {
        () = done => Ok(()),
        error = feed => Err(error),
        _ = process.died() => Err(killed()),
        () = send.closed() => return,
    };
    running.kill();
    let status = running.child.wait().await;
    let last = ended.and_then(|()| match status {
        Ok(status) => Ok(exit(code(status))),
        Err(error) => Err(Error::internal(format!(
            "how the command ended cannot be read: {error}"
        ))),
    });
    // The client may be gone.
    let _ = send.send(last).await;
}

/// Forwards input until it ends. Returns an error of the client's stream.
async fn feed(mut stdin: Option<ChildStdin>, mut input: ExecInput) -> Result<()> {
    while let Some(ExecRequest { input: message }) = input.next().await.transpose()? {
        match message {
            Some(Input::Stdin(chunk)) => {
                let Some(to) = &mut stdin else { continue };
                let written = match &chunk.content {
                    Some(Content::Data(data)) => to.write_all(data).await,
                    Some(Content::Text(text)) => to.write_all(text.as_bytes()).await,
                    None => Ok(()),
                };
                if written.is_err() {
                    // The command does not read its input any more, which is not an error.
                    stdin = None;
                }
            }
            Some(Input::StdinClosed(_)) => stdin = None,
            // A size has no meaning without a terminal; the common layer rejects a second start.
            Some(Input::Resize(_) | Input::Start(_)) | None => {}
        }
    }
    Ok(())
}

async fn forward<R: AsyncRead + Unpin>(
    from: Option<R>,
    send: &mpsc::Sender<Result<ProcessOutput>>,
    wrap: impl Fn(Chunk) -> Output,
) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; PIECE];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let chunk = Chunk {
            content: Some(Content::Data(buffer[..read].to_vec())),
        };
        if send
            .send(Ok(ProcessOutput {
                output: Some(wrap(chunk)),
            }))
            .await
            .is_err()
        {
            return;
        }
    }
}

fn killed() -> Error {
    Error::new(
        Reason::NodeNotRunning,
        "the node ended while the command ran",
    )
    .with_metadata(KILLED, true)
}

fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal))
        .unwrap_or(SIGNALLED)
}

fn exit(code: i32) -> ProcessOutput {
    ProcessOutput {
        output: Some(Output::ExitCode(code)),
    }
}
