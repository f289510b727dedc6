//! Many writers on one host, over two servers.

use std::collections::BTreeMap;

use drover_resources::parts::IngressRules;
use drover_resources_kubernetes::ingress::IngressBackends;
use drover_testing::seed;
use futures::future::join_all;

use super::{INGRESS, Place, by_name, by_path, kinds::Kind, path, shown};

const WRITERS: usize = 50;
const STEPS: usize = 20;

/// What one writer does, and what it leaves: path to name and service. No two share a path or a name.
async fn write(
    place: &Place,
    server: &IngressBackends,
    writer: usize,
    mut random: fastrand::Rng,
) -> BTreeMap<String, String> {
    let mut left: BTreeMap<String, (String, String)> = BTreeMap::new();
    for step in 0..STEPS {
        let at = format!("/w{writer}/{}", random.usize(..6));
        let name = format!("w{writer}-{}", random.usize(..4));
        let rule = match random.usize(..5) {
            0 => {
                left.remove(&at);
                IngressRules::remove(server, place.remove_request(by_path(&at))).await
            }
            1 => {
                left.retain(|_, (known, _)| *known != name);
                IngressRules::remove(server, place.remove_request(by_name(&name))).await
            }
            _ => {
                let service = if random.bool() { "one" } else { "two" };
                left.retain(|_, (known, _)| *known != name);
                left.insert(at.clone(), (name.clone(), service.to_owned()));
                let paths = vec![path(&at, &name, service)];
                IngressRules::upsert(server, place.upsert_request(paths)).await
            }
        };
        let rule = rule.unwrap_or_else(|error| panic!("writer {writer}, step {step}: {error}"));
        let own = format!("/w{writer}/");
        let mine: Vec<String> = shown(&rule)
            .into_iter()
            .filter(|it| it.starts_with(&own))
            .collect();
        assert_eq!(
            mine,
            lines(&left),
            "the answer shows the rule right after the change"
        );
    }
    left.into_iter()
        .map(|(at, (name, service))| (at, format!("{name} {service}")))
        .collect()
}

fn lines(left: &BTreeMap<String, (String, String)>) -> Vec<String> {
    left.iter()
        .map(|(at, (name, service))| format!("{at} {name} {service}"))
        .collect()
}

async fn no_update_is_lost(kind: Kind) {
    let mut random = fastrand::Rng::with_seed(seed::seed());
    let place = Place::of(kind).await;
    place.ingress(INGRESS, &[&place.host]).await.unwrap();
    let servers = [place.server().await, place.server().await];
    let writers =
        (0..WRITERS).map(|writer| write(&place, &servers[writer % 2], writer, random.fork()));
    let left = join_all(writers).await;
    let serial: BTreeMap<String, String> = left.into_iter().flatten().collect();
    let serial: Vec<String> = serial
        .into_iter()
        .map(|(at, rest)| format!("{at} {rest}"))
        .collect();
    assert!(!serial.is_empty());
    assert_eq!(place.rule().await.unwrap(), serial);
    if kind == Kind::HttpRoute {
        // What proxies read says the same as the annotation.
        let mut routed = 0;
        for route in place.objects().await {
            routed += route["spec"]["rules"].as_array().unwrap().len();
        }
        assert_eq!(routed, serial.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_of_fifty_writers_on_an_ingress_is_lost() {
    no_update_is_lost(Kind::Ingress).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_of_fifty_writers_on_http_routes_is_lost() {
    no_update_is_lost(Kind::HttpRoute).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_of_fifty_writers_on_a_virtual_service_is_lost() {
    no_update_is_lost(Kind::VirtualService).await;
}
