//! `ReadFile` beside kube's exec of `cat`, in a container of a real kubelet.

use std::time::Duration;

use drover_client::KubernetesClient;
use drover_proto::kubernetes::v1 as api;
use drover_testing::kubernetes::{Namespace, Options, Rig, until, without_kubelet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams};
use serde_json::json;
use tokio::{io::AsyncReadExt as _, time::Instant};

use super::{HEAD, row, server};
use crate::{PATIENCE, median};

const FILE: &str = "/file";
const MIB: usize = 1024 * 1024;

pub(crate) async fn read(size: usize, runs: usize) {
    if without_kubelet() {
        println!("Skipped without a real kubelet: ReadFile of {size} MiB.\n");
        return;
    }
    let rig = Rig::shared(Options::kubelet());
    rig.image(&["busybox"]).await;
    let namespace = rig.namespace().await;
    start(&namespace, size).await;
    let server = server(rig.kubeconfig(), &namespace.name).await;
    let client = KubernetesClient::new(server.channel());
    let pods: Api<Pod> = Api::namespaced(rig.raw().await.client(), &namespace.name);
    // Both once, for connections and caches.
    through_drover(&client, &namespace, size).await;
    plain(&pods, size).await;
    let before = server.memory().now;
    server.forget_most();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        ours.push(through_drover(&client, &namespace, size).await);
        theirs.push(plain(&pods, size).await);
    }
    let more = server.memory().most - before;
    let (ours, theirs) = (median(ours), median(theirs));
    let rate = |seconds: f64| format!("{:.0} MiB/s", size as f64 / seconds);
    println!("{HEAD}");
    let what = format!("ReadFile, {size} MiB");
    let ratio = format!("{:.2}", theirs / ours);
    row(&what, &rate(ours), &rate(theirs), &ratio, "at least 0.8");
    let more = format!("{more:.0} MiB");
    row(
        "the same: more memory at most",
        &more,
        "",
        "",
        "at most 32 MiB",
    );
    println!();
    drop(server);
    namespace.remove().await;
}

/// A pod with a file of random bytes.
async fn start(namespace: &Namespace, size: usize) {
    let script = format!(
        "head -c {} /dev/urandom >{FILE} && : >/ready && sleep 86400",
        size * MIB
    );
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reader"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "busybox:test", "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
                "readinessProbe": {"exec": {"command": ["test", "-e", "/ready"]}, "periodSeconds": 1},
            }],
        },
    });
    namespace.create("pods", &pod).await.unwrap();
    until("the file is written", || async {
        let pod = namespace.get("pods", "reader").await.unwrap();
        let ready = pod["status"]["containerStatuses"][0]["ready"].as_bool();
        (ready == Some(true)).then_some(())
    })
    .await;
}

async fn through_drover(client: &KubernetesClient, namespace: &Namespace, size: usize) -> Duration {
    let request = api::ReadFileRequest {
        namespace: namespace.name.clone(),
        pod: "reader".to_owned(),
        path: FILE.to_owned(),
        ..Default::default()
    };
    let began = Instant::now();
    let mut sink = tokio::io::sink();
    let read = client.read_file_into(request, &mut sink, PATIENCE).await;
    assert_eq!(read.unwrap(), (size * MIB) as u64);
    began.elapsed()
}

async fn plain(pods: &Api<Pod>, size: usize) -> Duration {
    let parameters = AttachParams::default().stdin(false).stderr(false);
    let began = Instant::now();
    let opened = pods.exec("reader", ["cat", FILE], &parameters).await;
    let mut process = opened.unwrap();
    let mut output = process.stdout().unwrap();
    let (mut buffer, mut read) = (vec![0; 64 * 1024], 0);
    loop {
        match output.read(&mut buffer).await.unwrap() {
            0 => break,
            count => read += count,
        }
    }
    assert_eq!(read, size * MIB);
    process.join().await.unwrap();
    began.elapsed()
}
