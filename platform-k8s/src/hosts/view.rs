//! A host as it is shown: as a node, and as an entry of the inventory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_core::{error::cut, sip};
use drover_platform::{
    driver::Found,
    inventory::metal3::{self, RACK},
};
use drover_proto::platform::v1::{Host, HostState, Node, NodePhase, Warning};
use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::labels::{self, LabelKeys};

use super::{
    claim,
    host::{self, BareMetalHost},
    life::{self, Life},
    secrets::Networks,
    settings::HostsSettings,
};

/// Most labels that are shown of a foreign host.
const MAX_LABELS: usize = 64;

/// Reads hosts.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) keys: LabelKeys,
    pub(super) settings: HostsSettings,
}

/// What is known of a host beside the object.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    /// Since when it has been off against its spec.
    pub(super) off_since: Option<Instant>,
    /// What its network data said, and when.
    pub(super) networks: Option<Arc<Networks>>,
    pub(super) networks_read: Option<Instant>,
}

impl Reader {
    pub(super) fn life(&self, host: &BareMetalHost, beside: &Beside) -> Life {
        Life::of(host, beside.off_since, self.settings.power_timeout())
    }

    /// When a host that is off has been so for too long.
    pub(super) fn power_timeout(&self) -> Duration {
        self.settings.power_timeout()
    }

    /// Labels by which the host is selected and spread: its own, the topology keys, and its networks.
    pub(super) fn labels(
        &self,
        host: &BareMetalHost,
        networks: Option<&Networks>,
    ) -> BTreeMap<String, String> {
        let addresses = networks.map_or(&[][..], |it| &it.addresses);
        let topology = &self.settings.topology;
        metal3::labels(topology, host.labels(), host.annotations(), addresses)
    }

    /// Whether a label says where a host is.
    pub(super) fn is_topology(&self, key: &str) -> bool {
        let topology = &self.settings.topology;
        key.starts_with(metal3::PREFIX)
            || topology.contains_key(key)
            || topology.values().flatten().any(|own| own == key)
    }

    /// The failure domain of a host. Empty if it has none.
    pub(super) fn rack(&self, host: &BareMetalHost) -> String {
        let rack = metal3::domain(&self.settings.topology, RACK, host.labels());
        rack.cloned().unwrap_or_default()
    }

    /// The node that the host is. `None` if nobody has claimed it.
    pub(super) fn node(
        &self,
        host: &BareMetalHost,
        beside: &Beside,
    ) -> Option<(Found, Option<Warning>)> {
        let (mut found, problem) = self.claimed(host)?;
        let life = self.life(host, beside);
        let node = &mut found.node;
        node.set_phase(if problem.is_some() && node.slot.is_none() {
            NodePhase::Unknown
        } else {
            life.phase()
        });
        node.ready = life.ready();
        life.message().clone_into(&mut node.message);
        node.provider_id = format!("metal3://{}", host.uid().unwrap_or_default());
        node.failure_domain = self.rack(host);
        node.host_id = Some(host::id(host));
        if let Some(networks) = &beside.networks {
            node.addresses.clone_from(&networks.addresses);
            if !networks.problem.is_empty() {
                add(&mut node.message, &networks.problem);
            }
        }
        let warning = problem.map(|problem| {
            add(&mut node.message, &problem);
            Warning {
                cluster_id: Some(node.cluster_id.clone()),
                slot: node.slot.clone(),
                id: Some(node.node_id.clone()),
                name: Some(host::id(host)),
                provider_id: Some(node.provider_id.clone()),
                message: problem,
            }
        });
        Some((found, warning))
    }

    fn claimed(&self, host: &BareMetalHost) -> Option<(Found, Option<String>)> {
        let shown = || labels::declared::shown(host.labels(), &self.keys, MAX_LABELS);
        let annotations = host.annotations();
        if annotations.contains_key(labels::IDENTITY) && claim::is_of_another(host) {
            // Another host with a copy of the labels is not that node.
            return None;
        }
        if let Some(identity) = claim::identity(host) {
            // The labels may have been changed by hand: they are for selectors, and say nothing against it.
            let mark = labels::read(&host.metadata, &self.keys);
            let lost = || Some(format!("its label {} is missing", self.keys.cluster));
            let problem = mark.map_or_else(lost, |mark| mark.problem);
            let id = annotations.get(labels::NODE_ID).unwrap_or(&identity.id);
            let found = Found {
                node: identity.node(id),
                fingerprint: identity.fingerprint,
            };
            return Some((found, problem));
        }
        let Some(mark) = labels::read(&host.metadata, &self.keys) else {
            if claim::is_marked(host, &self.keys) {
                let node = Node {
                    node_id: host::id(host),
                    name: host.name_any(),
                    labels: shown(),
                    ..Node::default()
                };
                let problem = "it has a part of a claim, and not whose it is".to_owned();
                return Some((of(node), Some(problem)));
            }
            let claimed = sip::claimed(host.labels())?;
            let node = Node {
                cluster_id: claimed.cluster,
                node_id: host::id(host),
                name: host.name_any(),
                group: claimed.group,
                labels: shown(),
                ..Node::default()
            };
            return Some((of(node), None));
        };
        let id = mark.node.clone().unwrap_or_else(|| host::id(host));
        let found = of(Node {
            cluster_id: mark.cluster.clone(),
            node_id: id,
            name: host.name_any(),
            labels: shown(),
            ..Node::default()
        });
        Some((found, mark.problem))
    }

    /// Why the host cannot be claimed. `None`: it is free.
    pub(super) fn obstacle(&self, host: &BareMetalHost, beside: &Beside) -> Option<Obstacle> {
        if let Some((found, _)) = self.claimed(host) {
            return Some(Obstacle::Claimed(Box::new(found.node)));
        }
        if claim::is_marked(host, &self.keys) {
            let why = "it has the labels of a claim of another host; remove those of drover.dev";
            return Some(Obstacle::Unusable(why.to_owned()));
        }
        life::obstacle(host, &self.life(host, beside)).map(Obstacle::Unusable)
    }

    /// The host as an entry of the inventory.
    pub(super) fn entry(&self, host: &BareMetalHost, beside: &Beside) -> Host {
        let networks = beside.networks.as_deref();
        let mut entry = Host {
            id: host::id(host),
            labels: self.labels(host, networks),
            failure_domain: self.rack(host),
            addresses: networks.map_or_else(Vec::new, |it| it.addresses.clone()),
            state: HostState::Free.into(),
            ..Host::default()
        };
        match self.obstacle(host, beside) {
            None => {}
            Some(Obstacle::Unusable(why)) => {
                entry.set_state(HostState::Unavailable);
                entry.message = why;
            }
            Some(Obstacle::Claimed(node)) => {
                entry.set_state(HostState::Claimed);
                self.life(host, beside)
                    .message()
                    .clone_into(&mut entry.message);
                entry.owner = node.slot.map_or_else(String::new, |slot| slot.owner);
                entry.cluster_id = node.cluster_id;
                entry.node_id = node.node_id;
            }
        }
        if let Some(networks) = networks.filter(|it| !it.problem.is_empty()) {
            add(&mut entry.message, &networks.problem);
        }
        entry
    }
}

/// Why a host cannot be claimed.
#[derive(Clone, Debug)]
pub(super) enum Obstacle {
    /// It is this node.
    Claimed(Box<Node>),
    /// For this reason.
    Unusable(String),
}

fn of(node: Node) -> Found {
    Found {
        node,
        fingerprint: String::new(),
    }
}

fn add(message: &mut String, more: &str) {
    if !message.is_empty() {
        message.push_str("; ");
    }
    message.push_str(more);
    *message = cut(std::mem::take(message));
}
