//! What marks the objects of an ingress that is made of several, and their metadata as one message.

use drover_proto::kubernetes::v1 as api;
use kube::{
    ResourceExt,
    core::{DynamicObject, ObjectMeta, TypeMeta},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{discovery::Kind, kubernetes, route};
use crate::convert;

/// Label and annotation: the ingress that an object is part of. The label's value may be shortened.
pub(super) const INGRESS: &str = "drover.dev/ingress";

/// Annotation: the creation that made an object, by which it is known though its answer was lost.
pub(super) const REQUEST: &str = "drover.dev/request";

/// Annotations that are not part of an ingress as its callers see it.
const OWN: [&str; 6] = [
    INGRESS,
    REQUEST,
    kubernetes::NAMES,
    route::PATHS,
    route::BEHIND,
    route::VERSION,
];

/// Most characters of a label's value.
const MAX_LABEL: usize = 63;

/// The label's value for a name: unchanged if it fits, otherwise its beginning and a hash.
pub(super) fn label(name: &str) -> String {
    if name.len() <= MAX_LABEL {
        return name.to_owned();
    }
    let kept: String = name.chars().take(MAX_LABEL - 9).collect();
    format!("{kept}-{}", hash(name))
}

/// The first eight hexadecimal digits of the text's hash.
pub(super) fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The ingress that an object is part of: the one that it names, otherwise that of its own name.
pub(super) fn ingress_of(object: &DynamicObject) -> String {
    let named = object.annotations().get(INGRESS);
    let named = named.or_else(|| object.labels().get(INGRESS));
    named.cloned().unwrap_or_else(|| object.name_any())
}

/// Whether an object carries our mark.
pub(super) fn is_ours(object: &DynamicObject) -> bool {
    object.labels().contains_key(INGRESS)
}

/// Metadata of one of the objects of an ingress.
pub(super) fn part(like: &ObjectMeta, ingress: &str, name: String) -> ObjectMeta {
    let mut labels = like.labels.clone().unwrap_or_default();
    labels.insert(INGRESS.to_owned(), label(ingress));
    let mut annotations = like.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !is_reserved(key));
    annotations.insert(INGRESS.to_owned(), ingress.to_owned());
    ObjectMeta {
        name: Some(name),
        namespace: like.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

fn is_reserved(key: &str) -> bool {
    OWN.contains(&key) || key == "kubectl.kubernetes.io/last-applied-configuration"
}

/// An object of a kind that our types do not have.
pub(super) fn object(kind: Kind, metadata: ObjectMeta, spec: Value) -> DynamicObject {
    let resource = kind.resource();
    DynamicObject {
        types: Some(TypeMeta {
            api_version: resource.api_version,
            kind: resource.kind,
        }),
        metadata,
        data: json!({"spec": spec}),
    }
}

/// The metadata of an ingress: those of its first object, and a revision that changes with any of them.
pub(super) fn answer(name: &str, objects: &[DynamicObject]) -> api::Metadata {
    let Some(first) = objects.first() else {
        return api::Metadata::default();
    };
    let mut metadata = convert::metadata(&first.metadata);
    name.clone_into(&mut metadata.name);
    metadata.labels.remove(INGRESS);
    metadata
        .annotations
        .retain(|key, _| !OWN.contains(&key.as_str()));
    if objects.len() > 1 {
        let revisions: Vec<String> = objects
            .iter()
            .map(|object| object.resource_version().unwrap_or_default())
            .collect();
        metadata.revision = revisions.join(".");
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_for_a_label_keeps_a_value_of_its_own() {
        assert_eq!(label("web"), "web");
        let (a, b) = ("a".repeat(100), "a".repeat(101));
        assert_eq!(label(&a).len(), 63);
        assert_ne!(label(&a), label(&b));
    }
}
