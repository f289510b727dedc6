//! Settings of PostgreSQL of which a standby must not have less than its primary.

use crate::stores::{
    alone::{Node, introduce, promoted, until},
    postgresql::{all_ready, alone, begin, has_replayed, insist},
};

fn with(ordinal: u32, connections: u32, locks: u32) -> Node {
    let connections = format!("max_connections={connections}");
    let locks = format!("max_locks_per_transaction={locks}");
    alone(ordinal, &[&connections, &locks])
}

fn in_force(node: &Node) -> (String, String) {
    let show = |name: &str| insist(node, &format!("show {name}"));
    (show("max_connections"), show("max_locks_per_transaction"))
}

fn shown(connections: &str, locks: &str) -> (String, String) {
    (connections.to_owned(), locks.to_owned())
}

#[test]
fn settings_of_which_standbys_need_as_much_as_their_primary_are_lowered_and_raised() {
    // As in an update: standbys first, then one of them takes over.
    let mut nodes = vec![with(0, 60, 100), with(1, 40, 100)];
    begin(&mut nodes);
    assert_eq!(in_force(&nodes[1]), shown("60", "100"));
    insist(&nodes[0], "create table t (x int)");
    insist(&nodes[0], "insert into t values (1)");
    until("the standby has it", &mut nodes, |nodes| {
        has_replayed(&nodes[0], &nodes[1])
    });
    nodes[0].kill();
    nodes.remove(0);
    nodes[0].hears_of(&[]);
    promoted(&mut nodes[0]);
    nodes.push(with(2, 80, 64));
    nodes[1].start("standby");
    introduce(&nodes);
    until(
        "a standby with more of one and less of the other",
        &mut nodes,
        all_ready,
    );
    assert_eq!(in_force(&nodes[1]), shown("80", "100"));
    assert_eq!(insist(&nodes[1], "select x from t"), "1");
}
