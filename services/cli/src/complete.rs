//! Completion of command lines for shells: commands, flags and their values, and names of what there is now.

use std::{collections::BTreeSet, time::Duration};

use clap::{Arg, ArgAction, Command, CommandFactory};
use drover_proto::orchestrator::v1::{GetClusterRequest, GroupSpec};

use crate::{
    cli::{Cli, Global},
    client::{CALL_TIMEOUT, Client},
    commands::target,
    context,
    failure::{Exit, Outcome},
    output,
};

/// How long a shell waits for names at most.
const PATIENCE: Duration = Duration::from_secs(1);

const BASH: &str = include_str!("complete/drover.bash");
const ZSH: &str = include_str!("complete/drover.zsh");
const FISH: &str = include_str!("complete/drover.fish");

/// The script of a shell that asks this program for completions. `None`: it has one without live names.
pub(crate) fn script(shell: clap_complete::Shell) -> Option<&'static str> {
    match shell {
        clap_complete::Shell::Bash => Some(BASH),
        clap_complete::Shell::Zsh => Some(ZSH),
        clap_complete::Shell::Fish => Some(FISH),
        _ => None,
    }
}

/// Prints what may stand in place of the last word, one a line. Whatever fails prints nothing: a shell is waiting.
pub(crate) async fn run(global: &Global, words: &[String]) -> Outcome {
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", before_nothing()),
    };
    let found = match wanted(before, last) {
        Wanted::Words(found) => found,
        Wanted::Names(names) => {
            let global = Global {
                server: flag(before, "--server").or_else(|| global.server.clone()),
                context: flag(before, "--context").or_else(|| global.context.clone()),
                server_is_flag: flag(before, "--server").is_some() || global.server_is_flag,
                ..global.clone()
            };
            let live = live(&global, &names, last);
            tokio::time::timeout(PATIENCE, live)
                .await
                .ok()
                .and_then(Result::ok)
                .unwrap_or_default()
        }
    };
    let found: BTreeSet<String> = found
        .into_iter()
        .filter(|word| word.starts_with(last))
        .collect();
    let lines: String = found.into_iter().map(|word| word + "\n").collect();
    output::print(&lines)?;
    Ok(Exit::Done)
}

fn before_nothing() -> &'static [String] {
    &[]
}

fn flag(words: &[String], name: &str) -> Option<String> {
    let value = |pair: &[String]| (pair[0] == name).then(|| pair[1].clone());
    words.windows(2).find_map(value).or_else(|| {
        let with = format!("{name}=");
        words
            .iter()
            .find_map(|word| word.strip_prefix(&with).map(str::to_owned))
    })
}

/// What may stand in a place.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Words(Vec<String>),
    Names(Names),
}

/// Names of things.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    /// CLUSTER, or cluster/CLUSTER.
    Clusters,
    /// CLUSTER/GROUP.
    Groups,
    /// Groups of a cluster.
    GroupsOf(String),
    /// CLUSTER/NODE.
    Nodes,
    /// CLUSTER, for all of its nodes, or CLUSTER/NODE.
    NodesOrAll,
    /// CLUSTER, or CLUSTER/GROUP.
    GroupsOrAll,
    /// CLUSTER, CLUSTER/GROUP or CLUSTER/NODE.
    Logs,
    Platforms,
    Secrets,
    Storage,
    Contexts,
    /// KIND, or KIND/NAME.
    Kinds,
}

/// What may follow these words.
fn wanted(before: &[String], last: &str) -> Wanted {
    let root = Cli::command();
    let mut command = &root;
    let mut path: Vec<&str> = Vec::new();
    let mut positions: Vec<&str> = Vec::new();
    let mut value_of: Option<&Arg> = None;
    for word in before {
        if value_of.take().is_some() {
            continue;
        }
        if word.starts_with('-') {
            value_of = argument(&root, command, word)
                .filter(|arg| takes_value(arg) && !word.contains('='));
        } else if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            path.push(inner.get_name());
        } else {
            positions.push(word);
        }
    }
    if let Some(arg) = value_of {
        return value(arg);
    }
    if last.starts_with('-') {
        return Wanted::Words(flags(&root, command));
    }
    if command.has_subcommands() {
        let names = command.get_subcommands().filter(|it| !it.is_hide_set());
        return Wanted::Words(names.map(|it| it.get_name().to_owned()).collect());
    }
    position(&path, &positions, command)
}

fn argument<'a>(root: &'a Command, command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut all = command.get_arguments().chain(root.get_arguments());
    let name = word.split('=').next().unwrap_or(word);
    all.find(|arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| name.ends_with(short)),
    })
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn flags(root: &Command, command: &Command) -> Vec<String> {
    let all = command.get_arguments().chain(root.get_arguments());
    let long = all
        .filter(|arg| !arg.is_hide_set())
        .filter_map(Arg::get_long);
    long.chain(["help"])
        .map(|long| format!("--{long}"))
        .collect()
}

/// The value of a flag.
fn value(arg: &Arg) -> Wanted {
    let known = arg.get_possible_values();
    if !known.is_empty() {
        return Wanted::Words(known.iter().map(|it| it.get_name().to_owned()).collect());
    }
    match arg.get_long() {
        Some("context") => Wanted::Names(Names::Contexts),
        Some("platform") => Wanted::Names(Names::Platforms),
        Some("remove") => Wanted::Names(Names::Nodes),
        // A file.
        _ => Wanted::Words(Vec::new()),
    }
}

/// A positional argument.
fn position(path: &[&str], before: &[&str], command: &Command) -> Wanted {
    let names = match (path, before) {
        (["get" | "describe" | "delete"], []) => Names::Kinds,
        (["get"], ["node" | "nodes", ..]) => Names::NodesOrAll,
        (["get" | "describe" | "delete"], [first, ..]) => match of_kind(first) {
            Some(names) if !first.contains('/') => names,
            _ => Names::Kinds,
        },
        (["wait"], _) => Names::Clusters,
        (["scale"] | ["rollout", "status" | "restart"], []) => Names::Groups,
        (["scale" | "failover"] | ["rollout", "status" | "restart"], [cluster])
            if !cluster.contains('/') =>
        {
            Names::GroupsOf((*cluster).to_owned())
        }
        (
            ["plan" | "pause" | "resume" | "reconcile" | "abandon" | "events"]
            | ["rollout", "history" | "undo"],
            [],
        ) => Names::Clusters,
        (["replace" | "repair" | "exec"], []) => Names::Nodes,
        (["logs"], []) => Names::Logs,
        (["connect" | "failover"], []) => Names::GroupsOrAll,
        (["rebind" | "confirm-loss"], []) => Names::Platforms,
        (["context", "use" | "show"], []) | (["context", "delete"], _) => Names::Contexts,
        _ => {
            let next = command.get_positionals().nth(before.len());
            return next.map_or_else(|| Wanted::Words(Vec::new()), value);
        }
    };
    Wanted::Names(names)
}

fn of_kind(word: &str) -> Option<Names> {
    use target::Kind;
    let kind = word.split('/').next().unwrap_or(word);
    Some(match Kind::parse(kind).ok()? {
        Kind::Cluster | Kind::Event => Names::Clusters,
        Kind::Node => Names::Nodes,
        Kind::Platform | Kind::Host | Kind::Discovered => Names::Platforms,
        Kind::Secret => Names::Secrets,
        Kind::Storage => Names::Storage,
        Kind::Replica => return None,
    })
}

async fn live(global: &Global, names: &Names, last: &str) -> Outcome<Vec<String>> {
    if *names == Names::Contexts {
        return context::names();
    }
    let kinds = || target::KINDS.iter().map(|(_, many, _)| *many);
    let (names, prefix) = match (names, last.split_once('/')) {
        (Names::Kinds, None) => return Ok(kinds().map(str::to_owned).collect()),
        (Names::Kinds, Some((kind, _))) => match of_kind(kind) {
            Some(names) => (names, format!("{kind}/")),
            None => return Ok(Vec::new()),
        },
        (Names::Clusters, Some((kind @ ("cluster" | "clusters"), _))) => {
            (Names::Clusters, format!("{kind}/"))
        }
        (names, _) => (names.clone(), String::new()),
    };
    let client = Client::to(&context::place(global)?.targets()?);
    let inner = last.strip_prefix(&prefix).unwrap_or(last);
    let all = match (names, inner.contains('/')) {
        (Names::Logs, true) => vec![Names::Groups, Names::Nodes],
        (Names::Logs | Names::GroupsOrAll, false) => vec![Names::Clusters, Names::Groups],
        (Names::GroupsOrAll, true) => vec![Names::Groups],
        (Names::NodesOrAll, true) => vec![Names::Nodes],
        (Names::NodesOrAll, false) => vec![Names::Clusters, Names::Nodes],
        (names, _) => vec![names],
    };
    let mut found = Vec::new();
    for names in &all {
        found.extend(names_of(&client, names, inner).await?);
    }
    Ok(found
        .into_iter()
        .map(|name| prefix.clone() + &name)
        .collect())
}

async fn names_of(client: &Client, names: &Names, last: &str) -> Outcome<Vec<String>> {
    match (names, last.split_once('/')) {
        (Names::Nodes, Some((cluster, _))) => {
            let nodes = client.list_nodes(Some(cluster.to_owned())).await?.nodes;
            let names = nodes.iter().map(|node| format!("{cluster}/{}", node.name));
            Ok(names.collect())
        }
        (Names::Groups, Some((cluster, _))) => {
            let paths = groups_of(client, cluster).await?;
            let names = paths.iter().map(|path| format!("{cluster}/{path}"));
            Ok(names.collect())
        }
        (Names::GroupsOf(cluster), _) => groups_of(client, target::cluster(cluster)).await,
        (Names::Storage, _) => {
            let request = drover_proto::orchestrator::v1::ListStorageRequest::default();
            let answer = client.call(client.api.list_storage(request, CALL_TIMEOUT));
            let kept = answer.await?.storage.into_iter();
            Ok(kept.filter_map(|it| Some(it.storage?.id)).collect())
        }
        (Names::Platforms, _) => {
            let platforms = client.list_platforms().await?.platforms;
            Ok(platforms.into_iter().map(|it| it.name).collect())
        }
        (Names::Secrets, _) => {
            let request = drover_proto::orchestrator::v1::ListSecretsRequest::default();
            let answer = client.call(client.api.list_secrets(request, CALL_TIMEOUT));
            Ok(answer
                .await?
                .secrets
                .into_iter()
                .map(|it| it.name)
                .collect())
        }
        _ => {
            let slash = matches!(names, Names::Nodes | Names::Groups);
            let clusters = client.list_clusters(None).await?.clusters;
            let end = if slash { "/" } else { "" };
            Ok(clusters.into_iter().map(|it| it.name + end).collect())
        }
    }
}

/// Paths of the groups of a cluster that have nodes.
async fn groups_of(client: &Client, cluster: &str) -> Outcome<Vec<String>> {
    let request = GetClusterRequest {
        name: cluster.to_owned(),
        min_revision: None,
    };
    let answer = client.call(client.api.get_cluster(request, CALL_TIMEOUT));
    let spec = answer.await?.cluster.and_then(|it| it.spec);
    let mut paths = Vec::new();
    groups(&spec.unwrap_or_default().groups, "", &mut paths);
    Ok(paths)
}

/// Paths of groups with nodes.
fn groups(all: &[GroupSpec], above: &str, paths: &mut Vec<String>) {
    for group in all {
        let path = match above {
            "" => group.name.clone(),
            above => format!("{above}/{}", group.name),
        };
        if group.groups.is_empty() {
            paths.push(path);
        } else {
            groups(&group.groups, &path, paths);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Wanted {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let last = words.pop().unwrap_or_default();
        wanted(&words, &last)
    }

    fn words(line: &str) -> Vec<String> {
        match of(line) {
            Wanted::Words(words) => words,
            Wanted::Names(names) => panic!("{line}: {names:?}"),
        }
    }

    #[test]
    fn every_place_of_a_command_line_knows_what_may_stand_there() {
        for (line, names) in [
            ("get ", Names::Kinds),
            ("get clusters ", Names::Clusters),
            ("get nodes ", Names::NodesOrAll),
            ("get storage ", Names::Storage),
            ("delete storage ", Names::Storage),
            ("get discovered ", Names::Platforms),
            ("wait ", Names::Clusters),
            ("wait cluster ", Names::Clusters),
            ("describe node ", Names::Nodes),
            ("delete cluster/", Names::Kinds),
            ("--server x get clusters ", Names::Clusters),
            ("get -o json platforms ", Names::Platforms),
            ("scale ", Names::Groups),
            ("scale --standby 1 ", Names::Groups),
            ("scale hello ", Names::GroupsOf("hello".into())),
            ("rollout status hello ", Names::GroupsOf("hello".into())),
            ("rollout restart ", Names::Groups),
            ("rollout undo ", Names::Clusters),
            ("exec -t ", Names::Nodes),
            ("logs -f ", Names::Logs),
            ("logs --tail 5 ", Names::Logs),
            ("connect ", Names::GroupsOrAll),
            ("connect --read ", Names::GroupsOrAll),
            ("failover --accept-loss ", Names::GroupsOrAll),
            ("failover hello ", Names::GroupsOf("hello".into())),
            ("abandon shop --platform ", Names::Platforms),
            ("context use ", Names::Contexts),
            ("--context ", Names::Contexts),
            ("rebind ", Names::Platforms),
        ] {
            assert_eq!(of(line), Wanted::Names(names), "{line}");
        }
        assert!(words("sc").contains(&"scale".to_owned()));
        assert!(!words("").contains(&"agent".to_owned()), "hidden");
        assert!(words("rollout ").contains(&"undo".to_owned()));
        assert!(words("scale --st").contains(&"--standby".to_owned()));
        assert!(words("scale --st").contains(&"--server".to_owned()));
        assert!(words("get nodes -o ").contains(&"wide".to_owned()));
        assert!(words("init ").contains(&"redis".to_owned()));
        assert_eq!(words("apply -f "), [""; 0], "a file");
        assert_eq!(words("scale hello/web "), [""; 0], "a number");
        assert_eq!(words("connect hello -- "), [""; 0], "a program");
    }
}
