use std::sync::Arc;

use drover_core::{
    Node, NodeState,
    node::{Adopted, CHANGING, Former, Origin, Reached, Record, Removal, Role, Seen, SeenAddress},
    storage::{Policy, Retention},
};
use drover_planner::{
    BackOff, BackOffKey, BackOffKind, Condition, ConditionKey, ConditionKind, Rollout, Sole, State,
};

use super::{
    head::{KINDS, MAX_HEAD},
    node::{REMOVALS, ROLES, STATES},
    rows::{ConditionRow, HeadState, NodeRow},
    *,
};

#[test]
fn every_durable_part_of_a_node_survives() {
    let interner = Interner::default();
    for (at, state) in STATES.iter().enumerate() {
        let record = Record {
            origin: Arc::new(Origin {
                request: Uuid::from_u128(3),
                sequence: 9,
                group: "data/hot".into(),
                platform: "local".into(),
                platform_uid: "u".into(),
                class: "c".into(),
                version: "1".into(),
                spec_hash: "h".into(),
                storage_size: Some(5 << 30),
                storage: true,
            }),
            slot: 7,
            index: 2,
            ordinal: 5,
            host: "m-1".into(),
            template: if at % 2 == 0 { "d" } else { "" }.into(),
            labels_hash: if at % 2 == 0 { "l" } else { "" }.into(),
            attempts: 2,
            create_time: 11,
            state: *state,
            state_time: 12,
            reason: "Sick".into(),
            message: "why".into(),
            marked: false,
            stable: true,
            role: *ROLES.get(at).unwrap_or(&Role::Active),
            node_id: Some("i-1".into()),
            removal: REMOVALS.get(at).map(|reason| Removal {
                reason: *reason,
                since: 4,
                retain: at % 2 == 0,
                drain: at as u64,
            }),
            settled: 13,
            maybe_until: 14,
            reached: (at % 2 == 0).then(|| {
                Box::new(Reached {
                    addresses: [SeenAddress {
                        kind: 2,
                        value: "10.0.0.1".into(),
                        interface: "oam".into(),
                    }]
                    .into(),
                    endpoints: [("client".into(), "10.0.0.1:80".into())].into(),
                })
            }),
            adopted: Adopted {
                given_id: (at % 2 == 1).then(|| "web-0-7stfh".into()),
                former: (at % 2 == 1).then(|| Former {
                    owner: "o".into(),
                    request: "r".into(),
                    index: Some(0),
                }),
            }
            .into(),
        };
        let seen = Seen {
            agent_address: "grpc://10.0.0.1:7".into(),
            ..Seen::default()
        };
        let node = Node {
            seen,
            ..Node::new(record)
        };
        assert_eq!(
            decode_node(7, &encode_node(&node), &interner, None).unwrap(),
            node
        );
    }
}

#[test]
fn nodes_of_one_request_share_what_they_have_in_common() {
    let interner = Interner::default();
    let first = crate::fixture::node(1, NodeState::Ready);
    let read = |node: &Node| decode_node(2, &encode_node(node), &interner, Some(&first)).unwrap();
    assert!(Arc::ptr_eq(&read(&first).origin, &first.origin));
    type Change = fn(&mut Origin);
    let others: [Change; 8] = [
        |it| it.request = Uuid::from_u128(4),
        |it| it.sequence += 1,
        |it| it.group = "web".into(),
        |it| it.platform = "q".into(),
        |it| it.platform_uid = "v".into(),
        |it| it.class = "c".into(),
        |it| it.version = "2".into(),
        |it| it.spec_hash = "i".into(),
    ];
    for change in others {
        let other = crate::fixture::with(first.clone(), |node| change(node.origin_mut()));
        assert_eq!(read(&other).origin, other.origin);
    }
}

#[test]
fn labels_that_a_row_does_not_mention_are_not_known() {
    let interner = Interner::default();
    let node = crate::fixture::node(7, NodeState::Ready);
    let mut row = NodeRow::decode(encode_node(&node)).unwrap();
    row.labels_hash = None;
    let bytes = row.encode_to_vec();
    let read = decode_node(7, &bytes, &interner, Some(&node)).unwrap();
    assert_eq!(&*read.labels_hash, CHANGING);
}

#[test]
fn what_a_head_says_of_groups_survives() {
    let interner = Interner::default();
    let path = || interner.get("data/hot");
    let mut state = State {
        adopted: 3,
        ..State::default()
    };
    state.grown.insert(path(), 4);
    state.vacated.insert(path(), [1, 5].into());
    let (slot, ordinal) = (9, 1);
    state.sole.insert(path(), Sole { slot, ordinal });
    state.storage.insert(
        path(),
        Policy {
            replaced: Retention::Retain,
            scaled: Retention::Delete,
            deleted: Retention::Retain,
        },
    );
    state.rollouts.insert(
        path(),
        Rollout {
            target: interner.get("h"),
            started: 1,
            progress: 2,
            ready: 3,
            left: 4,
            size: 5,
            surplus: 6,
        },
    );
    state
        .used
        .insert((interner.get("local"), interner.get("u")));
    let mut read = State::default();
    decode_head(&encode_head(&state), &mut read, &interner).unwrap();
    assert_eq!(read, state);
}

#[test]
fn however_much_fails_a_head_fits_into_every_step() {
    let interner = Interner::default();
    let words: Box<str> = "é".repeat(2_048).into();
    for (groups, choices) in [(100, 1), (256, 32)] {
        let mut state = State::default();
        for group in 0..groups {
            let path = interner.get(&format!("data/shard-{group}"));
            let key = ConditionKey {
                group: path.clone(),
                kind: ConditionKind::Rejected,
            };
            let condition = Condition {
                reason: interner.get("Rejected"),
                message: words.clone(),
                since: 1,
            };
            state.conditions.insert(key, condition);
            for choice in 0..choices {
                let platform = interner.get(&format!("platform-{choice}"));
                let key = BackOffKey::of(&path, &interner.get(&"5".repeat(64)), &platform);
                let back_off = BackOff {
                    kind: BackOffKind::Rejected,
                    failures: 1,
                    last: 1,
                    next: 2,
                    etag: interner.get(&"e".repeat(32)),
                    template: interner.get(""),
                    message: words.clone(),
                };
                state.backoffs.insert(key, back_off);
            }
        }
        let head = encode_head(&state);
        assert!(head.len() <= MAX_HEAD, "{} bytes", head.len());
        let mut read = State::default();
        decode_head(&head, &mut read, &interner).unwrap();
        assert_eq!(read.conditions.len(), groups, "each is still named");
        if choices == 1 {
            assert_eq!(read.backoffs.len(), groups);
        }
    }
}

#[test]
fn damaged_rows_are_refused_and_never_panic() {
    let interner = Interner::default();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..10_000 {
        let bytes: Vec<u8> = (0..random.usize(0..64)).map(|_| random.u8(..)).collect();
        let _ = decode_node(1, &bytes, &interner, None);
        let _ = decode_request(&bytes.clone().into(), &interner);
        let _ = decode_head(&bytes, &mut State::default(), &interner);
    }
}

#[test]
fn what_probes_find_again_is_not_stored() {
    let key = |kind| ConditionKey {
        group: "db".into(),
        kind,
    };
    let condition = Condition {
        reason: "DiskFull".into(),
        message: "full".into(),
        since: 1,
    };
    let mut state = State::default();
    for kind in [ConditionKind::Impaired, ConditionKind::Failed] {
        state.conditions.insert(key(kind), condition.clone());
    }
    let mut read = State::default();
    decode_head(&encode_head(&state), &mut read, &Interner::default()).unwrap();
    let kinds: Vec<ConditionKind> = read.conditions.keys().map(|key| key.kind).collect();
    assert_eq!(kinds, [ConditionKind::Failed]);
}

#[test]
fn a_condition_that_only_a_newer_version_knows_is_left_to_it() {
    let kinds = [1, KINDS.len() as u32 + 1];
    let conditions = kinds.map(|kind| ConditionRow {
        group: "db".to_owned(),
        kind,
        ..ConditionRow::default()
    });
    let head = HeadState {
        conditions: conditions.to_vec(),
        ..HeadState::default()
    };
    let mut read = State::default();
    decode_head(&head.encode_to_vec(), &mut read, &Interner::default()).unwrap();
    let kinds: Vec<ConditionKind> = read.conditions.keys().map(|key| key.kind).collect();
    assert_eq!(kinds, [ConditionKind::Ready]);
}
