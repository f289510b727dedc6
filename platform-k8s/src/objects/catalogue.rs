//! Templates that are built in.

use drover_templates::EmbeddedFile;

/// The catalogue that is built into the platform: `agent` (also where no store is named), `redis`, and `redis` as a
/// StatefulSet.
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
        name: "redis.yaml",
        content: include_str!("../../catalogue/kubernetes/redis.yaml"),
    },
    EmbeddedFile {
        name: "stateful.yaml",
        content: include_str!("../../catalogue/kubernetes/stateful.yaml"),
    },
];
