//! What happens around a machine besides the API: the start of its image, the tokens of its owner, and calls that take
//! their time.

use std::time::Duration;

use serde_json::{Value, json};

use super::calls::operation;
use super::route::{Verb, route};
use super::state::{Instance, MAX_WAIT, State};
use crate::server::{Answer, Call};

/// Projects whose images have cloud-init or, with Fedora CoreOS, Ignition. Container-Optimized OS:
/// <https://cloud.google.com/container-optimized-os/docs/how-to/create-configure-instance#using_cloud-init_with_the_cloud_config_format>,
/// Ubuntu: <https://documentation.ubuntu.com/gcp/>, Fedora CoreOS:
/// <https://docs.fedoraproject.org/en-US/fedora-coreos/provisioning-gcp/>. The others have the guest agent only, which
/// knows no `user-data`: <https://cloud.google.com/compute/docs/instances/startup-scripts/linux>.
const CLOUD_INIT: [&str; 3] = ["ubuntu-os-cloud", "cos-cloud", "fedora-coreos-cloud"];

/// A call that is never answered, in effect.
const NEVER: Duration = Duration::from_secs(24 * 3600);

impl Instance {
    /// The user data that the image runs at its start.
    pub(super) fn runs(&self) -> Option<String> {
        let image = self
            .body
            .pointer("/disks/0/initializeParams/sourceImage")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let has_cloud_init = CLOUD_INIT
            .iter()
            .any(|project| image.contains(&format!("projects/{project}/")));
        // The guest agent is in those images, too, except for Fedora CoreOS.
        let script = self.metadata.get("startup-script");
        let script = script.filter(|_| !image.contains("projects/fedora-coreos-cloud/"));
        let data = self.metadata.get("user-data").filter(|_| has_cloud_init);
        data.or(script).cloned()
    }
}

impl State {
    /// The token endpoint of OAuth: access token `access-X` for the refresh token X.
    pub(super) fn token(&self, call: &Call) -> Answer {
        let form = call.form();
        let body = call.json().unwrap_or_default();
        let refresh = form
            .iter()
            .find(|(key, _)| key == "refresh_token")
            .map(|(_, value)| value.as_str())
            .or_else(|| body.get("refresh_token").and_then(Value::as_str))
            .unwrap_or_default();
        let token = format!("access-{refresh}");
        if !self.any_token && !self.tokens.contains(&token) {
            let error = json!({ "error": "invalid_grant", "error_description": "Token has been expired or revoked." });
            return Answer::json(400, &error);
        }
        let answer = json!({ "access_token": token, "token_type": "Bearer", "expires_in": 3600 });
        Answer::json(200, &answer)
    }

    /// The time until a call is answered.
    pub(super) fn answers_after(&self, call: &Call) -> Duration {
        let Some(route) = route(&call.method, &call.segments()) else {
            return Duration::ZERO;
        };
        if self.hanging.contains(&route.zone) {
            return NEVER;
        }
        if route.verb != Verb::OperationWait {
            return Duration::ZERO;
        }
        operation(self, &route).map_or(Duration::ZERO, |operation| {
            let left = operation
                .done_at
                .saturating_duration_since(tokio::time::Instant::now());
            left.min(MAX_WAIT)
        })
    }
}
