//! The conformance suite for platforms over a real API server, with kubelets emulated by kwok.

use crate::bench;

use std::sync::Arc;

use bench::{rig, settings};
use drover_platform_k8s::{PlatformServer, Settings, addons::AddonsSettings};
use drover_proto::platform::v1::{
    DeprovisionRequest, DiscoverRequest, Fence, GetPlatformRequest,
    platform_service_client::PlatformServiceClient,
};
use drover_testing::kubernetes::{Namespace, Rig, until};
use drover_testing::platform::{Hook, Subject, conformance};
use drover_testing::wait::PATIENCE;
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::json;
use uuid::Uuid;

type Current = Arc<Mutex<Arc<PlatformServer>>>;

async fn open(rig: &Rig, settings: &Settings) -> Arc<PlatformServer> {
    let settings = Settings {
        kubeconfig: Some(rig.kubeconfig().to_path_buf()),
        ..settings.clone()
    };
    Arc::new(PlatformServer::open(settings).await.unwrap())
}

fn subject(current: &Current, settings: &Settings, namespace: &Arc<Namespace>) -> Subject {
    let server = Arc::clone(current);
    let mut subject = Subject::new(move || drover_client::in_process(server.lock().routes()));
    subject.patience = PATIENCE;
    subject.version = "1".to_owned();
    subject.unknown_store = Some("no-such-store".to_owned());
    subject.fuzz_rounds = 100;
    let foreign = Arc::clone(namespace);
    let labels = settings.labels.clone();
    subject.make_foreign = Some(Arc::new(move || {
        let (namespace, labels) = (Arc::clone(&foreign), labels.clone());
        async move {
            let name = format!("foreign-{}", &Uuid::new_v4().simple().to_string()[..8]);
            let cluster = "somebody-elses";
            let mut metadata = json!({"labels": {"app": "theirs"}});
            metadata["labels"][&labels.cluster] = cluster.into();
            namespace.pod(&name, metadata).await;
            (cluster.to_owned(), name)
        }
        .boxed()
    }));
    let (server, settings) = (Arc::clone(current), settings.clone());
    subject.restart = Some(Arc::new(move || {
        let (server, settings) = (Arc::clone(&server), settings.clone());
        async move {
            let before = Arc::clone(&server.lock());
            before.shutdown().await;
            let after = open(rig(), &settings).await;
            *server.lock() = after;
        }
        .boxed()
    }));
    subject
}

pub(crate) fn foreign_addon(namespace: &Arc<Namespace>) -> Hook<(String, String)> {
    let namespace = Arc::clone(namespace);
    Arc::new(move || {
        let namespace = Arc::clone(&namespace);
        async move {
            let name = format!("foreign-{}", &Uuid::new_v4().simple().to_string()[..8]);
            let labels = json!({"drover.dev/addon": name, "drover.dev/addon-cluster": "theirs"});
            let map = json!({"metadata": {"name": name, "labels": labels}});
            namespace.create("configmaps", &map).await.unwrap();
            ("theirs".to_owned(), name)
        }
        .boxed()
    })
}

/// Requests the removal of every node that is listed. Returns whether there are none.
async fn remove_all(server: &PlatformServer) -> bool {
    let mut client = PlatformServiceClient::new(drover_client::in_process(server.routes()));
    let platform = client.get_platform(GetPlatformRequest {}).await.unwrap();
    let uid = platform.into_inner().platform.unwrap().uid;
    let request = DiscoverRequest::default();
    let nodes = client.discover(request).await.unwrap().into_inner().nodes;
    for node in &nodes {
        let slot = node.slot.clone().unwrap();
        let removal = DeprovisionRequest {
            expected_platform_uid: uid.clone(),
            fence: Some(Fence {
                store_id: node.store_id.clone(),
                shard: 0,
                epoch: u64::MAX,
            }),
            request_id: Uuid::new_v4().to_string(),
            owner: slot.owner,
            cluster_id: node.cluster_id.clone(),
            node_request_id: slot.request_id,
            index: slot.index,
            node_id: node.node_id.clone(),
            ..DeprovisionRequest::default()
        };
        if client.deprovision(removal).await.is_err() {
            return false;
        }
    }
    nodes.is_empty()
}

/// Runs the suite over nodes of one store, and verifies that nothing is left behind.
async fn conforms(store: &str) {
    let namespace = Arc::new(rig().namespace().await);
    let mut settings = settings(&namespace.name);
    // The suite takes each answer for the last word.
    settings.call_timeout_seconds = PATIENCE.as_secs_f64();
    if store == "pod" {
        settings.addons = AddonsSettings {
            namespace: Some(namespace.name.clone()),
            ..AddonsSettings::default()
        };
    }
    let current = Arc::new(Mutex::new(open(rig(), &settings).await));
    let mut subject = subject(&current, &settings, &namespace);
    subject.store = store.to_owned();
    // A node with several objects cannot move to another cluster: their selectors name the cluster.
    subject.moves = store == "pod";
    // Pods of kwok load nothing.
    subject.addons_become_ready = false;
    subject.addon_template = Some("notes".to_owned());
    subject.make_foreign_addon = Some(foreign_addon(&namespace));
    conformance(&subject).await;
    for map in namespace.list("configmaps").await {
        let name = map["metadata"]["name"].as_str().unwrap().to_owned();
        if name.starts_with("foreign-") {
            namespace.delete("configmaps", &name).await;
        }
    }
    for pod in namespace.list("pods").await {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        if name.starts_with("foreign-") {
            namespace.delete("pods", &name).await;
        }
    }
    let server = Arc::clone(&current.lock());
    until(
        "what random requests made in the name of other stores is removed",
        || async { remove_all(&server).await.then_some(()) },
    )
    .await;
    namespace.until_empty("the suite").await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_conforms_with_pods() {
    conforms("pod").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_conforms_with_many_kinds_a_node() {
    conforms("rich").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_conforms_with_a_deployment_a_node() {
    conforms("deployed").await;
}
