//! What is refused: the code, the reason, and the field.

use drover_core::Reason;
use drover_proto::{
    common::v1::{Chunk, LabelOperator, TerminalSize, chunk::Content},
    kubernetes::v1::{
        self as api, PathType, env_var, exec_request, network_peer, path_key, probe, volume,
    },
};
use futures::stream;
use prost_types::Duration;

use super::{
    Subject,
    fixture::{
        assert_reason, assert_refused, done, labels, port, requirement, seconds, selector, spec,
    },
};

/// Rows of the tables below: each is a check of its own.
pub(super) const ROWS: usize = PODS.len()
    + SERVICES.len()
    + POLICIES.len()
    + CONFIGURATIONS.len()
    + INGRESSES.len()
    + PATHS.len()
    + BEYOND.len();

fn main(pod: &mut api::Pod) -> &mut api::Container {
    &mut spec(pod).containers[0]
}

fn variable(name: &str, source: Option<env_var::Source>) -> api::EnvVar {
    api::EnvVar {
        name: name.into(),
        source,
    }
}

fn tcp(number: u32) -> api::Probe {
    api::Probe {
        action: Some(probe::Action::TcpSocket(api::TcpSocketAction {
            port: port(number),
        })),
        ..Default::default()
    }
}

fn configured(items: Vec<api::KeyPath>) -> api::Volume {
    api::Volume {
        name: "files".into(),
        source: Some(volume::Source::Configuration(api::FilesVolume {
            name: "settings".into(),
            items,
            ..Default::default()
        })),
    }
}

fn term(selector: Option<drover_proto::common::v1::LabelSelector>) -> Option<api::Affinity> {
    Some(api::Affinity {
        node_preferred: vec![api::NodeTerm {
            selector,
            weight: 0,
        }],
        ..Default::default()
    })
}

const PODS: &[(&str, fn(&mut api::Pod))] = &[
    ("pod.spec", |pod| pod.spec = None),
    ("pod.metadata.name", |pod| {
        pod.metadata.as_mut().unwrap().name = "Web".into()
    }),
    ("pod.metadata.name", |pod| {
        pod.metadata.as_mut().unwrap().name = "a".repeat(254)
    }),
    ("pod.metadata.namespace", |pod| {
        pod.metadata.as_mut().unwrap().namespace = "a.b".into()
    }),
    ("pod.metadata.labels", |pod| {
        pod.metadata.as_mut().unwrap().labels = labels(&[("a b", "c")])
    }),
    ("pod.metadata.labels", |pod| {
        pod.metadata.as_mut().unwrap().labels = labels(&[("a", "-")])
    }),
    ("pod.metadata.annotations", |pod| {
        pod.metadata.as_mut().unwrap().annotations = labels(&[("/", "c")])
    }),
    ("pod.spec.containers", |pod| spec(pod).containers.clear()),
    ("pod.spec.containers[0].name", |pod| {
        main(pod).name = "a.b".into()
    }),
    ("pod.spec.containers[0].image", |pod| {
        main(pod).image.clear()
    }),
    ("pod.spec.containers[1].name", |pod| {
        let again = main(pod).clone();
        spec(pod).containers.push(again);
    }),
    ("pod.spec.init_containers[0].name", |pod| {
        let again = main(pod).clone();
        spec(pod).init_containers.push(again);
    }),
    ("pod.spec.init_containers[0].readiness_probe", |pod| {
        let mut again = main(pod).clone();
        again.name = "first".into();
        again.readiness_probe = Some(tcp(80));
        spec(pod).init_containers.push(again);
    }),
    ("pod.spec.containers[0].resource_limits[memory]", |pod| {
        main(pod).resource_limits = labels(&[("memory", "64 MB")]);
    }),
    ("pod.spec.containers[0].resource_requests[cpu]", |pod| {
        main(pod).resource_requests = labels(&[("cpu", "-1")]);
    }),
    ("pod.spec.containers[0].resource_requests[cpu]", |pod| {
        main(pod).resource_requests = labels(&[("cpu", "2")]);
        main(pod).resource_limits = labels(&[("cpu", "1500m")]);
    }),
    ("pod.spec.containers[0].resource_limits", |pod| {
        main(pod).resource_limits = labels(&[("memroy", "1Gi")]);
    }),
    ("pod.spec.containers[0].ports[0].port", |pod| {
        main(pod).ports = vec![api::ContainerPort::default()];
    }),
    ("pod.spec.containers[0].ports[0].port", |pod| {
        main(pod).ports = vec![api::ContainerPort {
            port: 65_536,
            ..Default::default()
        }];
    }),
    ("pod.spec.containers[0].ports[0].protocol", |pod| {
        main(pod).ports = vec![api::ContainerPort {
            port: 80,
            protocol: 99,
            ..Default::default()
        }];
    }),
    ("pod.spec.containers[0].ports[1].name", |pod| {
        let one = api::ContainerPort {
            port: 80,
            name: "http".into(),
            ..Default::default()
        };
        main(pod).ports = vec![one.clone(), api::ContainerPort { port: 81, ..one }];
    }),
    ("pod.spec.containers[0].ports[0].name", |pod| {
        main(pod).ports = vec![api::ContainerPort {
            port: 80,
            name: "a-name-of-more-than-15".into(),
            ..Default::default()
        }];
    }),
    ("pod.spec.containers[0].env[0].name", |pod| {
        main(pod).env = vec![variable("A=B", None)]
    }),
    ("pod.spec.containers[0].env[0].field", |pod| {
        main(pod).env = vec![variable(
            "A",
            Some(env_var::Source::Field("status.phase".into())),
        )];
    }),
    ("pod.spec.containers[0].env[0].configuration.key", |pod| {
        let key = api::KeyRef {
            name: "settings".into(),
            ..Default::default()
        };
        main(pod).env = vec![variable("A", Some(env_var::Source::Configuration(key)))];
    }),
    ("pod.spec.containers[0].env[0].resource.container", |pod| {
        let of = api::ResourceRef {
            resource: "limits.cpu".into(),
            container: "other".into(),
            ..Default::default()
        };
        main(pod).env = vec![variable("A", Some(env_var::Source::Resource(of)))];
    }),
    ("pod.spec.containers[0].env_from[0]", |pod| {
        main(pod).env_from = vec![api::EnvSource::default()];
    }),
    ("pod.spec.containers[0].volume_mounts[0].volume", |pod| {
        main(pod).volume_mounts = vec![api::VolumeMount {
            volume: "none".into(),
            path: "/data".into(),
            ..Default::default()
        }];
    }),
    ("pod.spec.volumes[0]", |pod| {
        spec(pod).volumes = vec![api::Volume {
            name: "data".into(),
            source: None,
        }];
    }),
    ("pod.spec.volumes[1].name", |pod| {
        spec(pod).volumes = vec![configured(Vec::new()), configured(Vec::new())];
    }),
    ("pod.spec.volumes[0].configuration.items[0].path", |pod| {
        let item = api::KeyPath {
            key: "a".into(),
            path: "../a".into(),
            mode: None,
        };
        spec(pod).volumes = vec![configured(vec![item])];
    }),
    ("pod.spec.volumes[0].configuration.items[0].mode", |pod| {
        let item = api::KeyPath {
            key: "a".into(),
            path: "a".into(),
            mode: Some(0o1000),
        };
        spec(pod).volumes = vec![configured(vec![item])];
    }),
    ("pod.spec.volumes[0].empty_dir.size_limit", |pod| {
        let source = volume::Source::EmptyDir(api::EmptyDirVolume {
            memory: false,
            size_limit: "much".into(),
        });
        spec(pod).volumes = vec![api::Volume {
            name: "data".into(),
            source: Some(source),
        }];
    }),
    ("pod.spec.containers[0].liveness_probe", |pod| {
        main(pod).liveness_probe = Some(api::Probe::default())
    }),
    (
        "pod.spec.containers[0].liveness_probe.tcp_socket.port.number",
        |pod| main(pod).liveness_probe = Some(tcp(0)),
    ),
    ("pod.spec.containers[0].readiness_probe.period", |pod| {
        main(pod).readiness_probe = Some(api::Probe {
            period: Some(Duration {
                seconds: 0,
                nanos: 5,
            }),
            ..tcp(80)
        });
    }),
    (
        "pod.spec.containers[0].startup_probe.success_threshold",
        |pod| {
            main(pod).startup_probe = Some(api::Probe {
                success_threshold: Some(2),
                ..tcp(80)
            });
        },
    ),
    ("pod.spec.containers[0].image_pull_policy", |pod| {
        main(pod).image_pull_policy = -1
    }),
    (
        "pod.spec.containers[0].security.add_capabilities[0]",
        |pod| {
            main(pod).security = Some(api::ContainerSecurity {
                add_capabilities: vec!["net admin".into()],
                ..Default::default()
            });
        },
    ),
    ("pod.spec.restart_policy", |pod| {
        spec(pod).restart_policy = 17
    }),
    ("pod.spec.termination_grace_period", |pod| {
        spec(pod).termination_grace_period = Some(seconds(-1))
    }),
    ("pod.spec.termination_grace_period", |pod| {
        spec(pod).termination_grace_period = Some(Duration {
            seconds: 1,
            nanos: 2_000_000_000,
        });
    }),
    ("pod.spec.nameservers", |pod| {
        spec(pod).nameservers = vec!["10.0.0.1".into(); 4]
    }),
    ("pod.spec.nameservers[0]", |pod| {
        spec(pod).nameservers = vec!["ns.example".into()]
    }),
    ("pod.spec.nameservers", |pod| {
        spec(pod).dns_policy = api::DnsPolicy::None as i32
    }),
    ("pod.spec.node_selector", |pod| {
        spec(pod).node_selector = labels(&[("", "x")])
    }),
    ("pod.spec.tolerations[0].key", |pod| {
        spec(pod).tolerations = vec![api::Toleration::default()]
    }),
    ("pod.spec.tolerations[0].toleration_period", |pod| {
        spec(pod).tolerations = vec![api::Toleration {
            key: "a".into(),
            toleration_period: Some(seconds(1)),
            ..Default::default()
        }];
    }),
    ("pod.spec.affinity.node_preferred[0].selector", |pod| {
        spec(pod).affinity = term(None)
    }),
    (
        "pod.spec.affinity.node_preferred[0].selector.match_expressions[0].values",
        |pod| {
            spec(pod).affinity = term(requirement("a", LabelOperator::In, &[]));
        },
    ),
    ("pod.spec.security.run_as_user", |pod| {
        spec(pod).security = Some(api::PodSecurity {
            run_as_user: Some(-1),
            ..Default::default()
        });
    }),
    ("pod.spec.hostname", |pod| spec(pod).hostname = "a.b".into()),
    ("pod.spec.image_pull_secrets[0]", |pod| {
        spec(pod).image_pull_secrets = vec![String::new()]
    }),
];

pub(super) async fn wrong_pods_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in PODS {
        let mut pod = subject.pod();
        change(&mut pod);
        assert_refused(field, subject.create_pod(pod).await, field);
    }
}

const SERVICES: &[(&str, fn(&mut api::Service))] = &[
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

pub(super) async fn wrong_services_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in SERVICES {
        let mut service = subject.service();
        change(&mut service);
        assert_refused(field, subject.create_service(service).await, field);
    }
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

const POLICIES: &[(&str, fn(&mut api::NetworkPolicySpec))] = &[
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

pub(super) async fn wrong_network_policies_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in POLICIES {
        let mut policy = subject.policy();
        change(policy.spec.as_mut().unwrap());
        assert_refused(field, subject.create_policy(policy).await, field);
    }
}

const CONFIGURATIONS: &[(&str, fn(&mut api::Configuration))] = &[
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

pub(super) async fn wrong_configurations_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in CONFIGURATIONS {
        let mut configuration = subject.configuration();
        change(&mut configuration);
        let outcome = subject.create_configuration(configuration).await;
        assert_refused(field, outcome, field);
    }
}

fn path(path: &str) -> api::IngressPath {
    super::ingresses::path(path, "web")
}

const INGRESSES: &[(&str, fn(&mut api::Ingress))] = &[
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

pub(super) async fn wrong_ingresses_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in INGRESSES {
        let mut ingress = api::Ingress {
            metadata: subject.metadata("ingress"),
            rules: vec![api::IngressRule {
                host: "a.example".into(),
                paths: Vec::new(),
            }],
            ..Default::default()
        };
        change(&mut ingress);
        let request = api::CreateIngressRequest {
            ingress: Some(ingress),
            backend: 0,
        };
        let outcome = done(subject.ingresses().create_ingress(request)).await;
        assert_refused(field, outcome, field);
    }
}

const PATHS: &[(&str, fn(&mut api::UpsertPathsRequest))] = &[
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

pub(super) async fn wrong_paths_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in PATHS {
        let mut request = api::UpsertPathsRequest {
            namespace: subject.namespace.clone(),
            ingress: "web".into(),
            host: "a.example".into(),
            paths: vec![path("/")],
            ..Default::default()
        };
        change(&mut request);
        let outcome = done(subject.ingresses().upsert_paths(request)).await;
        assert_refused(field, outcome, field);
    }
}

pub(super) async fn wrong_paths_to_remove_are_refused_with_their_field(subject: &Subject) {
    let by = |key| vec![api::PathKey { key }];
    for (field, paths) in [
        ("paths", Vec::new()),
        ("paths[0]", by(None)),
        (
            "paths[0].name",
            by(Some(path_key::Key::Name(String::new()))),
        ),
        (
            "paths[0].match.path",
            by(Some(path_key::Key::Match(api::PathMatch::default()))),
        ),
        (
            "paths[0].service.port",
            by(Some(path_key::Key::Service(api::ServiceTarget {
                name: "web".into(),
                port: None,
            }))),
        ),
    ] {
        let request = api::RemovePathsRequest {
            namespace: subject.namespace.clone(),
            ingress: "web".into(),
            paths,
            ..Default::default()
        };
        let outcome = done(subject.ingresses().remove_paths(request)).await;
        assert_refused(field, outcome, field);
    }
}

pub(super) async fn wrong_waits_are_refused_with_their_field(subject: &Subject) {
    let wait = || subject.wait_for("web", &[]);
    for (field, request) in [
        (
            "names[0]",
            api::WaitPodsRequest {
                names: vec!["A".into()],
                ..wait()
            },
        ),
        (
            "conditions[0]",
            api::WaitPodsRequest {
                conditions: vec![0],
                ..wait()
            },
        ),
        (
            "conditions[0]",
            api::WaitPodsRequest {
                conditions: vec![99],
                ..wait()
            },
        ),
        (
            "min_count",
            api::WaitPodsRequest {
                conditions: vec![5],
                min_count: 1,
                ..wait()
            },
        ),
        (
            "selector.match_expressions[0].values",
            api::WaitPodsRequest {
                selector: requirement("a", LabelOperator::NotIn, &[]),
                ..wait()
            },
        ),
        (
            "selector.match_expressions[0].values",
            api::WaitPodsRequest {
                selector: requirement("a", LabelOperator::Exists, &["b"]),
                ..wait()
            },
        ),
    ] {
        let (progress, error) = subject.wait(request).await;
        assert_eq!(progress, Vec::new(), "{field}");
        assert_refused(field, error.map_or(Ok(()), Err), field);
    }
    let request = api::WaitNodesRequest {
        condition: "a b".into(),
        ..Default::default()
    };
    assert_refused(
        "condition",
        done(subject.nodes().wait_nodes(request)).await.map(drop),
        "condition",
    );
    let request = api::DrainNodeRequest {
        name: "a".into(),
        grace_period: Some(seconds(-1)),
        ..Default::default()
    };
    assert_refused(
        "grace_period",
        done(subject.nodes().drain_node(request)).await.map(drop),
        "grace_period",
    );
}

fn start(change: fn(&mut api::ExecStart)) -> api::ExecStart {
    let mut start = api::ExecStart {
        pod: "web".into(),
        command: vec!["true".into()],
        ..Default::default()
    };
    change(&mut start);
    start
}

pub(super) async fn wrong_requests_for_access_are_refused_with_their_field(subject: &Subject) {
    use exec_request::Input;
    let stdin = Input::Stdin(Chunk {
        content: Some(Content::Data(vec![1])),
    });
    for (field, first) in [
        ("start", None),
        ("start", Some(stdin)),
        ("start.pod", Some(Input::Start(start(|it| it.pod.clear())))),
        (
            "start.container",
            Some(Input::Start(start(|it| it.container = "A".into()))),
        ),
        (
            "start.command",
            Some(Input::Start(start(|it| it.command.clear()))),
        ),
        (
            "start.command[0]",
            Some(Input::Start(start(|it| it.command = vec!["a\0b".into()]))),
        ),
        (
            "start.terminal_size",
            Some(Input::Start(start(|it| {
                it.terminal_size = Some(TerminalSize {
                    columns: 80,
                    rows: 24,
                })
            }))),
        ),
        (
            "start.terminal_size",
            Some(Input::Start(start(|it| {
                it.tty = true;
                it.terminal_size = Some(TerminalSize {
                    columns: 0,
                    rows: 24,
                });
            }))),
        ),
    ] {
        let first = api::ExecRequest { input: first };
        let outcome = done(subject.pods().exec(stream::iter([first]))).await;
        assert_refused(field, outcome.map(drop), field);
    }
    let script = api::RunScriptRequest {
        pod: "web".into(),
        ..Default::default()
    };
    assert_refused(
        "script",
        done(subject.pods().run_script(script)).await.map(drop),
        "script",
    );
    for path in ["", "etc/passwd", "/a\0b"] {
        let file = api::ReadFileRequest {
            pod: "web".into(),
            path: path.into(),
            ..Default::default()
        };
        assert_refused(
            "path",
            done(subject.pods().read_file(file)).await.map(drop),
            "path",
        );
    }
    let since = api::stream_logs_request::Since::SinceDuration(seconds(-1));
    let log = api::StreamLogsRequest {
        pod: "web".into(),
        since: Some(since),
        ..Default::default()
    };
    assert_refused(
        "since",
        done(subject.pods().stream_logs(log)).await.map(drop),
        "since_duration",
    );
}

pub(super) async fn wrong_names_are_refused_with_their_field(subject: &Subject) {
    for name in ["", "A", "a_b", "-a", &"a".repeat(254)] {
        let request = api::GetPodRequest {
            namespace: String::new(),
            name: name.into(),
        };
        assert_refused(name, done(subject.pods().get_pod(request)).await, "name");
        let request = api::GetNodeRequest { name: name.into() };
        assert_refused(name, done(subject.nodes().get_node(request)).await, "name");
        let request = api::DeleteConfigurationRequest {
            namespace: String::new(),
            name: name.into(),
        };
        assert_refused(
            name,
            done(subject.configurations().delete_configuration(request)).await,
            "name",
        );
    }
    let request = api::GetServiceRequest {
        namespace: "a.b".into(),
        name: "web".into(),
    };
    assert_refused(
        "a.b",
        done(subject.services().get_service(request)).await,
        "namespace",
    );
}

pub(super) async fn wrong_lists_are_refused_with_their_field(subject: &Subject) {
    let request = api::ListPodsRequest {
        page_size: -1,
        ..Default::default()
    };
    assert_refused(
        "pods",
        done(subject.pods().list_pods(request)).await,
        "page_size",
    );
    let request = api::ListNodesRequest {
        page_size: -1,
        ..Default::default()
    };
    assert_refused(
        "nodes",
        done(subject.nodes().list_nodes(request)).await,
        "page_size",
    );
    let request = api::ListIngressesRequest {
        backend: 12,
        ..Default::default()
    };
    assert_refused(
        "ingresses",
        done(subject.ingresses().list_ingresses(request)).await,
        "backend",
    );
    let request = api::ListServicesRequest {
        selector: selector(&[("a b", "c")]),
        ..Default::default()
    };
    assert_refused(
        "services",
        done(subject.services().list_services(request)).await,
        "selector.match_labels",
    );
    for selector in [None, selector(&[])] {
        let request = api::DeleteNetworkPoliciesRequest {
            namespace: subject.namespace.clone(),
            selector,
        };
        let outcome = done(subject.policies().delete_network_policies(request)).await;
        assert_refused("an empty selector", outcome, "selector");
    }
}

pub(super) async fn all_violations_are_named_at_once(subject: &Subject) {
    let mut pod = subject.pod();
    main(&mut pod).image.clear();
    main(&mut pod).ports = vec![api::ContainerPort::default()];
    spec(&mut pod).restart_policy = 9;
    let error = subject.create_pod(pod).await.unwrap_err();
    let fields: Vec<&str> = error
        .fields()
        .iter()
        .map(|one| one.field.as_str())
        .collect();
    let expected = [
        "pod.spec.containers[0].image",
        "pod.spec.containers[0].ports[0].port",
        "pod.spec.restart_policy",
    ];
    for field in expected {
        assert!(fields.contains(&field), "{fields:?}");
    }
    assert_eq!(fields.len(), expected.len(), "{fields:?}");
}

pub(super) async fn unknown_objects_are_not_found(subject: &Subject) {
    let (namespace, name) = (subject.namespace.clone(), "never-made".to_owned());
    let gone = |outcome: drover_core::Result<()>| {
        let error = assert_reason("never made", outcome, Reason::NotFound);
        assert!(error.resource().is_some(), "{error:?} names nothing");
    };
    let request = api::GetNodeRequest { name: name.clone() };
    gone(done(subject.nodes().get_node(request)).await.map(drop));
    let request = api::CordonNodeRequest { name: name.clone() };
    gone(done(subject.nodes().cordon_node(request)).await.map(drop));
    gone(subject.get_pod(&name).await.map(drop));
    let request = api::GetServiceRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    gone(
        done(subject.services().get_service(request))
            .await
            .map(drop),
    );
    let request = api::GetNetworkPolicyRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    gone(
        done(subject.policies().get_network_policy(request))
            .await
            .map(drop),
    );
    let request = api::GetConfigurationRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    gone(
        done(subject.configurations().get_configuration(request))
            .await
            .map(drop),
    );
    let request = api::GetIngressRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        backend: 0,
    };
    gone(
        done(subject.ingresses().get_ingress(request))
            .await
            .map(drop),
    );
    let request = api::ReadFileRequest {
        namespace,
        pod: name,
        path: "/a".into(),
        ..Default::default()
    };
    gone(done(subject.pods().read_file(request)).await.map(drop));
}

pub(super) async fn what_is_absent_is_deleted_without_an_error(subject: &Subject) {
    let (namespace, name) = (subject.namespace.clone(), "never-made".to_owned());
    let request = api::DeletePodRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        wait: true,
        ..Default::default()
    };
    assert!(
        !done(subject.pods().delete_pod(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteServiceRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    assert!(
        !done(subject.services().delete_service(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteNetworkPolicyRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    assert!(
        !done(subject.policies().delete_network_policy(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteConfigurationRequest {
        namespace: namespace.clone(),
        name: name.clone(),
    };
    assert!(
        !done(subject.configurations().delete_configuration(request))
            .await
            .unwrap()
            .existed
    );
    let request = api::DeleteIngressRequest {
        namespace,
        name,
        backend: 0,
    };
    assert!(
        !done(subject.ingresses().delete_ingress(request))
            .await
            .unwrap()
            .existed
    );
}

pub(super) async fn names_that_are_taken_are_refused(subject: &Subject) {
    let pod = subject.pod();
    let name = pod.metadata.clone().unwrap().name;
    subject.create_pod(pod.clone()).await.unwrap();
    assert_reason("pod", subject.create_pod(pod).await, Reason::AlreadyExists);
    subject.remove_pod(&name).await;
    let service = subject.service();
    subject.create_service(service.clone()).await.unwrap();
    assert_reason(
        "service",
        subject.create_service(service).await,
        Reason::AlreadyExists,
    );
    let policy = subject.policy();
    subject.create_policy(policy.clone()).await.unwrap();
    assert_reason(
        "policy",
        subject.create_policy(policy).await,
        Reason::AlreadyExists,
    );
    let configuration = subject.configuration();
    subject
        .create_configuration(configuration.clone())
        .await
        .unwrap();
    assert_reason(
        "configuration",
        subject.create_configuration(configuration).await,
        Reason::AlreadyExists,
    );
}

const BEYOND: &[(&str, fn(&mut api::Pod))] = &[
    ("pod.spec.host_network", |pod| spec(pod).host_network = true),
    ("pod.spec.containers[0].security.privileged", |pod| {
        main(pod).security = Some(api::ContainerSecurity {
            privileged: Some(true),
            ..Default::default()
        });
    }),
    (
        "pod.spec.containers[0].security.add_capabilities[0]",
        |pod| {
            main(pod).security = Some(api::ContainerSecurity {
                add_capabilities: vec!["SYS_PTRACE".into()],
                ..Default::default()
            });
        },
    ),
    ("pod.spec.containers[0].ports[0].host_port", |pod| {
        main(pod).ports = vec![api::ContainerPort {
            port: 80,
            host_port: 8080,
            ..Default::default()
        }];
    }),
    ("pod.spec.volumes[0].host_path", |pod| {
        let source = volume::Source::HostPath(api::HostPathVolume {
            path: "/".into(),
            r#type: 0,
        });
        spec(pod).volumes = vec![api::Volume {
            name: "root".into(),
            source: Some(source),
        }];
    }),
];

pub(super) async fn pods_beyond_the_policy_are_refused_with_their_field(subject: &Subject) {
    for (field, change) in BEYOND {
        let mut pod = subject.pod();
        change(&mut pod);
        assert_refused(field, subject.create_pod(pod).await, field);
    }
}

pub(super) async fn values_of_variables_and_scripts_are_in_no_error(subject: &Subject) {
    const SECRET: &str = "hush-8d1f";
    let mut pod = subject.pod();
    main(&mut pod).env = vec![variable("a=b", Some(env_var::Source::Value(SECRET.into())))];
    main(&mut pod).image.clear();
    let mut errors = vec![subject.create_pod(pod).await.unwrap_err()];
    let mut configuration = subject.configuration();
    configuration.data = labels(&[("a b", SECRET), (SECRET, "c")]);
    configuration
        .data
        .insert(format!("{SECRET} {SECRET}"), "c".into());
    errors.push(
        subject
            .create_configuration(configuration)
            .await
            .unwrap_err(),
    );
    let script = api::RunScriptRequest {
        namespace: subject.namespace.clone(),
        pod: "never-made".into(),
        script: SECRET.into(),
        args: vec![format!("{SECRET}\0")],
        ..Default::default()
    };
    errors.push(
        done(subject.pods().run_script(script))
            .await
            .map(drop)
            .unwrap_err(),
    );
    for error in errors {
        let all = format!("{error:?} {error} {:?}", error.fields());
        assert!(!all.contains(SECRET), "{all}");
    }
}
