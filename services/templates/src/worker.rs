//! A process that parses and renders what callers wrote, so that a text that takes all memory, or never ends, ends
//! nothing but that process.
//!
//! The process is the program itself, started again with one reserved argument ([`enter`]). It says on its standard
//! output that it has confined itself ([`confine`]), and then answers what comes on its standard input, until that
//! ends. Contents come and go there only; its environment is empty.
//!
//! A frame is its length (4 bytes, little endian) and that many bytes, of which the first says what it is. The one who
//! asks sends [`Session`]s, each of which is forgotten with the next, and [`Question`]s about the last one.

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

/// Memory that a process may take above what it has when it starts. A context with 10,000 peers takes a third of it, and
/// all processes of a server together stay within what its deployment allows it.
pub const MAX_MEMORY: u64 = 64 << 20;

/// Seconds of processor time that one text may take, at most one more: limits count whole seconds.
pub const MAX_SECONDS: u64 = 1;

/// The argument that makes a program the process of this module.
const ARGUMENT: &str = "render-texts";

/// The running program, whatever its file is called now.
const ITSELF: &str = "/proc/self/exe";

/// What is started.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// To be called first in `main` of a program that serves a platform. `Some`: this was the process, and has ended.
#[must_use]
pub fn enter() -> Option<ExitCode> {
    if env::args_os().nth(1).is_some_and(|first| first == ARGUMENT) {
        return Some(main());
    }
    use_program(ITSELF);
    None
}

/// Has another program do it, one that begins with [`enter`]: for those that embed a platform and do not. The first call
/// counts.
pub fn use_program(path: impl Into<PathBuf>) {
    // Whoever was first has decided.
    let _ = PROGRAM.set(path.into());
}

/// Whether this program is the one that is started.
#[must_use]
pub fn is_itself() -> bool {
    PROGRAM.get().is_some_and(|path| path == Path::new(ITSELF))
}

/// Starts the process, with pipes to it.
///
/// # Errors
/// `Unavailable` if this program neither called [`enter`] nor [`use_program`].
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
        // What a failing allocation or a panic says may repeat contents.
        .stderr(Stdio::null());
    Ok(command)
}

/// A text with everything that is the same for all nodes of a request.
#[derive(Deserialize)]
struct Session {
    name: String,
    source: String,
    context: Context,
}

/// The same, to be sent.
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
    addon: &'a Option<Value>,
}

/// What is asked about a session.
#[derive(Serialize, Deserialize)]
enum Question {
    /// Whether it can be parsed.
    Parse,
    /// What it is for a node.
    Render(Box<NodeScope>),
}

/// Whether a text can see the secrets of its context.
#[must_use]
pub fn sees_secrets(source: &str) -> bool {
    sees(source, "secrets")
}

/// Whether a text can see this part of its context: a name that it reads is written in it, and `debug()` reads all.
fn sees(source: &str, name: &str) -> bool {
    source.contains(name) || source.contains("debug")
}

/// The frame that begins a session. What the text cannot see of the context is not sent: there may be thousands of peers.
///
/// # Errors
/// `Internal` if the context cannot be written.
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
            addon: &context.addon,
        },
    };
    frame::write(frame::SESSION, &session)
}

/// The frame that asks what the text of the session is for a node.
///
/// # Errors
/// `Internal` if it cannot be written.
pub fn render(own: NodeScope) -> Result<Vec<u8>> {
    frame::write(frame::QUESTION, &Question::Render(Box::new(own)))
}

/// The frame that asks whether the text of the session can be parsed.
///
/// # Errors
/// `Internal` if it cannot be written.
pub fn parse() -> Result<Vec<u8>> {
    frame::write(frame::QUESTION, &Question::Parse)
}

/// The life of the process.
fn main() -> ExitCode {
    let (input, output) = (io::stdin().lock(), io::stdout().lock());
    match serve(input, output) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever asked is gone, or not one who knows how to ask.
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

/// The error of a text whose process did not survive it.
#[must_use]
pub fn too_much(name: &str) -> Error {
    let message = format!(
        "template {name}: it takes more than {} MiB of memory, or {MAX_SECONDS} s of processor time",
        MAX_MEMORY >> 20
    );
    Error::new(Reason::Precondition, message).with_metadata("file", name)
}
