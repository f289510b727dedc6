//! Changes role, labels or owner of a node where it runs: on the object that stands for it, in pod templates if that
//! restarts nothing, and on its pods, so that services that select by role follow.
//!
//! The object that stands for a node is authoritative. A pod that is recreated from a template that could not be
//! changed has the role and labels that the node was created with, until it is updated ([`follow`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use drover_core::{Class, Error, Reason, Result};
use drover_platform::{
    driver::{Change, Target},
    identity::Identity,
};
use kube::core::{ApiResource, ObjectMeta};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::{
    adopt::{Adopted, Adopter},
    client::{Api, Meta as _},
    delete::{Item, Place, Remover, is_anchor},
    discover::is_pod,
    labels::{
        self,
        declared::{self, Declared, Plain},
    },
    owner, selected,
    settings::Settings,
    storage,
};

pub(crate) struct Updater {
    api: Api,
    settings: Arc<Settings>,
    remover: Arc<Remover>,
}

/// A requested change.
#[derive(Clone, Debug, Default)]
struct Edit {
    role: Option<i32>,
    set: BTreeMap<String, String>,
    remove: Vec<String>,
    /// Empty: as it is.
    spec_hash: String,
    /// Whether clients may be led to it if it is active. `None`: as it is.
    settled: Option<bool>,
}

impl Updater {
    pub(crate) fn new(api: Api, settings: Arc<Settings>, remover: Arc<Remover>) -> Self {
        Self {
            api,
            settings,
            remover,
        }
    }

    /// Changes a node. Returns its new identity, and for an adopted node the object that speaks for it. `known` are the
    /// locations of its objects, if these are known.
    ///
    /// # Errors
    /// `Invalid` for a key that no label can have here; `NotFound`; as [`Target::matches`]; otherwise as in
    /// [`crate::errors`]: the node may then be partly changed, and the call can be repeated.
    pub(crate) async fn update(
        &self,
        target: &Target,
        change: &Change,
        known: &[Place],
    ) -> Result<(Identity, Option<Item>)> {
        let edit = match change {
            Change::Edit {
                role,
                set_labels,
                remove_labels,
                spec_hash,
                promoting,
                ..
            } => Edit {
                role: role.map(Into::into),
                set: set_labels.clone(),
                remove: remove_labels.clone(),
                spec_hash: spec_hash.clone(),
                settled: role.map(|_| !promoting),
            },
            Change::Adopt(heir) => {
                let adopted = self.adopt(target, heir).await?;
                return Ok((adopted.identity, Some(adopted.speaker)));
            }
        };
        declared::check("change.set_labels", edit.set.keys())?;
        let items = self.remover.find(target, known).await?;
        let gone = || Error::not_found("node", &target.node_id);
        if let Change::Edit {
            storage_size: Some(size),
            ..
        } = change
        {
            storage::grow(&self.api, &items, *size).await?;
        }
        let lasting = storage::all_last(&items);
        let mut marked = Vec::new();
        for item in items.into_iter().filter(|item| !item.meta.is_deleting()) {
            let mark = labels::read(&item.meta, &self.settings.labels);
            let identity = mark.as_ref().and_then(|mark| mark.identity.clone());
            let stands = is_pod(&item.kind) || mark.is_some_and(|mark| mark.anchor);
            if let Some(identity) = identity.filter(|_| stands) {
                marked.push((item, identity));
            }
        }
        // The object that stands for the node goes first: pods follow it, even if this call fails later.
        marked.sort_by_key(|(item, _)| is_pod(&item.kind));
        let first = marked.first().ok_or_else(gone)?;
        let changed = edit.of(&first.1);
        let plain = selected::plain(&self.api, &self.settings, changed.labels.keys()).await?;
        for (at, (item, identity)) in marked.iter().enumerate() {
            let edit = edit.towards(identity, &changed);
            let written = async {
                let template = self.template(item).await?;
                let body = edit.patch(&item.meta, identity, template.as_ref(), &plain)?;
                self.write(item, &body).await
            };
            match written.await {
                Err(error) if at == 0 || error.class() == Class::Unknown => return Err(error),
                // What is made in its place follows the object that stands for the node.
                Err(error) if error.reason() == Reason::NotFound => {}
                // The node has changed already: nobody may take it for certain that nothing happened.
                Err(error) => {
                    return Err(Error::unavailable(format!(
                        "a part of the node was changed: {}",
                        error.message()
                    )));
                }
                Ok(()) => {}
            }
        }
        // Pods that an earlier version made, or that were made without the right to read their namespace.
        for (item, _) in marked.iter().filter(|(item, _)| is_anchor(&item.meta)) {
            owner::give(&self.api, item, lasting).await;
        }
        Ok((changed, None))
    }

    async fn adopt(&self, target: &Target, heir: &Identity) -> Result<Adopted> {
        let adopter = Adopter {
            api: &self.api,
            keys: &self.settings.labels,
            remover: &self.remover,
            updater: self,
        };
        adopter.adopt(target, heir).await
    }

    /// Metadata of the pod template in an object, if they can be changed without restarting its pods.
    pub(crate) async fn template(&self, item: &Item) -> Result<Option<ObjectMeta>> {
        let ApiResource { group, kind, .. } = &item.kind.resource;
        let always = matches!(
            (group.as_str(), kind.as_str()),
            ("apps", "ReplicaSet") | ("", "ReplicationController")
        );
        if !always && (group.as_str(), kind.as_str()) != ("apps", "StatefulSet") {
            return Ok(None);
        }
        let (namespace, name) = (item.meta.namespace(), item.meta.name());
        let object: Option<Value> = self.api.get(&item.kind, namespace, name).await?;
        let Some(object) = object else {
            return Ok(None);
        };
        let strategy = object.pointer("/spec/updateStrategy/type");
        let metadata = object.pointer("/spec/template/metadata");
        let metadata = metadata.and_then(|metadata| ObjectMeta::deserialize(metadata).ok());
        let changes = always || strategy.and_then(Value::as_str) == Some("OnDelete");
        Ok(changes.then(|| metadata.unwrap_or_default()))
    }

    async fn write(&self, item: &Item, body: &Value) -> Result<()> {
        let (namespace, name) = (item.meta.namespace(), item.meta.name());
        let patched = self.api.patch(&item.kind, namespace, name, body);
        patched.await.map(drop)
    }
}

/// Gives a pod the role and labels of the object that stands for its node. Does nothing if one of them is gone.
///
/// # Errors
/// See [`crate::errors`].
pub(crate) async fn follow(
    api: &Api,
    settings: &Settings,
    pod: &Place,
    leader: &Place,
) -> Result<()> {
    let mut found = Vec::with_capacity(2);
    // The pod is read first, and only written if unchanged: a concurrent update writes the object that stands for the
    // node before the pod, and so is not undone.
    for place in [pod, leader] {
        let Place {
            kind,
            namespace,
            name,
        } = place;
        let meta = api.get_meta(kind, namespace, name).await?;
        let Some(meta) = meta.filter(|meta| !meta.is_deleting()) else {
            return Ok(());
        };
        let Some(identity) = labels::read(&meta, &settings.labels).and_then(|mark| mark.identity)
        else {
            return Ok(());
        };
        found.push((meta, identity));
    }
    let [(meta, now), (_, leader)] = &found[..] else {
        return Ok(());
    };
    let plain = selected::plain(api, settings, leader.labels.keys()).await?;
    let body = following(meta, now, leader, &plain)?;
    let patched = api.patch(&pod.kind, &pod.namespace, &pod.name, &body).await;
    patched.map(drop)
}

/// A patch that gives an object with this identity the role and labels of another. It conflicts if the object has
/// changed since.
fn following(meta: &ObjectMeta, now: &Identity, leader: &Identity, plain: &Plain) -> Result<Value> {
    let edit = Edit::default().towards(now, leader);
    let mut body = edit.patch(meta, now, None, plain)?;
    body["metadata"]["resourceVersion"] = meta.version().into();
    Ok(body)
}

impl Edit {
    /// The edit that gives one identity the role and labels of another, and removes what this edit removes. Labels that
    /// do not change keep their names.
    fn towards(&self, now: &Identity, then: &Identity) -> Self {
        let stale = now.labels.keys();
        let stale = stale.filter(|key| !then.labels.contains_key(*key));
        let new = then.labels.iter();
        let new = new.filter(|(key, text)| {
            self.set.contains_key(*key) || now.labels.get(*key) != Some(*text)
        });
        Self {
            role: Some(then.role),
            set: new.map(|(key, text)| (key.clone(), text.clone())).collect(),
            remove: self.remove.iter().chain(stale).cloned().collect(),
            spec_hash: then.spec_hash.clone(),
            settled: self.settled,
        }
    }

    /// The identity after the change.
    fn of(&self, identity: &Identity) -> Identity {
        let mut identity = identity.clone();
        if let Some(role) = self.role {
            identity.role = role;
        }
        if !self.spec_hash.is_empty() {
            identity.spec_hash.clone_from(&self.spec_hash);
        }
        identity.labels.extend(self.set.clone());
        identity.labels.retain(|key, _| !self.remove.contains(key));
        identity
    }

    /// Labels and annotations of an object with this metadata, as a part of a merge patch.
    fn metadata(&self, meta: &ObjectMeta, after: &Identity, json: &str, plain: &Plain) -> Value {
        let set = self.set.iter();
        let set = set.filter(|(key, _)| !self.remove.contains(key));
        let set = set.map(|(key, text)| (key.as_str(), Some(text.as_str())));
        let taken = self.remove.iter().map(|key| (key.as_str(), None));
        let before: BTreeSet<String> = declared::recorded(meta.annotations());
        let (changes, recorded) =
            Declared::changes(plain, taken.chain(set), meta.labels(), &before);
        let mut labels: Map<String, Value> = changes
            .into_iter()
            .map(|(key, text)| (key, text.into()))
            .collect();
        if let Some(role) = labels::role(after) {
            let is = |key: &str, text: &str| meta.labels().get(key).is_some_and(|it| it == text);
            // One that is told again what it has been told, and serves.
            let serves = is(labels::ROLE, "active") && is(labels::ACTIVE, "true");
            let active = match (self.settled, labels::is_active(after)) {
                (Some(_), false) => Some("false"),
                (Some(true), true) => Some("true"),
                (Some(false), true) => (!serves).then_some(labels::PROMOTING),
                (None, _) => None,
            };
            labels.extend(active.map(|text| (labels::ACTIVE.to_owned(), text.into())));
            labels.insert(labels::ROLE.to_owned(), role.into());
        }
        let mut annotations = json!({labels::IDENTITY: json});
        if recorded != before {
            annotations[declared::PLAIN] = declared::record(&recorded).into();
        }
        json!({"labels": labels, "annotations": annotations})
    }

    /// A JSON merge patch of an object, and of its pod template if there is one to change. It conflicts if the object
    /// has another uid.
    fn patch(
        &self,
        meta: &ObjectMeta,
        identity: &Identity,
        template: Option<&ObjectMeta>,
        plain: &Plain,
    ) -> Result<Value> {
        let after = self.of(identity);
        let json = serde_json::to_string(&after)
            .map_err(|_| Error::internal("the identity cannot be written as JSON"))?;
        let mut own = self.metadata(meta, &after, &json, plain);
        own["uid"] = meta.uid().into();
        let mut body = json!({"metadata": own});
        if let Some(template) = template {
            let metadata = self.metadata(template, &after, &json, plain);
            body["spec"] = json!({"template": {"metadata": metadata}});
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::platform::v1::NodeRole;

    use super::*;

    #[test]
    fn a_patch_changes_role_and_labels_and_nothing_else_and_only_of_this_object() {
        let identity = Identity {
            id: "db-0-x".into(),
            role: NodeRole::Standby.into(),
            labels: BTreeMap::from([
                ("team".to_owned(), "a".to_owned()),
                ("old".to_owned(), "b".to_owned()),
            ]),
            ..Identity::default()
        };
        let edit = Edit {
            role: Some(NodeRole::Active.into()),
            set: BTreeMap::from([("tier".to_owned(), "hot".to_owned())]),
            remove: vec!["old".to_owned(), "not there".to_owned()],
            spec_hash: "h1-2".to_owned(),
            settled: Some(true),
        };
        let after = edit.of(&identity);
        assert_eq!(after.role(), NodeRole::Active);
        assert_eq!(after.spec_hash, "h1-2");
        let keys: Vec<&String> = after.labels.keys().collect();
        assert_eq!(keys, ["team", "tier"]);
        let meta = ObjectMeta {
            uid: Some("u-1".to_owned()),
            labels: Some([("tier".to_owned(), "the template's".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let plain = Plain::default();
        let body = edit.patch(&meta, &identity, None, &plain).unwrap();
        assert_eq!(body["metadata"]["uid"], "u-1");
        assert_eq!(
            body["metadata"]["labels"],
            json!({
                "drover.dev/active": "true",
                "drover.dev/label.old": null,
                "drover.dev/label.tier": "hot",
                "drover.dev/role": "active",
            })
        );
        let stored = body["metadata"]["annotations"][labels::IDENTITY]
            .as_str()
            .unwrap();
        assert_eq!(serde_json::from_str::<Identity>(stored).unwrap(), after);
        assert!(body.get("spec").is_none());
        let template = ObjectMeta::default();
        let body = edit
            .patch(&meta, &identity, Some(&template), &plain)
            .unwrap();
        let template = &body["spec"]["template"]["metadata"];
        assert_eq!(template["labels"]["drover.dev/role"], "active");
        assert!(template.get("uid").is_none());
    }

    #[test]
    fn clients_are_led_to_a_node_only_when_it_has_been_promoted() {
        let identity = |role: NodeRole| Identity {
            role: role.into(),
            ..Identity::default()
        };
        let is_led_to = |before: [&str; 2], role: NodeRole, settled: Option<bool>| {
            let [role_before, active_before] = before.map(ToOwned::to_owned);
            let labels = [
                (labels::ROLE.to_owned(), role_before),
                (labels::ACTIVE.to_owned(), active_before),
            ];
            let meta = ObjectMeta {
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            };
            let edit = Edit {
                settled,
                ..Edit::default()
            };
            let body = edit.patch(&meta, &identity(role), None, &Plain::default());
            let labels = &body.unwrap()["metadata"]["labels"];
            labels.get(labels::ACTIVE).cloned()
        };
        for (before, role, settled, led) in [
            (
                ["standby", "false"],
                NodeRole::Active,
                Some(false),
                Some("promoting"),
            ),
            (
                ["active", "promoting"],
                NodeRole::Active,
                Some(false),
                Some("promoting"),
            ),
            (
                ["active", "promoting"],
                NodeRole::Active,
                Some(true),
                Some("true"),
            ),
            // Whoever told it has not heard that it has been promoted, and tells it again.
            (["active", "true"], NodeRole::Active, Some(false), None),
            (
                ["active", "true"],
                NodeRole::Standby,
                Some(true),
                Some("false"),
            ),
            // Other labels are changed meanwhile.
            (["active", "promoting"], NodeRole::Active, None, None),
        ] {
            let led = led.map(|it| json!(it));
            assert_eq!(is_led_to(before, role, settled), led, "{before:?} {role:?}");
        }
    }

    #[test]
    fn a_pod_follows_only_as_it_was_read() {
        let identity = |role: NodeRole| Identity {
            role: role.into(),
            ..Identity::default()
        };
        let meta = ObjectMeta {
            uid: Some("u-1".to_owned()),
            resource_version: Some("7".to_owned()),
            ..ObjectMeta::default()
        };
        let (now, leader) = (identity(NodeRole::Standby), identity(NodeRole::Active));
        let body = following(&meta, &now, &leader, &Plain::default()).unwrap();
        let metadata = &body["metadata"];
        assert_eq!(
            (&metadata["uid"], &metadata["resourceVersion"]),
            (&json!("u-1"), &json!("7"))
        );
        assert_eq!(metadata["labels"][labels::ROLE], "active");
        let stored = metadata["annotations"][labels::IDENTITY].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Identity>(stored).unwrap(), leader);
    }

    #[test]
    fn a_label_that_is_allowed_is_changed_under_its_own_name_where_it_has_it() {
        let identity = Identity {
            labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
            ..Identity::default()
        };
        let edit = Edit {
            set: BTreeMap::from([("team".to_owned(), "b".to_owned())]),
            ..Edit::default()
        };
        let meta = |annotations: &[(&str, &str)]| ObjectMeta {
            labels: Some(identity.labels.clone()),
            annotations: Some(
                annotations
                    .iter()
                    .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
                    .collect(),
            ),
            ..ObjectMeta::default()
        };
        let plain = Plain::of(identity.labels.keys(), &["team".to_owned()]);
        let ours = meta(&[(declared::PLAIN, "[\"team\"]")]);
        let body = edit.patch(&ours, &identity, None, &plain).unwrap();
        let metadata = &body["metadata"];
        assert_eq!(metadata["labels"]["team"], "b");
        assert_eq!(metadata["annotations"].get(declared::PLAIN), None);
        // The label may come from the template or from an older version: nobody can tell.
        let body = edit.patch(&meta(&[]), &identity, None, &plain).unwrap();
        let labels = &body["metadata"]["labels"];
        assert_eq!(labels["drover.dev/label.team"], "b");
        assert_eq!(labels.get("team"), None);
        // Not allowed any more.
        let body = edit.patch(&ours, &identity, None, &Plain::default());
        let metadata = &body.unwrap()["metadata"];
        assert_eq!(metadata["labels"]["team"], Value::Null);
        assert_eq!(metadata["labels"]["drover.dev/label.team"], "b");
        assert_eq!(metadata["annotations"][declared::PLAIN], Value::Null);
    }

    #[test]
    fn what_is_not_said_stays() {
        let identity = Identity {
            role: NodeRole::Standby.into(),
            ..Identity::default()
        };
        let edit = Edit::default();
        assert_eq!(edit.of(&identity), identity);
        let body = edit.patch(&ObjectMeta::default(), &identity, None, &Plain::default());
        let labels = &body.unwrap()["metadata"]["labels"];
        assert_eq!(*labels, json!({"drover.dev/role": "standby"}));
    }
}
