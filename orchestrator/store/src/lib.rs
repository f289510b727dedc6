//! The durable state of the orchestrator, and its consistency.
//!
//! Two layers: a [`Backend`] is a small ordered key-value store (SQLite here, an in-memory one in `drover-testing`);
//! [`Store`] adds clusters, nodes, events and ownership, and is implemented once over any backend.

pub mod backend;
mod clock;
pub mod digest;
pub mod history;
pub mod keys;
pub mod seal;
pub mod sqlite;
mod store;
mod value;

pub use backend::{Backend, Lane, Revision};
pub use bytes::Bytes;
pub use clock::Clock;
pub use digest::DigestKey;
pub use seal::Keyring;
pub use sqlite::SqliteBackend;
pub use store::{
    Along, Changed, Changes, ClusterRow, Decoder, EventPage, EventWatch, Finish, Former, Loader,
    MAX_STEP_NODES, MAX_USER_DATA, Me, NodeRow, Owned, ReplicaRow, ResourceRow, SHARDS, Shards,
    Step, StepDone, Store, Summary, Unread, Update, UserData, Vacant, Versioned, backup, import,
    restore, shard_of,
};
/// Registers the descriptions of the store's metrics for `/metrics`. Call it after installing a recorder.
pub fn describe_metrics() {
    metrics::describe_histogram!(
        "drover_store_commit_duration_seconds",
        "How long the disk took to make a batch of transactions durable."
    );
    metrics::describe_histogram!(
        "drover_store_transaction_duration_seconds",
        "How long transactions took, from their wait for the writer to their durability, by lane."
    );
    metrics::describe_gauge!(
        "drover_store_queue_depth",
        "Transactions that wait for the writer, by lane."
    );
    metrics::describe_counter!(
        "drover_store_failures_total",
        "Batches that could not be written, by reason: storage_full, sync, unavailable."
    );
    for reason in ["storage_full", "sync", "unavailable"] {
        metrics::counter!("drover_store_failures_total", "reason" => reason).increment(0);
    }
}

pub use value::{
    Desired, EventRow, Head, NewEvent, Pause, PlatformRow, ReplicaReport, RevisionRow, Tombstone,
};
