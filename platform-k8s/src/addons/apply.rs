//! Applies the objects of an addon: first all of them as a dry run, so that what the API server refuses leaves everything
//! as it was; then in the order in which they need one another; then what is no longer rendered goes.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use drover_core::{Error, Reason, Result};
use drover_platform::{addons::Owner, identity::hex};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    Backend,
    mark::{self, Mark},
    not_owned,
    provider::CLAIM,
    read::Things,
};
use crate::{
    client::{Kind, Meta},
    delete::Item,
    labels,
    objects::Object,
};

/// Where objects have content by key, and where the API server shows it.
const PARTS: [(&str, &str); 3] = [
    ("data", "data"),
    ("binaryData", "binaryData"),
    ("stringData", "data"),
];
/// Dry runs at once.
const AT_ONCE: usize = 8;

pub(super) struct Apply<'a> {
    pub(super) backend: &'a Backend,
    /// What is there with the labels of the addon; all of it is of this owner.
    pub(super) there: &'a Things,
    pub(super) owner: &'a Owner,
    pub(super) mark: Mark,
    /// The fields of the request that the ports of its service come from.
    pub(super) ports: &'a [String],
    pub(super) dry_run: bool,
}

/// An object that is to be applied.
struct Planned {
    kind: Arc<Kind>,
    name: String,
    body: Value,
    /// Whether it differs from what was applied before.
    new: bool,
    /// It was written once and is kept; only its labels are.
    kept: bool,
    /// It is being deleted: another one is made once it is gone.
    ends: bool,
    /// It says whose the namespace is, and nobody's says so yet.
    claims: bool,
}

impl Apply<'_> {
    /// Applies the objects, in their order.
    ///
    /// # Errors
    /// `Invalid` with the field of the request for what the API server refuses; `NotOwned`; otherwise as in
    /// [`crate::errors`].
    pub(super) async fn run(&self, objects: Vec<Object>) -> Result<()> {
        let mut plan = Vec::with_capacity(objects.len());
        for object in objects {
            plan.push(self.plan(object).await?);
        }
        let tries: Vec<_> = plan
            .iter()
            .filter(|it| it.new && !it.kept && !it.ends)
            // A binding is compared with its role, which a dry run does not make.
            .filter(|it| it.kind.resource.kind != "RoleBinding")
            .map(|it| async move { self.send(it, true).await.map(drop) })
            .collect();
        let tries = stream::iter(tries).buffer_unordered(AT_ONCE);
        tries.try_collect::<()>().await?;
        if self.dry_run {
            return Ok(());
        }
        let mut claimed = None;
        for it in plan.iter().filter(|it| !it.ends) {
            match self.send(it, false).await {
                Ok(meta) => {
                    claimed = it.claims.then(|| Item {
                        kind: Arc::clone(&it.kind),
                        meta,
                    });
                }
                Err(error) => {
                    // Alone it would keep everybody else out, and the next request makes it again.
                    drop(self.backend.delete(claimed.iter()).await);
                    return Err(error);
                }
            }
        }
        let rendered = |item: &&Item| {
            plan.iter().any(|it| {
                it.name == item.meta.name()
                    && it.kind.resource.kind == item.kind.resource.kind
                    && it.kind.resource.group == item.kind.resource.group
            })
        };
        let left = self.there.items.iter().filter(|item| !rendered(item));
        self.backend.delete(left).await
    }

    async fn plan(&self, mut object: Object) -> Result<Planned> {
        let api = &self.backend.api;
        let kind = api.kind_of(&object.api_version, &object.kind).await?;
        let removed = self.backend.kinds.iter().any(|it| {
            it.resource.group == kind.resource.group && it.resource.plural == kind.resource.plural
        });
        if !removed {
            return Err(object.wrong(format_args!(
                "{kind} are not among addons.kinds, so nothing would remove it"
            )));
        }
        let before = self.before(&kind, &object.name).await?;
        let former = before.as_ref().and_then(Mark::of);
        let mut mark = Mark {
            digest: digest(&object),
            ..self.mark.clone()
        };
        let ends = before.as_ref().is_some_and(Meta::is_deleting);
        let claims = before.is_none() && object.kind == "Secret" && object.name == CLAIM;
        let mut kept = before.as_ref().is_some_and(|meta| is_kept(meta, &object));
        let mut lost = None;
        if kept {
            lost = self.lost(&kind, &object).await?;
            kept = lost.is_none();
        }
        let new = former
            .as_ref()
            .is_none_or(|former| former.digest != mark.digest);
        // Otherwise each request would write every object.
        if let Some(former) = former.filter(|_| !new) {
            mark = match object.kind.as_str() {
                "ConfigMap" => Mark {
                    targets: mark.targets,
                    note: mark.note,
                    ..former
                },
                _ => former,
            };
        }
        mark::write(&mut object, &mark)?;
        if let Some(before) = before {
            let uid = Value::from(before.uid());
            object.map_at(&["metadata"])?.insert("uid".to_owned(), uid);
        }
        if let Some(version) = lost {
            let metadata = object.map_at(&["metadata"])?;
            metadata.insert("resourceVersion".to_owned(), version.into());
        }
        Ok(Planned {
            kind,
            name: object.name.clone(),
            body: Value::Object(object.body),
            new,
            kept,
            ends,
            claims,
        })
    }

    /// The object of this name, which must be ours.
    async fn before(&self, kind: &Arc<Kind>, name: &str) -> Result<Option<ObjectMeta>> {
        if let Some(item) = self.there.find(kind, name) {
            return Ok(Some(item.meta.clone()));
        }
        let namespace = &self.backend.namespace;
        let Some(meta) = self.backend.api.get_meta(kind, namespace, name).await? else {
            return Ok(None);
        };
        // Somebody may have taken its labels away.
        match Mark::of(&meta) {
            Some(mark) if mark.is_of(self.owner, &self.mark.name) => Ok(Some(meta)),
            // Of a provider that was faster; whoever looks again sees which.
            Some(_) if name == CLAIM => {
                let message = format!("{} was made meanwhile", kind.object(name));
                Err(Error::new(Reason::Conflict, message))
            }
            _ => Err(not_owned(&kind.object(name))),
        }
    }

    /// The version of an object that is written once and has lost a key: of two that write it again, the other then takes
    /// what the first has written. `None` if it has all.
    async fn lost(&self, kind: &Kind, object: &Object) -> Result<Option<String>> {
        if !PARTS
            .iter()
            .any(|(part, _)| object.body.contains_key(*part))
        {
            return Ok(None);
        }
        let (api, namespace) = (&self.backend.api, &self.backend.namespace);
        let there = api.get::<Value>(kind, namespace, &object.name).await?;
        let lacks = |there: &Value| {
            PARTS.iter().any(|(part, stored)| {
                let wanted = object.body.get(*part).and_then(Value::as_object);
                let mut wanted = wanted.into_iter().flatten();
                wanted.any(|(key, value)| match &there[*stored][key] {
                    Value::Null => true,
                    Value::String(text) => text.is_empty() && value != "",
                    _ => false,
                })
            })
        };
        let there = there.filter(lacks);
        Ok(there.and_then(|it| Some(it["metadata"]["resourceVersion"].as_str()?.to_owned())))
    }

    async fn send(&self, it: &Planned, dry_run: bool) -> Result<ObjectMeta> {
        let (api, namespace) = (&self.backend.api, &self.backend.namespace);
        let sent = if it.kept {
            let metadata = &it.body["metadata"];
            let patch = json!({"metadata": {"uid": metadata["uid"], "labels": metadata["labels"]}});
            api.patch(&it.kind, namespace, &it.name, &patch).await
        } else if it.claims && !dry_run {
            let created = api.create(&it.kind, namespace, &it.body).await;
            created.map_err(|error| match error.reason() {
                // Somebody was faster; whoever looks again sees who.
                Reason::AlreadyExists => Error::new(Reason::Conflict, error.message()),
                _ => error,
            })
        } else {
            let sent = api.apply_ours(&it.kind, namespace, &it.body, dry_run);
            sent.await
        };
        let sent = sent.map_err(|error| self.named(&it.kind, error))?;
        Ok(sent.metadata)
    }

    /// Names the fields of the request in place of those of a service.
    fn named(&self, kind: &Kind, error: Error) -> Error {
        if error.reason() != Reason::Invalid || kind.resource.kind != "Service" {
            return error;
        }
        let mut named = Error::new(Reason::Invalid, error.message());
        for violation in error.fields() {
            let field = violation
                .field
                .split_once(".spec.")
                .map_or("", |(_, field)| field);
            let port = field
                .strip_prefix("ports[")
                .and_then(|rest| rest.split(']').next());
            let port = port.and_then(|at| self.ports.get(at.parse::<usize>().ok()?));
            let address = field.starts_with("clusterIP") || field.starts_with("externalIP");
            let field = match port {
                Some(port) => port.as_str(),
                None if address => "spec.cluster_ip",
                None => violation.field.as_str(),
            };
            named = named.with_violation(field, &violation.description);
        }
        named
    }
}

/// Whether the API server has refused a cluster IP because it is outside of its range.
pub(super) fn is_outside(error: &Error) -> bool {
    let words = [
        "not in the valid range",
        "does not match the current range",
        "no allocator",
    ];
    error.fields().iter().any(|violation| {
        violation.field == "spec.cluster_ip"
            && words
                .iter()
                .any(|words| violation.description.contains(words))
    })
}

fn digest(object: &Object) -> String {
    // Serialising JSON values cannot fail.
    let text = serde_json::to_vec(&object.body).unwrap_or_default();
    hex(&Sha256::digest(&text)[..16])
}

/// Whether an object that is written once stays as it is.
fn is_kept(there: &ObjectMeta, object: &Object) -> bool {
    let annotations = object
        .body
        .get("metadata")
        .and_then(|it| it.get("annotations"));
    let Some(once) = annotations.and_then(|it| it.get(labels::ONCE)?.as_str()) else {
        return false;
    };
    let is_same = there.annotations().get(labels::ONCE).map(String::as_str) == Some(once);
    is_same && !is_due(there)
}

/// Whether an object of which another one is needed from time to time is due.
pub(super) fn is_due(there: &ObjectMeta) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let due = there.annotations().get(labels::RENEW_AFTER);
    due.is_some_and(|text| text.parse().is_ok_and(|due: u64| due <= now.as_secs()))
}
