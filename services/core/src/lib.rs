//! The domain model of clusters: names, ids, specs, node records, observations, validation and errors.
//!
//! Pure: no I/O, no clock, no async runtime, no gRPC.

pub mod addon;
pub mod allow;
mod back_off;
pub mod error;
pub mod infrastructure;
pub mod name;
pub mod node;
mod rare;
pub mod registration;
pub mod resource;
pub mod secrecy;
pub mod secret;
pub mod sip;
pub mod spec;
pub mod ssh;
pub mod storage;
mod urgency;
pub mod words;

pub use back_off::{back_off, back_off_for, millis};
pub use error::{Class, Error, Reason, Result};
pub use name::Sym;
pub use node::{Millis, Node, NodeState, Phase};
pub use rare::{Empty, Rare};
pub use urgency::Urgency;
