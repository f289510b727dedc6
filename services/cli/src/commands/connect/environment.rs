//! Where clients of a store connect, and the variables that tell them.

use std::fmt;

use drover_proto::orchestrator::v1::Node;
use serde_json::Value;

use crate::output::{in_quotes, rows};

/// Port for clients in the templates of stores.
const CLIENT: &str = "client";
/// Variables of libpq that go before `PGHOST`.
const ELSEWHERE: [&str; 2] = ["PGHOSTADDR", "PGSERVICE"];

/// Names and values, in the order in which they are printed.
pub(super) type Variables = Vec<(&'static str, String)>;

/// Stores whose clients are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Postgresql,
    Redis,
    Etcd,
    Other,
}

impl Store {
    pub(super) fn of(software: &str) -> Self {
        match software {
            "postgresql" => Self::Postgresql,
            "redis" => Self::Redis,
            "etcd" => Self::Etcd,
            _ => Self::Other,
        }
    }

    /// The client that is of use without arguments.
    pub(super) fn client(self) -> Option<&'static str> {
        match self {
            Self::Postgresql => Some("psql"),
            Self::Redis => Some("redis-cli"),
            Self::Etcd | Self::Other => None,
        }
    }
}

/// Where clients of a node connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// The port `client` of a node, or else the one that `get nodes` shows.
    pub(super) fn of(node: &Node) -> Option<Self> {
        match node.endpoints.get(CLIENT) {
            Some(client) => Self::parse(client),
            None => Self::parse(&rows::address(node)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let inner = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let host = inner.unwrap_or(host);
        let port = port.parse().ok()?;
        // What libpq and shells would read otherwise.
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        (!host.is_empty() && host.chars().all(plain)).then(|| Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// A variable that is set and would lead clients of the store elsewhere.
pub(super) fn misleading(
    store: Store,
    caller: impl Fn(&str) -> Option<String>,
) -> Option<&'static str> {
    if store != Store::Postgresql {
        return None;
    }
    let is_set = |name: &str| caller(name).is_some_and(|value| !value.is_empty());
    ELSEWHERE.into_iter().find(|&name| is_set(name))
}

/// What clients are to know besides the addresses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    /// Whether they may be led to what is a moment old.
    pub(super) read: bool,
    /// Whether servers demand TLS.
    pub(super) tls: bool,
}

/// The variables for clients at these addresses. `caller` has what is set already.
pub(super) fn variables(
    store: Store,
    addresses: &[Address],
    Way { read, tls }: Way,
    caller: impl Fn(&str) -> Option<String>,
) -> Variables {
    let Some(first) = addresses.first() else {
        return Vec::new();
    };
    let postgres = |name: &str| caller(name).unwrap_or_else(|| "postgres".to_owned());
    // Older versions than 14 of libpq know these two only.
    let session = if read { "any" } else { "read-write" };
    let mut all = match store {
        Store::Postgresql => vec![
            ("PGHOST", joined(addresses, |it| it.host.clone())),
            ("PGPORT", joined(addresses, |it| it.port.to_string())),
            ("PGUSER", postgres("PGUSER")),
            ("PGDATABASE", postgres("PGDATABASE")),
            ("PGTARGETSESSIONATTRS", session.to_owned()),
        ],
        Store::Redis => vec![
            ("REDIS_HOST", first.host.clone()),
            ("REDIS_PORT", first.port.to_string()),
            (
                "REDIS_URL",
                format!("redis{}://{first}", if tls { "s" } else { "" }),
            ),
        ],
        Store::Etcd => vec![
            (
                "ETCDCTL_ENDPOINTS",
                joined(addresses, |it| {
                    format!("http{}://{it}", if tls { "s" } else { "" })
                }),
            ),
            ("ETCDCTL_API", "3".to_owned()),
        ],
        Store::Other => Vec::new(),
    };
    all.extend([
        ("STORE_HOST", first.host.clone()),
        ("STORE_PORT", first.port.to_string()),
        ("STORE_ADDRESSES", joined(addresses, Address::to_string)),
    ]);
    all
}

fn joined(addresses: &[Address], text: impl Fn(&Address) -> String) -> String {
    let all: Vec<String> = addresses.iter().map(text).collect();
    all.join(",")
}

/// Variables as lines for a shell.
pub(super) fn exports(variables: &[(&'static str, String)]) -> String {
    let lines: Vec<String> = variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", in_quotes(value)))
        .collect();
    lines.concat()
}

/// Variables as one object.
pub(super) fn object(variables: &[(&'static str, String)]) -> Value {
    let fields = variables.iter();
    let fields = fields.map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())));
    Value::Object(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(all: &[&str]) -> Vec<Address> {
        let parsed = all.iter().map(|text| Address::parse(text).unwrap());
        parsed.collect()
    }

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, host, port) in [
            ("127.0.0.1:5432", "127.0.0.1", 5432),
            ("db-0.orders:1", "db-0.orders", 1),
            ("[fd00::7]:6379", "fd00::7", 6379),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port));
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "a",
            ":1",
            "a:",
            "a:b",
            "/run/agent.sock",
            "unix:/run/a",
            "/run:1",
            "a,b:1",
            "@a:1",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn clients_use_their_port_and_not_that_of_others() {
        let mut node = Node {
            agent_address: Some("http://10.0.0.7:7500".to_owned()),
            endpoints: [
                ("client".to_owned(), "10.0.0.7:2379".to_owned()),
                ("peer".to_owned(), "10.0.0.7:2380".to_owned()),
            ]
            .into(),
            ..Default::default()
        };
        assert_eq!(Address::of(&node), at(&["10.0.0.7:2379"]).pop());
        node.endpoints.remove("client");
        assert_eq!(Address::of(&node), at(&["10.0.0.7:7500"]).pop());
        for (agent, shown) in [
            ("http://db:7000/x", "db:7000"),
            ("http://db:7000/?u=http://evil:5432", "db:7000"),
            ("http://db:80/a?b=c:5432", "db:80"),
        ] {
            node.agent_address = Some(agent.to_owned());
            assert_eq!(Address::of(&node), at(&[shown]).pop());
        }
        assert_eq!(Address::of(&Node::default()), None);
    }

    #[test]
    fn each_store_has_the_variables_of_its_clients() {
        let two = at(&["10.0.0.1:1", "[fd00::7]:2"]);
        for (software, expected) in [
            (
                "postgresql",
                "export PGHOST='10.0.0.1,fd00::7'\nexport PGPORT='1,2'\nexport PGUSER='postgres'\n\
                 export PGDATABASE='postgres'\nexport PGTARGETSESSIONATTRS='read-write'\n",
            ),
            (
                "redis",
                "export REDIS_HOST='10.0.0.1'\nexport REDIS_PORT='1'\nexport REDIS_URL='redis://10.0.0.1:1'\n",
            ),
            (
                "etcd",
                "export ETCDCTL_ENDPOINTS='http://10.0.0.1:1,http://[fd00::7]:2'\nexport ETCDCTL_API='3'\n",
            ),
            ("mine", ""),
        ] {
            let common = "export STORE_HOST='10.0.0.1'\nexport STORE_PORT='1'\n\
                          export STORE_ADDRESSES='10.0.0.1:1,[fd00::7]:2'\n";
            let all = variables(Store::of(software), &two, Way::default(), nothing);
            assert_eq!(exports(&all), format!("{expected}{common}"), "{software}");
        }
        assert!(variables(Store::Redis, &[], Way::default(), nothing).is_empty());
    }

    #[test]
    fn who_reads_takes_any_server_and_what_is_set_stays() {
        let caller = |name: &str| (name == "PGUSER").then(|| "it's me".to_owned());
        let way = Way {
            read: true,
            ..Way::default()
        };
        let all = variables(Store::Postgresql, &at(&["a:1"]), way, caller);
        let object = object(&all);
        assert_eq!(object["PGUSER"], "it's me");
        assert_eq!(object["PGDATABASE"], "postgres");
        assert_eq!(object["PGTARGETSESSIONATTRS"], "any");
        assert!(exports(&all).contains("export PGUSER='it'\\''s me'\n"));
    }

    #[test]
    fn servers_that_demand_tls_are_reached_by_it() {
        let way = Way {
            tls: true,
            ..Way::default()
        };
        for (store, line) in [
            (Store::Redis, "export REDIS_URL='rediss://a:1'\n"),
            (Store::Etcd, "export ETCDCTL_ENDPOINTS='https://a:1'\n"),
        ] {
            let all = exports(&variables(store, &at(&["a:1"]), way, nothing));
            assert!(all.contains(line), "{all}");
        }
    }

    #[test]
    fn what_leads_elsewhere_is_found() {
        let set = |only: &'static str, value: &'static str| {
            move |name: &str| (name == only).then(|| value.to_owned())
        };
        let found = |store, only, value| misleading(store, set(only, value));
        assert_eq!(
            found(Store::Postgresql, "PGSERVICE", "x"),
            Some("PGSERVICE")
        );
        assert_eq!(found(Store::Postgresql, "PGHOSTADDR", ""), None);
        assert_eq!(found(Store::Postgresql, "PGHOST", "x"), None);
        assert_eq!(found(Store::Redis, "PGSERVICE", "x"), None);
    }
}
