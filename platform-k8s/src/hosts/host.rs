//! The BareMetalHost of metal3, as far as it is read here
//! (<https://github.com/metal3-io/baremetal-operator/blob/main/docs/api.md>).

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _, core::ObjectMeta};
use serde::{Deserialize, Serialize};

/// A host as the API server shows it. Everything but its metadata may be missing: one host that somebody made without
/// must not keep all others from being read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BareMetalHost {
    #[serde(default)]
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Spec,
    #[serde(default)]
    pub(super) status: Option<Status>,
}

impl Resource for BareMetalHost {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "BareMetalHost".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "metal3.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "baremetalhosts".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// As in rules of RBAC.
pub(super) const KIND: &str = "baremetalhosts.metal3.io";

/// The desired state of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) online: bool,
    pub(super) bmc: Bmc,
    pub(super) network_data: Option<SecretRef>,
    pub(super) consumer_ref: Option<ConsumerRef>,
}

/// Its management controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Bmc {
    pub(super) address: String,
    pub(super) credentials_name: String,
    pub(super) disable_certificate_verification: bool,
}

/// A secret; without a namespace that of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SecretRef {
    pub(super) name: String,
    pub(super) namespace: String,
}

/// Who uses the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ConsumerRef {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The observed state of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) operational_status: String,
    pub(super) powered_on: Option<bool>,
    pub(super) provisioning: Provisioning,
    pub(super) error_message: String,
}

/// How far its image is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Provisioning {
    pub(super) state: String,
}

/// Id of a host in the inventory.
pub(super) fn id(host: &BareMetalHost) -> String {
    id_of(&host.metadata)
}

/// Id of the host with this metadata.
pub(super) fn id_of(metadata: &ObjectMeta) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", part(&metadata.namespace), part(&metadata.name))
}

/// The secret with the host's network data.
pub(super) fn network_secret(host: &BareMetalHost) -> Option<(String, String)> {
    let data = host.spec.network_data.as_ref()?;
    let namespace = match data.namespace.as_str() {
        "" => host.namespace().unwrap_or_default(),
        named => named.to_owned(),
    };
    (!data.name.is_empty()).then(|| (namespace, data.name.clone()))
}

/// The secret with the credentials of its management controller.
pub(super) fn bmc_secret(host: &BareMetalHost) -> Option<(String, String)> {
    let name = &host.spec.bmc.credentials_name;
    (!name.is_empty()).then(|| (host.namespace().unwrap_or_default(), name.clone()))
}
