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
        if let Some(hint) = hint(&error) {
            message = format!("{message}\nhint: {hint}");
        }
        Self::new(exit, message)
    }
}

/// A command that helps, with the names that the error has.
fn hint(error: &Error) -> Option<String> {
    let told = |name: &str| error.metadata().get(name).map(String::as_str);
    let (kind, name) = match error.resource() {
        Some((kind, name)) => (kind, name),
        None => ("", ""),
    };
    // Nodes and revisions are named after their cluster.
    let of = name.split_once('/').map(|(cluster, _)| cluster);
    let cluster = told("cluster").or(of).unwrap_or("CLUSTER");
    let group = told("group").unwrap_or("PATH");
    let hint = match error.reason() {
        Reason::GenerationMismatch => {
            format!("somebody changed it meanwhile; look again with: drover plan {cluster}")
        }
        Reason::GroupHasNodes => {
            format!("to delete its nodes: drover apply -f FILE --remove-group {group}")
        }
        Reason::ClusterExists => {
            "to take these nodes over: drover apply -f FILE --adopt".to_owned()
        }
        Reason::Protected => {
            format!("what is stored, as a file: drover get cluster {cluster} -o manifest")
        }
        Reason::ClusterPaused => format!("drover resume {cluster}"),
        Reason::NotFound => match kind {
            "cluster" => "drover get clusters".to_owned(),
            "group" => format!("drover describe cluster {cluster}"),
            "node" => format!("drover get nodes {cluster}"),
            "platform" => "drover get platforms".to_owned(),
            "secret" => "drover get secrets".to_owned(),
            "revision" => format!("drover rollout history {cluster}"),
            _ => return None,
        },
        _ => return None,
    };
    Some(hint)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

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

    #[test]
    fn every_hint_is_a_command_with_the_names_of_the_error() {
        let new = |reason| Error::new(reason, "no").with_metadata("cluster", "shop");
        let missing = |kind: &str, name: &str| Error::not_found(kind, name);
        for (error, hint) in [
            (new(Reason::GenerationMismatch), "drover plan shop"),
            (
                new(Reason::Protected),
                "drover get cluster shop -o manifest",
            ),
            (new(Reason::ClusterPaused), "drover resume shop"),
            (
                new(Reason::GroupHasNodes).with_metadata("group", "db"),
                "drover apply -f FILE --remove-group db",
            ),
            (new(Reason::ClusterExists), "drover apply -f FILE --adopt"),
            (
                missing("group", "db").with_metadata("cluster", "shop"),
                "drover describe cluster shop",
            ),
            (missing("node", "shop/db-1"), "drover get nodes shop"),
            (missing("platform", "p"), "drover get platforms"),
            (missing("secret", "s"), "drover get secrets"),
            (missing("revision", "shop/3"), "drover rollout history shop"),
        ] {
            let failure = Failure::from(error);
            assert!(failure.message.ends_with(hint), "{failure}");
            Cli::try_parse_from(hint.split(' ')).unwrap();
        }
    }
}
