//! Metadata that all objects have.

use std::{collections::BTreeMap, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// Any object, reduced to its metadata.
pub type Object = kube::core::PartialObjectMeta;

/// An object of which only the metadata is known.
#[must_use]
pub fn partial(metadata: ObjectMeta) -> Object {
    Object {
        types: None,
        metadata,
        _phantom: PhantomData,
    }
}

static NONE: BTreeMap<String, String> = BTreeMap::new();

/// Metadata as it is read: k8s-openapi has every field optional, and to us a missing one is as good as an empty one.
pub trait Meta {
    /// Name within namespace and kind.
    fn name(&self) -> &str;
    /// Namespace. Empty for a cluster-scoped object.
    fn namespace(&self) -> &str;
    /// Uid. Changes when the object is recreated. As a precondition of a deletion an empty one never holds, where none
    /// would always; as one of a patch an empty one always holds.
    fn uid(&self) -> &str;
    /// resourceVersion of this state.
    fn version(&self) -> &str;
    /// Labels.
    fn labels(&self) -> &BTreeMap<String, String>;
    /// Annotations.
    fn annotations(&self) -> &BTreeMap<String, String>;
    /// Finalizers that have to be removed before it is gone.
    fn finalizers(&self) -> &[String];
    /// Owners with which it is garbage collected.
    fn owners(&self) -> &[OwnerReference];
    /// The owner that controls it, and makes another one in its place. A namespace does not.
    fn controller(&self) -> Option<&OwnerReference> {
        let mut owners = self.owners().iter();
        owners.find(|owner| owner.controller == Some(true) && !is_namespace(owner))
    }
    /// Whether a deletion timestamp is set.
    fn is_deleting(&self) -> bool;
}

impl Meta for ObjectMeta {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> &str {
        self.resource_version.as_deref().unwrap_or_default()
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        self.labels.as_ref().unwrap_or(&NONE)
    }

    fn annotations(&self) -> &BTreeMap<String, String> {
        self.annotations.as_ref().unwrap_or(&NONE)
    }

    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }

    fn owners(&self) -> &[OwnerReference] {
        self.owner_references.as_deref().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// Whether an owner is a namespace.
pub(crate) fn is_namespace(owner: &OwnerReference) -> bool {
    owner.api_version == "v1" && owner.kind == "Namespace"
}

/// Reads a missing or null field as its default.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
