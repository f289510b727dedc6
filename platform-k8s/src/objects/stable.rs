//! Names of declared storage: the same for every node of one owner, cluster, group and ordinal, so that a successor
//! finds the storage that was kept.

use drover_core::Result;
use drover_platform::identity::Identity;
use drover_proto::platform::v1::Storage;
use serde_json::{Map, Value, json};

use super::{Object, child, claims, names::dns_name, pods};
use crate::storage::{STORAGE, Whose, stable_base};

/// Replaces the name of the node in the names of its claims.
fn base(identity: &Identity) -> String {
    let Identity {
        owner,
        cluster_id,
        group,
        ordinal,
        ..
    } = identity;
    stable_base(owner, cluster_id, group, *ordinal)
}

/// Gives the claims of a node names that outlive it, takes claim templates out of the sets that would name them after
/// the node, and records the owner in all of them. `inherited` replaces the node's name if the claims belonged to
/// another owner before.
///
/// # Errors
/// `Precondition`, which names the document, if a claim is not named after its node, or a set runs several pods.
pub(crate) fn apply(
    objects: &mut Vec<Object>,
    storage: &Storage,
    identity: &Identity,
    inherited: Option<&str>,
) -> Result<()> {
    let base = inherited.map_or_else(|| base(identity), str::to_owned);
    let node = dns_name(&identity.id);
    let whose = Whose::of(identity, storage).annotation();
    let mut renamed = Vec::new();
    for object in objects.iter_mut().filter(|object| is_claim(object)) {
        if !object.name.contains(&node) {
            return Err(object.wrong(
                "is storage that may outlive its node; its name must hold platform.name, in whose place comes one that stays",
            ));
        }
        let name = object.name.replace(&node, &base);
        renamed.push((
            std::mem::replace(&mut object.name, name.clone()),
            name.clone(),
        ));
        let metadata = object.map_at(&["metadata"])?;
        metadata.insert("name".to_owned(), Value::String(name));
        own(metadata, &whose);
    }
    let mut made = Vec::new();
    for object in objects.iter_mut() {
        made.extend(untie(object, &base, &whose)?);
        for path in pods::templates(object) {
            refer(object, path, &renamed)?;
        }
    }
    objects.extend(made);
    Ok(())
}

fn is_claim(object: &Object) -> bool {
    object.group().is_empty() && object.kind == "PersistentVolumeClaim"
}

fn own(metadata: &mut Map<String, Value>, whose: &str) {
    child(metadata, "annotations").insert(STORAGE.to_owned(), whose.into());
}

/// The claims that the templates of a set would create, as objects of their own that its pod mounts.
fn untie(object: &mut Object, base: &str, whose: &str) -> Result<Vec<Object>> {
    let templates: Vec<Map<String, Value>> = claims::templates(object)?
        .into_iter()
        .map(|template| template.clone())
        .collect();
    if templates.is_empty() {
        return Ok(Vec::new());
    }
    let spec = object.map_at(&["spec"])?;
    let several = spec
        .get("replicas")
        .and_then(Value::as_u64)
        .is_some_and(|replicas| replicas > 1);
    if several {
        return Err(object.wrong(
            "runs several pods, of which each would have storage of its own; a node is one",
        ));
    }
    spec.remove("volumeClaimTemplates");
    let (mut made, mut volumes) = (Vec::new(), Vec::new());
    for mut body in templates {
        let metadata = child(&mut body, "metadata");
        let volume = metadata
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or("data")
            .to_owned();
        let name = format!("{volume}-{base}");
        metadata.insert("name".to_owned(), name.clone().into());
        metadata.insert("namespace".to_owned(), object.namespace.clone().into());
        own(metadata, whose);
        body.insert("apiVersion".to_owned(), "v1".into());
        body.insert("kind".to_owned(), "PersistentVolumeClaim".into());
        volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": name}}));
        made.push(Object {
            document: object.document,
            api_version: "v1".to_owned(),
            kind: "PersistentVolumeClaim".to_owned(),
            namespace: object.namespace.clone(),
            name,
            body,
        });
    }
    let pod = object.map_at(&["spec", "template", "spec"])?;
    let present = pod
        .entry("volumes")
        .or_insert_with(|| Value::Array(Vec::new()));
    if present.is_null() {
        *present = Value::Array(Vec::new());
    }
    let Some(present) = present.as_array_mut() else {
        return Err(object.wrong("spec.template.spec.volumes is not a list"));
    };
    present.extend(volumes);
    Ok(made)
}

/// Updates the claim names in the volumes of a pod.
fn refer(object: &mut Object, path: &[&str], renamed: &[(String, String)]) -> Result<()> {
    let path = [path, &["spec"]].concat();
    let spec = object.map_at(&path)?;
    let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for volume in volumes.into_iter().flatten() {
        let Some(claim) = volume.pointer_mut("/persistentVolumeClaim/claimName") else {
            continue;
        };
        let new = renamed.iter().find(|(old, _)| claim.as_str() == Some(old));
        if let Some((_, new)) = new {
            *claim = Value::String(new.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::render::tests::objects;

    fn identity(id: &str, owner: &str) -> Identity {
        Identity {
            id: id.to_owned(),
            owner: owner.to_owned(),
            cluster_id: "c".to_owned(),
            group: "data/hot".to_owned(),
            ordinal: 2,
            ..Identity::default()
        }
    }

    fn applied(text: &str, identity: &Identity) -> Result<Vec<Object>> {
        let mut all = objects(text);
        let storage = Storage {
            size_bytes: Some(5),
            class: "fast".to_owned(),
        };
        apply(&mut all, &storage, identity, None)?;
        Ok(all)
    }

    fn with_claim(id: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: {id}}}}}\n---\n\
             {{apiVersion: v1, kind: Pod, metadata: {{name: {id}}}, spec: {{volumes: [\
             {{name: data, persistentVolumeClaim: {{claimName: {id}}}}}, \
             {{name: other, persistentVolumeClaim: {{claimName: shared}}}}]}}}}"
        )
    }

    #[test]
    fn the_node_that_follows_mounts_the_claim_of_the_one_before() {
        let first = identity("hot-2-aaaaa", "o");
        let next = identity("hot-2-bbbbb", "o");
        let one = applied(&with_claim("hot-2-aaaaa"), &first).unwrap();
        let two = applied(&with_claim("hot-2-bbbbb"), &next).unwrap();
        assert_eq!(one[0].name, two[0].name);
        assert_eq!(one[0].body["metadata"]["name"], one[0].name.as_str());
        let claim = |pod: &Object, at: usize| {
            pod.body["spec"]["volumes"][at]["persistentVolumeClaim"]["claimName"].clone()
        };
        assert_eq!(claim(&two[1], 0), one[0].name.as_str());
        assert_eq!(claim(&two[1], 1), "shared");
        // Another owner of the same names has claims of its own.
        let other = applied(&with_claim("hot-2-bbbbb"), &identity("hot-2-bbbbb", "p")).unwrap();
        assert_ne!(other[0].name, one[0].name);
        let whose = one[0].body["metadata"]["annotations"][STORAGE].as_str();
        assert!(whose.unwrap().contains("\"ordinal\":2"), "{whose:?}");
    }

    #[test]
    fn claims_that_a_set_would_name_after_the_node_become_objects() {
        let set = |more: &str| {
            format!(
                "{{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: hot-2-aaaaa}}, spec: {{{more}\
                 template: {{spec: {{containers: []}}}}, volumeClaimTemplates: [{{metadata: {{name: data, labels: {{a: b}}}}, \
                 spec: {{accessModes: [ReadWriteOnce]}}}}]}}}}"
            )
        };
        let node = identity("hot-2-aaaaa", "o");
        let all = applied(&set(""), &node).unwrap();
        assert_eq!(all.len(), 2);
        assert!(all[0].body["spec"].get("volumeClaimTemplates").is_none());
        let volume = &all[0].body["spec"]["template"]["spec"]["volumes"][0];
        assert_eq!(volume["name"], "data");
        assert_eq!(
            volume["persistentVolumeClaim"]["claimName"],
            all[1].name.as_str()
        );
        assert!(all[1].name.starts_with("data-"));
        assert_eq!(all[1].body["spec"]["accessModes"][0], "ReadWriteOnce");
        assert_eq!(all[1].body["metadata"]["labels"]["a"], "b");
        let error = applied(&set("replicas: 2, "), &node).unwrap_err();
        assert!(error.message().contains("several pods"), "{error:?}");
    }

    #[test]
    fn a_claim_that_every_node_would_share_is_refused() {
        let error = applied(&with_claim("shared"), &identity("hot-2-aaaaa", "o")).unwrap_err();
        assert!(error.message().contains("platform.name"), "{error:?}");
    }
}
