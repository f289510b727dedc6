//! `drover connect` beside nodes on this machine: programs find them, and take the place of this one.

use std::{collections::BTreeSet, fs, os::unix::process::ExitStatusExt, process::Output};

use drover_testing::processes::program;
use serde_json::Value;

use crate::dev::Dev;

/// A node without an address, and a group without nodes.
const QUIET: &str = "\
apiVersion: drover.dev/v1
kind: Cluster
metadata: {name: quiet}
spec: {platform: simulated, groups: {idle: {size: 0}, web: {size: 1}}}
";

/// A `drover dev` in which the cluster `hello` is ready. Its nodes go with it.
fn hello() -> Dev {
    let mut dev = Dev::start(&["--rm", "-f", "deploy/examples/hello.yaml"]);
    dev.line(&["hello", "Ready", "3 of 3"]);
    dev
}

fn out(output: Output) -> String {
    String::from_utf8(output.stdout).unwrap()
}

/// Addresses between commas.
fn split(text: &str) -> BTreeSet<String> {
    text.trim().split(',').map(str::to_owned).collect()
}

/// Addresses of the nodes of `hello`, as they are listed.
fn listed(dev: &Dev) -> BTreeSet<String> {
    let answer = dev.json(&["get", "nodes", "hello"]);
    let nodes = answer["nodes"].as_array().unwrap().iter();
    let address = |node: &Value| node["endpoints"]["agent"].as_str().unwrap().to_owned();
    nodes.map(address).collect()
}

#[test]
fn a_program_finds_the_nodes_and_takes_the_place_of_this_one() {
    let dev = hello();
    let nodes = listed(&dev);
    assert_eq!(nodes.len(), 3);
    let sh = |script: &str| dev.asks(&["connect", "hello/web", "--", "sh", "-c", script]);
    let told = out(sh("echo $STORE_ADDRESSES"));
    assert_eq!(split(&told), nodes);
    let first = out(sh("echo $STORE_HOST:$STORE_PORT"));
    assert_eq!(told.split(',').next(), Some(first.trim()));
    assert_eq!(sh("exit 42").status.code(), Some(42));
    assert_eq!(sh("kill -TERM $$").status.signal(), Some(15));
    dev.stop();
}

#[test]
fn variables_are_printed_for_a_shell_and_for_programs() {
    let dev = hello();
    let nodes = listed(&dev);
    let lines = out(dev.succeeds(&["connect", "hello", "--env"]));
    let script = format!("{lines}exec sh -c 'echo $STORE_ADDRESSES'");
    let told = program("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(split(&out(told)), nodes);
    let object = dev.json(&["connect", "hello", "--env"]);
    assert_eq!(split(object["STORE_ADDRESSES"].as_str().unwrap()), nodes);
    assert_eq!(object.as_object().unwrap().len(), 3, "{object}");
    dev.stop();
}

#[test]
fn what_cannot_be_connected_to_is_said_with_a_way_out() {
    let dev = hello();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quiet.yaml");
    fs::write(&path, QUIET).unwrap();
    dev.succeeds(&["apply", "--wait", "-f", path.to_str().unwrap()]);
    for (line, code, words) in [
        (
            "connect hello",
            64,
            &[
                "the cluster names no store; give a program after --",
                "hint: drover connect hello --env --server ",
            ][..],
        ),
        (
            "connect hello/nope --env",
            3,
            &["hint: drover describe cluster hello"],
        ),
        (
            "connect hello -- no-such-program",
            3,
            &[
                "there is no program \"no-such-program\" here",
                "hint: drover connect hello --env --server ",
            ],
        ),
        (
            "connect quiet --env",
            3,
            &[
                "quiet has no ready active node with an address: web-0 (active) is Ready without an address",
                "hint: drover get nodes quiet",
            ],
        ),
        (
            "connect quiet/idle --read -- true",
            3,
            &[
                "quiet/idle has no ready node with an address: it has no nodes",
                "hint: drover get nodes quiet",
            ],
        ),
    ] {
        let words_of_line: Vec<&str> = line.split(' ').collect();
        let output = dev.asks(&words_of_line);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {told}");
        assert!(output.stdout.is_empty(), "{line}");
        for word in words {
            assert!(told.contains(word), "{line}\n{word}\n{told}");
        }
    }
    dev.stop();
}
