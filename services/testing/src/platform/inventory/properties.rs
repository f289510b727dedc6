//! What a group asks of hosts by its properties.

use std::collections::BTreeMap;

use drover_convert::value::{object, to_struct};
use drover_core::Reason;
use drover_proto::platform::v1::{
    Capability, Host, HostLabels, HostState, NodeChange, ProvisionRequest, UpdateNodeRequest,
    update_node_request::Update,
};
use serde_json::{Value, json};

use super::{Fixture, Subject, all, begin, host_of, refused, requests, states, until};

/// A fixture on a platform whose groups can have this property. `None` if theirs cannot.
async fn with<'a>(subject: &'a Subject, property: &str) -> Option<Fixture<'a>> {
    let fixture = begin(subject).await?;
    has(&fixture, property).then_some(fixture)
}

fn has(fixture: &Fixture<'_>, property: &str) -> bool {
    let Some(schema) = &fixture.platform.properties_schema else {
        return false;
    };
    let schema = Value::Object(object("schema", schema).expect("a schema is JSON"));
    schema.pointer(&format!("/properties/{property}")).is_some()
}

fn asking(fixture: &Fixture<'_>, properties: &Value) -> ProvisionRequest {
    let mut request = fixture.request(1);
    let properties = properties.as_object().expect("an object");
    let group = request.group.as_mut().expect("it is there");
    group.properties = Some(to_struct(properties));
    request
}

fn relabelling(
    fixture: &Fixture<'_>,
    node: &drover_proto::platform::v1::Node,
    labels: &[(&str, &str)],
) -> UpdateNodeRequest {
    let own = |(key, text): &(&str, &str)| ((*key).to_owned(), (*text).to_owned());
    let change = NodeChange {
        host_labels: Some(HostLabels {
            labels: labels.iter().map(own).collect(),
        }),
        ..NodeChange::default()
    };
    let platform = &fixture.platform.uid;
    requests::update(platform, fixture.fence(), node, Update::Change(change))
}

/// Labels that a host has now and had not, or has otherwise.
fn added(before: &Host, now: &Host) -> BTreeMap<String, String> {
    let mut added = now.labels.clone();
    added.retain(|key, text| {
        !key.starts_with("drover.dev/")
            && !key.ends_with("/managed-by")
            && before.labels.get(key) != Some(text)
    });
    added
}

fn map(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = |(key, text): &(&str, &str)| ((*key).to_owned(), (*text).to_owned());
    labels.iter().map(own).collect()
}

pub(in crate::platform) async fn labels_of_a_group_are_on_its_hosts_and_follow_it(
    subject: &Subject,
) {
    let Some(fixture) = with(subject, "hostLabels").await else {
        return;
    };
    let before = all(&fixture).await;
    let first = json!({"hostLabels": {"tenant": "blue", "tier": "gold"}});
    let answer = fixture.provision(&asking(&fixture, &first)).await;
    let node = answer.expect("a host is free").nodes.remove(0);
    let old = host_of(&before, &node);
    let shown = |wanted: BTreeMap<String, String>| {
        let (fixture, old, node) = (&fixture, &old, &node);
        until(subject, "its host has these labels", move || {
            let wanted = wanted.clone();
            async move {
                let now = host_of(&all(fixture).await, node);
                (added(old, &now) == wanted).then_some(())
            }
        })
    };
    shown(map(&[("tenant", "blue"), ("tier", "gold")])).await;
    let second = [("tenant", "green"), ("shift", "night")];
    for _ in 0..2 {
        let change = relabelling(&fixture, &node, &second);
        let updated = fixture.update(&change).await;
        let updated = updated.expect("a change can be repeated");
        assert_eq!(updated.host_id, node.host_id, "nothing is replaced");
        assert_eq!(
            (&updated.slot, &updated.labels, updated.role()),
            (&node.slot, &node.labels, node.role()),
            "nothing else changes"
        );
        shown(map(&second)).await;
    }
    let many: Vec<String> = (0..65).map(|at| format!("k{at}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "")).collect();
    for (labels, field) in [
        (&[("drover.dev/owner", "me")][..], "[\"drover.dev/owner\"]"),
        (&[("rack", "r1")], "[\"rack\"]"),
        (&[("no key", "x")], "[\"no key\"]"),
        (&[("tenant", "no value!")], "[\"tenant\"]"),
        (&many, ""),
    ] {
        let change = relabelling(&fixture, &node, labels);
        let error = refused(fixture.update(&change).await, Reason::Invalid, field);
        let expected = format!("change.host_labels.labels{field}");
        assert_eq!(error.fields()[0].field, expected, "{error:?}");
    }
    shown(map(&second)).await;
    let updated = fixture.update(&relabelling(&fixture, &node, &[])).await;
    updated.expect("a group may have none");
    shown(map(&[])).await;
    let updated = fixture.update(&relabelling(&fixture, &node, &second)).await;
    updated.expect("and have some again");
    fixture.clean().await;
    until(subject, "the host is as it was", || async {
        let now = host_of(&all(&fixture).await, &node);
        (now.labels == old.labels && now.state() == HostState::Free).then_some(())
    })
    .await;
}

pub(in crate::platform) async fn a_host_that_lacks_a_network_of_its_group_is_passed_over(
    subject: &Subject,
) {
    let Some(fixture) = with(subject, "interfaces").await else {
        return;
    };
    let before = states(&fixture).await;
    for (properties, why) in [
        (
            json!({"interfaces": ["no-such"]}),
            "no address on interface no-such",
        ),
        (json!({"networks": ["no-such"]}), "not in network no-such"),
    ] {
        let answer = fixture.provision(&asking(&fixture, &properties)).await;
        let error = refused(answer, Reason::NoCapacity, why);
        assert!(error.message().contains(why), "{error}");
    }
    assert_eq!(states(&fixture).await, before, "no host was touched");
}

pub(in crate::platform) async fn labels_of_hosts_are_refused_where_there_are_none(
    subject: &Subject,
) {
    let fixture = Fixture::new(subject).await;
    if fixture.can(Capability::RelabelHosts) || !fixture.can(Capability::UpdateNode) {
        return;
    }
    let (_, nodes) = fixture.make(1).await;
    let change = relabelling(&fixture, &nodes[0], &[("tenant", "blue")]);
    let answer = fixture.update(&change).await;
    refused(answer, Reason::CapabilityMissing, "labels of hosts");
    fixture.clean().await;
}
