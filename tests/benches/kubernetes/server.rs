//! The server as people run it, in a process of its own.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use drover_client::Channel;
use tokio::time::{Instant, sleep};

use crate::PATIENCE;

pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Server {
    /// Starts it for a namespace with settings in YAML, and waits until it listens.
    pub(crate) async fn start(kubeconfig: &Path, namespace: &str, settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("settings.yaml");
        std::fs::write(&file, settings).unwrap();
        let own = std::env::current_exe().unwrap();
        let binary = own.ancestors().nth(2).unwrap().join("drover-platform-k8s");
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let child = Command::new(&binary)
            .args(["--listen", &address.to_string(), "--namespace", namespace])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--config")
            .arg(file)
            .current_dir(directory.path())
            // It refuses settings that it does not know.
            .env_remove("DROVER_TEST_KUBECONFIG")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", binary.display()));
        let mut server = Self {
            child,
            address,
            _directory: directory,
        };
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}");
            assert!(began.elapsed() < PATIENCE, "the platform does not listen");
            sleep(Duration::from_millis(20)).await;
        }
        server
    }

    /// A connection of its own.
    pub(crate) fn channel(&self) -> Channel {
        drover_client::connect(&format!("http://{}", self.address).parse().unwrap())
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory::of(self.child.id())
    }

    /// From now on the most memory is counted anew.
    pub(crate) fn forget_most(&self) {
        Memory::forget_most(self.child.id());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Resident memory of a process, in MiB.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) now: f64,
    pub(crate) most: f64,
}

impl Memory {
    pub(crate) fn of(process: u32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let of = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
            kib / 1024.0
        };
        Self {
            now: of("VmRSS:"),
            most: of("VmHWM:"),
        }
    }

    pub(crate) fn forget_most(process: u32) {
        std::fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
    }
}
