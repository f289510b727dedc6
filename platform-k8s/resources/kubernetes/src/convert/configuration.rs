//! Configurations.

use drover_proto::kubernetes::v1 as api;
use k8s_openapi::{ByteString, api::core::v1::ConfigMap};

use super::{metadata, object_meta, some};

pub(crate) fn config_map(from: api::Configuration) -> ConfigMap {
    let revision = from.metadata.as_ref().map(|it| it.revision.clone());
    let mut metadata = object_meta(from.metadata);
    metadata.resource_version = revision.and_then(some);
    let bytes = from.binary_data.into_iter();
    ConfigMap {
        metadata,
        data: some(from.data),
        binary_data: some(bytes.map(|(key, it)| (key, ByteString(it))).collect()),
        immutable: from.immutable.then_some(true),
    }
}

pub(crate) fn configuration(from: ConfigMap) -> api::Configuration {
    let bytes = from.binary_data.unwrap_or_default().into_iter();
    api::Configuration {
        metadata: Some(metadata(&from.metadata)),
        data: from.data.unwrap_or_default(),
        binary_data: bytes.map(|(key, it)| (key, it.0)).collect(),
        immutable: from.immutable.unwrap_or_default(),
    }
}
