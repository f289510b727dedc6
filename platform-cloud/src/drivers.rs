//! The backends, one module each.

#[cfg(feature = "digitalocean")]
pub mod digitalocean;
pub mod local;
#[cfg(feature = "metal")]
pub mod metal;
pub mod simulated;
