//! Finds or starts the process of a node and records its exit.

use std::{
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::super::{
    Shared,
    cgroup::Group,
    crash::{self, Point},
    files, launch,
    process::{Process, ProcessId},
    spec::ProcessSpec,
    state::{EXIT, Exit, PROCESS, SPEC},
};
use drover_telemetry::Span;

use super::removal::kill_all;
use super::{Node, RETRY, Stage, blocking};

/// How long a launcher may be silent. It needs milliseconds, but a machine that swaps may need seconds.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Begun {
    /// `None` if the node is to be removed before it was started.
    pub(super) process: Option<Arc<Process>>,
    /// Set if this platform process started it.
    pub(super) child: Option<Child>,
}

/// Finds the process of a node or starts it. The error says why it will never run.
pub(super) async fn begin(shared: &Shared, node: &Node) -> Result<Begun, String> {
    let (exit, found) = loop {
        let exit = files::read_json::<Exit>(&node.directory.join(EXIT));
        match exit.and_then(|exit| find(&node.directory).map(|found| (exit, found))) {
            Ok(read) => break read,
            Err(error) => node.set_stage(
                shared,
                Stage::Unknown {
                    message: error.to_string(),
                },
            ),
        }
        sleep(RETRY).await;
    };
    match (exit, found) {
        (_, Recorded::Alive(process)) => Ok(Begun {
            process: Some(process),
            child: None,
        }),
        (Some(exit), _) => Err(exit.message),
        (None, Recorded::Dead) => Err(ENDED_UNSEEN.to_owned()),
        (None, Recorded::Nothing) if node.removal().is_some() => Ok(Begun {
            process: None,
            child: None,
        }),
        (None, Recorded::Nothing) => {
            let mut span = Span::internal("start process");
            let begun = start(shared, node).await;
            if let (Some(span), Err(_)) = (&mut span, &begun) {
                // The reason names the program, which a template may have derived from a secret.
                span.fail("failed", "");
            }
            begun
        }
    }
}

/// Recorded state of a node's process.
enum Recorded {
    /// No process was recorded.
    Nothing,
    Dead,
    Alive(Arc<Process>),
}

const ENDED_UNSEEN: &str = "the process ended while the platform was not running";

fn find(directory: &Path) -> io::Result<Recorded> {
    let unreadable =
        |error| io::Error::other(format!("{PROCESS} in the directory of the node: {error}"));
    let Some(id) = files::read_json::<ProcessId>(&directory.join(PROCESS)).map_err(unreadable)?
    else {
        return Ok(Recorded::Nothing);
    };
    let process = id
        .hold()
        .map_err(|error| io::Error::other(format!("process {}: {error}", id.pid)))?;
    Ok(process.map_or(Recorded::Dead, |process| Recorded::Alive(Arc::new(process))))
}

/// Starts the launcher and reads its report until it has become the node's program.
async fn start(shared: &Shared, node: &Node) -> Result<Begun, String> {
    let launcher = &shared.settings.launcher;
    let path = node.directory.join(SPEC);
    let spec = blocking(move || files::read_json::<ProcessSpec>(&path)).await;
    let spec = spec.map_err(|error| format!("{SPEC} in the directory of the node: {error}"))?;
    let group = spec.and_then(|spec| shared.tenancy.group(&spec));
    let mut child = Command::new(launcher)
        .arg("launch")
        .arg(&node.directory)
        .envs(group.as_ref().map(Group::tell))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("the launcher {} cannot be run: {error}", launcher.display()))?;
    crash::point(Point::LauncherSpawned);
    let mut said = Vec::new();
    if let Some(report) = child.stdout.take() {
        // The pipe is closed when the launcher becomes the program, or exits.
        let heard = timeout(LAUNCH_TIMEOUT, report.take(4096).read_to_end(&mut said)).await;
        if heard.is_err() {
            // Without a record it has not become the program, and once it is dead it never will.
            let _ = child.kill().await;
        }
    }
    match said.split_first() {
        Some((&launch::STARTING, [])) => {
            let found = find(&node.directory);
            if let Ok(Recorded::Alive(process)) = found {
                return Ok(Begun {
                    process: Some(process),
                    child: Some(child),
                });
            }
            if let Err(error) = found {
                // A process that cannot be watched must not run: its exit would go unnoticed.
                warn!(node = %node.directory.display(), %error, "a new process cannot be watched and is killed");
                let _ = child.start_kill();
            }
            Err(how_a_child_ended(child).await)
        }
        Some((&launch::STARTING, [launch::REFUSED, why @ ..]) | (&launch::REFUSED, why)) => {
            let _ = child.wait().await;
            Err(format!(
                "the process could not be started: {}",
                String::from_utf8_lossy(why)
            ))
        }
        // Another launcher, of a killed platform, was faster; or this one died without a report.
        _ => {
            let status = child.wait().await;
            match find(&node.directory) {
                Ok(Recorded::Alive(process)) => Ok(Begun {
                    process: Some(process),
                    child: None,
                }),
                Ok(Recorded::Dead) => Err(ENDED_UNSEEN.to_owned()),
                Ok(Recorded::Nothing) => Err(format!("the launcher {}", describe(status))),
                Err(error) => Err(error.to_string()),
            }
        }
    }
}

pub(super) async fn how_it_ended(
    shared: &Shared,
    node: &Node,
    process: &Process,
    child: Option<Child>,
) -> String {
    let message = match child {
        Some(child) => how_a_child_ended(child).await,
        None => format!(
            "process {} ended; it was not started by this platform process, so how is not known",
            process.id().pid
        ),
    };
    // A shell reports a killed child by its exit code.
    let killed = ["killed by signal 9", "exited with code 137"];
    if !killed.iter().any(|how| message.ends_with(how)) {
        return message;
    }
    match died_of(shared, node).await {
        Some(why) => format!("{message}; {why}"),
        None => message,
    }
}

/// The reason for the kill, if it was an OOM kill.
async fn died_of(shared: &Shared, node: &Node) -> Option<String> {
    let path = node.directory.join(SPEC);
    let spec = blocking(move || files::read_json::<ProcessSpec>(&path)).await;
    let group = shared.tenancy.group(&spec.ok()??)?;
    shared.tenancy.groups()?.death(&group)
}

async fn how_a_child_ended(mut child: Child) -> String {
    let pid = child.id().unwrap_or_default();
    format!("process {pid} {}", describe(child.wait().await))
}

fn describe(status: io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;

    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => "ended".to_owned(),
        },
        Err(error) => format!("ended; its status cannot be read: {error}"),
    }
}

/// Records how a process ended, and kills its descendants.
pub(super) async fn end(shared: &Shared, node: &Node, id: Option<ProcessId>, message: String) {
    let pid = id.as_ref().map(|id| id.pid);
    info!(node = %node.directory.display(), %message, "the process of a node has ended");
    node.set_stage(
        shared,
        Stage::Ended {
            pid,
            message: message.clone(),
        },
    );
    if let Some(id) = id {
        kill_all(&id, None).await;
    }
    let path = node.directory.join(EXIT);
    let written = blocking(move || {
        if !std::fs::exists(&path)? {
            files::replace(&path, &files::to_json(&Exit { message })?, 0o644)?;
        }
        Ok(())
    });
    if let Err(error) = written.await {
        warn!(node = %node.directory.display(), %error, "how a node ended cannot be written down");
    }
}
