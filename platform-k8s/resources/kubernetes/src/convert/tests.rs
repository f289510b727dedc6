use drover_proto::common::v1::{LabelRequirement, LabelSelector};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;

fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    let of = of.iter();
    of.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn requirement(key: &str, operator: common::LabelOperator, values: &[&str]) -> LabelRequirement {
    LabelRequirement {
        key: key.to_owned(),
        operator: operator.into(),
        values: values.iter().map(|&it| it.to_owned()).collect(),
    }
}

fn expressions() -> LabelSelector {
    LabelSelector {
        match_labels: BTreeMap::new(),
        match_expressions: vec![
            requirement("a", common::LabelOperator::In, &["1", "2"]),
            requirement("b", common::LabelOperator::NotIn, &["3"]),
            requirement("c", common::LabelOperator::Exists, &[]),
            requirement("d", common::LabelOperator::NotExists, &[]),
        ],
    }
}

fn port_of(number: u32) -> Option<api::PortRef> {
    Some(api::PortRef {
        port: Some(Port::Number(number)),
    })
}

fn port_named(name: &str) -> Option<api::PortRef> {
    Some(api::PortRef {
        port: Some(Port::Name(name.to_owned())),
    })
}

fn probes() -> [api::Probe; 3] {
    use api::probe::Action;
    let probe = |action| api::Probe {
        action: Some(action),
        initial_delay: Some(span(1)),
        period: Some(span(2)),
        timeout: Some(span(3)),
        success_threshold: Some(1),
        failure_threshold: Some(5),
    };
    [
        probe(Action::Exec(api::ExecAction {
            command: vec!["true".to_owned()],
        })),
        probe(Action::HttpGet(api::HttpGetAction {
            path: "/ready".to_owned(),
            port: port_named("http"),
            https: true,
            headers: labels(&[("Host", "a.example")]),
        })),
        probe(Action::Grpc(api::GrpcAction {
            port: 9000,
            service: "s".to_owned(),
        })),
    ]
}

fn env() -> Vec<api::EnvVar> {
    use api::env_var::Source;
    let key = |name: &str| api::KeyRef {
        name: name.to_owned(),
        key: "k".to_owned(),
        optional: true,
    };
    let sources = [
        Source::Value("text".to_owned()),
        Source::Field("status.podIP".to_owned()),
        Source::Resource(api::ResourceRef {
            resource: "limits.memory".to_owned(),
            container: "main".to_owned(),
            divisor: "1Mi".to_owned(),
        }),
        Source::Configuration(key("settings")),
        Source::Secret(key("password")),
    ];
    let sources = sources.into_iter().enumerate();
    sources
        .map(|(at, source)| api::EnvVar {
            name: format!("V{at}"),
            source: Some(source),
        })
        .collect()
}

fn container() -> api::Container {
    use api::env_source::Source;
    let [liveness, readiness, startup] = probes();
    let text = |it: &str| it.to_owned();
    api::Container {
        name: text("main"),
        image: text("image:1"),
        command: vec![text("run")],
        args: vec![text("--fast")],
        env: env(),
        env_from: [Source::Configuration(text("c")), Source::Secret(text("s"))]
            .map(|source| api::EnvSource {
                source: Some(source),
                prefix: text("P_"),
                optional: true,
            })
            .to_vec(),
        ports: vec![api::ContainerPort {
            name: text("http"),
            port: 80,
            protocol: api::Protocol::Sctp.into(),
            host_port: 8080,
        }],
        volume_mounts: vec![api::VolumeMount {
            volume: text("v0"),
            path: text("/data"),
            sub_path: text("x"),
            read_only: true,
        }],
        resource_requests: labels(&[("cpu", "250m")]),
        resource_limits: labels(&[("memory", "64Mi")]),
        liveness_probe: Some(liveness),
        readiness_probe: Some(readiness),
        startup_probe: Some(startup),
        security: Some(api::ContainerSecurity {
            privileged: Some(false),
            allow_privilege_escalation: Some(false),
            run_as_user: Some(1),
            run_as_group: Some(2),
            run_as_non_root: Some(true),
            read_only_root_filesystem: Some(true),
            add_capabilities: vec![text("NET_ADMIN")],
            drop_capabilities: vec![text("ALL")],
        }),
        image_pull_policy: api::ImagePullPolicy::IfNotPresent.into(),
        working_dir: text("/work"),
    }
}

fn volumes() -> Vec<api::Volume> {
    use api::volume::Source;
    let files = |name: &str| api::FilesVolume {
        name: name.to_owned(),
        items: vec![api::KeyPath {
            key: "k".to_owned(),
            path: "p".to_owned(),
            mode: Some(0o400),
        }],
        default_mode: Some(0o440),
        optional: true,
    };
    let sources = [
        Source::HostPath(api::HostPathVolume {
            path: "/var".to_owned(),
            r#type: api::HostPathType::DirectoryOrCreate.into(),
        }),
        Source::Configuration(files("c")),
        Source::Secret(files("s")),
        Source::EmptyDir(api::EmptyDirVolume {
            memory: true,
            size_limit: "1Gi".to_owned(),
        }),
        Source::Claim(api::ClaimVolume {
            name: "claim".to_owned(),
            read_only: true,
        }),
    ];
    let sources = sources.into_iter().enumerate();
    sources
        .map(|(at, source)| api::Volume {
            name: format!("v{at}"),
            source: Some(source),
        })
        .collect()
}

fn affinity() -> api::Affinity {
    let node = |weight| api::NodeTerm {
        selector: Some(expressions()),
        weight,
    };
    let pod = |weight| api::PodTerm {
        selector: Some(LabelSelector {
            match_labels: labels(&[("app", "db")]),
            ..expressions()
        }),
        topology_key: "kubernetes.io/hostname".to_owned(),
        namespaces: vec!["other".to_owned()],
        weight,
    };
    api::Affinity {
        node_required: vec![node(0), node(0)],
        node_preferred: vec![node(7)],
        pod_required: vec![pod(0)],
        pod_preferred: vec![pod(8)],
        pod_anti_required: vec![pod(0)],
        pod_anti_preferred: vec![pod(9)],
    }
}

/// A pod in which every field is set.
fn everything() -> api::Pod {
    let text = |it: &str| it.to_owned();
    api::Pod {
        metadata: Some(api::Metadata {
            namespace: text("n"),
            name: text("p"),
            labels: labels(&[("app", "db")]),
            annotations: labels(&[("a", "b")]),
            ..api::Metadata::default()
        }),
        spec: Some(api::PodSpec {
            containers: vec![container()],
            init_containers: vec![api::Container {
                name: text("first"),
                ..container()
            }],
            volumes: volumes(),
            restart_policy: api::RestartPolicy::OnFailure.into(),
            node_selector: labels(&[("zone", "a")]),
            tolerations: vec![api::Toleration {
                key: text("t"),
                operator: api::TolerationOperator::Equal.into(),
                value: text("v"),
                effect: api::TaintEffect::NoExecute.into(),
                toleration_period: Some(span(60)),
            }],
            affinity: Some(affinity()),
            service_account: text("account"),
            mount_service_account_token: Some(false),
            image_pull_secrets: vec![text("pull")],
            termination_grace_period: Some(span(5)),
            nameservers: vec![text("10.0.0.1")],
            search_domains: vec![text("example")],
            dns_policy: api::DnsPolicy::None.into(),
            security: Some(api::PodSecurity {
                run_as_user: Some(1),
                run_as_group: Some(2),
                run_as_non_root: Some(true),
                fs_group: Some(3),
                supplemental_groups: vec![4],
                seccomp_runtime_default: Some(true),
            }),
            host_network: true,
            hostname: text("host"),
            priority_class: text("high"),
            node: text("node"),
        }),
        status: None,
    }
}

#[test]
fn a_pod_that_uses_everything_comes_back_as_it_was() {
    let object = to_pod(everything()).unwrap();
    // As Kubernetes writes it, so that a field of another name would be lost.
    let json = serde_json::to_value(&object).unwrap();
    let mut back = pod(serde_json::from_value(json).unwrap());
    back.status = None;
    let unset = api::Metadata::default();
    let metadata = back.metadata.as_mut().unwrap();
    metadata.uid.clone_from(&unset.uid);
    assert_eq!(back, everything());
}

#[test]
fn wrong_values_are_refused_with_their_field_and_panic_nowhere() {
    type Breaks = fn(&mut api::PodSpec);
    let cases: [(Breaks, &str); 8] = [
        (|it| it.restart_policy = 99, "pod.spec.restart_policy"),
        (|it| it.dns_policy = -1, "pod.spec.dns_policy"),
        (
            |it| it.containers[0].ports[0].port = 70_000,
            "pod.spec.containers[0].ports[0].port",
        ),
        (
            |it| it.containers[0].env_from[1].source = None,
            "pod.spec.containers[0].env_from[1]",
        ),
        (
            |it| it.init_containers[0].image_pull_policy = 9,
            "pod.spec.init_containers[0].image_pull_policy",
        ),
        (|it| it.volumes[2].source = None, "pod.spec.volumes[2]"),
        (
            |it| {
                it.termination_grace_period = Some(prost_types::Duration {
                    seconds: -1,
                    nanos: 0,
                });
            },
            "pod.spec.termination_grace_period",
        ),
        (
            |it| {
                let affinity = it.affinity.as_mut().unwrap();
                let selector = affinity.pod_anti_preferred[0].selector.as_mut().unwrap();
                selector.match_expressions[0].values.clear();
            },
            "pod.spec.affinity.pod_anti_preferred[0].selector.match_expressions[0].values",
        ),
    ];
    for (breaks, field) in cases {
        let mut pod = everything();
        breaks(pod.spec.as_mut().unwrap());
        let error = to_pod(pod).unwrap_err();
        assert_eq!(error.fields()[0].field, field);
    }
}

#[test]
fn a_selector_is_written_in_one_order_whatever_its_own() {
    let mut selector = expressions();
    selector.match_labels = labels(&[("z", "9"), ("app", "db")]);
    let expected = "!d,a in (1,2),app=db,b notin (3),c,z=9";
    assert_eq!(
        selector_text("selector", Some(&selector)).unwrap(),
        expected
    );
    selector.match_expressions.reverse();
    selector.match_expressions[3].values.reverse();
    assert_eq!(
        selector_text("selector", Some(&selector)).unwrap(),
        expected
    );
    assert_eq!(selector_text("selector", None).unwrap(), "");
}

#[test]
fn a_network_policy_that_means_a_peer_and_a_port_stays_one_rule() {
    let policy = api::NetworkPolicy {
        metadata: None,
        spec: Some(api::NetworkPolicySpec {
            pod_selector: Some(expressions()),
            directions: vec![],
            ingress: vec![api::NetworkPolicyRule {
                peers: vec![
                    api::NetworkPeer {
                        peer: Some(api::network_peer::Peer::Pods(api::PodPeer {
                            selector: None,
                            namespace_selector: None,
                        })),
                    },
                    api::NetworkPeer {
                        peer: Some(api::network_peer::Peer::IpBlock(api::IpBlock {
                            cidr: "10.0.0.0/8".to_owned(),
                            except_cidrs: vec!["10.1.0.0/16".to_owned()],
                        })),
                    },
                ],
                ports: vec![api::NetworkPort {
                    protocol: api::Protocol::Udp.into(),
                    port: port_of(80),
                    end_port: 90,
                }],
            }],
            egress: vec![api::NetworkPolicyRule::default()],
        }),
    };
    let object = to_network_policy(policy).unwrap();
    let spec = serde_json::to_value(object.spec.unwrap()).unwrap();
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(spec["egress"], json!([{}]));
    assert_eq!(
        spec["ingress"],
        json!([{
            "from": [
                {"podSelector": {}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            ],
            "ports": [{"protocol": "UDP", "port": 80, "endPort": 90}],
        }])
    );
}

fn reason(status: serde_json::Value) -> (String, String) {
    let pod: Pod = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
    let status = super::pod(pod).status.unwrap();
    (status.reason, status.message)
}

#[test]
fn the_status_says_why_a_pod_is_as_it_is() {
    let waiting = |reason: &str| {
        json!({
            "phase": "Pending",
            "containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason, "message": "why"}},
            }],
        })
    };
    let said = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
    let unplaced = json!({"conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
    }]});
    assert_eq!(
        reason(waiting("ImagePullBackOff")),
        said("ImagePullBackOff", "why")
    );
    assert_eq!(reason(waiting("ContainerCreating")), said("", ""));
    assert_eq!(reason(unplaced), said("Unschedulable", "0/3 nodes"));
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "disk"});
    assert_eq!(reason(evicted), said("Evicted", "disk"));
    let long = "ö".repeat(MAX_MESSAGE);
    let (_, message) = reason(json!({"reason": "Evicted", "message": long}));
    assert_eq!(message.len(), MAX_MESSAGE);
}
