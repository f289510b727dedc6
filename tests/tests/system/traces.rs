//! One trace from the command line to the process of a node, as seen by a collector that is independent of Drover.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use crate::collector;
use crate::real;

use std::{cell::RefCell, collections::BTreeSet, fs, net::TcpListener, process::Output};

use collector::{Collector, Seen};
use drover_proto::orchestrator::v1 as pb;
use drover_testing::wait::{best_of_three, until};
use real::{Server, World, binary, free_port};
use rustix::process::{Pid, Signal, kill_process};

/// `STATUS_CODE_ERROR`
const ERROR: i32 = 2;
/// Less than a call of the exporter may take.
const SOON: std::time::Duration = std::time::Duration::from_secs(10);
const ORCHESTRATOR: &str = "drover-orchestrator";
const PLATFORM: &str = "drover-platform-cloud";
const APPLY: &str = "drover.orchestrator.v1.ClusterService/ApplyCluster";
const PROVISION: &str = "drover.platform.v1.PlatformService/Provision";

/// Servers that export their traces, with the platform registered as `local`.
async fn world(collector: &Collector) -> World {
    let mut world = World::stopped();
    let endpoint = collector.endpoint();
    for server in [&mut world.platform, &mut world.orchestrator] {
        server.add(&["--otlp-endpoint", &endpoint]);
        server.start().await;
    }
    register(&world, "local", &world.platform.endpoint()).await;
    world
}

async fn register(world: &World, name: &str, endpoint: &str) {
    world.register(name, endpoint).await;
    world
        .until("the platform is ready", async |world| {
            world.platform_status(name).await.phase() == pb::PlatformPhase::Ready
        })
        .await;
}

/// Runs `drover apply` of a cluster with one group on a platform.
async fn apply(world: &World, server: &str, otlp: &str, cluster: &str, platform: &str) -> Output {
    let file = world.directory.path().join(format!("{cluster}.yaml"));
    let manifest = format!(
        "apiVersion: drover.dev/v1\nkind: Cluster\nmetadata: {{name: {cluster}}}\n\
         spec: {{groups: {{web: {{size: 1, platform: {platform}}}}}}}\n"
    );
    fs::write(&file, manifest).unwrap();
    let mut command = drover_testing::processes::program(binary("drover"));
    command
        .args(["apply", "--yes", "--server", server, "-f"])
        .arg(&file)
        .env("DROVER_OTLP_ENDPOINT", otlp)
        .env("XDG_CONFIG_HOME", world.directory.path());
    // The collector needs the current thread.
    tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap()
}

/// Trace id of the latest `drover apply`.
fn trace_of_apply(seen: &[Seen]) -> Option<Vec<u8>> {
    let root = seen.iter().rfind(|one| one.span.name == "drover apply")?;
    assert!(root.span.parent_span_id.is_empty() && root.service == "drover");
    Some(root.span.trace_id.clone())
}

/// The spans of the latest `drover apply`, once `complete` returns true for them and all their parents have arrived.
async fn trace(
    world: &World,
    collector: &Collector,
    what: &str,
    complete: impl Fn(&[Seen]) -> bool,
) -> Vec<Seen> {
    let whole = || {
        let seen = collector.seen();
        let id = trace_of_apply(&seen)?;
        let of: Vec<Seen> = seen
            .into_iter()
            .filter(|one| one.span.trace_id == id)
            .collect();
        let ids: BTreeSet<_> = of.iter().map(|one| one.span.span_id.clone()).collect();
        assert_eq!(ids.len(), of.len(), "span ids are unique");
        let orphans = of.iter().filter(|one| {
            !one.span.parent_span_id.is_empty() && !ids.contains(&one.span.parent_span_id)
        });
        (orphans.count() == 0 && complete(&of)).then_some(of)
    };
    let found = RefCell::new(None);
    world
        .until(what, async |_| {
            let now = whole();
            let is_whole = now.is_some();
            found.replace(now);
            is_whole
        })
        .await;
    found.into_inner().unwrap()
}

/// The path from a span up to the root of its trace, as service and name of each.
fn way_up<'a>(spans: &'a [Seen], from: &'a Seen) -> Vec<(&'a str, &'a str)> {
    let mut way = Vec::new();
    let mut at = Some(from);
    while let Some(one) = at {
        way.push((one.service.as_str(), one.span.name.as_str()));
        assert!(way.len() <= spans.len(), "a circle");
        let parent = &one.span.parent_span_id;
        at = spans.iter().find(|one| one.span.span_id == *parent);
    }
    way
}

fn find<'a>(spans: &'a [Seen], service: &str, name: &str) -> Option<&'a Seen> {
    spans
        .iter()
        .find(|one| one.service == service && one.span.name == name)
}

/// The span of a call that ended with this status code.
fn ended<'a>(spans: &'a [Seen], service: &str, name: &str, code: i64) -> Option<&'a Seen> {
    spans.iter().find(|one| {
        one.service == service
            && one.span.name == name
            && one.number("rpc.grpc.status_code") == Some(code)
    })
}

/// Asserts that status code and attributes follow the semantic conventions, on both sides of a call.
fn says_what_it_is(one: &Seen, status: i64) {
    let (service, method) = one.span.name.rsplit_once('/').unwrap();
    assert_eq!(one.text("rpc.system"), "grpc");
    assert_eq!(one.text("rpc.service"), service);
    assert_eq!(one.text("rpc.method"), method);
    assert_eq!(one.number("rpc.grpc.status_code"), Some(status));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_is_one_trace_from_the_command_line_to_the_process_of_the_node() {
    let collector = Collector::start().await;
    let world = world(&collector).await;
    let (server, otlp) = (world.orchestrator.endpoint(), collector.endpoint());
    let output = apply(&world, &server, &otlp, "traced", "local").await;
    assert!(output.status.success(), "{output:?}");
    world.ready("traced", 1).await;
    let spans = trace(&world, &collector, "the trace is whole", |spans| {
        find(spans, PLATFORM, "start process").is_some()
            && find(spans, ORCHESTRATOR, PROVISION).is_some()
    })
    .await;

    let started = find(&spans, PLATFORM, "start process").unwrap();
    let way = way_up(&spans, started);
    let expected = [
        (PLATFORM, "start process"),
        (PLATFORM, PROVISION),
        (ORCHESTRATOR, PROVISION),
        (ORCHESTRATOR, "provision"),
        (ORCHESTRATOR, "pass"),
        (ORCHESTRATOR, APPLY),
        ("drover", APPLY),
        ("drover", "drover apply"),
    ];
    assert_eq!(way, expected);
    for (service, name) in [
        ("drover", APPLY),
        (ORCHESTRATOR, APPLY),
        (PLATFORM, PROVISION),
    ] {
        says_what_it_is(find(&spans, service, name).unwrap(), 0);
    }
    let wait = find(&spans, ORCHESTRATOR, "queue").unwrap();
    assert_eq!(way_up(&spans, wait)[1], (ORCHESTRATOR, APPLY));
    assert!(find(&spans, ORCHESTRATOR, "store commit").is_some());
    let pass = find(&spans, ORCHESTRATOR, "pass").unwrap();
    assert_eq!(pass.text("drover.cluster.name"), "traced");
    for one in &spans {
        assert!(one.span.end_time_unix_nano >= one.span.start_time_unix_nano);
        assert_ne!(
            one.span.status.as_ref().map(|it| it.code),
            Some(ERROR),
            "{one:?}"
        );
    }
    // Background activity is not part of the trace, and only passes that do something create spans.
    let passes = collector.seen();
    let idle = passes.iter().filter(|one| {
        one.span.name == "pass"
            && one.span.parent_span_id.is_empty()
            && one.number("drover.pass.changes") == Some(0)
            && one.number("drover.pass.calls") == Some(0)
    });
    assert_eq!(idle.count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_platform_refuses_is_in_the_trace_with_its_reason() {
    let collector = Collector::start().await;
    let world = world(&collector).await;
    let root = world.directory.path();
    let arguments = [
        "--driver",
        "simulated",
        "--otlp-endpoint",
        &collector.endpoint(),
    ];
    let mut full = Server::new(PLATFORM, root, free_port(), &arguments);
    full.environment = vec![("DROVER_SIMULATED__CAPACITY", "0".to_owned())];
    full.start().await;
    register(&world, "full", &full.endpoint()).await;
    let (server, otlp) = (world.orchestrator.endpoint(), collector.endpoint());
    let output = apply(&world, &server, &otlp, "crowded", "full").await;
    assert!(output.status.success(), "{output:?}");
    // 8 is RESOURCE_EXHAUSTED. Before the call, the platform was asked for a dry run, which succeeded.
    let spans = trace(&world, &collector, "the refusal is in the trace", |spans| {
        ended(spans, PLATFORM, PROVISION, 8).is_some()
            && find(spans, ORCHESTRATOR, "provision").is_some()
    })
    .await;
    let received = ended(&spans, PLATFORM, PROVISION, 8).unwrap();
    says_what_it_is(received, 8);
    let way = way_up(&spans, received);
    assert_eq!(way.last(), Some(&("drover", "drover apply")), "{way:?}");
    let made = ended(&spans, ORCHESTRATOR, PROVISION, 8).unwrap();
    says_what_it_is(made, 8);
    let call = find(&spans, ORCHESTRATOR, "provision").unwrap();
    for (one, kind) in [(made, "RESOURCE_EXHAUSTED"), (call, "NO_CAPACITY")] {
        assert_eq!(one.span.status.as_ref().unwrap().code, ERROR);
        assert_eq!(one.text("error.type"), kind);
    }
    // The reason of the error, but not the platform's message, which may repeat a secret.
    assert_eq!(made.span.status.as_ref().unwrap().message, "NO_CAPACITY");
    assert_eq!(call.text("drover.platform.name"), "full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_that_does_not_answer_is_where_the_trace_ends() {
    let collector = Collector::start().await;
    let world = world(&collector).await;
    let (server, otlp) = (world.orchestrator.endpoint(), collector.endpoint());
    let pid = Pid::from_raw(i32::try_from(world.platform.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let output = apply(&world, &server, &otlp, "stuck", "local").await;
    assert!(output.status.success(), "{output:?}");
    let failed = |spans: &[Seen]| {
        let mut spans = spans.iter();
        let code = |one: &Seen| one.number("rpc.grpc.status_code");
        spans.any(|one| one.span.name == PROVISION && code(one) != Some(0))
    };
    let what = "the failed call is in the trace";
    let spans = trace(&world, &collector, what, failed).await;
    let made = find(&spans, ORCHESTRATOR, PROVISION).unwrap();
    assert_eq!(made.span.status.as_ref().unwrap().code, ERROR, "{made:?}");
    assert!(["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"].contains(&made.text("error.type")));
    let way = way_up(&spans, made);
    assert_eq!(way.last(), Some(&("drover", "drover apply")), "{way:?}");
    assert!(find(&spans, PLATFORM, PROVISION).is_none());
    kill_process(pid, Signal::CONT).unwrap();
    world.ready("stuck", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_reaches_nobody_says_so_to_the_collector_and_a_dead_collector_harms_no_command()
 {
    let collector = Collector::start().await;
    let world = World::stopped();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    // Exported before the command exited, unless the machine was too busy for that.
    let otlp = collector.endpoint();
    let (output, seen) = until("the spans of a command are there", async || {
        let output = apply(&world, &nowhere, &otlp, "x", "local").await;
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        let seen = collector.seen();
        let is_whole = find(&seen, "drover", "drover apply").is_some()
            && seen.iter().any(|one| one.span.kind == 3);
        is_whole.then_some((output, seen))
    })
    .await;
    let root = find(&seen, "drover", "drover apply").unwrap();
    assert_eq!(root.span.status.as_ref().unwrap().code, ERROR);
    let call = find(&seen, "drover", APPLY).or_else(|| seen.iter().find(|one| one.span.kind == 3));
    assert_eq!(call.unwrap().number("rpc.grpc.status_code"), Some(14));

    best_of_three(SOON, async || {
        let begin = tokio::time::Instant::now();
        let without = apply(&world, &nowhere, &nowhere, "x", "local").await;
        assert_eq!(without.status.code(), Some(5), "{without:?}");
        assert_eq!(without.stderr, output.stderr);
        begin.elapsed()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_comes_back_gets_what_waited_and_its_absence_is_said_once() {
    let port = free_port();
    let mut world = World::stopped();
    let endpoint = format!("http://127.0.0.1:{port}");
    for server in [&mut world.platform, &mut world.orchestrator] {
        server.add(&["--otlp-endpoint", &endpoint]);
        server.start().await;
    }
    register(&world, "local", &world.platform.endpoint()).await;
    world.apply("early", "", 1).await.unwrap();
    world.ready("early", 1).await;
    let said = || {
        world
            .orchestrator
            .said()
            .matches("traces cannot be sent")
            .count()
    };
    world
        .until("the orchestrator has noticed", async |_| said() > 0)
        .await;
    let collector = Collector::on(port).await;
    world
        .until("what waited is there", async |_| {
            find(&collector.seen(), ORCHESTRATOR, APPLY).is_some()
        })
        .await;
    assert_eq!(said(), 1, "{}", world.orchestrator.said());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_collector_passes_the_trace_on_and_writes_its_id_down() {
    let collector = Collector::start().await;
    let mut world = World::stopped();
    let otlp = collector.endpoint();
    let audit = world.directory.path().join("audit");
    let log = audit.to_str().unwrap().to_owned();
    world.platform.add(&["--otlp-endpoint", &otlp]);
    world.orchestrator.add(&["--audit-log", &log]);
    world.platform.start().await;
    world.orchestrator.start().await;
    register(&world, "local", &world.platform.endpoint()).await;
    let server = world.orchestrator.endpoint();
    let output = apply(&world, &server, &otlp, "through", "local").await;
    assert!(output.status.success(), "{output:?}");
    let spans = trace(&world, &collector, "the trace is whole", |spans| {
        find(spans, PLATFORM, "start process").is_some()
    })
    .await;
    let started = find(&spans, PLATFORM, "start process").unwrap();
    let expected = [
        (PLATFORM, "start process"),
        (PLATFORM, PROVISION),
        ("drover", APPLY),
        ("drover", "drover apply"),
    ];
    assert_eq!(way_up(&spans, started), expected);
    let id = u128::from_be_bytes(started.span.trace_id.clone().try_into().unwrap());
    let lines = fs::read_to_string(&audit).unwrap();
    let mut lines = lines.lines().filter(|line| line.contains("ApplyCluster"));
    assert!(lines.any(|line| line.contains(&format!("{id:032x}"))));

    // The caller made no sampling decision, so the first service with tracing does.
    world.apply("plain", "", 1).await.unwrap();
    world.ready("plain", 1).await;
    world
        .until("the platform begins a trace", async |_| {
            collector.seen().iter().any(|one| {
                one.service == PLATFORM
                    && one.span.name == PROVISION
                    && one.span.parent_span_id.is_empty()
            })
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_sampled_is_recorded_nowhere() {
    let collector = Collector::start().await;
    let world = world(&collector).await;
    let mut command = drover_testing::processes::program(binary("drover"));
    command
        .args([
            "get",
            "clusters",
            "--server",
            &world.orchestrator.endpoint(),
        ])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
        .env("XDG_CONFIG_HOME", world.directory.path());
    let list = "drover.orchestrator.v1.ClusterService/ListClusters";
    let mut ask = async |sampler: &str| {
        command.env("OTEL_TRACES_SAMPLER", sampler);
        let output = tokio::task::block_in_place(|| command.output()).unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    ask("parentbased_always_off").await;
    // A command exits without its spans being taken if the machine is too busy.
    let mut sampled = 0;
    until("the spans of a command are there", async || {
        ask("parentbased_always_on").await;
        sampled += 1;
        find(&collector.seen(), "drover", "drover get").map(drop)
    })
    .await;
    world
        .until("the sampled one is there", async |_| {
            find(&collector.seen(), ORCHESTRATOR, list).is_some()
        })
        .await;
    let seen = collector.seen();
    let made = seen.iter().filter(|one| one.span.name == "drover get");
    assert!((1..=sampled).contains(&made.count()));
    let received = seen
        .iter()
        .filter(|one| one.service == ORCHESTRATOR && one.span.name == list);
    assert!((1..=sampled).contains(&received.count()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_takes_connections_and_says_nothing_holds_nobody_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let otlp = format!("http://{}", silent.local_addr().unwrap());
    let mut world = World::stopped();
    for server in [&mut world.platform, &mut world.orchestrator] {
        server.add(&["--otlp-endpoint", &otlp]);
        server.start().await;
    }
    register(&world, "local", &world.platform.endpoint()).await;
    let server = world.orchestrator.endpoint();
    best_of_three(SOON, async || {
        let begin = tokio::time::Instant::now();
        let output = apply(&world, &server, &otlp, "patient", "local").await;
        assert!(output.status.success(), "{output:?}");
        begin.elapsed()
    })
    .await;
    world.ready("patient", 1).await;
}
