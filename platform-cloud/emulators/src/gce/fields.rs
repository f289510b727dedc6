//! Partial responses: a mask selects the fields of an answer. It is in the query (`fields`, `$fields`) or in the header
//! `X-Goog-FieldMask` (<https://cloud.google.com/apis/docs/system-parameters>).

use std::collections::BTreeMap;

use serde_json::Value;

use super::json::Problem;
use super::route::Verb;
use crate::server::Call;

/// Fields of a list (<https://cloud.google.com/compute/docs/reference/rest/v1/instances/list#response-body>).
const LIST: &[&str] = &[
    "id",
    "items",
    "kind",
    "nextPageToken",
    "selfLink",
    "unreachables",
    "warning",
];
/// Fields of an instance (<https://cloud.google.com/compute/docs/reference/rest/v1/instances#Instance>).
const INSTANCE: &[&str] = &[
    "advancedMachineFeatures",
    "canIpForward",
    "confidentialInstanceConfig",
    "cpuPlatform",
    "creationTimestamp",
    "deletionProtection",
    "description",
    "disks",
    "displayDevice",
    "fingerprint",
    "guestAccelerators",
    "hostname",
    "id",
    "instanceEncryptionKey",
    "keyRevocationActionType",
    "kind",
    "labelFingerprint",
    "labels",
    "lastStartTimestamp",
    "lastStopTimestamp",
    "lastSuspendedTimestamp",
    "machineType",
    "metadata",
    "minCpuPlatform",
    "name",
    "networkInterfaces",
    "networkPerformanceConfig",
    "params",
    "privateIpv6GoogleAccess",
    "reservationAffinity",
    "resourcePolicies",
    "resourceStatus",
    "satisfiesPzi",
    "satisfiesPzs",
    "scheduling",
    "selfLink",
    "serviceAccounts",
    "shieldedInstanceConfig",
    "shieldedInstanceIntegrityPolicy",
    "sourceMachineImage",
    "sourceMachineImageEncryptionKey",
    "startRestricted",
    "status",
    "statusMessage",
    "tags",
    "zone",
];

/// What is selected of a value.
#[derive(Default)]
pub(super) struct Mask {
    whole: bool,
    fields: BTreeMap<String, Mask>,
}

impl Mask {
    /// The mask of a read, if it has one.
    pub(super) fn of(call: &Call, verb: Verb) -> Result<Option<Mask>, Problem> {
        let Some(text) = asked(call) else {
            return Ok(None);
        };
        let mut mask = Mask::default();
        for path in text.split(',') {
            mask.select(path.trim());
        }
        let unknown = match verb {
            Verb::List => mask.unknown(LIST).or_else(|| {
                let items = mask.fields.get("items");
                items.and_then(|items| items.unknown(INSTANCE))
            }),
            Verb::Get => mask.unknown(INSTANCE),
            _ => None,
        };
        match unknown {
            Some(field) => Err(Problem::new(
                400,
                "invalidParameter",
                format!("Invalid field selection {field}"),
            )),
            None => Ok(Some(mask)),
        }
    }

    fn select(&mut self, path: &str) {
        let mut mask = self;
        for part in path.split(['.', '/']).filter(|part| *part != "*") {
            mask = mask.fields.entry(part.to_owned()).or_default();
        }
        mask.whole = true;
    }

    fn unknown(&self, known: &[&str]) -> Option<&str> {
        let mut fields = self.fields.keys();
        fields
            .find(|field| !known.contains(&field.as_str()))
            .map(String::as_str)
    }

    /// Removes what is not selected, in each element of a list.
    pub(super) fn apply(&self, value: &mut Value) {
        if self.whole {
            return;
        }
        match value {
            Value::Array(elements) => elements.iter_mut().for_each(|element| self.apply(element)),
            Value::Object(object) => {
                object.retain(|field, value| {
                    let mask = self.fields.get(field);
                    mask.inspect(|mask| mask.apply(value)).is_some()
                });
            }
            _ => {}
        }
    }
}

/// The mask as it was asked for.
pub(super) fn asked(call: &Call) -> Option<&str> {
    call.query("fields")
        .or_else(|| call.query("$fields"))
        .or_else(|| call.header("x-goog-fieldmask"))
        .filter(|text| !text.is_empty())
}
