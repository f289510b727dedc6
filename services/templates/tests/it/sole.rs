//! The permission of a PostgreSQL to acknowledge alone, by its script with programs that answer as they are told.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::json;
use tempfile::TempDir;

/// Answers by what is asked, from files of the folder of the node.
const PSQL: &str = r#"#!/bin/sh
for query; do :; done
[ ! -e "$DROVER_DIR/hangs" ] || exit 2
case $query in
    *pg_is_in_recovery*) cat "$DROVER_DIR/is-primary" ;;
    *pg_stat_replication*) cat "$DROVER_DIR/streaming" ;;
    'show synchronous_standby_names') ;;
    *) exit 1 ;;
esac
"#;

/// Ten seconds pass whenever this runs.
const TIME_PASSES: &str = r#"#!/bin/sh
echo >>"$DROVER_DIR/passed"
echo "$(wc -l <"$DROVER_DIR/passed")0.00 0.00" >"$UPTIME"
"#;

/// A primary and a standby that its platform knows.
struct Primary {
    root: TempDir,
    needs: &'static str,
    durability: &'static str,
}

impl Primary {
    fn new() -> Self {
        let primary = Self {
            root: tempfile::tempdir().unwrap(),
            needs: "1",
            durability: "available",
        };
        for folder in ["bin", "dir", "storage"] {
            fs::create_dir(primary.root.path().join(folder)).unwrap();
        }
        fs::write(
            primary.file("postgresql.sh"),
            super::stores::script(json!({})),
        )
        .unwrap();
        primary.program("postgres", "#!/bin/sh\n");
        primary.program("psql", PSQL);
        primary.says("is-primary", "t\n");
        primary.says("streaming", "");
        primary.says("role", "active\n");
        let node = |name: &str, role: &str| {
            json!({
                "name": name, "id": format!("{name}-x"), "group": "db", "ordinal": 0,
                "role": role, "host": "127.0.0.1", "ports": {"client": 1},
            })
        };
        let peers = json!([node("db-0", "active"), node("db-1", "standby")]);
        primary.says("peers.json", &peers.to_string());
        primary
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn says(&self, name: &str, content: &str) {
        fs::write(self.file("dir").join(name), content).unwrap();
    }

    fn program(&self, name: &str, content: &str) {
        let path = self.file("bin").join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Time stands still from now on, but for what `program` takes.
    fn times(&self, program: &str, rest: &str) {
        self.says("uptime", "0.00 0.00\n");
        self.program(program, &format!("{TIME_PASSES}{rest}"));
    }

    fn has_permission(&self) -> bool {
        self.file("storage/sole").exists()
    }

    fn does(&self, verb: &str) -> Output {
        let programs = std::env::var("PATH").unwrap();
        let own = self.file("bin");
        let mut command = Command::new("sh");
        command.arg(self.file("postgresql.sh")).arg(verb);
        command.env("PATH", format!("{}:{programs}", own.display()));
        command.env("BIN", own).stdin(Stdio::null());
        command.envs([
            ("SYNCHRONOUS", self.needs),
            ("DURABILITY", self.durability),
            ("BORN", "active"),
            ("DROVER_NODE_ID", "db-0-x"),
            ("DROVER_NODE_NAME", "db-0"),
            ("DROVER_GROUP", "db"),
            ("DROVER_HOST", "127.0.0.1"),
            ("DROVER_PORT_CLIENT", "1"),
        ]);
        for (name, path) in [
            ("DROVER_DIR", "dir"),
            ("DROVER_STORAGE", "storage"),
            ("DROVER_PEERS", "dir/peers.json"),
            ("DROVER_ROLE_FILE", "dir/role"),
        ] {
            command.env(name, self.file(path));
        }
        let uptime = self.file("dir/uptime");
        if uptime.exists() {
            command.env("UPTIME", uptime);
        }
        command.output().unwrap()
    }

    #[track_caller]
    fn is_permitted(&self) {
        let answer = self.does("sole");
        assert!(answer.status.success(), "{answer:?}");
        assert!(self.has_permission());
    }

    #[track_caller]
    fn is_refused(&self, why: &str) {
        let answer = self.does("sole");
        let said = String::from_utf8_lossy(&answer.stderr);
        assert!(!answer.status.success() && said.contains(why), "{answer:?}");
        let left = fs::read_dir(self.file("storage")).unwrap().count();
        assert_eq!(left, 0, "a permission that nobody knows of");
    }
}

#[test]
fn a_primary_that_nobody_follows_is_permitted_to_go_on_alone() {
    let primary = Primary::new();
    primary.is_permitted();
    // Whatever came since.
    primary.says("streaming", "db-1\n");
    primary.is_permitted();
    let files = fs::read_dir(primary.file("storage")).unwrap().count();
    assert_eq!(files, 1);
}

#[test]
fn who_follows_but_is_no_standby_of_the_group_does_not_count() {
    let primary = Primary::new();
    primary.says("streaming", "pg_receivewal\ndb-7\n");
    primary.is_permitted();
}

#[test]
fn a_primary_with_fewer_standbys_than_it_needs_is_permitted_to_go_on_alone() {
    let mut primary = Primary::new();
    primary.needs = "2";
    primary.says("streaming", "db-1\n");
    primary.is_permitted();
}

#[test]
fn a_primary_whose_standbys_follow_needs_no_permission() {
    let primary = Primary::new();
    primary.says("streaming", "db-1\n");
    primary.is_refused("it needs no permission: 1 standbys follow");
}

#[test]
fn a_strict_primary_is_never_permitted_to_go_on_alone() {
    let mut primary = Primary::new();
    primary.durability = "strict";
    primary.is_refused("durability is strict");
}

#[test]
fn only_an_active_primary_that_answers_is_permitted_to_go_on_alone() {
    for (file, content, why) in [
        ("is-primary", "f\n", "it is no primary"),
        ("role", "standby\n", "it is no primary"),
        ("hangs", "", "it is no primary"),
    ] {
        let primary = Primary::new();
        primary.says(file, content);
        primary.is_refused(why);
    }
}

#[test]
fn a_permission_that_comes_late_is_not_taken() {
    let primary = Primary::new();
    primary.times("psql", PSQL);
    primary.is_refused("this took too long");
}

#[test]
fn a_permission_does_not_end_without_the_node_itself() {
    let primary = Primary::new();
    primary.is_permitted();
    fs::write(primary.file("storage/sole"), "1 db-1\n").unwrap();
    primary.times("sleep", "");
    let answer = primary.does("together");
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(!answer.status.success(), "{answer:?}");
    assert!(
        said.contains("not yet") && said.contains("1 of db-1"),
        "{said}"
    );
    assert!(primary.has_permission());
    let asks = |name: &str| name.starts_with("together");
    let left = fs::read_dir(primary.file("dir")).unwrap();
    let mut left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!left.any(|name| asks(&name)), "it is asked no more");
}

#[test]
fn a_primary_that_counts_nobody_gives_a_permission_of_before_back() {
    let mut primary = Primary::new();
    primary.is_permitted();
    primary.needs = "0";
    let answer = primary.does("together");
    assert!(answer.status.success(), "{answer:?}");
    assert!(!primary.has_permission());
}

/// Has a primary stop that its server outlives until it is told to end. Returns whether that was waited for.
fn waits_before_it_stops(primary: &Primary) -> bool {
    primary.times("sleep", "");
    let data = primary.file("storage/postgresql");
    fs::create_dir(&data).unwrap();
    let mut server = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = format!("{}\n", server.id());
    fs::write(data.join("postmaster.pid"), pid).unwrap();
    let answer = primary.does("stop");
    assert!(answer.status.success(), "{answer:?}");
    assert!(!server.wait().unwrap().success(), "it was told to end");
    primary.file("dir/passed").exists()
}

#[test]
fn a_primary_that_is_to_stop_serves_while_enough_hear_it_but_not_for_ever() {
    let primary = Primary::new();
    primary.says("streaming", "db-1\n");
    assert!(waits_before_it_stops(&primary));
}

#[test]
fn a_primary_that_may_acknowledge_alone_serves_until_that_ends_but_not_for_ever() {
    let primary = Primary::new();
    primary.is_permitted();
    primary.says("streaming", "db-1\n");
    assert!(waits_before_it_stops(&primary));
}

#[test]
fn a_primary_that_nobody_is_about_to_take_over_from_stops_at_once() {
    // Nobody hears it; nor one that acknowledges alone; it hangs; it counts nobody.
    for (streaming, file, needs) in [
        ("pg_receivewal\n", "storage/any", "1"),
        ("", "storage/sole", "1"),
        ("db-1\n", "dir/misses", "1"),
        ("db-1\n", "storage/any", "0"),
    ] {
        let mut primary = Primary::new();
        primary.needs = needs;
        primary.says("streaming", streaming);
        fs::write(primary.file(file), "").unwrap();
        assert!(!waits_before_it_stops(&primary), "{file}, needs {needs}");
    }
}

#[test]
fn a_word_that_the_script_does_not_know_is_refused_with_those_that_it_knows() {
    let answer = Primary::new().does("alone");
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(!answer.status.success(), "{answer:?}");
    assert!(
        said.contains("run, alive, promote, sole, together or stop"),
        "{said}"
    );
}

/// Time passes whenever this runs, in hundredths of a second.
fn takes(hundredths: u32) -> String {
    format!(
        r#"#!/bin/sh
read -r now rest <"$UPTIME"
now=$((${{now%.*}} * 100 + 1${{now#*.}} - 100 + {hundredths}))
printf '%d.%02d 0.00\n' $((now / 100)) $((now % 100)) >"$UPTIME"
"#
    )
}

/// With a server that does not answer for so long.
fn without_answer(hundredths: u32) -> Primary {
    let primary = Primary::new();
    primary.says("uptime", "100.99 0.00\n");
    primary.program("sleep", &takes(100));
    primary.program("pg_isready", &format!("{}exit 2\n", takes(hundredths)));
    primary
}

#[track_caller]
fn is_not_alive(primary: &Primary, why: &str) {
    let answer = primary.does("alive");
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(!answer.status.success() && said.contains(why), "{said}");
}

/// Before PostgreSQL 17 `pg_isready` counts whole seconds, and the first of the two that it is given may be almost over.
#[test]
fn a_server_that_says_nothing_for_a_second_hangs() {
    let primary = without_answer(101);
    is_not_alive(&primary, "the server hangs");
    assert!(primary.file("dir/misses").exists());
}

#[test]
fn a_server_that_refuses_is_not_there_and_ends_what_was_missed_in_a_row() {
    let primary = without_answer(2);
    primary.says("misses", "\n\n");
    is_not_alive(&primary, "the server is not there");
    assert!(!primary.file("dir/misses").exists());
}

/// Has a standby promoted while the primary may acknowledge alone, and says that of itself to whoever asks it.
fn promoted_beside(primary_says: &str) -> String {
    let primary = without_answer(2);
    let psql = format!(
        r#"#!/bin/sh
case "$*" in *' -p 2 '*) echo "psql: error: {primary_says}" >&2; exit 2 ;; esac
for query; do :; done
case $query in
    *pg_is_in_recovery*) echo t ;;
    'select 1') echo 1 ;;
    # Nobody is counted.
    *drover.quorum*) ;;
    *) exit 1 ;;
esac
"#
    );
    primary.program("psql", &psql);
    let mut peers: serde_json::Value =
        serde_json::from_slice(&fs::read(primary.file("dir/peers.json")).unwrap()).unwrap();
    peers[1]["role"] = json!("active");
    peers[1]["ports"]["client"] = json!(2);
    primary.says("peers.json", &peers.to_string());
    let answer = primary.does("promote");
    assert!(!answer.status.success(), "nothing else answers here");
    String::from_utf8_lossy(&answer.stderr).into_owned()
}

#[test]
fn nobody_is_promoted_beside_a_primary_that_may_acknowledge_alone_unless_it_is_gone() {
    for living in [
        "connection to server at 127.0.0.1, port 2 failed: timeout expired",
        "connection to server at 127.0.0.1, port 2 failed: Network is unreachable",
    ] {
        let said = promoted_beside(living);
        assert!(said.contains("it has to be gone first"), "{living}: {said}");
    }
    let said = promoted_beside("connection to server failed: Connection refused");
    assert!(!said.contains("it has to be gone first"), "{said}");
}
