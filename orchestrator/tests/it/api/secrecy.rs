//! Secrets in templates are never revealed, however the templates print them.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use drover_core::{Error, Reason, secrecy::HIDDEN};
use drover_platform_cloud::drivers::simulated::{Fault, Operation, SimulatedSettings};
use drover_proto::{
    orchestrator::v1::{self as pb, bootstrap_source::Source, secret_value::Value},
    platform::v1::{
        self as wire,
        health_policy::Probe,
        node_access_service_server::{NodeAccessService, NodeAccessServiceServer},
        watch_nodes_response::Event,
    },
};
use drover_store::{Lane, backend::Txn, keys::Name};
use futures::Stream;
use tonic::{Request, Response, Status, Streaming, service::Routes};

use crate::api::{
    access::Door,
    late::Told,
    support::{Clusters, Log, World, changed, document, refused, until},
};

/// The secret.
const CONTENT: &str = "Tr0ub4dor-Zebra-77-Quux!Vortex_42";
/// Length of the substrings of the secret that must not be revealed.
const PART: usize = 8;

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..=three.len()].copy_from_slice(three);
        let bits = u32::from_be_bytes(padded);
        for at in 0..=three.len() {
            text.push(DIGITS[(bits >> (18 - 6 * at)) as usize & 63] as char);
        }
    }
    text
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A template that prints the secret through a lookup table, `width` characters at a time.
fn by_table(width: usize, say: impl Fn(&[u8]) -> String) -> String {
    let mut table = String::new();
    for part in CONTENT.as_bytes().chunks(width) {
        let part = std::str::from_utf8(part).unwrap();
        let _ = write!(table, "'{part}': '{}', ", say(part.as_bytes()));
    }
    format!(
        "{{% set t = {{{table}}} %}}{{% set said %}}{{% for i in range(0, {}, {width}) %}}\
         {{{{ t[secrets.p[i:i + {width}]] }}}}{{% endfor %}}{{% endset %}}{{{{ refuse(said) }}}}",
        CONTENT.len()
    )
}

/// Templates that would reveal a secret, and the encodings to look for in addition to its substrings.
fn tellers() -> Vec<(&'static str, String, Vec<String>)> {
    let loud = |text: &str| text.to_owned();
    let separated: String = CONTENT.chars().flat_map(|c| [c, '-']).collect();
    let reversed: String = CONTENT.chars().rev().collect();
    vec![
        ("plain", loud("{{ refuse(secrets.p) }}"), vec![]),
        ("a slice", loud("{{ refuse(secrets.p[3:15]) }}"), vec![]),
        (
            "base64",
            by_table(3, base64),
            vec![base64(CONTENT.as_bytes())[..24].to_owned()],
        ),
        (
            "hexadecimal",
            by_table(1, hexadecimal),
            vec![hexadecimal(CONTENT.as_bytes())[..24].to_owned()],
        ),
        (
            "urlencoded",
            loud("{{ refuse(secrets.p | tojson) }}"),
            vec![],
        ),
        (
            "one character after the other",
            loud(
                "{% for c in secrets.p %}{% if loop.index0 == 0 %}{{ refuse(secrets.p | list | join('')) }}{% endif %}{% endfor %}",
            ),
            vec![],
        ),
        (
            "joined",
            loud("{{ refuse(secrets.p | list | join('-')) }}"),
            vec![separated[..24].to_owned()],
        ),
        (
            "backwards",
            loud("{{ refuse(secrets.p | reverse) }}"),
            vec![reversed[..12].to_owned()],
        ),
        (
            "capitals",
            loud("{{ refuse(secrets.p | upper) }}"),
            vec![CONTENT.to_uppercase()[..12].to_owned()],
        ),
        ("undefined", loud("{{ cluster[secrets.p].b }}"), vec![]),
        (
            "a filter of that name",
            loud("{{ ['a'] | map(secrets.p) | list }}"),
            vec![],
        ),
        (
            "a test of that name",
            loud("{{ ['a'] | select(secrets.p) | list }}"),
            vec![],
        ),
        (
            "a template of that name",
            loud("{% include secrets.p %}"),
            vec![],
        ),
    ]
}

#[track_caller]
fn silent(shown: &str, more: &[String], what: &str) {
    let parts = CONTENT.as_bytes().windows(PART);
    let parts = parts.map(|part| std::str::from_utf8(part).unwrap());
    for hidden in parts.chain(more.iter().map(String::as_str)) {
        let at = shown.find(hidden);
        let from = at.map(|at| at.saturating_sub(200));
        let around = from.map(|from| {
            String::from_utf8_lossy(&shown.as_bytes()[from..][..200.min(shown.len() - from)])
                .into_owned()
        });
        assert_eq!(around, None, "{what}: {hidden}");
    }
}

async fn put(world: &World, name: &str, content: &str) {
    let value = pb::SecretValue {
        value: Some(Value::Text(content.to_owned())),
    };
    let request = pb::ApplySecretRequest {
        name: name.to_owned(),
        data: BTreeMap::from([("k".to_owned(), value)])
            .into_iter()
            .collect(),
        ..Default::default()
    };
    world.secrets().apply_secret(request).await.unwrap();
}

/// A cluster whose user data is rendered from a secret.
fn telling(secret: &str, template: &str) -> pb::Cluster {
    changed(document("orders", &[("web", 1)]), |spec| {
        spec.groups[0].secrets = vec![pb::TemplateSecret {
            name: "p".to_owned(),
            secret_key_ref: Some(pb::SecretKeyRef {
                name: secret.to_owned(),
                key: "k".to_owned(),
            }),
        }];
        spec.groups[0].bootstrap = Some(pb::BootstrapSource {
            source: Some(Source::Text(template.to_owned())),
            render: true,
        });
    })
}

async fn plan(
    of: &mut Clusters,
    cluster: pb::Cluster,
) -> Result<pb::PlanClusterResponse, tonic::Status> {
    let request = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Cluster(cluster)),
        ..Default::default()
    };
    of.plan_cluster(request)
        .await
        .map(tonic::Response::into_inner)
}

async fn apply(
    of: &mut Clusters,
    cluster: pb::Cluster,
) -> Result<pb::ApplyClusterResponse, tonic::Status> {
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    };
    of.apply_cluster(request)
        .await
        .map(tonic::Response::into_inner)
}

fn logged() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.clone())
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

/// Everything about the cluster that is visible to readers, and the logs.
async fn visible(world: &World, log: &Log) -> String {
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    format!(
        "{:?} {:?} {:?} {:?} {logged}",
        world.get("orders").await,
        world.nodes("orders").await,
        world.events("orders").await,
        world.orchestrator,
    )
}

#[tokio::test]
async fn a_plan_shows_nothing_of_a_secret_to_who_may_only_look() {
    let (log, _logged) = logged();
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    door.world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    door.world.ready("orders").await;
    let mut viewer = door.of("viewer");
    for (what, template, more) in tellers() {
        let answer = plan(&mut viewer, telling("orders-p", &template)).await;
        silent(&format!("{answer:?}"), &more, what);
    }
    silent(&visible(&door.world, &log).await, &[], "afterwards");
    // Valid templates are planned all the same.
    let planned = plan(&mut viewer, telling("orders-p", "{{ secrets.p }}.")).await;
    assert!(planned.unwrap().plan.is_some());
    door.stop().await;
}

#[tokio::test]
async fn who_may_only_look_learns_no_character_of_a_secret() {
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    door.world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    let mut viewer = door.of("viewer");
    let mut operator = door.of("operator");
    let mut answers = Vec::new();
    for of in [CONTENT.as_bytes()[0] as char, 'a', 'Q', '7'] {
        let asks = format!("{{% if secrets.p[0] == '{of}' %}}{{{{ 1 // 0 }}}}{{% endif %}}.");
        let answer = plan(&mut viewer, telling("orders-p", &asks)).await;
        answers.push(format!("{:?}", answer.map(|_| ())));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    // For callers who may change the cluster, the actual secret decides, so that their plan is accurate.
    let asks = format!("{{% if secrets.p != '{CONTENT}' %}}{{{{ refuse('no') }}}}{{% endif %}}.");
    plan(&mut operator, telling("orders-p", &asks))
        .await
        .unwrap();
    door.stop().await;
}

#[tokio::test]
async fn what_was_written_by_who_may_only_look_is_parsed_and_not_run() {
    let door = Door::new().await;
    let rendering = |template: &str| {
        changed(document("orders", &[("web", 1)]), |spec| {
            spec.groups[0].bootstrap = Some(pb::BootstrapSource {
                source: Some(Source::Text(template.to_owned())),
                render: true,
            });
        })
    };
    let mut viewer = door.of("viewer");
    let mut operator = door.of("operator");
    for runs_into in [
        "{{ refuse('it ran') }}",
        "{{ nothing.at.all }}",
        r#"{{ "a"|indent(10000000000000) }}"#,
    ] {
        let seen = plan(&mut viewer, rendering(runs_into)).await;
        assert!(seen.unwrap().plan.is_some(), "{runs_into}");
        let run = plan(&mut operator, rendering(runs_into)).await.unwrap_err();
        assert!(run.message().contains("template bootstrap"), "{run:?}");
    }
    let wrong = plan(&mut viewer, rendering("fine\n{% for %}")).await;
    let wrong = wrong.unwrap_err();
    assert!(
        wrong.message().contains("template bootstrap, line 2"),
        "{wrong:?}"
    );
    assert_eq!(crate::api::support::fields(&wrong), ["spec.platforms[0]"]);
    door.stop().await;
}

#[tokio::test]
async fn who_may_only_look_names_no_secret_that_is_not_named_there() {
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    let mut viewer = door.of("viewer");
    // For a cluster that does not exist, and for one without secrets.
    for _ in 0..2 {
        for secret in ["orders-p", "orders-none"] {
            let answer = plan(&mut viewer, telling(secret, "{{ secrets.p }}")).await;
            let status = refused(answer, Reason::PermissionDenied);
            assert!(status.message().contains("outside"), "{status:?}");
        }
        door.world
            .apply(document("orders", &[("web", 1)]))
            .await
            .unwrap();
    }
    let mut operator = door.of("operator");
    let planned = plan(&mut operator, telling("orders-p", "{{ secrets.p }}")).await;
    assert!(planned.unwrap().plan.is_some());
    door.stop().await;
}

#[tokio::test]
async fn what_templates_say_of_secrets_reaches_no_answer_condition_event_or_log() {
    let (log, _logged) = logged();
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    let mut operator = door.of("operator");
    for (what, template, more) in tellers() {
        let answer = apply(&mut operator, telling("orders-p", &template)).await;
        let shown = format!("{:?}", answer.expect_err(what));
        silent(&shown, &more, what);
    }
    // Templates that are accepted now and fail when a node is created are reported in conditions and events.
    let template = "{% if group.size > 1 %}{{ refuse(secrets.p) }}{% endif %}.";
    apply(&mut operator, telling("orders-p", template))
        .await
        .unwrap();
    door.world.ready("orders").await;
    put(&door.world, "orders-p", &format!("{CONTENT}{CONTENT}")).await;
    let scale = pb::ScaleGroupRequest {
        cluster: "orders".into(),
        group: "web".into(),
        size: Some(2),
        ..Default::default()
    };
    operator.scale_group(scale).await.unwrap();
    until("the failure is told", async || {
        let told = format!("{:?}", door.world.events("orders").await);
        told.contains("template").then_some(())
    })
    .await;
    let shown = visible(&door.world, &log).await;
    assert!(shown.contains("template"), "something was said of it");
    silent(&shown, &[], "afterwards");
    door.stop().await;
}

#[tokio::test]
async fn a_template_says_why_it_refuses_where_that_is_not_of_a_secret() {
    let door = Door::new().await;
    put(&door.world, "orders-p", CONTENT).await;
    let mut operator = door.of("operator");
    let template = "ok\n{{ cluster.nope.more }}";
    let answer = apply(&mut operator, telling("orders-p", template)).await;
    let status = refused(answer, Reason::Invalid);
    assert!(
        status.message().contains("line 2") && status.message().contains("undefined value"),
        "{status:?}"
    );
    door.stop().await;
}

#[tokio::test]
async fn what_a_platform_repeats_is_hidden_whichever_call_it_answers() {
    let (log, _logged) = logged();
    let world = World::new().await;
    put(&world, "orders-p", CONTENT).await;
    let backend = world.site.backend().clone();
    let repeats = || {
        let said = format!(
            "the backend got {CONTENT} and {}",
            base64(CONTENT.as_bytes())
        );
        Fault::Refuse(Error::new(Reason::Precondition, said))
    };
    backend.fail_next(Operation::Create, repeats());
    world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    until("the failure is told", async || {
        let told = format!("{:?}", world.events("orders").await);
        told.contains(HIDDEN).then_some(())
    })
    .await;
    // Permanent failures are not retried until the spec changes.
    world
        .apply(telling("orders-p", "{{ secrets.p }}."))
        .await
        .unwrap();
    world.ready("orders").await;
    // This call does not carry the content, so only the orchestrator knows what to redact.
    backend.fail_next(Operation::Delete, repeats());
    let shown = visible(&world, &Log::default()).await;
    world.delete("orders").await.unwrap();
    world.gone("orders").await;
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    // The backend's own server was not told what to redact, and logs it as instructed.
    let ours = logged.lines().filter(|line| !line.contains("Deprovision"));
    let ours: Vec<&str> = ours.collect();
    let failed = ours.iter().find(|line| line.contains("removal failed"));
    assert!(
        failed.is_some_and(|line| line.contains(HIDDEN)),
        "{failed:?}"
    );
    let encoded = base64(CONTENT.as_bytes())[..24].to_owned();
    silent(
        &format!("{shown} {}", ours.join("\n")),
        &[encoded],
        "afterwards",
    );
    world.stop().await;
}

/// A platform that refuses logs and commands with a revealing error.
#[derive(Clone, Default)]
struct Tells {
    /// Opens the stream first and fails within it.
    opens: Arc<AtomicBool>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Tells {
    /// Replaces the node access service of another platform.
    fn beside(&self) -> impl FnOnce(Routes) -> Routes {
        let service = NodeAccessServiceServer::new(self.clone());
        |routes| routes.add_service(service)
    }

    fn answer<T: Default + Send + 'static>(&self) -> Result<Response<Answers<T>>, Status> {
        let said = format!("cannot be had in an environment of PASSWORD={CONTENT}");
        let status = Status::failed_precondition(said);
        if !self.opens.load(Ordering::Relaxed) {
            return Err(status);
        }
        let items = [Ok(T::default()), Err(status)];
        let items: Answers<T> = Box::pin(futures::stream::iter(items));
        Ok(Response::new(items))
    }
}

#[tonic::async_trait]
impl NodeAccessService for Tells {
    type StreamLogsStream = Answers<wire::StreamLogsResponse>;
    type ExecStream = Answers<wire::ExecResponse>;

    async fn stream_logs(
        &self,
        _: Request<wire::StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        self.answer()
    }

    async fn exec(
        &self,
        _: Request<Streaming<wire::ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        self.answer()
    }
}

/// Sets the message of the nodes that the platform shows.
async fn say(world: &World, told: &Told, message: String) {
    let mut node = world.site.backend().nodes().remove(0);
    node.message = message;
    let nodes = vec![node];
    told.says(world, [Event::Upserts(wire::NodeUpserts { nodes })])
        .await;
}

/// A cluster whose nodes are never replaced.
fn lasting(cluster: pb::Cluster) -> pb::Cluster {
    changed(cluster, |spec| {
        spec.update = Some(pb::UpdatePolicy {
            strategy: pb::UpdateStrategy::OnDelete.into(),
            ..Default::default()
        });
    })
}

#[tokio::test]
async fn what_a_platform_says_of_nodes_and_of_commands_in_them_is_heard_without_secrets() {
    let (log, _logged) = logged();
    let world = World::bare(SimulatedSettings::default()).await;
    let told = Told::beside(&world, Tells::default().beside()).await;
    put(&world, "orders-p", CONTENT).await;
    let cluster = telling("orders-p", "{{ secrets.p }}");
    world.apply(cluster.clone()).await.unwrap();
    world.ready("orders").await;

    let message = format!(
        "back-off: PASSWORD={CONTENT}, {}",
        base64(CONTENT.as_bytes())
    );
    say(&world, &told, message).await;
    let encoded = base64(CONTENT.as_bytes())[..24].to_owned();
    let shown = visible(&world, &Log::default()).await;
    assert!(shown.contains("back-off: PASSWORD"), "{shown}");
    silent(&shown, &[encoded], "of a node");

    let probed = changed(cluster, |spec| {
        let command = vec!["true".to_owned()];
        spec.health = Some(wire::HealthPolicy {
            probe: Some(Probe::Exec(wire::ExecProbe { command })),
            ..Default::default()
        });
    });
    world.apply(probed).await.unwrap();
    let shown = until("what is wrong with the probe is told", async || {
        let shown = visible(&world, &Log::default()).await;
        shown.contains("in an environment of").then_some(shown)
    })
    .await;
    silent(&shown, &[], "of a command");
    let logged = String::from_utf8_lossy(&log.0.lock()).into_owned();
    let targets = [
        "orchestrator",
        "executor",
        "platforms",
        "probes",
        "secrets",
        "cluster",
    ];
    let is_ours = |line: &&str| {
        let mut targets = targets.iter();
        targets.any(|target| line.contains(&format!("drover_{target}")))
    };
    let ours: Vec<&str> = logged.lines().filter(is_ours).collect();
    assert!(!ours.is_empty(), "at least that it is connected: {logged}");
    silent(&ours.join("\n"), &[], "in the log");
    world.stop().await;
}

#[tokio::test]
async fn what_nodes_of_an_earlier_spec_say_is_heard_without_what_that_spec_gave_them() {
    let inline = format!("token: {CONTENT}");
    for (earlier, what) in [
        (telling("orders-p", "{{ secrets.p }}"), "another secret"),
        (telling("orders-q", &inline), "user data of its own"),
    ] {
        let world = World::bare(SimulatedSettings::default()).await;
        let told = Told::in_front_of(&world).await;
        put(&world, "orders-p", CONTENT).await;
        put(&world, "orders-q", "nothing of the kind").await;
        world.apply(lasting(earlier)).await.unwrap();
        world.ready("orders").await;
        let now = telling("orders-q", "{{ secrets.p }}");
        world.apply(lasting(now)).await.unwrap();
        assert!(world.nodes("orders").await[0].outdated, "{what}");

        say(&world, &told, format!("back-off: PASSWORD={CONTENT}")).await;
        let shown = visible(&world, &Log::default()).await;
        assert!(shown.contains("back-off: PASSWORD"), "{what}: {shown}");
        silent(&shown, &[], what);
        world.stop().await;
    }
}

#[tokio::test]
async fn nothing_is_shown_of_what_nodes_say_whose_secret_is_there_no_more() {
    let world = World::bare(SimulatedSettings::default()).await;
    let told = Told::in_front_of(&world).await;
    put(&world, "orders-p", CONTENT).await;
    put(&world, "orders-q", "nothing of the kind").await;
    let with = |secret: &str| lasting(telling(secret, "{{ secrets.p }}"));
    world.apply(with("orders-p")).await.unwrap();
    world.ready("orders").await;
    world.apply(with("orders-q")).await.unwrap();
    let delete = pb::DeleteSecretRequest {
        name: "orders-p".to_owned(),
    };
    // No spec refers to it any more, but it is still needed to redact what a node says.
    let answer = world.secrets().delete_secret(delete).await;
    refused(answer, Reason::SecretInUse);
    lose(&world, "orders-p").await;

    say(&world, &told, format!("back-off: PASSWORD={CONTENT}")).await;
    let shown = visible(&world, &Log::default()).await;
    assert!(shown.contains("[hidden: "), "{shown}");
    assert!(!shown.contains("back-off"), "{shown}");
    silent(&shown, &[], "of a node");

    // Once no node is left that was given it, nothing needs to be redacted for the others.
    let replace = pb::ReplaceNodeRequest {
        cluster: "orders".to_owned(),
        id: world.nodes("orders").await[0].id.clone(),
    };
    world.clusters().replace_node(replace).await.unwrap();
    until("another one is in its place", async || {
        let nodes = world.nodes("orders").await;
        let is_new = |node: &pb::Node| node.state() == pb::NodeState::Ready && !node.outdated;
        (nodes.len() == 1 && nodes.iter().all(is_new)).then_some(())
    })
    .await;
    say(&world, &told, "back-off: again".to_owned()).await;
    let shown = visible(&world, &Log::default()).await;
    assert!(shown.contains("back-off: again"), "{shown}");
    world.stop().await;
}

/// Deletes a secret from the store, bypassing the checks.
async fn lose(world: &World, secret: &str) {
    let txn = Txn::default().delete(Name::Secret(secret.to_owned()).into());
    let backend = world.backend.upgrade().unwrap();
    backend.commit(txn, Lane::Bulk).await.unwrap();
}

#[tokio::test]
async fn a_secret_of_a_cluster_that_is_being_deleted_stays_as_long_as_nodes_of_it() {
    let world = World::bare(SimulatedSettings::default()).await;
    let told = Told::in_front_of(&world).await;
    put(&world, "orders-p", CONTENT).await;
    world
        .apply(lasting(telling("orders-p", "{{ secrets.p }}")))
        .await
        .unwrap();
    world.ready("orders").await;
    world.site.backend().pause_backend(true);
    world.delete("orders").await.unwrap();
    let delete = pb::DeleteSecretRequest {
        name: "orders-p".to_owned(),
    };
    let answer = world.secrets().delete_secret(delete.clone()).await;
    refused(answer, Reason::SecretInUse);
    world.site.backend().pause_backend(false);
    world.gone("orders").await;
    world.secrets().delete_secret(delete).await.unwrap();
    drop(told);
    world.stop().await;
}

/// The error with which a stream fails to open, or ends.
async fn failure<T>(opened: Result<Response<Streaming<T>>, Status>) -> Status {
    let mut stream = match opened {
        Ok(opened) => opened.into_inner(),
        Err(status) => return status,
    };
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without an error"),
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn why_there_is_no_log_and_no_shell_is_said_without_secrets() {
    let world = World::bare(SimulatedSettings::default()).await;
    let tells = Tells::default();
    let _told = Told::beside(&world, tells.beside()).await;
    put(&world, "orders-p", CONTENT).await;
    world
        .apply(telling("orders-p", "{{ secrets.p }}"))
        .await
        .unwrap();
    world.ready("orders").await;
    let id = world.nodes("orders").await[0].id.clone();
    for opens in [false, true] {
        tells.opens.store(opens, Ordering::Relaxed);
        let logs = pb::StreamNodeLogsRequest {
            cluster: "orders".to_owned(),
            id: id.clone(),
            ..Default::default()
        };
        let start = pb::ExecNodeStart {
            cluster: "orders".to_owned(),
            id: id.clone(),
            command: vec!["true".to_owned()],
            ..Default::default()
        };
        let start = pb::ExecNodeRequest {
            input: Some(pb::exec_node_request::Input::Start(start)),
        };
        let logs = world.clusters().stream_node_logs(logs).await;
        let logs = failure(logs).await;
        let shell = futures::stream::iter([start]);
        let shell = failure(world.clusters().exec_node(shell).await).await;
        for (status, what) in [(logs, "a log"), (shell, "a shell")] {
            let said = status.message().contains("in an environment of PASSWORD");
            assert!(said, "{what}, {opens}: {status:?}");
            silent(&format!("{status:?}"), &[], what);
        }
    }
    world.stop().await;
}
