//! A store that is backed up during writes, lost, and restored according to `docs/operate/backup.md`: no healthy node
//! is deleted before a person confirms, none is lost and none is duplicated.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use crate::real;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drover_client::OrchestratorClient;
use drover_proto::orchestrator::v1 as pb;
use real::{World, binary, insist};

const CALL: Duration = Duration::from_secs(60);

/// The commands of a page in order: the lines of its `sh` blocks.
fn commands(page: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/operate")
        .join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let (mut commands, mut inside) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => commands.push(line.to_owned()),
            _ => {}
        }
    }
    commands
}

/// Paths in the test for the files named by the pages.
struct Places {
    store: PathBuf,
    backups: PathBuf,
}

impl Places {
    fn of(world: &World) -> Self {
        let backups = world.directory.path().join("backups");
        std::fs::create_dir(&backups).unwrap();
        Self {
            store: world.store(),
            backups,
        }
    }

    /// Runs the only command of a page that contains these words.
    fn run(&self, page: &str, words: &str) -> Output {
        let found: Vec<_> = commands(page)
            .into_iter()
            .filter(|command| command.contains(words))
            .collect();
        let [command] = &found[..] else {
            panic!("{page}: {words}: {found:?}");
        };
        let command = command
            .replace("/var/lib/drover/store", self.store.to_str().unwrap())
            .replace("/var/backups", self.backups.to_str().unwrap());
        let tools = binary("drover-orchestrator");
        let path = std::env::join_paths(
            std::iter::once(tools.parent().unwrap().to_owned())
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
        );
        Command::new("sh")
            .args(["-ec", &command])
            .env("PATH", path.unwrap())
            .output()
            .unwrap()
    }

    fn done(&self, page: &str, words: &str) -> String {
        let output = self.run(page, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words}: {said}");
        said
    }
}

async fn apply(client: &OrchestratorClient, name: &str, size: u32) {
    let cluster = pb::Cluster {
        name: name.to_owned(),
        spec: Some(pb::ClusterSpec {
            platforms: vec![pb::PlatformChoice {
                name: "local".to_owned(),
                ..Default::default()
            }],
            groups: vec![pb::GroupSpec {
                name: "web".to_owned(),
                size: Some(size),
                ..Default::default()
            }],
            termination_grace_period: Some(prost_types::Duration {
                seconds: 2,
                nanos: 0,
            }),
            orphan_grace: Some(prost_types::Duration {
                seconds: 1,
                nanos: 0,
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let request = pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    };
    client.apply_cluster(request, CALL).await.unwrap();
}

async fn holds(world: &World, name: &str, kind: &str) -> bool {
    let cluster = world.cluster(name).await.ok().flatten();
    let status = cluster.and_then(|cluster| cluster.status);
    status.is_some_and(|status| {
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.r#type == kind && condition.status())
    })
}

/// Number of nodes without a record that the plan reports as seen but left alone.
async fn kept_orphans(world: &World, name: &str) -> usize {
    let request = pb::PlanClusterRequest {
        subject: Some(pb::plan_cluster_request::Subject::Name(name.to_owned())),
        ..Default::default()
    };
    let answer = world.client().plan_cluster(request, CALL).await;
    let plan = answer.ok().and_then(|answer| answer.plan);
    plan.map_or(0, |plan| {
        let notes = plan.report.iter();
        notes
            .filter(|note| note.reason == "StoreBehind" && note.message.contains("no record"))
            .count()
    })
}

/// Whether every record has exactly one process and one directory, and there are no others.
async fn exact(world: &World, clusters: &[&str], size: usize) -> bool {
    let mut recorded = BTreeSet::new();
    for name in clusters {
        let records = world.records(name).await.unwrap_or_default();
        recorded.extend(records.into_iter().filter_map(|it| it.platform_node_id));
    }
    let directories: BTreeSet<String> = world.node_directories().into_iter().collect();
    world.processes().len() == size && recorded.len() == size && recorded == directories
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_store_is_restored_and_what_was_made_since_stays_until_a_person_confirms() {
    let mut world = World::new().await;
    let places = Places::of(&world);
    apply(&world.client(), "orders", 2).await;
    apply(&world.client(), "busy", 1).await;
    world.ready("orders", 2).await;
    world.ready("busy", 1).await;
    let kept: BTreeSet<u32> = world.processes().into_keys().collect();

    // The backup is taken while nodes are being created and the orchestrator has the store open.
    let stop = Arc::new(AtomicBool::new(false));
    let (told, client) = (stop.clone(), world.client());
    let writing = tokio::spawn(async move {
        let mut written = 0_u32;
        while !told.load(Ordering::Relaxed) || written == 0 {
            let request = pb::ScaleGroupRequest {
                cluster: "busy".to_owned(),
                group: "web".to_owned(),
                size: Some(1 + written % 2),
                ..Default::default()
            };
            client.scale_group(request, CALL).await.unwrap();
            written += 1;
        }
        written
    });
    let running = world.orchestrator.pid();
    places.done("backup.md", "store backup");
    stop.store(true, Ordering::Relaxed);
    println!("{} changes during the backup", writing.await.unwrap());
    assert!(
        !places.run("backup.md", "store backup").status.success(),
        "it exists"
    );
    assert!(
        !places.run("backup.md", "store dump").status.success(),
        "it is in use"
    );
    assert_eq!(world.orchestrator.pid(), running);

    // Operation continues with more nodes and a restart of the orchestrator; then the store is lost.
    world.orchestrator.kill();
    world.orchestrator.start().await;
    insist(async || world.scale("orders", 4).await).await;
    insist(async || world.scale("busy", 1).await).await;
    world.ready("orders", 4).await;
    world.ready("busy", 1).await;
    world
        .until("five nodes", async |world| {
            exact(world, &["orders", "busy"], 5).await
        })
        .await;
    let healthy: BTreeSet<u32> = world.processes().into_keys().collect();
    world.orchestrator.kill();
    places.done("backup.md", "mv ");
    let said = places.done("backup.md", "store restore");
    assert!(said.contains("confirm-restore"), "{said}");
    world.orchestrator.start().await;

    world
        .until("it says that it is behind", async |world| {
            holds(world, "orders", "StoreBehind").await
        })
        .await;
    world
        .until("two nodes without a record are kept", async |world| {
            kept_orphans(world, "orders").await == 2
        })
        .await;
    let now: BTreeSet<u32> = world.processes().into_keys().collect();
    assert!(now.is_superset(&healthy), "{healthy:?} {now:?}");
    assert!(holds(&world, "orders", "StoreBehind").await);

    world.orchestrator.kill();
    assert!(
        places
            .done("backup.md", "confirm-restore")
            .contains("confirmed")
    );
    world.orchestrator.start().await;
    insist(async || world.scale("busy", 1).await).await;
    world.ready("orders", 2).await;
    world.ready("busy", 1).await;
    world
        .until("as wanted, and nothing else", async |world| {
            exact(world, &["orders", "busy"], 3).await
        })
        .await;
    assert!(!holds(&world, "orders", "StoreBehind").await);
    // The nodes in the backup were never touched: at least all of `orders`, whatever happened to `busy`.
    let now: BTreeSet<u32> = world.processes().into_keys().collect();
    assert!(now.intersection(&kept).count() >= 2, "{kept:?} {now:?}");

    // The restored orchestrator is fully functional.
    insist(async || world.scale("orders", 4).await).await;
    world.ready("orders", 4).await;
    world
        .until("five nodes again", async |world| {
            exact(world, &["orders", "busy"], 5).await
        })
        .await;
    world.orchestrator.kill();
    let dump = places.run("backup.md", "store dump");
    let lines = String::from_utf8(dump.stdout).unwrap();
    assert!(dump.status.success() && lines.contains("\"orders\""));
    places.done("upgrade.md", "store backup");
}
