//! Metadata that all objects have.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Any object, reduced to the fields that all kinds share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Object {
    /// `apiVersion` (`apps/v1`). Empty in lists.
    pub api_version: String,
    /// `kind` (Deployment). Empty in lists.
    pub kind: String,
    /// Object metadata.
    pub metadata: Meta,
}

/// The metadata fields that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// Name within namespace and kind.
    pub name: String,
    /// Namespace. Empty for a cluster-scoped object.
    pub namespace: String,
    /// Uid. Changes when the object is recreated.
    pub uid: String,
    /// resourceVersion of this state.
    pub resource_version: String,
    /// Labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
    /// Creation time (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// Time of its deletion, past or future (RFC 3339). `None` if it is not being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Finalizers that have to be removed before it is gone.
    #[serde(deserialize_with = "nullable")]
    pub finalizers: Vec<String>,
    /// Owners with which it is garbage collected.
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Vec<OwnerReference>,
}

/// An owner reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    /// `apiVersion` of the owner.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Uid of the owner.
    pub uid: String,
    /// Whether the owner is the controller of the object.
    pub controller: bool,
}

impl Meta {
    /// Whether a deletion timestamp is set.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// Reads a missing or null field as its default.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
