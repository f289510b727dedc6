//! The identity of nodes as tags. A launch has a single set of tags, so the values that differ between its machines are
//! stored in a slot table, and a machine finds its row by its launch index or its name.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::NodeRole;

use drover_platform::identity::Identity;

/// Prefix of the tags that Drover manages.
pub const PREFIX: &str = "drover.dev/";

const OWNER: &str = "drover.dev/owner";
/// Tag with the cluster id; machines are filtered by it.
pub const CLUSTER: &str = "drover.dev/cluster";
const GROUP: &str = "drover.dev/group";
/// Tag with the request id; machines are filtered by it.
pub const REQUEST: &str = "drover.dev/request";
const SEQUENCE: &str = "drover.dev/sequence";
const SPEC_HASH: &str = "drover.dev/spec-hash";
const STORE: &str = "drover.dev/store";
const VERSION: &str = "drover.dev/version";
const CLASS: &str = "drover.dev/class";
const FINGERPRINT: &str = "drover.dev/fingerprint";
const ROLE: &str = "drover.dev/role";
const SLOTS: &str = "drover.dev/slots";

/// Whether tags with this key have other values for each request.
pub fn is_of_one_request(key: &str) -> bool {
    [REQUEST, FINGERPRINT].contains(&key) || key.starts_with(SLOTS)
}

/// Limits of a cloud's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagLimits {
    /// Maximum length of a value, in characters.
    pub max_value: usize,
    /// Maximum number of tags per machine.
    pub max_tags: usize,
}

impl Default for TagLimits {
    /// The limits of EC2
    /// (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions>).
    fn default() -> Self {
        Self {
            max_value: 256,
            max_tags: 50,
        }
    }
}

/// The tags of a launch of these nodes, which differ only in index, id, name, ordinal and role.
///
/// # Errors
/// `Precondition` if the cloud cannot hold that many tags or values that long.
pub(super) fn encode(nodes: &[Identity], limits: TagLimits) -> Result<BTreeMap<String, String>> {
    let Some(first) = nodes.first() else {
        return Ok(BTreeMap::new());
    };
    let mut tags = first.labels.clone();
    let mut set = |key: &str, value: String| {
        if !value.is_empty() {
            tags.insert(key.to_owned(), value);
        }
    };
    set(OWNER, first.owner.clone());
    set(CLUSTER, first.cluster_id.clone());
    set(GROUP, first.group.clone());
    set(REQUEST, first.request_id.clone());
    set(SEQUENCE, first.sequence.to_string());
    set(SPEC_HASH, first.spec_hash.clone());
    set(STORE, first.store_id.clone());
    set(VERSION, first.version.clone());
    set(CLASS, first.node_class.clone());
    set(FINGERPRINT, first.fingerprint.clone());
    let rows: Vec<String> = nodes.iter().map(row).collect();
    let rows = rows.join("/");
    // Names are ASCII only, so a chunk never splits a character.
    for (at, part) in rows.as_bytes().chunks(limits.max_value).enumerate() {
        set(&slots_key(at), String::from_utf8_lossy(part).into_owned());
    }
    if let Some((key, _)) = tags
        .iter()
        .find(|(key, value)| key.chars().chain(value.chars()).any(char::is_control))
    {
        return Err(Error::invalid(
            field_of(key),
            "has a control character, which no tag can hold",
        ));
    }
    if tags.len() > limits.max_tags {
        return Err(Error::new(
            Reason::Precondition,
            format!(
                "the nodes would need {} tags and this cloud allows {}; the cluster has too many labels",
                tags.len(),
                limits.max_tags
            ),
        ));
    }
    if let Some((key, _)) = tags
        .iter()
        .find(|(_, value)| value.len() > limits.max_value)
    {
        return Err(Error::new(
            Reason::Precondition,
            format!(
                "tag {key:?} would be longer than the {} characters that this cloud allows",
                limits.max_value
            ),
        ));
    }
    Ok(tags)
}

/// The request field that a tag is derived from.
fn field_of(key: &str) -> &'static str {
    match key {
        SPEC_HASH => "spec_hash",
        VERSION => "group.version",
        CLASS => "group.node_class",
        GROUP => "group.path",
        key if key.starts_with(SLOTS) => "slots",
        _ => "cluster.labels",
    }
}

/// The tag that holds the role of a node. `None` if the role is unspecified.
pub(super) fn role_tag(role: NodeRole) -> Option<(String, String)> {
    let value = match role {
        NodeRole::Unspecified => return None,
        NodeRole::Active => "active",
        NodeRole::Standby => "standby",
    };
    Some((ROLE.to_owned(), value.to_owned()))
}

/// The tags that must be removed when a node is adopted because they describe its former identity.
pub(super) fn of_former_life(
    tags: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Vec<String> {
    tags.keys()
        .filter(|key| key.starts_with(PREFIX) && !now.contains_key(*key))
        .filter(|key| ![VERSION, CLASS].contains(&key.as_str()) && !is_address(key))
        .cloned()
        .collect()
}

fn is_address(key: &str) -> bool {
    [
        super::address::PORTS,
        super::address::PORT,
        super::address::SCHEME,
    ]
    .contains(&key)
}

fn slots_key(at: usize) -> String {
    if at == 0 {
        SLOTS.to_owned()
    } else {
        format!("{SLOTS}-{}", at + 1)
    }
}

/// `index:ordinal:role:suffix` if id and name can be derived, otherwise `index:ordinal:role:=id:name`.
fn row(node: &Identity) -> String {
    let role = match node.role() {
        NodeRole::Standby => "s",
        NodeRole::Unspecified | NodeRole::Active => "a",
    };
    let head = format!("{}:{}:{role}", node.index, node.ordinal);
    let derived = (node.name == name(&node.group, node.ordinal))
        .then(|| node.id.strip_prefix(&node.name)?.strip_prefix('-'))
        .flatten();
    match derived {
        Some(suffix) if !suffix.starts_with('=') && !suffix.is_empty() => {
            format!("{head}:{suffix}")
        }
        _ => format!("{head}:={}:{}", node.id, node.name),
    }
}

fn name(group: &str, ordinal: u32) -> String {
    format!("{}-{ordinal}", group.replace('/', "-"))
}

/// The identity of a machine. `None` if it is not ours.
pub(super) fn decode(
    tags: &BTreeMap<String, String>,
    launch_index: Option<u32>,
    machine_name: &str,
) -> Option<Identity> {
    let get = |key: &str| tags.get(key).cloned().unwrap_or_default();
    let (owner, request_id) = (get(OWNER), get(REQUEST));
    if owner.is_empty() || request_id.is_empty() {
        return None;
    }
    let mut table = String::new();
    for part in (0..).map_while(|at| tags.get(&slots_key(at))) {
        table.push_str(part);
    }
    let group = get(GROUP);
    let rows: Vec<Row> = table
        .split('/')
        .map(|row| parse(row, &group))
        .collect::<Option<_>>()?;
    let row = match (rows.as_slice(), launch_index) {
        ([only], _) => only,
        (rows, Some(index)) => rows.get(index as usize)?,
        (rows, None) => rows.iter().find(|row| row.id == machine_name)?,
    };
    let role = match tags.get(ROLE).map(String::as_str) {
        Some("active") => NodeRole::Active,
        Some("standby") => NodeRole::Standby,
        _ => row.role,
    };
    Some(Identity {
        owner,
        cluster_id: get(CLUSTER),
        group,
        request_id,
        index: row.index,
        sequence: get(SEQUENCE).parse().unwrap_or_default(),
        spec_hash: get(SPEC_HASH),
        store_id: get(STORE),
        id: row.id.clone(),
        name: row.name.clone(),
        ordinal: row.ordinal,
        role: role.into(),
        version: get(VERSION),
        node_class: get(CLASS),
        labels: labels(tags),
        fingerprint: get(FINGERPRINT),
    })
}

/// The tags that are labels of the node.
pub(super) fn labels(tags: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    tags.iter()
        .filter(|(key, _)| !key.starts_with(PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The cluster id in the tags.
pub(super) fn cluster(tags: &BTreeMap<String, String>) -> &str {
    tags.get(CLUSTER).map_or("", String::as_str)
}

/// The request id in the tags.
pub(super) fn request(tags: &BTreeMap<String, String>) -> &str {
    tags.get(REQUEST).map_or("", String::as_str)
}

struct Row {
    index: u32,
    ordinal: u32,
    role: NodeRole,
    id: String,
    name: String,
}

fn parse(row: &str, group: &str) -> Option<Row> {
    let mut parts = row.splitn(4, ':');
    let index = parts.next()?.parse().ok()?;
    let ordinal = parts.next()?.parse().ok()?;
    let role = match parts.next()? {
        "a" => NodeRole::Active,
        "s" => NodeRole::Standby,
        _ => return None,
    };
    let rest = parts.next()?;
    let (id, name) = match rest.strip_prefix('=') {
        Some(said) => {
            let (id, name) = said.split_once(':')?;
            (id.to_owned(), name.to_owned())
        }
        None => {
            let name = name(group, ordinal);
            (format!("{name}-{rest}"), name)
        }
    };
    Some(Row {
        index,
        ordinal,
        role,
        id,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(index: u32) -> Identity {
        Identity {
            owner: "5f0c2b9a-0000-4000-8000-000000000001".to_owned(),
            cluster_id: "Orders_1.x".to_owned(),
            group: "data/hot".to_owned(),
            request_id: "5f0c2b9a-0000-4000-8000-000000000002".to_owned(),
            index,
            sequence: 7,
            spec_hash: "v1-abc".to_owned(),
            store_id: "5f0c2b9a-0000-4000-8000-000000000003".to_owned(),
            id: format!("data-hot-{}-x7k2p", index + 3),
            name: format!("data-hot-{}", index + 3),
            ordinal: index + 3,
            role: if index == 1 {
                NodeRole::Standby
            } else {
                NodeRole::Active
            }
            .into(),
            version: "16.4".to_owned(),
            node_class: "t3.small".to_owned(),
            labels: BTreeMap::from([("team".to_owned(), "payments".to_owned())]),
            fingerprint: "f".repeat(32),
        }
    }

    #[test]
    fn every_machine_of_a_launch_finds_its_slot_again() {
        let nodes: Vec<_> = (0..45).map(node).collect();
        let tags = encode(&nodes, TagLimits::default()).unwrap();
        assert!(tags.values().all(|value| value.len() <= 256));
        for (at, node) in nodes.iter().enumerate() {
            let by_index = decode(&tags, Some(at as u32), "anything").unwrap();
            let by_name = decode(&tags, None, &node.id).unwrap();
            assert_eq!((&by_index, &by_name), (node, node));
        }
        assert_eq!(decode(&tags, Some(45), ""), None);
        assert_eq!(decode(&tags, None, "somebody-else"), None);
    }

    #[test]
    fn names_that_cannot_be_derived_are_kept_whole() {
        let odd = Identity {
            id: "odd_id".to_owned(),
            name: "an-old.name".to_owned(),
            ..node(0)
        };
        let tags = encode(std::slice::from_ref(&odd), TagLimits::default()).unwrap();
        assert_eq!(decode(&tags, None, "whatever").unwrap(), odd);
    }

    #[test]
    fn a_changed_role_wins_over_the_table() {
        let mut tags = encode(&[node(0), node(2)], TagLimits::default()).unwrap();
        tags.extend(role_tag(NodeRole::Standby));
        assert_eq!(
            decode(&tags, Some(1), "").unwrap().role(),
            NodeRole::Standby
        );
    }

    #[test]
    fn machines_without_or_with_damaged_tags_are_foreign() {
        let tags = encode(&[node(0), node(1)], TagLimits::default()).unwrap();
        for key in [OWNER, REQUEST, SLOTS] {
            let mut damaged = tags.clone();
            damaged.remove(key);
            assert_eq!(decode(&damaged, Some(0), ""), None, "without {key}");
        }
        let mut damaged = tags;
        damaged.insert(SLOTS.to_owned(), "0:x".to_owned());
        assert_eq!(decode(&damaged, Some(0), ""), None);
    }

    #[test]
    fn more_tags_than_the_cloud_allows_are_refused() {
        let mut node = node(0);
        node.labels = (0..60)
            .map(|at| (format!("label-{at}"), String::new()))
            .collect();
        assert!(encode(&[node], TagLimits::default()).is_err());
    }
}
