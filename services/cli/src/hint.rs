//! Commands that the program suggests, to be pasted as they are.

use std::sync::OnceLock;

use clap::{ArgMatches, Command, parser::ValueSource};

use crate::output::quoted;

/// Global flags of this command line. Without them a pasted command would reach another orchestrator.
static GIVEN: OnceLock<String> = OnceLock::new();

/// Begins a line of a failure that ends with a command.
const BEGIN: &str = "hint: ";

/// A command that helps. Only the functions here make one, and [`hints`] has an example of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hint(String);

impl Hint {
    fn of(words: &[&str]) -> Self {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        Self(format!("drover {}", words.join(" ")))
    }

    pub(crate) fn clusters() -> Self {
        Self::of(&["get", "clusters"])
    }

    pub(crate) fn nodes(cluster: &str) -> Self {
        Self::of(&["get", "nodes", cluster])
    }

    pub(crate) fn platforms() -> Self {
        Self::of(&["get", "platforms"])
    }

    pub(crate) fn secrets() -> Self {
        Self::of(&["get", "secrets"])
    }

    pub(crate) fn storage() -> Self {
        Self::of(&["get", "storage"])
    }

    pub(crate) fn manifest(cluster: &str) -> Self {
        Self::of(&["get", "cluster", cluster, "-o", "manifest"])
    }

    pub(crate) fn describe(cluster: &str) -> Self {
        Self::of(&["describe", "cluster", cluster])
    }

    pub(crate) fn plan(cluster: &str) -> Self {
        Self::of(&["plan", cluster])
    }

    pub(crate) fn resume(cluster: &str) -> Self {
        Self::of(&["resume", cluster])
    }

    pub(crate) fn gone(cluster: &str) -> Self {
        Self::of(&["wait", cluster, "--for", "delete"])
    }

    pub(crate) fn history(cluster: &str) -> Self {
        Self::of(&["rollout", "history", cluster])
    }

    pub(crate) fn undo(cluster: &str, revision: u64) -> Self {
        let revision = revision.to_string();
        Self::of(&["rollout", "undo", cluster, "--to-revision", &revision])
    }

    /// Progress of a cluster, or of `CLUSTER/GROUP`.
    pub(crate) fn progress(target: &str) -> Self {
        Self::of(&["rollout", "status", target])
    }

    pub(crate) fn progress_to_its_end(target: &str) -> Self {
        Self::of(&["rollout", "status", target, "--wait"])
    }

    /// Of `CLUSTER/NODE`.
    pub(crate) fn replace(node: &str) -> Self {
        Self::of(&["replace", node])
    }

    /// Of `CLUSTER/GROUP`. It says what would be lost, and changes nothing.
    pub(crate) fn fail_over(group: &str) -> Self {
        Self::of(&["failover", group])
    }

    /// Of `CLUSTER/NODE`.
    pub(crate) fn repaired(node: &str) -> Self {
        Self::of(&["repair", node, "--done"])
    }

    pub(crate) fn delete_selected(labels: &str) -> Self {
        Self::of(&["delete", "clusters", "-l", labels])
    }

    /// Of `CLUSTER/NODE`.
    pub(crate) fn follow_log(node: &str) -> Self {
        Self::of(&["logs", node, "-f", "--tail", "100"])
    }

    /// Of a cluster or `CLUSTER/GROUP` with so many nodes.
    pub(crate) fn follow_logs(target: &str, nodes: usize) -> Self {
        let nodes = nodes.to_string();
        Self::of(&["logs", target, "-f", "--max-log-requests", &nodes])
    }

    /// Of a cluster or `CLUSTER/GROUP`, with `--env`, or with `--` and a program.
    pub(crate) fn connect(target: &str, read: bool, rest: &[&str]) -> Self {
        let mut words = vec!["connect", target];
        words.extend(read.then_some("--read"));
        words.extend(rest);
        Self::of(&words)
    }

    pub(crate) fn contexts() -> Self {
        Self::of(&["context", "list"])
    }

    pub(crate) fn use_context(name: &str) -> Self {
        Self::of(&["context", "use", name])
    }

    /// A command that was given, with further flags. `None`: it has them, or it read standard input, which is not there
    /// a second time.
    pub(crate) fn again(command: &[String], flags: &[String]) -> Option<Self> {
        let has_them = flags.iter().all(|flag| command.contains(flag));
        if has_them || command.iter().any(|word| word == "-") {
            return None;
        }
        let words: Vec<&str> = command.iter().chain(flags).map(String::as_str).collect();
        Some(Self::of(&words))
    }

    /// The command, with the global flags of this command line.
    pub(crate) fn told(&self) -> String {
        flagged(&self.0, given())
    }

    /// A line of a failure. It gets the global flags when the failure is shown.
    pub(crate) fn line(&self, why: &str) -> String {
        format!("{BEGIN}{why}{}", self.0)
    }
}

/// Adds the global flags of this command line to the commands that the text of a failure ends with.
pub(crate) fn completed(text: &str) -> String {
    with_flags(text, given())
}

fn with_flags(text: &str, flags: &str) -> String {
    let complete = |line: &str| match line.strip_prefix(BEGIN) {
        Some(command) if command.contains("drover ") => flagged(line, flags),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = text.split('\n').map(complete).collect();
    lines.join("\n")
}

fn flagged(command: &str, flags: &str) -> String {
    // What follows -- is for another program.
    if command.contains(" -- ") {
        return command.replacen("drover ", &format!("drover{flags} "), 1);
    }
    format!("{command}{flags}")
}

fn given() -> &'static str {
    GIVEN.get().map_or("", String::as_str)
}

/// Remembers the global flags of this command line.
pub(crate) fn remember(grammar: &Command, matches: &ArgMatches) {
    // There is one command line.
    let _ = GIVEN.set(global_flags(grammar, matches));
}

/// Global flags that were typed, each after a space. What comes from variables is there for a pasted command too. None
/// of them is secret: of tokens and keys only files are given, and URLs with a password are refused.
fn global_flags(grammar: &Command, matches: &ArgMatches) -> String {
    let mut flags = String::new();
    for argument in grammar.get_arguments().filter(|it| it.is_global_set()) {
        let id = argument.get_id().as_str();
        let Some(name) = argument.get_long() else {
            continue;
        };
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            continue;
        }
        if !argument.get_action().takes_values() {
            flags.push_str(&format!(" --{name}"));
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            flags.push_str(&format!(" --{name} {}", quoted(&value.to_string_lossy())));
        }
    }
    flags
}

/// An example of every command that the program suggests, for a cluster `shop` with the groups `web` and `db` from the
/// file `my shop.yaml`.
#[must_use]
pub fn hints() -> Vec<String> {
    let words = |line: &[&str]| -> Vec<String> { line.iter().map(ToString::to_string).collect() };
    let again = |command: &[&str], flags: &[&str]| Hint::again(&words(command), &words(flags));
    let file = "my shop.yaml";
    let given_again = [
        again(&["apply", "-f", file], &["--remove-group", "db"]),
        again(&["plan", "-f", file], &["--adopt"]),
        again(&["apply", "-f", file], &["--expect-generation", "1"]),
        again(&["rollout", "undo", "shop"], &["--remove-group", "db"]),
        again(&["failover", "shop/db"], &["--accept-loss"]),
    ];
    let others = [
        Hint::clusters(),
        Hint::nodes("shop"),
        Hint::platforms(),
        Hint::secrets(),
        Hint::storage(),
        Hint::manifest("shop"),
        Hint::describe("shop"),
        Hint::plan("shop"),
        Hint::resume("shop"),
        Hint::gone("lost"),
        Hint::history("shop"),
        Hint::undo("shop", 1),
        Hint::progress("shop"),
        Hint::progress_to_its_end("shop/web"),
        Hint::replace("shop/web-0"),
        Hint::fail_over("shop/db"),
        Hint::repaired("shop/web-0"),
        Hint::delete_selected("tier in (lost, gone)"),
        Hint::follow_log("shop/lost-0"),
        Hint::follow_logs("lost", 60),
        Hint::connect("shop", true, &["--env"]),
        Hint::connect("shop/web", false, &["--", "etcdctl", "member", "list"]),
        Hint::contexts(),
        Hint::use_context("ours"),
    ];
    let all = given_again.into_iter().flatten().chain(others);
    all.map(|hint| hint.0).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_kind_of_hint_has_an_example() {
        let (made, listed) = include_str!("hint.rs")
            .split_once("pub fn hints()")
            .unwrap();
        let (listed, _) = listed.split_once("#[cfg(test)]").unwrap();
        let names: Vec<&str> = made
            .lines()
            .filter(|line| line.starts_with("    pub(crate) fn ") && !line.contains("&self"))
            .filter_map(|line| line.split_once("fn ")?.1.split_once('('))
            .map(|(name, _)| name)
            .collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            assert!(listed.contains(&format!("Hint::{name}(")), "{name}");
        }
    }

    #[test]
    fn a_command_is_given_again_with_what_it_lacked() {
        let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        let again = |command: &str, flags: &str| {
            Hint::again(&words(command), &words(flags)).map(|hint| hint.told())
        };
        assert_eq!(
            again("apply -f it's.yaml", "--remove-group db").as_deref(),
            Some(r"drover apply -f 'it'\''s.yaml' --remove-group db")
        );
        assert_eq!(again("plan -f a --adopt", "--adopt"), None);
        assert_eq!(again("apply -f -", "--adopt"), None, "standard input");
    }

    #[test]
    fn a_pasted_command_has_the_global_flags_that_were_typed() {
        let flags = |line: &str| {
            let matches = Cli::command().try_get_matches_from(line.split(' '));
            global_flags(&Cli::command(), &matches.unwrap())
        };
        for (line, expected) in [
            ("drover get clusters", ""),
            (
                "drover get clusters --server unix:api.sock",
                " --server unix:api.sock",
            ),
            (
                "drover --context ours rollout status shop --token-file my$token",
                " --context ours --token-file 'my$token'",
            ),
            (
                "drover rollout --server=[::1]:7400 status shop --require-role",
                " --server '[::1]:7400' --require-role",
            ),
        ] {
            assert_eq!(flags(line), expected, "{line}");
        }
        assert_eq!(
            with_flags("hint: drover connect c -- etcdctl get a", " --context ours"),
            "hint: drover --context ours connect c -- etcdctl get a"
        );
        let text = "error: no\nhint: drover get clusters\nhint: ask somebody\nthe end";
        assert_eq!(
            with_flags(text, " --context ours"),
            "error: no\nhint: drover get clusters --context ours\nhint: ask somebody\nthe end"
        );
    }
}
