//! System tests: real processes, a real Kubernetes, real stores; and simulations with crash points.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod abandoned;
mod addons;
mod adoption;
mod backends;
mod backup;
mod circumstances;
mod clouds;
mod collector;
mod commands;
mod crash_points;
mod embedded;
mod faults;
mod healing;
mod hosts;
mod infrastructure;
mod kill;
mod kubelet;
mod kubernetes;
mod order;
mod prometheus;
mod python;
mod real;
mod replicas;
mod resilience;
mod retention;
mod rollout;
mod secrecy;
mod standby;
mod storage;
mod stores;
mod traces;
mod truth;
