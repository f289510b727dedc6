//! What the state of a host means for a node on it, and for whoever wants to claim it.

use std::time::Duration;

use drover_core::error::cut;
use drover_proto::platform::v1::NodePhase;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::host::BareMetalHost;

/// Annotations under which metal3 leaves a host alone.
const HELD: [&str; 2] = [
    "baremetalhost.metal3.io/paused",
    "baremetalhost.metal3.io/detached",
];

/// The life of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It does what it should.
    Well,
    /// Somebody is at work there, and nobody is sick.
    Busy(String),
    /// It reports an error.
    Sick(String),
    /// It is off.
    Off(String),
    /// It is being deleted.
    Leaving(String),
}

impl Life {
    /// The life of a host that has been off against its spec since `off_since`.
    pub(super) fn of(
        host: &BareMetalHost,
        off_since: Option<Instant>,
        power_timeout: Duration,
    ) -> Self {
        let nothing = super::host::Status::default();
        let status = host.status.as_ref().unwrap_or(&nothing);
        let state = status.provisioning.state.as_str();
        if host.metadata.deletion_timestamp.is_some() {
            return Self::Leaving("it is being deleted".to_owned());
        }
        if matches!(state, "deleting" | "powering off before delete") {
            return Self::Leaving(format!("its state is {state:?}"));
        }
        if status.operational_status == "error" {
            let why = match status.error_message.as_str() {
                "" => "it reports an error".to_owned(),
                message => cut(format!("it reports an error: {message}")),
            };
            return Self::Sick(why);
        }
        if !host.spec.online {
            return Self::Off("it is to be off (spec.online)".to_owned());
        }
        if off_since.is_some_and(|since| since.elapsed() >= power_timeout) {
            return Self::Off("it is off and should be on".to_owned());
        }
        if matches!(
            status.operational_status.as_str(),
            "delayed" | "servicing" | "discovered"
        ) {
            return Self::Busy(format!("it is {}", status.operational_status));
        }
        match state {
            "" | "unmanaged" | "externally provisioned" | "available" | "ready" | "provisioned" => {
                Self::Well
            }
            // Also states that a newer metal3 may have.
            other => Self::Busy(format!("its state is {other:?}")),
        }
    }

    /// Whether the host is off though it should be on.
    pub(super) fn is_power_lost(host: &BareMetalHost) -> bool {
        let on = host.status.as_ref().and_then(|status| status.powered_on);
        host.spec.online && on == Some(false)
    }

    pub(super) fn phase(&self) -> NodePhase {
        match self {
            Self::Well | Self::Busy(_) | Self::Sick(_) => NodePhase::Running,
            Self::Off(_) => NodePhase::Stopped,
            Self::Leaving(_) => NodePhase::Failed,
        }
    }

    /// Absent where nothing is known: the group's own probe decides.
    pub(super) fn ready(&self) -> Option<bool> {
        match self {
            Self::Well | Self::Busy(_) => None,
            Self::Sick(_) | Self::Off(_) | Self::Leaving(_) => Some(false),
        }
    }

    pub(super) fn message(&self) -> &str {
        match self {
            Self::Well => "",
            Self::Busy(why) | Self::Sick(why) | Self::Off(why) | Self::Leaving(why) => why,
        }
    }
}

/// Why nobody may claim the host now, whoever they are. `None`: it can be claimed.
pub(super) fn obstacle(host: &BareMetalHost, life: &Life) -> Option<String> {
    if let Some(consumer) = &host.spec.consumer_ref {
        let mut parts = vec![consumer.kind.as_str()];
        parts.extend([consumer.namespace.as_str(), consumer.name.as_str()]);
        parts.retain(|part| !part.is_empty());
        return Some(format!("it is used by {}", parts.join(" ")));
    }
    let annotations = host.annotations();
    if let Some(held) = HELD.iter().find(|key| annotations.contains_key(**key)) {
        return Some(format!("it has the annotation {held}"));
    }
    match life {
        Life::Well => None,
        other => Some(other.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use drover_core::error::MAX_MESSAGE;

    use super::*;
    use crate::hosts::host::Status;

    #[test]
    fn an_error_of_metal3_is_cut_at_the_length_of_messages() {
        let status = Status {
            operational_status: "error".to_owned(),
            error_message: "é".repeat(100_000),
            ..Status::default()
        };
        let host = BareMetalHost {
            status: Some(status),
            ..BareMetalHost::default()
        };
        let life = Life::of(&host, None, Duration::MAX);
        let message = life.message();
        assert!(message.len() <= MAX_MESSAGE, "{}", message.len());
        assert!(message.starts_with("it reports an error: éé"));
    }
}
