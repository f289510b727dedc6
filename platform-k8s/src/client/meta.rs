//! What is read of every object.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Any object, as far as all are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Object {
    /// Group and version (`apps/v1`). Empty in lists.
    pub api_version: String,
    /// Kind (Deployment). Empty in lists.
    pub kind: String,
    /// Its metadata.
    pub metadata: Meta,
}

/// The metadata that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// Name.
    pub name: String,
    /// Namespace. Empty: it is in none.
    pub namespace: String,
    /// Uid: another one if it was made anew.
    pub uid: String,
    /// Version of this state.
    pub resource_version: String,
    /// Labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
    /// When it was made (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// When it was or will be deleted (RFC 3339). `None`: it is not being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Who has to agree to its end.
    #[serde(deserialize_with = "nullable")]
    pub finalizers: Vec<String>,
    /// What it goes with.
    #[serde(deserialize_with = "nullable")]
    pub owner_references: Vec<OwnerReference>,
}

/// What an object goes with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Whether it is the controller of the object.
    pub controller: bool,
}

impl Meta {
    /// Whether it is being deleted.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// A field that is left out, or null, for its default.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
