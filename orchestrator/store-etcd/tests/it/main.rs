//! The backend over a real etcd.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod login;
mod maintain;
mod members;
mod one;
mod users;
