//! Ingresses of the three kinds, and their rules.

use drover_proto::kubernetes::v1 as api;

use super::{Chooser, PORTS, RARELY, Step};

impl Chooser<'_> {
    fn backend(&mut self) -> i32 {
        self.or(&[0, 1, 1, 2, 2, 3, 3], &[9])
    }

    fn host(&mut self) -> String {
        let place = format!("{}.{}.example", self.place.number, self.place.namespace);
        match self.random.usize(..60) {
            0 => "Not a host".to_owned(),
            1 => format!("*.{place}"),
            2 => "192.0.2.1".to_owned(),
            3 => format!("UPPER.{place}"),
            _ => format!("{}.{place}", self.one(&["x", "y", "z"])),
        }
    }

    pub(super) fn ingress_step(&mut self) -> Step {
        match self.random.usize(..16) {
            0..4 => {
                let backend = self.backend();
                Step::CreateIngress(api::CreateIngressRequest {
                    ingress: Some(self.ingress(backend)),
                    backend,
                })
            }
            4 | 5 => Step::GetIngress(api::GetIngressRequest {
                namespace: self.namespace(),
                name: self.name("i"),
                backend: self.backend(),
            }),
            6 => Step::ListIngresses(api::ListIngressesRequest {
                namespace: self.place.namespace.clone(),
                selector: self.selector(),
                backend: self.backend(),
                page_size: self.page_size(),
                page_token: self.page_token(),
            }),
            7 => Step::DeleteIngress(api::DeleteIngressRequest {
                namespace: self.namespace(),
                name: self.name("i"),
                backend: self.backend(),
            }),
            8 => Step::GetRule(api::GetRuleRequest {
                namespace: self.namespace(),
                ingress: self.name("i"),
                host: self.host(),
                backend: self.backend(),
            }),
            9..13 => {
                let count = self.random.usize(1..3);
                Step::UpsertPaths(api::UpsertPathsRequest {
                    namespace: self.namespace(),
                    ingress: self.name("i"),
                    host: self.host(),
                    paths: (0..count).map(|_| self.path()).collect(),
                    backend: self.backend(),
                    wait: false,
                })
            }
            _ => Step::RemovePaths(api::RemovePathsRequest {
                namespace: self.namespace(),
                ingress: self.name("i"),
                host: self.host(),
                paths: vec![self.path_key()],
                backend: self.backend(),
            }),
        }
    }

    fn ingress(&mut self, backend: i32) -> api::Ingress {
        let rules = self
            .random
            .usize(..3)
            .max(usize::from(!self.once_in(RARELY)));
        // Of HTTPRoutes it is a Gateway: a server may be set up with one, and the fake is.
        let right: &[&str] = match backend {
            2 => &["gateways/public", "a/b"],
            3 => &[""],
            _ => &["", "nginx"],
        };
        let class = self.or(right, &["a/b", "nginx", "a/b/c", "Not one"]);
        api::Ingress {
            metadata: self.metadata("i"),
            rules: (0..rules)
                .map(|_| {
                    let paths = self.random.usize(..3);
                    api::IngressRule {
                        host: self.host(),
                        paths: (0..paths).map(|_| self.path()).collect(),
                    }
                })
                .collect(),
            tls: match self.random.usize(..8) {
                0 => vec![api::IngressTls {
                    hosts: vec![self.host()],
                    secret: self.or(&["certificate"], &["", "Not valid"]).to_owned(),
                }],
                _ => Vec::new(),
            },
            class_name: class.to_owned(),
            ..api::Ingress::default()
        }
    }

    fn path(&mut self) -> api::IngressPath {
        use api::ingress_path::Target;
        let target = match self.random.usize(..24) {
            0 if self.once_in(3) => None,
            1 => Some(Target::Upstream(api::UpstreamTarget {
                name: self.one(&["no", "Not valid", ""]).to_owned(),
                namespace: String::new(),
            })),
            2 => {
                let service = self.name("s");
                let name = format!("{}-{service}-80", self.place.namespace);
                Some(Target::Upstream(api::UpstreamTarget {
                    name,
                    namespace: String::new(),
                }))
            }
            _ => Some(Target::Service(self.service_target())),
        };
        api::IngressPath {
            path: self
                .or(&["/", "/a", "/a", "/a/b", "/a/", "/.*"], &["", "a", "/a b"])
                .to_owned(),
            r#type: self.or(&[0, 0, 0, 1, 1, 2, 2], &[3, 3, 3, 4, 4, 8]),
            target,
            name: self
                .or(&["", "", "", "one", "two"], &["Not valid"])
                .to_owned(),
            opaque: self.once_in(40),
        }
    }

    fn service_target(&mut self) -> api::ServiceTarget {
        let number = self.or(&PORTS, &[0, 70000, 9]);
        let port = match self.random.usize(..6) {
            0 => self.port_ref(0, "http"),
            1 if self.once_in(12) => None,
            2 if self.once_in(12) => self.port_ref(0, "Not valid"),
            _ => self.port_ref(number, ""),
        };
        api::ServiceTarget {
            name: self.name("s"),
            port,
        }
    }

    fn path_key(&mut self) -> api::PathKey {
        use api::path_key::Key;
        let key = match self.random.usize(..10) {
            0 if self.once_in(5) => None,
            0..4 => Some(Key::Match(api::PathMatch {
                path: self.or(&["/", "/a", "/a/b", "/a/"], &["", "a"]).to_owned(),
                r#type: self.or(&[0, 0, 1, 2], &[3, 4, 8]),
            })),
            4..7 => Some(Key::Name(
                self.or(&["one", "two", "three"], &["", "Not valid"])
                    .to_owned(),
            )),
            _ => Some(Key::Service(self.service_target())),
        };
        api::PathKey { key }
    }
}
