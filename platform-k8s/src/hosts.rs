//! Nodes that are hosts of metal3: a node is a BareMetalHost that labels claim. Nothing is powered, installed or wiped
//! here; whoever runs on the host finds it by its labels.
//!
//! ```text
//! driver ─┬─ choice ── candidates, after their life, networks and credentials
//!         ├─ claim ─── what is written on a host, and removed again
//!         ├─ cache ─── one watch, whose hosts are nodes and inventory
//!         └─ view ──── a host as node, as entry of the inventory, as foreign node (foreign)
//! host, life, network ── what a BareMetalHost and its Secrets say
//! ```

mod cache;
mod choice;
mod claim;
mod driver;
mod foreign;
mod host;
mod life;
mod network;
mod secrets;
mod settings;
mod view;

pub use driver::HostDriver;
pub use settings::HostsSettings;
