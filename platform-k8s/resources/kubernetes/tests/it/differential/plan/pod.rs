//! Pods.

use std::collections::BTreeMap;

use drover_proto::kubernetes::v1 as api;
use prost_types::Duration;

use super::{Chooser, LAST, RARELY, Step};

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

impl Chooser<'_> {
    pub(super) fn pod_step(&mut self) -> Step {
        match self.random.usize(..14) {
            0..6 => Step::CreatePod(api::CreatePodRequest {
                pod: Some(api::Pod {
                    metadata: self.metadata("p"),
                    spec: if self.once_in(2 * RARELY) {
                        None
                    } else {
                        Some(self.pod())
                    },
                    status: None,
                }),
            }),
            6 | 7 => Step::GetPod(api::GetPodRequest {
                namespace: self.namespace(),
                name: self.name("p"),
            }),
            8 => Step::ListPods(api::ListPodsRequest {
                namespace: self.namespace(),
                selector: self.selector(),
                node: self
                    .or(&["", "", "", "no-such-node"], &["Not one"])
                    .to_owned(),
                page_size: self.page_size(),
                page_token: self.page_token(),
            }),
            // Whether it is already gone is not asked: it is waited for.
            9 | 10 => Step::DeletePod(api::DeletePodRequest {
                namespace: self.namespace(),
                name: self.name("p"),
                uid: self
                    .one(&["", "", LAST, "00000000-0000-4000-8000-000000000000"])
                    .to_owned(),
                grace_period: self
                    .or(&[None, Some(0), Some(0), Some(1)], &[Some(-1)])
                    .and_then(seconds),
                wait: true,
            }),
            11 => self.wait_step(),
            12 => Step::Exec(api::ExecStart {
                namespace: self.namespace(),
                pod: format!("no-{}", self.place.number),
                container: self.or(&["", "main"], &["Not one"]).to_owned(),
                command: if self.once_in(4) {
                    Vec::new()
                } else {
                    vec!["true".to_owned()]
                },
                tty: self.once_in(4),
                ..api::ExecStart::default()
            }),
            _ if self.random.bool() => Step::ReadFile(api::ReadFileRequest {
                namespace: self.namespace(),
                pod: format!("no-{}", self.place.number),
                path: self
                    .or(&["/etc/hosts"], &["relative", "", "/a\0b"])
                    .to_owned(),
                ..api::ReadFileRequest::default()
            }),
            _ => Step::StreamLogs(api::StreamLogsRequest {
                namespace: self.namespace(),
                pod: format!("no-{}", self.place.number),
                follow: self.random.bool(),
                previous: self.random.bool(),
                ..api::StreamLogsRequest::default()
            }),
        }
    }

    /// A wait that ends at once, whatever pods there are.
    fn wait_step(&mut self) -> Step {
        let gone = api::PodWaitCondition::Gone;
        let (names, selector, conditions) = match self.random.usize(..5) {
            0 => (vec!["no-such-pod".to_owned()], None, vec![gone.into()]),
            1 => (Vec::new(), self.no_such_label(), vec![gone.into()]),
            2 => (Vec::new(), self.no_such_label(), vec![9]),
            3 => (vec!["Not one".to_owned()], None, Vec::new()),
            _ => (Vec::new(), self.no_such_label(), Vec::new()),
        };
        Step::WaitPods(api::WaitPodsRequest {
            namespace: self.namespace(),
            fail_if_none: conditions.is_empty() || self.random.bool(),
            names,
            selector,
            conditions,
            ..api::WaitPodsRequest::default()
        })
    }

    fn no_such_label(&self) -> Option<drover_proto::common::v1::LabelSelector> {
        Some(drover_proto::common::v1::LabelSelector {
            match_labels: [("no-such".to_owned(), "label".to_owned())].into(),
            match_expressions: Vec::new(),
        })
    }

    fn pod(&mut self) -> api::PodSpec {
        let (containers, init) = (self.random.usize(1..3), self.random.usize(..5));
        let mut spec = api::PodSpec {
            containers: (0..containers)
                .map(|at| self.container(at, "main"))
                .collect(),
            init_containers: (0..init.saturating_sub(3))
                .map(|at| self.container(at, "init"))
                .collect(),
            volumes: self.volumes(),
            restart_policy: self.or(&[0, 0, 1, 2, 3], &[9]),
            // Not the node of the lane: it is drained.
            node_selector: self.node_selector(),
            tolerations: self.tolerations(),
            affinity: self.affinity(),
            service_account: self.or(&["", "", "default"], &["Not valid"]).to_owned(),
            mount_service_account_token: self.one(&[None, None, Some(false), Some(true)]),
            termination_grace_period: self
                .or(&[None, None, Some(0), Some(5)], &[Some(-2)])
                .and_then(seconds),
            dns_policy: self.or(&[0, 0, 0, 1, 2, 3], &[4, 9]),
            hostname: self.or(&["", "", "", "host"], &["Not valid"]).to_owned(),
            priority_class: self
                .or(&[""], &["no-such-class", "system-node-critical"])
                .to_owned(),
            ..api::PodSpec::default()
        };
        if self.once_in(4) {
            spec.nameservers = vec![self.or(&["192.0.2.1", "2001:db8::1"], &["x"]).to_owned()];
            spec.search_domains = vec![self.or(&["a.example"], &["Not valid!"]).to_owned()];
        }
        if self.once_in(3) {
            spec.security = Some(self.pod_security());
        }
        if self.once_in(RARELY) {
            spec.host_network = true;
        }
        if self.once_in(RARELY) {
            spec.containers.clear();
        }
        if self.once_in(10) {
            spec.image_pull_secrets = vec![self.or(&["pull"], &["Not valid"]).to_owned()];
        }
        spec
    }

    fn node_selector(&mut self) -> BTreeMap<String, String> {
        let (key, value) = self.one(&[("no", "where"), ("kubernetes.io/hostname", "kwok-0")]);
        [(key.to_owned(), value.to_owned())].into()
    }

    fn pod_security(&mut self) -> api::PodSecurity {
        api::PodSecurity {
            run_as_user: self.or(&[None, Some(1000), Some(0)], &[Some(-1)]),
            run_as_group: self.one(&[None, Some(1000)]),
            run_as_non_root: self.one(&[None, Some(true), Some(false)]),
            fs_group: self.one(&[None, Some(2000)]),
            supplemental_groups: if self.once_in(3) {
                vec![3000, 4000]
            } else {
                Vec::new()
            },
            seccomp_runtime_default: self.one(&[None, Some(true), Some(false)]),
        }
    }

    fn container(&mut self, at: usize, kind: &str) -> api::Container {
        let wrong = self.once_in(RARELY);
        let known = if self.once_in(RARELY) { 7 } else { 5 };
        let images = [
            "busybox",
            "busybox:1.36",
            "busybox:latest",
            "a.example:5000/x",
            "a.example/x@sha256:00",
            " x",
            "",
        ];
        api::Container {
            name: if wrong {
                self.one(&["", "Not valid", "main-0"]).to_owned()
            } else {
                format!("{kind}-{at}")
            },
            image: self.one(&images[..known]).to_owned(),
            command: self
                .one(&[&[][..], &["sleep", "1000"]])
                .iter()
                .map(|&it| it.to_owned())
                .collect(),
            args: self
                .one(&[&[][..], &["$(A)"]])
                .iter()
                .map(|&it| it.to_owned())
                .collect(),
            env: self.env(),
            env_from: self.env_from(),
            ports: self.ports(),
            volume_mounts: self.mounts(),
            resource_requests: self.quantities(),
            resource_limits: self.quantities(),
            liveness_probe: self.probe(kind),
            readiness_probe: self.probe(kind),
            startup_probe: self.probe(kind),
            security: self.container_security(),
            image_pull_policy: self.or(&[0, 0, 0, 1, 2, 3], &[8]),
            working_dir: self.one(&["", "", "/tmp"]).to_owned(),
        }
    }

    fn container_security(&mut self) -> Option<api::ContainerSecurity> {
        if !self.once_in(4) {
            return None;
        }
        let capabilities = self.or(
            &[&[][..], &["CHOWN"], &["NET_BIND_SERVICE"]],
            &[&["SYS_ADMIN"][..]],
        );
        Some(api::ContainerSecurity {
            privileged: self.or(&[None, Some(false)], &[Some(true)]),
            allow_privilege_escalation: self.one(&[None, Some(false)]),
            run_as_user: self.one(&[None, Some(1000)]),
            run_as_group: None,
            run_as_non_root: self.one(&[None, Some(true)]),
            read_only_root_filesystem: self.one(&[None, Some(true)]),
            add_capabilities: capabilities.iter().map(|&it| it.to_owned()).collect(),
            drop_capabilities: if self.once_in(2) {
                vec!["ALL".to_owned()]
            } else {
                Vec::new()
            },
        })
    }

    fn quantities(&mut self) -> BTreeMap<String, String> {
        let right = [
            ("cpu", "100m"),
            ("cpu", "1"),
            ("cpu", "0.5"),
            ("cpu", "1500m"),
            ("cpu", "2.0"),
            ("memory", "64Mi"),
            ("memory", "1024Ki"),
            ("memory", "1e6"),
            ("memory", "100M"),
            ("memory", "1.5Gi"),
            ("memory", "128974848"),
            ("ephemeral-storage", "1G"),
        ];
        let mut quantities = self.some(&right);
        if self.once_in(RARELY) {
            let wrong = [
                ("memory", "much"),
                ("cpu", "-1"),
                ("cpu", ""),
                ("Not valid", "1"),
                ("nothing", "1"),
                ("a.example/gpu", "1"),
            ];
            let (name, value) = self.one(&wrong);
            quantities.insert(name.to_owned(), value.to_owned());
        }
        quantities
    }

    fn env(&mut self) -> Vec<api::EnvVar> {
        use api::env_var::Source;
        let count = self.random.usize(..3);
        let key = |name: &str, key: &str, optional| api::KeyRef {
            name: name.to_owned(),
            key: key.to_owned(),
            optional,
        };
        (0..count)
            .map(|_| {
                let source = match self.random.usize(..10) {
                    0 if self.once_in(2) => None,
                    1 | 2 => {
                        let right = [
                            "metadata.name",
                            "status.podIP",
                            "metadata.labels['app']",
                            "spec.nodeName",
                        ];
                        Some(Source::Field(self.or(&right, &["no.such", ""]).to_owned()))
                    }
                    3 | 4 => Some(Source::Resource(api::ResourceRef {
                        resource: self
                            .or(&["limits.cpu", "requests.memory"], &["no", ""])
                            .to_owned(),
                        container: self.one(&["", "", "main-0"]).to_owned(),
                        divisor: self.or(&["", "", "1"], &["1Mi", "1m", "x"]).to_owned(),
                    })),
                    5 => {
                        let optional = self.random.bool();
                        Some(Source::Configuration(key("c", "k", optional)))
                    }
                    6 => Some(Source::Secret(key(
                        "s",
                        self.or(&["k"], &["", "a/b"]),
                        false,
                    ))),
                    _ => Some(Source::Value(self.one(&["", "x", "$(A) $$(B)"]).to_owned())),
                };
                let names = ["A", "B", "a.b-c", "_X", "", "1A", "A=B", "A B"];
                let most = if self.once_in(RARELY) { 8 } else { 4 };
                api::EnvVar {
                    name: self.one(&names[..most]).to_owned(),
                    source,
                }
            })
            .collect()
    }

    fn env_from(&mut self) -> Vec<api::EnvSource> {
        use api::env_source::Source;
        if !self.once_in(5) {
            return Vec::new();
        }
        let source = match self.random.usize(..4) {
            0 if self.once_in(4) => None,
            1 => Some(Source::Secret("s".to_owned())),
            _ => Some(Source::Configuration(
                self.or(&["c"], &["", "Not valid"]).to_owned(),
            )),
        };
        vec![api::EnvSource {
            source,
            prefix: self.or(&["", "P_"], &["1 "]).to_owned(),
            optional: self.random.bool(),
        }]
    }

    fn ports(&mut self) -> Vec<api::ContainerPort> {
        let count = self.random.usize(..3);
        (0..count)
            .map(|_| api::ContainerPort {
                name: self
                    .or(&["", "", "http", "web"], &["Not valid", "123"])
                    .to_owned(),
                port: self.or(&[80, 8080, 443], &[0, 70000]),
                protocol: self.or(&[0, 0, 1, 2, 3], &[7]),
                host_port: if self.once_in(2 * RARELY) { 8080 } else { 0 },
            })
            .collect()
    }

    fn mounts(&mut self) -> Vec<api::VolumeMount> {
        let count = self.random.usize(..3);
        (0..count)
            .map(|_| api::VolumeMount {
                volume: self.or(&["v", "w"], &["no"]).to_owned(),
                path: self
                    .or(&["/a", "/b", "/c", "/d"], &["", "a:b", "relative"])
                    .to_owned(),
                sub_path: self.or(&["", "", "", "x/y"], &["../x", "/x"]).to_owned(),
                read_only: self.random.bool(),
            })
            .collect()
    }

    fn volumes(&mut self) -> Vec<api::Volume> {
        use api::volume::Source;
        ["v", "w"]
            .into_iter()
            .map(|name| {
                let source = match self.random.usize(..16) {
                    0 if self.once_in(4) => None,
                    1 if self.once_in(4) => Some(Source::HostPath(api::HostPathVolume {
                        path: "/x".to_owned(),
                        r#type: 0,
                    })),
                    2 | 3 => Some(Source::Configuration(self.files())),
                    4 | 5 => Some(Source::Secret(self.files())),
                    6 => Some(Source::Claim(api::ClaimVolume {
                        name: self.or(&["claim"], &["", "Not valid"]).to_owned(),
                        read_only: self.random.bool(),
                    })),
                    _ => Some(Source::EmptyDir(api::EmptyDirVolume {
                        memory: self.once_in(3),
                        size_limit: self
                            .or(&["", "", "1Gi", "1024Mi"], &["much", "-1"])
                            .to_owned(),
                    })),
                };
                api::Volume {
                    name: self.or(&[name], &["", "v", "Not valid"]).to_owned(),
                    source,
                }
            })
            .collect()
    }

    fn files(&mut self) -> api::FilesVolume {
        let count = self.random.usize(..3);
        api::FilesVolume {
            name: self.or(&["c"], &["", "Not valid"]).to_owned(),
            items: (0..count)
                .map(|_| api::KeyPath {
                    key: self.or(&["k"], &["", "a/b"]).to_owned(),
                    path: self.or(&["x", "x/y"], &["", "../x", "/x"]).to_owned(),
                    mode: self.or(&[None, Some(0o600)], &[Some(0o7777)]),
                })
                .collect(),
            default_mode: self.or(&[None, Some(0o400)], &[Some(0o10000)]),
            optional: self.random.bool(),
        }
    }

    fn tolerations(&mut self) -> Vec<api::Toleration> {
        if !self.once_in(3) {
            return Vec::new();
        }
        vec![api::Toleration {
            key: self.or(&["a", "test/x"], &["", "Not valid!"]).to_owned(),
            operator: self.or(&[0, 1, 2, 2], &[7]),
            value: self.one(&["", "", "v"]).to_owned(),
            effect: self.or(&[0, 1, 2, 3, 3], &[7]),
            toleration_period: self.one(&[None, None, Some(10)]).and_then(seconds),
        }]
    }

    fn affinity(&mut self) -> Option<api::Affinity> {
        if !self.once_in(4) {
            return None;
        }
        let preferred = self.random.bool();
        let weight = if preferred {
            self.or(&[1, 50, 100], &[0, 101])
        } else {
            self.or(&[0], &[5])
        };
        let node = api::NodeTerm {
            selector: self.pod_selector_of_affinity(),
            weight,
        };
        let pod = api::PodTerm {
            selector: self.pod_selector_of_affinity(),
            topology_key: self
                .or(&["kubernetes.io/hostname", "zone"], &["", "Not valid!"])
                .to_owned(),
            namespaces: if self.once_in(4) {
                vec!["default".to_owned()]
            } else {
                Vec::new()
            },
            weight,
        };
        let mut affinity = api::Affinity::default();
        match (self.random.usize(..3), preferred) {
            (0, true) => affinity.node_preferred.push(node),
            (0, false) => affinity.node_required.push(node),
            (1, true) => affinity.pod_preferred.push(pod),
            (1, false) => affinity.pod_required.push(pod),
            (_, true) => affinity.pod_anti_preferred.push(pod),
            (_, false) => affinity.pod_anti_required.push(pod),
        }
        Some(affinity)
    }

    fn pod_selector_of_affinity(&mut self) -> Option<drover_proto::common::v1::LabelSelector> {
        if self.once_in(RARELY) {
            None
        } else {
            self.selector()
        }
    }

    fn probe(&mut self, kind: &str) -> Option<api::Probe> {
        use api::probe::Action;
        if kind == "init" && !self.once_in(RARELY) || !self.once_in(6) {
            return None;
        }
        let number = self.or(&[80, 8080], &[0, 70000]);
        let action = match self.random.usize(..9) {
            0 if self.once_in(4) => None,
            1 | 2 => Some(Action::Exec(api::ExecAction {
                command: if self.once_in(5) {
                    Vec::new()
                } else {
                    vec!["true".to_owned()]
                },
            })),
            3..6 => Some(Action::HttpGet(api::HttpGetAction {
                path: self.one(&["", "/healthy"]).to_owned(),
                port: if self.random.bool() {
                    self.port_ref(0, "http")
                } else {
                    self.port_ref(number, "")
                },
                https: self.random.bool(),
                headers: self.some(&[("X-A", "b"), ("Not valid", "c")]),
            })),
            6 => Some(Action::TcpSocket(api::TcpSocketAction {
                port: self.port_ref(number, ""),
            })),
            _ => Some(Action::Grpc(api::GrpcAction {
                port: number,
                service: self.one(&["", "health"]).to_owned(),
            })),
        };
        Some(api::Probe {
            action,
            initial_delay: self
                .or(&[None, Some(0), Some(3)], &[Some(-1)])
                .and_then(seconds),
            period: self
                .or(&[None, Some(1), Some(20)], &[Some(0)])
                .and_then(seconds),
            timeout: self.one(&[None, Some(2)]).and_then(seconds),
            success_threshold: self.or(&[None, Some(1)], &[Some(2), Some(0)]),
            failure_threshold: self.or(&[None, Some(5)], &[Some(0)]),
        })
    }
}
