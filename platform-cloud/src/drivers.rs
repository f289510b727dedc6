//! The backends, one module each.

#[cfg(feature = "aws")]
pub mod aws;
pub mod local;
pub mod simulated;
