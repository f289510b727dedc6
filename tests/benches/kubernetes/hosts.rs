//! Hosts of metal3: how soon a platform with many of them serves, beside a plain list; their memory; claims, beside plain
//! patches; and the choice alone.

use std::{collections::BTreeMap, time::Duration};

use drover_client::{Channel, PlatformClient};
use drover_platform::placement::hosts::{Availability, Candidate, choose};
use drover_platform_k8s::{PlatformServer, Settings, addons::AddonsSettings, settings::DriverKind};
use drover_proto::platform::v1::{
    Fence, GetPlatformRequest, Placement, ProvisionRequest, Spread,
    platform_service_client::PlatformServiceClient,
};
use drover_testing::{
    kubernetes::{Namespace, Raw, Rig, definitions},
    platform::requests,
};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    CONNECTIONS, PATIENCE, median,
    server::{Memory, Server},
};

/// Hosts in a page of the plain list: as many as kubectl asks for.
const PAGE: usize = 500;
/// Hosts in a rack.
const RACK: usize = 10;

fn path(namespace: &str) -> String {
    format!("/apis/metal3.io/v1alpha1/namespaces/{namespace}/baremetalhosts")
}

fn host(number: usize) -> Value {
    json!({
        "apiVersion": "metal3.io/v1alpha1",
        "kind": "BareMetalHost",
        "metadata": {
            "name": format!("host-{number:05}"),
            "labels": {"rack": format!("r{}", number / RACK), "slot": format!("s{number}"), "flavor": "worker"},
        },
        "spec": {
            "online": true,
            "bmc": {"address": "redfish+https://192.0.2.1/redfish/v1/Systems/1", "credentialsName": "bmc"},
        },
    })
}

/// A namespace with so many hosts.
async fn filled(rig: &Rig, count: usize) -> Namespace {
    let namespace = rig.namespace().await;
    definitions::define(&namespace.raw, &definitions::metal3()).await;
    let path = path(&namespace.name);
    shared(rig, count, async |raw, number| {
        raw.create(&path, &host(number)).await.unwrap();
    })
    .await;
    namespace
}

/// Does something for each number, over all connections.
async fn shared(rig: &Rig, count: usize, work: impl AsyncFn(&Raw, usize)) {
    let clients: Vec<Raw> = join_all((0..CONNECTIONS).map(|_| rig.raw())).await;
    let work = &work;
    let all = clients.iter().enumerate().map(|(client, raw)| async move {
        for number in (client..count).step_by(CONNECTIONS) {
            work(raw, number).await;
        }
    });
    join_all(all).await;
}

fn settings(rig: &Rig, namespace: &str) -> Settings {
    Settings {
        driver: DriverKind::Hosts,
        kubeconfig: Some(rig.kubeconfig().to_owned()),
        namespaces: vec![namespace.to_owned()],
        addons: AddonsSettings {
            kinds: Vec::new(),
            ..AddonsSettings::default()
        },
        // As many as on the other side.
        max_concurrent_calls: CONNECTIONS,
        ..Settings::default()
    }
}

/// All hosts, in pages.
async fn listed(raw: &Raw, namespace: &str) -> usize {
    let (mut count, mut token) = (0, String::new());
    loop {
        let page = format!("{}?limit={PAGE}&continue={token}", path(namespace));
        let list = raw.get(&page).await.unwrap();
        count += list["items"].as_array().unwrap().len();
        match list["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.clone_into(&mut token),
            _ => return count,
        }
    }
}

pub(crate) async fn start(rig: &Rig, count: usize, runs: usize) {
    let namespace = filled(rig, count).await;
    let raw = rig.raw().await;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let began = Instant::now();
        assert_eq!(listed(&raw, &namespace.name).await, count);
        plain.push(began.elapsed());
        let began = Instant::now();
        let server = PlatformServer::open(settings(rig, &namespace.name)).await;
        let server = server.unwrap();
        let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
        let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
        ours.push(began.elapsed());
        let domains = platform.into_inner().platform.unwrap().failure_domains;
        assert_eq!(domains.len(), count.div_ceil(RACK), "all hosts are known");
        server.shutdown().await;
    }
    let [ours, plain] = [ours, plain].map(median);
    println!("| hosts known, and served | Drover | plain list in pages of {PAGE} | ratio |");
    println!("|---|---|---|---|");
    println!(
        "| {count} | {ours:.2} s | {plain:.2} s | {:.2} |\n",
        ours / plain
    );

    let process = "{driver: hosts, addons: {kinds: []}}";
    let server = Server::start(rig.kubeconfig(), &namespace.name, process).await;
    let mut client = PlatformServiceClient::new(server.channel());
    client.get_platform(GetPlatformRequest {}).await.unwrap();
    let Memory { now, most } = server.memory();
    println!("| memory of drover-platform-k8s --driver hosts | now | most |");
    println!("|---|---|---|");
    println!("| {count} hosts | {now:.0} MiB | {most:.0} MiB |\n");
    drop(server);
    namespace.remove().await;
}

/// A request for so many hosts, at most one in each domain of these keys.
fn request(uid: &str, cluster: &str, count: usize, keys: &[&str]) -> ProvisionRequest {
    let fence = Fence {
        store_id: Uuid::new_v4().to_string(),
        shard: 0,
        epoch: 1,
    };
    let count = u32::try_from(count).unwrap();
    let mut request = requests::provision(uid, fence, (cluster, Uuid::new_v4()), "web", 0..count);
    let spread = |key: &&str| Spread {
        topology_key: (*key).to_owned(),
        max_per_domain: Some(1),
        ..Spread::default()
    };
    request.group.as_mut().unwrap().placement = Some(Placement {
        spread: keys.iter().map(spread).collect(),
        ..Placement::default()
    });
    request
}

async fn provision(channel: Channel, request: ProvisionRequest) -> usize {
    let client = PlatformClient::new(channel);
    let answer = client.provision(request, PATIENCE).await.unwrap();
    assert_eq!((answer.failures, answer.unknown), (vec![], vec![]));
    answer.nodes.len()
}

/// Claims as a plain client makes them: the same number of labels, one text of the same length.
async fn patch(raw: &Raw, namespace: &str, number: usize) {
    let labels: BTreeMap<String, String> = (0..8)
        .map(|label| (format!("bench/{label}"), format!("{number:036}")))
        .collect();
    let metadata = json!({"labels": labels, "annotations": {"bench/identity": "a".repeat(500)}});
    let path = format!("{}/host-{number:05}", path(namespace));
    raw.merge(&path, &json!({"metadata": metadata}))
        .await
        .unwrap();
}

pub(crate) async fn claims(rig: &Rig, count: usize, runs: usize) {
    let mut took: [Vec<Duration>; 4] = Default::default();
    for _ in 0..runs {
        for (side, took) in took.iter_mut().enumerate() {
            // As many racks as hosts are wanted of one cluster.
            let namespace = filled(rig, count * RACK).await;
            let server = PlatformServer::open(settings(rig, &namespace.name)).await;
            let server = server.unwrap();
            let channel = drover_client::in_process(server.routes());
            let mut client = PlatformServiceClient::new(channel.clone());
            let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
            let uid = platform.into_inner().platform.unwrap().uid;
            let one = rig.raw().await;
            let began = Instant::now();
            match side {
                0 => {
                    let claims = (0..count).map(|at| {
                        let request = request(&uid, &format!("cluster-{at}"), 1, &["rack"]);
                        provision(channel.clone(), request)
                    });
                    let made: usize = join_all(claims).await.into_iter().sum();
                    assert_eq!(made, count);
                }
                1 => {
                    let request = request(&uid, "cluster", count, &["rack", "slot"]);
                    assert_eq!(provision(channel.clone(), request).await, count);
                }
                2 => {
                    shared(rig, count, async |raw, number| {
                        patch(raw, &namespace.name, number).await;
                    })
                    .await;
                }
                _ => {
                    for number in 0..count {
                        patch(&one, &namespace.name, number).await;
                    }
                }
            }
            took.push(began.elapsed());
            server.shutdown().await;
            namespace.remove().await;
        }
    }
    let [many, one, shared, serial] = took.map(median);
    println!(
        "| {count} hosts of {} claimed | seconds | beside {CONNECTIONS} connections | beside one |",
        count * RACK
    );
    println!("|---|---|---|---|");
    for (name, it) in [
        ("by as many clusters, racks apart", many),
        ("by one cluster, racks and slots apart", one),
    ] {
        println!(
            "| {name} | {it:.2} s | {:.2} | {:.2} |",
            it / shared,
            it / serial
        );
    }
    println!("| plain patches over {CONNECTIONS} connections | {shared:.2} s | | |");
    println!("| plain patches over one connection | {serial:.2} s | | |\n");
}

/// The choice alone, without an API server.
pub(crate) fn choice(hosts: usize, count: usize, runs: usize) {
    let known: Vec<(String, BTreeMap<String, String>)> = (0..hosts)
        .map(|number| {
            let rack = format!("r{}", number / RACK);
            let labels = [
                ("rack".to_owned(), rack),
                ("slot".to_owned(), format!("s{number}")),
            ];
            (format!("host-{number:05}"), labels.into())
        })
        .collect();
    let candidates: Vec<Candidate<'_>> = known
        .iter()
        .map(|(id, labels)| Candidate {
            id,
            labels,
            failure_domain: &labels["rack"],
            availability: Availability::Free,
        })
        .collect();
    let placement = request("uid", "cluster", 1, &["rack", "slot"]);
    let placement = placement.group.unwrap().placement.unwrap();
    let took = (0..runs).map(|_| {
        let began = Instant::now();
        let chosen = choose(&candidates, &[], &placement, count).unwrap();
        assert_eq!(chosen.len(), count);
        began.elapsed()
    });
    let took = median(took.collect()) * 1e6 / count as f64;
    println!("| choice of {count} hosts of {hosts}, racks and slots apart | a host |");
    println!("|---|---|");
    println!("| | {took:.0} µs |\n");
}
