//! Fuzzing of all entry points of Drover, checking for panics, crashes, responses that never arrive or report an
//! internal error, memory leaks, and leaks of a planted secret.
//!
//! `cargo run --release -p drover-fuzz -- --inputs 10000000`. Each input depends only on the seed and its number, so
//! that findings can be reproduced; the state of the servers depends on the preceding inputs.
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
