//! A process that parses and renders texts written by callers, so that a text that exhausts memory or never ends
//! affects only that process.
//!
//! The process is the program itself, restarted with a reserved argument ([`enter`]). It reports on standard output
//! that it has confined itself ([`confine`]), and then answers the frames on its standard input until that is closed.
//! Content is passed only this way; its environment is empty.
//!
//! A frame is its length (4 bytes, little endian) followed by that many bytes, the first of which is the kind. The
//! client sends [`Session`]s, each of which replaces the previous one, and [`Question`]s about the current session.

mod confine;
mod frame;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    env, io,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::OnceLock,
};

use drover_core::{Error, Reason, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::confine::Confined;
pub use self::frame::{Answer, Incoming, MAX_ANSWER};
use crate::{
    ClusterContext, Context, GroupContext, InfrastructureContext, NodeScope, PeerContext, Scope,
    StorageContext, Text,
};

/// Memory that a process may use beyond what it has at its start, in bytes. A context with 10,000 peers takes a third
/// of it, and all processes of a server together stay within the limit of its deployment.
pub const MAX_MEMORY: u64 = 64 << 20;

/// Processor time that a text may use, in seconds; up to one second more, because limits are whole seconds.
pub const MAX_SECONDS: u64 = 1;

/// The argument that turns a program into the worker process.
const ARGUMENT: &str = "render-texts";

/// The running executable, even if its file was renamed.
const ITSELF: &str = "/proc/self/exe";

/// The executable of the worker process.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Must be called first in `main` of a program that serves a platform. `Some` means that this was the worker process,
/// and that it has finished.
#[must_use]
pub fn enter() -> Option<ExitCode> {
    if env::args_os().nth(1).is_some_and(|first| first == ARGUMENT) {
        return Some(main());
    }
    use_program(ITSELF);
    None
}

/// Uses another program as the worker, one that begins with [`enter`]. For programs that embed a platform without doing
/// so themselves. Only the first call has an effect.
pub fn use_program(path: impl Into<PathBuf>) {
    // Fails if the program was already set.
    let _ = PROGRAM.set(path.into());
}

/// Whether the worker is this program itself.
#[must_use]
pub fn is_itself() -> bool {
    PROGRAM.get().is_some_and(|path| path == Path::new(ITSELF))
}

/// Creates the command that starts the worker process with pipes.
///
/// # Errors
///
/// `Unavailable` if this program called neither [`enter`] nor [`use_program`].
pub fn command() -> Result<Command> {
    let program = PROGRAM.get().map(PathBuf::as_path);
    let program: &Path = program.ok_or_else(|| {
        Error::unavailable("this program has no part that renders texts of callers")
    })?;
    let mut command = Command::new(program);
    command
        .arg(ARGUMENT)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // The message of an allocation failure or a panic may contain secret content.
        .stderr(Stdio::null());
    Ok(command)
}

/// A text, with the context that all nodes of a request share.
#[derive(Deserialize)]
struct Session {
    name: String,
    source: String,
    context: Context,
}

/// [`Session`], for sending.
#[derive(Serialize)]
struct SessionRef<'a> {
    name: &'a str,
    source: &'a str,
    context: ContextRef<'a>,
}

#[derive(Serialize)]
struct ContextRef<'a> {
    cluster: &'a ClusterContext,
    group: &'a GroupContext,
    peers: &'a [PeerContext],
    storage: &'a Option<StorageContext>,
    secrets: Cow<'a, BTreeMap<String, String>>,
    request_id: &'a str,
    bootstrap: &'a Option<String>,
    options: &'a Map<String, Value>,
    infrastructure: &'a [InfrastructureContext],
}

/// A question about the current session.
#[derive(Serialize, Deserialize)]
enum Question {
    /// Whether the text can be parsed.
    Parse,
    /// The text rendered for a node.
    Render(Box<NodeScope>),
}

/// Whether a text can read the secrets of its context.
#[must_use]
pub fn sees_secrets(source: &str) -> bool {
    sees(source, "secrets")
}

/// Whether a text can read this part of its context: it must contain the name, or `debug`, which shows everything.
fn sees(source: &str, name: &str) -> bool {
    source.contains(name) || source.contains("debug")
}

/// Returns the frame that starts a session. Parts of the context that the text cannot read are left out: there may be
/// thousands of peers.
///
/// # Errors
///
/// `Internal` if the context cannot be serialized.
pub fn session(name: &str, source: &str, context: &Context) -> Result<Vec<u8>> {
    let sees = |name| sees(source, name);
    let session = SessionRef {
        name,
        source,
        context: ContextRef {
            cluster: &context.cluster,
            group: &context.group,
            peers: if sees("peers") { &context.peers } else { &[] },
            storage: &context.storage,
            secrets: if sees("secrets") {
                Cow::Borrowed(&context.secrets)
            } else {
                Cow::default()
            },
            request_id: &context.request_id,
            bootstrap: &context.bootstrap,
            options: &context.options,
            infrastructure: if sees("infrastructure") {
                &context.infrastructure
            } else {
                &[]
            },
        },
    };
    frame::write(frame::SESSION, &session)
}

/// Returns the frame that asks to render the text of the session for a node.
///
/// # Errors
///
/// `Internal` if it cannot be serialized.
pub fn render(own: NodeScope) -> Result<Vec<u8>> {
    frame::write(frame::QUESTION, &Question::Render(Box::new(own)))
}

/// Returns the frame that asks whether the text of the session can be parsed.
///
/// # Errors
///
/// `Internal` if it cannot be serialized.
pub fn parse() -> Result<Vec<u8>> {
    frame::write(frame::QUESTION, &Question::Parse)
}

/// Main function of the worker process.
fn main() -> ExitCode {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    match serve(input, output) {
        Ok(()) => ExitCode::SUCCESS,
        // The client is gone, or does not speak the protocol.
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(mut input: impl io::Read, mut output: impl io::Write) -> io::Result<()> {
    let mut confined = match Confined::new(MAX_MEMORY) {
        Ok(confined) => confined,
        Err(error) => {
            let why = Error::unavailable(format!("it cannot limit itself: {error}"));
            return frame::answer(&mut output, Err(why));
        }
    };
    frame::answer(&mut output, Ok(String::new()))?;
    let mut text = Err(Error::internal("no text"));
    while let Some((kind, body)) = frame::read(&mut input)? {
        confined.allow_seconds(MAX_SECONDS)?;
        match kind {
            frame::SESSION => text = begin(&body),
            _ => frame::answer(&mut output, answer(&text, &body))?,
        }
    }
    Ok(())
}

fn begin(body: &[u8]) -> Result<(Text, Scope)> {
    let session: Session = frame::parse(body)?;
    let text = Text::parse(&session.name, session.source)?;
    Ok((text, Scope::from(session.context)))
}

fn answer(text: &Result<(Text, Scope)>, body: &[u8]) -> Result<String> {
    let (text, scope) = text.as_ref().map_err(Clone::clone)?;
    match frame::parse(body)? {
        Question::Parse => Ok(String::new()),
        Question::Render(own) => {
            let rendered = text.render(scope.clone().of_node(&own))?;
            Ok(rendered.into_text())
        }
    }
}

/// The error for a text that its process did not survive.
#[must_use]
pub fn too_much(name: &str) -> Error {
    let message = format!(
        "template {name}: it takes more than {} MiB of memory, or {MAX_SECONDS} s of processor time",
        MAX_MEMORY >> 20
    );
    Error::new(Reason::Precondition, message).with_metadata("file", name)
}
