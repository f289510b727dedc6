//! Network policies. Peers and ports of one rule stay in one rule.

use drover_core::{Error, Result};
use drover_proto::{
    common::v1 as common,
    kubernetes::v1::{self as api, network_peer::Peer},
};
use k8s_openapi::{
    api::networking::v1::{
        IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule,
        NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{
    all, each, known, label_selector, metadata, named, object_meta, port, port_number, port_ref,
    port_ref_of, protocol, protocol_of, some, to_label_selector,
};

const INGRESS: &str = "Ingress";
const EGRESS: &str = "Egress";

pub(crate) fn to_network_policy(from: api::NetworkPolicy) -> Result<NetworkPolicy> {
    let field = "network_policy.spec";
    let spec = from.spec.unwrap_or_default();
    let selector = spec.pod_selector.unwrap_or_default();
    let directions = format!("{field}.directions");
    let mut types = each(&directions, spec.directions, |field, it| {
        match known(field, it)? {
            api::NetworkDirection::Unspecified => Err(Error::invalid(field, "is required")),
            api::NetworkDirection::Ingress => Ok(INGRESS.to_owned()),
            api::NetworkDirection::Egress => Ok(EGRESS.to_owned()),
        }
    })?;
    if types.is_empty() {
        types = vec![INGRESS.to_owned(), EGRESS.to_owned()];
    }
    let ingress = each(&format!("{field}.ingress"), spec.ingress, |field, rule| {
        let (from, ports) = to_rule(field, rule)?;
        Ok(NetworkPolicyIngressRule { from, ports })
    })?;
    let egress = each(&format!("{field}.egress"), spec.egress, |field, rule| {
        let (to, ports) = to_rule(field, rule)?;
        Ok(NetworkPolicyEgressRule { to, ports })
    })?;
    Ok(NetworkPolicy {
        metadata: object_meta(from.metadata),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(to_label_selector(
                &format!("{field}.pod_selector"),
                selector,
            )?),
            policy_types: Some(types),
            ingress: some(ingress),
            egress: some(egress),
        }),
    })
}

pub(crate) fn network_policy(from: NetworkPolicy) -> api::NetworkPolicy {
    api::NetworkPolicy {
        metadata: Some(metadata(&from.metadata)),
        spec: from.spec.map(spec),
    }
}

fn spec(from: NetworkPolicySpec) -> api::NetworkPolicySpec {
    let directions = [
        (INGRESS, api::NetworkDirection::Ingress),
        (EGRESS, api::NetworkDirection::Egress),
    ];
    api::NetworkPolicySpec {
        pod_selector: from.pod_selector.map(label_selector),
        directions: all(from.policy_types, |it| {
            named(&directions, Some(&it)).unwrap_or_default().into()
        }),
        ingress: all(from.ingress, |it| rule(it.from, it.ports)),
        egress: all(from.egress, |it| rule(it.to, it.ports)),
    }
}

type Rule = (
    Option<Vec<NetworkPolicyPeer>>,
    Option<Vec<NetworkPolicyPort>>,
);

fn to_rule(field: &str, from: api::NetworkPolicyRule) -> Result<Rule> {
    let peers = each(&format!("{field}.peers"), from.peers, to_peer)?;
    let ports = each(&format!("{field}.ports"), from.ports, to_port)?;
    Ok((some(peers), some(ports)))
}

fn rule(
    peers: Option<Vec<NetworkPolicyPeer>>,
    ports: Option<Vec<NetworkPolicyPort>>,
) -> api::NetworkPolicyRule {
    api::NetworkPolicyRule {
        peers: all(peers, peer),
        ports: all(ports, network_port),
    }
}

fn to_peer(field: &str, from: api::NetworkPeer) -> Result<NetworkPolicyPeer> {
    let selector =
        |name: &str, from: Option<common::LabelSelector>| -> Result<Option<LabelSelector>> {
            let field = format!("{field}.pods.{name}");
            from.map(|from| to_label_selector(&field, from)).transpose()
        };
    match from.peer {
        None => Err(Error::invalid(field, "is required: pods or ip_block")),
        Some(Peer::Pods(it)) => {
            let namespaces = selector("namespace_selector", it.namespace_selector)?;
            let pods = selector("selector", it.selector)?;
            Ok(NetworkPolicyPeer {
                ip_block: None,
                // A peer without any selector is none at all.
                pod_selector: pods.or_else(|| namespaces.is_none().then(LabelSelector::default)),
                namespace_selector: namespaces,
            })
        }
        Some(Peer::IpBlock(it)) => Ok(NetworkPolicyPeer {
            ip_block: Some(IPBlock {
                cidr: it.cidr,
                except: some(it.except_cidrs),
            }),
            ..NetworkPolicyPeer::default()
        }),
    }
}

fn peer(from: NetworkPolicyPeer) -> api::NetworkPeer {
    let peer = match from.ip_block {
        Some(it) => Peer::IpBlock(api::IpBlock {
            cidr: it.cidr,
            except_cidrs: it.except.unwrap_or_default(),
        }),
        None => Peer::Pods(api::PodPeer {
            selector: from.pod_selector.map(label_selector),
            namespace_selector: from.namespace_selector.map(label_selector),
        }),
    };
    api::NetworkPeer { peer: Some(peer) }
}

fn to_port(field: &str, from: api::NetworkPort) -> Result<NetworkPolicyPort> {
    let first = from.port;
    let first = first.map(|it| port_ref(&format!("{field}.port"), Some(it)));
    let first = first.transpose()?;
    let end = format!("{field}.end_port");
    let last = match (from.end_port, &first) {
        (0, _) => None,
        (last, Some(IntOrString::Int(_))) => Some(port(&end, last)?),
        (_, Some(IntOrString::String(_)) | None) => {
            return Err(Error::invalid(end, "needs a port by number"));
        }
    };
    Ok(NetworkPolicyPort {
        protocol: protocol(&format!("{field}.protocol"), from.protocol)?,
        port: first,
        end_port: last,
    })
}

fn network_port(from: NetworkPolicyPort) -> api::NetworkPort {
    api::NetworkPort {
        protocol: protocol_of(from.protocol.as_deref()),
        port: from.port.map(port_ref_of),
        end_port: port_number(from.end_port.unwrap_or_default()),
    }
}
