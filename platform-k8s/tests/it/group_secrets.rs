//! The Secrets of a group: certificates, and what an application needs.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_proto::platform::v1::{DeprovisionState, Node, ProvisionRequest, Storage};
use drover_testing::{
    kubernetes::until,
    platform::{caller::told, requests},
};
use serde_json::{Value, json};
use uuid::Uuid;
use x509_parser::pem::Pem;

use crate::{
    adoption::adoption,
    bench::{Bench, attributes},
};

type Contents = BTreeMap<String, BTreeMap<String, String>>;

/// Content of the Secrets of the only group, by what their names say they are, once there are all.
async fn secrets(bench: &Bench) -> Contents {
    until("there are all Secrets", || async {
        let found = bench.namespace.list("secrets").await;
        let all: BTreeMap<_, _> = found.iter().map(|it| (end(it), content(it))).collect();
        (all.len() == 4).then_some(all)
    })
    .await
}

fn end(secret: &Value) -> String {
    let name = secret["metadata"]["name"].as_str().unwrap();
    let end = name.rsplit('-').next().unwrap();
    // Nodes have one of their own, whose name has a hash.
    let is_login = end == "app" && !secret["data"].as_object().unwrap().contains_key("host");
    if is_login { "login" } else { end }.to_owned()
}

fn content(secret: &Value) -> BTreeMap<String, String> {
    let data = secret["data"].as_object().unwrap().iter();
    data.map(|(key, text)| {
        let text = BASE64.decode(text.as_str().unwrap()).unwrap();
        (key.clone(), String::from_utf8(text).unwrap())
    })
    .collect()
}

/// The whole name of one of them.
async fn name(bench: &Bench, ending: &str) -> String {
    let found = bench.namespace.list("secrets").await;
    let found = found.iter().find(|it| end(it) == ending).unwrap();
    found["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Whether whoever trusts an authority accepts the first certificate of a file for a host.
fn accepts(trusted: &str, certificate: &str, host: &str) -> bool {
    let (_, own) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).unwrap();
    let own = own.parse_x509().unwrap();
    let names = own.subject_alternative_name().unwrap().unwrap();
    let named = names.value.general_names.iter().any(
        |name| matches!(name, x509_parser::extensions::GeneralName::DNSName(it) if *it == host),
    );
    let signed = Pem::iter_from_buffer(trusted.as_bytes()).any(|authority| {
        let authority = authority.unwrap();
        let authority = authority.parse_x509().unwrap();
        own.verify_signature(Some(authority.public_key())).is_ok()
    });
    named && signed && own.validity().is_valid()
}

/// Content of the Secrets once there is another authority than before, and nodes trust both.
async fn until_both_are_trusted(bench: &Bench, before: &Contents) -> Contents {
    until("both authorities are trusted", || async {
        let now = secrets(bench).await;
        let both = [&now["ca"]["ca.crt"], &before["ca"]["ca.crt"]];
        let trusted = both
            .iter()
            .all(|it| now["tls"]["ca.crt"].contains(it.as_str()));
        (both[0] != both[1] && trusted).then_some(now)
    })
    .await
}

async fn remove(bench: &Bench, nodes: &[Node]) {
    for node in nodes {
        bench.remove(node, "the last node").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_has_certificates_and_an_access_that_outlive_its_nodes() {
    let bench = Bench::with(|settings| settings.unschedulable_timeout_seconds = 1.0).await;
    let (_, nodes) = bench.make("secured", 2).await;
    let first = secrets(&bench).await;
    let (tls, app) = (&first["tls"], &first["app"]);
    let service = app["host"].clone();
    assert!(service.ends_with(&format!(".{}.svc", bench.namespace.name)));
    assert!(accepts(&first["ca"]["ca.crt"], &tls["tls.crt"], &service));
    assert_eq!(tls["ca.crt"], first["ca"]["ca.crt"]);
    assert_eq!(app["ca.crt"], first["ca"]["ca.crt"]);
    assert_eq!(
        app["uri"],
        format!("postgresql://app:{}@{service}:7000/app", app["password"])
    );
    assert!(app["password"].len() >= 32);
    let login = [
        ("dbname", "app"),
        ("password", &app["password"]),
        ("user", "app"),
    ];
    let login = login.map(|(key, text)| (key.to_owned(), text.to_owned()));
    assert_eq!(first["login"], BTreeMap::from(login));
    // Another node, and another platform, change nothing.
    bench.reborn().await;
    let (_, more) = bench.make("secured", 1).await;
    remove(&bench, &nodes).await;
    assert_eq!(secrets(&bench).await, first);
    remove(&bench, &more).await;
    bench.namespace.until_empty("Secrets of a group").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_somebody_deletes_is_made_anew() {
    let bench = Bench::start().await;
    bench.make("secured", 1).await;
    let first = secrets(&bench).await;
    let service = first["app"]["host"].clone();
    let tls = name(&bench, "tls").await;
    bench.namespace.delete("secrets", &tls).await;
    let second = until("there is another certificate", || async {
        let now = secrets(&bench).await;
        (now["tls"] != first["tls"]).then_some(now)
    })
    .await;
    assert!(accepts(
        &first["ca"]["ca.crt"],
        &second["tls"]["tls.crt"],
        &service
    ));
    // Of another authority the nodes hear before they show what it has issued.
    let ca = name(&bench, "ca").await;
    bench.namespace.delete("secrets", &ca).await;
    let third = until_both_are_trusted(&bench, &first).await;
    assert_eq!(third["tls"]["tls.crt"], second["tls"]["tls.crt"]);
    until("clients trust both", || async {
        let now = secrets(&bench).await;
        (now["app"]["ca.crt"] == now["tls"]["ca.crt"]).then_some(())
    })
    .await;
    assert_eq!(third["app"]["password"], first["app"]["password"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_somebody_writes_is_passed_on() {
    let bench = Bench::start().await;
    bench.make("secured", 1).await;
    secrets(&bench).await;
    let app = name(&bench, "app").await;
    let written = json!({"stringData": {"password": "it's mine/ours"}});
    bench
        .namespace
        .merge("secrets", &app, &written)
        .await
        .unwrap();
    until("nodes and applications have it", || async {
        let now = secrets(&bench).await;
        let encoded = now["app"]["uri"].contains(":it%27s%20mine%2Fours@");
        (encoded && now["login"]["password"] == "it's mine/ours").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_somebody_else_is_left_alone_and_no_node_takes_a_word_of_it() {
    let bench = Bench::start().await;
    bench.make("secured", 1).await;
    let before = secrets(&bench).await;
    let app = name(&bench, "app").await;
    let labels = json!({"drover.dev/owner": "somebody", "app.kubernetes.io/managed-by": "them"});
    let theirs = json!({"metadata": {"labels": labels}, "stringData": {"password": "theirs"}});
    bench
        .namespace
        .merge("secrets", &app, &theirs)
        .await
        .unwrap();
    let own = name(&bench, "tls").await;
    bench.namespace.delete("secrets", &own).await;
    let now = until("the platform has written what is its own", || async {
        let found = bench.namespace.list("secrets").await;
        let now: BTreeMap<_, _> = found.iter().map(|it| (end(it), content(it))).collect();
        let is_new = |tls: &BTreeMap<String, String>| *tls != before["tls"];
        now.get("tls").is_some_and(is_new).then_some(now)
    })
    .await;
    assert_eq!(now["login"], before["login"]);
    assert_eq!(now["app"]["password"], "theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_is_made_when_a_person_asks_for_it() {
    let bench = Bench::start().await;
    bench.make("secured", 1).await;
    let before = secrets(&bench).await;
    let ca = name(&bench, "ca").await;
    let asked = json!({"metadata": {"annotations": {"drover.dev/renew": "now"}}});
    bench.namespace.merge("secrets", &ca, &asked).await.unwrap();
    let now = until_both_are_trusted(&bench, &before).await;
    // For servers that do not know it yet, as those that are made now.
    assert_eq!(now["ca"]["former.key"], before["ca"]["ca.key"]);
    assert_eq!(now["tls"]["tls.crt"], before["tls"]["tls.crt"]);
    bench.reborn().await;
    bench.make("secured", 1).await;
    assert_eq!(secrets(&bench).await["ca"], now["ca"], "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_told_once_all_pods_ask_for_it_and_nothing_is_written_again_until_then() {
    let bench = Bench::start().await;
    let (mut request, _) = bench.make("secured", 1).await;
    let before = secrets(&bench).await;
    attributes(&mut request, json!({"user": "shop"}));
    let other = bench.request("secured", 1).await;
    let group = request.group.take();
    let request = ProvisionRequest { group, ..other };
    let nodes = bench.whole(&request, "another user").await;
    let app = name(&bench, "app").await;
    let pods = until("the platform has told both pods of each other", || async {
        let pod = bench.namespace.get("pods", &nodes[0].node_id).await.ok()?;
        let peers = pod["metadata"]["annotations"]["drover.dev/peers"].as_str()?;
        let peers: Vec<Value> = serde_json::from_str(peers).ok()?;
        (peers.len() == 2).then_some(peers)
    })
    .await;
    assert_eq!(secrets(&bench).await, before, "{pods:?}");
    // Nothing is written again and again.
    let version = async || {
        let secret = bench.namespace.get("secrets", &app).await.unwrap();
        secret["metadata"]["resourceVersion"].clone()
    };
    let first = version().await;
    let (_, all) = (bench.reborn().await, bench.nodes().await);
    let old = all
        .iter()
        .find(|node| node.node_id != nodes[0].node_id)
        .unwrap();
    assert_eq!(version().await, first);
    bench.remove(old, "that of before").await;
    until("the other user is told", || async {
        let now = secrets(&bench).await;
        (now["app"]["user"] == "shop" && now["login"]["user"] == "shop").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_go_with_the_nodes_to_another_owner() {
    let bench = Bench::with(|settings| settings.unschedulable_timeout_seconds = 1.0).await;
    let (_, nodes) = bench.make("secured", 2).await;
    bench.until_running().await;
    let before = secrets(&bench).await;
    let heir = Uuid::new_v4();
    for node in &nodes {
        let request = adoption(&bench, node, heir).await;
        bench.update(&request).await.unwrap();
    }
    until("all are the heir's", || async {
        let found = bench.namespace.list("secrets").await;
        let of = |it: &Value| it["metadata"]["labels"]["drover.dev/owner"] == heir.to_string();
        (found.len() == 4 && found.iter().all(of)).then_some(())
    })
    .await;
    assert_eq!(secrets(&bench).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_back_to_kept_storage_is_let_in_as_before() {
    let bench = Bench::with(|settings| settings.unschedulable_timeout_seconds = 1.0).await;
    let mut request = bench.request("secured", 1).await;
    request.storage = Some(Storage {
        size_bytes: Some(1 << 30),
        class: String::new(),
    });
    let node = bench.whole(&request, "storage").await.remove(0);
    let first = secrets(&bench).await;
    let uid = bench.platform().await.uid;
    let mut removal = requests::removal(&uid, bench.fence(), &node);
    removal.retain_storage = true;
    until("the node is gone", || async {
        let answer = told(bench.client().deprovision(removal.clone()).await).ok()?;
        (answer.state() == DeprovisionState::Gone).then_some(())
    })
    .await;
    until("its service is gone", || async {
        bench
            .namespace
            .list("services")
            .await
            .is_empty()
            .then_some(())
    })
    .await;
    assert_eq!(secrets(&bench).await, first);
    for claim in bench.namespace.list("persistentvolumeclaims").await {
        let name = claim["metadata"]["name"].as_str().unwrap();
        bench.namespace.delete("persistentvolumeclaims", name).await;
    }
    until("nothing is left to come back to", || async {
        bench
            .namespace
            .list("secrets")
            .await
            .is_empty()
            .then_some(())
    })
    .await;
}
