//! Hosts that SIP has labelled for its clusters: foreign nodes, until they are taken over.

use std::collections::BTreeMap;

use drover_core::name::cluster_in_namespace;

/// Labels of SIP since it writes cluster, namespace and type apart.
const CLUSTER_NAME: &str = "sip.airshipit.org/cluster-name";
const CLUSTER_NAMESPACE: &str = "sip.airshipit.org/cluster-namespace";
const NODE_TYPE: &str = "sip.airshipit.org/node-type";
/// Its former labels: `NAMESPACE_NAME`, and whether the host is taken.
const WORKLOAD_CLUSTER: &str = "sip.airshipit.org/workload-cluster";
const SCHEDULED: [&str; 2] = [
    "sip.airshipit.org/scheduled",
    "sip.airshipit.org/sip-scheduled",
];

/// Whether a label says that SIP has claimed the host.
pub(super) fn is_claim(key: &str) -> bool {
    is_cluster(key) || key == NODE_TYPE || SCHEDULED.contains(&key)
}

/// Whether a label names the cluster that SIP has claimed the host for.
pub(super) fn is_cluster(key: &str) -> bool {
    [CLUSTER_NAME, CLUSTER_NAMESPACE, WORKLOAD_CLUSTER].contains(&key)
}

/// What SIP's labels say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claimed {
    /// Cluster, as its document is called here.
    pub(super) cluster: String,
    /// Path of the group. Empty if the type is none that is known.
    pub(super) group: String,
}

/// Reads the labels of a host. `None` if SIP has not claimed it.
pub(super) fn claimed(labels: &BTreeMap<String, String>) -> Option<Claimed> {
    let text = |key: &str| labels.get(key).map_or("", String::as_str);
    let group = match text(NODE_TYPE) {
        "master" | "Master" | "ControlPlane" => "control-plane",
        "worker" | "Worker" => "worker",
        _ => "",
    };
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
