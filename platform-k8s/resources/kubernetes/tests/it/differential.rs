//! The fake is Kubernetes: random sequences of calls get the same answers from both, but for what is random there too
//! (uids, revisions, times, addresses) and what kubelets do in between.
//!
//! `DROVER_TEST_SEQUENCES=10000` makes more of them than CI does; `DROVER_SEED` repeats a run.

mod answer;
mod plan;
mod side;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use drover_resources::{Resources, Served};
use drover_resources_fake::Fake;
use drover_server::{ServerSettings, Service, Shutdown};
use drover_testing::{
    kubernetes::{Namespace, Options, Rig, until},
    seed,
};
use futures::future::join_all;
use parking_lot::Mutex;
use serde_json::json;

use self::{
    plan::{Place, Step, sequence},
    side::Side,
};
use crate::{faults::world::serve, ingress::kinds::Kind};

/// Sequences of one run.
const SEQUENCES: u64 = 500;
/// Sequences at once, each lane in a namespace of its own.
const LANES: u64 = 6;
/// Sequences after which a lane is made anew: what they leave behind makes lists longer.
const RENEWED: usize = 40;
/// Differences that are shown.
const MOST: usize = 40;

fn sequences() -> u64 {
    let given = std::env::var("DROVER_TEST_SEQUENCES").ok();
    given.map_or(SEQUENCES, |given| given.parse().unwrap())
}

/// A namespace and a node that only one sequence at a time uses.
struct Lane {
    namespace: Namespace,
    node: String,
    real: drover_client::Channel,
    fake: drover_client::Channel,
    _fake: Fake,
}

impl Lane {
    async fn new(rig: &Rig, seed: u64) -> Self {
        let namespace = rig.namespace().await;
        let node = format!("node-of-{}", namespace.name);
        make_node(&namespace, &node).await;
        let real = serve(rig.kubeconfig(), &namespace.name).await;
        let fake = Fake::new(seed);
        for name in ["node-1", "node-2"] {
            fake.remove_node(name);
        }
        for name in ["kwok-0", "kwok-1", "kwok-2", &node] {
            fake.add_node(name, BTreeMap::new());
        }
        let served = Served {
            default_namespace: namespace.name.clone(),
            namespaces: vec![namespace.name.clone()],
            ..Served::default()
        };
        let resources = Resources::new(fake.cluster(), served).unwrap();
        let service = resources.add_to(Service::new("fake", "0"));
        let routes = service
            .into_routes(&ServerSettings::default(), Shutdown::new())
            .unwrap();
        Self {
            namespace,
            node,
            real,
            fake: drover_client::in_process(routes),
            _fake: fake,
        }
    }

    /// The first difference of a sequence.
    async fn run(&self, seed: u64, number: u64) -> Option<Difference> {
        let place = Place {
            namespace: self.namespace.name.clone(),
            node: self.node.clone(),
            number,
        };
        let steps = sequence(&place, seed);
        let mut real = Side::new(self.real.clone());
        let mut fake = Side::new(self.fake.clone());
        for (at, step) in steps.iter().enumerate() {
            let (theirs, ours) = tokio::join!(real.call(step), fake.call(step));
            if theirs != ours {
                return Some(Difference {
                    seed,
                    steps: steps[..=at].to_vec(),
                    theirs: theirs.to_string(),
                    ours: ours.to_string(),
                });
            }
            if theirs.is_well() {
                self.discover(step).await;
            }
        }
        real.end(&place).await;
        fake.end(&place).await;
        None
    }

    /// What Gloo's discovery does, which the rig does not have and the fake does.
    async fn discover(&self, step: &Step) {
        let resource = "upstreams.gloo.solo.io";
        let name = |service: &str, port: u32| format!("{}-{service}-{port}", self.namespace.name);
        match step {
            Step::CreateService(request) => {
                let service = request.service.clone().unwrap();
                let of = service.metadata.unwrap().name;
                for port in service.spec.unwrap().ports {
                    let upstream = json!({
                        "apiVersion": "gloo.solo.io/v1", "kind": "Upstream",
                        "metadata": {"name": name(&of, port.port)},
                        "spec": {"kube": {
                            "serviceName": of, "serviceNamespace": self.namespace.name,
                            "servicePort": port.port,
                        }},
                    });
                    // Two ports may differ in their protocols only.
                    let _ = self.namespace.create(resource, &upstream).await;
                }
            }
            Step::DeleteService(request) => {
                for port in plan::PORTS {
                    self.namespace
                        .delete(resource, &name(&request.name, port))
                        .await;
                }
            }
            _ => {}
        }
    }
}

/// A node that kwok keeps ready, and that takes no pods.
async fn make_node(namespace: &Namespace, name: &str) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name},
        },
        "spec": {"taints": [{"key": plan::TAINT, "effect": "NoSchedule"}]},
    });
    namespace.raw.create("/api/v1/nodes", &node).await.unwrap();
    let path = format!("/api/v1/nodes/{name}");
    until("the node is ready", || async {
        let node = namespace.raw.get(&path).await.ok()?;
        let conditions = node["status"]["conditions"].as_array()?.clone();
        let ready = |it: &serde_json::Value| it["type"] == "Ready" && it["status"] == "True";
        conditions.iter().any(ready).then_some(())
    })
    .await;
}

struct Difference {
    seed: u64,
    steps: Vec<Step>,
    theirs: String,
    ours: String,
}

impl Difference {
    /// What two differences have in common that have the same cause.
    fn signature(&self) -> String {
        let differing = self.theirs.lines().zip(self.ours.lines());
        let first = differing.into_iter().find(|(a, b)| a != b);
        let (a, b) = first.unwrap_or(("", ""));
        let letters = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
        let call = self.steps.last().map(Step::name).unwrap_or_default();
        format!("{call}: {} | {}", letters(a), letters(b))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_sequences_of_calls_get_the_same_answers_from_the_fake_and_from_kubernetes() {
    let rig = Rig::shared(Options::kwok(3));
    let first = seed::seed();
    let count = sequences();
    let raw = rig.raw().await;
    for kind in [Kind::Ingress, Kind::HttpRoute, Kind::VirtualService] {
        kind.install(&raw).await;
    }
    let found: Mutex<BTreeMap<String, (usize, Difference)>> = Mutex::default();
    let next = AtomicU64::new(0);
    let lanes = (0..LANES).map(|_| async {
        let mut number = next.fetch_add(1, Ordering::Relaxed);
        while number < count {
            let lane = Lane::new(rig, first).await;
            for _ in 0..RENEWED {
                if let Some(difference) = lane.run(first.wrapping_add(number), number).await {
                    let mut found = found.lock();
                    let known = found.entry(difference.signature());
                    known.or_insert((0, difference)).0 += 1;
                }
                number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
            }
            let node = format!("/api/v1/nodes/{}", lane.node);
            lane.namespace.raw.delete(&node).await.unwrap();
            lane.namespace.remove().await;
        }
    });
    join_all(lanes).await;
    let found = found.into_inner();
    for (signature, (times, difference)) in found.iter().take(MOST) {
        println!(
            "=== {times} times: {signature}\nDROVER_SEED={} DROVER_TEST_SEQUENCES=1",
            difference.seed
        );
        for (number, step) in difference.steps.iter().enumerate() {
            println!("{number}. {step:?}");
        }
        println!(
            "--- Kubernetes:\n{}\n--- the fake:\n{}",
            difference.theirs, difference.ours
        );
    }
    let times: usize = found.values().map(|(times, _)| times).sum();
    assert_eq!(
        times,
        0,
        "{times} of {count} sequences differ, in {} ways",
        found.len()
    );
}
