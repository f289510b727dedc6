//! What a claim writes on a host. Every write is a patch with uid and resourceVersion of the host as it was read, so that it
//! changes that very state or nothing.

use std::collections::BTreeMap;

use drover_core::{Result, sip};
use drover_platform::{
    identity::Identity,
    inventory::properties::{self, HostLabels},
};
use drover_proto::platform::v1::NodeRole;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::labels::{
    self, FORMER, FormerSlot, IDENTITY, LabelKeys, MANAGED_BY, NODE_ID, ROLE,
    declared::{self, Plain},
};

use super::{host::BareMetalHost, unfinished::Unfinished, view::Reader};

/// Annotation: the labels of [`HostLabels`] that a claim set, and what was there before, as JSON.
const HOST_LABELS: &str = "drover.dev/host-labels";

/// Annotation: uid of the host that was claimed. One that is made anew with the labels of another, from a backup for
/// example, is not claimed by them.
pub(super) const HOST_UID: &str = "drover.dev/host-uid";

/// Annotation of the host that a request has claimed first, until all of its slots have hosts: their number, and since
/// when. None of its hosts serves before.
const UNFINISHED: &str = "drover.dev/unfinished-request";

#[derive(Debug, Serialize, Deserialize)]
struct Set {
    to: String,
    was: Option<String>,
}

/// What a claim has set, by key.
type Record = BTreeMap<String, Set>;

/// Checks labels that the group of a cluster wants on its hosts.
///
/// # Errors
/// `Invalid` with the key.
pub(super) fn check(
    field: &str,
    wanted: &HostLabels,
    cluster: &str,
    reader: &Reader,
) -> Result<()> {
    let keys = &reader.keys;
    properties::check_host_labels(field, wanted, cluster, |key| {
        if labels::is_ours(key) || [&keys.cluster, &keys.node].iter().any(|own| *own == key) {
            Some("is written by this platform")
        } else if declared::is_reserved(key) {
            Some("has a meaning for Kubernetes")
        } else if reader.is_topology(key) {
            Some("says where the host is")
        } else {
            None
        }
    })
}

/// Claims a free host. `first_of` is the number of slots of the request if it is the first of several hosts.
pub(super) fn claim(
    host: &BareMetalHost,
    identity: &Identity,
    keys: &LabelKeys,
    wanted: &HostLabels,
    first_of: Option<usize>,
) -> Value {
    let (mut set, mut annotations) = stamp(host, identity, keys);
    let own = host.labels();
    // What a claim left that somebody has removed in part.
    for key in own.keys().filter(|key| is_ours(key, keys)) {
        set.entry(key.clone()).or_insert(Value::Null);
    }
    for key in OURS
        .iter()
        .filter(|key| host.annotations().contains_key(**key))
    {
        annotations.entry(*key).or_insert(Value::Null);
    }
    // What another claim has set is none of this one: nobody knows whether it still holds.
    let (lent, record) = lend(own, Record::new(), wanted);
    set.extend(lent);
    if !record.is_empty() {
        annotations.insert(HOST_LABELS.to_owned(), written(&record));
    }
    if let Some(count) = first_of {
        let mark = Unfinished::now(count).text();
        annotations.insert(UNFINISHED.to_owned(), json!(mark));
    }
    patch(host, &set, &annotations)
}

/// Whether the claim on a host is that of another host, of which it has a copy.
pub(super) fn is_of_another(host: &BareMetalHost) -> bool {
    let uid = host.annotations().get(HOST_UID);
    uid.is_some_and(|uid| Some(uid) != host.uid().as_ref())
}

/// Whose a host is by its claim, whatever its labels say. `None` if nobody has claimed it, or that cannot be read.
pub(super) fn identity(host: &BareMetalHost) -> Option<Identity> {
    let json = host.annotations().get(IDENTITY)?;
    let identity = serde_json::from_str(json).ok()?;
    (!is_of_another(host)).then_some(identity)
}

/// Whether a host says that it is the first one of a request that may lack others.
pub(super) fn is_unfinished(host: &BareMetalHost) -> bool {
    host.annotations().contains_key(UNFINISHED)
}

/// What the first host of a request that may lack others says. `None` if it says nothing that can be read.
pub(super) fn unfinished(host: &BareMetalHost) -> Option<Unfinished> {
    host.annotations()
        .get(UNFINISHED)
        .and_then(|it| Unfinished::read(it))
}

/// Says that all slots of the request have hosts.
pub(super) fn finish(host: &BareMetalHost) -> Value {
    let none = Map::from_iter([(UNFINISHED.to_owned(), Value::Null)]);
    patch(host, &Map::new(), &none)
}

/// The labels to write so that a host has these for its group, and the record of them. What was set before and is not
/// among them goes, unless somebody has changed it.
fn lend(
    own: &BTreeMap<String, String>,
    before: Record,
    wanted: &HostLabels,
) -> (Map<String, Value>, Record) {
    let mut set = Map::new();
    let mut record = Record::new();
    let mut before = before;
    for (key, to) in wanted {
        let was = match before.remove(key) {
            Some(known) => known.was,
            None => own.get(key).cloned(),
        };
        set.insert(key.clone(), json!(to));
        let to = to.clone();
        record.insert(key.clone(), Set { to, was });
    }
    for (key, it) in before {
        if own.get(&key) == Some(&it.to) {
            set.insert(key, json!(it.was));
        }
    }
    (set, record)
}

fn record_of(host: &BareMetalHost) -> Record {
    let record = host.annotations().get(HOST_LABELS);
    record
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default()
}

fn written(record: &Record) -> Value {
    json!(json!(record).to_string())
}

/// Annotations of a claim.
const OURS: [&str; 6] = [IDENTITY, NODE_ID, FORMER, HOST_LABELS, HOST_UID, UNFINISHED];

/// Whether a label is one of a claim. Whoever manages the object says so with one that looks like them.
fn is_ours(key: &str, keys: &LabelKeys) -> bool {
    (labels::is_ours(key) && key != MANAGED_BY) || key == keys.cluster || key == keys.node
}

/// Whether a host carries a claim, or something of one.
pub(super) fn is_marked(host: &BareMetalHost, keys: &LabelKeys) -> bool {
    let labelled = host.labels();
    host.annotations().contains_key(IDENTITY)
        || [&keys.cluster, &keys.node]
            .into_iter()
            .any(|key| labelled.contains_key(key))
        || [labels::OWNER, labels::REQUEST]
            .into_iter()
            .any(|key| labelled.contains_key(key))
}

/// Labels and annotations of an identity.
fn stamp(
    host: &BareMetalHost,
    identity: &Identity,
    keys: &LabelKeys,
) -> (Map<String, Value>, Map<String, Value>) {
    let stamp = labels::stamp(identity, keys, &Plain::default());
    // Whoever manages the object says so there.
    let own = stamp
        .labels
        .into_iter()
        .filter(|(key, _)| key != MANAGED_BY);
    let declared = identity
        .labels
        .iter()
        .filter_map(|(key, value)| Some((declared::name(key)?, labels::value(value))));
    let set = own.chain(declared).map(|(key, text)| (key, json!(text)));
    let uid = [(HOST_UID.to_owned(), host.uid().unwrap_or_default())];
    let annotations = stamp.annotations.into_iter().chain(uid);
    (
        set.collect(),
        annotations.map(|(key, text)| (key, json!(text))).collect(),
    )
}

/// Releases a host: what its claim wrote goes, and labels that it replaced come back, unless somebody has changed them.
pub(super) fn release(host: &BareMetalHost, keys: &LabelKeys) -> Value {
    let own = host.labels();
    let mut set: Map<String, Value> = own
        .keys()
        .filter(|key| is_ours(key, keys))
        .map(|key| (key.clone(), Value::Null))
        .collect();
    set.extend(lend(own, record_of(host), &HostLabels::new()).0);
    let annotations = OURS
        .into_iter()
        .filter(|key| host.annotations().contains_key(*key))
        .map(|key| (key.to_owned(), Value::Null))
        .collect();
    patch(host, &set, &annotations)
}

/// A change of the node on a host.
#[derive(Clone, Copy)]
pub(super) struct Edit<'a> {
    pub(super) role: Option<NodeRole>,
    pub(super) set_labels: &'a BTreeMap<String, String>,
    pub(super) remove_labels: &'a [String],
    /// All labels that the host has for its group from now on. `None` to leave them unchanged.
    pub(super) host_labels: Option<&'a HostLabels>,
}

impl Edit<'_> {
    pub(super) fn of(&self, host: &BareMetalHost, identity: &Identity, keys: &LabelKeys) -> Value {
        let mut changed = identity.clone();
        if let Some(role) = self.role {
            changed.role = role.into();
        }
        for key in self.remove_labels {
            changed.labels.remove(key);
        }
        let added = self.set_labels.iter();
        changed
            .labels
            .extend(added.map(|(key, text)| (key.clone(), text.clone())));
        let (mut set, mut annotations) = stamp(host, &changed, keys);
        let removed = self.remove_labels.iter();
        let removed = removed.filter_map(|key| declared::name(key));
        for key in removed.filter(|key| host.labels().contains_key(key)) {
            set.entry(key).or_insert(Value::Null);
        }
        // A node that was taken over has kept its id.
        let id = host.annotations().get(NODE_ID).unwrap_or(&changed.id);
        set.insert(keys.node.clone(), json!(labels::value(id)));
        if let Some(wanted) = self.host_labels {
            let (lent, record) = lend(host.labels(), record_of(host), wanted);
            set.extend(lent);
            let none = record.is_empty();
            annotations.insert(
                HOST_LABELS.to_owned(),
                if none { Value::Null } else { written(&record) },
            );
        }
        patch(host, &set, &annotations)
    }
}

/// Gives a claimed host, or one that another tool has labelled, to an heir. The node keeps its id.
pub(super) fn adopt(
    host: &BareMetalHost,
    node_id: &str,
    former: Option<&Identity>,
    heir: &Identity,
    keys: &LabelKeys,
) -> Value {
    let (mut set, mut annotations) = stamp(host, heir, keys);
    // What another tool has labelled goes with the claim: else the host would be taken for its node again.
    let mut record = record_of(host);
    for (key, value) in host.labels().iter().filter(|(key, _)| sip::is_claim(key)) {
        let as_it_is = || Set {
            to: value.clone(),
            was: None,
        };
        record.entry(key.clone()).or_insert_with(as_it_is);
    }
    if !record.is_empty() {
        annotations.insert(HOST_LABELS.to_owned(), written(&record));
    }
    set.insert(keys.node.clone(), json!(labels::value(node_id)));
    if heir.role() == NodeRole::Unspecified {
        set.entry(ROLE).or_insert(Value::Null);
    }
    annotations.insert(NODE_ID.to_owned(), json!(node_id));
    let known = host.annotations().get(FORMER);
    let mut slots: Vec<FormerSlot> = known
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default();
    slots.extend(former.map(FormerSlot::of));
    // It is of another request now.
    if is_unfinished(host) {
        annotations.insert(UNFINISHED.to_owned(), Value::Null);
    }
    annotations.insert(FORMER.to_owned(), json!(json!(slots).to_string()));
    patch(host, &set, &annotations)
}

fn patch(
    host: &BareMetalHost,
    labels: &Map<String, Value>,
    annotations: &Map<String, Value>,
) -> Value {
    json!({"metadata": {
        "uid": host.uid(),
        "resourceVersion": host.resource_version(),
        "labels": labels,
        "annotations": annotations,
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(labels: &[(&str, &str)]) -> BareMetalHost {
        let labels: Map<String, Value> = labels
            .iter()
            .map(|(key, text)| ((*key).to_owned(), json!(text)))
            .collect();
        let json = json!({
            "apiVersion": "metal3.io/v1alpha1",
            "kind": "BareMetalHost",
            "metadata": {"name": "h1", "namespace": "hosts", "uid": "u", "resourceVersion": "7", "labels": labels},
            "spec": {"online": true},
        });
        serde_json::from_value(json).unwrap()
    }

    /// Applies a merge patch as the API server does.
    fn apply(host: &BareMetalHost, patch: &Value) -> BareMetalHost {
        let mut host = host.clone();
        for (part, target) in [
            ("labels", &mut host.metadata.labels),
            ("annotations", &mut host.metadata.annotations),
        ] {
            let target = target.get_or_insert_default();
            for (key, value) in patch["metadata"][part].as_object().unwrap() {
                match value.as_str() {
                    Some(text) => {
                        target.insert(key.clone(), text.to_owned());
                    }
                    None => {
                        target.remove(key);
                    }
                }
            }
        }
        host
    }

    fn identity() -> Identity {
        Identity {
            owner: "1b671a64-40d5-491e-99b0-da01ff1f3341".to_owned(),
            cluster_id: "blue".to_owned(),
            group: "control-plane".to_owned(),
            request_id: "1b671a64-40d5-491e-99b0-da01ff1f3342".to_owned(),
            id: "control-plane-0-x7k2p".to_owned(),
            role: NodeRole::Standby.into(),
            labels: [("team".to_owned(), "storage".to_owned())].into(),
            ..Identity::default()
        }
    }

    #[test]
    fn a_release_removes_exactly_what_the_claim_wrote() {
        let keys = LabelKeys::default();
        let before = host(&[
            ("rack", "r1"),
            (MANAGED_BY, "somebody"),
            ("sip.airshipit.org/node-type", "worker"),
        ]);
        let wanted = [
            ("sip.airshipit.org/node-type", "ControlPlane"),
            ("sip.airshipit.org/cluster-name", "blue"),
        ];
        let wanted: HostLabels = wanted.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let claimed = apply(&before, &claim(&before, &identity(), &keys, &wanted, None));
        assert_eq!(
            claimed.labels()["sip.airshipit.org/node-type"],
            "ControlPlane"
        );
        assert_eq!(claimed.labels()["drover.dev/role"], "standby");
        assert_eq!(claimed.labels()["drover.dev/label.team"], "storage");
        assert_eq!(claimed.labels()[MANAGED_BY], "somebody");
        let mark = labels::read(&claimed.metadata, &keys).unwrap();
        assert_eq!((mark.identity, mark.problem), (Some(identity()), None));

        let released = apply(&claimed, &release(&claimed, &keys));
        assert_eq!(released.labels(), before.labels());
        assert!(released.annotations().is_empty());
    }

    #[test]
    fn a_label_that_somebody_changed_after_the_claim_is_left_alone() {
        let keys = LabelKeys::default();
        let before = host(&[("tenant", "none")]);
        let wanted = HostLabels::from([("tenant".to_owned(), "blue".to_owned())]);
        let mut claimed = apply(&before, &claim(&before, &identity(), &keys, &wanted, None));
        claimed
            .labels_mut()
            .insert("tenant".to_owned(), "red".to_owned());
        let released = apply(&claimed, &release(&claimed, &keys));
        assert_eq!(released.labels()["tenant"], "red");
    }

    #[test]
    fn role_and_labels_of_a_node_change_where_it_runs() {
        let keys = LabelKeys::default();
        let before = host(&[]);
        let claimed = apply(
            &before,
            &claim(&before, &identity(), &keys, &HostLabels::new(), None),
        );
        let set = [("tier".to_owned(), "gold".to_owned())].into();
        let edit = Edit {
            role: Some(NodeRole::Active),
            set_labels: &set,
            remove_labels: &["team".to_owned()],
            host_labels: None,
        };
        let edited = apply(&claimed, &edit.of(&claimed, &identity(), &keys));
        let mark = labels::read(&edited.metadata, &keys).unwrap();
        let changed = mark.identity.unwrap();
        assert_eq!(mark.problem, None);
        assert_eq!(changed.role(), NodeRole::Active);
        assert_eq!(changed.labels, set);
        assert_eq!(edited.labels()[ROLE], "active");
        assert!(!edited.labels().contains_key("drover.dev/label.team"));
    }

    fn relabelled(host: &BareMetalHost, wanted: &[(&str, &str)]) -> BareMetalHost {
        let own = |(key, text): &(&str, &str)| ((*key).to_owned(), (*text).to_owned());
        let wanted: HostLabels = wanted.iter().map(own).collect();
        let edit = Edit {
            role: None,
            set_labels: &BTreeMap::new(),
            remove_labels: &[],
            host_labels: Some(&wanted),
        };
        let identity: Identity = serde_json::from_str(&host.annotations()[IDENTITY]).unwrap();
        apply(host, &edit.of(host, &identity, &LabelKeys::default()))
    }

    #[test]
    fn changed_labels_of_a_group_reach_the_host_and_those_it_has_no_more_leave_it_as_it_was() {
        let keys = LabelKeys::default();
        let before = host(&[("tenant", "none"), ("rack", "r1")]);
        let wanted = [("tenant", "blue"), ("tier", "gold")];
        let own = wanted.map(|(key, text)| (key.to_owned(), text.to_owned()));
        let claimed = apply(
            &before,
            &claim(&before, &identity(), &keys, &own.into(), None),
        );

        let changed = relabelled(&claimed, &[("tenant", "green"), ("zone", "z")]);
        let mut expected = claimed.labels().clone();
        expected.insert("tenant".to_owned(), "green".to_owned());
        expected.insert("zone".to_owned(), "z".to_owned());
        expected.remove("tier");
        assert_eq!(changed.labels(), &expected, "nothing else changes");
        assert_eq!(
            relabelled(&changed, &[("tenant", "green"), ("zone", "z")]),
            changed
        );

        let none = relabelled(&changed, &[]);
        assert_eq!(none.labels()["tenant"], "none");
        assert!(!none.annotations().contains_key(HOST_LABELS));
        for it in [&changed, &none] {
            assert_eq!(apply(it, &release(it, &keys)).labels(), before.labels());
        }
        let mut theirs = claimed;
        theirs
            .labels_mut()
            .insert("tier".to_owned(), "theirs".to_owned());
        assert_eq!(relabelled(&theirs, &[]).labels()["tier"], "theirs");
    }

    #[test]
    fn labels_of_sip_s_former_family_on_an_adopted_host_give_way_to_those_of_its_group() {
        let keys = LabelKeys::default();
        let before = host(&[
            ("rack", "r1"),
            ("sip.airshipit.org/workload-cluster", "tenants_blue"),
            ("sip.airshipit.org/scheduled", "true"),
            ("sip.airshipit.org/node-type", "worker"),
        ]);
        let adopted = apply(
            &before,
            &adopt(&before, "hosts/h1", None, &identity(), &keys),
        );
        let now = [
            ("sip.airshipit.org/cluster-namespace", "tenants"),
            ("sip.airshipit.org/cluster-name", "blue"),
            ("sip.airshipit.org/node-type", "Worker"),
        ];
        let changed = relabelled(&adopted, &now);
        let of_sip = changed
            .labels()
            .iter()
            .filter(|(key, _)| sip::is_claim(key));
        let of_sip: BTreeMap<&str, &str> = of_sip.map(|(key, it)| (&**key, &**it)).collect();
        assert_eq!(of_sip, now.into());
        let mark = labels::read(&changed.metadata, &keys).unwrap();
        assert_eq!(
            (mark.node.as_deref(), mark.problem),
            (Some("hosts/h1"), None)
        );
        let released = apply(&changed, &release(&changed, &keys));
        assert_eq!(released.labels(), host(&[("rack", "r1")]).labels());
    }

    #[test]
    fn an_adopted_node_keeps_its_id_and_remembers_its_former_slot() {
        let keys = LabelKeys::default();
        let before = host(&[("sip.airshipit.org/cluster-name", "blue")]);
        let adopted = apply(
            &before,
            &adopt(&before, "hosts/h1", None, &identity(), &keys),
        );
        let mark = labels::read(&adopted.metadata, &keys).unwrap();
        assert_eq!(mark.problem, None);
        assert_eq!(mark.node.as_deref(), Some("hosts/h1"));
        let other = Identity {
            owner: "1b671a64-40d5-491e-99b0-da01ff1f3349".to_owned(),
            ..identity()
        };
        let again = adopt(&adopted, "hosts/h1", mark.identity.as_ref(), &other, &keys);
        let mark = labels::read(&apply(&adopted, &again).metadata, &keys).unwrap();
        assert_eq!(mark.former.unwrap()[0].owner, identity().owner);
        // Else it would be taken for a node of that cluster again.
        let released = apply(&adopted, &release(&adopted, &keys));
        assert_eq!(released.labels(), host(&[]).labels());
    }

    #[test]
    fn a_claim_takes_away_what_is_left_of_another() {
        let keys = LabelKeys::default();
        let before = host(&[]);
        let wanted = HostLabels::from([("tenant".to_owned(), "red".to_owned())]);
        let adopted = apply(&before, &adopt(&before, "old-id", None, &identity(), &keys));
        let mut left = apply(
            &adopted,
            &claim(&adopted, &identity(), &keys, &wanted, Some(3)),
        );
        left.labels_mut().remove(&keys.cluster);
        left.annotations_mut().remove(IDENTITY);
        let heir = Identity {
            id: "control-plane-9-zzzzz".to_owned(),
            ..identity()
        };
        let claimed = apply(&left, &claim(&left, &heir, &keys, &HostLabels::new(), None));
        let mark = labels::read(&claimed.metadata, &keys).unwrap();
        assert_eq!(mark.node.as_deref(), Some("control-plane-9-zzzzz"));
        assert_eq!((mark.former, mark.problem), (None, None));
        assert!(!claimed.annotations().contains_key(HOST_LABELS));
        assert!(!is_unfinished(&claimed), "that was another request");
    }

    #[test]
    fn labels_that_a_group_may_not_set_on_hosts_are_named() {
        let reader = Reader {
            keys: LabelKeys::default(),
            settings: super::super::HostsSettings::default(),
        };
        let set = |key: &str, value: &str| HostLabels::from([(key.to_owned(), value.to_owned())]);
        for (key, value) in [
            ("rack", "r1"),
            ("vino.airshipit.org/host", "h1"),
            ("network.drover.dev/oam", "true"),
            ("node-role.kubernetes.io/worker", ""),
            ("sip.airshipit.org/cluster-name", "red"),
            ("sip.airshipit.org/workload-cluster", "t_red"),
            ("drover.dev/owner", "x"),
            ("drover.dev/label.team", "x"),
            ("no key", "x"),
            ("tenant", "no value!"),
            (MANAGED_BY, "x"),
        ] {
            let error = check("hostLabels", &set(key, value), "blue", &reader).unwrap_err();
            assert_eq!(error.fields()[0].field, format!("hostLabels[{key:?}]"));
        }
        let own = set("sip.airshipit.org/cluster-name", "blue");
        for wanted in [set("tenant", "blue"), own] {
            check("hostLabels", &wanted, "blue", &reader).unwrap();
        }
    }
}
