//! Logs of a container that is started again at the worst moment, over an API server that does nothing else.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use drover_proto::kubernetes::v1 as api;
use drover_resources::{bytes, parts::Pods as _};
use drover_resources_kubernetes::{
    KubernetesPods,
    client::{ApiClient, ClientSettings},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::bench::next;

/// A pod whose container has ended, and is started again whenever its log is about to be read.
struct Pod {
    run: AtomicU32,
    /// The run after which it is not started any more.
    last: u32,
    /// Runs that begin within one call.
    at_once: u32,
}

impl Pod {
    fn object(&self) -> Value {
        let run = self.run.load(Ordering::Relaxed);
        let ended =
            |run: u32| json!({"terminated": {"exitCode": 1, "containerID": format!("c://{run}")}});
        let before = run.checked_sub(1).map(ended);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1"},
            "spec": {"restartPolicy": "OnFailure", "nodeName": "x", "containers": [{"name": "main"}]},
            "status": {
                "phase": if run == self.last { "Failed" } else { "Running" },
                "containerStatuses": [{
                    "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": run,
                    "containerID": format!("c://{run}"), "state": ended(run), "lastState": before,
                }],
            },
        })
    }

    fn answer(&self, path: &str) -> String {
        if path.contains("/log?") {
            if path.contains("previous=true") {
                let run = self.run.load(Ordering::Relaxed) - 1;
                return format!("run {run}\n");
            }
            let run = self.run.load(Ordering::Relaxed);
            let run = (run + self.at_once).min(self.last);
            self.run.store(run, Ordering::Relaxed);
            return format!("run {run}\n");
        }
        if path.contains("/pods/a") {
            return self.object().to_string();
        }
        let list = json!({
            "apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"},
            "items": [self.object()],
        });
        list.to_string()
    }
}

async fn serve(pod: Arc<Pod>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let pod = Arc::clone(&pod);
            tokio::spawn(async move { answer(stream, &pod).await.unwrap() });
        }
    });
    address
}

async fn answer(stream: TcpStream, pod: &Pod) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).await?;
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    if path.contains("watch=") {
        // Nothing else happens.
        std::future::pending::<()>().await;
    }
    let body = pod.answer(path);
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).await
}

/// What is read of the log.
async fn followed(pod: Pod) -> String {
    let server = serve(Arc::new(pod)).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{server}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, content.to_string()).unwrap();
    let settings = ClientSettings {
        kubeconfig: Some(kubeconfig),
        ..ClientSettings::default()
    };
    let pods = KubernetesPods::new(ApiClient::open(&settings).await.unwrap());
    let request = api::StreamLogsRequest {
        namespace: "n".to_owned(),
        pod: "a".to_owned(),
        follow: true,
        ..api::StreamLogsRequest::default()
    };
    let mut log = pods.logs(request).await.unwrap();
    let mut text = String::new();
    while let Some(piece) = next(&mut log).await {
        text += std::str::from_utf8(&bytes(piece.unwrap())).unwrap();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn each_run_that_a_kubelet_keeps_is_read_once_however_soon_the_next_one_begins() {
    for (at_once, last, expected) in [
        (0, 0, "run 0\n"),
        (1, 1, "run 0\nrun 1\n"),
        (1, 3, "run 0\nrun 1\nrun 2\nrun 3\n"),
        // A kubelet keeps two.
        (2, 2, "run 2\n"),
    ] {
        let pod = Pod {
            run: AtomicU32::new(0),
            last,
            at_once,
        };
        assert_eq!(followed(pod).await, expected, "{at_once} {last}");
    }
}
