//! Another password of PostgreSQL, in two rounds, while the servers go on.

use std::fs;

use crate::stores::{
    alone::{Node, introduce, promoted, until},
    postgresql::{all_ready, alone, begin, postgresql},
    run, said,
};

/// With everything that files and statements have rules for.
const OLD: &str = r"old\pass'word:1 $HOME &";
const NEW: &str = r"new:'\\2' & more";

/// What a server answers to a client with this password.
fn ask(node: &Node, password: &str, statement: &str) -> Option<String> {
    let (_, programs) = postgresql();
    let psql = programs.join("psql");
    let password = password.replace('\\', r"\\").replace('\'', r"\'");
    let port = node.port("client");
    let to = format!(
        "host=127.0.0.1 port={port} user=postgres dbname=postgres password='{password}' connect_timeout=2"
    );
    said(&run(
        psql.to_str().unwrap(),
        &["-XAtqw", "-d", &to, "-c", statement],
    ))
}

/// Roles by which this server is followed, and what they may do beyond that.
const FOLLOWED_BY: &str = "select usename, rolsuper or rolcreaterole or rolcreatedb or rolbypassrls from pg_stat_replication join pg_roles on rolname = usename where state = 'streaming'";
const ITS_OWN: &str = "drover_replication|f";

/// Waits until a server is followed by these.
fn followed(nodes: &mut [Node], at: usize, password: &str, by: &str) {
    until("it is followed", nodes, |nodes| {
        ask(&nodes[at], password, FOLLOWED_BY).as_deref() == Some(by)
    });
}

fn renewed(nodes: &mut [Node], at: usize, user_data: &str) {
    nodes[at].is_given(user_data.as_bytes());
    nodes[at].start("standby");
    introduce(nodes);
    until("it is of use", nodes, all_ready);
}

#[test]
fn another_password_reaches_the_servers_before_it_is_asked_for() {
    // Whatever a server logs.
    let all = ["log_min_duration_statement=0", "log_statement=all"];
    let mut nodes = [alone(0, &all), alone(1, &all)];
    for node in &mut nodes {
        node.is_given(OLD.as_bytes());
    }
    begin(&mut nodes);
    followed(&mut nodes, 0, OLD, ITS_OWN);
    assert!(ask(&nodes[0], OLD, "create table t (x int)").is_some());
    assert_eq!(ask(&nodes[0], NEW, "select 1"), None);
    // As in an update: standbys first, then one of them takes over.
    let both = format!("{NEW}\nformer: {OLD}\n");
    renewed(&mut nodes, 1, &both);
    assert!(ask(&nodes[0], OLD, "insert into t values (1)").is_some());
    until("the standby has it", &mut nodes, |nodes| {
        ask(&nodes[1], OLD, "select x from t").as_deref() == Some("1")
    });
    nodes[0].kill();
    nodes[1].hears_of(&[]);
    promoted(&mut nodes[1]);
    until("the new password is in force", &mut nodes, |nodes| {
        ask(&nodes[1], NEW, "select 1").is_some()
    });
    assert_eq!(ask(&nodes[1], OLD, "select 1"), None);
    renewed(&mut nodes, 0, &both);
    // The second round. One that copies everything knows only the new one.
    nodes[0].empties();
    renewed(&mut nodes, 0, &format!("{NEW}\n"));
    let rows = ask(&nodes[0], NEW, "select x from t");
    assert_eq!(rows.as_deref(), Some("1"));
    followed(&mut nodes, 1, NEW, ITS_OWN);
    for node in &nodes {
        for secret in [OLD, NEW, r"new:''"] {
            assert!(!node.log().contains(secret), "{}", node.log());
        }
    }
}

#[test]
fn a_primary_that_lacks_the_role_of_standbys_is_followed_as_the_superuser_until_it_has_it() {
    let mut nodes = [alone(0, &[]), alone(1, &[])];
    for node in &mut nodes {
        node.is_given(format!("{OLD}\n").as_bytes());
    }
    let doors = nodes[0].storage().join("postgresql/pg_hba.conf");
    again(&mut nodes[..1], 0);
    let lets_it_in = fs::read_to_string(&doors).unwrap();
    let refused = format!("host replication drover_replication all reject\n{lets_it_in}");
    fs::write(&doors, refused).unwrap();
    again(&mut nodes[..1], 0);
    renewed(&mut nodes, 1, &format!("{OLD}\n"));
    followed(&mut nodes, 0, OLD, "postgres|t");
    // As one of an earlier version.
    ask(&nodes[0], OLD, "drop role drover_replication").expect("nobody uses it");
    fs::write(&doors, lets_it_in).unwrap();
    again(&mut nodes, 0);
    until("it has made the role", &mut nodes, |nodes| {
        let log = nodes[0].log();
        log.contains("standbys follow as drover_replication")
    });
    renewed(&mut nodes, 1, OLD);
    followed(&mut nodes, 0, OLD, ITS_OWN);
    let log = nodes[1].log();
    assert!(!log.contains("a base backup of"), "{log}");
}

/// Starts a server of the data that its slot has.
fn again(nodes: &mut [Node], at: usize) {
    nodes[at].kill();
    nodes[at].start("active");
    introduce(nodes);
    until("it serves", &mut nodes[at..=at], all_ready);
}

#[test]
fn user_data_that_begin_with_no_password_are_refused() {
    for wrong in ["\nformer: old\n", "former: old\nnew\n"] {
        let mut node = alone(0, &[]);
        node.is_given(wrong.as_bytes());
        node.start("active");
        node.hears_of(&[]);
        let mut nodes = [node];
        until("it gives up", &mut nodes, |nodes| nodes[0].has_ended());
        let log = nodes[0].log();
        assert!(log.contains("the first line of the user data"), "{log}");
    }
}
