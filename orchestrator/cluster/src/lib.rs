//! Clusters in memory: what users desire, what is recorded in the store, what platforms show, and which calls are in
//! flight.
//!
//! [`ClusterState`] is the only owner of all of it: others read it, and change it only by telling it what happened: a
//! node was [observed](ClusterState::observe), a call [ended](ClusterState::call_ended), a step of the store
//! [became durable](ClusterState::commit). No I/O, no runtime, no clock.

mod absence;
mod calls;
mod cluster;
mod clusters;
pub mod codec;
mod counts;
mod desired;
pub mod events;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod former;
mod heard;
mod observation;
mod order;
mod preview;
mod probed;
pub mod request;
mod resolved;
pub mod resources;
mod state;
mod step;
mod suggestions;
pub mod template;
mod times;

pub use absence::{CompleteRead, Removed, SnapshotEnd};
pub use calls::{CallEnd, RoleChangeFailure, Subject};
pub use cluster::Cluster;
pub use clusters::Clusters;
pub use codec::Interner;
pub use counts::NodeCounts;
pub use desired::{AcceptedLosses, Repairs, Restart, Restarts, order_adoption};
pub use former::{FormerGroup, Named};
pub use heard::{Heard, Unsaid};
pub use observation::{Effect, Observation, Observed, Source};
pub use preview::Preview;
pub use probed::{ProbeOutcome, Probed};
pub use resolved::{Resolved, stored_spec};
pub use state::{ClusterState, Fresh};
pub use step::{Stepped, Track};
pub use suggestions::Suggestions;
