//! The backends, one module each.

pub mod local;
pub mod simulated;
