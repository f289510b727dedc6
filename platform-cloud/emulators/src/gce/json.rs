//! Formats of the API.

use serde_json::{Value, json};

use super::World;
use super::state::{Instance, Operation};
use crate::server::Answer;

/// An error in the API's format.
#[derive(Debug)]
pub(super) struct Problem {
    status: u16,
    reason: String,
    message: String,
}

impl Problem {
    pub(super) fn new(status: u16, reason: &str, message: String) -> Problem {
        Problem {
            status,
            reason: reason.to_owned(),
            message,
        }
    }

    pub(super) fn not_found(resource: &str) -> Problem {
        Problem::new(
            404,
            "notFound",
            format!("The resource '{resource}' was not found"),
        )
    }

    /// An invalid field of a body.
    pub(super) fn field(field: &str, value: &str, why: &str) -> Problem {
        Problem::new(
            400,
            "invalid",
            format!("Invalid value for field '{field}': '{value}'. {why}"),
        )
    }

    pub(super) fn answer(&self) -> Answer {
        let mut error = json!({
            "code": self.status,
            "message": self.message,
            "errors": [{ "message": self.message, "domain": "global", "reason": self.reason }],
        });
        if self.status == 401 {
            error["status"] = "UNAUTHENTICATED".into();
            error["errors"][0]["location"] = "Authorization".into();
            error["errors"][0]["locationType"] = "header".into();
        }
        Answer::json(self.status, &json!({ "error": error }))
    }
}

impl World {
    pub(super) fn link(&self, rest: &str) -> String {
        format!(
            "https://www.googleapis.com/compute/v1/projects/{}/{rest}",
            self.settings.project
        )
    }

    pub(super) fn instance_json(&self, instance: &Instance) -> Value {
        let mut value = instance.body.clone();
        let zone = &instance.zone;
        let status = instance.status(&self.settings);
        let metadata: Vec<Value> = instance
            .metadata
            .iter()
            .map(|(key, value)| json!({ "key": key, "value": value }))
            .collect();
        value["kind"] = "compute#instance".into();
        value["id"] = instance.id.to_string().into();
        value["name"] = instance.name.clone().into();
        value["zone"] = self.link(&format!("zones/{zone}")).into();
        value["selfLink"] = self
            .link(&format!("zones/{zone}/instances/{}", instance.name))
            .into();
        value["status"] = status.into();
        value["creationTimestamp"] = instance.created.clone().into();
        value["labelFingerprint"] = instance.label_fingerprint().into();
        value["metadata"] = json!({ "kind": "compute#metadata", "fingerprint": instance.metadata_fingerprint(), "items": metadata });
        value["deletionProtection"] = instance.protected.into();
        if !instance.labels.is_empty() {
            value["labels"] = json!(instance.labels);
        }
        let has_addresses = status != "PROVISIONING";
        if let Some(interfaces) = value["networkInterfaces"].as_array_mut() {
            for interface in interfaces {
                interface["name"] = "nic0".into();
                interface["networkIP"] = if has_addresses {
                    instance.internal_ip().into()
                } else {
                    Value::Null
                };
                let external = has_addresses && status != "TERMINATED";
                if let Some(Value::Array(configs)) = interface.get_mut("accessConfigs") {
                    for config in configs {
                        config["natIP"] = if external {
                            instance.external_ip().into()
                        } else {
                            Value::Null
                        };
                    }
                }
            }
        }
        value
    }

    pub(super) fn operation_json(&self, operation: &Operation, done: bool) -> Value {
        let zone = &operation.zone;
        let name = format!("operation-{}", operation.id);
        let mut value = json!({
            "kind": "compute#operation",
            "id": operation.id.to_string(),
            "name": name,
            "zone": self.link(&format!("zones/{zone}")),
            "operationType": operation.kind,
            "targetLink": self.link(&format!("zones/{zone}/instances/{}", operation.target)),
            "status": if done { "DONE" } else { "RUNNING" },
            "progress": if done { 100 } else { 0 },
            "insertTime": operation.insert_time,
            "startTime": operation.insert_time,
            "selfLink": self.link(&format!("zones/{zone}/operations/{name}")),
            "user": "somebody@example.com",
        });
        if operation.target_id != 0 {
            value["targetId"] = operation.target_id.to_string().into();
        }
        if done {
            value["endTime"] = operation.insert_time.clone().into();
            if let Some((code, message)) = &operation.error {
                let quota = code == "QUOTA_EXCEEDED";
                value["error"] = json!({ "errors": [{ "code": code, "message": message }] });
                value["httpErrorStatusCode"] = if quota { 403 } else { 503 }.into();
                value["httpErrorMessage"] = if quota {
                    "FORBIDDEN"
                } else {
                    "SERVICE UNAVAILABLE"
                }
                .into();
            }
        }
        value
    }
}
