//! Built-in templates.

use drover_templates::{EmbeddedFile, embedded, stores};

/// The built-in template catalogue: `agent` (also if no store is named), `etcd`, `postgresql`, `redis`, and `redis` as
/// a StatefulSet.
pub const CATALOGUE: &[EmbeddedFile] = &[
    embedded!("../../catalogue/kubernetes/", "index.yaml"),
    embedded!("../../catalogue/kubernetes/", "parts.j2"),
    embedded!("../../catalogue/kubernetes/", "agent.yaml"),
    embedded!("../../catalogue/kubernetes/", "store.j2"),
    stores::NODE,
    embedded!("../../catalogue/kubernetes/", "etcd.yaml"),
    stores::ETCD,
    embedded!("../../catalogue/kubernetes/", "postgresql.yaml"),
    stores::POSTGRESQL,
    stores::POSTGRESQL_QUORUM,
    stores::POSTGRESQL_APPLICATION,
    stores::REDIS,
    embedded!("../../catalogue/kubernetes/", "redis.yaml"),
    embedded!("../../catalogue/kubernetes/", "stateful.yaml"),
];
