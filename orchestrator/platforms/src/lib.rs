//! The registered platforms: how they are reached and followed, what they show, and when they may be called.

pub mod connect;
mod listener;
mod platform;
mod platforms;
mod registered;
pub mod registration;
mod watch;

pub use connect::{Connector, PlatformTlsSettings};
pub use listener::{Foreign, Listener};
pub use platform::{BreakerChange, Platform, PlatformHealth, has, is_local};
pub use platforms::Platforms;
pub use registered::Registered;
pub use registration::Registration;
pub use watch::follow;
