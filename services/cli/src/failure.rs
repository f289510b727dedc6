//! Exit codes and errors of commands.

use std::{fmt, process::ExitCode};

use drover_core::{Error, Reason};

/// Exit codes, as documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    /// Only for `plan --detailed-exitcode`: there is something to do.
    Changes = 2,
    NotFound = 3,
    TimedOut = 4,
    Unreachable = 5,
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Error message and exit code of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// Lines for standard error. Empty if everything was printed already.
    pub(crate) message: String,
}

/// Result of a command.
pub(crate) type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, format!("error: {}", message.into()))
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(
            Exit::Usage,
            format!(
                "error: {}\n\nFor more information, try '--help'.",
                message.into()
            ),
        )
    }

    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self::new(Exit::TimedOut, format!("error: {}", message.into()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => error.into(),
            Err(error) => Self::failed(format!("{error:#}")),
        }
    }
}

impl From<drover_manifest::Error> for Failure {
    fn from(error: drover_manifest::Error) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        // The reader has closed the pipe (`| head`).
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::new(Exit::Done, "");
        }
        Self::failed(error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.reason() {
            Reason::NotFound
            | Reason::TemplateNotFound
            | Reason::HostNotFound
            | Reason::SecretNotFound
            | Reason::NodeClassNotFound => Exit::NotFound,
            Reason::DeadlineExceeded => Exit::TimedOut,
            Reason::Unavailable if drover_client::is_unreachable(&error) => Exit::Unreachable,
            _ => Exit::Failed,
        };
        let mut message = format!("error: {}", error.message());
        if let Some(hint) = hint(error.reason()) {
            message = format!("{message}\nhint: {hint}");
        } else if let Some(hint) = look(&error) {
            message = format!("{message}\nhint: {hint}");
        }
        Self::new(exit, message)
    }
}

/// For an object that was not found, the command that lists the existing names.
fn look(error: &Error) -> Option<&'static str> {
    let (kind, _) = error
        .resource()
        .filter(|_| error.reason() == Reason::NotFound)?;
    match kind {
        "cluster" => Some("drover get clusters"),
        "group" => Some("drover describe cluster CLUSTER"),
        "node" => Some("drover get nodes CLUSTER"),
        "platform" => Some("drover get platforms"),
        "secret" => Some("drover get secrets"),
        "revision" => Some("drover rollout history CLUSTER"),
        _ => None,
    }
}

/// Advice, if it is always the same for this reason.
fn hint(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::GenerationMismatch => {
            Some("somebody changed it meanwhile; look again with: drover plan")
        }
        Reason::GroupHasNodes => {
            Some("to delete the nodes of a removed group: drover apply --remove-group PATH")
        }
        Reason::ClusterExists => Some("to take these nodes over: drover apply --adopt"),
        Reason::Protected => Some("set deletionProtection: false and apply first"),
        Reason::ClusterPaused => Some("drover resume CLUSTER"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let failure = Failure::from(gone);
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Done, ""));
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(Failure::from(full).exit, Exit::Failed);
    }

    #[test]
    fn who_asks_for_what_is_not_there_learns_where_the_names_are() {
        let failure = Failure::from(Error::not_found("cluster", "nope"));
        assert_eq!(failure.exit, Exit::NotFound);
        assert!(failure.message.ends_with("hint: drover get clusters"));
    }
}
