//! A platform server: local processes, simulated nodes and clouds, each a driver of `drover_platform`.

pub mod cloud;
pub mod drivers;
mod server;
pub mod stores;

pub use server::{CloudBackend, DriverSettings, PlatformServer, Settings};
