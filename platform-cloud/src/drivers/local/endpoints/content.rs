//! What the file of a group says: lines `NAME=VALUE` that a shell, a unit of systemd and Docker read alike. None of them
//! needs quotes, as hosts are names or addresses.

use std::collections::BTreeSet;

use super::super::spec::endpoint;

/// First line, before the tag of the group. It tells whose the file is.
const HEAD: &str = "# Kept up to date by Drover for the group ";
/// In place of addresses: a program that finds no `STORE_HOST` should try again.
const NOBODY: &str = "# no active node";
const ADDRESSES: &str = "STORE_ADDRESSES";
const READ_ADDRESSES: &str = "STORE_READ_ADDRESSES";

/// A node that takes clients.
pub(super) struct Server {
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) standby: bool,
}

impl Server {
    /// `HOST:PORT`.
    pub(super) fn address(&self) -> String {
        endpoint(&self.host, self.port)
    }
}

/// The whole file, for servers in the order in which clients should try them.
pub(super) fn content(tag: &str, store: &str, servers: &[Server]) -> String {
    let (standbys, active): (Vec<&Server>, Vec<&Server>) =
        servers.iter().partition(|server| server.standby);
    let mut lines = vec![format!("{HEAD}{tag}")];
    let mut variables = Vec::new();
    if let Some(&first) = active.first() {
        variables.extend([
            ("STORE_HOST", first.host.clone()),
            ("STORE_PORT", first.port.to_string()),
            (ADDRESSES, joined(&active, Server::address)),
        ]);
        variables.extend(of_store(store, first, &active));
    } else {
        lines.push(NOBODY.to_owned());
    }
    let readable = if standbys.is_empty() {
        &active
    } else {
        &standbys
    };
    if !readable.is_empty() {
        variables.push((READ_ADDRESSES, joined(readable, Server::address)));
    }
    lines.extend(
        variables
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    lines.join("\n") + "\n"
}

/// What clients of a store read by themselves.
fn of_store(store: &str, first: &Server, active: &[&Server]) -> Vec<(&'static str, String)> {
    match store {
        "postgresql" => vec![
            ("PGHOST", joined(active, |it| it.host.clone())),
            ("PGPORT", joined(active, |it| it.port.to_string())),
            ("PGTARGETSESSIONATTRS", "read-write".to_owned()),
        ],
        "redis" => vec![
            ("REDIS_HOST", first.host.clone()),
            ("REDIS_PORT", first.port.to_string()),
            ("REDIS_URL", format!("redis://{}", first.address())),
        ],
        "etcd" => vec![
            (
                "ETCDCTL_ENDPOINTS",
                joined(active, |it| format!("http://{}", it.address())),
            ),
            ("ETCDCTL_API", "3".to_owned()),
        ],
        _ => Vec::new(),
    }
}

fn joined(servers: &[&Server], text: impl Fn(&Server) -> String) -> String {
    let all: Vec<String> = servers.iter().map(|server| text(server)).collect();
    all.join(",")
}

/// The tag of the group that a file was written for. `None` if it is not ours.
pub(super) fn tag(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix(HEAD)
}

/// The addresses in a file.
pub(super) fn listed(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| [ADDRESSES, READ_ADDRESSES].contains(name))
        .flat_map(|(_, addresses)| addresses.split(','))
        .map(ToOwned::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: &str, port: u16, standby: bool) -> Server {
        Server {
            host: host.to_owned(),
            port,
            standby,
        }
    }

    fn lines(store: &str, servers: &[Server]) -> Vec<String> {
        let text = content("1a2b", store, servers);
        assert!(text.ends_with('\n'), "{text}");
        assert_eq!(tag(&text), Some("1a2b"));
        text.lines().skip(1).map(ToOwned::to_owned).collect()
    }

    #[test]
    fn programs_are_led_to_active_nodes_and_readers_to_standbys() {
        let three = [
            server("127.0.0.1", 1, true),
            server("127.0.0.1", 2, false),
            server("127.0.0.1", 3, true),
        ];
        assert_eq!(
            lines("mine", &three),
            [
                "STORE_HOST=127.0.0.1",
                "STORE_PORT=2",
                "STORE_ADDRESSES=127.0.0.1:2",
                "STORE_READ_ADDRESSES=127.0.0.1:1,127.0.0.1:3",
            ]
        );
        assert_eq!(
            lines("", &three[1..2]).last().map(String::as_str),
            Some("STORE_READ_ADDRESSES=127.0.0.1:2"),
            "there is no standby"
        );
    }

    #[test]
    fn each_store_has_the_variables_of_its_clients() {
        let two = [server("db", 1, false), server("fd00::7", 2, false)];
        for (store, expected) in [
            (
                "postgresql",
                vec![
                    "PGHOST=db,fd00::7",
                    "PGPORT=1,2",
                    "PGTARGETSESSIONATTRS=read-write",
                ],
            ),
            (
                "redis",
                vec!["REDIS_HOST=db", "REDIS_PORT=1", "REDIS_URL=redis://db:1"],
            ),
            (
                "etcd",
                vec![
                    "ETCDCTL_ENDPOINTS=http://db:1,http://[fd00::7]:2",
                    "ETCDCTL_API=3",
                ],
            ),
            ("mine", vec![]),
        ] {
            let all = lines(store, &two);
            let (common, of_store) = all.split_at(3);
            assert_eq!(
                common,
                [
                    "STORE_HOST=db",
                    "STORE_PORT=1",
                    "STORE_ADDRESSES=db:1,[fd00::7]:2",
                ]
            );
            let (read, of_store) = of_store.split_last().unwrap();
            assert_eq!(read, "STORE_READ_ADDRESSES=db:1,[fd00::7]:2");
            assert_eq!(of_store, expected, "{store}");
        }
    }

    #[test]
    fn without_an_active_node_nobody_is_led_to_one_and_readers_go_on() {
        assert_eq!(lines("postgresql", &[]), ["# no active node"]);
        assert_eq!(
            lines("postgresql", &[server("db", 1, true)]),
            ["# no active node", "STORE_READ_ADDRESSES=db:1"]
        );
    }

    #[test]
    fn no_value_needs_quotes() {
        let two = [server("db-0.x", 1, false), server("fd00::7", 2, true)];
        for store in ["postgresql", "redis", "etcd", "mine"] {
            for line in lines(store, &two) {
                let plain = |c: char| c.is_ascii_alphanumeric() || "_=.,:/[]-".contains(c);
                assert!(line.chars().all(plain), "{line}");
            }
        }
    }

    #[test]
    fn a_file_tells_whom_it_lists() {
        let servers = [server("db", 1, false), server("fd00::7", 2, true)];
        let all = listed(&content("1a2b", "redis", &servers));
        assert!(all.iter().eq(["[fd00::7]:2", "db:1"]), "{all:?}");
        assert!(listed(&content("1a2b", "redis", &[])).is_empty());
        assert_eq!(tag("STORE_HOST=somebody\n"), None);
        assert_eq!(tag(""), None);
    }
}
