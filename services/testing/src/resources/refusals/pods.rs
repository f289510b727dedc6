//! Changes that make a valid pod a wrong one, each with the field that is named.

use drover_proto::{
    common::v1::LabelOperator,
    kubernetes::v1::{self as api, env_var, probe, volume},
};
use prost_types::Duration;

use super::super::fixture::{labels, port, requirement, seconds, spec};

pub(super) fn main(pod: &mut api::Pod) -> &mut api::Container {
    &mut spec(pod).containers[0]
}

pub(super) fn variable(name: &str, source: Option<env_var::Source>) -> api::EnvVar {
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

pub(super) const PODS: &[(&str, fn(&mut api::Pod))] = &[
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
    // With them it would be a node of a cluster.
    ("pod.metadata.labels[drover.dev/cluster]", |pod| {
        pod.metadata.as_mut().unwrap().labels = labels(&[("drover.dev/cluster", "orders")])
    }),
    ("pod.metadata.annotations[drover.dev/identity]", |pod| {
        pod.metadata.as_mut().unwrap().annotations = labels(&[("drover.dev/identity", "{}")])
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
