//! The logs of several nodes at once.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::PathBuf,
    process::{Child, Stdio},
};

use serde_json::Value;

use super::{
    pids,
    shell::{at_a_terminal, drover, json, typed},
};
use crate::real::{World, kill_9};

/// A program that says its id and one line more.
const SPEAKER: &str = r#"
command: sh
arguments: [-c, 'echo "$DROVER_NODE_ID begins"; echo serves; : >"$DROVER_DIR/ready"; exec sleep 100000']
readiness: {file: ready}
"#;

const SHOP: &str = "\
apiVersion: drover.dev/v1
kind: Cluster
metadata: {name: shop}
spec:
  store: {software: speaker}
  platform: local
  terminationGracePeriod: 2s
  stableAfter: 1s
  groups:
    cache: {size: 1}
    idle: {size: 0}
    web: {size: 2}
";

/// A world with a ready cluster of speakers: `cache-0`, `web-0` and `web-1`.
async fn speakers() -> World {
    let mut world = World::stopped();
    let catalogue = world.directory.path().join("catalogue");
    fs::create_dir(&catalogue).unwrap();
    let index = "stores: [{store: speaker, versions: [{version: '*', template: speaker.yaml}]}]";
    fs::write(catalogue.join("index.yaml"), index).unwrap();
    fs::write(catalogue.join("speaker.yaml"), SPEAKER).unwrap();
    world
        .platform
        .add(&["--templates", catalogue.to_str().unwrap()]);
    world.platform.start().await;
    world.orchestrator.start().await;
    world.register("local", &world.platform.endpoint()).await;
    fs::write(world.directory.path().join("shop.yaml"), SHOP).unwrap();
    drover(&world, "apply -f shop.yaml --wait").expect(0, &["cluster/shop created"]);
    world
}

/// Names and ids of the nodes of `shop`, in the order of `get nodes`.
fn nodes(world: &World) -> Vec<(String, String)> {
    let named = drover(world, "get nodes shop -o name").expect(0, &[]).out;
    let answer = json(world, "get nodes shop -o json");
    let id = |name: &str| {
        let mut nodes = answer["nodes"].as_array().unwrap().iter();
        let text = |field: &Value| field.as_str().unwrap().to_owned();
        text(&nodes.find(|node| node["name"] == name).unwrap()["id"])
    };
    let names = named.lines().map(|line| line.rsplit('/').next().unwrap());
    names.map(|name| (name.to_owned(), id(name))).collect()
}

fn id(world: &World, name: &str) -> String {
    let mut all = nodes(world).into_iter();
    all.find(|(it, _)| it == name).unwrap().1
}

/// Directory of the log of a speaker.
fn directory(world: &World, id: &str) -> PathBuf {
    let begins = format!("{id} begins");
    let all = world.node_directories().into_iter();
    let mut all = all.map(|name| world.state().join("nodes").join(name));
    let says = |at: &PathBuf| fs::read_to_string(at.join("log")).unwrap_or_default();
    all.find(|at| says(at).contains(&begins)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_logs_of_a_group_or_cluster_come_node_by_node_each_line_after_the_name_of_its_node() {
    let world = speakers().await;
    let all = nodes(&world);
    let names: Vec<&str> = all.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["cache-0", "web-0", "web-1"]);
    let lines = |width: usize, group: &str| -> String {
        let nodes = all.iter().filter(|(name, _)| name.starts_with(group));
        let each = nodes
            .map(|(name, id)| format!("{name:width$} | {id} begins\n{name:width$} | serves\n"));
        each.collect()
    };
    for (target, expected) in [
        ("shop", lines(7, "")),
        ("cluster/shop", lines(7, "")),
        ("shop/web", lines(5, "web")),
        ("group/shop/web", lines(5, "web")),
        ("shop/web-1", format!("{} begins\nserves\n", all[2].1)),
        (
            &*format!("shop/{}", all[2].1),
            format!("{} begins\nserves\n", all[2].1),
        ),
    ] {
        let said = drover(&world, &format!("logs {target}")).expect(0, &[]);
        assert_eq!((said.out, said.err.as_str()), (expected, ""), "{target}");
    }
    let said = drover(&world, "logs shop/web --tail 1").expect(0, &[]);
    assert_eq!(said.out, "web-0 | serves\nweb-1 | serves\n");
    let said = at_a_terminal(&world, "logs shop/web --tail 1");
    assert_eq!(
        said.out.replace("\r\n", "\n"),
        "\x1b[36mweb-0 |\x1b[0m serves\n\x1b[33mweb-1 |\x1b[0m serves\n"
    );
    drover(&world, "logs shop/idle").expect(0, &["nothing found"]);
    drover(&world, "logs shop/nope").expect(
        3,
        &[
            "cluster shop has no node and no group \"nope\"",
            "hint: drover get nodes shop",
        ],
    );
    drover(&world, "logs group/shop/web-1").expect(3, &["hint: drover describe cluster shop"]);
    let found = drover(&world, "complete -- logs shop/w").expect(0, &[]).out;
    assert_eq!(found, "shop/web\nshop/web-0\nshop/web-1\n");
    let found = drover(&world, "complete -- logs sh").expect(0, &[]).out;
    assert_eq!(found, "shop\nshop/\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_log_cannot_be_read_is_named_and_the_others_are_shown() {
    let world = speakers().await;
    let named = |name: &str| format!("node/shop/{}: ", id(&world, name));
    // Lines of processes have no times.
    for follow in ["", " -f"] {
        let said = drover(&world, &format!("logs shop/web --since 1m{follow}")).expect(
            1,
            &[
                &named("web-0"),
                &named("web-1"),
                "error: of 2 nodes no log could be read",
            ],
        );
        assert_eq!(said.out, "");
    }
    let log = directory(&world, &id(&world, "web-0")).join("log");
    fs::remove_file(&log).unwrap();
    fs::create_dir(&log).unwrap();
    let said = drover(&world, "logs shop --tail 1").expect(0, &[&named("web-0")]);
    assert_eq!(said.out, "cache-0 | serves\nweb-1   | serves\n");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
    drover(&world, "logs shop -f --max-log-requests 2").expect(
        1,
        &[
            "3 nodes, and -f holds at most 2 logs open",
            "drover logs shop -f --max-log-requests 3",
        ],
    );
}

/// A command that goes on, with its output in files.
struct Going {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Going {
    fn new(world: &World, name: &str, line: &str) -> Self {
        let file = |end: &str| world.directory.path().join(format!("{name}.{end}"));
        let (out, err) = (file("out"), file("err"));
        let child = typed(world, line)
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .spawn()
            .unwrap();
        Self { child, out, err }
    }

    fn out(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    fn err(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    /// Waits until a line has been printed.
    async fn shows(&self, world: &World, line: &str) {
        let shown = async |_: &World| self.out().lines().any(|it| it == line);
        world.until(&format!("{line:?} is shown"), shown).await;
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let out = self.out();
            let from = out.floor_char_boundary(out.len().saturating_sub(2_000));
            eprintln!("{}{}", &out[from..], self.err());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_a_group_sees_what_the_successor_of_a_dead_node_says_and_every_later_node() {
    let mut world = speakers().await;
    let (first, second) = (id(&world, "web-0"), id(&world, "web-1"));
    let mut all = Going::new(&world, "all", "logs shop/web -f");
    let new = Going::new(&world, "new", "logs shop/web -f --tail 0");
    let few = Going::new(&world, "few", "logs shop/web -f --max-log-requests 2");
    for going in [&all, &few] {
        going
            .shows(&world, &format!("web-0 | {first} begins"))
            .await;
        going
            .shows(&world, &format!("web-1 | {second} begins"))
            .await;
    }
    // What is said now is new to all of them, once they follow.
    let mut log = OpenOptions::new()
        .append(true)
        .open(directory(&world, &second).join("log"))
        .unwrap();
    drover_testing::wait::until("the second is heard", async || {
        writeln!(log, "goes on").unwrap();
        new.out().contains("web-1 | goes on\n").then_some(())
    })
    .await;

    kill_9(pids(&world)["web-0"]);
    world
        .until("the first is replaced", async |world| {
            world.is_ready("shop", 3).await && id(world, "web-0") != first
        })
        .await;
    let successor = format!("web-0 | {} begins", id(&world, "web-0"));
    for going in [&all, &new, &few] {
        going.shows(&world, &successor).await;
    }
    for old in [&first, &second] {
        let times = |going: &Going| going.out().matches(&**old).count();
        assert_eq!((times(&all), times(&new), times(&few)), (1, 0, 1));
    }

    drover(&world, "scale shop/web 3 --wait").expect(0, &["1 to create"]);
    let (third, line) = (id(&world, "web-2"), "waits until another log ends");
    all.shows(&world, &format!("web-2 | {third} begins")).await;
    let waits = format!("node/shop/{third}: {line}");
    world
        .until("the third has no place", async |_| {
            few.err().contains(&waits)
        })
        .await;
    assert!(!few.out().contains("web-2"), "{}", few.out());
    drover(&world, "scale shop web --remove web-1 --wait").expect(0, &["1 to delete"]);
    few.shows(&world, &format!("web-2 | {third} begins")).await;

    // The orchestrator is away for a while.
    world.orchestrator.kill();
    world.orchestrator.start().await;
    let mut log = OpenOptions::new()
        .append(true)
        .open(directory(&world, &third).join("log"))
        .unwrap();
    drover_testing::wait::until("the third is heard again", async || {
        writeln!(log, "is here").unwrap();
        all.out().contains("web-2 | is here\n").then_some(())
    })
    .await;
    assert_eq!(all.out().matches(&*third).count(), 1, "nothing comes twice");

    drover(&world, "delete cluster shop -y --wait").expect(0, &["cluster/shop gone"]);
    let ended = async || all.child.try_wait().unwrap();
    let ended = drover_testing::wait::until("it ends with the cluster", ended).await;
    assert!(ended.success(), "{ended}");
    assert!(all.err().contains("cluster shop is gone"), "{}", all.err());
}

/// Lines that each node of `web` has said beside its first two. Together they are more than connections take ahead.
const MANY: usize = 60_000;

/// A world in which `web` has five nodes that have said a lot.
async fn talkers() -> World {
    let world = speakers().await;
    drover(&world, "scale shop/web 5 --wait").expect(0, &["3 to create"]);
    for (_, id) in nodes(&world) {
        let log = directory(&world, &id).join("log");
        let mut log = OpenOptions::new().append(true).open(log).unwrap();
        let line = format!("{}\n", "x".repeat(99));
        log.write_all(line.repeat(MANY).as_bytes()).unwrap();
    }
    world
}

/// Fails if the watch of the platform, which comes by the same connection as logs, was ever held up.
fn is_followed(world: &World) {
    let said = world.orchestrator.said();
    assert!(!said.contains("cannot be followed"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_that_wait_for_their_turn_do_not_hold_up_the_one_that_is_printed() {
    let world = talkers().await;
    let mut going = Going::new(&world, "all", "logs shop/web");
    let ended = async || going.child.try_wait().unwrap();
    let ended = drover_testing::wait::until("all of it is printed", ended).await;
    assert!(ended.success(), "{ended}");
    let out = going.out();
    let names = out.lines().map(|line| line.split_once(" | ").unwrap().0);
    let names: Vec<&str> = names.collect();
    let expected = ["web-0", "web-1", "web-2", "web-3", "web-4"];
    let expected = expected.map(|name| vec![name; MANY + 2]).concat();
    assert!(names == expected, "{} lines", names.len());
    is_followed(&world);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_and_does_not_read_holds_up_nobody_else() {
    let world = talkers().await;
    let mut child = typed(&world, "logs shop/web -f")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    world
        .until("nothing more fits into the pipe", async |_| {
            rustix::io::ioctl_fionread(&out).unwrap() > 32 * 1024
        })
        .await;
    for (size, what) in [(2, "1 to create"), (1, "1 to delete")].repeat(3) {
        let line = format!("scale shop/cache {size} --wait --timeout 120s");
        drover(&world, &line).expect(0, &[what]);
    }
    assert!(child.try_wait().unwrap().is_none(), "it still follows");
    is_followed(&world);
    child.kill().unwrap();
    child.wait().unwrap();
}
