//! The Python platform shown in the documentation passes the conformance suite.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use drover_client::Target;
use drover_testing::{
    platform::{Subject, conformance},
    wait::PATIENCE,
};

/// Required Python packages.
const PACKAGES: &str = "grpcio grpcio-tools googleapis-common-protos";

/// Killed at the end of the test, together with the nodes that it left.
struct Server(Child, tempfile::TempDir);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        for entry in std::fs::read_dir(self.1.path().join("nodes")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "pid") {
                let pid = std::fs::read_to_string(path).unwrap_or_default();
                let _ = Command::new("kill").args(["-9", pid.trim()]).status();
            }
        }
    }
}

fn python(arguments: &[&str], folder: &Path) -> Command {
    let mut command =
        Command::new(std::env::var_os("PYTHON_WITH_GRPC").unwrap_or_else(|| "python3".into()));
    command
        .args(arguments)
        .current_dir(folder)
        .env("PYTHONPATH", folder.join("gen"));
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn the_platform_of_the_documentation_conforms() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (proto, generated) = (root.join("proto"), folder.path().join("gen"));
    std::fs::create_dir(&generated).unwrap();
    let mut generate = python(&["-m", "grpc_tools.protoc"], folder.path());
    generate.arg("-I").arg(&proto);
    for out in ["--python_out=gen", "--grpc_python_out=gen"] {
        generate.arg(out);
    }
    for package in ["drover/common/v1", "drover/platform/v1"] {
        for entry in std::fs::read_dir(proto.join(package)).unwrap() {
            generate.arg(entry.unwrap().path());
        }
    }
    let made = generate.status().expect("python3 is not installed");
    assert!(
        made.success(),
        "missing: tests/run install, or pip install {PACKAGES} and PYTHON_WITH_GRPC"
    );

    let address = drover_testing::ports::free_address().to_string();
    let program = root.join("docs/tasks/platform/rack.py");
    let mut start = python(
        &[program.to_str().unwrap(), &address, "nodes"],
        folder.path(),
    );
    let mut child = start.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    let server = Server(child, folder);
    assert!(said.starts_with("serving on"), "it does not start: {said}");

    let target: Target = format!("http://{address}").parse().unwrap();
    let mut subject = Subject::new(move || drover_client::connect(&target));
    subject.patience = PATIENCE;
    conformance(&subject).await;
    drop(server);
}
