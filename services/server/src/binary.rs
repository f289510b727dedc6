//! The `main` function of servers.

use std::{error::Error as StdError, future::Future, io, process::ExitCode, time::Duration};

use clap::{Args, Command, FromArgMatches};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Serialize, de::DeserializeOwned};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{ServerArgs, ServerSettings, settings, telemetry};

/// Exit code for wrong usage (`EX_USAGE`).
const WRONG_USAGE: u8 = 64;
/// Maximum time to wait at exit, for work that cannot be cancelled and for unsent spans.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Name and default port of a server binary.
#[derive(Clone, Copy, Debug)]
pub struct Binary {
    /// Name of the executable.
    pub name: &'static str,
    /// Version (semver).
    pub version: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Default port on loopback.
    pub port: u16,
}

/// The complete `main` of a server: flags, settings, `--print-config`, logs, runtime, signals, exit code.
///
/// `A` are the flags of this server and `S` its settings; both may be `()`. `start` runs until its token is cancelled.
/// Errors are printed once, with their causes. Exit codes: 0 success, 1 failure, 64 wrong usage.
pub fn run<A, S, F>(
    binary: Binary,
    start: impl FnOnce(ServerSettings, S, CancellationToken) -> F,
) -> ExitCode
where
    A: Args + Serialize,
    S: Default + Serialize + DeserializeOwned,
    F: Future<Output = Result<(), Box<dyn StdError + Send + Sync>>>,
{
    let command = Command::new(binary.name)
        .version(binary.version)
        .about(binary.about);
    // The doc comments of the flag structs would override it.
    let command = A::augment_args(ServerArgs::augment_args(command))
        .about(binary.about)
        .long_about(None);
    let flags = command.try_get_matches().and_then(|matches| {
        let common = ServerArgs::from_arg_matches(&matches)?;
        Ok((common, A::from_arg_matches(&matches)?))
    });
    let (common, own) = match flags {
        Ok(flags) => flags,
        Err(e) => {
            // There is no other way to report a failure to print.
            let _ = e.print();
            return if e.use_stderr() {
                ExitCode::from(WRONG_USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run_with::<S, F>(binary, &common, &own, start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            report(e.as_ref());
            ExitCode::FAILURE
        }
    }
}

fn run_with<S, F>(
    binary: Binary,
    common: &ServerArgs,
    own: &impl Serialize,
    start: impl FnOnce(ServerSettings, S, CancellationToken) -> F,
) -> Result<(), Box<dyn StdError + Send + Sync>>
where
    S: Default + Serialize + DeserializeOwned,
    F: Future<Output = Result<(), Box<dyn StdError + Send + Sync>>>,
{
    let environment = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let (server, own) = settings::load::<S>(
        &ServerSettings::on_port(binary.port),
        common,
        own,
        environment,
    )?;
    if common.print_config {
        let text = settings::render(&server, &own)?;
        return io::Write::write_all(&mut io::stdout(), text.as_bytes()).map_err(Into::into);
    }
    telemetry::init(server.log_format);
    telemetry::metrics();
    keep_memory_private();
    raise_file_limit();
    let traces = drover_telemetry::Settings::resolve(
        &server.otlp(),
        (binary.name, binary.version),
        |name| std::env::var(name).ok(),
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        let exporter = match traces {
            Some(traces) => drover_telemetry::Exporter::start(traces)?,
            None => None,
        };
        let stop = CancellationToken::new();
        let signals = tokio::spawn(stop_on_signal(Signals::new()?, stop.clone()));
        let outcome = start(server, own, stop).await;
        signals.abort();
        if let Some(exporter) = exporter {
            exporter.finish(LAST_WAIT).await;
        }
        outcome
    });
    runtime.shutdown_timeout(LAST_WAIT);
    outcome
}

/// Keeps the memory of this process, with its keys and tokens, out of core dumps and inaccessible to other processes of
/// the same user. Child processes are not affected, so that nodes leave core dumps as configured on their machine.
#[cfg(target_os = "linux")]
fn keep_memory_private() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "the memory of this server can be read by its user and end in core dumps");
    }
}

#[cfg(not(target_os = "linux"))]
fn keep_memory_private() {}

/// Raises the file descriptor limit to its maximum: each connection needs one, and the soft limit is meant for programs
/// that use `select`.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Maximum number of open files of this process.
pub(crate) fn file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

fn report(error: &(dyn StdError + 'static)) {
    eprintln!("error: {error}");
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        // Many messages already contain their cause.
        if !said.contains(&text) {
            eprintln!("  because: {text}");
            said = text;
        }
        next = cause.source();
    }
}

/// Waits for SIGTERM or SIGINT. Fails if the signals cannot be handled.
pub async fn shutdown_signal() -> io::Result<()> {
    Signals::new()?.next().await;
    Ok(())
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn stop_on_signal(mut signals: Signals, stop: CancellationToken) {
    signals.next().await;
    stop.cancel();
    // A second signal skips the grace period.
    signals.next().await;
    tracing::warn!("asked to stop twice, ending at once");
    std::process::exit(1);
}
