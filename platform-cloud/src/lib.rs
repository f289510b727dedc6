//! A platform server: local processes, simulated nodes and clouds behind one [`driver::Driver`] trait, with everything
//! that platforms have in common written once above it.

mod access;
pub mod batch;
mod changelog;
mod check;
pub mod clock;
pub mod cloud;
mod discover;
pub mod driver;
pub mod drivers;
pub mod feed;
mod fences;
pub mod identity;
pub mod infrastructure;
mod limits;
mod observer;
mod placement;
mod platform;
mod provision;
mod remove;
mod server;
pub mod service;
pub mod templates;
mod watch;

pub use platform::Platform;
pub use server::{DriverSettings, PlatformServer, Settings};
