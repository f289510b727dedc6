//! Scripts that run the shipped stores on any platform: one per store, for the catalogues of platforms that inform
//! nodes in the same way as the local one (`DROVER_…` variables, a role file and a peers file).

use crate::{EmbeddedFile, embedded};

/// The part that the scripts of all stores include.
pub const NODE: EmbeddedFile = embedded!("../stores/", "node.sh.j2");

/// An etcd member: `run`, and `leave` as its pre-stop hook.
pub const ETCD: EmbeddedFile = embedded!("../stores/", "etcd.sh.j2");

/// A PostgreSQL server: `run`, `promote` as its post-promote hook, and `stop`.
pub const POSTGRESQL: EmbeddedFile = embedded!("../stores/", "postgresql.sh.j2");

/// The part of [`POSTGRESQL`] that decides who is counted, whom a standby follows, and whether one is promoted.
pub const POSTGRESQL_QUORUM: EmbeddedFile = embedded!("../stores/", "postgresql-quorum.sh.j2");

/// The part of [`POSTGRESQL`] that keeps the user, password and database of an application.
pub const POSTGRESQL_APPLICATION: EmbeddedFile =
    embedded!("../stores/", "postgresql-application.sh.j2");

/// A Redis server: `run`, and `promote` as its post-promote hook.
pub const REDIS: EmbeddedFile = embedded!("../stores/", "redis.sh.j2");
