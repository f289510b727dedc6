//! Exit codes and errors of commands.

use std::{fmt, process::ExitCode};

use drover_core::{Error, Reason};

use crate::hint::{self, Hint};

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
    /// Flags with which the same command does it, and what they are for.
    lacks: Option<(&'static str, Vec<String>)>,
}

/// Result of a command.
pub(crate) type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            lacks: None,
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

    /// The same with a command that helps.
    pub(crate) fn with_hint(self, hint: &Hint) -> Self {
        self.with_reason("", hint)
    }

    fn with_reason(mut self, why: &str, hint: &Hint) -> Self {
        self.message.push('\n');
        self.message.push_str(&hint.line(why));
        self
    }

    /// The failure of one of so many clusters. Further flags would act on all of them.
    pub(crate) fn of_one_in(mut self, clusters: usize) -> Self {
        if clusters != 1 {
            self.lacks = None;
        }
        self
    }

    /// The failure of a command line, with the same one that does it if there is one.
    pub(crate) fn of(mut self, command: &[String]) -> Self {
        let again = self
            .lacks
            .take()
            .and_then(|(why, flags)| Some((why, Hint::again(command, &flags)?)));
        match again {
            Some((why, hint)) => self.with_reason(why, &hint),
            None => self,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hint::completed(&self.message))
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
        let failure = Self {
            lacks: lacks(&error),
            ..Self::new(exit, format!("error: {}", error.message()))
        };
        match helps(&error) {
            Some((why, hint)) => failure.with_reason(why, &hint),
            None => failure,
        }
    }
}

/// A command that helps, and what it is for, if the error has the names for it.
fn helps(error: &Error) -> Option<(&'static str, Hint)> {
    let (kind, name) = error.resource().unwrap_or_default();
    let told = error.metadata().get("cluster").map(String::as_str);
    // Groups, nodes and revisions are named after their cluster.
    let cluster = told.or_else(|| name.split_once('/').map(|(cluster, _)| cluster));
    let (why, hint) = match error.reason() {
        Reason::GenerationMismatch => (
            "somebody changed it meanwhile; look again with: ",
            Hint::plan(cluster?),
        ),
        Reason::Protected => ("what is stored, as a file: ", Hint::manifest(cluster?)),
        Reason::ClusterPaused => ("", Hint::resume(cluster?)),
        Reason::NotFound => {
            let hint = match kind {
                "cluster" => Hint::clusters(),
                "group" => Hint::describe(cluster?),
                "node" => Hint::nodes(cluster?),
                "platform" => Hint::platforms(),
                "secret" => Hint::secrets(),
                "revision" => Hint::history(cluster?),
                _ => return None,
            };
            ("", hint)
        }
        _ => return None,
    };
    Some((why, hint))
}

/// Whether a failover was refused only because its loss was not accepted. The message says what would be lost.
pub(crate) fn is_unaccepted(error: &Error) -> bool {
    error.reason() == Reason::Precondition
        && error.fields().iter().any(|one| one.field == "accept_loss")
}

/// Flags with which the refused command is done, and what they are for.
fn lacks(error: &Error) -> Option<(&'static str, Vec<String>)> {
    match error.reason() {
        Reason::GroupHasNodes => {
            let group = error.metadata().get("group")?;
            let flags = vec!["--remove-group".to_owned(), group.clone()];
            Some(("to delete its nodes: ", flags))
        }
        Reason::ClusterExists => Some(("to take these nodes over: ", vec!["--adopt".to_owned()])),
        _ if is_unaccepted(error) => {
            let flags = vec!["--accept-loss".to_owned()];
            Some(("to do without them: ", flags))
        }
        _ => None,
    }
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
        let typed = ["apply", "-f", "a.yaml"].map(str::to_owned);
        for (error, hint) in [
            (new(Reason::GenerationMismatch), "drover plan shop"),
            (
                new(Reason::Protected),
                "drover get cluster shop -o manifest",
            ),
            (new(Reason::ClusterPaused), "drover resume shop"),
            (
                new(Reason::GroupHasNodes).with_metadata("group", "db"),
                "drover apply -f a.yaml --remove-group db",
            ),
            (new(Reason::ClusterExists), "drover apply -f a.yaml --adopt"),
            (
                missing("group", "shop/nope"),
                "drover describe cluster shop",
            ),
            (
                missing("group", "shop/data/hot"),
                "drover describe cluster shop",
            ),
            (missing("node", "shop/db-1"), "drover get nodes shop"),
            (missing("platform", "p"), "drover get platforms"),
            (missing("secret", "s"), "drover get secrets"),
            (missing("revision", "shop/3"), "drover rollout history shop"),
        ] {
            let failure = Failure::from(error).of(&typed);
            assert!(failure.message.ends_with(hint), "{failure}");
            Cli::try_parse_from(hint.split(' ')).unwrap();
        }
    }

    #[test]
    fn flags_that_would_act_on_several_clusters_are_not_in_a_hint() {
        let typed = ["apply", "-f", "a.yaml"].map(str::to_owned);
        for error in [
            Error::new(Reason::GroupHasNodes, "no").with_metadata("group", "db"),
            Error::new(Reason::ClusterExists, "no"),
        ] {
            for (clusters, has_hint) in [(1, true), (2, false)] {
                let failure = Failure::from(error.clone()).of_one_in(clusters).of(&typed);
                assert_eq!(failure.message.contains("hint"), has_hint, "{failure}");
            }
        }
    }

    #[test]
    fn what_the_error_does_not_name_is_not_in_a_hint() {
        let typed = ["apply", "-f", "-"].map(str::to_owned);
        for error in [
            Error::not_found("group", "nope"),
            Error::not_found("node", "db-1"),
            Error::new(Reason::GenerationMismatch, "no"),
            Error::new(Reason::Protected, "no"),
            Error::new(Reason::ClusterPaused, "no"),
            Error::new(Reason::GroupHasNodes, "no"),
            Error::new(Reason::GroupHasNodes, "no").with_metadata("group", "db"),
            Error::new(Reason::ClusterExists, "no"),
        ] {
            let failure = Failure::from(error).of(&typed);
            assert!(!failure.message.contains("hint"), "{failure}");
        }
    }
}
