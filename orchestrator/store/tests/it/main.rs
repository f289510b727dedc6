//! Stores of the record, and what becomes of them when their process dies.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod kill;
mod memory;
mod secrets;
mod sqlite;
mod sqlite_files;
