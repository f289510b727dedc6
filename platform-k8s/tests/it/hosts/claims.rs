//! Claims: whole or not at all, by one owner, and released without a trace. The names of bugs are those that research
//! found in SIP.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Reason, Result};
use drover_proto::platform::v1::{HostState, Node, ProvisionRequest};
use drover_testing::kubernetes::{Options, Rig, until};
use futures::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Place, faults, host,
    place::{HOSTS, add, names, refused},
};
use crate::process::Server;

fn labels(object: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default()
}

fn properties(request: &mut ProvisionRequest, properties: Value) {
    let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
    request.group.as_mut().unwrap().properties = Some(properties);
}

/// Two hosts in each of so many racks.
fn racks(count: usize) -> Vec<Value> {
    let pair = |rack: usize| {
        ["a", "b"].map(|side| {
            let rack = format!("r{rack}");
            host(
                &format!("{rack}-{side}"),
                &[("vino.airshipit.org/rack", &rack)],
            )
        })
    };
    (0..count).flat_map(pair).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_writes_labels_and_its_release_leaves_the_host_as_it_was() {
    let place = Place::with(&[host("h1", &[("rack", "r1"), ("tenant", "none")])]).await;
    let before = place.object("h1").await;
    let owner = Uuid::new_v4();
    let mut request = place.request(("blue", owner), 0..1, &["rack"]);
    properties(
        &mut request,
        json!({"interfaces": ["oam-ipv4"], "requireBmcCredentials": true, "hostLabels": {"tenant": "blue"}}),
    );
    let nodes = place.provision(&request).await.unwrap();
    let node = &nodes[0];
    assert_eq!(node.node_id, request.slots[0].id);
    assert_eq!(node.failure_domain, "r1");
    assert_eq!(node.addresses[0].interface, "oam-ipv4");
    let uid = before["metadata"]["uid"].as_str().unwrap();
    assert_eq!(node.provider_id, format!("metal3://{uid}"));
    let claimed = place.object("h1").await;
    let now = labels(&claimed);
    assert_eq!(now["drover.dev/owner"], owner.to_string());
    assert_eq!(now["drover.dev/cluster"], "blue");
    assert_eq!(now["drover.dev/role"], "active");
    assert_eq!(now["tenant"], "blue");
    assert_eq!(
        claimed["spec"], before["spec"],
        "nothing but labels is written"
    );

    place.remove(node).await.unwrap();
    let after = place.object("h1").await;
    assert_eq!(labels(&after), labels(&before));
    assert_eq!(
        after["metadata"]["annotations"],
        before["metadata"]["annotations"]
    );
    assert!(place.nodes().await.is_empty());
}

/// Bug A: scaling down claimed every host that matched.
#[tokio::test(flavor = "multi_thread")]
async fn removing_a_node_releases_its_host_and_claims_none() {
    let place = Place::with(&racks(5)).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..4, &["rack"]);
    let nodes = place.provision(&request).await.unwrap();
    place.remove(&nodes[3]).await.unwrap();
    assert_eq!(names(&place.nodes().await), names(&nodes[..3]));
    let free = place.hosts().await;
    let free = free.iter().filter(|host| host.state() == HostState::Free);
    assert_eq!(free.count(), 7);
}

/// Bug B: without a free host anywhere, a cluster that lacked nothing could not be scheduled.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_nodes_are_there_needs_no_free_host() {
    let place = Place::with(&racks(1)).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..2, &[]);
    let nodes = place.provision(&request).await.unwrap();
    assert_eq!(place.provision(&request).await.unwrap(), nodes);
}

/// Bug C: one host without its secret made the whole cluster impossible.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_its_secret_is_passed_over_and_named() {
    let place = Place::with(&racks(2)).await;
    for secret in ["r0-a-networkdata", "r0-b-bmc"] {
        place.namespace.delete("secrets", secret).await;
    }
    let ask = |ordinals: std::ops::Range<u32>| {
        let mut request = place.request(("blue", Uuid::new_v4()), ordinals, &[]);
        properties(
            &mut request,
            json!({"interfaces": ["oam-ipv4"], "requireBmcCredentials": true}),
        );
        request
    };
    let error = refused(place.provision(&ask(0..3)).await);
    assert_eq!(error.reason(), Reason::NoCapacity);
    let named = format!(
        "({}/r0-a: Secret r0-a-networkdata is missing, and 1 more)",
        place.namespace.name
    );
    assert!(error.message().contains(&named), "{error}");
    assert!(place.nodes().await.is_empty(), "nothing was claimed");
    let nodes = place.provision(&ask(3..5)).await.unwrap();
    assert_eq!(names(&nodes), ["r1-a", "r1-b"]);
}

/// Bug D: racks of hosts that were placed before did not count.
#[tokio::test(flavor = "multi_thread")]
async fn racks_of_nodes_that_are_placed_count_when_more_are_asked_for() {
    let place = Place::with(&racks(4)).await;
    let owner = Uuid::new_v4();
    let first = place.request(("blue", owner), 0..2, &["rack"]);
    place.provision(&first).await.unwrap();
    let more = place.request(("blue", owner), 2..4, &["rack"]);
    place.provision(&more).await.unwrap();
    let nodes = place.nodes().await;
    let racks: BTreeSet<&str> = nodes
        .iter()
        .map(|node| node.failure_domain.as_str())
        .collect();
    assert_eq!((nodes.len(), racks.len()), (4, 4));
    let fifth = place.request(("blue", owner), 4..5, &["rack"]);
    let error = refused(place.provision(&fifth).await);
    assert!(
        error
            .message()
            .contains("rack: 4 of 4 domains take no other node"),
        "{error}"
    );
}

/// Rounds of a race. `HOSTS_ROUNDS` makes them more.
fn rounds(usual: u32) -> u32 {
    let more = std::env::var("HOSTS_ROUNDS").ok();
    more.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The same hosts by way of two processes.
async fn two_processes(place: &Place) -> ([Place; 2], Vec<Server>) {
    let kubeconfig = Rig::shared(Options::default()).kubeconfig();
    let namespace = &place.namespace.name;
    let processes = [0, 1].map(|_| Server::start(kubeconfig, namespace, &["--driver", "hosts"]));
    let processes = futures::future::join_all(processes).await;
    let places = [0, 1].map(|at| place.by_way_of(processes[at].channel.clone()));
    (places, processes)
}

/// Bug G: two clusters gathered the same host.
#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_never_get_one_host_and_the_last_one_is_never_lost() {
    let direct = Place::with(&[host("last", &[])]).await;
    let ([one, other], _processes) = two_processes(&direct).await;
    for round in 0..rounds(20) {
        println!("round {round}");
        let blue = one.request(("blue", Uuid::new_v4()), 0..1, &[]);
        let red = other.request(("red", Uuid::new_v4()), 0..1, &[]);
        let (blue, red) = tokio::join!(one.provision(&blue), other.provision(&red));
        let won = match (blue, red) {
            (Ok(nodes), Err(error)) | (Err(error), Ok(nodes)) => {
                assert_eq!(error.reason(), Reason::NoCapacity, "{error}");
                nodes
            }
            both => panic!("one of the two: {both:?}"),
        };
        let place = if won[0].cluster_id == "blue" {
            &one
        } else {
            &other
        };
        place.remove(&won[0]).await.unwrap();
        for place in [&one, &other] {
            place
                .until_host("last", |host| host.state() == HostState::Free)
                .await;
        }
    }
}

/// Many clusters that want more hosts than there are, at once. Answers what each of them got.
async fn rush(places: &[Place; 2], clusters: &[(String, Uuid)]) -> Vec<Result<Vec<Node>>> {
    let asked = clusters.iter().enumerate().map(|(at, (name, owner))| {
        let place = &places[at % 2];
        let request = place.request((name, *owner), 0..4, &["rack"]);
        async move { place.provision(&request).await }
    });
    futures::future::join_all(asked).await
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clusters_at_once_leave_no_host_with_half_a_request() {
    let direct = Place::with(&racks(30)).await;
    let (places, _processes) = two_processes(&direct).await;
    for round in 0..rounds(8) / 4 {
        println!("round {round}");
        let clusters: Vec<(String, Uuid)> = (0..20)
            .map(|at| (format!("cluster-{at}"), Uuid::new_v4()))
            .collect();
        let outcomes = rush(&places, &clusters).await;
        let mut owned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let nodes = direct.nodes().await;
        for node in &nodes {
            let racks = owned.entry(node.cluster_id.clone()).or_default();
            let alone = racks.insert(node.failure_domain.clone());
            assert!(alone, "{} has two hosts in a rack", node.cluster_id);
        }
        for ((name, _), outcome) in clusters.iter().zip(&outcomes) {
            let racks = owned.remove(name).unwrap_or_default();
            match outcome {
                Ok(nodes) => assert_eq!((nodes.len(), racks.len()), (4, 4), "{name}"),
                Err(error) => {
                    assert_eq!(error.reason(), Reason::NoCapacity, "{error}");
                    assert!(racks.is_empty(), "{name} has half a request: {racks:?}");
                }
            }
        }
        let served = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!(
            (10..=15).contains(&served),
            "60 hosts are enough for 15 clusters; {served} got theirs"
        );
        for node in &nodes {
            direct.remove(node).await.unwrap();
        }
        for place in &places {
            until("all hosts are free", || async {
                let hosts = place.hosts().await;
                let mut states = hosts.iter().map(drover_proto::platform::v1::Host::state);
                states.all(|state| state == HostState::Free).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_repetition_of_a_request_that_was_whole_takes_no_host_from_its_cluster() {
    let place = Place::with(&racks(1)).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..2, &[]);
    let nodes = place.provision(&request).await.unwrap();
    let lost = names(&nodes[..1]).remove(0);
    let path = place.path(&lost);
    place.namespace.raw.delete(&path).await.unwrap();
    // Another server remembers nothing of the first answer.
    for place in [&place, &place.another().await] {
        let mut repetition = request.clone();
        repetition.expected_platform_uid.clone_from(&place.uid);
        let answer = place.answer(&repetition).await.unwrap();
        assert_eq!(answer.nodes, nodes[1..], "the other one serves");
        assert_eq!(answer.failures.len(), 1);
        assert_eq!(place.nodes().await, nodes[1..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_hold_is_never_claimed() {
    let place = Place::with(&[
        host(
            "sip",
            &[
                ("sip.airshipit.org/cluster-name", "red"),
                ("sip.airshipit.org/cluster-namespace", "t"),
            ],
        ),
        host(
            "old-sip",
            &[
                ("sip.airshipit.org/workload-cluster", "t_red"),
                ("sip.airshipit.org/scheduled", "true"),
            ],
        ),
        host("used", &[]),
        host("paused", &[]),
        host("free", &[]),
    ])
    .await;
    place.merge("used", json!({"spec": {"consumerRef": {"kind": "Metal3Machine", "namespace": "t", "name": "m1"}}})).await;
    place
        .merge(
            "paused",
            json!({"metadata": {"annotations": {"baremetalhost.metal3.io/paused": ""}}}),
        )
        .await;
    let used = place
        .until_host("used", |host| host.state() == HostState::Unavailable)
        .await;
    assert_eq!(used.message, "it is used by Metal3Machine t m1");
    place
        .until_host("paused", |host| host.state() == HostState::Unavailable)
        .await;
    let sip = place
        .until_host("sip", |host| host.state() == HostState::Claimed)
        .await;
    assert_eq!(sip.cluster_id, "t.red");
    let error = refused(
        place
            .provision(&place.request(("blue", Uuid::new_v4()), 0..2, &[]))
            .await,
    );
    assert!(
        error.message().contains("free: 3 hosts; usable: 1"),
        "{error}"
    );
    let nodes = place
        .provision(&place.request(("blue", Uuid::new_v4()), 0..1, &[]))
        .await
        .unwrap();
    assert_eq!(names(&nodes), ["free"]);
    let mut named = place.request(("blue", Uuid::new_v4()), 1..2, &[]);
    named.slots[0].host_id = Some(format!("{}/old-sip", place.namespace.name));
    let error = refused(place.provision(&named).await);
    assert_eq!(error.reason(), Reason::HostClaimed);
    assert!(error.message().contains("cluster t.red"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_changes_between_choice_and_write_is_chosen_again() {
    let place = Place::with(&racks(3)).await;
    let changing = async {
        for round in 0..200 {
            for name in ["r0-a", "r0-b", "r1-a", "r1-b"] {
                place
                    .merge(
                        name,
                        json!({"metadata": {"annotations": {"round": round.to_string()}}}),
                    )
                    .await;
            }
        }
    };
    let claiming = async {
        for _ in 0..10 {
            let request = place.request(("blue", Uuid::new_v4()), 0..3, &["rack"]);
            let nodes = place.provision(&request).await.unwrap();
            for node in &nodes {
                place.remove(node).await.unwrap();
            }
        }
    };
    tokio::pin!(changing);
    tokio::select! {
        () = claiming => {}
        () = &mut changing => panic!("the changes ended before the claims"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_host_belongs_to_another_owner_now_is_refused_and_claims_no_other() {
    let place = Place::with(&racks(1)).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let heir = Uuid::new_v4();
    place.take_over(&node, heir, &request.slots[0]).await;
    let error = refused(place.provision(&request).await);
    assert!(
        error.message().contains("belongs to another owner now"),
        "{error}"
    );
    let nodes = place.nodes().await;
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    assert_eq!(nodes[0].slot.clone().unwrap().owner, heir.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_host_is_claimed_as_soon_as_it_is_there() {
    let place = Place::with(&[]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let error = refused(place.provision(&request).await);
    assert_eq!(
        error.message(),
        "free: 0 hosts; 0 more hosts fit, 1 is wanted"
    );
    add(&place.namespace, &host("h1", &[])).await;
    place
        .until_host("h1", |host| host.state() == HostState::Free)
        .await;
    let again = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let claimed = drover_testing::kubernetes::until("the host is claimed", || async {
        place.provision(&again).await.ok()
    });
    assert_eq!(names(&claimed.await), ["h1"]);
}

/// The API server goes through all hosts for each list.
#[tokio::test(flavor = "multi_thread")]
async fn clusters_that_claim_at_the_same_time_share_their_lists() {
    const CLUSTERS: usize = 60;
    let hosts: Vec<_> = (0..CLUSTERS)
        .map(|at| host(&format!("h{at}"), &[]))
        .collect();
    let (place, proxy) = faults::over(&hosts).await;
    proxy.forget();
    let claims = (0..CLUSTERS).map(|at| {
        let place = &place;
        async move {
            let cluster = format!("cluster-{at}");
            let request = place.request((&cluster, Uuid::new_v4()), 0..1, &[]);
            let nodes = place.provision(&request).await.unwrap();
            nodes[0].host_id.clone().unwrap()
        }
    });
    let claimed: BTreeSet<String> = join_all(claims).await.into_iter().collect();
    assert_eq!(claimed.len(), CLUSTERS, "each has a host of its own");
    let lists = proxy.count("list", HOSTS);
    assert!(lists <= CLUSTERS / 4, "{lists} lists for {CLUSTERS} claims");
}
