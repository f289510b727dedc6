//! Conformance suites, fault injection and fixtures for the tests of other crates; a dev-dependency only.
#[cfg(feature = "certs")]
pub mod certs;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod history;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "needles")]
pub mod needles;
pub mod platform;
pub mod ports;
pub mod processes;
pub mod resources;
pub mod seed;
pub mod store;
pub mod wait;
