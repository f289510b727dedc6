//! Hostile input for every door of Drover, and what may not come of it: a panic, the death of a process, an answer that
//! never comes or is that of a defect, memory that is not given back, a secret that was planted.
//!
//! `cargo run --release -p drover-fuzz -- --inputs 10000000`. Each input follows from the seed and its number alone, so that
//! what was found can be had again; what the servers hold by then follows from the inputs before it.
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it fails when it cannot go on"
)]

mod calls;
mod http;
mod messages;
mod run;
mod texts;
mod watch;
mod world;

pub use run::{Finding, Plan, Report, Surface, run};
