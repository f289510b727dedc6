//! The store's backends, and the effect of a crash on them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod kill;
mod memory;
mod mirror;
mod secrets;
mod sqlite;
mod sqlite_files;
