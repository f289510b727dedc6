//! drover-testing
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod platform;
pub mod processes;
pub mod store;
