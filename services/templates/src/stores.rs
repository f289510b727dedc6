//! What the nodes of the shipped stores run, wherever they are: one script a store, for the catalogue of any platform that
//! tells its nodes of themselves as the local one does (`DROVER_…` variables, a file with the role, one with the peers).

use crate::EmbeddedFile;

/// What the scripts of all stores have in common; they include it.
pub const NODE: EmbeddedFile = EmbeddedFile {
    name: "node.sh.j2",
    content: include_str!("../stores/node.sh.j2"),
};

/// A member of etcd: `run`, and `leave` as its hook before it goes.
pub const ETCD: EmbeddedFile = EmbeddedFile {
    name: "etcd.sh.j2",
    content: include_str!("../stores/etcd.sh.j2"),
};

/// A server of PostgreSQL: `run`, `promote` as its hook when it becomes active, and `stop`.
pub const POSTGRESQL: EmbeddedFile = EmbeddedFile {
    name: "postgresql.sh.j2",
    content: include_str!("../stores/postgresql.sh.j2"),
};

/// A server of Redis: `run`, and `promote` as its hook when it becomes active.
pub const REDIS: EmbeddedFile = EmbeddedFile {
    name: "redis.sh.j2",
    content: include_str!("../stores/redis.sh.j2"),
};
