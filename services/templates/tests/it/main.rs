//! Template catalogues and their output.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod addons;
mod catalogue;
mod digest;
mod sole;
mod stores;
mod worker;
