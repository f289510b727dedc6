//! drover-testing
pub mod platform;
pub mod store;
