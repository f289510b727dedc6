//! The templates that are built in.

use drover_templates::EmbeddedFile;

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        &[$(EmbeddedFile {
            name: $name,
            content: include_str!(concat!("../catalogue/kubernetes/", $name)),
        }),+]
    };
}

/// The files of `catalogue/kubernetes`.
pub const FILES: &[EmbeddedFile] = files![
    "index.yaml",
    "agent.yaml",
    "parts.j2",
    "redis.yaml",
    "stateful.yaml",
];
