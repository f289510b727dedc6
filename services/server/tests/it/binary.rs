//! A server process: flags, exit codes, signals. The process is the example `demo`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

fn demo() -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let mut command = drover_testing::processes::program(path.join("examples/demo"));
    command
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns exit code, stdout and stderr.
fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[test]
fn print_config_shows_the_outcome() {
    let (code, out, err) = output(
        demo()
            .args(["--print-config", "--node-id", "n1"])
            .env("DROVER_SHUTDOWN_GRACE", "5s"),
    );
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("listen: 127.0.0.1:7499\n"), "{out}");
    assert!(
        out.contains("shutdown_grace: 5s\n") && out.contains("node_id: n1\n"),
        "{out}"
    );
}

#[test]
fn wrong_usage_is_64_and_wrong_settings_are_1() {
    let (code, _, err) = output(demo().arg("--made-up"));
    assert_eq!(code, Some(64), "{err}");
    let (code, _, err) = output(demo().env("DROVER_LISTNE", "x"));
    assert_eq!(code, Some(1));
    assert_eq!(
        err,
        "error: unknown setting in the environment: DROVER_LISTNE, did you mean `DROVER_LISTEN`?\n"
    );
    let (code, out, _) = output(demo().arg("--help"));
    assert_eq!(code, Some(0));
    assert!(out.contains("--shutdown-grace <DURATION>"), "{out}");
}

#[test]
fn a_taken_port_is_an_error_with_a_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, err) = output(demo().args(["--listen", &address]));
    assert_eq!(code, Some(1));
    assert!(
        err.contains("is taken by pid") && err.contains("--listen"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "said once: {err}");
}

#[test]
fn sigterm_ends_it_with_0_and_logs_are_json_without_a_terminal() {
    let mut child = demo().args(["--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(first["message"], "listening");
    let address: SocketAddr = first["address"].as_str().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");

    terminate(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for line in lines {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(line["level"], "INFO", "{line}");
    }
}

/// The `/proc` files of a process with private memory belong to root, whoever the process runs as.
#[test]
fn the_memory_of_a_server_is_out_of_reach_of_its_user() {
    const NOBODY: u32 = 65_534;
    let mut command = demo();
    command.args(["--listen", "127.0.0.1:0"]);
    if rustix::process::geteuid().is_root() {
        // The user's files belong to root in that case and cannot be distinguished, but those of the group can.
        command.gid(NOBODY);
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("listening"));
    let memory = std::fs::metadata(format!("/proc/{}/mem", child.id())).unwrap();
    terminate(&child);
    child.wait().unwrap();
    assert_eq!((memory.uid(), memory.gid()), (0, 0));
}
