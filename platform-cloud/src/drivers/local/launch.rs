//! The launcher: one of our programs that becomes the process of a node.
//!
//! It guarantees that a node is started at most once, whichever process dies at whatever time: it takes the lock of the
//! node's directory, records itself, and only then becomes the node's program. A second launcher finds the record and
//! exits.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::{
    cgroup::Group,
    confine::confine,
    crash::{self, Point},
    files,
    process::ProcessId,
    spec::{ProcessSpec, look_up},
    state::{DATA, LOCK, LOG, PROCESS, SPEC},
};

/// Reported by the launcher when the process is recorded and about to become the program.
pub(super) const STARTING: u8 = b'S';
/// Reported by the launcher when another one was faster.
pub(super) const STARTED_BEFORE: u8 = b'A';
/// Reported by the launcher before the reason why the program cannot be run.
pub(super) const REFUSED: u8 = b'E';

/// Exit code of a launcher that could not start its node.
const EXIT_REFUSED: i32 = 126;
/// Exit code of a launcher that did not find the command, as in a shell.
const EXIT_NOT_FOUND: i32 = 127;

/// How often a launcher polls whether the holder of the lock has recorded itself, which takes a few milliseconds.
const LOCK_POLL: Duration = Duration::from_millis(2);

/// Implements the hidden subcommand `launch NODE_DIRECTORY`. Returns, with the exit code, only if the process does not
/// become the node's program. Standard output is the pipe on which progress is reported to the platform.
pub fn launch_main(directory: &Path) -> i32 {
    let mut report = io::stdout();
    match launch(directory) {
        Ok(()) => {
            // The platform may be gone.
            let _ = report.write_all(&[STARTED_BEFORE]);
            0
        }
        Err(error) => {
            let _ = report
                .write_all(&[REFUSED])
                .and_then(|()| report.write_all(error.to_string().as_bytes()));
            EXIT_REFUSED
        }
    }
}

/// Returns without an error if the node was started before.
fn launch(directory: &Path) -> io::Result<()> {
    let record = directory.join(PROCESS);
    let Some(lock) = lock_unless_started(directory, &record)? else {
        return Ok(());
    };
    crash::point(Point::LauncherLocked);
    let spec: ProcessSpec = files::read_json(&directory.join(SPEC))?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the node has no process spec"))?;
    // A session of its own: no terminal, no signals from the platform's parent, and an id for all its descendants.
    rustix::process::setsid()?;
    if !files::create_once(&record, &files::to_json(&ProcessId::own()?)?, 0o644)? {
        return Ok(());
    }
    crash::point(Point::LauncherRecorded);
    let report = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    write(&report, &[STARTING])?;
    let error = become_node(directory, &spec, lock);
    // Standard output is the node's log by now, but the report pipe is still open.
    write(&report, &[REFUSED])?;
    write(&report, error.to_string().as_bytes())?;
    std::process::exit(EXIT_REFUSED);
}

fn lock_unless_started(directory: &Path, record: &Path) -> io::Result<Option<OwnedFd>> {
    loop {
        if fs::exists(record)? {
            return Ok(None);
        }
        if let Some(lock) = files::lock(&directory.join(LOCK), true)? {
            return Ok(Some(lock));
        }
        thread::sleep(LOCK_POLL);
    }
}

/// Returns only on error.
fn become_node(directory: &Path, spec: &ProcessSpec, lock: OwnedFd) -> io::Error {
    let log = match OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(directory.join(LOG))
    {
        Ok(log) => log,
        Err(error) => return error,
    };
    let stderr = match log.try_clone() {
        Ok(stderr) => stderr,
        Err(error) => return error,
    };
    // Held open as long as the node lives; the descriptor is inherited.
    std::mem::forget(lock);
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.arguments)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(stderr);
    let error = become_command(&mut command, directory, spec);
    match &spec.user {
        Some(user) if error.kind() == io::ErrorKind::PermissionDenied => io::Error::other(format!(
            "{error}: user {} must be able to enter {} and all directories above it",
            user.uid,
            directory.display()
        )),
        _ => error,
    }
}

/// Implements the hidden subcommand `launch NODE_DIRECTORY PROGRAM ARGUMENT…`: becomes a command next to the process of
/// a node. The environment is read from the node rather than inherited from this process, whose dynamic loader it would
/// affect with the privileges of the platform. Returns, with the exit code, only if it does not become the command.
pub fn command_main(directory: &Path, program: &OsStr, arguments: &[OsString]) -> i32 {
    let spec = files::read_json::<ProcessSpec>(&directory.join(SPEC));
    let mut path = None;
    let error = match spec {
        Ok(Some(spec)) => {
            path = spec.environment.get("PATH").map(OsString::from);
            let mut command = Command::new(program);
            command.args(arguments);
            become_command(&mut command, directory, &spec)
        }
        Ok(None) => io::Error::other("the node is being removed"),
        Err(error) => error,
    };
    let mut said = io::stderr();
    // The client may be gone.
    if error.kind() == io::ErrorKind::NotFound || is_nowhere(program, path) {
        let _ = writeln!(said, "{}: not found", program.display());
        return EXIT_NOT_FOUND;
    }
    let _ = writeln!(said, "{}: {error}", program.display());
    EXIT_REFUSED
}

/// Whether a name is in no directory of the search path. For directories that the user cannot enter, the kernel reports
/// "permission denied" instead.
fn is_nowhere(program: &OsStr, path: Option<OsString>) -> bool {
    let program = program.to_string_lossy();
    !program.contains('/') && look_up(&program, path).is_none()
}

/// Becomes a command with the user, environment and directory of a node. Returns only on error.
fn become_command(command: &mut Command, directory: &Path, spec: &ProcessSpec) -> io::Error {
    let data = directory.join(DATA);
    command
        .env_clear()
        .envs(&spec.environment)
        .current_dir(spec.working_directory.as_deref().unwrap_or(&data));
    match spec.user {
        Some(user) if spec.confined => {
            let limited = |error| io::Error::other(format!("limits of the cluster: {error}"));
            let within = Group::told().and_then(|group| group.map_or(Ok(()), |it| it.enter()));
            let within = within.map_err(limited);
            if let Err(error) = within.and_then(|()| confine(command, user)) {
                return error;
            }
        }
        Some(user) => {
            command.uid(user.uid).gid(user.gid);
        }
        None => {}
    }
    command.exec()
}

fn write(to: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    match rustix::io::write(to, bytes) {
        // The platform was killed. The node starts anyway and is found again.
        Err(rustix::io::Errno::PIPE) => Ok(()),
        other => other.map(|_| ()).map_err(io::Error::from),
    }
}
