//! Format of results.

use std::time::{Duration, SystemTime};

use drover_proto::orchestrator::v1::{
    Cluster, ClusterPhase, ClusterSpec, ClusterStatus, Event, GroupSpec, GroupStatus,
    ListNodesResponse, Node, NodeState, Pause, PlatformChoice, StoreSpec,
};

use super::{Table, age, json, rows};

fn cluster(now: SystemTime) -> Cluster {
    let choice = |name: &str| PlatformChoice {
        name: name.into(),
        ..Default::default()
    };
    let group = GroupSpec {
        name: "db".into(),
        platforms: vec![choice("local"), choice("aws"), choice("local")],
        ..Default::default()
    };
    Cluster {
        name: "orders".into(),
        generation: 8,
        create_time: Some((now - Duration::from_secs(3 * 86_400)).into()),
        spec: Some(ClusterSpec {
            store: Some(StoreSpec {
                software: "postgresql".into(),
                version: "16.4".into(),
            }),
            groups: vec![group],
            ..Default::default()
        }),
        status: Some(ClusterStatus {
            phase: ClusterPhase::Ready.into(),
            groups: vec![GroupStatus {
                size: 1,
                ready: 1,
                standby: 2,
                standby_ready: 2,
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn a_table_has_no_borders_and_no_trailing_space() {
    let now = SystemTime::now();
    let mut table = rows::clusters(false);
    table.rows.push(rows::cluster(&cluster(now), false, now));
    assert_eq!(
        table.render(true, false),
        "NAME     READY      STATUS   STORE        VERSION   PLATFORMS   AGE\n\
         orders   1/1 +2/2   Ready    postgresql   16.4      local,aws   3d\n"
    );
    assert_eq!(
        table.render(false, false).lines().count(),
        1,
        "without the line of column names"
    );
}

#[test]
fn rows_that_come_later_stand_below_the_table() {
    let row = |name: &str, status: &str| vec![name.to_owned(), status.to_owned(), "1s".to_owned()];
    let mut table = Table::new(&["NAME", "STATUS", "AGE"]);
    table.rows.push(row("orders/db-0", "Ready"));
    let widths = table.widths();
    table.rows = vec![row("a/b", "Starting"), row("orders/db-1", "Ready")];
    assert_eq!(
        table.below(&widths, false),
        "a/b           Starting   1s\norders/db-1   Ready    1s\n"
    );
    assert!(
        table
            .below(&widths, true)
            .contains("a/b           \x1b[33mStarting\x1b[0m   1s")
    );
}

#[test]
fn the_head_of_a_table_stands_above_the_rows_that_come_later() {
    let mut table = Table::new(&["NAME", "STATUS", "AGE"]);
    table.rows = vec![vec!["a/b".into(), "Starting".into(), "1s".into()]];
    let widths = [5, 14, 3];
    let text = table.head(&widths) + &table.below(&widths, false);
    assert_eq!(
        text,
        "NAME    STATUS           AGE\na/b     Starting         1s\n"
    );
}

#[test]
fn no_state_is_wider_than_what_is_kept_free_for_it() {
    let nodes = (0..).map_while(|number| NodeState::try_from(number).ok());
    let mut states: Vec<String> = nodes.map(rows::node_state).collect();
    states.extend(rows::TELLING.map(str::to_owned));
    let widest = states.iter().map(String::len).max();
    assert_eq!(widest, Some(rows::STATUS_WIDTH), "{states:?}");
}

#[test]
fn a_message_is_one_of_several_documents_of_yaml() {
    let text = json::document(&Event::default()).unwrap();
    assert!(text.starts_with("---\ncluster: "), "{text}");
}

#[test]
fn a_cell_is_one_line_whatever_a_platform_says() {
    let mut table = Table::new(&["NAME", "MESSAGE"]);
    table
        .rows
        .push(vec!["a".into(), "two\nlines\tand a tab".into()]);
    assert_eq!(
        table.render(true, false),
        "NAME   MESSAGE\na      two lines and a tab\n"
    );
}

#[test]
fn a_cell_gives_a_terminal_nothing_to_obey() {
    let evil = "Rea\x1b[32mdy\x1b]0;x\x07\u{9b}2J\u{202e}";
    let mut table = Table::new(&["NAME", "STATUS", "MESSAGE"]);
    table.rows.push(vec![evil.into(), evil.into(), evil.into()]);
    let shown = "Rea\\u001b[32mdy\\u001b]0;x\\u0007\\u009b2J\\u202e";
    let widths = table.widths();
    for text in [table.render(true, false), table.below(&widths, false)] {
        let row = text.lines().last().unwrap();
        assert_eq!(row, format!("{shown}   {shown}   {shown}"));
    }
    // Only the colours of the table are left.
    for text in [table.render(true, true), table.below(&widths, true)] {
        let row = text.lines().last().unwrap();
        let state = format!("\x1b[31m{shown}\x1b[0m");
        assert_eq!(row, format!("{shown}   {state}   {shown}"));
    }
}

#[test]
fn colours_change_no_column() {
    let mut table = Table::new(&["NAME", "STATUS", "AGE"]);
    table
        .rows
        .push(vec!["ä".into(), "Failed".into(), "1s".into()]);
    table
        .rows
        .push(vec!["Failed".into(), "Ready".into(), "2s".into()]);
    let coloured = table.render(true, true);
    assert!(
        coloured.contains("ä        \x1b[31mFailed\x1b[0m   1s"),
        "{coloured:?}"
    );
    assert!(
        coloured.contains("Failed   \x1b[32mReady\x1b[0m    2s"),
        "{coloured:?}"
    );
    let plain: String = coloured
        .replace("\x1b[31m", "")
        .replace("\x1b[32m", "")
        .replace("\x1b[0m", "");
    assert_eq!(plain, table.render(true, false));
}

#[test]
fn the_status_of_a_node_is_the_reason_where_it_is_not_ready() {
    let mut node = Node {
        state: NodeState::Unhealthy.into(),
        reason: "ProbeFailed".into(),
        ..Default::default()
    };
    assert_eq!(rows::node_status(&node), "ProbeFailed");
    node.state = NodeState::Ready.into();
    assert_eq!(rows::node_status(&node), "Ready");
    node.state = NodeState::Starting.into();
    node.reason.clear();
    assert_eq!(rows::node_status(&node), "Starting");
}

#[test]
fn a_paused_cluster_is_not_ready() {
    let mut cluster = cluster(SystemTime::now());
    if let Some(status) = &mut cluster.status {
        status.pause = Some(Pause::default());
    }
    assert_eq!(rows::cluster_status(&cluster), "Paused");
}

#[test]
fn the_process_id_comes_from_the_provider_id_of_this_machine_only() {
    let node = |provider_id: &str| Node {
        provider_id: provider_id.into(),
        ..Default::default()
    };
    assert_eq!(rows::pid(&node("local://host/41822")), Some("41822"));
    assert_eq!(rows::pid(&node("aws:///eu-central-1a/i-0abc")), None);
    assert_eq!(rows::pid(&node("")), None);
}

#[test]
fn ages_are_short() {
    for (seconds, text) in [
        (0, "0s"),
        (41, "41s"),
        (119, "119s"),
        (150, "2m30s"),
        (3_000, "50m"),
        (9_000, "2h30m"),
        (50_000, "13h"),
        (3 * 86_400, "3d"),
        (800 * 86_400, "2y"),
    ] {
        assert_eq!(age::short(Duration::from_secs(seconds)), text);
    }
}

#[test]
fn json_is_canonical_with_defaults_and_empty_lists() {
    let empty = json::value(&ListNodesResponse::default()).unwrap();
    assert_eq!(
        empty,
        serde_json::json!({"nodes": [], "nextPageToken": "", "revision": "0"})
    );
    let answer = ListNodesResponse {
        nodes: vec![Node {
            id: "db-1-x7k2p".into(),
            state: NodeState::Ready.into(),
            provider_id: "local://h/1".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let node = &json::value(&answer).unwrap()["nodes"][0];
    assert_eq!(node["state"], "NODE_STATE_READY");
    assert_eq!(node["providerId"], "local://h/1");
    assert_eq!(node["endpoints"], serde_json::json!({}));
    assert_eq!(node["failureDomain"], "");
    assert_eq!(node["outdated"], false);
    assert!(node.get("agentAddress").is_none(), "absent is not empty");
}
