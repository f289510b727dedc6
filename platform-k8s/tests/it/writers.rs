//! Many writers on one host over two processes of the server, one of which is killed midway: the paths are those of a
//! serial run.
//!
//! `DROVER_TEST_WRITER_SEEDS=100` makes more runs than CI does, from `DROVER_SEED` on.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use drover_client::Channel;
use drover_convert::error::from_status;
use drover_core::{Error, Reason};
use drover_proto::kubernetes::v1::{
    self as api, IngressBackend, ingress_service_client::IngressServiceClient,
};
use drover_testing::{
    kubernetes::{Namespace, Options, Rig, definitions, until},
    seed,
};
use fastrand::Rng;
use futures::future::join_all;
use serde_json::json;

use crate::process::Server;

const WRITERS: usize = 50;
const STEPS: usize = 20;
/// Runs of each kind of ingress.
const SEEDS: u64 = 2;
const INGRESS: &str = "web";

fn count() -> u64 {
    let given = std::env::var("DROVER_TEST_WRITER_SEEDS").ok();
    given.map_or(SEEDS, |given| given.parse().unwrap())
}

/// The host that all write, and what its paths lead to.
struct Place {
    namespace: Namespace,
    host: String,
    backend: IngressBackend,
}

impl Place {
    async fn new(rig: &Rig, backend: IngressBackend) -> Self {
        let namespace = rig.namespace().await;
        match backend {
            IngressBackend::HttpRoute => {
                definitions::define(&namespace.raw, &definitions::gateway_api()).await;
            }
            IngressBackend::VirtualService => {
                definitions::define(&namespace.raw, &definitions::gloo()).await;
            }
            IngressBackend::Unspecified | IngressBackend::Ingress => {}
        }
        for name in ["one", "two"] {
            let service = json!({
                "metadata": {"name": name},
                "spec": {"ports": [{"name": "http", "port": 80}]},
            });
            namespace.create("services", &service).await.unwrap();
            if backend == IngressBackend::VirtualService {
                let upstream = json!({
                    "apiVersion": "gloo.solo.io/v1", "kind": "Upstream",
                    "metadata": {"name": format!("{}-{name}-80", namespace.name)},
                    "spec": {"kube": {
                        "serviceName": name, "serviceNamespace": namespace.name, "servicePort": 80,
                    }},
                });
                let upstreams = "upstreams.gloo.solo.io";
                namespace.create(upstreams, &upstream).await.unwrap();
            }
        }
        Self {
            host: format!("{}.example", namespace.name),
            namespace,
            backend,
        }
    }

    async fn create(&self, channel: &Channel) {
        let class_name = match self.backend {
            IngressBackend::HttpRoute => "gateways/public",
            IngressBackend::Unspecified
            | IngressBackend::Ingress
            | IngressBackend::VirtualService => "",
        };
        let request = api::CreateIngressRequest {
            ingress: Some(api::Ingress {
                metadata: Some(api::Metadata {
                    namespace: self.namespace.name.clone(),
                    name: INGRESS.to_owned(),
                    ..api::Metadata::default()
                }),
                rules: vec![api::IngressRule {
                    host: self.host.clone(),
                    paths: Vec::new(),
                }],
                class_name: class_name.to_owned(),
                ..api::Ingress::default()
            }),
            backend: self.backend.into(),
        };
        let mut client = IngressServiceClient::new(channel.clone());
        client.create_ingress(request).await.unwrap();
    }

    async fn delete(&self, channel: &Channel) {
        let request = api::DeleteIngressRequest {
            namespace: self.namespace.name.clone(),
            name: INGRESS.to_owned(),
            backend: self.backend.into(),
        };
        let mut client = IngressServiceClient::new(channel.clone());
        client.delete_ingress(request).await.unwrap();
    }

    async fn rule(&self, channel: &Channel) -> Vec<String> {
        let request = api::GetRuleRequest {
            namespace: self.namespace.name.clone(),
            ingress: INGRESS.to_owned(),
            host: self.host.clone(),
            backend: self.backend.into(),
        };
        let mut client = IngressServiceClient::new(channel.clone());
        let answer = client.get_rule(request).await.unwrap().into_inner();
        shown(&answer.rule.unwrap())
    }

    async fn change(&self, channel: &Channel, change: &Change) -> Result<Vec<String>, Error> {
        let mut client = IngressServiceClient::new(channel.clone());
        let (namespace, ingress) = (self.namespace.name.clone(), INGRESS.to_owned());
        let (host, backend) = (self.host.clone(), self.backend.into());
        let rule = match change {
            Change::Upsert(path) => {
                let request = api::UpsertPathsRequest {
                    namespace,
                    ingress,
                    host,
                    paths: vec![path.clone()],
                    backend,
                    ..api::UpsertPathsRequest::default()
                };
                let answer = client.upsert_paths(request).await;
                answer.map(|answer| answer.into_inner().rule)
            }
            Change::Remove(key) => {
                let request = api::RemovePathsRequest {
                    namespace,
                    ingress,
                    host,
                    paths: vec![api::PathKey {
                        key: Some(key.clone()),
                    }],
                    backend,
                };
                let answer = client.remove_paths(request).await;
                answer.map(|answer| answer.into_inner().rule)
            }
        };
        let rule = rule.map_err(|status| from_status(&status))?;
        Ok(shown(&rule.unwrap()))
    }

    /// What proxies read, whatever the server says: the number of routes in all objects.
    async fn routed(&self) -> Option<usize> {
        let (resource, routes) = match self.backend {
            IngressBackend::HttpRoute => ("httproutes.gateway.networking.k8s.io", "/spec/rules"),
            IngressBackend::VirtualService => (
                "virtualservices.gateway.solo.io",
                "/spec/virtualHost/routes",
            ),
            IngressBackend::Unspecified | IngressBackend::Ingress => {
                ("ingresses.networking.k8s.io", "/spec/rules/0/http/paths")
            }
        };
        let objects = self.namespace.list(resource).await;
        let routes = objects
            .iter()
            .filter_map(|object| object.pointer(routes)?.as_array().map(Vec::len));
        (!objects.is_empty()).then(|| routes.sum())
    }
}

enum Change {
    Upsert(api::IngressPath),
    Remove(api::path_key::Key),
}

/// What a writer has left: path to name and service.
type Left = BTreeMap<String, (String, String)>;

/// The next change of a writer. No two writers share a path or a name.
fn next(random: &mut Rng, writer: usize, left: &mut Left) -> Change {
    use api::{ingress_path::Target, path_key::Key, port_ref::Port};
    let at = format!("/w{writer}/{}", random.usize(..6));
    let name = format!("w{writer}-{}", random.usize(..4));
    match random.usize(..5) {
        0 => {
            left.remove(&at);
            Change::Remove(Key::Match(api::PathMatch {
                path: at,
                r#type: api::PathType::Prefix.into(),
            }))
        }
        1 => {
            left.retain(|_, (known, _)| *known != name);
            Change::Remove(Key::Name(name))
        }
        _ => {
            let service = if random.bool() { "one" } else { "two" };
            left.retain(|_, (known, _)| *known != name);
            left.insert(at.clone(), (name.clone(), service.to_owned()));
            Change::Upsert(api::IngressPath {
                path: at,
                name,
                target: Some(Target::Service(api::ServiceTarget {
                    name: service.to_owned(),
                    port: Some(api::PortRef {
                        port: Some(Port::Number(80)),
                    }),
                })),
                ..api::IngressPath::default()
            })
        }
    }
}

/// Path, name and service of each path.
fn shown(rule: &api::IngressRule) -> Vec<String> {
    let one = |path: &api::IngressPath| {
        let to = match &path.target {
            Some(api::ingress_path::Target::Service(service)) => service.name.as_str(),
            Some(api::ingress_path::Target::Upstream(upstream)) => upstream.name.as_str(),
            None => "nowhere",
        };
        format!("{} {} {to}", path.path, path.name)
    };
    rule.paths.iter().map(one).collect()
}

fn lines(left: &Left) -> Vec<String> {
    left.iter()
        .map(|(at, (name, service))| format!("{at} {name} {service}"))
        .collect()
}

/// Two servers, the first of which is killed after half of all changes.
struct Servers {
    first: parking_lot::Mutex<Option<Server>>,
    channels: [Channel; 2],
    killed: AtomicBool,
    changes: AtomicUsize,
    repeated: AtomicUsize,
}

impl Servers {
    fn count(&self) {
        let count = self.changes.fetch_add(1, Ordering::Relaxed);
        if count == WRITERS * STEPS / 2 {
            self.killed.store(true, Ordering::Relaxed);
            if let Some(server) = self.first.lock().take() {
                server.kill();
            }
        }
    }

    /// Makes a change; what has no answer is repeated at the other server.
    async fn change(&self, place: &Place, writer: usize, change: &Change) -> Vec<String> {
        let own = writer % 2;
        let begun_after = self.killed.load(Ordering::Relaxed);
        let channel = &self.channels[if begun_after { 1 } else { own }];
        match place.change(channel, change).await {
            Ok(rule) => rule,
            Err(error) => {
                let lost = own == 0 && !begun_after && self.killed.load(Ordering::Relaxed);
                assert!(lost, "writer {writer}: {error}");
                assert_eq!(
                    error.reason(),
                    Reason::Unavailable,
                    "writer {writer}: {error}"
                );
                self.repeated.fetch_add(1, Ordering::Relaxed);
                let again = place.change(&self.channels[1], change).await;
                again.unwrap_or_else(|error| panic!("writer {writer}, again: {error}"))
            }
        }
    }
}

async fn write(place: &Place, servers: &Servers, writer: usize, mut random: Rng) -> Left {
    let mut left = Left::new();
    for step in 0..STEPS {
        let change = next(&mut random, writer, &mut left);
        let rule = servers.change(place, writer, &change).await;
        servers.count();
        let own = format!("/w{writer}/");
        let mine: Vec<String> = rule.into_iter().filter(|it| it.starts_with(&own)).collect();
        assert_eq!(
            mine,
            lines(&left),
            "writer {writer}, step {step}: right after the change"
        );
    }
    left
}

async fn run(rig: &Rig, place: &Place, survivor: &Server, seed: u64) {
    let mut random = Rng::with_seed(seed);
    place.create(&survivor.channel).await;
    let first = Server::start(rig.kubeconfig(), &place.namespace.name, &["--resources"]).await;
    let servers = Servers {
        channels: [first.channel.clone(), survivor.channel.clone()],
        first: parking_lot::Mutex::new(Some(first)),
        killed: AtomicBool::new(false),
        changes: AtomicUsize::new(0),
        repeated: AtomicUsize::new(0),
    };
    let writers = (0..WRITERS).map(|writer| write(place, &servers, writer, random.fork()));
    let left = join_all(writers).await;
    assert!(servers.first.lock().is_none(), "one server was killed");
    let serial: Left = left.into_iter().flatten().collect();
    let serial = lines(&serial);
    assert!(!serial.is_empty());
    assert_eq!(place.rule(&survivor.channel).await, serial);
    until("what proxies read says the same", || async {
        (place.routed().await == Some(serial.len())).then_some(())
    })
    .await;
    let repeated = servers.repeated.load(Ordering::Relaxed);
    println!(
        "seed {seed}, {:?}: {} paths, {repeated} changes without an answer",
        place.backend,
        serial.len()
    );
    place.delete(&survivor.channel).await;
}

async fn no_change_is_lost(backend: IngressBackend) {
    let rig = Rig::shared(Options::kwok(3));
    let place = Place::new(rig, backend).await;
    let survivor = Server::start(rig.kubeconfig(), &place.namespace.name, &["--resources"]).await;
    for seed in seed::seeds(count()) {
        println!("seed {seed}");
        run(rig, &place, &survivor, seed).await;
    }
    place.namespace.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_paths_of_an_ingress_are_those_of_a_serial_run() {
    no_change_is_lost(IngressBackend::Ingress).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_paths_of_http_routes_are_those_of_a_serial_run() {
    no_change_is_lost(IngressBackend::HttpRoute).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_paths_of_a_virtual_service_are_those_of_a_serial_run() {
    no_change_is_lost(IngressBackend::VirtualService).await;
}
