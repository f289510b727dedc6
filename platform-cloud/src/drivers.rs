//! The backends, one module each.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "digitalocean")]
pub mod digitalocean;
#[cfg(feature = "gcp")]
pub mod gcp;
pub mod local;
#[cfg(feature = "metal")]
pub mod metal;
pub mod simulated;
