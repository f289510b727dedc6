//! Network policies.

use drover_proto::kubernetes::v1::{self as api, NetworkDirection, network_peer};

use super::{
    Subject,
    fixture::{done, labels, port, selector},
};

async fn kept(subject: &Subject, spec: api::NetworkPolicySpec) -> api::NetworkPolicySpec {
    let mut policy = subject.policy();
    policy.spec = Some(spec);
    let made = subject.create_policy(policy).await.unwrap();
    let request = api::GetNetworkPolicyRequest {
        namespace: subject.namespace.clone(),
        name: made.metadata.clone().unwrap().name,
    };
    let found = done(subject.policies().get_network_policy(request))
        .await
        .unwrap();
    let found = found.network_policy.unwrap();
    assert_eq!(found, made);
    found.spec.unwrap()
}

fn pods(app: &str) -> api::NetworkPeer {
    api::NetworkPeer {
        peer: Some(network_peer::Peer::Pods(api::PodPeer {
            selector: selector(&[("app", app)]),
            namespace_selector: None,
        })),
    }
}

fn block(cidr: &str, except: &[&str]) -> api::NetworkPeer {
    api::NetworkPeer {
        peer: Some(network_peer::Peer::IpBlock(api::IpBlock {
            cidr: cidr.into(),
            except_cidrs: except.iter().map(|&one| one.to_owned()).collect(),
        })),
    }
}

fn tcp(number: u32, end_port: u32) -> api::NetworkPort {
    api::NetworkPort {
        protocol: api::Protocol::Tcp as i32,
        port: port(number),
        end_port,
    }
}

const BOTH: [i32; 2] = [
    NetworkDirection::Ingress as i32,
    NetworkDirection::Egress as i32,
];

pub(super) async fn peer_and_port_stay_in_one_rule(subject: &Subject) {
    let rule = api::NetworkPolicyRule {
        peers: vec![pods("web"), block("10.0.0.0/8", &[])],
        ports: vec![tcp(80, 0), tcp(8000, 8080)],
    };
    let spec = kept(
        subject,
        api::NetworkPolicySpec {
            ingress: vec![rule.clone()],
            ..Default::default()
        },
    )
    .await;
    assert_eq!(spec.ingress, [rule]);
    assert_eq!(spec.egress, []);
}

pub(super) async fn ranges_keep_their_exceptions(subject: &Subject) {
    let rule = api::NetworkPolicyRule {
        peers: vec![block("fd00::/8", &["fd00:1::/32", "fd00:2::/32"])],
        ports: Vec::new(),
    };
    let spec = kept(
        subject,
        api::NetworkPolicySpec {
            directions: vec![NetworkDirection::Egress as i32],
            egress: vec![rule.clone()],
            ..Default::default()
        },
    )
    .await;
    assert_eq!(spec.egress, [rule]);
    assert_eq!(spec.directions, [NetworkDirection::Egress as i32]);
}

pub(super) async fn a_policy_without_rules_denies_both_directions(subject: &Subject) {
    let spec = kept(subject, api::NetworkPolicySpec::default()).await;
    assert_eq!(spec.directions, BOTH);
    assert!(spec.ingress.is_empty() && spec.egress.is_empty());
}

pub(super) async fn one_empty_rule_allows_all_outbound_traffic(subject: &Subject) {
    let rules = vec![api::NetworkPolicyRule::default()];
    let spec = kept(
        subject,
        api::NetworkPolicySpec {
            egress: rules.clone(),
            ..Default::default()
        },
    )
    .await;
    assert_eq!((spec.ingress.len(), spec.egress), (0, rules));
    assert_eq!(spec.directions, BOTH);
}

pub(super) async fn selectors_of_peers_are_kept(subject: &Subject) {
    let everywhere = api::NetworkPeer {
        peer: Some(network_peer::Peer::Pods(api::PodPeer {
            selector: selector(&[("app", "web")]),
            namespace_selector: selector(&[]),
        })),
    };
    let rule = api::NetworkPolicyRule {
        peers: vec![everywhere, pods("db")],
        ports: Vec::new(),
    };
    let spec = kept(
        subject,
        api::NetworkPolicySpec {
            pod_selector: selector(&[("app", "shop")]),
            ingress: vec![rule.clone()],
            ..Default::default()
        },
    )
    .await;
    assert_eq!(spec.pod_selector, selector(&[("app", "shop")]));
    assert_eq!(spec.ingress, [rule]);
}

pub(super) async fn policies_are_deleted_by_their_labels_with_their_names(subject: &Subject) {
    let group = subject.name("group");
    let mut names = Vec::new();
    for _ in 0..3 {
        let mut policy = subject.policy();
        policy.metadata.as_mut().unwrap().labels = labels(&[("group", &group)]);
        names.push(
            subject
                .create_policy(policy)
                .await
                .unwrap()
                .metadata
                .unwrap()
                .name,
        );
    }
    names.sort();
    let other = subject
        .create_policy(subject.policy())
        .await
        .unwrap()
        .metadata
        .unwrap()
        .name;
    for expected in [names, Vec::new()] {
        let request = api::DeleteNetworkPoliciesRequest {
            namespace: subject.namespace.clone(),
            selector: selector(&[("group", &group)]),
        };
        let mut deleted = done(subject.policies().delete_network_policies(request))
            .await
            .unwrap()
            .names;
        deleted.sort();
        assert_eq!(deleted, expected);
    }
    let request = api::GetNetworkPolicyRequest {
        namespace: subject.namespace.clone(),
        name: other,
    };
    done(subject.policies().get_network_policy(request))
        .await
        .unwrap();
}
