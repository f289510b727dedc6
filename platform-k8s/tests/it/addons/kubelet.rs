//! What really runs, on a real kubelet with kube-proxy. `DROVER_ADDON_CHANGES` says how often targets change under load
//! (10), `DROVER_ADDON_PAUSE` how many seconds after the change before (0): a kubelet looks at a pod again a second after it
//! last did, and whatever changes sooner waits for that.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_platform::addons::AddonWanted;
use drover_proto::platform::v1::{
    AddonTarget, JumpHost, OidcClient, OidcConnector, OidcProvider, PortMapping, PortRef,
    ResourcePhase, addon_spec::Kind, port_ref::Port,
};
use drover_testing::kubernetes::{
    Options, Rig,
    manifests::{apply, documents},
    until, without_kubelet,
};
use futures::{AsyncBufReadExt as _, StreamExt as _, future::join_all, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::LogParams};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    Bench,
    bench::{balancer, properties},
    others::{addon, authority, secret},
    target,
};

/// Maximum number of connections of the load that wait for an answer: a machine that is too slow would get ever slower.
const OUTSTANDING: usize = 50;

/// `None` if this machine cannot run a kubelet.
async fn bench(image: &str) -> Option<(Bench, String)> {
    if without_kubelet() {
        return None;
    }
    let rig = Rig::shared(Options::kubelet());
    let alone = rig.alone().await;
    rig.image(&[image]).await;
    drop(alone);
    let bench = Bench::over(rig, |_| {}).await;
    let node = bench
        .namespace
        .raw
        .get("/api/v1/nodes/real-0")
        .await
        .unwrap();
    let node = node["status"]["addresses"][0]["address"]
        .as_str()
        .unwrap()
        .to_owned();
    Some((bench, node))
}

/// A server on this machine that answers its name to each connection, and then repeats what it gets.
async fn server(node: &str, name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((node, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.write_all(name.as_bytes()).await.ok()?;
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.ok()
            });
        }
    });
    address
}

/// A target whose port `web` is this server.
fn served(name: &str, at: SocketAddr) -> AddonTarget {
    let mut target = target(name, &at.ip().to_string());
    target.endpoints.insert("web".to_owned(), at.to_string());
    target
}

fn web(targets: Vec<AddonTarget>) -> AddonWanted {
    let mapping = PortMapping {
        target: Some(PortRef {
            port: Some(Port::Name("web".to_owned())),
        }),
        ..PortMapping::default()
    };
    let mut wanted = balancer(vec![mapping], targets);
    wanted.spec.image = "haproxy:test".to_owned();
    wanted
}

/// A connection, and who has answered it.
async fn connect(at: SocketAddr) -> std::io::Result<(TcpStream, String)> {
    let asked = async {
        let mut stream = TcpStream::connect(at).await?;
        let mut name = [0; 3];
        stream.read_exact(&mut name).await?;
        Ok((stream, String::from_utf8_lossy(&name).into_owned()))
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await?
}

/// Connects until these answer, and nobody else.
async fn until_served_by(at: SocketAddr, names: &[&str]) {
    until(&format!("{names:?} answer at {at}"), || async {
        let mut answered = Vec::new();
        for _ in 0..8 {
            answered.push(connect(at).await.ok()?.1);
        }
        answered.sort();
        answered.dedup();
        (answered == names).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_reach_the_targets_by_the_node_port_and_those_to_a_draining_one_are_finished() {
    let Some((bench, node)) = bench("haproxy").await else {
        return;
    };
    let (one, two) = (server(&node, "one").await, server(&node, "two").await);
    let mut wanted = web(vec![served("t-1", one), served("t-2", two)]);
    let state = bench.until_phase(&wanted, ResourcePhase::Ready).await;
    let endpoint = state.endpoints.iter().find(|it| it.host == node).unwrap();
    let at = SocketAddr::new(node.parse().unwrap(), u16::try_from(endpoint.port).unwrap());
    until_served_by(at, &["one", "two"]).await;
    let (mut held, _) = until("a connection to the first", || async {
        let (stream, name) = connect(at).await.ok()?;
        (name == "one").then_some((stream, name))
    })
    .await;

    wanted.targets[0].draining = true;
    let state = bench.until_phase(&wanted, ResourcePhase::Ready).await;
    assert_eq!(state.target_count, 1);
    for _ in 0..20 {
        assert_eq!(connect(at).await.unwrap().1, "two", "it was confirmed");
    }
    held.write_all(b"still here").await.unwrap();
    let mut echo = [0; 10];
    held.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"still here");

    // A configuration that HAProxy refuses changes nothing, and is told.
    let name = bench.objects().await[0].name.clone();
    properties(&mut wanted, json!({"maxConnections": 20_000}));
    let map = bench.namespace.get("configmaps", &name).await.unwrap();
    let broken = map["data"]["live"]
        .as_str()
        .unwrap()
        .replace("  server", "  servr");
    let edit = json!({"data": {"live": broken}});
    bench
        .namespace
        .merge("configmaps", &name, &edit)
        .await
        .unwrap();
    for pod in bench.namespace.list("pods").await {
        let without = json!({"metadata": {"annotations": {"drover.dev/live": null}}});
        let name = pod["metadata"]["name"].as_str().unwrap();
        bench.namespace.merge("pods", name, &without).await.unwrap();
    }
    let failed = until("the refusal is told", || async {
        let listed = bench.list().await.remove(0);
        (listed.phase() == ResourcePhase::Failed).then_some(listed)
    })
    .await;
    assert!(failed.message.contains("servr"), "{}", failed.message);
    assert_eq!(
        connect(at).await.unwrap().1,
        "two",
        "the last good one serves"
    );
    bench.until_phase(&wanted, ResourcePhase::Ready).await;
    // Its pods would wait for it.
    drop(held);
    bench.remove("api").await;
    bench.namespace.until_empty("the load balancer").await;
}

/// When each pod of the load balancer says from now on that it uses another configuration, by the clock of the kubelet.
async fn loads(bench: &Bench) -> Vec<BoxStream<'static, Timestamp>> {
    let api: Api<Pod> = Api::namespaced(bench.namespace.raw.client(), &bench.namespace.name);
    let from_now = LogParams {
        follow: true,
        timestamps: true,
        tail_lines: Some(0),
        ..LogParams::default()
    };
    let mut pods = Vec::new();
    for pod in bench.namespace.list("pods").await {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let lines = api.log_stream(name, &from_now).await.unwrap().lines();
        let loads = lines.filter_map(async |line| {
            let line = line.unwrap();
            let (time, said) = line.split_once(' ').unwrap();
            said.starts_with("drover: loaded")
                .then(|| time.parse::<Timestamp>().unwrap())
        });
        pods.push(loads.boxed());
    }
    assert_eq!(pods.len(), 2);
    pods
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_change_under_load_without_a_connection_that_fails() {
    let Some((bench, node)) = bench("haproxy").await else {
        return;
    };
    let (one, two) = (server(&node, "one").await, server(&node, "two").await);
    let mut wanted = web(vec![served("t-1", one), served("t-2", two)]);
    let state = bench.until_phase(&wanted, ResourcePhase::Ready).await;
    let endpoint = state.endpoints.iter().find(|it| it.host == node).unwrap();
    let at = SocketAddr::new(node.parse().unwrap(), u16::try_from(endpoint.port).unwrap());
    until_served_by(at, &["one", "two"]).await;

    let (made, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (made, failed, over) = (Arc::clone(&made), Arc::clone(&failed), Arc::clone(&over));
        async move {
            let mut tick = tokio::time::interval(Duration::from_millis(5));
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            let mut calls = tokio::task::JoinSet::new();
            while !over.load(Ordering::Relaxed) {
                tick.tick().await;
                while calls.try_join_next().is_some() {}
                if calls.len() == OUTSTANDING {
                    continue;
                }
                let (made, failed) = (Arc::clone(&made), Arc::clone(&failed));
                calls.spawn(async move {
                    made.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) = connect(at).await {
                        eprintln!("{error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            calls.join_all().await;
        }
    });
    let changes = std::env::var("DROVER_ADDON_CHANGES").ok();
    let changes = changes.map_or(10, |count| count.parse().unwrap());
    let pause = std::env::var("DROVER_ADDON_PAUSE").ok();
    let pause = pause.map_or(0.0, |seconds| seconds.parse().unwrap());
    let mut took = Vec::new();
    let mut pods = loads(&bench).await;
    for change in 0..changes {
        wanted.targets[0].draining = change % 2 == 0;
        tokio::time::sleep(Duration::from_secs_f64(pause)).await;
        let began = Timestamp::now();
        bench.ensure(&wanted).await.unwrap();
        // Looking at it would slow it down: both servers share a small machine.
        let loaded = join_all(pods.iter_mut().map(|pod| pod.next())).await;
        let last = loaded.into_iter().map(Option::unwrap).max().unwrap();
        took.push(last.duration_since(began).unsigned_abs());
        bench.until_phase(&wanted, ResourcePhase::Ready).await;
    }
    over.store(true, Ordering::Relaxed);
    load.await.unwrap();
    took.sort();
    let last = took[took.len() * 99 / 100];
    eprintln!(
        "{changes} changes, {} connections; a change is in use after {:?}, p99 {last:?}",
        made.load(Ordering::Relaxed),
        took[took.len() / 2]
    );
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    bench.namespace.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_never_starts_is_told_in_the_words_of_the_kubelet() {
    let Some((bench, node)) = bench("haproxy").await else {
        return;
    };
    let one = server(&node, "one").await;
    let mut wanted = web(vec![served("t-1", one)]);
    wanted.spec.image = "example.invalid/nothing:1".to_owned();
    let state = bench.until_phase(&wanted, ResourcePhase::Failed).await;
    assert!(
        state.message.starts_with("0 of 2 pods are ready"),
        "{}",
        state.message
    );
    assert!(
        state.message.contains("example.invalid/nothing:1"),
        "{}",
        state.message
    );
    bench.namespace.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_through_the_jump_host_finds_its_targets_and_the_cluster() {
    let Some((bench, node)) = bench("jump-host").await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let generated = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&key)
        .status();
    assert!(generated.unwrap().success());
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    let private = std::fs::read_to_string(&key).unwrap();
    let jump = |keys: Vec<String>| {
        Kind::JumpHost(JumpHost {
            authorized_keys: keys,
            private_keys_secret: "node-keys".to_owned(),
            kubeconfig_secret: "kubeconfig".to_owned(),
            ..JumpHost::default()
        })
    };
    // The target is the jump host itself, at the address of its pod.
    let mut wanted = addon(jump(vec![public.trim().to_owned()]), Vec::new());
    wanted.spec.image = "jump-host:test".to_owned();
    properties(&mut wanted, json!({"nodeUser": "drover"}));
    wanted
        .secrets
        .insert("node-keys".to_owned(), secret(&[("id_ed25519", &private)]));
    let path = format!("{}/default/token", bench.namespace.path("serviceaccounts"));
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = bench.namespace.raw.create(&path, &request).await.unwrap();
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let service = bench
        .namespace
        .raw
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await;
    let address = service.unwrap()["spec"]["clusterIP"]
        .as_str()
        .unwrap()
        .to_owned();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {
            "server": format!("https://{address}"), "insecure-skip-tls-verify": true,
        }}],
        "users": [{"name": "x", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    wanted.secrets.insert(
        "kubeconfig".to_owned(),
        secret(&[("kubeconfig", &kubeconfig.to_string())]),
    );
    let state = bench.until_phase(&wanted, ResourcePhase::Ready).await;
    let endpoint = state.endpoints.iter().find(|it| it.host == node).unwrap();
    let pods = bench.namespace.list("pods").await;
    let pod = pods[0]["status"]["podIP"].as_str().unwrap();
    wanted.targets = vec![target("cp-0", pod)];
    bench.until_phase(&wanted, ResourcePhase::Ready).await;

    let login = |key: &std::path::Path, command: &str| {
        let mut ssh = tokio::process::Command::new("ssh");
        ssh.args([
            "-F",
            "none",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
        ]);
        ssh.args(["-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i"])
            .arg(key);
        ssh.args([
            "-p",
            &endpoint.port.to_string(),
            &format!("drover@{node}"),
            command,
        ]);
        ssh.kill_on_drop(true);
        async move {
            let output = ssh.output().await.unwrap();
            let all = [output.stdout, output.stderr].concat();
            (
                output.status.success(),
                String::from_utf8_lossy(&all).into_owned(),
            )
        }
    };
    let said = until("a login to the target through the jump host", || async {
        let (well, said) = login(&key, "ssh -p 2222 cp-0 hostname").await;
        if !well {
            eprintln!("{said}");
        }
        well.then_some(said)
    })
    .await;
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    assert!(said.contains(name), "{said}");
    let (well, said) = login(&key, "kubectl auth whoami").await;
    assert!(well && said.contains("serviceaccount"), "{said}");

    let other = folder.path().join("other");
    let generated = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&other)
        .status();
    assert!(generated.unwrap().success());
    let (well, said) = login(&other, "true").await;
    assert!(!well && said.contains("Permission denied"), "{said}");
    bench.remove("one").await;
    bench.namespace.until_empty("the jump host").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_dex_are_signed_with_keys_that_outlive_its_pods() {
    let Some((bench, node)) = bench("dex").await else {
        return;
    };
    apply(&bench.namespace.raw, documents("addons/dex.yaml")).await;
    let port = 30_041;
    let issuer = format!("https://{node}:{port}");
    let user = json!({"username": "me", "password": "hunter2"});
    let provider = OidcProvider {
        issuer: issuer.clone(),
        port: Some(port),
        clients: vec![OidcClient {
            id: "cli".to_owned(),
            redirect_uris: vec!["http://127.0.0.1:8000/callback".to_owned()],
            secret: "client".to_owned(),
        }],
        connectors: vec![OidcConnector {
            r#type: "mockPassword".to_owned(),
            id: "mock".to_owned(),
            config: Some(drover_convert::value::to_struct(user.as_object().unwrap())),
            secret: String::new(),
        }],
        tls_secret: "tls".to_owned(),
    };
    let mut wanted = addon(Kind::OidcProvider(provider), Vec::new());
    wanted.spec.image = "dex:test".to_owned();
    let (certificate, key) = authority();
    let pair = [("ca.crt", &*certificate), ("ca.key", &*key)];
    wanted.secrets.insert("tls".to_owned(), secret(&pair));
    let client = secret(&[("secret", "hunter3")]);
    wanted.secrets.insert("client".to_owned(), client);
    bench.until_phase(&wanted, ResourcePhase::Ready).await;

    let folder = tempfile::tempdir().unwrap();
    let trusted = folder.path().join("ca.crt");
    std::fs::write(&trusted, &certificate).unwrap();
    let curl = |arguments: &[&str]| {
        let mut curl = std::process::Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "--cacert"])
            .arg(&trusted);
        let output = curl.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let begin = format!(
        "{issuer}/auth?client_id=cli&redirect_uri=http%3A%2F%2F127.0.0.1%3A8000%2Fcallback&response_type=code&scope=openid"
    );
    let page = folder.path().join("page");
    let page = page.to_str().unwrap();
    let login = curl(&["-L", "-o", page, "-w", "%{url_effective}", &begin]);
    let form = [
        "-o",
        page,
        "-w",
        "%{redirect_url}",
        "-d",
        "login=me&password=hunter2",
    ];
    let mut back = curl(&[&form[..], &[&*login]].concat());
    if back.starts_with(&issuer) {
        back = curl(&["-o", page, "-w", "%{redirect_url}", &back]);
    }
    let code = back
        .split("code=")
        .nth(1)
        .unwrap()
        .split('&')
        .next()
        .unwrap();
    let grant = format!(
        "grant_type=authorization_code&code={code}&redirect_uri=http://127.0.0.1:8000/callback"
    );
    let token_url = format!("{issuer}/token");
    let token = curl(&["-u", "cli:hunter3", "-d", &grant, &token_url]);
    let token: serde_json::Value = serde_json::from_str(&token).unwrap();
    assert!(token["id_token"].is_string(), "{token}");

    let keys_url = format!("{issuer}/keys");
    let before = curl(&[&*keys_url]);
    let pods = bench.namespace.list("pods").await;
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().unwrap();
        bench.namespace.delete("pods", name).await;
    }
    until("other pods serve", || async {
        let now = bench.namespace.list("pods").await;
        let new = now.iter().all(|pod| {
            pods.iter()
                .all(|old| old["metadata"]["uid"] != pod["metadata"]["uid"])
        });
        new.then_some(())
    })
    .await;
    bench.until_phase(&wanted, ResourcePhase::Ready).await;
    assert_eq!(curl(&[&*keys_url]), before);
    bench.remove("one").await;
    bench.namespace.remove().await;
}
