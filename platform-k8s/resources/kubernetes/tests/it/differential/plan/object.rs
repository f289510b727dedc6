//! Services, network policies and configurations.

use drover_proto::kubernetes::v1 as api;

use super::{Chooser, FIRST, LAST, PORTS, RARELY, Step};

impl Chooser<'_> {
    pub(super) fn service_step(&mut self) -> Step {
        match self.random.usize(..8) {
            0..5 => Step::CreateService(api::CreateServiceRequest {
                service: Some(self.service()),
            }),
            5 => Step::GetService(api::GetServiceRequest {
                namespace: self.namespace(),
                name: self.name("s"),
            }),
            6 => Step::ListServices(api::ListServicesRequest {
                namespace: self.namespace(),
                selector: self.selector(),
                page_size: self.page_size(),
                page_token: self.page_token(),
            }),
            _ => Step::DeleteService(api::DeleteServiceRequest {
                namespace: self.place.namespace.clone(),
                name: self.name("s"),
            }),
        }
    }

    fn service(&mut self) -> api::Service {
        use api::ServiceType::{ClusterIp, ExternalName, LoadBalancer, NodePort, Unspecified};
        let kinds = [
            Unspecified,
            Unspecified,
            ClusterIp,
            NodePort,
            LoadBalancer,
            ExternalName,
        ];
        let kind = self.one(&kinds);
        let external = kind == ExternalName;
        let right = !self.once_in(RARELY);
        let ports = self.random.usize(..3);
        let ports = if external {
            0
        } else {
            ports.max(usize::from(right))
        };
        api::Service {
            metadata: self.metadata("s"),
            spec: Some(api::ServiceSpec {
                r#type: if self.once_in(2 * RARELY) {
                    77
                } else {
                    kind.into()
                },
                selector: self.some(&[("app", "web"), ("test/tier", "1")]),
                ports: (0..ports).map(|_| self.service_port(kind)).collect(),
                cluster_ip: match self.random.usize(..10) {
                    0 | 1 if kind != NodePort || !right => "None".to_owned(),
                    2 => self
                        .or(&[""], &["x", "10.0.0.300", "192.0.2.1", "::1"])
                        .to_owned(),
                    _ => String::new(),
                },
                external_name: match (external, right) {
                    (true, true) => self
                        .one(&["a.example", "a.example.", "b-1.example"])
                        .to_owned(),
                    (true, false) => self.one(&["", "A b", "-x", "192.0.2.1"]).to_owned(),
                    (false, true) => String::new(),
                    (false, false) => self.one(&["", "a.example"]).to_owned(),
                },
                publish_not_ready_addresses: self.random.bool(),
            }),
            ..api::Service::default()
        }
    }

    fn service_port(&mut self, kind: api::ServiceType) -> api::ServicePort {
        let allocates = matches!(
            kind,
            api::ServiceType::NodePort | api::ServiceType::LoadBalancer
        );
        api::ServicePort {
            name: self
                .or(
                    &["http", "https", "dns", "web"],
                    &["", "Not", "with-a-name-too-long", "a--b"],
                )
                .to_owned(),
            port: self.or(&PORTS, &[0, 65536, 99999]),
            target_port: match self.random.usize(..8) {
                0 => self.port_ref(8080, ""),
                1 => self.port_ref(0, "http"),
                2 if self.once_in(12) => self.port_ref(0, "Not valid"),
                3 if self.once_in(12) => self.port_ref(70000, ""),
                _ => None,
            },
            node_port: match (allocates, self.random.usize(..RARELY)) {
                (true, 0) => self.one(&[80, 40000, 70000]),
                (false, 0) => 30080,
                _ => 0,
            },
            protocol: self.or(&[0, 0, 1, 2, 3], &[9]),
            app_protocol: self
                .or(&["", "", "http", "kubernetes.io/h2c"], &["Not one!"])
                .to_owned(),
        }
    }

    pub(super) fn port_ref(&self, number: u32, name: &str) -> Option<api::PortRef> {
        use api::port_ref::Port;
        let port = if name.is_empty() {
            Port::Number(number)
        } else {
            Port::Name(name.to_owned())
        };
        Some(api::PortRef { port: Some(port) })
    }

    pub(super) fn policy_step(&mut self) -> Step {
        match self.random.usize(..9) {
            0..5 => Step::CreateNetworkPolicy(api::CreateNetworkPolicyRequest {
                network_policy: Some(api::NetworkPolicy {
                    metadata: self.metadata("n"),
                    spec: if self.once_in(6) {
                        None
                    } else {
                        Some(self.policy())
                    },
                }),
            }),
            5 => Step::GetNetworkPolicy(api::GetNetworkPolicyRequest {
                namespace: self.namespace(),
                name: self.name("n"),
            }),
            6 => Step::ListNetworkPolicies(api::ListNetworkPoliciesRequest {
                namespace: self.namespace(),
                selector: self.selector(),
                page_size: self.page_size(),
                page_token: self.page_token(),
            }),
            7 => Step::DeleteNetworkPolicy(api::DeleteNetworkPolicyRequest {
                namespace: self.namespace(),
                name: self.name("n"),
            }),
            _ => Step::DeleteNetworkPolicies(api::DeleteNetworkPoliciesRequest {
                namespace: self.namespace(),
                selector: if self.once_in(5) {
                    None
                } else {
                    self.selector()
                },
            }),
        }
    }

    fn policy(&mut self) -> api::NetworkPolicySpec {
        let rules = |chooser: &mut Self| {
            let count = chooser.random.usize(..3);
            (0..count)
                .map(|_| chooser.policy_rule())
                .collect::<Vec<_>>()
        };
        api::NetworkPolicySpec {
            pod_selector: if self.once_in(2) {
                None
            } else {
                self.pod_selector()
            },
            directions: match self.random.usize(..6) {
                0 => vec![1],
                1 => vec![2],
                2 => vec![1, 2],
                3 if self.once_in(8) => vec![7],
                4 if self.once_in(8) => vec![1, 1],
                _ => Vec::new(),
            },
            ingress: rules(self),
            egress: rules(self),
        }
    }

    fn pod_selector(&mut self) -> Option<drover_proto::common::v1::LabelSelector> {
        let mut selector = self.selector()?;
        if self.once_in(2) {
            selector.match_labels.clear();
        }
        Some(selector)
    }

    fn policy_rule(&mut self) -> api::NetworkPolicyRule {
        let (peers, ports) = (self.random.usize(..3), self.random.usize(..3));
        api::NetworkPolicyRule {
            peers: (0..peers).map(|_| self.peer()).collect(),
            ports: (0..ports).map(|_| self.policy_port()).collect(),
        }
    }

    fn peer(&mut self) -> api::NetworkPeer {
        use api::network_peer::Peer;
        let peer = match self.random.usize(..8) {
            0..4 => Some(Peer::Pods(api::PodPeer {
                selector: if self.once_in(3) {
                    None
                } else {
                    self.pod_selector()
                },
                namespace_selector: if self.once_in(2) {
                    None
                } else {
                    self.pod_selector()
                },
            })),
            4..7 => {
                let cidr = self.or(
                    &["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32"],
                    &["10.0.0.1/8", "x", "10.0.0.0/33"],
                );
                let except = self.or(
                    &[&["10.1.0.0/24"][..], &[], &[]],
                    &[&["192.0.2.0/24"][..], &["10.0.0.0/8"], &["y"]],
                );
                Some(Peer::IpBlock(api::IpBlock {
                    cidr: cidr.to_owned(),
                    except_cidrs: except.iter().map(|&it| it.to_owned()).collect(),
                }))
            }
            _ if self.once_in(12) => None,
            _ => Some(Peer::Pods(api::PodPeer {
                selector: self.pod_selector(),
                namespace_selector: None,
            })),
        };
        api::NetworkPeer { peer }
    }

    fn policy_port(&mut self) -> api::NetworkPort {
        let named = self.once_in(4);
        let port = self.or(&[80, 443, 8080], &[0, 70000]);
        api::NetworkPort {
            protocol: self.or(&[0, 1, 2, 3], &[8]),
            port: if named {
                self.port_ref(0, "http")
            } else if self.once_in(6) {
                None
            } else {
                self.port_ref(port, "")
            },
            end_port: if self.once_in(5) {
                self.or(&[8081, 9000], &[1, 70000])
            } else {
                0
            },
        }
    }

    pub(super) fn configuration_step(&mut self) -> Step {
        match self.random.usize(..10) {
            0..3 => Step::CreateConfiguration(api::CreateConfigurationRequest {
                configuration: Some(self.configuration()),
            }),
            3..7 => {
                let mut configuration = self.configuration();
                let metadata = configuration.metadata.get_or_insert_default();
                metadata.revision = self
                    .one(&["", LAST, LAST, FIRST, "1", "not one"])
                    .to_owned();
                Step::UpdateConfiguration(api::UpdateConfigurationRequest {
                    configuration: Some(configuration),
                })
            }
            7 => Step::GetConfiguration(api::GetConfigurationRequest {
                namespace: self.namespace(),
                name: self.name("c"),
            }),
            8 => Step::ListConfigurations(api::ListConfigurationsRequest {
                namespace: self.namespace(),
                selector: self.selector(),
                page_size: self.page_size(),
                page_token: self.page_token(),
            }),
            _ => Step::DeleteConfiguration(api::DeleteConfigurationRequest {
                namespace: self.namespace(),
                name: self.name("c"),
            }),
        }
    }

    fn configuration(&mut self) -> api::Configuration {
        let data = self.some(&[
            ("a", "1"),
            ("a", "2"),
            ("b.txt", "two\nlines"),
            ("_c-d", ""),
        ]);
        let binary: &[u8] = self.one(&[&[0, 255][..], b"text", b""]);
        let mut binary_data = std::collections::BTreeMap::new();
        if self.once_in(3) {
            let key = self.or(&["e"], &["a", "not a key"]);
            binary_data.insert(key.to_owned(), binary.to_vec());
        }
        let mut configuration = api::Configuration {
            metadata: self.metadata("c"),
            data,
            binary_data,
            immutable: self.once_in(6),
        };
        if self.once_in(RARELY) {
            let key = self.one(&["..", ".", "a/b", "", "..a"]);
            configuration.data.insert(key.to_owned(), "x".to_owned());
        }
        configuration
    }
}
