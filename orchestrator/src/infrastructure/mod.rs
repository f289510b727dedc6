//! Infrastructure: checked at apply, asked for and freed as plans say, stored, shown, and looked for where nobody
//! should have any left.

mod calls;
pub(crate) mod check;
pub(crate) mod codec;
pub(crate) mod show;
pub(crate) mod sweep;

pub(crate) use calls::call;
pub(crate) use sweep::Leaks;

use drover_planner::State;
use drover_proto::platform::v1 as wire;

/// The kind under which the store keeps its records.
pub(crate) const KIND: &str = "infrastructure";

/// What the infrastructure of a cluster offers to nodes on a platform, that platform's first.
pub(crate) fn outputs(state: &State, platform: &str) -> Vec<wire::InfrastructureOutputs> {
    let own = |first: bool| {
        state
            .infrastructure
            .iter()
            .filter(move |((name, _), record)| (**name == *platform) == first && record.is_ready())
            .filter_map(|(_, record)| drover_convert::infrastructure::outputs(&record.outputs))
    };
    own(true).chain(own(false)).collect()
}
