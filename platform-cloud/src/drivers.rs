//! The backends, one module each.

#[cfg(feature = "gcp")]
pub mod gcp;
pub mod local;
pub mod simulated;
