//! `connect`: a client of a store, started with the addresses of its nodes in its environment.

mod environment;

use std::{
    io,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitCode},
    slice,
};

use drover_proto::{
    orchestrator::v1::{ClusterSpec, GetClusterRequest, Node, NodeState},
    platform::v1::NodeRole,
};
use prost_types::value::Kind;

use self::environment::{Address, Store, Variables, Way};
use super::{End, get, target};
use crate::{
    cli::{ConnectArgs, EnvFormat},
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    output::{self, rows},
};

/// Most nodes that an error names.
const NAMED: usize = 5;

pub(crate) async fn run(client: &Client, args: ConnectArgs) -> Outcome<End> {
    let (cluster, group) = target::cluster_or_group(slice::from_ref(&args.target))?;
    let target = group.map_or_else(|| cluster.to_owned(), |path| format!("{cluster}/{path}"));
    let spec = spec(client, cluster).await?;
    let software = spec.store.clone().unwrap_or_default().software;
    let store = Store::of(&software);
    let mut words = words(&args, &target, &software)?.into_iter();
    let caller = |name: &str| std::env::var(name).ok();
    if let Some(name) = environment::misleading(store, caller) {
        return Err(Failure::failed(format!(
            "{name} is set here and leads clients of PostgreSQL elsewhere; unset {name}"
        )));
    }
    let listed = client
        .list_nodes_of(Some(cluster.to_owned()), group.map(str::to_owned))
        .await?;
    let nodes = get::in_order(&listed.nodes);
    let nodes = of_one_group(&nodes).map_err(|groups| ambiguous(&args, cluster, &groups))?;
    let addresses = addresses(&nodes, store, args.read);
    if addresses.is_empty() {
        return Err(unusable(&target, &nodes, args.read).with_hint(&Hint::nodes(cluster)));
    }
    let way = Way {
        read: args.read,
        tls: nodes
            .first()
            .is_some_and(|node| demands_tls(&spec, &node.group)),
    };
    let variables = environment::variables(store, &addresses, way, caller);
    let Some(name) = words.next() else {
        output::print(&match args.output {
            EnvFormat::Sh => environment::exports(&variables),
            EnvFormat::Json => format!("{:#}\n", environment::object(&variables)),
        })?;
        return Ok(End::Code(ExitCode::SUCCESS));
    };
    let arguments = with_place((store, way.tls), &name, &addresses, words.collect());
    Ok(End::Program(Program {
        name,
        arguments,
        variables,
        target,
        read: args.read,
    }))
}

async fn spec(client: &Client, cluster: &str) -> Outcome<ClusterSpec> {
    let request = GetClusterRequest {
        name: cluster.to_owned(),
        min_revision: None,
    };
    let answer = client
        .call(client.api.get_cluster(request, CALL_TIMEOUT))
        .await?;
    let spec = answer.cluster.and_then(|cluster| cluster.spec);
    Ok(spec.unwrap_or_default())
}

/// Whether the servers of a group let nobody in without TLS, by the attribute of the templates of stores.
fn demands_tls(spec: &ClusterSpec, path: &str) -> bool {
    let mut attributes = vec![spec.attributes.as_ref()];
    let (mut groups, mut rest) = (&spec.groups, path);
    while let Some(group) = groups.iter().find(|group| {
        let below = rest.strip_prefix(group.name.as_str());
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    }) {
        attributes.push(group.attributes.as_ref());
        rest = rest[group.name.len()..].trim_start_matches('/');
        groups = &group.groups;
    }
    let said = attributes.into_iter().rev().flatten();
    let tls = said
        .filter_map(|all| all.fields.get("tls")?.kind.as_ref())
        .next();
    match tls {
        Some(Kind::StringValue(mode)) => mode == "required",
        Some(Kind::BoolValue(tls)) => *tls,
        _ => false,
    }
}

/// The program and its arguments: those that were given, or the usual client. None with --env.
fn words(args: &ConnectArgs, target: &str, software: &str) -> Outcome<Vec<String>> {
    if args.env || !args.command.is_empty() {
        return Ok(args.command.clone());
    }
    let store = Store::of(software);
    if let Some(client) = store.client() {
        return Ok(vec![client.to_owned()]);
    }
    let hint = |rest: &[&str]| Hint::connect(target, args.read, rest);
    if store == Store::Etcd {
        let hint = hint(&["--", "etcdctl", "member", "list"]);
        return Err(Failure::usage("etcdctl needs a command").with_hint(&hint));
    }
    let why = match software {
        "" => "the cluster names no store".to_owned(),
        software => format!("no client of the store `{software}` is known"),
    };
    let message = format!("{why}; give a program after --, or take the variables");
    Err(Failure::usage(message).with_hint(&hint(&["--env"])))
}

fn is_ready(node: &Node) -> bool {
    node.state() == NodeState::Ready
}

/// Whether a group is known to have no addresses. A node that is not ready may still get one.
fn is_silent(nodes: &[&Node], group: &str) -> bool {
    let own = nodes.iter().filter(|node| node.group == group);
    let mut ready = own.filter(|node| is_ready(node)).peekable();
    ready.peek().is_some() && ready.all(|node| Address::of(node).is_none())
}

/// The nodes of the only group with addresses, or all if there is none. If there are several such groups, their paths.
fn of_one_group<'a>(nodes: &[&'a Node]) -> Result<Vec<&'a Node>, Vec<&'a str>> {
    let mut groups: Vec<&'a str> = nodes.iter().map(|node| node.group.as_str()).collect();
    groups.dedup();
    groups.retain(|group| !is_silent(nodes, group));
    match groups.as_slice() {
        [] => Ok(nodes.to_vec()),
        [only] => {
            let own = nodes.iter().copied().filter(|node| node.group == *only);
            Ok(own.collect())
        }
        _ => Err(groups),
    }
}

fn ambiguous(args: &ConnectArgs, cluster: &str, groups: &[&str]) -> Failure {
    let names = groups.join(", ");
    let failure = Failure::usage(format!("cluster {cluster} has several groups: {names}"));
    match groups.first() {
        Some(group) => {
            let target = format!("{cluster}/{group}");
            failure.with_hint(&Hint::connect(&target, args.read, &given(args)))
        }
        None => failure,
    }
}

/// What was given besides the target.
fn given(args: &ConnectArgs) -> Vec<&str> {
    let mut words = Vec::new();
    words.extend(args.env.then_some("--env"));
    if args.output == EnvFormat::Json {
        words.extend(["-o", "json"]);
    }
    words.extend((!args.command.is_empty()).then_some("--"));
    words.extend(args.command.iter().map(String::as_str));
    words
}

/// Where the nodes are that clients should use.
fn addresses(nodes: &[&Node], store: Store, read: bool) -> Vec<Address> {
    let of_role = |role: NodeRole| -> Vec<Address> {
        let ready = nodes.iter().filter(|node| is_ready(node));
        // All members of an etcd are alike.
        let own = ready.filter(|node| store == Store::Etcd || node.role() == role);
        own.filter_map(|node| Address::of(node)).collect()
    };
    let standby = if read {
        of_role(NodeRole::Standby)
    } else {
        Vec::new()
    };
    if standby.is_empty() {
        of_role(NodeRole::Active)
    } else {
        standby
    }
}

fn unusable(target: &str, nodes: &[&Node], read: bool) -> Failure {
    let wanted = if read {
        "ready node"
    } else {
        "ready active node"
    };
    let mut states: Vec<String> = nodes.iter().take(NAMED).map(|node| state(node)).collect();
    match nodes.len().saturating_sub(NAMED) {
        0 if states.is_empty() => states.push("it has no nodes".to_owned()),
        0 => {}
        more => states.push(format!("and {more} more")),
    }
    let states = states.join(", ");
    Failure::new(
        Exit::NotFound,
        format!("error: {target} has no {wanted} with an address: {states}"),
    )
}

fn state(node: &Node) -> String {
    let address = if is_ready(node) && Address::of(node).is_none() {
        " without an address"
    } else {
        ""
    };
    let (role, status) = (rows::role(node), rows::node_status(node));
    format!("{} ({role}) is {status}{address}", node.name)
}

/// Arguments of a program. `redis-cli` takes the address from no variable; what is given goes before it, as it comes later.
fn with_place(
    (store, tls): (Store, bool),
    program: &str,
    addresses: &[Address],
    given: Vec<String>,
) -> Vec<String> {
    let is_cli = Path::new(program).file_name() == Some("redis-cli".as_ref());
    let mut place = match (store, is_cli, addresses.first()) {
        (Store::Redis, true, Some(first)) => vec![
            "-h".to_owned(),
            first.host.clone(),
            "-p".to_owned(),
            first.port.to_string(),
        ],
        _ => Vec::new(),
    };
    if tls && !place.is_empty() {
        place.push("--tls".to_owned());
    }
    place.into_iter().chain(given).collect()
}

/// Package of Debian that has a client.
fn package(program: &str) -> Option<&'static str> {
    Some(match program {
        "psql" | "pg_dump" | "pg_restore" | "pg_isready" | "pg_basebackup" => "postgresql-client",
        "redis-cli" => "redis-tools",
        "etcdctl" => "etcd-client",
        _ => return None,
    })
}

/// A program that this process is to become.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    arguments: Vec<String>,
    variables: Variables,
    /// CLUSTER or CLUSTER/GROUP.
    target: String,
    read: bool,
}

impl Program {
    /// Becomes the program. Returns only if it cannot be started.
    pub(crate) fn start(self) -> Failure {
        let mut command = Command::new(&self.name);
        command.args(&self.arguments);
        command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        let error = command.exec();
        self.failed(&error)
    }

    fn failed(&self, error: &io::Error) -> Failure {
        let name = &self.name;
        if error.kind() != io::ErrorKind::NotFound {
            return Failure::failed(format!("cannot start {name}: {error}"));
        }
        let message = match package(name) {
            Some(package) => format!(
                "error: {name} is not installed here: install the package {package}, or take the variables with --env"
            ),
            None => format!("error: there is no program {name:?} here"),
        };
        let hint = Hint::connect(&self.target, self.read, &["--env"]);
        Failure::new(Exit::NotFound, message).with_hint(&hint)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command as Parsed};

    fn args(line: &str) -> ConnectArgs {
        match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Parsed::Connect(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// A node `GROUP-ORDINAL` with the port 1000 + ORDINAL.
    fn node(group: &str, ordinal: u32, role: NodeRole, state: NodeState) -> Node {
        let at = format!("127.0.0.1:{}", 1000 + ordinal);
        Node {
            name: format!("{group}-{ordinal}"),
            group: group.to_owned(),
            ordinal,
            role: role.into(),
            state: state.into(),
            endpoints: [("client".to_owned(), at)].into(),
            ..Default::default()
        }
    }

    fn chosen(nodes: &[Node], store: Store, read: bool) -> Vec<u16> {
        let nodes: Vec<&Node> = nodes.iter().collect();
        let found = addresses(&nodes, store, read);
        found.iter().map(|address| address.port).collect()
    }

    #[test]
    fn who_writes_gets_the_active_nodes_and_who_reads_the_standby_ones() {
        use {NodeRole::*, NodeState::*};
        let mut nodes = [
            node("db", 0, Active, Ready),
            node("db", 1, Standby, Ready),
            node("db", 2, Standby, Starting),
        ];
        assert_eq!(chosen(&nodes, Store::Postgresql, false), [1000]);
        assert_eq!(chosen(&nodes, Store::Postgresql, true), [1001]);
        assert_eq!(chosen(&nodes, Store::Other, false), [1000]);
        assert_eq!(chosen(&nodes, Store::Etcd, false), [1000, 1001]);
        nodes[1].state = Unknown.into();
        assert_eq!(chosen(&nodes, Store::Redis, true), [1000], "none stands by");
        nodes[0].state = Unhealthy.into();
        assert_eq!(chosen(&nodes, Store::Redis, true), [0; 0]);
    }

    #[test]
    fn a_group_is_asked_for_where_several_have_addresses() {
        use {NodeRole::*, NodeState::*};
        let mut nodes = [
            node("db", 0, Active, Ready),
            node("db", 1, Standby, Ready),
            node("web", 0, Active, Ready),
        ];
        let groups = |nodes: &[Node]| -> Result<usize, String> {
            let nodes: Vec<&Node> = nodes.iter().collect();
            let found = of_one_group(&nodes);
            found
                .map(|own| own.len())
                .map_err(|groups| groups.join(" "))
        };
        assert_eq!(groups(&nodes), Err("db web".to_owned()));
        let lost = std::mem::take(&mut nodes[1].endpoints);
        assert_eq!(groups(&nodes), Err("db web".to_owned()), "db-0 has one");
        nodes[1].endpoints = lost;
        nodes[2].endpoints.clear();
        assert_eq!(groups(&nodes), Ok(2), "web has no addresses");
        nodes[2].state = Starting.into();
        assert_eq!(groups(&nodes), Err("db web".to_owned()), "it may get one");
        assert_eq!(groups(&[]), Ok(0));
        let args = args("drover connect shop --read -- psql -c x");
        let failure = ambiguous(&args, "shop", &["db", "web"]);
        assert_eq!(failure.exit, Exit::Usage);
        let hint = "hint: drover connect shop/db --read -- psql -c x";
        assert!(failure.message.ends_with(hint), "{failure}");
    }

    #[test]
    fn why_no_node_can_be_used_is_said_of_each() {
        use {NodeRole::*, NodeState::*};
        let mut nodes = [
            node("db", 0, Active, Failed),
            node("db", 1, Standby, Ready),
            node("db", 2, Active, Ready),
        ];
        nodes[0].reason = "Dead".to_owned();
        nodes[2].endpoints.clear();
        let all: Vec<&Node> = nodes.iter().collect();
        let failure = unusable("shop/db", &all, false);
        assert_eq!(failure.exit, Exit::NotFound);
        assert_eq!(
            failure.message,
            "error: shop/db has no ready active node with an address: db-0 (active) is Dead, db-1 (standby) is Ready, \
             db-2 (active) is Ready without an address"
        );
        let many = [all[0]; 7];
        let failure = unusable("shop", &many, true);
        assert!(failure.message.ends_with("is Dead, and 2 more"));
        let failure = unusable("shop", &[], true);
        assert!(failure.message.ends_with(": it has no nodes"));
    }

    #[test]
    fn the_group_says_last_whether_its_servers_demand_tls() {
        use drover_proto::orchestrator::v1::GroupSpec;
        use prost_types::{Struct, Value};
        let attributes = |mode: Option<Kind>| {
            mode.map(|kind| Struct {
                fields: [("tls".to_owned(), Value { kind: Some(kind) })].into(),
            })
        };
        let text = |mode: &str| Some(Kind::StringValue(mode.to_owned()));
        let demands = |above: Option<Kind>, own: Option<Kind>| {
            let inner = GroupSpec {
                name: "db".to_owned(),
                attributes: attributes(own),
                ..Default::default()
            };
            let outer = GroupSpec {
                name: "eu".to_owned(),
                groups: vec![inner],
                ..Default::default()
            };
            let spec = ClusterSpec {
                attributes: attributes(above),
                groups: vec![outer],
                ..Default::default()
            };
            demands_tls(&spec, "eu/db")
        };
        assert!(!demands(None, None));
        assert!(demands(text("required"), None));
        assert!(demands(None, Some(Kind::BoolValue(true))));
        assert!(!demands(text("required"), text("allowed")));
    }

    #[test]
    fn without_a_program_it_is_the_usual_client() {
        let args = args("drover connect shop --read");
        let program = |software: &str| words(&args, "shop", software);
        assert_eq!(program("postgresql").unwrap(), ["psql"]);
        assert_eq!(program("redis").unwrap(), ["redis-cli"]);
        for (software, why, hint) in [
            ("etcd", "needs a command", "--read -- etcdctl member list"),
            ("mine", "the store `mine`", "--read --env"),
            ("", "names no store", "--read --env"),
        ] {
            let failure = program(software).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(why), "{failure}");
            let hint = format!("hint: drover connect shop {hint}");
            assert!(failure.message.ends_with(&hint), "{failure}");
        }
    }

    #[test]
    fn redis_cli_is_told_the_address_before_what_it_is_given() {
        let node = node("redis", 0, NodeRole::Active, NodeState::Ready);
        let at = addresses(&[&node], Store::Redis, false);
        let given = || vec!["get".to_owned(), "a".to_owned()];
        assert_eq!(
            with_place((Store::Redis, false), "redis-cli", &at, given()),
            ["-h", "127.0.0.1", "-p", "1000", "get", "a"]
        );
        assert_eq!(
            with_place((Store::Redis, false), "/usr/bin/redis-cli", &at, given()).len(),
            6
        );
        assert_eq!(
            with_place((Store::Redis, true), "redis-cli", &at, given()),
            ["-h", "127.0.0.1", "-p", "1000", "--tls", "get", "a"]
        );
        assert_eq!(
            with_place((Store::Redis, false), "sh", &at, given()),
            given()
        );
        assert_eq!(
            with_place((Store::Other, false), "redis-cli", &at, given()),
            given()
        );
    }

    #[test]
    fn a_client_that_is_not_there_is_named_with_its_package() {
        let failed = |name: &str, kind: io::ErrorKind| {
            let program = Program {
                name: name.to_owned(),
                arguments: Vec::new(),
                variables: Vec::new(),
                target: "shop".to_owned(),
                read: false,
            };
            program.failed(&kind.into())
        };
        for (name, words) in [
            ("psql", "the package postgresql-client"),
            ("redis-cli", "the package redis-tools"),
            ("etcdctl", "the package etcd-client"),
            ("mine", "there is no program \"mine\" here"),
        ] {
            let failure = failed(name, io::ErrorKind::NotFound);
            assert_eq!(failure.exit, Exit::NotFound);
            assert!(failure.message.contains(words), "{failure}");
            let hint = "hint: drover connect shop --env";
            assert!(failure.message.ends_with(hint), "{failure}");
        }
        let failure = failed("psql", io::ErrorKind::PermissionDenied);
        assert_eq!(failure.exit, Exit::Failed);
    }
}
