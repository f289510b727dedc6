//! Common implementation of platform servers: the [`driver::Driver`] trait for backends, and above it the validation,
//! fences, idempotency, paging, watches and templates of `platform.v1`.

mod access;
pub mod batch;
mod changelog;
mod check;
pub mod clock;
mod discover;
pub mod driver;
pub mod feed;
mod fences;
pub mod identity;
pub mod infrastructure;
mod limits;
mod observer;
mod platform;
pub mod policy;
mod provision;
mod remove;
pub mod replicante;
mod server;
mod service;
pub mod storage;
pub mod templates;
mod texts;
mod watch;

pub use platform::Platform;
pub use policy::PolicySettings;
pub use replicante::ReplicanteSettings;
pub use server::PlatformServer;
