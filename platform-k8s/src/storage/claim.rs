//! Claims with their sizes.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;
use prost::Message;
use serde::Deserialize;

use crate::{
    client::{Readable, WireMeta, nullable},
    driver::quantity,
};

/// A claim: what it asks for, and what its volume has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Claim {
    pub(super) metadata: ObjectMeta,
    #[serde(deserialize_with = "nullable")]
    spec: Spec,
    #[serde(deserialize_with = "nullable")]
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "nullable")]
    resources: Resources,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Resources {
    #[serde(deserialize_with = "nullable")]
    requests: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "nullable")]
    phase: String,
    #[serde(deserialize_with = "nullable")]
    capacity: BTreeMap<String, String>,
}

impl Claim {
    /// The size that it asks for.
    pub(super) fn asked(&self) -> Option<String> {
        self.spec.resources.requests.get("storage").cloned()
    }

    /// Whether it has its volume.
    pub(super) fn is_bound(&self) -> bool {
        self.status.phase == "Bound"
    }

    /// The size of its volume in bytes. Without a volume, the one that it asks for.
    pub(super) fn size(&self) -> Option<u64> {
        let real = self.status.capacity.get("storage");
        bytes(real.or_else(|| self.spec.resources.requests.get("storage"))?)
    }
}

/// A Kubernetes quantity as whole bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    format!("{:.0}", quantity(text)?.ceil()).parse().ok()
}

/// A claim in protobuf.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireClaim {
    #[prost(message, optional, tag = "1")]
    metadata: Option<WireMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<WireSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<WireStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpec {
    #[prost(message, optional, tag = "2")]
    resources: Option<WireResources>,
}

#[derive(Clone, PartialEq, Message)]
struct WireResources {
    #[prost(btree_map = "string, message", tag = "2")]
    requests: BTreeMap<String, WireQuantity>,
}

#[derive(Clone, PartialEq, Message)]
struct WireStatus {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(btree_map = "string, message", tag = "3")]
    capacity: BTreeMap<String, WireQuantity>,
}

#[derive(Clone, PartialEq, Message)]
struct WireQuantity {
    #[prost(string, tag = "1")]
    text: String,
}

impl Readable for Claim {
    type Wire = WireClaim;
}

impl From<WireClaim> for Claim {
    fn from(from: WireClaim) -> Self {
        let resources = from.spec.unwrap_or_default().resources.unwrap_or_default();
        let status = from.status.unwrap_or_default();
        Self {
            metadata: from.metadata.unwrap_or_default().into(),
            spec: Spec {
                resources: Resources {
                    requests: texts(resources.requests),
                },
            },
            status: Status {
                phase: status.phase,
                capacity: texts(status.capacity),
            },
        }
    }
}

fn texts(from: BTreeMap<String, WireQuantity>) -> BTreeMap<String, String> {
    from.into_iter().map(|(key, it)| (key, it.text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(asked: &str, has: Option<&str>) -> Claim {
        let quantity = |text: &str| WireQuantity {
            text: text.to_owned(),
        };
        let one = |text: &str| BTreeMap::from([("storage".to_owned(), quantity(text))]);
        WireClaim {
            metadata: None,
            spec: Some(WireSpec {
                resources: Some(WireResources {
                    requests: one(asked),
                }),
            }),
            status: has.map(|text| WireStatus {
                phase: "Bound".to_owned(),
                capacity: one(text),
            }),
        }
        .into()
    }

    #[test]
    fn the_size_of_a_claim_is_that_of_its_volume() {
        assert_eq!(claim("5Gi", Some("1Gi")).size(), Some(1 << 30));
        assert_eq!(claim("5Gi", None).size(), Some(5 << 30));
        assert_eq!(claim("much", None).size(), None);
        assert!(claim("5Gi", Some("1Gi")).is_bound());
        assert!(!claim("5Gi", None).is_bound());
        let written = r#"{"metadata": {}, "spec": {"resources": {"requests": {"storage": "5Gi"}}}, "status": {"capacity": {"storage": "1500M"}}}"#;
        let read: Claim = serde_json::from_str(written).unwrap();
        assert_eq!(
            (read.asked(), read.size()),
            (Some("5Gi".to_owned()), Some(1_500_000_000))
        );
    }
}
