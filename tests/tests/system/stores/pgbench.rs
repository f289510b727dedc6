//! Load from pgbench, which logs every acknowledged transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::stores::Ports;

/// Table of the load: the run of pgbench, its client in that run, and a number from 1 on.
pub(crate) const TABLE: &str =
    "create table benched (run bigint, client bigint, n bigint, primary key (run, client, n))";
/// Selects all rows, one per line.
pub(crate) const ROWS: &str = "select run, client, n from benched";
const SCRIPT: &str = "\\set n :n + 1\ninsert into benched values (:run, :client_id, :n);\n";
/// Transactions per second: leaves enough of a two-core machine for everything else.
const RATE: &str = "100";

/// Number of acknowledged transactions by run and client.
type Acknowledged = BTreeMap<(u64, u64), u64>;

/// Consecutive runs of pgbench: each ends when its server does, and the next one looks for another server.
pub(crate) struct Pgbench {
    on: Arc<AtomicBool>,
    thread: Option<JoinHandle<Acknowledged>>,
    _directory: tempfile::TempDir,
}

impl Pgbench {
    pub(crate) fn start(programs: &Path, ports: &Ports) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script.sql");
        fs::write(&script, SCRIPT).unwrap();
        let (program, ports) = (programs.join("pgbench"), Arc::clone(ports));
        let on = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&on);
        let thread = std::thread::spawn(move || {
            let mut all = Acknowledged::new();
            for number in 1.. {
                if !goes_on.load(Ordering::Relaxed) {
                    break;
                }
                let known = ports.lock().unwrap().clone();
                let log = run(&program, &script, number, &known);
                all.extend(counted(&log, number));
                std::thread::sleep(Duration::from_millis(50));
            }
            all
        });
        Self {
            on,
            thread: Some(thread),
            _directory: directory,
        }
    }

    /// Stops and returns the acknowledged transactions.
    pub(crate) fn finish(mut self) -> Acknowledged {
        self.on.store(false, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Pgbench {
    fn drop(&mut self) {
        self.on.store(false, Ordering::Relaxed);
    }
}

/// Performs one run. Returns its transaction log, or `None` if the run did not find a server.
fn run(program: &Path, script: &Path, number: u64, ports: &[u16]) -> Option<PathBuf> {
    let prefix = script.with_file_name(format!("run-{number}"));
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).arg("--file").arg(script);
    command.args(["--no-vacuum", "--client=2", "--time=3", "--rate", RATE]);
    command.arg(format!("--define=run={number}"));
    command
        .args(["--define=n=0", "--log", "--log-prefix"])
        .arg(&prefix);
    command.envs([
        ("PGHOST", &*hosts),
        ("PGPORT", &ports.join(",")),
        ("PGUSER", "postgres"),
        ("PGDATABASE", "postgres"),
        ("PGCONNECT_TIMEOUT", "2"),
        ("PGTARGETSESSIONATTRS", "read-write"),
    ]);
    command.output().unwrap();
    let files = fs::read_dir(script.parent().unwrap()).unwrap();
    let mut files = files.map(|entry| entry.unwrap().path());
    // Followed by the pid.
    let own = format!("run-{number}.");
    files.find(|file| {
        file.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(&own)
    })
}

/// Each line of the log is an acknowledged transaction: its client, and further columns.
fn counted(log: &Option<PathBuf>, run: u64) -> Acknowledged {
    let mut all = Acknowledged::new();
    let Some(log) = log else { return all };
    for line in fs::read_to_string(log).unwrap().lines() {
        let client = line.split(' ').next().unwrap().parse().unwrap();
        *all.entry((run, client)).or_default() += 1;
    }
    all
}

/// Asserts that all acknowledged transactions are among these rows. Returns their number.
pub(crate) fn none_lost(acknowledged: &Acknowledged, rows: &str) -> u64 {
    let number = |text: &str| text.parse::<u64>().unwrap();
    let there: BTreeSet<Vec<u64>> = rows
        .lines()
        .map(|row| row.split('|').map(number).collect())
        .collect();
    for ((run, client), count) in acknowledged {
        let lost: Vec<u64> = (1..=*count)
            .filter(|n| !there.contains(&vec![*run, *client, *n]))
            .collect();
        assert!(
            lost.is_empty(),
            "client {client} of run {run} of pgbench: of {count}, {lost:?} are lost"
        );
    }
    acknowledged.values().sum()
}
