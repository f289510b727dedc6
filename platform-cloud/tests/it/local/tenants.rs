//! Isolation between clusters that share a machine. Tests that need root are skipped otherwise.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Stdio,
    sync::Arc,
};

use drover_platform::driver::Driver;
use drover_platform_cloud::drivers::local::{Isolation, LocalDriver};
use drover_proto::platform::v1::{Node, ProvisionRequest};
use prost_types::{Struct, Value, value::Kind};
use tempfile::TempDir;

use super::{inside::exec, text};
use crate::local_support::{
    World, adoption, pid, program_in, request, settings, stored, target, until,
};

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A directory that every user may enter.
pub(super) fn open_directory() -> Arc<TempDir> {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
    Arc::new(directory)
}

pub(super) fn separate() -> World {
    World::over(open_directory(), |settings| {
        settings.isolation = Isolation::Required;
    })
}

pub(super) fn of(cluster: &str, mut request: ProvisionRequest) -> ProvisionRequest {
    request.cluster.as_mut().unwrap().id = cluster.to_owned();
    request.owner = format!("owner-of-{cluster}");
    request
}

/// The fields of `/proc/PID/status`.
fn status(pid: u32) -> BTreeMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

fn uid(pid: u32) -> u32 {
    status(pid)["Uid"]
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

pub(super) async fn shell(world: &World, node: &Node, script: &str) -> (String, i32) {
    exec(world, node, &["sh", "-c", script], &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_neither_reads_nor_ends_what_belongs_to_another() {
    if !is_root() {
        return;
    }
    let world = separate();
    let mut theirs = of("bank", stored("", "r1", 0));
    theirs.owner = "owner-of-bank".to_owned();
    let theirs = world.start(&theirs).await.remove(0);
    let ours = world
        .start(&of("orders", request("sleeper", "r2", 1)))
        .await
        .remove(0);
    assert_ne!(uid(pid(&theirs)), uid(pid(&ours)));
    assert!((700_000..=765_535).contains(&uid(pid(&ours))));
    let own = world.node_directory(&ours);
    let other = world.node_directory(&theirs);
    fs::write(other.join("data/secret"), "let-me-in").unwrap();
    let storage = fs::read_dir(world.state().join("storage")).unwrap();
    let storage = storage.map(|entry| entry.unwrap().path()).next().unwrap();
    fs::write(storage.join("rows"), "let-me-in").unwrap();

    // Inside its own directory it may do anything.
    let (said, code) = shell(&world, &ours, "echo x > own && cat own && id -u").await;
    assert_eq!((said, code), (format!("x\n{}\n", uid(pid(&ours))), 0));
    // Outside, it may do nothing.
    for path in [
        other.join("spec.json"),
        other.join("node.json"),
        other.join("data/secret"),
        other.join("log"),
        storage.join("rows"),
        own.join("spec.json"),
        world.state().join("users.json"),
    ] {
        let (said, code) = shell(&world, &ours, &format!("cat {}", path.display())).await;
        assert_ne!(code, 0, "{}: {said}", path.display());
        assert!(
            said.contains("Permission denied"),
            "{}: {said}",
            path.display()
        );
    }
    for script in [
        format!("ls {}", other.display()),
        format!("ls {}", storage.display()),
        format!("ls {}", world.state().join("nodes").display()),
        format!("ls {}", world.state().join("storage").display()),
        format!("kill -9 {}", pid(&theirs)),
        format!("cat /proc/{}/environ", pid(&theirs)),
        format!("touch {}", other.join("x").display()),
        format!("kill -9 {}", std::process::id()),
    ] {
        let (said, code) = shell(&world, &ours, &script).await;
        assert_ne!(code, 0, "{script}: {said}");
    }
    assert!(world.node(&theirs.node_id).await.unwrap().ready == Some(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_node_nor_a_command_in_it_has_a_capability_or_a_way_to_one() {
    if !is_root() {
        return;
    }
    let world = separate();
    let node = world
        .start(&of("orders", request("sleeper", "r1", 1)))
        .await
        .remove(0);
    let held = status(pid(&node));
    let (said, code) = shell(&world, &node, "cat /proc/self/status").await;
    assert_eq!(code, 0, "{said}");
    let lines = said.lines().filter_map(|line| line.split_once(':'));
    let inside: BTreeMap<String, String> = lines
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect();
    for status in [&held, &inside] {
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status[set], "0000000000000000", "{set}");
        }
        assert_eq!(status["NoNewPrivs"], "1");
        assert_eq!(status["Groups"], "", "none of the platform's");
        assert_eq!(status["Uid"], held["Uid"]);
    }
    // It does not get the variables that refer to the platform's user.
    let (said, _) = shell(&world, &node, "echo $HOME; echo $USER").await;
    let home = world.node_directory(&node).join("data");
    assert_eq!(said, format!("{}\n\n", home.display()));
    let missing = exec(&world, &node, &["no-such-program"], &[]).await;
    assert_eq!(missing, ("no-such-program: not found\n".to_owned(), 127));
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_a_group_reach_no_program_of_the_platform() {
    if !is_root() {
        return;
    }
    let world = separate();
    // A preloaded library that writes a file, if it has the permission.
    let bait = open_directory();
    fs::set_permissions(bait.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let proof = bait.path().join("proof");
    let trap = bait.path().join("sh");
    fs::write(&trap, format!("#!/bin/sh\nid -u >> {}\n", proof.display())).unwrap();
    fs::set_permissions(&trap, fs::Permissions::from_mode(0o755)).unwrap();
    let mut request = of("orders", request("sleeper", "r1", 1));
    let environment = [
        ("PATH", format!("{}:/usr/bin:/bin", bait.path().display())),
        (
            "LD_PRELOAD",
            bait.path().join("no-library.so").display().to_string(),
        ),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), text(&value)));
    let environment = Value {
        kind: Some(Kind::StructValue(Struct {
            fields: environment.into(),
        })),
    };
    request.group.as_mut().unwrap().properties = Some(Struct {
        fields: [("env".to_owned(), environment)].into(),
    });
    let node = world.start(&request).await.remove(0);
    let (said, _) = exec(&world, &node, &["sh"], &[]).await;
    // The loader fails to preload it once, for the command, and never for the launcher.
    let loaded = said.matches("no-library.so").count();
    assert_eq!(
        fs::read_to_string(&proof).unwrap(),
        format!("{}\n", uid(pid(&node)))
    );
    let log = fs::read_to_string(world.node_directory(&node).join("log")).unwrap();
    assert_eq!(log.matches("no-library.so").count(), 1, "{log}");
    assert_eq!(loaded, 2, "those of `sh` and of `id`: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_from_before_goes_on_as_it_was_and_the_next_one_on_its_storage_has_it() {
    if !is_root() {
        return;
    }
    let before = World::over(open_directory(), |settings| {
        settings.isolation = Isolation::None;
    });
    let old = before.start(&stored("owner-1", "r1", 0)).await.remove(0);
    let running = pid(&old);
    assert_eq!(uid(running), 0);
    let directory = before.stopped().await;
    let world = World::over(directory, |settings| {
        settings.isolation = Isolation::Required;
    });
    let found = world.ready(&old.node_id).await;
    assert_eq!(pid(&found), running);
    let warnings = world.driver.description().warnings.join(" ");
    assert!(
        warnings.contains("run as root") && warnings.contains(&old.node_id),
        "{warnings}"
    );
    let (said, code) = shell(&world, &found, "id -u; echo data > $DROVER_STORAGE/rows").await;
    assert_eq!((said.as_str(), code), ("0\n", 0));
    let key = world.retire(&found).await;
    until("nobody is warned of a node that is gone", async || {
        world.driver.description().warnings.is_empty()
    })
    .await;

    let new = world.start(&stored("owner-1", "r2", 0)).await.remove(0);
    let storage = world.state().join("storage").join(key);
    assert_eq!(fs::metadata(&storage).unwrap().uid(), uid(pid(&new)));
    let (said, code) = shell(
        &world,
        &new,
        "cat $DROVER_STORAGE/rows && echo more >> $DROVER_STORAGE/rows",
    )
    .await;
    assert_eq!((said.as_str(), code), ("data\n", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_its_user_when_the_platform_starts_again_and_an_adopted_node_its_own() {
    if !is_root() {
        return;
    }
    let world = separate();
    let first = world.start(&stored("owner-1", "r1", 0)).await.remove(0);
    let user = uid(pid(&first));
    let directory = world.stopped().await;
    let world = World::over(directory, |settings| {
        settings.isolation = Isolation::Required;
    });
    let found = world.ready(&first.node_id).await;
    let second = world.start(&stored("owner-1", "r2", 1)).await.remove(0);
    assert_eq!((uid(pid(&found)), uid(pid(&second))), (user, user));

    world
        .driver
        .update(&target(&found), &adoption("owner-2", 0))
        .await
        .unwrap();
    let adopted = world.node(&first.node_id).await.unwrap();
    let (said, code) = shell(&world, &adopted, "id -u; echo data > $DROVER_STORAGE/rows").await;
    assert_eq!((said, code), (format!("{user}\n"), 0));
    world.retire(&adopted).await;
    let next = world.start(&stored("owner-2", "r3", 0)).await.remove(0);
    assert_ne!(uid(pid(&next)), user, "another owner");
    let (said, code) = shell(&world, &next, "cat $DROVER_STORAGE/rows").await;
    assert_eq!((said.as_str(), code), ("data\n", 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_whose_clusters_share_a_user_says_so_or_does_not_start() {
    let closed = || {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Arc::new(directory)
    };
    let world = World::over(closed(), |_| {});
    let warnings = world.driver.description().warnings;
    assert!(
        warnings[0].contains("clusters share one user"),
        "{warnings:?}"
    );
    let directory = closed();
    let mut required = settings(directory.path());
    required.isolation = Isolation::Required;
    let error = LocalDriver::open(required).err().unwrap();
    assert!(error.message().contains("local.isolation"), "{error}");
    if is_root() {
        assert!(separate().driver.description().warnings.is_empty());
    }
}

/// A server process that runs as another user.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_root_warns_that_clusters_share_its_user() {
    if !is_root() {
        return;
    }
    let directory = open_directory();
    let state = directory.path().join("state");
    fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(65534), Some(65534)).unwrap();
    let program = program_in(directory.path());
    let warning = async |dropped: bool| {
        let log = directory.path().join(format!("log-{dropped}"));
        let mut command = if dropped {
            let mut command = drover_testing::processes::program("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
            command.arg(&program);
            command
        } else {
            drover_testing::processes::program(&program)
        };
        let state = if dropped {
            state.clone()
        } else {
            directory.path().join("other")
        };
        let server = command
            .args([
                "--driver",
                "local",
                "--listen",
                "127.0.0.1:0",
                "--log-format",
                "json",
            ])
            .arg("--state-dir")
            .arg(&state)
            .stderr(fs::File::create(&log).unwrap())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Server(server);
        let address = until_address(&mut server, &log).await;
        let target = format!("http://{address}").parse().unwrap();
        let client = drover_client::PlatformClient::new(drover_client::connect(&target));
        let wait = std::time::Duration::from_secs(20);
        client.get_platform(wait).await.unwrap().warnings.join(" ")
    };
    let said = warning(true).await;
    assert!(said.contains("clusters share one user"), "{said}");
    assert!(said.contains("does not run as root"), "{said}");
    assert_eq!(warning(false).await, "");
}

async fn until_address(server: &mut Server, log: &Path) -> String {
    let said = || fs::read_to_string(log).unwrap();
    let address = || {
        let text = said();
        let (_, rest) = text.split_once("\"address\":\"")?;
        rest.split_once('"').map(|(address, _)| address.to_owned())
    };
    until("the server listens", async || {
        let ended = server.0.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", said());
        address().is_some()
    })
    .await;
    address().unwrap()
}
