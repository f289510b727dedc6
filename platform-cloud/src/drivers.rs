//! The backends, one module each.

#[cfg(feature = "digitalocean")]
pub mod digitalocean;
pub mod local;
pub mod simulated;
