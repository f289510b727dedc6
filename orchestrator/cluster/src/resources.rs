//! Infrastructure and addons in the record: what nodes are told of it, how it is stored, and the events of its changes.

pub mod codec;
mod told;

use drover_core::{Error, Result, resource::ResourceKey};
use drover_planner::State;
use drover_proto::platform::v1 as wire;
use prost::Message;

pub use told::{named, told};

/// Row kinds of the records in the store.
pub const KINDS: [&str; 2] = [INFRASTRUCTURE, ADDON];
const INFRASTRUCTURE: &str = "infrastructure";
const ADDON: &str = "addon";

/// The infrastructure outputs of a cluster for nodes on a platform, that platform's first.
pub fn outputs(state: &State, platform: &str) -> Vec<wire::InfrastructureOutputs> {
    let own = |first: bool| {
        state
            .resources
            .iter()
            .filter(|(key, _)| !key.is_addon())
            .filter(move |(key, record)| (*key.platform == *platform) == first && record.is_ready())
            .filter_map(|(_, record)| drover_convert::infrastructure::outputs(&record.outputs))
    };
    own(true).chain(own(false)).collect()
}

/// Decodes a stored spec.
pub fn decode(body: &[u8]) -> Result<wire::InfrastructureSpec> {
    wire::InfrastructureSpec::decode(body)
        .map_err(|_| Error::internal("the stored infrastructure cannot be read"))
}

/// Summary of what a stored spec requests: `network, endpoint`, `load balancer front`.
pub fn parts(key: &ResourceKey, body: &[u8]) -> String {
    if let Some(name) = key.addon_name() {
        let spec = drover_convert::addon::decode(body).unwrap_or_default();
        let kind = drover_convert::addon::kind_of(&spec);
        return format!("{} {name}", drover_convert::addon::word(kind));
    }
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
    use drover_core::resource::{ResourceKey, ResourcePhase, ResourceRecord};
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
            let record = ResourceRecord {
                phase,
                outputs: offers.encode_to_vec().into(),
                ..ResourceRecord::default()
            };
            state
                .resources
                .insert(ResourceKey::infrastructure(platform, "u"), record);
        }
        let told = |platform: &str| -> Vec<String> {
            let outputs = outputs(&state, platform).into_iter();
            outputs.map(|one| one.network_id).collect()
        };
        assert_eq!(told("b"), ["net-of-b", "net-of-a"]);
        assert_eq!(told("other"), ["net-of-a", "net-of-b"]);
    }
}
