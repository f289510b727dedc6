//! The backends, one module each.
pub mod local;
#[cfg(feature = "metal")]
pub mod metal;
pub mod simulated;
