//! Built-in templates.

use drover_templates::{EmbeddedFile, stores};

/// The built-in template catalogue: `agent` (also if no store is named), `etcd`, `postgresql`, `redis`, and `redis` as
/// a StatefulSet.
pub const CATALOGUE: &[EmbeddedFile] = &[
    EmbeddedFile {
        name: "index.yaml",
        content: include_str!("../../catalogue/kubernetes/index.yaml"),
    },
    EmbeddedFile {
        name: "parts.j2",
        content: include_str!("../../catalogue/kubernetes/parts.j2"),
    },
    EmbeddedFile {
        name: "agent.yaml",
        content: include_str!("../../catalogue/kubernetes/agent.yaml"),
    },
    EmbeddedFile {
        name: "store.j2",
        content: include_str!("../../catalogue/kubernetes/store.j2"),
    },
    stores::NODE,
    EmbeddedFile {
        name: "etcd.yaml",
        content: include_str!("../../catalogue/kubernetes/etcd.yaml"),
    },
    stores::ETCD,
    EmbeddedFile {
        name: "postgresql.yaml",
        content: include_str!("../../catalogue/kubernetes/postgresql.yaml"),
    },
    stores::POSTGRESQL,
    stores::POSTGRESQL_QUORUM,
    stores::REDIS,
    EmbeddedFile {
        name: "redis.yaml",
        content: include_str!("../../catalogue/kubernetes/redis.yaml"),
    },
    EmbeddedFile {
        name: "stateful.yaml",
        content: include_str!("../../catalogue/kubernetes/stateful.yaml"),
    },
];
