use drover_proto::platform::v1::{NodeRole, SlotKey};

use super::*;
use crate::client::Kind;

fn kinds() -> Vec<Arc<Kind>> {
    let kind = |plural: &str, kind: &str| Kind::core(kind, plural);
    vec![
        kind("pods", "Pod"),
        kind("services", "Service"),
        kind("statefulsets", "StatefulSet"),
    ]
}

fn identity() -> Found {
    Found {
        node: Node {
            cluster_id: "c".into(),
            node_id: "n".into(),
            id: "n".into(),
            slot: Some(SlotKey {
                owner: "o".into(),
                request_id: "r".into(),
                index: Some(0),
            }),
            ..Node::default()
        },
        fingerprint: "f".into(),
    }
}

struct Made {
    uid: u128,
    kind: u16,
    deleting: bool,
    anchor: bool,
}

fn member(made: &Made, pod: Option<PodPart>) -> Member {
    Member {
        uid: made.uid,
        kind: made.kind,
        namespace: "ns".into(),
        name: format!("n-{}", made.uid).into(),
        deleting: made.deleting,
        kept_by: made.deleting.then(|| "example.org/never".into()),
        anchor: made.anchor,
        pod: pod.map(Box::new),
        warning: None,
    }
}

fn seen(member: Member, identity: Option<Found>) -> Seen {
    Seen {
        adopted: None,
        cluster: "c".into(),
        node: "n".into(),
        member,
        identity,
        request: uid("r"),
        version: 0,
    }
}

fn pod(uid: u128, created: i64, deleting: bool, anchor: bool) -> Seen {
    let mut found = identity();
    let phase = if deleting {
        NodePhase::Deprovisioning
    } else {
        NodePhase::Running
    };
    found.node.set_phase(phase);
    found.node.message = format!("pod {uid}");
    found.node.agent_address = Some("grpc://10.0.0.1:1".into());
    let part = PodPart {
        created,
        host: Some("host".into()),
        ours: true,
        unschedulable: false,
        lost: false,
        ended: false,
        told: None,
        found: found.into(),
    };
    seen(
        member(
            &Made {
                uid,
                kind: 0,
                deleting,
                anchor,
            },
            Some(part),
        ),
        None,
    )
}

fn part(uid: u128, kind: u16, deleting: bool, anchor: bool) -> Seen {
    seen(
        member(
            &Made {
                uid,
                kind,
                deleting,
                anchor,
            },
            None,
        ),
        Some(identity()),
    )
}

fn groups(seen: impl IntoIterator<Item = Seen>) -> Groups {
    let mut groups = Groups::default();
    for seen in seen {
        groups.insert(seen);
    }
    groups
}

fn node_of(groups: &Groups, under_way: UnderWay) -> Found {
    groups
        .get("c", "n")
        .unwrap()
        .node(&kinds(), under_way)
        .unwrap()
}

fn expect(groups: &Groups, phase: NodePhase, words: &str) {
    let found = node_of(groups, UnderWay::default());
    assert_eq!(found.node.phase(), phase, "{}", found.node.message);
    assert!(
        found.node.message.contains(words),
        "{words:?} is not in {:?}",
        found.node.message
    );
    assert_eq!(found.node.slot, identity().node.slot);
    assert_eq!(found.fingerprint, "f");
}

const CREATING: UnderWay = UnderWay {
    creating: true,
    removing: false,
};
const REMOVING: UnderWay = UnderWay {
    creating: false,
    removing: true,
};

#[test]
fn a_pod_alone_is_a_node() {
    expect(
        &groups([pod(1, 1, false, true)]),
        NodePhase::Running,
        "pod 1",
    );
}

#[test]
fn of_several_pods_the_newest_that_stays_is_the_node() {
    let all = groups([
        pod(1, 10, false, false),
        pod(2, 20, false, false),
        pod(3, 30, true, false),
    ]);
    expect(&all, NodePhase::Running, "pod 2");
    assert_eq!(all.iter().count(), 1);
    let leaving = groups([pod(1, 10, true, false), pod(2, 20, true, false)]);
    expect(&leaving, NodePhase::Deprovisioning, "pod 2");
}

#[test]
fn a_pod_that_its_workload_replaces_is_a_node_on_its_way() {
    let all = groups([part(9, 2, false, true), pod(1, 10, true, false)]);
    expect(
        &all,
        NodePhase::Pending,
        "is being replaced by statefulset/n-9",
    );
    assert_eq!(node_of(&all, UnderWay::default()).node.agent_address, None);
    // Unless we are removing the node, or somebody deletes the workload.
    assert_eq!(
        node_of(&all, REMOVING).node.phase(),
        NodePhase::Deprovisioning
    );
    let all = groups([part(9, 2, true, true), pod(1, 10, true, false)]);
    expect(&all, NodePhase::Deprovisioning, "pod 1");
}

/// A pod that was evicted, or that its kubelet rejected.
fn ended(uid: u128, created: i64) -> Seen {
    let mut seen = pod(uid, created, false, false);
    let part = seen.member.pod.as_mut().unwrap();
    part.ended = true;
    let mut found = part.found.unpack();
    found.node.set_phase(NodePhase::Failed);
    found.node.message = "Evicted".to_owned();
    part.found = found.into();
    seen
}

#[test]
fn a_pod_that_has_ended_is_no_dead_node_while_its_workload_makes_another() {
    let mut all = groups([part(9, 2, false, true), ended(7, 10)]);
    expect(
        &all,
        NodePhase::Pending,
        "its pod has ended and is replaced by statefulset/n-9; Evicted",
    );
    let found = node_of(&all, UnderWay::default());
    assert_eq!(
        (found.node.agent_address, found.node.ready),
        (None, Some(false))
    );
    assert_eq!(node_of(&all, REMOVING).node.phase(), NodePhase::Failed);
    // The replacement may be created within the same second, with any uid.
    for uid in [6, 8] {
        all.insert(pod(uid, 10, false, false));
        expect(&all, NodePhase::Running, &format!("pod {uid}"));
        let key = all.iter().next().map(|(key, _)| Arc::clone(key)).unwrap();
        all.remove(&key, uid);
    }
    // Nothing creates a replacement.
    expect(&groups([ended(7, 10)]), NodePhase::Failed, "Evicted");
    let going = groups([part(9, 2, true, true), ended(7, 10)]);
    expect(&going, NodePhase::Failed, "Evicted");
}

#[test]
fn a_node_has_ended_only_when_none_of_its_pods_can_run() {
    // The older one is on a host that does not answer.
    let stuck = || pod(1, 10, true, false);
    expect(
        &groups([stuck(), ended(7, 20)]),
        NodePhase::Deprovisioning,
        "another pod of it may still run; Evicted",
    );
    expect(
        &groups([ended(1, 10), ended(7, 20)]),
        NodePhase::Failed,
        "Evicted",
    );
}

#[test]
fn a_workload_without_a_pod_is_a_node_on_its_way() {
    let all = groups([part(8, 1, false, false), part(9, 2, false, true)]);
    expect(&all, NodePhase::Pending, "statefulset/n-9 has no pod yet");
}

#[test]
fn what_remains_of_a_node_whose_pod_is_gone_is_a_failed_node() {
    let mut all = groups([part(8, 1, false, false), pod(1, 1, false, true)]);
    let key = all.iter().next().map(|(key, _)| Arc::clone(key)).unwrap();
    assert!(all.remove(&key, 1));
    expect(
        &all,
        NodePhase::Failed,
        "its pod is gone; service/n-8 remains",
    );
    assert_eq!(node_of(&all, UnderWay::default()).node.agent_address, None);
    assert_eq!(
        node_of(&all, REMOVING).node.phase(),
        NodePhase::Deprovisioning
    );
    assert!(!all.remove(&key, 8));
    assert!(all.get("c", "n").is_none());
}

#[test]
fn a_set_without_its_last_object_is_a_failed_node_unless_it_is_being_made() {
    let all = groups([part(7, 1, false, false), part(8, 1, false, false)]);
    expect(&all, NodePhase::Failed, "service/n-7, service/n-8 remain");
    assert_eq!(node_of(&all, CREATING).node.phase(), NodePhase::Pending);
    assert!(!all.get("c", "n").unwrap().is_whole());
}

#[test]
fn what_is_all_on_its_way_out_is_a_node_that_leaves() {
    let all = groups([part(7, 1, true, false), part(8, 1, true, false)]);
    expect(
        &all,
        NodePhase::Deprovisioning,
        "service/n-7, service/n-8 remain",
    );
    expect(
        &all,
        NodePhase::Deprovisioning,
        "service/n-8 waits for its finalizers: example.org/never",
    );
    let all = groups([part(7, 1, false, false), part(9, 2, true, true)]);
    expect(&all, NodePhase::Deprovisioning, "is being deleted");
}

#[test]
fn objects_without_identity_and_pod_are_no_node() {
    let mut foreign = part(7, 1, false, false);
    foreign.identity = None;
    let all = groups([foreign]);
    assert_eq!(
        all.get("c", "n")
            .unwrap()
            .node(&kinds(), UnderWay::default()),
        None
    );
}

#[test]
fn a_pod_that_lost_its_label_is_not_known_to_run() {
    let mut all = groups([pod(1, 1, false, true)]);
    let key = all.iter().next().map(|(key, _)| Arc::clone(key)).unwrap();
    all.edit(&key, 1, |pod| pod.lost = true);
    expect(&all, NodePhase::Unknown, "label was taken away");
}

#[test]
fn an_object_is_replaced_by_its_newer_self() {
    let mut all = groups([pod(1, 1, false, true), pod(1, 1, true, true)]);
    expect(&all, NodePhase::Deprovisioning, "pod 1");
    let key = all.iter().next().map(|(key, _)| Arc::clone(key)).unwrap();
    assert!(!all.remove(&key, 1));
}

#[test]
fn many_remains_are_not_all_named() {
    let all = groups((1..=20).map(|uid| part(uid, 1, false, false)));
    expect(&all, NodePhase::Failed, "and 12 more remain");
}

#[test]
fn uids_are_kept_apart() {
    let one = uid("0a1b2c3d-0000-0000-0000-000000000001");
    assert_eq!(one, 0x0a1b_2c3d_0000_0000_0000_0000_0000_0001);
    let odd: std::collections::HashSet<u128> =
        ["", "x", "y", "12", "0000000000000000000000000000000g"]
            .map(uid)
            .into();
    assert_eq!(odd.len(), 5);
}

#[test]
fn a_pod_made_anew_from_an_old_template_strays_until_it_says_what_its_node_is() {
    let changed = |role: NodeRole| {
        let mut leader = part(1, 2, false, true);
        let found = leader.identity.as_mut().unwrap();
        found.node.set_role(role);
        leader
    };
    let stray = |groups: &Groups| {
        let group = groups.get("c", "n").unwrap();
        group.stray().map(|(pod, leader)| (pod.uid, leader.uid))
    };
    let mut groups = groups([changed(NodeRole::Unspecified), pod(2, 1, false, false)]);
    assert_eq!(stray(&groups), None, "they say the same");
    groups.insert(changed(NodeRole::Standby));
    assert_eq!(stray(&groups), Some((2, 1)));
    let shown = node_of(&groups, UnderWay::default());
    assert_eq!(
        shown.node.role(),
        NodeRole::Standby,
        "its leader is believed"
    );
    groups.insert(pod(2, 1, true, false));
    assert_eq!(stray(&groups), None, "it is on its way out");
}

#[test]
fn a_pod_that_stands_for_itself_strays_from_nothing() {
    let groups = groups([pod(1, 1, false, true), part(2, 1, false, false)]);
    assert!(groups.get("c", "n").unwrap().stray().is_none());
}
