//! `drover dev` in a process of its own, started as by a user.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::Path,
    process::{Child, Output, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use drover_testing::processes::program;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

/// Timeout for anything, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Dev {
    child: Child,
    server: String,
    said: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    data: Arc<TempDir>,
}

impl Dev {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::over(Arc::new(tempfile::tempdir().unwrap()), arguments)
    }

    /// Starts it over the data of an earlier run.
    pub(crate) fn over(data: Arc<TempDir>, arguments: &[&str]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap().to_string();
        drop(free);
        let mut child = program(env!("CARGO_BIN_EXE_drover"))
            .arg("dev")
            .args(["--listen", &listen])
            .arg("--data-dir")
            .arg(data.path().join("data"))
            .args(arguments)
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let readers = vec![
            read(child.stdout.take().unwrap(), said.clone()),
            read(child.stderr.take().unwrap(), said.clone()),
        ];
        Self {
            child,
            server: format!("http://{listen}"),
            said,
            readers,
            data,
        }
    }

    /// Ends it with Ctrl-C. Answers where its data are.
    pub(crate) fn stop(mut self) -> Arc<TempDir> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success());
        Arc::clone(&self.data)
    }

    /// Waits for a line with all of these words, and returns it.
    pub(crate) fn line(&mut self, words: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
            let found = self.said.lock().unwrap().iter().find(has_all).cloned();
            if let Some(line) = found {
                return line;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && began.elapsed() < PATIENCE,
                "no line with {words:?} ({ended:?})"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn asks(&self, arguments: &[&str]) -> Output {
        let output = program(env!("CARGO_BIN_EXE_drover"))
            // Before a --, behind which everything is for another program.
            .args(["--server", &self.server])
            .args(arguments)
            .current_dir(root())
            .stdin(Stdio::null())
            .output();
        output.unwrap()
    }

    pub(crate) fn succeeds(&self, arguments: &[&str]) -> Output {
        let output = self.asks(arguments);
        assert!(output.status.success(), "drover {arguments:?}: {output:?}");
        output
    }

    /// What a command answers with `-o json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["-o", "json"]].concat();
        serde_json::from_slice(&self.succeeds(&arguments).stdout).unwrap()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        if thread::panicking() {
            eprintln!("{}", self.said.lock().unwrap().join("\n"));
        }
    }
}

fn read(from: impl Read + Send + 'static, said: Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            said.lock().unwrap().push(line);
        }
    })
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
