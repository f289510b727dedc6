//! Where nodes are probed.

use std::borrow::Cow;

use super::{Port, Probe};
use crate::{Node, NodeState, node::Seen};

impl Probe {
    /// The port that is probed. `None` for that of the agent.
    #[must_use]
    pub fn port(&self) -> Option<&Port> {
        match self {
            Self::Phase | Self::Exec { .. } => None,
            Self::Grpc { port, .. } | Self::Http { port, .. } | Self::Tcp { port } => port.as_ref(),
        }
    }

    /// The address at which a node is probed over the network. `None` if the node shows no such address.
    #[must_use]
    pub fn address<'a>(&self, seen: &'a Seen) -> Option<Cow<'a, str>> {
        let agent = seen.agent_address.split_once("://");
        // An annotation of a pod may name a path besides, which says nothing about where it answers.
        let agent = agent.map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
        let endpoints = &seen.endpoints;
        match self.port() {
            // Without a port nobody knows where it answers.
            None => agent.filter(|it| host(it) != *it).map(Cow::Borrowed),
            Some(Port::Name(name)) => endpoints
                .iter()
                .find(|(own, _)| **own == **name)
                .map(|(_, address)| Cow::Borrowed(&**address)),
            Some(Port::Number(number)) => {
                let known = agent.or_else(|| endpoints.first().map(|(_, address)| &**address));
                known.map(|address| Cow::Owned(format!("{}:{number}", host(address))))
            }
        }
    }

    /// Whether a probe that a template suggests says anything about a node. One that ran and does not show where to
    /// probe it may be older than the suggestion. One that starts is made from the template.
    #[must_use]
    pub fn judges(&self, node: &Node) -> bool {
        let network = !matches!(self, Self::Phase | Self::Exec { .. });
        let ran = match node.state {
            NodeState::Ready => true,
            NodeState::Unhealthy => *node.reason != *"StartTimeout",
            _ => false,
        };
        !(network && ran) || self.address(&node.seen).is_some()
    }
}

/// The host of `host`, `host:port`, `[ip]` or `[ip]:port`, with its brackets.
fn host(address: &str) -> &str {
    let (brackets, rest) = address.split_at(address.rfind(']').map_or(0, |at| at + 1));
    match rest.rfind(':') {
        Some(port) => &address[..brackets.len() + port],
        None => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Seen;

    #[test]
    fn an_agent_is_probed_at_its_host_whatever_else_its_address_says() {
        let at = |agent: &str, port: Option<Port>| {
            let seen = Seen {
                agent_address: agent.into(),
                ..Seen::default()
            };
            let probe = Probe::Tcp { port };
            probe.address(&seen).map(Cow::into_owned)
        };
        let number = || Some(Port::Number(6379));
        for (agent, own, other) in [
            ("http://db:80", Some("db:80"), Some("db:6379")),
            ("http://db:80/x?y=z:1", Some("db:80"), Some("db:6379")),
            ("http://db/x", None, Some("db:6379")),
            (
                "grpc://[fd00::9]:75/",
                Some("[fd00::9]:75"),
                Some("[fd00::9]:6379"),
            ),
            ("grpc://[fd00::9]", None, Some("[fd00::9]:6379")),
            ("", None, None),
        ] {
            assert_eq!(at(agent, None).as_deref(), own, "{agent}");
            assert_eq!(at(agent, number()).as_deref(), other, "{agent}");
        }
    }
}
