//! Data of a member that was removed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{all_ready, at, insist_at, instead_of, kept_alive, members_of_etcd, path, vote};
use crate::stores::{
    alone::{Node, introduce, until},
    run, said,
};

fn old(node: &Node) -> PathBuf {
    node.storage().join("etcd.old")
}

/// Whether a file below this directory has these bytes.
fn has(directory: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return has(&path, bytes);
        }
        let content = fs::read(path).unwrap();
        content.windows(bytes.len()).any(|part| part == bytes)
    })
}

/// Kills the last one, and has the others remove it.
fn remove_last(nodes: &mut [Node]) {
    nodes[2].kill();
    let id = fs::read_to_string(nodes[2].storage().join("member")).unwrap();
    until("it is removed", nodes, |nodes| {
        at(&nodes[0], &["member", "remove", id.trim()]);
        at(&nodes[0], &["member", "list"]).is_some_and(|list| !list.contains(id.trim()))
    });
}

#[test]
fn an_etcd_member_that_was_removed_keeps_its_data_until_it_has_copied_those_of_the_others() {
    let mut nodes = members_of_etcd(3);
    remove_last(&mut nodes);
    let real = said(&run("sh", &["-c", "command -v etcdctl"])).unwrap();
    let refuse = format!(
        "case \" $* \" in *' member add '*) echo 'Error: not now'; exit 1 ;; esac; exec {real} \"$@\""
    );
    let programs = instead_of("etcdctl", &refuse);
    nodes[2].sets("PATH", &programs.1);
    nodes[2].start("active");
    introduce(&nodes);
    until("it is to join again", &mut nodes, |nodes| {
        nodes[2].log().contains("not added yet: not now")
    });
    assert!(has(&old(&nodes[2]), b"early"), "{}", nodes[2].log());

    // However often it has to begin again.
    nodes[2].start("active");
    introduce(&nodes);
    until("it still is to join", &mut nodes, |nodes| {
        nodes[2].log().contains("not added yet: not now")
    });
    assert!(has(&old(&nodes[2]), b"early"), "{}", nodes[2].log());

    nodes[2].kill();
    nodes[2].sets("PATH", &path());
    until("all are members", &mut nodes, all_ready);
    until("it has a copy of its own", &mut nodes, |nodes| {
        kept_alive(nodes);
        !old(&nodes[2]).exists()
    });
    vote(&mut nodes, 3);
    let early = ["get", "--keys-only", "--consistency=s", "early"];
    assert_eq!(insist_at(&nodes[2], &early), "early");
    for left in ["member.old", "cluster.old"] {
        assert!(!nodes[2].storage().join(left).exists(), "{left}");
    }
}

#[test]
fn an_etcd_member_that_died_before_it_had_a_copy_keeps_the_data_from_before() {
    let mut nodes = members_of_etcd(3);
    remove_last(&mut nodes);
    // It is added, has a log, dies, and is removed once more.
    let begun = "mkdir -p \"$DROVER_STORAGE/etcd/member/wal\"; exit 1";
    let programs = instead_of("etcd", begun);
    nodes[2].sets("PATH", &programs.1);
    nodes[2].start("active");
    introduce(&nodes);
    until("it is added, and dies", &mut nodes, |nodes| {
        nodes[2].has_ended()
    });
    remove_last(&mut nodes);
    nodes[2].start("active");
    introduce(&nodes);
    until("it is added, and dies again", &mut nodes, |nodes| {
        nodes[2].has_ended()
    });
    assert!(has(&old(&nodes[2]), b"early"), "{}", nodes[2].log());
    remove_last(&mut nodes);
    nodes[2].sets("PATH", &path());
    until("all are members", &mut nodes, all_ready);
    until("it has a copy of its own", &mut nodes, |nodes| {
        kept_alive(nodes);
        !old(&nodes[2]).exists()
    });
}

#[test]
fn an_etcd_member_that_was_removed_joins_also_where_there_is_no_room_for_two_copies() {
    let mut nodes = members_of_etcd(3);
    remove_last(&mut nodes);
    let full = "printf '%s\\n' 'Filesystem Blocks Used Available' 'disk 100 100 0'";
    let programs = instead_of("df", full);
    nodes[2].sets("PATH", &programs.1);
    nodes[2].start("active");
    introduce(&nodes);
    until("it says why they are deleted", &mut nodes, |nodes| {
        nodes[2].log().contains("no room for a copy")
    });
    until("all are members", &mut nodes, all_ready);
    assert!(!old(&nodes[2]).exists());
}
