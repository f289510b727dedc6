//! First commands of a new user: wrong names, wrong files, wrong addresses. Each of them ends with advice and the
//! documented exit code.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use drover_orchestrator::{Orchestrator, Settings};
use drover_server::{Running, ServerSettings, Shutdown};
use serde_json::{Value, json};
use tempfile::TempDir;

const CLUSTER: &str = "\
apiVersion: drover.dev/v1
kind: Cluster
metadata: {name: gone}
spec: {groups: {web: {size: 1, platform: local}}}
---
apiVersion: drover.dev/v1
kind: Secret
metadata: {name: gone-key}
stringData: {key: hush}
";

/// An orchestrator without platforms, and a directory to work in.
struct Place {
    running: Running,
    directory: TempDir,
}

impl Place {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let orchestrator = Orchestrator::open(&Settings {
            data_dir: directory.path().join("data"),
            ..Settings::default()
        })
        .await
        .unwrap();
        let settings = ServerSettings::default();
        let listener = drover_server::listen(&settings).await.unwrap();
        let service = orchestrator.service();
        let running = drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap();
        Self { running, directory }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.directory.path().join(name), content).unwrap();
    }

    /// Runs `drover` with the address of the server as `DROVER_SERVER`, without a scheme.
    async fn run(&self, line: &str) -> (i32, String) {
        let server = self.running.address().to_string();
        drover(self.directory.path(), &server, line, "").await
    }
}

async fn drover(directory: &Path, server: &str, line: &str, input: &'static str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drover"));
    command
        .args(line.split_whitespace())
        .current_dir(directory)
        .env_clear()
        .env("XDG_CONFIG_HOME", directory.join("config"))
        .env("DROVER_SERVER", server)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Not on a thread that runs the server.
    let run = move || {
        let mut child = command.spawn().unwrap();
        // The process may have ended without reading.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    let code = output
        .status
        .code()
        .unwrap_or_else(|| panic!("{line}: {}", output.status));
    (code, String::from_utf8(text).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_with_a_way_out() {
    let place = Place::new().await;
    let wide: Vec<u8> = CLUSTER.encode_utf16().flat_map(u16::to_le_bytes).collect();
    place.write("utf16.yaml", wide);
    place.write("empty.yaml", "# nothing here\n---\n");
    for (line, code, words) in [
        ("get cluster nope", 3, "hint: drover get clusters"),
        ("wait cluster/nope", 3, "hint: drover get clusters"),
        ("scale nope web 1", 3, "hint: drover get clusters"),
        ("describe platform nope", 3, "hint: drover get platforms"),
        ("delete secret nope", 3, "hint: drover get secrets"),
        ("delete storage nope", 3, "hint: drover get storage"),
        ("get storage --all", 0, "nothing found"),
        ("get storage x --all", 64, "--all is for `get storage`"),
        ("get nodes --all", 64, "--all is for `get storage`"),
        ("logs nope", 3, "hint: drover get clusters"),
        ("logs nope/web -f", 3, "hint: drover get clusters"),
        ("logs group/nope/web", 3, "hint: drover get clusters"),
        (
            "logs nope/",
            64,
            "write CLUSTER, CLUSTER/GROUP or CLUSTER/NODE",
        ),
        ("connect nope", 3, "hint: drover get clusters"),
        ("connect nope/db -- true", 3, "hint: drover get clusters"),
        ("connect nope/", 64, "expected CLUSTER or CLUSTER/GROUP"),
        ("connect nope -o json", 64, "--env"),
        ("connect nope --env -- true", 64, "cannot be used with"),
        ("failover nope", 3, "hint: drover get clusters"),
        ("failover nope/db", 3, "hint: drover get clusters"),
        (
            "failover nope db --accept-loss",
            3,
            "hint: drover get clusters",
        ),
        ("failover nope/", 64, "expected CLUSTER or CLUSTER/GROUP"),
        ("describe hello", 64, "drover describe cluster hello"),
        ("get hosts", 64, "hint: drover get platforms"),
        ("scale hello web 10001", 64, "a group has 0 to 10000 nodes"),
        ("scale hello 3", 64, "how many nodes?"),
        ("scale hello/web", 64, "hint: drover describe cluster hello"),
        ("scale hello", 64, "hint: drover describe cluster hello"),
        ("rollout restart nope web", 3, "hint: drover get clusters"),
        (
            "rollout restart nope/",
            64,
            "expected CLUSTER or CLUSTER/GROUP",
        ),
        ("rollout status nope/web", 3, "hint: drover get clusters"),
        (
            "delete node/hello/web-0 -y",
            64,
            "hint: drover replace hello/web-0",
        ),
        (
            "delete -l a=b -y",
            64,
            "hint: drover delete clusters -l a=b",
        ),
        ("scale hello/web -1", 3, "hint: drover get clusters"),
        ("wait platform/local", 64, "only clusters can be waited for"),
        ("context show", 3, "no context is in use"),
        ("context delete nope", 3, "there is no context `nope`"),
        ("apply -f empty.yaml", 1, "no document in empty.yaml"),
        ("validate -f -", 1, "no document in -"),
        ("validate -f utf16.yaml", 1, "save it as UTF-8"),
        (
            "get clusters --server example.com:1",
            1,
            "write https://example.com:1, or http://",
        ),
        (
            "get clusters --server localhost:1,,localhost:2",
            1,
            "in \"localhost:1,,localhost:2\", address 2 is empty",
        ),
        (
            "context set c localhost:1,localhost:1",
            1,
            "\"localhost:1\" is there twice",
        ),
        (
            "get clusters --server localhost:1,localhost:2,[::1]:3",
            5,
            "at http://localhost:1, http://localhost:2 or http://[::1]:3, the addresses of --server: ",
        ),
        ("--context nope status", 3, "there is no context `nope`"),
    ] {
        let (found, text) = place.run(line).await;
        assert_eq!(found, code, "{line}: {text}");
        assert!(text.contains(words), "{line}: {text}");
    }
    // An address without a scheme works: this server has answered.
    let (code, text) = place.run("get clusters").await;
    assert_eq!((code, text.as_str()), (0, "nothing found\n"));
    place.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_without_a_server_and_with_one_is_told_at_once() {
    let place = Place::new().await;
    let named = CLUSTER.replace("name: gone}", "name: Bäd}");
    place.write(
        "wrong.yaml",
        named.replace("platform: local", "platform: p"),
    );
    let (code, text) = place.run("apply -f wrong.yaml").await;
    assert_eq!(code, 1, "{text}");
    for word in ["no platform `p`", "metadata.name", "2 errors"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    place.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flag_goes_before_a_context_and_a_context_before_a_variable() {
    // `run` gives the address of a server that answers as a variable.
    let place = Place::new().await;
    let (code, text) = place.run("context set silent http://127.0.0.1:1").await;
    assert_eq!(code, 0, "{text}");
    let (code, text) = place.run("context show").await;
    let shown = "name: silent\nserver: http://127.0.0.1:1\n";
    assert_eq!((code, text.as_str()), (0, shown));
    let answering = format!("--server {}", place.running.address());
    for (flags, expected) in [
        ("", 0),
        ("--context silent", 5),
        (&*answering, 0),
        (&*format!("--context silent {answering}"), 0),
        (&*format!("{answering} --context silent"), 0),
    ] {
        for line in [
            format!("{flags} get clusters"),
            format!("get clusters {flags}"),
        ] {
            let (code, text) = place.run(&line).await;
            assert_eq!(code, expected, "{line}: {text}");
        }
    }
    let (code, text) = place.run("context delete silent").await;
    assert_eq!((code, text.as_str()), (0, "context silent deleted\n"));
    let (code, text) = place.run("context show").await;
    assert_eq!(code, 3, "{text}");
    place.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_servers_the_one_that_answers_is_used() {
    let place = Place::new().await;
    let here = place.running.address();
    let several = format!("127.0.0.1:1,{here}");
    let (code, text) = place.run(&format!("context set ours {several}")).await;
    assert_eq!(code, 0, "{text}");
    let (_, text) = place.run("context show").await;
    let shown = format!("name: ours\nserver: http://127.0.0.1:1,http://{here}\n");
    assert_eq!(text, shown);
    for line in [
        "get clusters --context ours".to_owned(),
        format!("get clusters --server {several}"),
    ] {
        let (code, text) = place.run(&line).await;
        assert_eq!((code, text.as_str()), (0, "nothing found\n"), "{line}");
    }
    // As a variable, and each of them is asked.
    let (code, text) = drover(place.directory.path(), &several, "health", "").await;
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains(&format!("http://{here}: serving\n")),
        "{text}"
    );
    assert!(text.contains("http://127.0.0.1:1: cannot reach"), "{text}");
    place.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_without_its_subcommand_shows_what_there_is() {
    let place = Place::new().await;
    for (line, words) in [
        ("", "  apply "),
        ("context", "  use "),
        ("rollout", "  undo "),
    ] {
        let (code, text) = place.run(line).await;
        assert_eq!(code, 64, "{line}: {text}");
        assert!(
            text.contains("Usage: drover") && text.contains(words),
            "{text}"
        );
        assert!(
            !text.contains("  launch "),
            "hidden commands stay hidden: {text}"
        );
    }
    place.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_usage_does_not_show_what_comes_from_variables() {
    let place = Place::new().await;
    for (line, usage) in [
        ("plan", "Usage: drover plan <CLUSTER>"),
        ("scale", "Usage: drover scale <CLUSTER/GROUP [SIZE]>..."),
        ("context use", "Usage: drover context use <NAME>"),
    ] {
        let (code, text) = place.run(line).await;
        assert_eq!(code, 64, "{line}: {text}");
        assert!(text.contains(usage), "{line}: {text}");
        assert!(!text.contains("--server"), "{line}: {text}");
    }
    place.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_are_printed_for_programs_too() {
    let place = Place::new().await;
    let one = json!({"name": "ours", "current": true, "server": "http://127.0.0.1:1"});
    for (line, expected) in [
        ("context set ours http://127.0.0.1:1", &one),
        ("context use ours", &one),
        ("context show", &one),
        ("context list", &json!({"contexts": [one]})),
        ("context delete ours", &json!({"contexts": [one]})),
        ("context list", &json!({"contexts": []})),
    ] {
        let (code, text) = place.run(&format!("{line} -o json")).await;
        assert_eq!(code, 0, "{line}: {text}");
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(found, *expected, "{line}");
    }
    for (line, text) in [
        (
            "context set a http://127.0.0.1:1 -o name",
            "context/a\n".to_owned(),
        ),
        (
            "context set b http://127.0.0.1:2 -o yaml",
            "name: b\ncurrent: false\nserver: http://127.0.0.1:2\n".to_owned(),
        ),
        ("context list -o name", "context/a\ncontext/b\n".to_owned()),
        (
            "context delete a",
            "context a deleted\nno context is in use now: drover context use b\n".to_owned(),
        ),
    ] {
        assert_eq!(place.run(line).await, (0, text), "{line}");
    }
    place.running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_file_describes_is_taken_down_to_its_end() {
    let place = Place::new().await;
    place.write("both.yaml", CLUSTER);
    let (code, text) = place.run("delete -f both.yaml -y").await;
    assert_eq!(code, 3, "{text}");
    for missing in [
        "there is no cluster \"gone\"",
        "there is no secret \"gone-key\"",
    ] {
        assert!(text.contains(missing), "{text}");
    }
    let (code, text) = place.run("delete cluster gone lost -y").await;
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("\"gone\"") && text.contains("\"lost\""),
        "{text}"
    );
    let (code, text) = place.run("delete -f both.yaml -y --ignore-not-found").await;
    assert_eq!((code, text.as_str()), (0, ""));
    place.running.shutdown().await;
}
