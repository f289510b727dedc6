//! Changes role and labels of a node, or whose it is, where it runs: on the object that stands for it, in the pod
//! templates where that restarts nothing, and on its pods, so that services that select by role follow.
//!
//! What stands for a node has the last word. A pod that is made anew from a template that could not be changed has the role
//! and the labels that the node was made with, until it is told ([`follow`]).

use std::{collections::BTreeMap, sync::Arc};

use drover_core::{Error, Result};
use drover_platform::{
    driver::{Change, Target},
    identity::Identity,
};
use serde_json::{Map, Value, json};

use crate::{
    adopt::{Adopted, Adopter},
    client::{Api, Kind, Meta},
    delete::{Item, Place, Remover},
    discover::is_pod,
    labels::{self, LabelKeys},
};

/// Changes nodes.
pub(crate) struct Updater {
    api: Api,
    keys: LabelKeys,
    remover: Arc<Remover>,
}

/// What a change asks for.
#[derive(Clone, Debug, Default)]
struct Edit {
    role: Option<i32>,
    set: BTreeMap<String, String>,
    remove: Vec<String>,
}

impl Updater {
    pub(crate) fn new(api: Api, keys: LabelKeys, remover: Arc<Remover>) -> Self {
        Self { api, keys, remover }
    }

    /// Changes a node, and answers what it is from now on, and of an adopted one the object that says so. `known`: where
    /// its objects are, if that is known.
    ///
    /// # Errors
    /// `NotFound`; as [`Target::matches`]; others are those of [`crate::errors`]: then it may be changed in part, and
    /// the call can be repeated.
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
            } => Edit {
                role: role.map(Into::into),
                set: set_labels.clone(),
                remove: remove_labels.clone(),
            },
            Change::Adopt(heir) => {
                let adopted = self.adopt(target, heir).await?;
                return Ok((adopted.identity, Some(adopted.speaker)));
            }
        };
        let items = self.remover.find(target, known).await?;
        let gone = || Error::not_found("node", &target.node_id);
        let mut marked = Vec::new();
        for item in items.into_iter().filter(|item| !item.meta.is_deleting()) {
            let mark = labels::read(&item.meta, &self.keys);
            let identity = mark.as_ref().and_then(|mark| mark.identity.clone());
            let stands = is_pod(&item.kind) || mark.is_some_and(|mark| mark.anchor);
            if let Some(identity) = identity.filter(|_| stands) {
                marked.push((item, identity));
            }
        }
        // What stands for the node first: pods follow it, whatever becomes of this call.
        marked.sort_by_key(|(item, _)| is_pod(&item.kind));
        let first = marked.first().ok_or_else(gone)?;
        let changed = edit.of(&first.1);
        for (item, identity) in &marked {
            let template = self.template(item).await?;
            let edit = edit.towards(identity, &changed);
            write(&self.api, item, &edit, identity, template).await?;
        }
        Ok((changed, None))
    }

    async fn adopt(&self, target: &Target, heir: &Identity) -> Result<Adopted> {
        let adopter = Adopter {
            api: &self.api,
            keys: &self.keys,
            remover: &self.remover,
            updater: self,
        };
        adopter.adopt(target, heir).await
    }

    /// Whether an object has a pod template that can be changed without a restart of what was made of it.
    pub(crate) async fn template(&self, item: &Item) -> Result<bool> {
        let Kind { group, kind, .. } = &*item.kind;
        match (group.as_str(), kind.as_str()) {
            ("apps", "ReplicaSet") | ("", "ReplicationController") => Ok(true),
            ("apps", "StatefulSet") => {
                let (namespace, name) = (&item.meta.namespace, &item.meta.name);
                let set: Option<Value> = self.api.get(&item.kind, namespace, name).await?;
                let strategy = set.as_ref().and_then(|it| {
                    it.pointer("/spec/updateStrategy/type")
                        .and_then(Value::as_str)
                });
                Ok(strategy == Some("OnDelete"))
            }
            _ => Ok(false),
        }
    }
}

/// Gives a pod the role and the labels of what stands for its node. Nothing is done where one of them is gone.
///
/// # Errors
/// Those of [`crate::errors`].
pub(crate) async fn follow(api: &Api, keys: &LabelKeys, pod: &Place, leader: &Place) -> Result<()> {
    let mut found = Vec::with_capacity(2);
    // The pod first, and written only as it was read: who changes both meanwhile changes what stands for it before the
    // pod, and is not undone.
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
        let Some(identity) = labels::read(&meta, keys).and_then(|mark| mark.identity) else {
            return Ok(());
        };
        found.push((meta, identity));
    }
    let [(meta, now), (_, leader)] = &found[..] else {
        return Ok(());
    };
    let body = following(meta, now, leader)?;
    let turn = api.turn().await;
    let patched = api
        .patch(turn, &pod.kind, &pod.namespace, &pod.name, &body)
        .await;
    patched.map(drop)
}

/// What gives an object that is this one the role and the labels of another; one that has changed since conflicts.
fn following(meta: &Meta, now: &Identity, leader: &Identity) -> Result<Value> {
    let edit = Edit::default().towards(now, leader);
    let mut body = patch(&meta.uid, &edit, &edit.of(now), false)?;
    body["metadata"]["resourceVersion"] = meta.resource_version.as_str().into();
    Ok(body)
}

async fn write(
    api: &Api,
    item: &Item,
    edit: &Edit,
    identity: &Identity,
    template: bool,
) -> Result<()> {
    let body = patch(&item.meta.uid, edit, &edit.of(identity), template)?;
    let turn = api.turn().await;
    let (namespace, name) = (&item.meta.namespace, &item.meta.name);
    let patched = api.patch(turn, &item.kind, namespace, name, &body).await;
    patched.map(drop)
}

impl Edit {
    /// What gives one identity the role and the labels of another, and takes from it what this change takes.
    fn towards(&self, now: &Identity, then: &Identity) -> Self {
        let stale = now.labels.keys();
        let stale = stale.filter(|key| !then.labels.contains_key(*key));
        Self {
            role: Some(then.role),
            set: then.labels.clone(),
            remove: self.remove.iter().chain(stale).cloned().collect(),
        }
    }

    /// An identity after the change.
    fn of(&self, identity: &Identity) -> Identity {
        let mut identity = identity.clone();
        if let Some(role) = self.role {
            identity.role = role;
        }
        identity.labels.extend(self.set.clone());
        identity.labels.retain(|key, _| !self.remove.contains(key));
        identity
    }

    fn labels(&self, identity: &Identity) -> Map<String, Value> {
        let mut map = Map::new();
        for key in self.remove.iter().filter(|key| labels::is_key(key)) {
            map.insert(key.clone(), Value::Null);
        }
        for (key, text) in &self.set {
            let valid = labels::is_key(key) && labels::is_value(text) && !labels::is_ours(key);
            if valid && !self.remove.contains(key) {
                map.insert(key.clone(), text.as_str().into());
            }
        }
        if let Some(role) = labels::role(identity) {
            map.insert(labels::ROLE.to_owned(), role.into());
        }
        map
    }
}

/// A JSON merge patch; one of an object with another uid conflicts.
fn patch(uid: &str, edit: &Edit, identity: &Identity, template: bool) -> Result<Value> {
    let json = serde_json::to_string(identity)
        .map_err(|_| Error::internal("the identity cannot be written as JSON"))?;
    let metadata = json!({
        "labels": edit.labels(identity),
        "annotations": {labels::IDENTITY: json},
    });
    let mut own = metadata.clone();
    own["uid"] = uid.into();
    let mut body = json!({"metadata": own});
    if template {
        body["spec"] = json!({"template": {"metadata": metadata}});
    }
    Ok(body)
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
        };
        let after = edit.of(&identity);
        assert_eq!(after.role(), NodeRole::Active);
        let keys: Vec<&String> = after.labels.keys().collect();
        assert_eq!(keys, ["team", "tier"]);
        let body = patch("u-1", &edit, &after, false).unwrap();
        assert_eq!(body["metadata"]["uid"], "u-1");
        assert_eq!(
            body["metadata"]["labels"],
            json!({"old": null, "tier": "hot", "drover.dev/role": "active"})
        );
        let stored = body["metadata"]["annotations"][labels::IDENTITY]
            .as_str()
            .unwrap();
        assert_eq!(serde_json::from_str::<Identity>(stored).unwrap(), after);
        assert!(body.get("spec").is_none());
        let body = patch("u-1", &edit, &after, true).unwrap();
        let template = &body["spec"]["template"]["metadata"];
        assert_eq!(template["labels"]["drover.dev/role"], "active");
        assert!(template.get("uid").is_none());
    }

    #[test]
    fn a_pod_follows_only_as_it_was_read() {
        let identity = |role: NodeRole| Identity {
            role: role.into(),
            ..Identity::default()
        };
        let meta = Meta {
            uid: "u-1".to_owned(),
            resource_version: "7".to_owned(),
            ..Meta::default()
        };
        let (now, leader) = (identity(NodeRole::Standby), identity(NodeRole::Active));
        let body = following(&meta, &now, &leader).unwrap();
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
    fn what_is_not_said_stays() {
        let identity = Identity {
            role: NodeRole::Standby.into(),
            ..Identity::default()
        };
        let edit = Edit::default();
        assert_eq!(edit.of(&identity), identity);
        let labels = Value::Object(edit.labels(&identity));
        assert_eq!(labels, json!({"drover.dev/role": "standby"}));
    }
}
