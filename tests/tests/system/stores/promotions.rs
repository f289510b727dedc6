//! Promotions of PostgreSQL while others take themselves for the primary, are away or late: whatever was acknowledged
//! is at the one that is promoted.

use std::{fs, os::unix::fs::PermissionsExt, process::Command, thread, time::Duration};

use tokio::time::Instant;

use crate::stores::{
    alone::{Node, introduce, promoted, refused, until},
    postgresql::{alone, ask, begin, has_replayed, insist, postgresql},
    quorum::{acknowledged, acknowledges, counted, counts, killed, synchronous},
    run,
};

const STREAMS: &str = "select sender_port from pg_stat_wal_receiver where status = 'streaming'";

/// Whether a standby receives from that primary.
fn streams(standby: &Node, primary: &Node) -> bool {
    ask(standby, STREAMS) == Some(primary.port("client").to_string())
}

/// Whom the primary counted, as far as this server has heard: the timeline, how many are needed, and the names.
fn record(node: &Node) -> String {
    let of_role = "select substr(one, 15) from pg_db_role_setting, unnest(setconfig) one \
                   where one like 'drover.quorum=%'";
    ask(node, of_role).unwrap_or_default()
}

/// Whom a server has counted, one setting after the other, without the one that it began with.
fn were_in_force(node: &Node) -> Vec<String> {
    let mark = "parameter \"synchronous_standby_names\" changed to ";
    let log = node.log();
    let settings = log.lines().filter_map(|line| line.split_once(mark));
    settings
        .map(|(_, setting)| setting.trim_matches('"').to_owned())
        .collect()
}

/// Which of these rows a server has.
fn rows(node: &Node, among: &str) -> String {
    let all = "select string_agg(x::text, ' ' order by x) from t where x in";
    insist(node, &format!("{all} ({among})"))
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|&name| name.to_owned()).collect()
}

/// Has a promotion ask each question by a psql of its own.
const NO_SESSION: &str = "case $* in *-c* | */dev/stdin) ;; *) exit 2 ;; esac";

/// Gives a node programs of PostgreSQL of which psql runs these lines first: `$query` is what is asked, `real` does it.
fn with_psql(node: &mut Node, lines: &str) {
    let (_, programs) = postgresql();
    let folder = node.storage().join("programs");
    fs::create_dir(&folder).unwrap();
    for program in fs::read_dir(&programs).unwrap() {
        let program = program.unwrap();
        if program.file_name() != "psql" {
            std::os::unix::fs::symlink(program.path(), folder.join(program.file_name())).unwrap();
        }
    }
    let real = programs.join("psql");
    let real = real.to_str().unwrap();
    let psql = folder.join("psql");
    let whole = format!(
        "#!/bin/sh\nfor query; do :; done\nreal() {{ {real} \"$@\"; }}\n{lines}\nreal \"$@\"\n"
    );
    fs::write(&psql, whole).unwrap();
    fs::set_permissions(&psql, fs::Permissions::from_mode(0o755)).unwrap();
    node.sets("BIN", folder.to_str().unwrap());
}

fn with_usual_psql(node: &mut Node) {
    let (_, programs) = postgresql();
    node.sets("BIN", programs.to_str().unwrap());
}

#[test]
fn a_standby_that_was_away_at_a_promotion_follows_the_newer_of_two_primaries() {
    let mut nodes = synchronous(2);
    nodes[2].kill();
    until("it is no longer counted", &mut nodes, |nodes| {
        counts(&nodes[0], &names(&["db-1"])) && record(&nodes[1]) == "1 1 db-1"
    });
    nodes[1].hears_of(&[nodes[0].seen_as("active"), nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    nodes[2].start("standby");
    let (old, new) = (nodes[0].seen_as("active"), nodes[1].seen_as("active"));
    let away = nodes[2].seen_as("standby");
    nodes[0].hears_of(&[new.clone(), away.clone()]);
    nodes[1].hears_of(&[old.clone(), away]);
    nodes[2].hears_of(&[old, new]);
    assert!(!acknowledges(&nodes[0], 1), "by two servers");
    until("it follows the new one", &mut nodes, |nodes| {
        assert!(!streams(&nodes[2], &nodes[0]), "it follows the old one");
        counts(&nodes[1], &names(&["db-2"]))
    });
    acknowledged(&nodes[1], 2);
    assert!(!acknowledges(&nodes[0], 3), "by two servers");
}

#[test]
fn what_came_after_a_promotion_is_not_outdone_by_more_from_before_it() {
    let mut nodes = counted("2", 3);
    nodes[3].kill();
    until("it is no longer counted", &mut nodes, |nodes| {
        counts(&nodes[0], &names(&["db-1", "db-2"]))
    });
    nodes[1].hears_of(&[
        nodes[0].seen_as("active"),
        nodes[2].seen_as("standby"),
        nodes[3].seen_as("standby"),
    ]);
    promoted(&mut nodes[1]);
    // The one that was away hears of the old primary only, which has written more than the new one.
    nodes[3].start("standby");
    nodes[3].hears_of(&[nodes[0].seen_as("active")]);
    until("it follows the old one", &mut nodes, |nodes| {
        streams(&nodes[3], &nodes[0])
    });
    let much = "create table much as select generate_series(1, 20000) as x";
    insist(
        &nodes[0],
        &format!("set synchronous_commit = local; {much}"),
    );
    until("it has all of it", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[3])
    });
    nodes[0].start("standby");
    nodes[0].hears_of(&[nodes[1].seen_as("active"), nodes[2].seen_as("standby")]);
    nodes[1].hears_of(&[nodes[0].seen_as("standby"), nodes[2].seen_as("standby")]);
    nodes[2].hears_of(&[nodes[0].seen_as("standby"), nodes[1].seen_as("active")]);
    until("both follow the new one", &mut nodes, |nodes| {
        counts(&nodes[1], &names(&["db-0", "db-2"]))
    });
    acknowledged(&nodes[1], 42);
    let position = "select pg_last_wal_receive_lsn()";
    let of_old = insist(&nodes[3], position);
    let more = format!("select pg_last_wal_receive_lsn() < '{of_old}'");
    assert_eq!(insist(&nodes[2], &more), "t", "the old one has more");
    nodes[1].kill();

    nodes[3].hears_of(&[nodes[0].seen_as("standby"), nodes[2].seen_as("standby")]);
    refused(&mut nodes[3], &["it is the one to promote"]);
    nodes[3].hears_role("standby");
    nodes[2].hears_of(&[nodes[0].seen_as("standby"), nodes[3].seen_as("standby")]);
    promoted(&mut nodes[2]);
    assert_eq!(insist(&nodes[2], "select x from t"), "42");
    let tables = "select count(*) from pg_class where relname = 'much'";
    assert_eq!(insist(&nodes[2], tables), "0", "it was never acknowledged");
}

#[test]
fn a_standby_that_may_hear_only_one_that_has_left_follows_a_later_primary() {
    let mut nodes = synchronous(2);
    nodes[1].hears_of(&[nodes[0].seen_as("active"), nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    nodes[2].kill();
    nodes[0].start("standby");
    nodes[0].hears_of(&[nodes[1].seen_as("active")]);
    nodes[1].hears_of(&[nodes[0].seen_as("standby")]);
    until("the former primary counts", &mut nodes, |nodes| {
        counts(&nodes[1], &names(&["db-0"]))
    });
    acknowledged(&nodes[1], 1);
    nodes[1].kill();
    nodes[0].hears_of(&[]);
    promoted(&mut nodes[0]);
    nodes[2].start("standby");
    nodes[0].hears_of(&[nodes[2].seen_as("standby")]);
    nodes[2].hears_of(&[nodes[0].seen_as("active")]);
    until("it follows the later one", &mut nodes, |nodes| {
        counts(&nodes[0], &names(&["db-2"]))
    });
    acknowledged(&nodes[0], 2);
    until("it has what both have acknowledged", &mut nodes, |nodes| {
        rows(&nodes[2], "1, 2") == "1 2"
    });
}

#[test]
fn fewer_standbys_than_are_needed_are_never_counted() {
    let mut nodes = counted("2", 3);
    acknowledged(&nodes[0], 1);
    nodes[3].kill();
    until("it is no longer counted", &mut nodes, |nodes| {
        counts(&nodes[0], &names(&["db-1", "db-2"]))
            && record(&nodes[2]).split_whitespace().count() == 4
    });
    killed(&mut nodes, 2);
    for row in 2..4 {
        assert!(!acknowledges(&nodes[0], row), "only one has it");
    }
    nodes[2].start("standby");
    introduce(&nodes);
    until("two are there again", &mut nodes, |nodes| {
        streams(&nodes[2], &nodes[0])
    });
    acknowledged(&nodes[0], 4);
    let settings = were_in_force(&nodes[0]);
    let needs_two = |setting: &String| setting.starts_with("ANY 2 (");
    assert!(settings.iter().all(needs_two), "{settings:?}");
    let mut named = settings.iter().map(|it| it.matches("\"db-").count());
    assert!(named.any(|number| number == 3), "{settings:?}");
    assert!(named.all(|number| number >= 2), "{settings:?}");
    nodes[0].kill();
    nodes[1].kill();
    nodes[2].hears_of(&[nodes[1].seen_as("standby")]);
    promoted(&mut nodes[2]);
    assert_eq!(rows(&nodes[2], "1, 4"), "1 4");
}

#[test]
fn a_record_of_names_that_cannot_be_read_is_not_taken_for_none() {
    let mut nodes = synchronous(2);
    // Only one of them receives the next row.
    let receiver = insist(&nodes[1], "select pid from pg_stat_wal_receiver");
    let to_receiver = |name: &str| assert!(run("kill", &[name, &receiver]).status.success());
    to_receiver("-STOP");
    acknowledged(&nodes[0], 42);
    nodes[2].kill();
    nodes[0].kill();
    to_receiver("-CONT");
    nodes[1].hears_of(&[]);
    let needed = "1 of 2 are, 2 are needed";
    refused(&mut nodes[1], &[needed]);
    let unread = format!("{NO_SESSION}; case $query in *drover.quorum*) exit 2 ;; esac");
    with_psql(&mut nodes[1], &unread);
    refused(&mut nodes[1], &["counted cannot be read"]);
    with_usual_psql(&mut nodes[1]);
    refused(&mut nodes[1], &[needed]);
    nodes[2].start("standby");
    nodes[2].hears_of(&[]);
    until("the other one is back", &mut nodes, |nodes| {
        ask(&nodes[2], "select 1").is_some()
    });
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert_eq!(insist(&nodes[1], "select x from t"), "42");
}

#[test]
fn a_server_that_says_nothing_is_not_taken_for_a_primary() {
    let mut nodes = synchronous(1);
    nodes[0].kill();
    let unsaid = format!("{NO_SESSION}; [ \"$query\" != 'select pg_is_in_recovery()' ] || exit 2");
    with_psql(&mut nodes[1], &unsaid);
    nodes[1].hears_of(&[]);
    refused(&mut nodes[1], &["does not answer"]);
    with_usual_psql(&mut nodes[1]);
    assert_eq!(insist(&nodes[1], "select pg_is_in_recovery()"), "t");
    promoted(&mut nodes[1]);
}

#[test]
fn a_server_that_has_forgotten_that_it_was_promoted_is_told_again() {
    let mut nodes = synchronous(1);
    nodes[0].kill();
    // As one that has crashed at that moment, and begun again.
    let forgets = r#"
        if [ "$query" = 'select pg_promote(false)' ] && [ ! -e "$DROVER_DIR/forgotten" ]; then
            : >"$DROVER_DIR/forgotten"
            exit 0
        fi"#;
    with_psql(&mut nodes[1], &format!("{NO_SESSION}{forgets}"));
    nodes[1].hears_of(&[]);
    promoted(&mut nodes[1]);
    assert!(nodes[1].directory().join("forgotten").exists());
    assert_eq!(insist(&nodes[1], "select pg_is_in_recovery()"), "f");
}

#[test]
fn a_promotion_that_is_late_undoes_nothing_of_one_that_was_quicker() {
    let mut nodes = synchronous(2);
    nodes[0].kill();
    // The first that has asked everybody learns that it is still a standby, and then stands still.
    let late = r#"
        NO_SESSION
        if [ "$query" = 'select pg_is_in_recovery()' ]; then
            echo >>"$DROVER_DIR/asked"
            if [ "$(wc -l <"$DROVER_DIR/asked")" = 2 ]; then
                real "$@"
                : >"$DROVER_DIR/stands"
                until [ -e "$DROVER_DIR/go" ]; do sleep 0.1; done
                exit
            fi
        fi"#;
    with_psql(&mut nodes[1], &late.replace("NO_SESSION", NO_SESSION));
    nodes[1].hears_role("active");
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    nodes[2].hears_of(&[nodes[1].seen_as("active")]);
    let (node, folder) = (&nodes[1], nodes[1].directory());
    let is_counted = || counts(node, &names(&["db-2"]));
    thread::scope(|scope| {
        let first = scope.spawn(|| node.does("promote"));
        until("the first one stands still", &mut [], |_| {
            folder.join("stands").exists()
        });
        let second = scope.spawn(|| node.does("promote"));
        let began = Instant::now();
        until("the second one is through, or waits", &mut [], |_| {
            second.is_finished() || began.elapsed() > Duration::from_secs(6)
        });
        if second.is_finished() {
            until("the standby counts", &mut [], |_| is_counted());
        }
        fs::write(folder.join("go"), "").unwrap();
        for one in [first, second] {
            let answer = one.join().unwrap();
            assert!(answer.status.success(), "{answer:?}");
        }
    });
    until("the standby counts", &mut nodes, |nodes| {
        counts(&nodes[1], &names(&["db-2"]))
    });
    acknowledged(&nodes[1], 1);
    let settings = were_in_force(&nodes[1]);
    let named = settings.iter().skip_while(|it| !it.contains("db-2"));
    let mut later = named.filter(|it| !it.contains("db-2"));
    assert_eq!(later.next(), None, "{settings:?}");
}

/// A look of a standby at itself, as a pattern of the shell.
const LOOK: &str = r#"*"current_setting('primary_conninfo')"*"#;

/// Another one is promoted while a standby that has seen only the old primary is about to ask this of its server, or has just
/// looked at itself. An earlier promotion of somebody who has given it up may have asked it to hear nobody else.
fn promoted_before(query: &str, given_up: Option<&str>) {
    let mut nodes = synchronous(2);
    let held = r#"
        hold() { while [ -e "$DROVER_DIR/hold" ]; do : >"$DROVER_DIR/stands"; sleep 0.1; done; }
        case $* in
            *-c* | */dev/stdin) case $query in QUERY) hold ;; esac ;;
            *)
                # The session in which it looks at itself.
                while IFS= read -r query; do
                    case $query in
                        '\echo '*) query=${query#* } && echo "${query%:ERROR}false" ;;
                        'prepare look as '*) look=${query#prepare look as } ;;
                        'execute look;')
                            saw=$(real "$@" -c "$look")
                            echo >>"$DROVER_DIR/looks"
                            case $look in QUERY) hold ;; esac
                            printf '%s\n' "$saw"
                            ;;
                    esac
                done
                exit 0
                ;;
        esac"#;
    let held = held.replace("QUERY", query);
    with_psql(&mut nodes[2], &held);
    nodes[2].start("standby");
    nodes[2].hears_of(&[]);
    until("it is there", &mut nodes, |nodes| {
        ask(&nodes[2], "select 1").is_some()
    });
    if let Some(name) = given_up {
        insist(
            &nodes[2],
            &format!("alter system set drover.fence = '{name}'"),
        );
        insist(&nodes[2], "alter system set primary_conninfo = ''");
        insist(&nodes[2], "select pg_reload_conf()");
    }
    let folder = nodes[2].directory();
    fs::write(folder.join("hold"), "").unwrap();
    introduce(&nodes);
    until("it stands still", &mut nodes, |_| {
        folder.join("stands").exists()
    });
    nodes[1].hears_of(&[nodes[0].seen_as("active"), nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    let looks = || fs::read(folder.join("looks")).unwrap().len();
    let (so_far, position) = (looks(), nodes[2].log().len());
    fs::remove_file(folder.join("hold")).unwrap();
    until("it has looked again", &mut nodes, |nodes| {
        let log = &nodes[2].log()[position..];
        assert!(!log.contains("started streaming"), "the old one:\n{log}");
        looks() >= so_far + 2
    });
    assert!(!acknowledges(&nodes[0], 1), "by two servers");
    nodes[2].hears_of(&[nodes[0].seen_as("active"), nodes[1].seen_as("active")]);
    until("it follows the new one", &mut nodes, |nodes| {
        counts(&nodes[1], &names(&["db-2"]))
    });
    acknowledged(&nodes[1], 2);
}

#[test]
fn a_standby_that_looks_whom_it_follows_does_not_follow_the_old_primary_again() {
    promoted_before(LOOK, None);
}

#[test]
fn a_standby_that_is_about_to_follow_the_old_primary_no_longer_does() {
    // With which it takes back what it was asked.
    promoted_before("/dev/stdin", None);
}

#[test]
fn a_standby_that_is_about_to_forget_an_older_promotion_heeds_a_later_one() {
    promoted_before("/dev/stdin", Some("db-1"));
}

#[test]
fn no_client_of_a_standby_holds_up_a_promotion() {
    let mut nodes = synchronous(2);
    insist(&nodes[0], "create role app login");
    until("the role is there", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[2])
    });
    let (_, programs) = postgresql();
    let port = nodes[2].port("client").to_string();
    let lock = "select pg_advisory_lock(8474, 1)";
    // It is never idle for long: that would be another reason to end it.
    let more = ["-c", "select pg_sleep(5)"].repeat(120);
    let mut holds = Command::new(programs.join("psql"))
        .args([
            "-Xq",
            "-h",
            "127.0.0.1",
            "-U",
            "app",
            "-d",
            "postgres",
            "-p",
        ])
        .args([port.as_str(), "-c", lock])
        .args(more)
        .spawn()
        .unwrap();
    until("a client has the lock", &mut nodes, |nodes| {
        let locks = "select count(*) from pg_locks where locktype = 'advisory' and granted";
        ask(&nodes[2], locks).as_deref() == Some("1")
    });
    nodes[0].kill();
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert!(!holds.wait().unwrap().success(), "its session was ended");
}

/// Three servers of which the first acknowledges alone; the others would not.
fn not_yet_synchronous() -> Vec<Node> {
    let needed = |at| if at == 0 { "0" } else { "1" };
    let one = |at| alone(at, &[]).with_environment("SYNCHRONOUS", needed(at));
    let mut nodes: Vec<_> = (0..3).map(one).collect();
    begin(&mut nodes);
    insist(&nodes[0], "create table t (x int)");
    until("both have the table", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[1]) && has_replayed(&nodes[0], &nodes[2])
    });
    nodes
}

#[test]
fn a_primary_that_counted_nobody_has_to_be_gone_before_another_one_is_promoted() {
    let mut nodes = not_yet_synchronous();
    nodes[1].hears_of(&[nodes[0].seen_as("active"), nodes[2].seen_as("standby")]);
    refused(&mut nodes[1], &["has to be gone first"]);
    acknowledged(&nodes[0], 1);
    let has_row = |nodes: &[Node]| ask(&nodes[1], "select x from t").as_deref() == Some("1");
    until("it still hears it", &mut nodes, |nodes| has_row(nodes));
    nodes[0].kill();
    nodes[1].hears_of(&[nodes[2].seen_as("standby")]);
    promoted(&mut nodes[1]);
    assert!(has_row(&nodes));
    assert!(!acknowledges(&nodes[1], 2), "nobody follows it");
    nodes[2].hears_of(&[nodes[1].seen_as("active")]);
    until("the other standby counts", &mut nodes, |nodes| {
        counts(&nodes[1], &names(&["db-2"]))
    });
    acknowledged(&nodes[1], 3);
}

#[test]
fn a_primary_that_begins_to_count_need_not_be_gone() {
    let mut nodes = not_yet_synchronous();
    nodes[2].kill();
    nodes[0].sets("SYNCHRONOUS", "1");
    nodes[0].start("active");
    introduce(&nodes);
    until("the standby counts", &mut nodes, |nodes| {
        counts(&nodes[0], &names(&["db-1"])) && record(&nodes[1]) == "1 1 db-1"
    });
    acknowledged(&nodes[0], 1);
    nodes[1].hears_of(&[nodes[0].seen_as("active")]);
    promoted(&mut nodes[1]);
    assert!(!acknowledges(&nodes[0], 2), "by two servers");
    assert_eq!(insist(&nodes[1], "select x from t"), "1");
}
