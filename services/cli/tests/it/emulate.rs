//! `drover dev --emulate`: the real drivers on emulated clouds, started as by a user.
#![cfg(feature = "emulate")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use crate::dev::{Dev, PATIENCE};

/// Addresses of the emulators by platform.
fn emulators(dev: &mut Dev) -> BTreeMap<String, String> {
    let line = dev.line(&["  emulators "]);
    let (_, list) = line.split_once("emulators ").unwrap();
    list.split(", ")
        .map(|one| one.split_once(" http://").unwrap())
        .map(|(name, address)| (name.to_owned(), address.to_owned()))
        .collect()
}

/// Objects that were created at an emulator and still exist.
fn left(emulator: &str) -> Vec<Value> {
    let mut ledger = ask(emulator, "ledger");
    ledger.retain(|made| made["gone"] == false && made["foreign"] == false);
    ledger
}

fn ask(emulator: &str, what: &str) -> Vec<Value> {
    let mut stream = TcpStream::connect(emulator).unwrap();
    let head = format!("Host: {emulator}\r\nConnection: close\r\n\r\n");
    let request = format!("GET /_emulator/{what} HTTP/1.1\r\n{head}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

fn kinds(left: &[Value]) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for made in left {
        *kinds.entry(made["kind"].as_str().unwrap()).or_default() += 1;
    }
    kinds
}

/// Waits until nothing is left: removals may take a moment.
fn until_empty(emulator: &str) {
    let began = Instant::now();
    while !left(emulator).is_empty() {
        assert!(began.elapsed() < PATIENCE, "{:#?}", left(emulator));
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_kadende_document_runs_on_three_clouds() {
    let mut dev = Dev::start(&[
        "--emulate",
        "aws,gcd,digitalOcean",
        "--simulate",
        "my-custom-plugin",
        "-f",
        "deploy/examples/kadende-basic_cluster.yml",
    ]);
    let emulators = emulators(&mut dev);
    dev.line(&["basic_cluster", "Ready", "9 of 9"]);
    for (name, kind, expected) in [
        ("aws", "instance", 2),
        ("gcd", "instance", 2),
        ("digitalOcean", "droplet", 3),
    ] {
        let left = left(&emulators[name]);
        assert_eq!(kinds(&left).get(kind), Some(&expected), "{name}: {left:#?}");
    }
    dev.succeeds(&["delete", "cluster", "basic_cluster", "-y", "--wait"]);
    emulators
        .values()
        .for_each(|emulator| until_empty(emulator));
}

#[test]
fn documents_of_the_cluster_api_run_on_metal_and_leave_nothing_behind() {
    let mut dev = Dev::start(&[
        "--emulate",
        "metal",
        "-f",
        "deploy/examples/capm-metal-stack.yaml",
    ]);
    let metal = emulators(&mut dev)["metal"].clone();
    dev.line(&["lab", "Ready", "3 of 3"]);
    let left = left(&metal);
    let kinds = kinds(&left);
    let count = |kind: &str| kinds.get(kind).copied().unwrap_or_default();
    assert_eq!(
        [count("machine"), count("firewall"), count("network")],
        [3, 1, 1],
        "{kinds:?}"
    );
    assert!(count("ip") >= 1, "{kinds:?}");
    let named = "e0ab02d2-27cd-5a5e-8efc-080ba80cf258";
    let machines = ask(&metal, "machines");
    let used =
        |machine: &Value| machine["id"] == named && machine["tags"]["drover.dev/cluster"] == "lab";
    assert!(machines.iter().any(used), "{machines:#?}");
    dev.succeeds(&["delete", "cluster", "lab", "-y", "--wait"]);
    until_empty(&metal);
}
