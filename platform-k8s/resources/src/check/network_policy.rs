//! Network policies.

use drover_core::Result;
use drover_proto::kubernetes::v1::{self as api, NetworkDirection, network_peer, port_ref};

use super::{
    Check, is_empty,
    syntax::{self, Cidr},
};
use crate::served::Served;

/// A policy to create.
pub(crate) fn create_network_policy(
    request: api::CreateNetworkPolicyRequest,
    served: &Served,
) -> Result<api::NetworkPolicy> {
    let mut check = Check::default();
    let mut policy = request.network_policy.unwrap_or_default();
    let metadata = &mut policy.metadata;
    let field = "network_policy";
    let place = format!("{field}.metadata");
    check.metadata(&place, metadata, syntax::subdomain, served, false);
    match &mut policy.spec {
        None => check.wrong(format!("{field}.spec"), "is required"),
        Some(spec) => check.policy(&format!("{field}.spec"), spec),
    }
    check.finish()?;
    Ok(policy)
}

/// Policies to delete: an empty selector is a mistake, and not all of them.
pub(crate) fn delete_network_policies(
    mut request: api::DeleteNetworkPoliciesRequest,
    served: &Served,
) -> Result<api::DeleteNetworkPoliciesRequest> {
    let mut check = Check::default();
    check.namespace("namespace", &mut request.namespace, served);
    if is_empty(request.selector.as_ref()) {
        check.wrong("selector", "is required, with at least one label");
    }
    check.selector("selector", request.selector.as_mut());
    check.finish()?;
    Ok(request)
}

impl Check {
    fn policy(&mut self, field: &str, spec: &mut api::NetworkPolicySpec) {
        self.selector(&format!("{field}.pod_selector"), spec.pod_selector.as_mut());
        for (at, direction) in spec.directions.iter().enumerate() {
            self.set::<NetworkDirection>(format!("{field}.directions[{at}]"), *direction);
        }
        if spec.directions.is_empty() {
            spec.directions = vec![
                NetworkDirection::Ingress as i32,
                NetworkDirection::Egress as i32,
            ];
        }
        spec.directions.sort_unstable();
        spec.directions.dedup();
        let rules = [
            ("ingress", &mut spec.ingress, NetworkDirection::Ingress),
            ("egress", &mut spec.egress, NetworkDirection::Egress),
        ];
        for (name, rules, direction) in rules {
            let field = format!("{field}.{name}");
            if !rules.is_empty() && !spec.directions.contains(&(direction as i32)) {
                self.wrong(&field, "is not among the directions of the policy");
            }
            for (at, rule) in rules.iter_mut().enumerate() {
                self.rule(&format!("{field}[{at}]"), rule);
            }
        }
    }

    fn rule(&mut self, field: &str, rule: &mut api::NetworkPolicyRule) {
        for (at, peer) in rule.peers.iter_mut().enumerate() {
            let field = format!("{field}.peers[{at}]");
            match &mut peer.peer {
                None => self.wrong(field, "is required: pods or ip_block"),
                Some(network_peer::Peer::Pods(pods)) => {
                    let selector = format!("{field}.pods.selector");
                    self.selector(&selector, pods.selector.as_mut());
                    let namespaces = format!("{field}.pods.namespace_selector");
                    self.selector(&namespaces, pods.namespace_selector.as_mut());
                }
                Some(network_peer::Peer::IpBlock(block)) => {
                    self.ip_block(&format!("{field}.ip_block"), block);
                }
            }
        }
        for (at, port) in rule.ports.iter_mut().enumerate() {
            self.network_port(&format!("{field}.ports[{at}]"), port);
        }
    }

    fn ip_block(&mut self, field: &str, block: &api::IpBlock) {
        let range = Cidr::read(&block.cidr);
        if block.cidr.is_empty() {
            self.wrong(format!("{field}.cidr"), "is required");
        } else if let Err(why) = &range {
            self.wrong(format!("{field}.cidr"), why);
        }
        for (at, except) in block.except_cidrs.iter().enumerate() {
            let field = format!("{field}.except_cidrs[{at}]");
            match (&range, Cidr::read(except)) {
                (_, Err(why)) => self.wrong(field, why),
                (Ok(range), Ok(inner)) if !range.holds(inner) => {
                    self.wrong(
                        field,
                        format!("is not inside of {}, and smaller", block.cidr),
                    );
                }
                (Ok(_) | Err(_), Ok(_)) => {}
            }
        }
    }

    fn network_port(&mut self, field: &str, port: &mut api::NetworkPort) {
        self.known::<api::Protocol>(format!("{field}.protocol"), port.protocol);
        if port.protocol == api::Protocol::Unspecified as i32 {
            port.protocol = api::Protocol::Tcp as i32;
        }
        if let Some(first) = &port.port {
            self.port_ref(&format!("{field}.port"), Some(first), syntax::port_name);
        }
        if port.end_port == 0 {
            return;
        }
        let end = format!("{field}.end_port");
        self.said(&end, syntax::port(port.end_port));
        let first = port.port.as_ref().and_then(|port| port.port.as_ref());
        match first {
            Some(port_ref::Port::Number(first)) if port.end_port < *first => {
                self.wrong(end, format!("is before the first port, {first}"));
            }
            Some(port_ref::Port::Number(_)) => {}
            Some(port_ref::Port::Name(_)) | None => {
                self.wrong(end, "needs a first port by number");
            }
        }
    }
}
