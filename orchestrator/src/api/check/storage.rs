//! What a group may ask of its storage.

use std::collections::BTreeMap;

use drover_core::{
    Node, Sym,
    error::Violation,
    spec::{Choice, Group},
    storage::quantity,
};
use drover_platforms::has;
use drover_proto::platform::v1 as wire;

use super::Origin;

/// Checks for storage that a platform cannot provide or retain.
pub(super) fn check(
    origin: &Origin,
    group: &Group,
    choice: &Choice,
    handshake: &wire::Platform,
    wrong: &mut Vec<Violation>,
) {
    let Some(storage) = &group.storage else {
        return;
    };
    let description = if !has(handshake, wire::Capability::Storage) {
        format!(
            "platform {} has no storage to declare; leave it out there, or take a platform with capability Storage",
            choice.platform
        )
    } else if storage.policy.keeps() && !has(handshake, wire::Capability::RetainStorage) {
        format!(
            "platform {} cannot keep storage when its node goes; set whenReplaced, whenScaled and whenDeleted to Delete, \
             or take a platform with capability RetainStorage",
            choice.platform
        )
    } else {
        return;
    };
    wrong.push(Violation {
        field: format!("{}.storage", origin.storage),
        description,
    });
}

/// The largest storage of the nodes of each group. `None` where it is not recorded of all of them.
pub(super) fn held(nodes: &[Node]) -> BTreeMap<Sym, Option<u64>> {
    let mut held: BTreeMap<Sym, Option<u64>> = BTreeMap::new();
    for node in nodes {
        let most = held.entry(node.group.clone()).or_insert(Some(0));
        *most = most.zip(node.storage_size).map(|(most, own)| most.max(own));
    }
    held
}

/// What storage that the nodes of a group hand on cannot become. A node is gone before the next one would be refused it.
/// `held` is the largest that its nodes have, if that is recorded of all of them: what has not grown yet, or cannot, need not.
pub(super) fn change(
    origin: &Origin,
    before: &[Group],
    held: Option<u64>,
    group: &Group,
) -> Vec<Violation> {
    let platform = |group: &Group| group.choices.first().map(|one| one.platform.clone());
    // No platform hands it to another one, and each has its own words for classes.
    let before = before
        .iter()
        .find(|before| before.path == group.path && platform(before) == platform(group));
    let (Some(before), true) = (before, group.hands_on_storage()) else {
        return Vec::new();
    };
    let (Some(was), Some(now)) = (&before.storage, &group.storage) else {
        return Vec::new();
    };
    const OTHERWISE: &str = "or take another group; with whenReplaced: Delete each node gets storage of its own, without the data";
    let refused = |field: &str, why: String| Violation {
        field: format!("{}.storage.{field}", origin.storage),
        description: format!("{why}, {OTHERWISE}"),
    };
    let mut wrong = Vec::new();
    if was.class != now.class {
        let named = |class: &str| match class {
            "" => "the default class".to_owned(),
            class => format!("class {class:?}"),
        };
        let why = format!(
            "storage that is kept stays in {}; leave it at that",
            named(&was.class)
        );
        wrong.push(refused("class", why));
    }
    if let (Some(large), Some(small)) = (was.size.min(held.or(was.size)), now.size)
        && small < large
    {
        let why = format!(
            "storage that is kept never shrinks; leave it at {} or more",
            quantity(large)
        );
        wrong.push(refused("size", why));
    }
    wrong
}
