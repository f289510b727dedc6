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
        let agent = agent.map(|(_, address)| address);
        let endpoints = &seen.endpoints;
        match self.port() {
            None => agent.map(Cow::Borrowed),
            Some(Port::Name(name)) => endpoints
                .iter()
                .find(|(own, _)| **own == **name)
                .map(|(_, address)| Cow::Borrowed(&**address)),
            Some(Port::Number(number)) => {
                let known = agent.or_else(|| endpoints.first().map(|(_, address)| &**address));
                known
                    .and_then(|address| address.rsplit_once(':'))
                    .map(|(host, _)| Cow::Owned(format!("{host}:{number}")))
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
