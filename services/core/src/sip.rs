//! Labels by which SIP (Airship) says whose a BareMetalHost is.

use std::collections::BTreeMap;

use crate::name::cluster_in_namespace;

/// Label with the name of the cluster, since SIP writes cluster, namespace and type apart.
pub const CLUSTER_NAME: &str = "sip.airshipit.org/cluster-name";
/// Label with its namespace.
pub const CLUSTER_NAMESPACE: &str = "sip.airshipit.org/cluster-namespace";
/// Label with the type of the node.
pub const NODE_TYPE: &str = "sip.airshipit.org/node-type";
/// Its former labels: `NAMESPACE_NAME`, and whether the host is taken.
const WORKLOAD_CLUSTER: &str = "sip.airshipit.org/workload-cluster";
const SCHEDULED: [&str; 2] = [
    "sip.airshipit.org/scheduled",
    "sip.airshipit.org/sip-scheduled",
];

/// Group of the hosts of control planes.
pub const CONTROL_PLANE: &str = "control-plane";
/// Group of the hosts of workers.
pub const WORKER: &str = "worker";
/// Types of nodes in every revision of SIP, and the group that each is.
pub const NODE_TYPES: [(&str, &str); 5] = [
    ("ControlPlane", CONTROL_PLANE),
    ("Master", CONTROL_PLANE),
    ("master", CONTROL_PLANE),
    ("Worker", WORKER),
    ("worker", WORKER),
];

/// The group that a type of nodes is. `None` for no known type.
#[must_use]
pub fn group(node_type: &str) -> Option<&'static str> {
    let found = NODE_TYPES.iter().find(|(known, _)| *known == node_type);
    found.map(|(_, group)| *group)
}

/// Whether a label says that SIP has claimed the host.
#[must_use]
pub fn is_claim(key: &str) -> bool {
    is_cluster(key) || key == NODE_TYPE || SCHEDULED.contains(&key)
}

/// Whether a label names the cluster that SIP has claimed the host for.
#[must_use]
pub fn is_cluster(key: &str) -> bool {
    [CLUSTER_NAME, CLUSTER_NAMESPACE, WORKLOAD_CLUSTER].contains(&key)
}

/// What SIP's labels say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Cluster, as its document is called here.
    pub cluster: String,
    /// Path of the group. Empty if the type is none that is known.
    pub group: String,
}

/// Reads the labels of a host. `None` if SIP has not claimed it.
#[must_use]
pub fn claimed(labels: &BTreeMap<String, String>) -> Option<Claimed> {
    let text = |key: &str| labels.get(key).map_or("", String::as_str);
    let group = group(text(NODE_TYPE)).unwrap_or_default();
    let cluster = match (text(CLUSTER_NAMESPACE), text(CLUSTER_NAME)) {
        (_, "") => {
            let scheduled = SCHEDULED.iter().any(|key| text(key) == "true");
            match text(WORKLOAD_CLUSTER) {
                "" if scheduled => "unknown".to_owned(),
                "" => return None,
                // A namespace has no underscore.
                whole => match whole.split_once('_') {
                    Some((namespace, name)) => cluster_in_namespace(namespace, name),
                    None => whole.to_owned(),
                },
            }
        }
        ("", name) => name.to_owned(),
        (namespace, name) => cluster_in_namespace(namespace, name),
    };
    Some(Claimed {
        cluster,
        group: group.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Option<(String, String)> {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        claimed(&pairs.iter().map(own).collect()).map(|it| (it.cluster, it.group))
    }

    #[test]
    fn labels_of_both_families_name_cluster_and_group() {
        let of = |cluster: &str, group: &str| Some((cluster.to_owned(), group.to_owned()));
        assert_eq!(
            read(&[
                (CLUSTER_NAMESPACE, "tenants"),
                (CLUSTER_NAME, "blue"),
                (NODE_TYPE, "ControlPlane"),
            ]),
            of("tenants.blue", "control-plane")
        );
        assert_eq!(
            read(&[(WORKLOAD_CLUSTER, "tenants_blue_2"), (NODE_TYPE, "worker")]),
            of("tenants.blue_2", "worker")
        );
        assert_eq!(read(&[(WORKLOAD_CLUSTER, "blue")]), of("blue", ""));
        assert_eq!(read(&[(SCHEDULED[0], "true")]), of("unknown", ""));
        assert_eq!(read(&[(SCHEDULED[1], "true")]), of("unknown", ""));
        assert_eq!(read(&[(SCHEDULED[0], "false")]), None);
        assert_eq!(read(&[("rack", "r1")]), None);
    }
}
