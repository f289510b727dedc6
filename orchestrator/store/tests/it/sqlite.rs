//! The conformance suite over SQLite.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use drover_store::SqliteBackend;
use drover_testing::store::conformance::Subject;

fn subject() -> Subject {
    let directory = tempfile::tempdir().unwrap();
    Subject::new(SqliteBackend::open(directory.path()).unwrap(), directory)
}

drover_testing::store_conformance!(crate::sqlite::subject);
