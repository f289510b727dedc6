//! Nodes that are hosts of metal3: a node is a BareMetalHost that labels claim. Nothing is powered, installed or wiped
//! here; whoever runs on the host finds it by its labels.
//!
//! ```text
//! driver ─┬─ claims ── the hosts of one request: all or none
//!         │   ├─ choice ── candidates, after their life, networks and credentials
//!         │   └─ claim ─── what is written on a host, and removed again
//!         ├─ backend ─ the API server, and its watch
//!         ├─ lookups ─ hosts by a label, many calls together
//!         ├─ cache ─── hosts as they are known: nodes and inventory
//!         ├─ describe  what the platform is, and what it may
//!         └─ view ──── a host as node, as entry of the inventory, as foreign node
//! host, life ── what a BareMetalHost says
//! ```

mod backend;
mod cache;
mod choice;
mod claim;
mod claims;
mod controllers;
mod describe;
mod driver;
mod host;
mod life;
mod lookups;
mod secrets;
mod settings;
mod unfinished;
mod view;

pub use driver::HostDriver;
pub use settings::HostsSettings;
