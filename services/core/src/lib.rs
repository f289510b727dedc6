//! What a cluster is: names, ids, specs, node records, observations, validation and errors.
//!
//! Pure: no I/O, no clock, no async runtime, no gRPC.

pub mod allow;
pub mod error;
pub mod infrastructure;
pub mod name;
pub mod node;
pub mod secrecy;
pub mod spec;
pub mod storage;

pub use error::{Class, Error, Reason, Result};
pub use name::Sym;
pub use node::{Millis, Node, NodeState, Phase};
