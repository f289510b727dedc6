//! Common implementation of platform servers: the [`driver::Driver`] trait for backends, and above it the validation,
//! fences, idempotency, paging, watches and templates of `platform.v1`.

mod access;
pub mod addons;
pub mod batch;
mod changelog;
pub mod check;
pub mod clock;
mod discover;
pub mod driver;
pub mod feed;
mod fences;
pub mod identity;
pub mod infrastructure;
pub mod inventory;
pub mod limits;
pub mod locks;
pub mod observer;
mod owner;
mod pages;
pub mod placement;
mod platform;
pub mod policy;
pub mod provision;
mod remove;
mod server;
mod service;
pub mod storage;
pub mod templates;
mod texts;
mod watch;

pub use platform::Platform;
pub use policy::PolicySettings;
pub use server::PlatformServer;
