//! Faults while clusters are running: each is reported where a user looks, does not cost any serving node, and has a
//! working remedy. Faults of images, of preStop hooks and of the orchestrator's disk are in `resilience`.
//!
//! Two of them fill a small disk (tmpfs) of their own, which needs root.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::real;
use drover_simulation as sim;
mod files;

use std::{cell::RefCell, fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use drover_core::{Error, Reason};
use drover_platform_cloud::drivers::simulated::{Death, Fault, Operation};
use drover_proto::{
    orchestrator::v1::{self as pb, secret_value},
    platform::v1::{HealthPolicy, Lifecycle, LifecycleHook, NodeRole, Platform},
};
use prost_types::{Struct, Value, value::Kind};
use real::{
    Server, World, binary,
    disk::Disk,
    insist, kill_9,
    look::{self, condition, described, ids, process, ready, records},
};

const CALL: Duration = Duration::from_secs(20);

fn span(millis: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: i64::from(millis / 1_000),
        nanos: millis % 1_000 * 1_000_000,
    })
}

/// Nodes run a script from the spec. They are ready when the script says so.
const SCRIPTED: &str = r#"
command: sh
arguments: [-c, {{ group.attributes.script | tojson }}]
environment: {PASSWORD: {{ secrets.password | default("none") | tojson }}}
readiness: {file: ready}
"#;

/// End of the script of a node that becomes ready.
const SERVE: &str = ": >\"$DROVER_DIR/ready\"; exec sleep 100000";

/// A group `web` on `local` whose nodes run this script before they serve.
fn document(name: &str, size: u32, script: &str) -> pb::Cluster {
    let kind = Some(Kind::StringValue(format!("{script}; {SERVE}")));
    let fields = [("script".to_owned(), Value { kind })].into();
    let spec = pb::ClusterSpec {
        store: Some(pb::StoreSpec {
            software: "scripted".to_owned(),
            ..Default::default()
        }),
        platforms: vec![pb::PlatformChoice {
            name: "local".to_owned(),
            ..Default::default()
        }],
        groups: vec![pb::GroupSpec {
            name: "web".to_owned(),
            size: Some(size),
            ..Default::default()
        }],
        attributes: Some(Struct { fields }),
        update: Some(pb::UpdatePolicy {
            progress_deadline: span(2_000),
            ..Default::default()
        }),
        termination_grace_period: span(2_000),
        ..Default::default()
    };
    pb::Cluster {
        name: name.to_owned(),
        spec: Some(spec),
        ..Default::default()
    }
}

async fn apply(world: &World, cluster: &pb::Cluster) -> Result<(), Error> {
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster.clone()),
        ..Default::default()
    };
    world.client().apply_cluster(request, CALL).await.map(drop)
}

async fn put(world: &World, name: &str, key: &str, text: &str) {
    let value = Some(secret_value::Value::Text(text.to_owned()));
    let request = pb::ApplySecretRequest {
        name: name.to_owned(),
        data: [(key.to_owned(), pb::SecretValue { value })].into(),
        purpose: match name {
            "door" => pb::SecretPurpose::Platform.into(),
            _ => pb::SecretPurpose::Workload.into(),
        },
        ..Default::default()
    };
    world.client().apply_secret(request, CALL).await.unwrap();
}

/// Waits until a condition holds for this reason with all these words, and checks that `describe` shows it. Returns its
/// message.
async fn named(world: &World, name: &str, kind: &str, reason: &str, words: &[&str]) -> String {
    let last = RefCell::new(None);
    let what = format!("{kind} ({reason}) holds and says {words:?}");
    world
        .until(&what, async |world| {
            last.replace(condition(world, name, kind).await);
            let last = last.borrow();
            last.as_ref().is_some_and(|(of, message)| {
                of == reason && words.iter().all(|word| message.contains(word))
            })
        })
        .await;
    let (_, message) = last.into_inner().unwrap();
    let said = described(world, name);
    for words in [kind, reason, &message] {
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    message
}

async fn ended(world: &World, name: &str, kind: &str) {
    world
        .until(&format!("{kind} ends"), async |world| {
            condition(world, name, kind).await.is_none()
        })
        .await;
}

/// Output of the command line.
fn drover(world: &World, arguments: &[&str]) -> String {
    let output = look::drover(world, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn of_role(nodes: &[pb::Node], role: NodeRole) -> Vec<&pb::Node> {
    nodes.iter().filter(|node| node.role() == role).collect()
}

/// A world, not yet started, with the scripted template on its platform and an orchestrator that supports secrets.
fn scripted() -> World {
    let mut world = World::stopped();
    let catalogue = world.state().with_file_name("catalogue");
    fs::create_dir(&catalogue).unwrap();
    let index = "stores: [{store: scripted, versions: [{version: '*', template: scripted.yaml}]}]";
    fs::write(catalogue.join("index.yaml"), index).unwrap();
    fs::write(catalogue.join("scripted.yaml"), SCRIPTED).unwrap();
    world
        .platform
        .add(&["--templates", catalogue.to_str().unwrap()]);
    let keys = world.store().with_file_name("keys");
    fs::write(&keys, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n").unwrap();
    allow(&keys, true);
    world
        .orchestrator
        .add(&["--secrets-key-file", keys.to_str().unwrap()]);
    world
}

async fn start(world: &mut World) {
    world.platform.start().await;
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    platform_is(world, pb::PlatformPhase::Ready).await;
}

async fn platform_is(world: &World, phase: pb::PlatformPhase) {
    world
        .until(&format!("the platform is {phase:?}"), async |world| {
            world.platform_status("local").await.phase() == phase
        })
        .await;
}

/// Makes a file readable by its owner only, or by nobody.
fn allow(path: &Path, is_allowed: bool) {
    let mode = if is_allowed { 0o600 } else { 0 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_promote_hook_that_hangs_is_named_with_its_node_and_no_other_one_is_tried_while_it_lives()
 {
    let mut world = scripted();
    start(&mut world).await;
    let mut cluster = document("store", 1, "true");
    let hook = |cluster: &mut pb::Cluster, script: &str| {
        let group = &mut cluster.spec.as_mut().unwrap().groups[0];
        group.standby = Some(2);
        group.lifecycle = Some(Lifecycle {
            post_promote: Some(LifecycleHook {
                exec: ["sh", "-c", script].map(str::to_owned).into(),
                timeout: span(1_000),
                fences: false,
            }),
            ..Lifecycle::default()
        });
    };
    hook(&mut cluster, "exec sleep 1000");
    apply(&world, &cluster).await.unwrap();
    world.ready("store", 3).await;
    let nodes = records(&world, "store").await;
    kill_9(process(of_role(&nodes, NodeRole::Active)[0]));
    let words = ["postPromote did not end within 1s", "no other one is tried"];
    let message = named(&world, "store", "PromotionFailed", "Unknown", &words).await;
    let mut standby = nodes.iter().filter(|node| node.role() == NodeRole::Standby);
    let tried = standby.find(|node| message.starts_with(&node.name));
    let tried = tried.unwrap_or_else(|| panic!("whose hook it is: {message}"));

    // A new standby replaces the dead node; running nodes stay, and only one of them may be active.
    world
        .until("the dead one is replaced", async |world| {
            ready(&world.records("store").await.unwrap_or_default()).len() == 3
        })
        .await;
    let now = records(&world, "store").await;
    let (before, serving) = (ids(&nodes), ready(&now));
    assert_eq!(before.intersection(&serving).count(), 2, "{now:?}");
    let promoting = now.iter().filter(|node| node.reason == "Promoting");
    let promoting: Vec<&str> = promoting.map(|node| &*node.id).collect();
    assert_eq!(promoting, [&tried.id], "{now:?}");
    assert!(of_role(&now, NodeRole::Active).is_empty(), "{now:?}");

    // One remedy: without that node, another one is tried.
    drover(&world, &["replace", &format!("store/{}", tried.name)]);
    world
        .until("another one is tried", async |world| {
            let said = condition(world, "store", "PromotionFailed").await;
            said.is_some_and(|(_, message)| !message.starts_with(&tried.name))
        })
        .await;
    assert!(!ids(&records(&world, "store").await).contains(&tried.id));

    // The other remedy: a working hook.
    hook(&mut cluster, "true");
    apply(&world, &cluster).await.unwrap();
    world.ready("store", 3).await;
    ended(&world, "store", "PromotionFailed").await;
    let now = records(&world, "store").await;
    assert_eq!(of_role(&now, NodeRole::Active).len(), 1, "{now:?}");
}

#[test]
fn a_standby_that_its_platform_does_not_promote_is_named_and_promoted_when_it_does() {
    sim::runtime().block_on(async {
        let mut world = sim::World::new(sim::settings(), sim::immortal()).await;
        let with = |spec: &mut pb::ClusterSpec| {
            (spec.groups[0].size, spec.groups[0].standby) = (Some(1), Some(1));
        };
        let groups = [("db", 2)];
        world.try_apply_with("one", &groups, &with).await.unwrap();
        world.converge().await;
        let records = world.records("one").await;
        let active = of_role(&records, NodeRole::Active)[0];
        let standby = of_role(&records, NodeRole::Standby)[0];
        let backend = &world.site.backend;
        for _ in 0..4 {
            let refusal = Error::new(Reason::Precondition, "labels are frozen");
            backend.fail_next(Operation::Update, Fault::Refuse(refusal));
        }
        backend.kill(active.platform_node_id.as_ref().unwrap(), Death::Failed);
        let begin = format!("Refused: {}: ", standby.name);
        world
            .until("the refusal is named", async |world| {
                let said = world.condition("one", "PromotionFailed").await;
                said.is_some_and(|said| said.starts_with(&begin) && said.contains("frozen"))
            })
            .await;
        let serving = ready(&world.records("one").await);
        assert!(serving.contains(&standby.id), "it runs on: {serving:?}");
        // Recovery: the platform changes labels again.
        world.check().await;
        assert_eq!(world.condition("one", "PromotionFailed").await, None);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_never_gets_ready_is_named_and_the_active_one_goes_on() {
    let mut world = scripted();
    start(&mut world).await;
    let way = world.state().with_file_name("way");
    // The standby can follow once the file `way` exists.
    let follow = format!(
        "read -r role <\"$DROVER_ROLE_FILE\"; until [ $role = active ] || [ -e {} ]; do sleep 0.1; done",
        way.display()
    );
    let mut cluster = document("store", 1, &follow);
    let spec = cluster.spec.as_mut().unwrap();
    spec.groups[0].standby = Some(1);
    spec.health = Some(HealthPolicy {
        startup_timeout: span(3_000),
        ..Default::default()
    });
    apply(&world, &cluster).await.unwrap();
    let words = [
        "web: 3 attempts on local failed",
        "web-1: is not healthy after 3s",
    ];
    named(&world, "store", "Failed", "PlatformFailed", &words).await;
    let nodes = records(&world, "store").await;
    let active = of_role(&nodes, NodeRole::Active)[0];
    assert_eq!(active.state(), pb::NodeState::Ready, "{nodes:?}");
    let said = described(&world, "store");
    assert!(said.contains("standby 0 of 1"), "{said}");
    // Recovery.
    fs::write(&way, "").unwrap();
    insist(async || world.reset_back_off("store").await).await;
    world.ready("store", 2).await;
    ended(&world, "store", "Failed").await;
    let now = records(&world, "store").await;
    assert_eq!(of_role(&now, NodeRole::Active)[0].id, active.id);
}

/// Scales from two nodes to three while the disk is full, then frees the disk.
async fn survives(world: &World, disk: &Disk, words: &[&str]) {
    world.ready("hello", 2).await;
    let before = ready(&records(world, "hello").await);
    disk.fill();
    world.scale("hello", 3).await.unwrap();
    named(world, "hello", "Failed", "PlatformFailed", words).await;
    let now = records(world, "hello").await;
    assert!(before.is_subset(&ready(&now)), "{before:?} of {now:?}");
    // Recovery.
    disk.free();
    insist(async || world.reset_back_off("hello").await).await;
    world.ready("hello", 3).await;
    ended(world, "hello", "Failed").await;
    let now = ids(&records(world, "hello").await);
    assert!(before.is_subset(&now), "{before:?} of {now:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_disk_is_full_is_named_and_those_that_serve_stay() {
    let mut world = scripted();
    let at = world.state().with_file_name("data");
    let disk = Disk::mount(at.clone(), 1);
    start(&mut world).await;
    let keep = format!("echo data >{}/$$ || exit 28", at.display());
    let cluster = document("hello", 2, &keep);
    apply(&world, &cluster).await.unwrap();
    let words = [
        "3 attempts on local failed",
        "web-2: died",
        "exited with code 28",
    ];
    survives(&world, &disk, &words).await;
    drop(world);
    drop(disk);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_whose_disk_is_full_is_named_in_the_condition_of_who_asks_for_nodes() {
    let mut world = World::stopped();
    let disk = Disk::mount(world.state(), 4);
    start(&mut world).await;
    world.apply("hello", "", 2).await.unwrap();
    survives(&world, &disk, &["No space left"]).await;
    drop(world);
    drop(disk);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_of_a_wrong_value_blocks_the_update_that_brings_it_and_costs_no_node() {
    let mut world = scripted();
    start(&mut world).await;
    put(&world, "shop", "password", "right").await;
    let guarded = "while [ \"$PASSWORD\" != right ]; do sleep 1000; done";
    let mut cluster = document("shop", 3, guarded);
    cluster.spec.as_mut().unwrap().secrets = vec![pb::TemplateSecret {
        name: "password".to_owned(),
        secret_key_ref: Some(pb::SecretKeyRef {
            name: "shop".to_owned(),
            key: "password".to_owned(),
        }),
    }];
    apply(&world, &cluster).await.unwrap();
    world.ready("shop", 3).await;
    let before = ready(&records(&world, "shop").await);

    put(&world, "shop", "password", "hush-hush").await;
    drover(&world, &["rollout", "restart", "shop"]);
    let words = ["does not become ready"];
    let message = named(&world, "shop", "UpdateBlocked", "ProgressDeadline", &words).await;
    let now = records(&world, "shop").await;
    assert_eq!(ready(&now), before, "surge 1, unavailable 0: {now:?}");
    let stuck = now.iter().find(|node| !before.contains(&node.id)).unwrap();
    assert!(message.contains(&stuck.name), "{message}");
    assert!(!described(&world, "shop").contains("hush"));

    // Recovery: the corrected secret reaches nodes that are created from now on.
    put(&world, "shop", "password", "right").await;
    drover(&world, &["replace", &format!("shop/{}", stuck.name)]);
    world.ready("shop", 3).await;
    ended(&world, "shop", "UpdateBlocked").await;
    assert!(before.is_disjoint(&ids(&records(&world, "shop").await)));
}

/// Access rules of the platform.
const RULES: &str = "
tokens: [{name: orchestrator, token: right-0123456789}]
bindings: [{role: platform, subjects: ['token:orchestrator']}]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_for_a_platform_is_named_and_what_runs_there_is_left_alone() {
    let mut world = scripted();
    let rules = world.state().with_file_name("access.yaml");
    fs::write(&rules, RULES).unwrap();
    world.platform.add(&["--access", rules.to_str().unwrap()]);
    world.platform.start().await;
    world.orchestrator.start().await;
    put(&world, "door", "token", "right-0123456789").await;
    let mut platform = pb::Platform {
        name: "local".to_owned(),
        ..Default::default()
    };
    let spec = platform.spec.get_or_insert_default();
    spec.endpoint = world.platform.endpoint();
    spec.token_secret = "door".to_owned();
    let request = pb::RegisterPlatformRequest {
        platform: Some(platform),
        ..Default::default()
    };
    let client = world.client();
    client.register_platform(request, CALL).await.unwrap();
    platform_is(&world, pb::PlatformPhase::Ready).await;
    world.apply("hello", "", 2).await.unwrap();
    world.ready("hello", 2).await;
    let before = world.processes();

    put(&world, "door", "token", "wrong-0123456789").await;
    world.platform.kill();
    world.platform.start().await;
    world
        .until("the platform says why", async |world| {
            let status = world.platform_status("local").await;
            status.phase() == pb::PlatformPhase::Unreachable && status.message.contains("token")
        })
        .await;
    // The error is reported without a request for more nodes.
    let (kind, words) = ("PlatformUnavailable", ["the token is not known here"]);
    let message = named(&world, "hello", kind, kind, &words).await;
    assert!(message.starts_with("local "), "{message}");
    let said = described(&world, "hello");
    assert!(!said.contains("0123456789"), "{said}");
    assert_eq!(world.processes(), before, "they are left alone");

    // Recovery.
    put(&world, "door", "token", "right-0123456789").await;
    world.ready("hello", 2).await;
    ended(&world, "hello", kind).await;
    let now = world.processes();
    assert!(before.iter().all(|(pid, id)| now.get(pid) == Some(id)));
}

/// A script that runs a program with file permissions enforced, even if it is run by root.
fn bound_by_rights(world: &World, program: &str) -> &'static str {
    let path = world.state().with_file_name(format!("bound-{program}"));
    let binary = binary(program);
    let drop = if rustix::process::geteuid().is_root() {
        "setpriv --bounding-set=-all --inh-caps=-all --"
    } else {
        ""
    };
    let text = format!("#!/bin/sh\nexec {drop} {} \"$@\"\n", binary.display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned().leak()
}

/// The same server with file permissions enforced.
fn bind(world: &World, server: &Server, name: &str, arguments: &str) -> Server {
    let script = bound_by_rights(world, name);
    let arguments: Vec<&str> = arguments.split(' ').collect();
    Server::new(script, &world.state(), server.address.port(), &arguments)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_that_may_not_be_read_is_named_and_the_last_good_one_makes_nodes() {
    let mut world = scripted();
    let (state, catalogue) = (world.state(), world.state().with_file_name("catalogue"));
    let (at, templates) = (state.display(), catalogue.display());
    let arguments = format!("--driver local --state-dir {at} --templates {templates}");
    world.platform = bind(&world, &world.platform, "drover-platform-cloud", &arguments);
    start(&mut world).await;
    apply(&world, &document("hello", 2, "true")).await.unwrap();
    world.ready("hello", 2).await;
    let before = ids(&records(&world, "hello").await);
    let template = catalogue.join("scripted.yaml");
    let is_named = |said: &str| {
        said.contains(template.to_str().unwrap()) && said.contains("Permission denied")
    };

    allow(&template, false);
    world
        .until("the file is named", async |world| {
            let conditions = world.platform_status("local").await.conditions;
            let mut warned = conditions.iter().filter(|c| c.r#type == "Warned");
            warned.any(|c| c.status == Some(true) && is_named(&c.message))
        })
        .await;
    let said = drover(&world, &["describe", "platform", "local"]);
    assert!(is_named(&said) && said.contains("last good one"), "{said}");
    world.scale("hello", 3).await.unwrap();
    world.ready("hello", 3).await;
    assert!(before.is_subset(&ids(&records(&world, "hello").await)));

    // After a restart there is no last good template. Nodes keep running.
    world.platform.kill();
    let processes = world.processes();
    world.platform.launch();
    let (well, said) = world.platform.ended().await;
    assert!(!well && is_named(&said), "{said}");
    assert_eq!(world.processes(), processes);

    // Recovery.
    allow(&template, true);
    world.platform.start().await;
    world
        .until("nothing warns of the file", async |world| {
            let status = world.platform_status("local").await;
            let warned = |it: &Platform| it.warnings.iter().any(|it| is_named(it));
            status.phase() == pb::PlatformPhase::Ready
                && status.handshake.is_some_and(|it| !warned(&it))
        })
        .await;
    world.ready("hello", 3).await;
    assert_eq!(world.processes(), processes);
}
