//! The audit log as evidence: which manipulations are detected, and what is refused if it cannot be written.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{
    fs::read_to_string,
    io::Write as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use drover_core::Reason;
use drover_server::{
    ServerSettings, Shutdown, StartError,
    audit::chain::{Check, Fault, Report, verify},
    listen, spawn,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Demo, Fixture, ask, eventually, follow, service, start};

fn audited(log: &Path) -> ServerSettings {
    ServerSettings {
        audit_log: Some(log.to_owned()),
        audit_reads: true,
        ..ServerSettings::default()
    }
}

fn required(log: &Path) -> ServerSettings {
    ServerSettings {
        audit_required: true,
        ..audited(log)
    }
}

/// Writes a log with this many lines.
async fn written(log: &Path, lines: usize) {
    let mut fixture = start(audited(log)).await;
    for _ in 0..lines {
        fixture.hosts.list_hosts(ask("")).await.unwrap();
    }
    fixture.running.shutdown().await;
}

fn check(files: &[PathBuf]) -> Report {
    verify(files, &Check::default()).unwrap()
}

fn lines(log: &Path) -> Vec<String> {
    let text = read_to_string(log).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

fn values(log: &Path) -> Vec<Value> {
    let whole = |line: &String| serde_json::from_str(line).ok();
    lines(log).iter().filter_map(whole).collect()
}

#[tokio::test]
async fn whatever_is_done_to_a_log_is_found_and_the_first_bad_line_is_named() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let old = directory.path().join("audit.jsonl.1");
    written(&log, 6).await;
    std::fs::rename(&log, &old).unwrap();
    written(&log, 6).await;
    let files = [old.clone(), log.clone()];
    let whole = check(&files);
    assert_eq!(
        (whole.first, whole.last, whole.lines),
        (Some(1), Some(12), 12)
    );
    assert_eq!(whole.problem, None);
    let (first, second) = (lines(&old), lines(&log));
    let after = |at: usize, file: &Path, change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = if file == old {
            first.clone()
        } else {
            second.clone()
        };
        change(&mut changed);
        std::fs::write(file, changed.join("\n") + "\n").unwrap();
        let problem = check(&files).problem;
        std::fs::write(&old, first.join("\n") + "\n").unwrap();
        std::fs::write(&log, second.join("\n") + "\n").unwrap();
        let problem = problem.unwrap_or_else(|| panic!("{at} is not found"));
        (problem.kind, problem.place.file, problem.place.line)
    };
    let edit = |line: &mut String| *line = line.replace("ListHosts", "Provision");
    let found = |kind, file: &Path, line| (kind, file.to_owned(), line);
    for (number, file, change, expected) in [
        (
            0,
            &old,
            &(|all: &mut Vec<String>| edit(&mut all[2])) as &dyn Fn(&mut Vec<String>),
            found(Fault::Edited, &old, 3),
        ),
        (
            1,
            &old,
            &|all| edit(&mut all[5]),
            found(Fault::Edited, &old, 6),
        ),
        (
            2,
            &log,
            &|all| edit(&mut all[0]),
            found(Fault::Edited, &log, 1),
        ),
        (
            3,
            &old,
            &|all| all[2] = "{}".to_owned(),
            found(Fault::Edited, &old, 3),
        ),
        (
            4,
            &old,
            &|all| drop(all.remove(2)),
            found(Fault::Removed, &old, 3),
        ),
        (
            5,
            &log,
            &|all| drop(all.remove(0)),
            found(Fault::Removed, &log, 1),
        ),
        (
            6,
            &old,
            &|all| drop(all.pop()),
            found(Fault::Removed, &log, 1),
        ),
        (
            7,
            &old,
            &|all| all.swap(2, 3),
            found(Fault::Reordered, &old, 3),
        ),
        (
            8,
            &old,
            &|all| all.insert(3, all[2].clone()),
            found(Fault::Inserted, &old, 4),
        ),
        (
            9,
            &old,
            &|all| all.insert(3, all[2].replace("ListHosts", "Provision")),
            found(Fault::Inserted, &old, 4),
        ),
    ] {
        assert_eq!(after(number, file, change), expected, "{number}");
    }
}

#[tokio::test]
async fn an_end_that_was_cut_off_is_found_by_the_hash_of_a_line_that_has_to_be_there() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    written(&log, 3).await;
    let files = [log.clone()];
    let noted = check(&files).hash;
    let expecting = || {
        let check = Check {
            expect: noted.clone(),
            ..Check::default()
        };
        verify(&files, &check)
            .unwrap()
            .problem
            .map(|problem| problem.kind)
    };
    assert_eq!(expecting(), None);
    written(&log, 3).await;
    assert_eq!(expecting(), None, "it may have grown");
    let kept = lines(&log)[..2].join("\n") + "\n";
    std::fs::write(&log, kept).unwrap();
    assert_eq!(check(&files).problem, None, "nobody can know");
    assert_eq!(expecting(), Some(Fault::Truncated));
    // The server notices it when it continues.
    written(&log, 1).await;
    let report = check(&files);
    let problem = report.problem.unwrap();
    assert_eq!((problem.kind, problem.place.line), (Fault::Missing, 3));
    assert_eq!(values(&log)[2]["missing"], 4);
    let gaps = Check {
        allow_gaps: true,
        ..Check::default()
    };
    let report = verify(&files, &gaps).unwrap();
    assert_eq!(
        (report.problem, report.gaps.len(), report.last),
        (None, 1, Some(8))
    );
}

#[tokio::test]
async fn a_line_without_an_end_stays_and_the_next_one_tells_of_it() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    written(&log, 2).await;
    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(br#"{"seq":3,"prev":"00"#).unwrap();
    let files = [log.clone()];
    assert_eq!(check(&files).problem.unwrap().kind, Fault::Torn);
    written(&log, 1).await;
    let report = check(&files);
    assert_eq!(
        (report.problem, report.last, report.lines),
        (None, Some(5), 5)
    );
    assert_eq!(
        report
            .torn
            .iter()
            .map(|place| place.line)
            .collect::<Vec<_>>(),
        [3]
    );
    // Nor may it be removed or replaced.
    let mut all = lines(&log);
    all[2] = r#"{"seq":3,"prev":"01"#.to_owned();
    std::fs::write(&log, all.join("\n") + "\n").unwrap();
    assert_eq!(check(&files).problem.unwrap().kind, Fault::Edited);
    all.remove(2);
    std::fs::write(&log, all.join("\n") + "\n").unwrap();
    assert_eq!(check(&files).problem.unwrap().kind, Fault::Removed);
}

#[tokio::test]
async fn lines_of_a_time_without_a_chain_are_held_by_the_first_line_of_it() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    std::fs::write(&log, "{\"who\":\"a\"}\n{\"who\":\"b\"}\n").unwrap();
    written(&log, 2).await;
    let files = [log.clone()];
    let report = check(&files);
    assert_eq!(
        (report.unchained, report.lines, report.problem),
        (2, 2, None)
    );
    let text = read_to_string(&log).unwrap().replace("\"b\"", "\"c\"");
    std::fs::write(&log, text).unwrap();
    let problem = check(&files).problem.unwrap();
    assert_eq!((problem.kind, problem.place.line), (Fault::Edited, 2));
}

/// Creates a log to which nothing can be written.
fn full(log: &Path) {
    symlink("/dev/full", log).unwrap();
}

#[tokio::test]
async fn where_the_log_is_required_nothing_is_done_that_cannot_be_written_down() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    full(&log);
    let Fixture {
        demo,
        running,
        mut hosts,
        mut logs,
        ..
    } = start(required(&log)).await;
    let reason = |status: &tonic::Status| drover_client::to_error(status).reason();
    let refused = hosts.list_hosts(ask("")).await.unwrap_err();
    assert_eq!(reason(&refused), Reason::Unavailable, "{refused:?}");
    assert!(refused.message().contains("audit"), "{refused:?}");
    let refused = logs.stream_logs(follow("open")).await.unwrap_err();
    assert_eq!(reason(&refused), Reason::Unavailable, "{refused:?}");
    let commands = futures::stream::empty::<drover_proto::platform::v1::ExecRequest>();
    let refused = logs.exec(commands).await.unwrap_err();
    assert_eq!(reason(&refused), Reason::Unavailable, "{refused:?}");
    assert_eq!(*demo.seen.deadline.lock(), None, "no handler was called");
    // Health checks work regardless of the log.
    assert_eq!(crate::common::get(&running, "/healthz").await.0, 200);

    std::fs::remove_file(&log).unwrap();
    eventually("the log is written again", async || {
        hosts.list_hosts(ask("")).await.is_ok()
    })
    .await;
    running.shutdown().await;
    let lines = values(&log);
    assert!(
        lines
            .iter()
            .any(|line| line["code"] == "LOST" && line["lost"].as_u64() > Some(2))
    );
    assert_eq!(check(&[log]).problem, None);
}

#[tokio::test]
async fn where_the_log_is_required_nothing_goes_to_a_file_that_was_moved_away() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let old = directory.path().join("audit.jsonl.1");
    let mut fixture = start(required(&log)).await;
    fixture.hosts.list_hosts(ask("")).await.unwrap();
    std::fs::rename(&log, &old).unwrap();
    std::fs::create_dir(&log).unwrap();
    let mut hosts = fixture.hosts.clone();
    eventually("the new file is missed", async || {
        hosts.list_hosts(ask("")).await.is_err()
    })
    .await;
    let moved = lines(&old);
    for _ in 0..3 {
        fixture.hosts.list_hosts(ask("")).await.unwrap_err();
    }
    assert_eq!(lines(&old), moved);
    std::fs::remove_dir(&log).unwrap();
    fixture.hosts.list_hosts(ask("")).await.unwrap();
    fixture.running.shutdown().await;
    assert_eq!(lines(&old), moved);
    assert_eq!(check(&[old, log]).problem, None);
}

#[tokio::test]
async fn where_the_log_is_required_a_call_is_in_it_before_it_has_an_effect() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let fixture = start(required(&log)).await;
    let mut hosts = fixture.hosts.clone();
    let waiting = tokio::spawn(async move { hosts.list_hosts(ask("wait")).await });
    fixture.demo.seen.entered.notified().await;
    let begun = values(&log);
    let codes =
        |lines: &[Value]| -> Vec<Value> { lines.iter().map(|line| line["code"].clone()).collect() };
    assert_eq!(codes(&begun), ["ASKED"]);
    fixture.demo.gate.add_permits(1);
    waiting.await.unwrap().unwrap();
    fixture.running.shutdown().await;
    let ended = values(&log);
    assert_eq!(codes(&ended), ["ASKED", "OK"]);
    assert_eq!(
        (&ended[1]["asked"], &ended[0]["seq"]),
        (&1.into(), &1.into())
    );
}

#[tokio::test]
async fn where_the_log_is_not_required_calls_go_on_and_the_log_says_how_many_lines_it_lost() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    full(&log);
    let mut fixture = start(audited(&log)).await;
    for _ in 0..3 {
        fixture.hosts.list_hosts(ask("")).await.unwrap();
    }
    let dropped = async || {
        let text = crate::common::get(&fixture.running, "/metrics").await.1;
        text.contains("drover_audit_dropped_total 3")
    };
    eventually("each loss is counted", dropped).await;
    std::fs::remove_file(&log).unwrap();
    eventually("the log tells of it", async || {
        values(&log).iter().any(|line| line["code"] == "LOST")
    })
    .await;
    fixture.running.shutdown().await;
    assert!(values(&log)[0]["lost"].as_u64() >= Some(3));
    assert_eq!(check(&[log]).problem, None);
}

#[tokio::test]
async fn calls_for_which_there_is_no_place_fill_no_log() {
    const CALLS: usize = 300;
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let settings = ServerSettings {
        max_concurrent_requests: 1,
        ..audited(&log)
    };
    let mut fixture = start(settings).await;
    let mut hosts = fixture.hosts.clone();
    let waiting = tokio::spawn(async move { hosts.list_hosts(ask("wait")).await });
    fixture.demo.seen.entered.notified().await;
    for _ in 0..CALLS {
        let refused = fixture.hosts.list_hosts(ask("")).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    }
    fixture.demo.gate.add_permits(1);
    waiting.await.unwrap().unwrap();
    let (_, text) = crate::common::get(&fixture.running, "/metrics").await;
    fixture.running.shutdown().await;
    let written = values(&log)
        .iter()
        .filter(|line| line["code"] == "RESOURCE_EXHAUSTED")
        .count();
    assert!((1..CALLS).contains(&written), "{written}");
    assert!(!text.contains("drover_audit_omitted_total 0"), "{text}");
}

#[tokio::test]
async fn two_servers_do_not_write_to_one_log() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let first = start(audited(&log)).await;
    let settings = audited(&log);
    let listener = listen(&settings).await.unwrap();
    let refused = spawn(
        service(&Demo::default()),
        listener,
        &settings,
        Shutdown::new(),
    );
    let Err(StartError::Audit(error)) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        error.to_string().contains("another process writes to it"),
        "{error}"
    );
    first.running.shutdown().await;
    let listener = listen(&settings).await.unwrap();
    spawn(
        service(&Demo::default()),
        listener,
        &settings,
        Shutdown::new(),
    )
    .unwrap();
}
