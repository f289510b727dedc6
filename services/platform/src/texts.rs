//! Parses and renders texts written by callers, in a few processes with hard limits that callers take turns to use.

mod process;
mod turns;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use drover_core::{Error, Result};
use drover_templates::{
    Context, NodeScope,
    worker::{self, too_much},
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::process::{Ended, Process};
pub(crate) use self::turns::Turn;
use self::turns::Turns;

/// Maximum number of processes, of which one caller can use all but one. With the limits of each process, they fit
/// beside the server into the memory that deployments allot.
const MAX_PROCESSES: usize = 3;

/// Maximum number of operator templates rendered concurrently, each on its own thread.
const MAX_TEMPLATES: usize = 8;

/// Number of processes in which a text is tried, because a killed process may not be the fault of the text.
const ATTEMPTS: usize = 3;

/// The processes of one platform. They are started on demand and kept.
pub(crate) struct Texts {
    turns: Turns,
    templates: Arc<Semaphore>,
    idle: Mutex<Vec<Process>>,
}

impl Default for Texts {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let processes = (processors + 1).clamp(2, MAX_PROCESSES);
        Self {
            turns: Turns::new(processes),
            templates: Arc::new(Semaphore::new(MAX_TEMPLATES)),
            idle: Mutex::default(),
        }
    }
}

/// A text, with the context that all nodes of a request share.
pub(crate) struct Session {
    id: u64,
    name: &'static str,
    /// The message that loads it into a process.
    frame: Vec<u8>,
    /// The error, once the text is known to kill every process.
    fatal: OnceLock<Error>,
}

impl Session {
    pub(crate) fn new(name: &'static str, source: &str, context: &Context) -> Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            id: LAST.fetch_add(1, Ordering::Relaxed),
            name,
            frame: worker::session(name, source, context)?,
            fatal: OnceLock::new(),
        })
    }

    /// Whether the text is known to kill every process.
    pub(crate) fn is_fatal(&self) -> bool {
        self.fatal.get().is_some()
    }
}

impl Texts {
    /// Starts the first process, to find out whether that is possible. Blocks.
    pub(crate) fn try_out(&self) -> Result<()> {
        let process = Process::start()?;
        self.idle.lock().push(process);
        Ok(())
    }

    /// Waits for a turn of this caller and cluster.
    pub(crate) async fn turn(&self, caller: &str, cluster: &str) -> Turn {
        self.turns.take(caller, cluster).await
    }

    /// Waits until an operator template may be rendered. `None` means never.
    pub(crate) async fn template_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.templates).acquire_owned().await.ok()
    }

    /// Renders a text for a node. Blocks; the caller must hold a [`Turn`].
    ///
    /// # Errors
    ///
    /// Those of the text; `Precondition` if it exceeds the limits; `Unavailable` if no process is available.
    pub(crate) fn render(&self, session: &Session, own: NodeScope) -> Result<String> {
        self.ask(session, &worker::render(own)?)
    }

    /// Checks that a text can be parsed. See [`Texts::render`].
    pub(crate) fn parse(&self, session: &Session) -> Result<()> {
        self.ask(session, &worker::parse()?).map(drop)
    }

    fn ask(&self, session: &Session, question: &[u8]) -> Result<String> {
        if let Some(error) = session.fatal.get() {
            return Err(error.clone());
        }
        let mut warm = self.warm(session.id);
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            let fresh = warm.is_none();
            let mut process = match warm.take() {
                Some(process) => process,
                None => Process::start()?,
            };
            match process.ask(session.id, &session.frame, question) {
                Ok(answer) => {
                    self.idle.lock().push(process);
                    return answer;
                }
                Err(Ended::Full) if !fresh => {}
                Err(Ended::Full | Ended::Late) => {
                    let error = session.fatal.get_or_init(|| too_much(session.name));
                    return Err(error.clone());
                }
                Err(Ended::Killed(how)) => why = how,
                Err(Ended::Silent(how)) => {
                    why = how;
                    break;
                }
            }
        }
        let message = format!(
            "template {}: the process that renders it {why}",
            session.name
        );
        Err(Error::unavailable(message).with_metadata("file", session.name))
    }

    /// Returns an idle process, preferably one that has already loaded the text.
    fn warm(&self, session: u64) -> Option<Process> {
        let mut idle = self.idle.lock();
        let known = idle.iter().position(|it| it.knows(session));
        match known {
            Some(at) => Some(idle.swap_remove(at)),
            None => idle.pop(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
