//! Network, address and firewall of a cluster: created once, and released completely from every intermediate state.

mod crashes;
pub(crate) mod faults;

use std::time::Duration;

use drover_core::Reason;
use drover_emulators::{Settings as Common, metal::MetalSettings};
use drover_proto::platform::v1::{
    FirewallRule, FirewallSpec, InfrastructureSpec, NetworkSpec, ResourcePhase,
};

use serde_json::json;

use super::bench::{Bench, INTERNET, NAMED_FIREWALL, PARTITION, PROJECT, https, whole};

fn slow() -> MetalSettings {
    MetalSettings {
        common: Common {
            pending_delay: Duration::from_millis(120),
            stopping_delay: Duration::from_millis(120),
            ..Common::default()
        },
        ..MetalSettings::default()
    }
}

fn text(state: &drover_proto::platform::v1::InfrastructureState, key: &str) -> String {
    let properties = state.outputs.as_ref().unwrap().properties.as_ref().unwrap();
    match properties
        .fields
        .get(key)
        .and_then(|value| value.kind.clone())
    {
        Some(prost_types::value::Kind::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

/// Nodes would wait for it for ever.
#[tokio::test]
async fn an_entry_that_only_sets_properties_is_done_at_once() {
    let bench = Bench::new().await;
    let properties = json!({ "partition": PARTITION });
    let spec = InfrastructureSpec {
        properties: Some(drover_convert::value::to_struct(
            properties.as_object().unwrap(),
        )),
        ..InfrastructureSpec::default()
    };
    let answer = bench.ensure(&spec).await.unwrap();
    assert_eq!(answer.state.unwrap().phase(), ResourcePhase::Gone);
    assert_eq!(answer.poll_after, None);
}

#[tokio::test]
async fn it_is_made_in_order_and_ready_only_when_the_firewall_is_up() {
    let bench = Bench::with(slow()).await;
    let first = bench.ensure(&whole()).await.unwrap();
    let state = first.state.unwrap();
    assert_eq!(
        state.phase(),
        ResourcePhase::Pending,
        "the firewall is being installed"
    );
    assert!(first.poll_after.is_some());
    let firewall = state
        .resources
        .iter()
        .find(|r| r.kind == "firewall")
        .unwrap();
    assert!(firewall.message.contains("being installed"), "{firewall:?}");

    let state = bench.ensure_whole(&whole()).await;
    assert_eq!(state.phase(), ResourcePhase::Ready);
    let requests = bench.metal.control().requests();
    let made: Vec<&str> = requests
        .iter()
        .map(|request| request.operation.as_str())
        .filter(|operation| operation.ends_with(".allocate"))
        .collect();
    assert_eq!(
        made,
        ["network.allocate", "ip.allocate", "firewall.allocate"]
    );
    let outputs = state.outputs.clone().unwrap();
    assert_eq!(outputs.endpoint.unwrap().port, 6443);
    assert_eq!(text(&state, "public_network"), INTERNET);
    assert_eq!(text(&state, "partition"), PARTITION);
    assert_eq!(text(&state, "project"), PROJECT);
    assert_eq!(
        bench.resources().await.len(),
        4,
        "and the network that was there before"
    );

    bench.release_whole().await;
    let requests = bench.metal.control().requests();
    let freed: Vec<&str> = requests
        .iter()
        .map(|request| request.operation.as_str())
        .filter(|operation| operation.ends_with(".free"))
        .collect();
    assert_eq!(
        (freed[0], freed[1], freed[2]),
        ("machine.free", "ip.free", "network.free")
    );
    bench.assert_all_gone("released").await;
}

#[tokio::test]
async fn a_fixed_address_that_is_ours_is_used_and_one_of_another_is_refused() {
    let bench = Bench::new().await;
    let mut spec = whole();
    spec.endpoint.as_mut().unwrap().host = "100.255.254.9".to_owned();
    let state = bench.ensure_whole(&spec).await;
    assert_eq!(
        state.outputs.unwrap().endpoint.unwrap().host,
        "100.255.254.9"
    );

    let mut other = Bench::new().await;
    other.settings.url = bench.metal.url();
    other.crash().await;
    let error = other.ensure(&spec).await.unwrap_err();
    assert_eq!(error.reason(), Reason::NotOwned);
    assert!(
        error.message().contains("100.255.254.9") && error.message().contains("metalctl"),
        "{error}"
    );
    assert_eq!(other.objection(&spec).await.reason(), Reason::NotOwned);
    other.release_whole().await;
    assert_eq!(
        bench.living("firewall").len(),
        1,
        "what is not theirs is left alone"
    );
    let living = bench
        .made()
        .iter()
        .filter(|made| !made.gone && made.tags.contains_key("drover.dev/endpoint-port"))
        .count();
    assert_eq!(living, 1);

    spec.endpoint.as_mut().unwrap().host = "8.8.8.8".to_owned();
    let outside = Bench::new().await;
    let error = outside.ensure(&spec).await.unwrap_err();
    assert_eq!(error.fields()[0].field, "spec.endpoint.host");
    outside.release_whole().await;
    outside.assert_all_gone("outside").await;
}

#[tokio::test]
async fn machines_behind_a_firewall_reach_what_its_rules_let_out_and_nothing_else() {
    let bench = Bench::new().await;
    let mut spec = whole();
    spec.firewall.as_mut().unwrap().rules.clear();
    for error in [
        bench.objection(&spec).await,
        bench.ensure(&spec).await.unwrap_err(),
    ] {
        assert_eq!(error.fields()[0].field, "spec.firewall.rules", "{error}");
    }
    assert!(bench.made().is_empty());
    let properties = serde_json::json!({"egress": "default"});
    spec.properties = properties.as_object().map(drover_convert::value::to_struct);
    let state = bench.ensure_whole(&spec).await;
    let network = state.outputs.unwrap().network_id;
    let reached: Vec<(&str, u16)> = ["tcp", "udp"]
        .into_iter()
        .flat_map(|protocol| (1..1024).map(move |port| (protocol, port)))
        .filter(|(protocol, port)| bench.metal.forwards(&network, protocol, *port))
        .collect();
    let wanted = [
        ("tcp", 53),
        ("tcp", 80),
        ("tcp", 443),
        ("udp", 53),
        ("udp", 123),
    ];
    assert_eq!(reached, wanted);
    bench.ensure_whole(&spec).await;
    bench.assert_nothing_doubled("egress");
    bench.release_whole().await;
    bench.assert_all_gone("egress").await;
}

#[tokio::test]
async fn a_given_network_is_used_and_never_freed() {
    let bench = Bench::new().await;
    let id = bench.settings.private_network.clone();
    let spec = InfrastructureSpec {
        network: Some(NetworkSpec {
            id: id.clone(),
            ..NetworkSpec::default()
        }),
        ..whole()
    };
    let state = bench.ensure_whole(&spec).await;
    assert_eq!(state.outputs.unwrap().network_id, id);
    assert_eq!(bench.metal.control().count("network.allocate"), 0);
    bench.release_whole().await;
    bench.assert_all_gone("given").await;
    assert!(
        bench
            .resources()
            .await
            .iter()
            .any(|resource| resource.id == id && resource.owner.is_empty())
    );
}

#[tokio::test]
async fn a_named_machine_becomes_the_firewall_if_it_is_nobodys() {
    let bench = Bench::new().await;
    let spec = InfrastructureSpec {
        firewall: Some(FirewallSpec {
            host: format!("metalstack://{NAMED_FIREWALL}"),
            ..whole().firewall.unwrap()
        }),
        ..whole()
    };
    let state = bench.ensure_whole(&spec).await;
    let firewall = state
        .resources
        .iter()
        .find(|r| r.kind == "firewall")
        .unwrap();
    assert_eq!(firewall.id, NAMED_FIREWALL);
    bench.release_whole().await;
    bench.assert_all_gone("named").await;

    let mut taken = spec.clone();
    let theirs = bench.metal.add_foreign(PROJECT, 1).remove(0);
    taken.firewall.as_mut().unwrap().host = theirs.clone();
    for error in [
        bench.objection(&taken).await,
        bench.ensure(&taken).await.unwrap_err(),
    ] {
        assert_eq!(error.reason(), Reason::HostClaimed);
        assert!(error.message().contains(&theirs), "{error}");
    }
    bench.release_whole().await;
    assert!(
        bench
            .metal
            .machines()
            .iter()
            .any(|machine| machine.id == theirs),
        "it was left alone"
    );
    taken.firewall.as_mut().unwrap().host = "00000000-1111-4222-8333-444444444444".to_owned();
    assert_eq!(
        bench.ensure(&taken).await.unwrap_err().reason(),
        Reason::HostNotFound
    );
}

#[tokio::test]
async fn what_blocks_a_release_is_named_and_it_goes_on_when_that_is_gone() {
    let bench = Bench::with(slow()).await;
    let state = bench.ensure_whole(&whole()).await;
    let mut request = bench.request_with("control-plane", 1, &serde_json::json!({}));
    request.infrastructure = state.outputs.into_iter().collect();
    let node = bench.made_by(&request).await.remove(0);
    super::bench::until("only the machine is in the way", || async {
        let state = bench.release().await.ok()?.state?;
        let network = state
            .resources
            .iter()
            .find(|r| r.kind == "network")?
            .clone();
        let endpoint = state
            .resources
            .iter()
            .find(|r| r.kind == "endpoint")?
            .clone();
        (network.message.contains(&node.node_id) && endpoint.message.contains(&node.node_id))
            .then_some(())
    })
    .await;
    assert_eq!(bench.living("network").len(), 1);
    bench.deprovision(&bench.removal(&node)).await.unwrap();
    bench.release_whole().await;
    bench.assert_all_gone("blocked no more").await;
}

#[tokio::test]
async fn a_locked_firewall_is_not_freed_and_says_why() {
    let bench = Bench::new().await;
    let state = bench.ensure_whole(&whole()).await;
    let id = state
        .resources
        .iter()
        .find(|r| r.kind == "firewall")
        .unwrap()
        .id
        .clone();
    bench.metal.lock_by_hand(&id, true);
    let state = bench.release().await.unwrap().state.unwrap();
    let firewall = state
        .resources
        .iter()
        .find(|r| r.kind == "firewall")
        .unwrap();
    assert!(firewall.message.contains("unlock"), "{firewall:?}");
    assert_eq!(bench.living("firewall").len(), 1);
    bench.metal.lock_by_hand(&id, false);
    bench.release_whole().await;
    bench.assert_all_gone("unlocked").await;
}

#[tokio::test]
async fn what_cannot_be_changed_is_refused_with_its_field() {
    let bench = Bench::new().await;
    bench.ensure_whole(&whole()).await;
    let with = |change: &dyn Fn(&mut InfrastructureSpec)| {
        let mut spec = whole();
        change(&mut spec);
        spec
    };
    let firewall = |spec: &mut InfrastructureSpec, change: &dyn Fn(&mut FirewallSpec)| {
        change(spec.firewall.as_mut().unwrap());
    };
    let rule = FirewallRule {
        protocol: "udp".to_owned(),
        ..https()
    };
    let table: [(&str, InfrastructureSpec); 6] = [
        (
            "spec.network.prefix_length",
            with(&|spec| spec.network.as_mut().unwrap().prefix_length = Some(25)),
        ),
        (
            "spec.network.public",
            with(&|spec| spec.network.as_mut().unwrap().public = "internet".to_owned()),
        ),
        (
            "spec.endpoint.host",
            with(&|spec| spec.endpoint.as_mut().unwrap().host = "100.255.254.200".to_owned()),
        ),
        (
            "spec.firewall.node_class",
            with(&|spec| firewall(spec, &|f| f.node_class = "c1-large-x86".to_owned())),
        ),
        (
            "spec.firewall.image",
            with(&|spec| firewall(spec, &|f| f.image = "firewall-ubuntu-3.0".to_owned())),
        ),
        (
            "spec.firewall.rules",
            with(&|spec| firewall(spec, &|f| f.rules = vec![rule.clone()])),
        ),
    ];
    for (field, spec) in table {
        let error = bench.ensure(&spec).await.unwrap_err();
        assert_eq!(
            (error.reason(), error.fields()[0].field.as_str()),
            (Reason::Immutable, field),
            "{error}"
        );
    }
    bench.assert_nothing_doubled("immutable");
}

#[tokio::test]
async fn wrong_wishes_are_named_and_nothing_is_made() {
    let bench = Bench::new().await;
    let with = |change: &dyn Fn(&mut InfrastructureSpec)| {
        let mut spec = whole();
        change(&mut spec);
        spec
    };
    let property = |key: &str, value: &str| {
        let said = serde_json::json!({ key: value });
        with(&|spec| {
            spec.properties = Some(drover_convert::value::to_struct(said.as_object().unwrap()));
        })
    };
    let network = |network: NetworkSpec| with(&|spec| spec.network = Some(network.clone()));
    let table = [
        (
            "spec.properties.partition",
            property("partition", "nowhere"),
        ),
        ("spec.properties.project", property("project", "another")),
        ("spec.properties.vlan", property("vlan", "7")),
        ("spec.properties.egress", property("egress", "all")),
        ("spec.properties.endpointBy", property("endpointBy", "dns")),
        (
            "spec.firewall.rules",
            with(&|spec| spec.firewall.as_mut().unwrap().rules.clear()),
        ),
        (
            "spec.network.cidr",
            network(NetworkSpec {
                cidr: "10.9.0.0/22".to_owned(),
                ..NetworkSpec::default()
            }),
        ),
        (
            "spec.network.id",
            network(NetworkSpec {
                id: "nothing".to_owned(),
                ..NetworkSpec::default()
            }),
        ),
        (
            "spec.network.id",
            network(NetworkSpec {
                id: INTERNET.to_owned(),
                ..NetworkSpec::default()
            }),
        ),
        ("spec.network", with(&|spec| spec.network = None)),
        (
            "spec.endpoint.host",
            with(&|spec| spec.endpoint.as_mut().unwrap().host = "api.example".to_owned()),
        ),
        (
            "spec.network.public",
            network(NetworkSpec {
                public: "nowhere".to_owned(),
                ..NetworkSpec::default()
            }),
        ),
        (
            "spec.firewall.image",
            with(&|spec| spec.firewall.as_mut().unwrap().image = "ubuntu-24.4".to_owned()),
        ),
        (
            "spec.firewall.image",
            with(&|spec| spec.firewall.as_mut().unwrap().image = "nothing".to_owned()),
        ),
        (
            "spec.firewall.node_class",
            with(&|spec| spec.firewall.as_mut().unwrap().node_class = "nothing".to_owned()),
        ),
        (
            "spec.firewall.host",
            with(&|spec| spec.firewall.as_mut().unwrap().host = "node-1".to_owned()),
        ),
    ];
    for (field, spec) in table {
        let error = bench.objection(&spec).await;
        assert_eq!(
            error.fields().first().map(|f| f.field.as_str()),
            Some(field),
            "{error}"
        );
    }
    assert!(bench.made().is_empty());
}
