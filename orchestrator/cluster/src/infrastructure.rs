//! Infrastructure in the record: what nodes are told of it, how it is stored, and the events of its changes.

pub mod codec;
mod told;

use drover_core::{Error, Result};
use drover_planner::State;
use drover_proto::platform::v1 as wire;
use prost::Message;

pub use told::{named, told};

/// Row kind of infrastructure records in the store.
pub const KIND: &str = "infrastructure";

/// The infrastructure outputs of a cluster for nodes on a platform, that platform's first.
pub fn outputs(state: &State, platform: &str) -> Vec<wire::InfrastructureOutputs> {
    let own = |first: bool| {
        state
            .infrastructure
            .iter()
            .filter(move |((name, _), record)| (**name == *platform) == first && record.is_ready())
            .filter_map(|(_, record)| drover_convert::infrastructure::outputs(&record.outputs))
    };
    own(true).chain(own(false)).collect()
}

/// Decodes a stored spec.
pub fn decode(body: &[u8]) -> Result<wire::InfrastructureSpec> {
    wire::InfrastructureSpec::decode(body)
        .map_err(|_| Error::internal("the stored infrastructure cannot be read"))
}

/// Summary of the parts that a stored spec requests: `network, endpoint`.
pub fn parts(body: &[u8]) -> String {
    let spec = decode(body).unwrap_or_default();
    let parts: Vec<&str> = [
        ("network", spec.network.is_some()),
        ("endpoint", spec.endpoint.is_some()),
        ("firewall", spec.firewall.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, wanted)| wanted.then_some(name))
    .collect();
    if parts.is_empty() {
        "nothing but properties".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use drover_core::infrastructure::{Infrastructure, ResourcePhase};
    use prost::Message;

    use super::*;

    #[test]
    fn nodes_are_told_of_their_own_platform_first_and_of_what_is_ready() {
        let mut state = State::default();
        for (platform, phase) in [
            ("a", ResourcePhase::Ready),
            ("b", ResourcePhase::Ready),
            ("c", ResourcePhase::Pending),
        ] {
            let offers = wire::InfrastructureOutputs {
                platform: platform.into(),
                network_id: format!("net-of-{platform}"),
                ..Default::default()
            };
            let record = Infrastructure {
                phase,
                outputs: offers.encode_to_vec().into(),
                ..Infrastructure::default()
            };
            state
                .infrastructure
                .insert((platform.into(), "u".into()), record);
        }
        let told = |platform: &str| -> Vec<String> {
            let outputs = outputs(&state, platform).into_iter();
            outputs.map(|one| one.network_id).collect()
        };
        assert_eq!(told("b"), ["net-of-b", "net-of-a"]);
        assert_eq!(told("other"), ["net-of-a", "net-of-b"]);
    }
}
