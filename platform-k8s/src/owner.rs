//! The controller of the pods that the platform makes: the namespace that they are in.
//!
//! `kubectl drain` evicts only pods that have a controller, as nobody would make others in their place. Of these the
//! orchestrator does, which is no object of Kubernetes. So they name the one object that cannot go as long as they stay:
//! what has lost its owners is deleted by the garbage collector.

use drover_core::Result;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tracing::warn;

use crate::{
    client::{Api, Kind, Meta as _, is_namespace},
    delete::Item,
    discover::is_pod,
    errors,
    settings::Settings,
};

/// Owners of the pods of one batch, most of which are in one namespace. They are read for each batch: a pod that names a
/// namespace which was made anew since would be deleted.
pub(crate) struct Owners<'a> {
    api: &'a Api,
    namespace: &'a str,
    owner: OnceCell<Option<Value>>,
}

impl<'a> Owners<'a> {
    /// Reads nothing yet.
    pub(crate) fn new(api: &'a Api, namespace: &'a str) -> Self {
        Self {
            api,
            namespace,
            owner: OnceCell::new(),
        }
    }

    /// Gives an object that is to be made its owner, if it is a pod without a controller, and its namespace may be read.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub(crate) async fn own(&self, kind: &Kind, namespace: &str, body: &mut Value) -> Result<()> {
        if !is_pod(kind) || has_controller(body) {
            return Ok(());
        }
        let owner = if namespace == self.namespace {
            let read = || read(self.api, namespace);
            self.owner.get_or_try_init(read).await?.clone()
        } else {
            read(self.api, namespace).await?
        };
        if let Some(owner) = owner {
            put(body, owner);
        }
        Ok(())
    }
}

/// Gives an existing pod its owner if it has no controller, and no claim of its node goes with it. Only drains ask for it,
/// so an error is none of the caller's: the next change of the node tries again.
pub(crate) async fn give(api: &Api, pod: &Item, has_lasting_claims: bool) {
    let (kind, meta) = (&pod.kind, &pod.meta);
    let is_whole = is_pod(kind) && !meta.is_deleting() && controller(meta).is_none();
    if !is_whole || !has_lasting_claims {
        return;
    }
    if let Err(error) = try_give(api, kind, meta).await {
        let reason = drover_convert::error::reason_name(error.reason());
        warn!(
            pod = meta.name(),
            reason, "a pod has no controller yet, which kubectl drain asks for"
        );
    }
}

async fn try_give(api: &Api, kind: &Kind, meta: &ObjectMeta) -> Result<()> {
    let Some(owner) = read(api, meta.namespace()).await? else {
        return Ok(());
    };
    let patch = json!({"metadata": {"uid": meta.uid(), "ownerReferences": [owner]}});
    let patched = api.patch_elements(kind, meta.namespace(), meta.name(), &patch);
    patched.await.map(drop)
}

/// Takes the namespace out of a pod that is to be completed, if another controller has the existing one by now: an object
/// has one at most.
pub(crate) fn yield_to(there: &ObjectMeta, body: &mut Value) {
    let Some(controller) = controller(there).filter(|it| !is_namespace(it)) else {
        return;
    };
    let owners = body.pointer_mut("/metadata/ownerReferences");
    if let Some(owners) = owners.and_then(Value::as_array_mut) {
        owners.retain(|it| it["kind"] != "Namespace" || it["uid"] == controller.uid.as_str());
    }
}

/// What the credentials lack for drains, for people.
pub(crate) async fn unread(api: &Api, settings: &Settings) -> Vec<String> {
    // Namespaces that the settings name have been read already.
    if !settings.namespaces.is_empty() || api.may_with("get", ("", "namespaces"), "", "").await {
        return Vec::new();
    }
    vec![
        "namespaces may not be read: pods are made without a controller, and kubectl drain evicts them with --force only"
            .to_owned(),
    ]
}

/// The owner of pods in a namespace. `None` if it may not be read, or is missing.
async fn read(api: &Api, namespace: &str) -> Result<Option<Value>> {
    let kind = api.kinds().await?.named("namespaces")?;
    match api.get_meta(&kind, "", namespace).await {
        Ok(meta) => Ok(meta.map(|meta| reference(namespace, meta.uid()))),
        Err(error) if errors::is_forbidden(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Without `blockOwnerDeletion`: that takes a right over the namespace, and would make its deletion wait.
fn reference(namespace: &str, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid, "controller": true})
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owners().iter();
    owners.find(|it| it.controller == Some(true))
}

fn has_controller(body: &Value) -> bool {
    let owners = body.pointer("/metadata/ownerReferences");
    let mut owners = owners.and_then(Value::as_array).into_iter().flatten();
    owners.any(|it| it["controller"] == true)
}

/// Adds an owner. What is no list is left for the API server to refuse.
fn put(body: &mut Value, owner: Value) {
    let owners = &mut body["metadata"]["ownerReferences"];
    if owners.is_null() {
        *owners = json!([]);
    }
    if let Some(owners) = owners.as_array_mut() {
        owners.push(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(owners: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "ownerReferences": owners}})
    }

    fn meta(pod: &Value) -> ObjectMeta {
        serde_json::from_value(pod["metadata"].clone()).unwrap()
    }

    fn set(controls: bool) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "u-2", "controller": controls})
    }

    #[test]
    fn what_the_template_says_goes_before() {
        assert!(has_controller(&pod(&json!([set(true)]))));
        for owners in [json!([set(false)]), json!([]), json!(null)] {
            let mut body = pod(&owners);
            assert!(!has_controller(&body));
            put(&mut body, reference("prod", "u-1"));
            let list = body["metadata"]["ownerReferences"].as_array().unwrap();
            assert_eq!(list.len(), owners.as_array().map_or(0, Vec::len) + 1);
            assert_eq!(list.last(), Some(&reference("prod", "u-1")));
            assert!(has_controller(&body));
        }
        let mut wrong = pod(&json!("x"));
        put(&mut wrong, reference("prod", "u-1"));
        assert_eq!(wrong, pod(&json!("x")));
    }

    #[test]
    fn a_namespace_makes_no_pod_anew_and_so_controls_none() {
        let owned = meta(&pod(&json!([reference("prod", "u-1")])));
        assert_eq!(owned.controller(), None);
        assert!(controller(&owned).is_some());
        let mut other = reference("prod", "u-1");
        other["apiVersion"] = "example.com/v1".into();
        assert!(meta(&pod(&json!([other]))).controller().is_some());
    }

    #[test]
    fn of_a_pod_with_another_controller_the_namespace_is_not_one_too() {
        let ours = reference("prod", "u-1");
        let asked = |there: Value| {
            let mut body = pod(&json!([set(false), ours]));
            yield_to(&meta(&pod(&there)), &mut body);
            body["metadata"]["ownerReferences"].clone()
        };
        assert_eq!(asked(json!([set(true)])), json!([set(false)]));
        for there in [json!([ours]), json!([set(false)]), json!([])] {
            assert_eq!(asked(there), json!([set(false), ours]));
        }
    }
}
