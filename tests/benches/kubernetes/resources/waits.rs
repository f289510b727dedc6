//! `WaitPods` beside kube's watcher: how soon it is done after the last pod is ready, with how many calls, and the memory
//! of many waits at once.

use std::{collections::HashSet, time::Duration};

use drover_proto::{
    common::v1::LabelSelector,
    kubernetes::v1::{
        PodWaitCondition, WaitPodsRequest, WaitPodsResponse, pod_service_client::PodServiceClient,
    },
};
use drover_testing::kubernetes::{FaultProxy, Namespace, Raw, Rig};
use futures::{StreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    runtime::watcher::{self, Event},
};
use serde_json::json;
use tokio::{sync::oneshot, time::Instant};
use tonic::Streaming;

use super::{HEAD, milliseconds, row, server};
use crate::{
    CONNECTIONS, PATIENCE, create_pods,
    server::{Memory, Server},
    spec,
};

const LABEL: (&str, &str) = ("app", "bench");

async fn pods(rig: &Rig, count: usize) -> Namespace {
    let namespace = rig.namespace().await;
    create_pods(rig, &namespace, count, |number| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("web-{number}"), "labels": {LABEL.0: LABEL.1}},
            "spec": spec(),
        })
    })
    .await;
    namespace
}

/// Opens a wait, and awaits its first message.
async fn wait(server: &Server, namespace: &Namespace, count: usize) -> Streaming<WaitPodsResponse> {
    let request = WaitPodsRequest {
        namespace: namespace.name.clone(),
        selector: Some(LabelSelector {
            match_labels: [(LABEL.0.to_owned(), LABEL.1.to_owned())].into(),
            ..Default::default()
        }),
        conditions: vec![PodWaitCondition::Ready.into()],
        min_count: u32::try_from(count).unwrap(),
        ..Default::default()
    };
    let mut client = PodServiceClient::new(server.channel());
    let mut stream = client.wait_pods(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap().progress.unwrap();
    assert_eq!((first.matched as usize, first.done), (count, false));
    stream
}

async fn done(mut stream: Streaming<WaitPodsResponse>) -> Instant {
    loop {
        let message = stream.message().await.unwrap();
        if message.expect("it ends done").progress.unwrap().done {
            return Instant::now();
        }
    }
}

/// A watcher of kube that says when it has listed the pods, and ends when all of them are ready.
async fn plain(pods: Api<Pod>, count: usize, listed: oneshot::Sender<()>) -> Instant {
    let config = watcher::Config::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let mut events = watcher::watcher(pods, config).boxed();
    let (mut ready, mut listed) = (HashSet::new(), Some(listed));
    loop {
        match events.next().await.unwrap().unwrap() {
            Event::Apply(pod) | Event::InitApply(pod) if is_ready(&pod) => {
                ready.insert(pod.name_any());
            }
            Event::Apply(pod) | Event::InitApply(pod) | Event::Delete(pod) => {
                ready.remove(&pod.name_any());
            }
            Event::InitDone => {
                if let Some(listed) = listed.take() {
                    let _ = listed.send(());
                }
            }
            Event::Init => {}
        }
        if ready.len() == count {
            return Instant::now();
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|it| it.conditions.as_ref());
    conditions
        .flatten()
        .any(|it| it.type_ == "Ready" && it.status == "True")
}

/// Writes the status of all pods, and returns when the last one was written.
async fn write(clients: &[Raw], namespace: &Namespace, count: usize, ready: bool) -> Instant {
    let path = namespace.path("pods");
    let all = clients.iter().enumerate().map(|(client, raw)| {
        let path = path.as_str();
        async move {
            let status = if ready { "True" } else { "False" };
            let status = json!({"status": {
                "phase": "Running", "conditions": [{"type": "Ready", "status": status}],
            }});
            for number in (client..count).step_by(CONNECTIONS) {
                let path = format!("{path}/web-{number}/status");
                raw.merge(&path, &status).await.unwrap();
            }
        }
    });
    join_all(all).await;
    Instant::now()
}

pub(crate) async fn latency(rig: &Rig, count: usize, runs: usize) {
    let namespace = pods(rig, count).await;
    let clients: Vec<Raw> = join_all((0..CONNECTIONS).map(|_| rig.raw())).await;
    // Both through a proxy, which counts the calls.
    let (proxy, other) = (FaultProxy::start(rig).await, FaultProxy::start(rig).await);
    let server = server(&proxy.kubeconfig(), &namespace.name).await;
    let plainly = Raw::open(&other.kubeconfig()).await;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut lists, mut watches) = (0, 0);
    for _ in 0..runs {
        write(&clients, &namespace, count, false).await;
        proxy.forget();
        let stream = wait(&server, &namespace, count).await;
        let (told, listed) = oneshot::channel();
        let pods = Api::namespaced(plainly.client(), &namespace.name);
        let plain = tokio::spawn(plain(pods, count, told));
        listed.await.unwrap();
        let done = tokio::spawn(done(stream));
        let written = write(&clients, &namespace, count, true).await;
        let done = tokio::time::timeout(PATIENCE, done).await.unwrap().unwrap();
        ours.push(done.saturating_duration_since(written));
        theirs.push(plain.await.unwrap().saturating_duration_since(written));
        lists = lists.max(proxy.count("list", "pods"));
        watches = watches.max(proxy.count("watch", "pods"));
    }
    let p99 = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[(times.len() * 99 / 100).min(times.len() - 1)].as_secs_f64()
    };
    let (ours, theirs) = (p99(ours), p99(theirs));
    println!("{HEAD}");
    let what = format!("WaitPods, {count} pods: last status to done, p99 of {runs}");
    let ratio = format!("{:.2}", ours / theirs.max(1e-6));
    let (ours, theirs) = (milliseconds(ours), milliseconds(theirs));
    row(&what, &ours, &theirs, &ratio, "at most 100 ms");
    let calls = format!("{lists} and {watches}");
    row("the same: lists and watches", &calls, "", "", "1 and 1");
    println!();
    drop(server);
    namespace.remove().await;
}

pub(crate) async fn memory(rig: &Rig, count: usize, waits: usize) {
    let namespace = pods(rig, count).await;
    let server = server(rig.kubeconfig(), &namespace.name).await;
    // Whatever is allocated once.
    drop(wait(&server, &namespace, count).await);
    let before = server.memory().now;
    server.forget_most();
    let streams = join_all((0..waits).map(|_| wait(&server, &namespace, count))).await;
    let after = server.memory();
    drop(streams);
    drop(server);

    let own = std::process::id();
    let plainly = rig.raw().await;
    let plain_before = Memory::of(own).now;
    Memory::forget_most(own);
    let (mut tasks, mut all_listed) = (tokio::task::JoinSet::new(), Vec::new());
    for _ in 0..waits {
        let (told, listed) = oneshot::channel();
        let pods = Api::namespaced(plainly.client(), &namespace.name);
        tasks.spawn(plain(pods, count, told));
        all_listed.push(listed);
    }
    for listed in all_listed {
        listed.await.unwrap();
    }
    let plain_after = Memory::of(own);
    drop(tasks);
    println!("{HEAD}");
    let what = format!("{waits} WaitPods at once over {count} pods: more memory, at most and then");
    let (more, then) = (after.most - before, after.now - before);
    let plain_more = plain_after.most - plain_before;
    let ours = format!("{more:.0} and {then:.0} MiB");
    let theirs = format!(
        "{plain_more:.0} and {:.0} MiB",
        plain_after.now - plain_before
    );
    let ratio = format!("{:.2}", more / plain_more);
    row(&what, &ours, &theirs, &ratio, "under 64 MiB");
    println!();
    namespace.remove().await;
}
