//! Hosts that are not as they should be, or change while nobody looks.

use drover_core::Reason;
use drover_platform_k8s::PlatformServer;
use drover_proto::{
    common::v1::LabelSelector,
    platform::v1::{HostState, Node, NodePhase, ProvisionRequest, RemovalEvidence},
};
use drover_testing::kubernetes::{Fault, On, Options, Rig, until};
use http::StatusCode;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Place, faults, host,
    place::{HOSTS, names, refused, settings},
};

/// A request for the host of this name, with an address on the network and credentials.
fn named(place: &Place, name: &str) -> ProvisionRequest {
    let mut request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    request.slots[0].host_id = Some(format!("{}/{name}", place.namespace.name));
    let properties = json!({"interfaces": ["oam-ipv4"], "requireBmcCredentials": true});
    let properties = drover_convert::value::to_struct(properties.as_object().unwrap());
    request.group.as_mut().unwrap().properties = Some(properties);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_secrets_of_a_host_is_named_and_never_repeated() {
    const NEEDLE: &str = "hunter2-hunter2";
    let network = |text: &str| json!({"stringData": {"networkData": text}});
    let one = "networks: [{id: oam-ipv4, ip_address: 192.0.2.7}]";
    let many = format!(
        "networks: [{}]",
        "{id: pxe, ip_address: 192.0.2.7}, ".repeat(25_000)
    );
    let wrong = [
        (
            "text",
            "networkdata",
            network(NEEDLE),
            "neither JSON nor YAML",
        ),
        (
            "elsewhere",
            "networkdata",
            network("networks: [{id: pxe, ip_address: 192.0.2.7}]"),
            "no address on interface oam-ipv4",
        ),
        (
            "twice",
            "networkdata",
            network(
                "networks: [{id: oam-ipv4, ip_address: 192.0.2.7}, {id: oam-ipv4, ip_address: 192.0.2.8}]",
            ),
            "two addresses on interface oam-ipv4",
        ),
        (
            "many",
            "networkdata",
            network(&many),
            "more than 256 networks",
        ),
        (
            "keyless",
            "networkdata",
            json!({"data": {"networkData": null}}),
            "has no key networkData",
        ),
        (
            "locked",
            "bmc",
            json!({"data": {"password": null}}),
            "has no key password",
        ),
    ];
    let mut hosts: Vec<Value> = wrong.iter().map(|(name, ..)| host(name, &[])).collect();
    hosts.push(host("large", &[]));
    let place = Place::with(&hosts).await;
    let change = async |name: &str, secret: &str, patch: &Value| {
        let path = format!("{}/{name}-{secret}", place.namespace.path("secrets"));
        place.namespace.raw.merge(&path, patch).await.unwrap();
    };
    // As large as a Secret can be.
    let large = format!("{one}\n#{}", "x".repeat(1_000_000));
    change("large", "networkdata", &network(&large)).await;
    for (name, secret, patch, _) in &wrong {
        change(name, secret, patch).await;
    }
    for (name, _, _, why) in &wrong {
        let error = refused(place.provision(&named(&place, name)).await);
        assert_eq!(error.reason(), Reason::NoCapacity, "{name}: {error}");
        assert!(error.message().contains(why), "{name}: {error}");
        assert!(!error.message().contains(NEEDLE), "{name}: {error}");
    }
    assert_eq!(place.nodes().await, vec![]);
    let nodes = place.provision(&named(&place, "large")).await.unwrap();
    assert_eq!(nodes[0].addresses[0].value, "192.0.2.7");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_went_or_changed_unseen_are_passed_over() {
    let fits = |name: &str| host(name, &[("fits", "yes")]);
    let (place, proxy) = faults::over(&["h0", "h1", "h2", "h3"].map(fits)).await;
    proxy.watches().until_running(HOSTS).await;
    proxy.watches().silence(HOSTS);
    place.namespace.raw.delete(&place.path("h0")).await.unwrap();
    let theirs = json!({"sip.airshipit.org/cluster-namespace": "t", "sip.airshipit.org/cluster-name": "red"});
    place
        .merge("h1", json!({"metadata": {"labels": theirs}}))
        .await;
    place
        .merge("h2", json!({"metadata": {"labels": {"fits": "no"}}}))
        .await;
    let before = [place.object("h1").await, place.object("h2").await];
    let mut request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let placement = request.group.as_mut().unwrap().placement.as_mut();
    placement.unwrap().selector = Some(LabelSelector {
        match_labels: [("fits".to_owned(), "yes".to_owned())].into(),
        ..LabelSelector::default()
    });
    assert_eq!(names(&place.provision(&request).await.unwrap()), ["h3"]);
    assert_eq!([place.object("h1").await, place.object("h2").await], before);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_kind_is_not_served_nothing_is_said_to_be_gone() {
    let (place, proxy) = faults::over(&[host("h0", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let mut removal = place.removal_of(&node).await;
    let page = (StatusCode::NOT_FOUND, json!("404 page not found"));
    for verb in ["get", "list", "watch", "patch"] {
        let fault = Fault::Refuse(page.0, page.1.clone());
        proxy.fail(On::call(verb, HOSTS).always(), fault);
    }
    proxy.watches().cut(HOSTS);
    place.try_nodes().await.unwrap_err();
    place.remove(&node).await.unwrap_err();
    let other = place.request(("red", Uuid::new_v4()), 0..1, &[]);
    place.provision(&other).await.unwrap_err();
    let mut settings = settings(Rig::shared(Options::default()), &place.namespace.name);
    settings.kubeconfig = Some(proxy.kubeconfig());
    let Err(error) = PlatformServer::open(settings).await else {
        panic!("a platform without hosts");
    };
    assert_eq!(error.reason(), Reason::Precondition, "{error}");
    assert!(error.message().contains("is metal3 installed?"), "{error}");
    let told = futures::poll!(std::pin::Pin::new(&mut removal));
    assert!(told.is_pending(), "nobody was told that the node is gone");
    proxy.heal();
    assert_eq!(place.nodes().await.len(), 1);
    place.remove(&node).await.unwrap();
    assert_eq!(removal.await, RemovalEvidence::Confirmed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_flips_between_states_stays_one_node() {
    let place = Place::with(&[host("h0", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let mut removal = place.removal_of(&node).await;
    for state in ["available", "inspecting", "provisioned", "deprovisioning"].repeat(5) {
        for health in ["OK", "error"] {
            let status = json!({"operationalStatus": health, "provisioning": {"state": state}});
            place.status("h0", status).await;
            let nodes = place.nodes().await;
            assert_eq!(nodes.len(), 1, "{state} {health}");
            assert_eq!(nodes[0].slot, node.slot, "{state} {health}");
            assert_eq!(nodes[0].phase(), NodePhase::Running, "{state} {health}");
        }
    }
    let told = futures::poll!(std::pin::Pin::new(&mut removal));
    assert!(told.is_pending(), "it has never been gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_identity_cannot_be_read_is_nobody_s_to_claim_or_release() {
    let place = Place::with(&[host("h0", &[])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &[]);
    let node = place.provision(&request).await.unwrap().remove(0);
    let unreadable = json!({"metadata": {"annotations": {"drover.dev/identity": "{"}}});
    place.merge("h0", unreadable).await;
    let unknown = |node: &Node| node.phase() == NodePhase::Unknown && node.slot.is_none();
    let shown = until("it is shown as it is", || async {
        place.nodes().await.into_iter().find(unknown)
    })
    .await;
    assert_eq!(shown.cluster_id, "blue");
    assert!(!shown.message.is_empty(), "why it is not known");
    let host = place
        .until_host("h0", |host| host.state() == HostState::Claimed)
        .await;
    assert_eq!(
        (host.cluster_id.as_str(), host.owner.as_str()),
        ("blue", "")
    );
    let before = place.object("h0").await;
    let error = refused(place.remove(&node).await);
    assert_eq!(error.reason(), Reason::NodeNotInCluster, "{error}");
    let other = place.request(("red", Uuid::new_v4()), 0..1, &[]);
    refused(place.provision(&other).await);
    assert_eq!(place.object("h0").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spread_over_a_key_that_no_host_has_is_refused_with_its_field() {
    let place = Place::with(&[host("h0", &[("rack", "r1")])]).await;
    let request = place.request(("blue", Uuid::new_v4()), 0..1, &["no-such"]);
    let error = refused(place.provision(&request).await);
    assert_eq!(error.reason(), Reason::Invalid, "{error}");
    let field = "group.placement.spread[0].topology_key";
    assert_eq!(error.fields()[0].field, field, "{error:?}");
}
