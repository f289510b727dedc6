//! Each call of the six services with each fault of the API server. The rows are the calls of the descriptor set; the
//! places where a fault hits are the calls that each of them is seen to make at the proxy.

mod columns;
mod files;
mod outages;
mod rows;
pub(crate) mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use drover_core::{Class, Error, Reason};
use drover_testing::kubernetes::{Call, Namespace, Options, PATIENCE, Rig};
use futures::{FutureExt as _, StreamExt as _, future::LocalBoxFuture, stream};
use prost::Message as _;
use serde_json::json;

use self::{
    columns::{Column, Expect, Hit},
    rows::{Row, rows},
    world::World,
};
use crate::ingress::kinds::Kind;

/// Rows at once. They mostly wait for the API server.
const ROWS: usize = 8;
/// Cases at once that wait for a time limit.
const SLOW: usize = 40;

/// `PodService/CreatePod`, and so on.
fn calls() -> BTreeSet<String> {
    let all = prost_types::FileDescriptorSet::decode(drover_proto::DESCRIPTORS).unwrap();
    let ours = all
        .file
        .iter()
        .filter(|file| file.package() == "drover.kubernetes.v1");
    let services = ours.flat_map(|file| &file.service);
    services
        .flat_map(|service| {
            let calls = service.method.iter();
            calls.map(|call| format!("{}/{}", service.name(), call.name()))
        })
        .collect()
}

/// A place with what ingresses lead to.
async fn place(rig: &Rig) -> Arc<Namespace> {
    let namespace = rig.namespace().await;
    for kind in [Kind::Ingress, Kind::HttpRoute, Kind::VirtualService] {
        kind.install(&namespace.raw).await;
    }
    for name in ["one", "two"] {
        let service = json!({
            "metadata": {"name": name},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        });
        namespace.create("services", &service).await.unwrap();
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
    Arc::new(namespace)
}

/// Goes on after a case that fails, and says so.
async fn noted(failures: &AtomicUsize, case: impl Future<Output = ()>) {
    if AssertUnwindSafe(case).catch_unwind().await.is_err() {
        failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// A row in its place.
struct Bench {
    row: Row,
    /// For names.
    number: usize,
    rig: &'static Rig,
    namespace: Arc<Namespace>,
    direct: drover_client::Channel,
    failures: Arc<AtomicUsize>,
    cases: Arc<AtomicUsize>,
}

impl Bench {
    async fn world(&self) -> World {
        World::new(self.rig, Arc::clone(&self.namespace), self.direct.clone()).await
    }

    /// A row's name that no other case has. Nodes belong to no namespace.
    fn name(&self, case: usize) -> String {
        format!("{}-{}-{case}", self.namespace.name, self.number)
    }

    async fn tidy(&self, world: &World, name: &str) {
        if self.row.call.starts_with("NodeService/") {
            let raw = &world.namespace.raw;
            raw.delete(&format!("/api/v1/nodes/{name}")).await.unwrap();
        }
        if let Some(resource) = self.row.leaves {
            world.namespace.delete(resource, name).await;
        }
    }

    /// What the call does at the API server if nothing goes wrong, once the server knows what that offers.
    async fn hits(&self, world: &World) -> Vec<Hit> {
        let mut calls = Vec::new();
        for case in [0, 1] {
            let name = self.name(case);
            (self.row.prepare)(world, &name).await;
            world.proxy.forget();
            let outcome = (self.row.act)(world, &name).await;
            outcome.unwrap_or_else(|error| panic!("{}: {error}", self.row.call));
            self.check_effect(world, &name, true, "no fault").await;
            calls = world.proxy.calls();
            self.tidy(world, &name).await;
        }
        let mut seen: BTreeMap<(&str, String), usize> = BTreeMap::new();
        let mut hits = Vec::new();
        let mut after = false;
        for call in calls {
            let nth = seen.entry((call.verb, call.resource.clone())).or_default();
            *nth += 1;
            hits.push(Hit::of(&call, *nth, after));
            after |= self.is_effect(&call) && !self.tells_progress();
        }
        assert!(!hits.is_empty(), "{}", self.row.call);
        hits
    }

    async fn check_effect(&self, world: &World, name: &str, expected: bool, what: &str) {
        if let Some(effect) = &self.row.effect {
            assert_eq!((effect.done)(world, name).await, expected, "{what}: done");
        }
    }

    /// One fault in one place, and the same call again without it.
    async fn case(&self, world: &World, (number, hit, column): (usize, &Hit, Column)) {
        let name = self.name(number);
        let what = format!("{} {hit:?} {column:?}", self.row.call);
        (self.row.prepare)(world, &name).await;
        world.proxy.heal();
        world.proxy.forget();
        world.proxy.fail(hit.on(), column.fault(hit));
        let outcome = (self.row.act)(world, &name);
        let outcome = tokio::time::timeout(PATIENCE, outcome).await;
        let outcome = outcome.unwrap_or_else(|_| panic!("{what}: no answer"));
        assert_eq!(
            world.proxy.faults_left(),
            0,
            "{what}: it was not hit: {outcome:?}"
        );
        let calls = world.proxy.calls();
        let done = self.is_done(&calls, column);
        column.expected(&self.row, hit).check(&what, hit, &outcome);
        column.check_repetitions(&what, hit, &calls);
        if let Some(done) = done {
            self.check_effect(world, &name, done, &what).await;
            let refused =
                |error: &Error| matches!(error.class(), Class::Cannot | Class::Credentials);
            let refused = outcome.as_ref().is_err_and(refused);
            let told = self.tells_progress();
            assert!(
                !(done && refused) || told,
                "{what}: refused, and done: {outcome:?}"
            );
        }
        let again = (self.row.act)(world, &name).await;
        match (&again, done, self.row.again) {
            (Err(error), Some(true), Some(reason)) => {
                assert_eq!(error.reason(), reason, "{what}, again: {error}");
            }
            (Ok(()), Some(true), Some(_)) => panic!("{what}: made twice"),
            (outcome, ..) => assert_eq!(*outcome, Ok(()), "{what}, again"),
        }
        self.check_effect(world, &name, true, &what).await;
        self.tidy(world, &name).await;
    }

    /// Whether the change has reached the API server and was not taken back, as the proxy saw it. `None`: the call makes
    /// none.
    fn is_done(&self, calls: &[Call], column: Column) -> Option<bool> {
        self.row.effect.as_ref()?;
        let executed = |call: &&Call| call.fault.is_none() || column.executes();
        let mut executed = calls.iter().filter(executed);
        let done = executed.any(|call| self.is_effect(call));
        let creates = self.row.call == "IngressService/CreateIngress";
        Some(done && !(creates && executed.any(|call| call.verb == "delete")))
    }

    /// Whether it has said what was done before it says what cannot be.
    fn tells_progress(&self) -> bool {
        self.row.call == "NodeService/DrainNode"
    }

    fn is_effect(&self, call: &Call) -> bool {
        let effect = self.row.effect.as_ref();
        effect.is_some_and(|it| (call.verb, &*call.resource) == (it.verb, it.resource))
    }
}

/// All cases of a row: the quick ones one after the other, the slow ones each with a proxy of its own.
async fn row(bench: &Bench) -> Vec<LocalBoxFuture<'_, ()>> {
    let world = bench.world().await;
    let hits = bench.hits(&world).await;
    let mut number = 2;
    let mut slow: Vec<LocalBoxFuture<'_, ()>> = Vec::new();
    for hit in hits {
        for column in Column::ALL {
            if !column.fits(&hit) {
                continue;
            }
            number += 1;
            bench.cases.fetch_add(1, Ordering::Relaxed);
            if column.is_slow(&hit) {
                let (case, hit) = (number, hit.clone());
                slow.push(Box::pin(async move {
                    let world = bench.world().await;
                    // The first call finds out what the API server offers.
                    let name = format!("{}-w", bench.name(case));
                    (bench.row.prepare)(&world, &name).await;
                    assert_eq!((bench.row.act)(&world, &name).await, Ok(()));
                    bench.tidy(&world, &name).await;
                    noted(&bench.failures, bench.case(&world, (case, &hit, column))).await;
                }));
            } else {
                noted(&bench.failures, bench.case(&world, (number, &hit, column))).await;
            }
        }
    }
    slow
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_with_each_fault_says_what_is_known_and_ends_well_when_repeated() {
    let rows = rows();
    let known: BTreeSet<String> = rows.iter().map(|row| row.call.to_owned()).collect();
    assert_eq!(known, calls(), "each call of the services has its rows");
    let rig = Rig::shared(Options::default());
    let namespace = place(rig).await;
    let direct = world::serve(rig.kubeconfig(), &namespace.name).await;
    let (failures, cases) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let benches: Vec<Bench> = rows
        .into_iter()
        .enumerate()
        .map(|(number, row)| Bench {
            row,
            number,
            rig,
            namespace: Arc::clone(&namespace),
            direct: direct.clone(),
            failures: Arc::clone(&failures),
            cases: Arc::clone(&cases),
        })
        .collect();
    let slow: Vec<_> = stream::iter(&benches)
        .map(row)
        .buffer_unordered(ROWS)
        .collect()
        .await;
    stream::iter(slow.into_iter().flatten())
        .buffer_unordered(SLOW)
        .collect::<()>()
        .await;
    let (failures, cases) = (
        failures.load(Ordering::Relaxed),
        cases.load(Ordering::Relaxed),
    );
    println!("{cases} cases");
    assert_eq!(failures, 0, "of {cases} cases; each is told above");
    namespace.remove().await;
}

impl Expect {
    fn check(&self, what: &str, hit: &Hit, outcome: &Result<(), Error>) {
        let Err(error) = outcome else {
            assert!(
                matches!(self, Self::Fine | Self::FineOr(_)),
                "{what}: an answer, and not {self:?}"
            );
            return;
        };
        let expected: &[Reason] = match self {
            Self::Fine => &[],
            Self::Fails(reason) => std::slice::from_ref(reason),
            Self::FineOr(reasons) => reasons,
        };
        let reason = error.reason();
        assert!(
            expected.contains(&reason),
            "{what}: {error:?}, and not {self:?}"
        );
        if what.contains("Forbidden") {
            // As the rule is written that gives the right.
            let verb = if hit.verb == "connect" {
                "create"
            } else {
                hit.verb
            };
            let right = format!("may not {verb} {}", hit.resource);
            assert!(error.message().contains(&right), "{what}: {error:?}");
        }
        if reason == Reason::RateLimited && what.contains("ThrottledFor") {
            assert!(error.retry_after().is_some(), "{what}: {error:?}");
        }
    }
}
