//! What the orchestrator keeps, and how that stays right.
//!
//! Two layers: a [`Backend`] is a small ordered key-value store (SQLite here, a memory one in `drover-testing`);
//! [`Store`] knows clusters, nodes, events and ownership, and is written once over any backend.

pub mod backend;
pub mod history;
pub mod keys;
pub mod sqlite;
mod store;
mod value;

pub use backend::{Backend, Lane, Revision};
pub use bytes::Bytes;
pub use sqlite::SqliteBackend;
pub use store::{
    Changed, Changes, ClusterRow, Decoder, EventPage, EventWatch, Finish, Loader, MAX_STEP_NODES,
    MAX_USER_DATA, NodeRow, Owned, ResourceRow, SHARDS, Shards, Step, StepDone, Store, Summary,
    Update, UserData, Versioned, import, restore, shard_of,
};
pub use value::{Desired, EventRow, Head, NewEvent, Pause, PlatformRow, RevisionRow, Tombstone};
