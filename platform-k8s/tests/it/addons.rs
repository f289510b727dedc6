//! Addons at a real API server. Nodes there are kwok's: pods only say that they run, and nothing logs. What runs is in
//! `kubelet`.

mod balancer;
mod bench;
mod by_hand;
mod crashes;
mod faults;
mod kubelet;
mod others;
mod provider;
mod refused;
mod rights;
mod script;
mod workloads;

use bench::{Bench, mapping, target};
pub(crate) use others::KEY;
