//! A secret of every kind, in every place that accepts one, is found only where it belongs: not in the output of
//! commands, logs of any process, events, conditions, traces, metrics, audit logs, files of the platforms, or the
//! store.

mod planted;
mod world;

use std::{convert::Infallible, fs, process::Command};

use drover_testing::wait::until;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use planted::{Planted, cluster, slips};
use tonic::{Status, body::Body};
use world::World;

use crate::collector::Collector;

/// An agent of a node, or a platform, that leaks its secret in every response.
#[derive(Clone)]
struct Telltale(String);

impl tower::Service<http::Request<hyper::body::Incoming>> for Telltale {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<hyper::body::Incoming>) -> Self::Future {
        let status = Status::failed_precondition(format!("wrong password {}", self.0));
        std::future::ready(Ok(status.into_http()))
    }
}

/// Starts a telltale and returns its port.
async fn telltale(secret: &str) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let telltale = Telltale(secret.to_owned());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(telltale.clone());
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

/// Applies a cluster without waiting for it. Fails if it is rejected.
async fn apply(world: &World, name: &str, text: &str) -> Result<(), String> {
    let file = format!("given/{name}.yaml");
    fs::write(world.here().join(&file), text).unwrap();
    let (code, said) = world.drover(&["apply", "--yes", "-f", &file]).await;
    if code == 0 { Ok(()) } else { Err(said) }
}

/// Normal operation.
async fn does_what_is_usual(world: &mut World) {
    for line in [
        "get clusters -w",
        "get nodes -w -o json",
        "events -w -o json",
    ] {
        world.follow(line);
    }
    world.done("apply -y -f given/platforms.yaml").await;
    for name in ["local", "far"] {
        world
            .until(
                &format!("get platform {name} -o json"),
                "PLATFORM_PHASE_READY",
            )
            .await;
    }
    world.done("apply -y -f given/secrets.yaml").await;
    for line in [
        "validate -f given/secrets.yaml -f given/clusters.yaml",
        "plan -f given/clusters.yaml -o json",
        "apply --dry-run -f given/secrets.yaml -f given/clusters.yaml",
        "apply -y --wait -f given/clusters.yaml",
        "plan kept",
        "apply --dry-run -f given/clusters.yaml -f given/secrets.yaml",
        "apply -y --wait -f given/clusters.yaml --token-file given/robot.token",
    ] {
        world.done(line).await;
    }
}

/// Describes what was listed a moment before, and may be gone by now.
async fn describe(world: &World, line: &str) {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let (code, said) = world.drover(&arguments).await;
    assert!(matches!(code, 0 | 3), "drover {line}: {said}");
}

/// Runs all commands that show data.
async fn looks_everywhere(world: &World) {
    for kind in [
        "clusters",
        "nodes",
        "platforms",
        "secrets",
        "events",
        "storage",
        "discovered",
    ] {
        for output in ["wide", "yaml"] {
            world.done(&format!("get {kind} -o {output}")).await;
        }
    }
    for line in [
        "status",
        "events -o yaml",
        "describe platform far --all",
        "describe platform local --all",
    ] {
        world.done(line).await;
    }
    let clusters = world.done("get clusters -o name").await;
    for cluster in clusters
        .lines()
        .filter_map(|line| line.strip_prefix("cluster/"))
    {
        describe(world, &format!("describe cluster {cluster} --all")).await;
        world.drover(&["plan", cluster]).await;
        world
            .drover(&["rollout", "history", cluster, "-o", "json"])
            .await;
    }
    // Of all clusters, because one of them may be gone by now.
    for node in world.nodes("").await {
        describe(world, &format!("describe node {node}")).await;
    }
    let here = world.here();
    for server in [&world.orchestrator, &world.local, &world.simulated] {
        let mut ask = Command::new("curl");
        let path = |name: &str| here.join("certs").join(name);
        ask.args(["-sS", "--fail", "--cacert"]).arg(path("ca.pem"));
        ask.arg("--cert")
            .arg(path("admin.pem"))
            .arg("--key")
            .arg(path("admin.key"));
        ask.arg(format!("https://{}/metrics", server.address));
        let (code, said) = world.run(ask).await;
        assert!(code == 0 && said.contains("drover_"), "{said}");
        for file in ["environ", "cmdline"] {
            let said = fs::read(format!("/proc/{}/{file}", server.pid())).unwrap();
            world.keep(file, &said);
        }
    }
}

/// Runs commands in nodes with a secret on their command line: none of the commands prints it itself.
async fn runs_commands(world: &World, secret: &str) {
    for cluster in ["kept", "distant"] {
        let node = &world.nodes(cluster).await[0];
        for command in [
            &["true", secret][..],
            &["sh", "-c", "test -n \"$0\"; exit 3", secret],
            &[
                "sh",
                "-c",
                &format!("true; : '{}'", secret.replace('\'', "")),
            ],
        ] {
            let exec = ["exec", node, "--"];
            world.drover(&[&exec[..], command].concat()).await;
        }
    }
    world
        .drover(&["exec", "kept/none", "--", "true", secret])
        .await;
    world.drover(&["exec", "none/none", "--", secret]).await;
}

/// Provokes failures on the way to a node, in it, and at its end.
async fn does_what_fails(world: &World, planted: &Planted) {
    for mode in ["refuse", "undefined", "wrong", "absent", "path"] {
        let text = cluster(mode, "local", &format!("attributes: {{mode: {mode}}}"));
        assert_ne!(apply(world, mode, &text).await, Ok(()), "{mode}");
    }
    for (name, template) in [
        ("loud", "{{ refuse(secrets.password) }}"),
        ("name", "{{ cluster[secrets.password].more }}"),
        ("filter", "{{ ['a'] | map(secrets.password) | list }}"),
        ("number", "{{ secrets.password | int }}"),
        ("include", "{% include secrets.password %}"),
    ] {
        let more = format!(
            "bootstrap: {{userData: {}, render: true}}",
            serde_json::json!(template)
        );
        for platform in ["local", "far"] {
            let taken = apply(world, name, &cluster(name, platform, &more)).await;
            assert_ne!(taken, Ok(()), "{name}");
        }
    }
    for mode in ["dies", "late"] {
        let text = cluster(mode, "local", &format!("attributes: {{mode: {mode}}}"));
        assert_eq!(apply(world, mode, &text).await, Ok(()), "{mode}");
    }
    let liar = format!(
        "apiVersion: drover.dev/v1\nkind: Platform\nmetadata: {{name: liar}}\n\
         spec: {{endpoint: \"http://127.0.0.1:{}\", tokenSecret: door}}\n",
        telltale(&planted.door).await
    );
    assert_eq!(apply(world, "liar", &liar).await, Ok(()));
    world
        .until("describe platform liar --all", "wrong password")
        .await;
    let secret = &planted.password;
    let port = telltale(secret).await;
    for (name, health) in [
        ("told", format!("grpc: {{port: {port}}}")),
        (
            "sick",
            "exec: {command: [sh, -c, \"cat password; cat password >&2; exit 9\"]}".to_owned(),
        ),
        (
            "tls",
            format!(
                "http: {{port: {port}, tlsSettings: {{caSecret: probe, clientCertificateSecret: probe}}}}"
            ),
        ),
    ] {
        let more = format!("health: {{{health}, interval: 1s, failureThreshold: 1}}");
        let taken = apply(world, name, &cluster(name, "local", &more)).await;
        assert_eq!(taken, Ok(()), "{name}");
    }
    for (name, words) in [
        ("told", "FailedPrecondition"),
        ("sick", "exit code 9"),
        ("dies", "exited with code 3"),
        ("tls", "healthz"),
    ] {
        world
            .until(&format!("describe cluster {name} --all"), words)
            .await;
    }
    world.drover(&["scale", "late", "web", "2"]).await;
    world.until("events late", "template").await;
    for purpose in ["tls: true, tlsSettings: {caSecret: orders}"] {
        let more = format!("health: {{http: {{port: client, {purpose}}}}}");
        let taken = apply(world, "purpose", &cluster("purpose", "local", &more)).await;
        assert_ne!(taken, Ok(()));
    }
    for (file, text) in slips(secret) {
        fs::write(world.here().join(&file), text).unwrap();
        world.fails(&format!("apply -y -f {file}")).await;
    }
    world
        .fails("get clusters --token-file given/wrong.token --cert= --key=")
        .await;
}

/// Rotates the secrets, adds nodes, and deletes everything: the hooks print the old values and the new ones.
async fn changes_and_ends(world: &mut World) {
    // A former value of a secret is known only to nodes that received it, so an agent may print it.
    world.done("delete cluster told -y --wait").await;
    for line in [
        "apply -y -f given/rotated.yaml",
        "scale kept web 2",
        "scale distant web 2",
        "wait cluster/kept",
        "wait cluster/distant",
    ] {
        world.done(line).await;
    }
    store(world, "backup ../backup.db").await;
    world.orchestrator.kill();
    world.orchestrator.start().await;
    world
        .until("get platform far -o json", "PLATFORM_PHASE_READY")
        .await;
    world.done("delete cluster kept sick rendered -y").await;
    world.until("events kept", "hook").await;
    world.drover(&["delete", "secret", "orders", "-y"]).await;
    looks_everywhere(world).await;
    world.end();
    store(world, "dump").await;
}

/// Runs a maintenance command on the store.
async fn store(world: &World, line: &str) {
    let mut command =
        drover_testing::processes::program(crate::real::binary("drover-orchestrator"));
    command
        .current_dir(world.here().join("store"))
        .arg("store")
        .args(line.split_whitespace())
        .args(["--data-dir", "."]);
    let (code, said) = world.run(command).await;
    assert_eq!(code, 0, "{line}: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_found_nowhere_but_where_it_belongs() {
    let seed = drover_testing::seed::seed();
    let planted = Planted::new(&mut fastrand::Rng::with_seed(seed));
    let mut world = World::start(&planted).await;
    let needles = planted.needles(&world.here());
    does_what_is_usual(&mut world).await;
    let node = world.nodes("kept").await;
    assert_eq!(node.len(), 1, "{node:?}");
    belongs(&world, &planted);
    runs_commands(&world, &planted.password).await;
    does_what_fails(&world, &planted).await;
    looks_everywhere(&world).await;
    changes_and_ends(&mut world).await;

    let mut found = Vec::new();
    let mut bytes = 0;
    for path in world.everything() {
        let content = fs::read(&path).unwrap();
        bytes += content.len();
        let name = path
            .strip_prefix(world.here())
            .unwrap()
            .display()
            .to_string();
        let seen = needles
            .find(&content)
            .or_else(|| needles.find(name.as_bytes()));
        found.extend(seen.map(|seen| format!("{name}: {seen}")));
    }
    println!("{bytes} bytes were looked through");
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_says_of_an_error_is_told_to_the_caller_and_in_no_span() {
    const REPEATED: &str = "Zirkon-7031-Kessel";
    let collector = Collector::start().await;
    let server = format!("http://127.0.0.1:{}", telltale(REPEATED).await);
    let home = tempfile::tempdir().unwrap();
    // A command exits without its spans being taken if the machine is too busy.
    let (output, seen) = until("the spans of a command are there", async || {
        let mut command = drover_testing::processes::program(crate::real::binary("drover"));
        command
            .args(["get", "clusters", "--server", &server])
            .env("DROVER_OTLP_ENDPOINT", collector.endpoint())
            .env("XDG_CONFIG_HOME", home.path());
        // The collector runs on this thread.
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        let seen = collector.seen();
        let is_whole = seen.iter().any(|one| one.span.kind == 3)
            && seen.iter().any(|one| one.span.name == "drover get");
        is_whole.then_some((output, seen))
    })
    .await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(REPEATED), "{output:?}");

    let call = seen.iter().find(|one| one.span.kind == 3).unwrap();
    assert_eq!(call.text("error.type"), "FAILED_PRECONDITION");
    let root = seen.iter().find(|one| one.span.name == "drover get");
    let code = root.unwrap().number("process.exit.code");
    assert_eq!(code, output.status.code().map(i64::from));
    assert!(!format!("{seen:?}").contains(REPEATED), "{seen:?}");
}

/// Checks that the secrets did reach the nodes that need them and are found there, and that the searched files are not
/// empty.
fn belongs(world: &World, planted: &Planted) {
    let needles = planted.needles(&world.here());
    let nodes = fs::read_dir(world.state().join("nodes")).unwrap();
    let specs = nodes.flatten().map(|node| node.path().join("spec.json"));
    let has = specs.filter(|path| fs::read(path).is_ok_and(|it| needles.find(&it).is_some()));
    assert!(has.count() >= 2, "both local nodes have it");
    let everything = world.everything();
    for expected in [
        "drover-orchestrator.log",
        "drover-platform-cloud.log",
        "orchestrator.audit",
        "platform-cloud.audit",
        "platform-k8s.audit",
        "events_-w_-o_json",
    ] {
        let mut paths = everything.iter();
        let path = paths.find(|path| path.ends_with(expected));
        let path = path.unwrap_or_else(|| panic!("{expected} is not there"));
        assert!(fs::metadata(path).unwrap().len() > 0, "{expected} is empty");
    }
}
