//! The platform is killed with `kill -9` before and after each of its calls to the API server, while it claims, releases
//! and takes over hosts. Another one finds no half request, no host with two owners and none that is lost.

use std::collections::{BTreeMap, BTreeSet};

use drover_proto::platform::v1::{
    HostState, NodeAdoption, NodeRole, Slot, SlotKey, update_node_request::Update,
};
use drover_testing::kubernetes::{Fault, FaultProxy, On, Options, Rig, until};
use serde_json::Value;
use uuid::Uuid;

use super::{Place, host};
use crate::process::Server;

const RACK: &str = "rack";
const HOSTS: &str = "baremetalhosts.metal3.io";

/// Labels and annotations of every host.
async fn written(place: &Place) -> BTreeMap<String, (Value, Value)> {
    let mut all = BTreeMap::new();
    for name in ["h0", "h1", "h2", "h3"] {
        let object = place.object(name).await;
        let metadata = &object["metadata"];
        let both = (metadata["labels"].clone(), metadata["annotations"].clone());
        all.insert(name.to_owned(), both);
    }
    all
}

/// A platform process that dies at one of its calls.
struct Doomed {
    proxy: FaultProxy,
    server: Server,
    place: Place,
}

impl Doomed {
    async fn over(place: &Place) -> Self {
        let proxy = FaultProxy::start(Rig::shared(Options::default())).await;
        let namespace = &place.namespace.name;
        let arguments = ["--driver", "hosts"];
        let server = Server::start(&proxy.kubeconfig(), namespace, &arguments).await;
        Self {
            place: place.by_way_of(server.channel.clone()),
            proxy,
            server,
        }
    }

    /// Lets it do something until it dies at its nth call of a kind. Answers whether it came so far.
    async fn dies(
        self,
        (verb, nth): (&'static str, usize),
        fault: Fault,
        work: impl AsyncFnOnce(&Place),
    ) -> bool {
        self.proxy.fail(On::call(verb, HOSTS).nth(nth), fault);
        let dead = until("it has died", || async {
            self.proxy.is_dead().then_some(())
        });
        let died = tokio::select! {
            () = dead => true,
            () = work(&self.place) => self.proxy.is_dead(),
        };
        self.server.kill();
        died
    }
}

/// The calls of a kind at which a platform can die while it does something, and how.
fn points(verb: &'static str, most: usize) -> Vec<((&'static str, usize), Fault)> {
    (1..=most)
        .flat_map(|nth| [Fault::DieBefore, Fault::DieAfter].map(|fault| ((verb, nth), fault)))
        .collect()
}

async fn place() -> Place {
    let hosts = (0..4).map(|at| host(&format!("h{at}"), &[(RACK, &format!("r{at}"))]));
    Place::with(&hosts.collect::<Vec<_>>()).await
}

async fn free(place: &Place, count: usize) {
    until("the inventory shows who is free", || async {
        let hosts = place.hosts().await;
        let free = hosts.iter().filter(|host| host.state() == HostState::Free);
        (free.count() == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_dies_anywhere_is_completed_once_by_the_next_platform() {
    let place = place().await;
    let before = written(&place).await;
    for (call, fault) in points("patch", 3) {
        let what = format!("{call:?} {}", fault.name());
        println!("{what}");
        let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
        let doomed = Doomed::over(&place).await;
        let died = doomed
            .dies(call, fault, async |place| {
                let _ = place.answer(&request).await;
            })
            .await;
        assert!(died, "{what} is reached");
        let nodes = until(&format!("{what}: the same request again"), || async {
            let answer = place.answer(&request).await.ok()?;
            (answer.nodes.len() == 3).then_some(answer.nodes)
        })
        .await;
        let ids: BTreeSet<&String> = nodes.iter().map(|node| &node.node_id).collect();
        let racks: BTreeSet<&String> = nodes.iter().map(|node| &node.failure_domain).collect();
        assert_eq!((ids.len(), racks.len()), (3, 3), "{what}");
        free(&place, 1).await;
        for node in &nodes {
            place.remove(node).await.unwrap();
        }
        assert_eq!(written(&place).await, before, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_repeats_is_released_by_its_owner() {
    let place = place().await;
    let before = written(&place).await;
    for (call, fault) in points("patch", 3) {
        let what = format!("{call:?} {}", fault.name());
        println!("{what}");
        let request = place.request(("blue", Uuid::new_v4()), 0..3, &[RACK]);
        let doomed = Doomed::over(&place).await;
        let died = doomed
            .dies(call, fault, async |place| {
                let _ = place.answer(&request).await;
            })
            .await;
        assert!(died, "{what} is reached");
        // What was claimed is shown with its owner, which is all that is needed to release it.
        for node in place.nodes().await {
            assert_eq!(node.cluster_id, "blue", "{what}");
            place.remove(&node).await.unwrap();
        }
        assert_eq!(written(&place).await, before, "{what}");
        free(&place, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_dies_anywhere_is_completed_by_the_next_platform() {
    let place = place().await;
    let before = written(&place).await;
    for (call, fault) in points("patch", 2).into_iter().chain(points("get", 2)) {
        let what = format!("{call:?} {}", fault.name());
        println!("{what}");
        let request = place.request(("blue", Uuid::new_v4()), 0..2, &[RACK]);
        let nodes = place.provision(&request).await.unwrap();
        let doomed = Doomed::over(&place).await;
        let died = doomed
            .dies(call, fault, async |place| {
                for node in &nodes {
                    let _ = place.remove(node).await;
                }
            })
            .await;
        assert!(died, "{what} is reached");
        for node in &nodes {
            until(&format!("{what}: the release again"), || async {
                place.remove(node).await.ok()
            })
            .await;
        }
        assert_eq!(written(&place).await, before, "{what}");
        free(&place, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_that_dies_anywhere_is_completed_by_the_next_platform() {
    let place = place().await;
    for (call, fault) in points("patch", 1) {
        let what = format!("{call:?} {}", fault.name());
        println!("{what}");
        let foreign = serde_json::json!({
            "sip.airshipit.org/cluster-namespace": "tenants",
            "sip.airshipit.org/cluster-name": "blue",
            "sip.airshipit.org/node-type": "ControlPlane",
        });
        place
            .merge("h0", serde_json::json!({"metadata": {"labels": foreign}}))
            .await;
        let found = until("it is a foreign node", || async {
            place.nodes().await.into_iter().next()
        })
        .await;
        let owner = Uuid::new_v4();
        let update = Update::Adoption(NodeAdoption {
            cluster_id: "tenants.blue".to_owned(),
            key: Some(SlotKey {
                owner: owner.to_string(),
                request_id: Uuid::new_v4().to_string(),
                index: Some(0),
            }),
            slot: Some(Slot {
                index: Some(0),
                id: "control-plane-0-x7k2p".to_owned(),
                name: "control-plane-0".to_owned(),
                ordinal: Some(0),
                role: NodeRole::Standby.into(),
                host_id: None,
            }),
            sequence: 7,
            group: "control-plane".to_owned(),
            spec_hash: "h1-x".to_owned(),
        });
        let doomed = Doomed::over(&place).await;
        let died = doomed
            .dies(call, fault, async |place| {
                let _ = place.update(&found, update.clone()).await;
            })
            .await;
        assert!(died, "{what} is reached");
        let node = until(&format!("{what}: again"), || async {
            let _ = place.update(&found, update.clone()).await;
            let ours = |slot: &SlotKey| slot.owner == owner.to_string();
            let mut nodes = place.nodes().await.into_iter();
            nodes.find(|node| node.slot.as_ref().is_some_and(ours))
        })
        .await;
        assert_eq!(
            (node.node_id.as_str(), node.role()),
            (found.node_id.as_str(), NodeRole::Standby)
        );
        assert_eq!(place.nodes().await.len(), 1, "{what}");
        place.remove(&node).await.unwrap();
        free(&place, 4).await;
    }
}
