//! The same for everything but pods.

use drover_proto::{
    common::v1::LabelOperator,
    kubernetes::v1::{self as api, PathType, network_peer},
};

use super::super::fixture::{labels, port, requirement};

pub(super) const SERVICES: &[(&str, fn(&mut api::Service))] = &[
    ("service.spec", |it| it.spec = None),
    ("service.metadata.name", |it| {
        it.metadata.as_mut().unwrap().name = "1st".into()
    }),
    ("service.spec.type", |it| of(it).r#type = 9),
    ("service.spec.ports", |it| of(it).ports.clear()),
    ("service.spec.ports[0].port", |it| of(it).ports[0].port = 0),
    ("service.spec.ports[0].port", |it| {
        of(it).ports[0].port = 70_000
    }),
    ("service.spec.ports[0].name", |it| {
        let again = api::ServicePort {
            port: 81,
            ..of(it).ports[0].clone()
        };
        of(it).ports.push(again);
    }),
    ("service.spec.ports[1].port", |it| {
        of(it).ports[0].name = "a".into();
        let again = api::ServicePort {
            name: "b".into(),
            ..of(it).ports[0].clone()
        };
        of(it).ports.push(again);
    }),
    ("service.spec.ports[0].node_port", |it| {
        of(it).ports[0].node_port = 30_000
    }),
    ("service.spec.ports[0].protocol", |it| {
        of(it).ports[0].protocol = 4
    }),
    ("service.spec.ports[0].target_port", |it| {
        of(it).ports[0].target_port = Some(api::PortRef::default())
    }),
    ("service.spec.ports[0].target_port.number", |it| {
        of(it).ports[0].target_port = port(0)
    }),
    ("service.spec.cluster_ip", |it| {
        of(it).cluster_ip = "10.0.0".into()
    }),
    ("service.spec.cluster_ip", |it| {
        of(it).cluster_ip = "None".into();
        of(it).r#type = api::ServiceType::NodePort as i32;
    }),
    ("service.spec.external_name", |it| {
        of(it).external_name = "db.example".into()
    }),
    ("service.spec.external_name", |it| {
        of(it).r#type = api::ServiceType::ExternalName as i32
    }),
    ("service.spec.selector", |it| {
        of(it).selector = labels(&[("app", "a b")])
    }),
];

fn of(service: &mut api::Service) -> &mut api::ServiceSpec {
    service.spec.as_mut().unwrap()
}

fn block(cidr: &str, except: &[&str]) -> api::NetworkPolicyRule {
    api::NetworkPolicyRule {
        peers: vec![api::NetworkPeer {
            peer: Some(network_peer::Peer::IpBlock(api::IpBlock {
                cidr: cidr.into(),
                except_cidrs: except.iter().map(|&one| one.to_owned()).collect(),
            })),
        }],
        ports: Vec::new(),
    }
}

fn ports(first: Option<api::PortRef>, end_port: u32) -> api::NetworkPolicyRule {
    api::NetworkPolicyRule {
        peers: Vec::new(),
        ports: vec![api::NetworkPort {
            protocol: 0,
            port: first,
            end_port,
        }],
    }
}

pub(super) const POLICIES: &[(&str, fn(&mut api::NetworkPolicySpec))] = &[
    ("network_policy.spec.directions[0]", |it| {
        it.directions = vec![0]
    }),
    ("network_policy.spec.directions[0]", |it| {
        it.directions = vec![3]
    }),
    ("network_policy.spec.egress", |it| {
        it.directions = vec![api::NetworkDirection::Ingress as i32];
        it.egress = vec![api::NetworkPolicyRule::default()];
    }),
    ("network_policy.spec.ingress[0].peers[0]", |it| {
        it.ingress = vec![api::NetworkPolicyRule {
            peers: vec![api::NetworkPeer::default()],
            ports: Vec::new(),
        }];
    }),
    (
        "network_policy.spec.ingress[0].peers[0].ip_block.cidr",
        |it| it.ingress = vec![block("10.0.0.0", &[])],
    ),
    (
        "network_policy.spec.ingress[0].peers[0].ip_block.cidr",
        |it| it.ingress = vec![block("10.0.0.0/33", &[])],
    ),
    (
        "network_policy.spec.ingress[0].peers[0].ip_block.except_cidrs[0]",
        |it| {
            it.ingress = vec![block("10.0.0.0/8", &["11.0.0.0/16"])];
        },
    ),
    (
        "network_policy.spec.ingress[0].peers[0].ip_block.except_cidrs[1]",
        |it| {
            it.ingress = vec![block("fd00::/8", &["fd00::/16", "10.0.0.0/16"])];
        },
    ),
    ("network_policy.spec.egress[0].ports[0].end_port", |it| {
        it.egress = vec![ports(port(90), 80)]
    }),
    ("network_policy.spec.egress[0].ports[0].end_port", |it| {
        it.egress = vec![ports(None, 80)]
    }),
    ("network_policy.spec.egress[0].ports[0].port.number", |it| {
        it.egress = vec![ports(port(0), 0)]
    }),
    (
        "network_policy.spec.pod_selector.match_expressions[0].operator",
        |it| {
            it.pod_selector = requirement("a", LabelOperator::Unspecified, &["b"]);
        },
    ),
];

pub(super) const CONFIGURATIONS: &[(&str, fn(&mut api::Configuration))] = &[
    ("configuration.metadata.name", |it| {
        it.metadata.as_mut().unwrap().name.clear()
    }),
    ("configuration.data", |it| it.data = labels(&[("a/b", "c")])),
    ("configuration.data", |it| it.data = labels(&[("..", "c")])),
    ("configuration.binary_data[colour]", |it| {
        it.binary_data.insert("colour".into(), vec![1]);
    }),
    ("configuration", |it| {
        it.data.insert("large".into(), "x".repeat(1024 * 1024));
    }),
];

fn annotated(ingress: &mut api::Ingress, key: &str) {
    ingress.metadata.as_mut().unwrap().annotations = labels(&[(key, "return 200;")]);
}

pub(super) fn path(path: &str) -> api::IngressPath {
    super::super::ingresses::path(path, "web")
}

pub(super) const INGRESSES: &[(&str, fn(&mut api::Ingress))] = &[
    // With it somebody else's HTTPRoutes would be believed to be ours.
    ("ingress.metadata.annotations[drover.dev/paths]", |it| {
        annotated(it, "drover.dev/paths");
    }),
    ("ingress.metadata.labels[drover.dev/ingress]", |it| {
        it.metadata.as_mut().unwrap().labels = labels(&[("drover.dev/ingress", "other")]);
    }),
    // A controller would take it as it stands.
    (
        "ingress.metadata.annotations[nginx.ingress.kubernetes.io/server-snippet]",
        |it| annotated(it, "nginx.ingress.kubernetes.io/server-snippet"),
    ),
    ("ingress.rules[0].host", |it| {
        it.rules[0].host = "10.0.0.1".into()
    }),
    ("ingress.rules[0].host", |it| {
        it.rules[0].host = "A.example".into()
    }),
    ("ingress.rules[1].host", |it| {
        let again = it.rules[0].clone();
        it.rules.push(again);
    }),
    ("ingress.tls[0].hosts", |it| {
        it.tls = vec![api::IngressTls {
            hosts: Vec::new(),
            secret: "cert".into(),
        }];
    }),
    ("ingress.tls[0].secret", |it| {
        it.tls = vec![api::IngressTls {
            hosts: vec!["a.example".into()],
            secret: String::new(),
        }];
    }),
    ("ingress.class_name", |it| it.class_name = "a b".into()),
];

pub(super) const PATHS: &[(&str, fn(&mut api::UpsertPathsRequest))] = &[
    ("ingress", |it| it.ingress.clear()),
    ("host", |it| it.host = "a b".into()),
    ("backend", |it| it.backend = 7),
    ("paths", |it| it.paths.clear()),
    ("paths[0].path", |it| it.paths[0].path = "a".into()),
    ("paths[0].path", |it| it.paths[0].path = "/a/../b".into()),
    ("paths[0].path", |it| it.paths[0].path.clear()),
    ("paths[0].type", |it| it.paths[0].r#type = 5),
    ("paths[0]", |it| it.paths[0].target = None),
    ("paths[0].name", |it| it.paths[0].name = "A".into()),
    ("paths[1].path", |it| {
        let mut again = it.paths[0].clone();
        again.r#type = PathType::Prefix as i32;
        it.paths.push(again);
    }),
    ("paths[1].name", |it| {
        it.paths[0].name = "a".into();
        it.paths.push(api::IngressPath {
            name: "a".into(),
            ..path("/other")
        });
    }),
    ("paths[0].service.name", |it| {
        it.paths[0].target = Some(api::ingress_path::Target::Service(api::ServiceTarget {
            name: "1".into(),
            port: port(80),
        }));
    }),
    ("paths[0].service.port", |it| {
        it.paths[0].target = Some(api::ingress_path::Target::Service(api::ServiceTarget {
            name: "web".into(),
            port: None,
        }));
    }),
    ("paths[0].service.port.number", |it| {
        it.paths[0].target = Some(api::ingress_path::Target::Service(api::ServiceTarget {
            name: "web".into(),
            port: port(65_536),
        }));
    }),
    ("paths", |it| {
        it.paths = (0..1_001).map(|at| path(&format!("/{at}"))).collect()
    }),
];
