//! Templates that are built in for clouds: machines whose user data install a store.

use std::{path::Path, sync::Arc};

use drover_core::Result;
use drover_platform::templates::Templates;
use drover_templates::{Catalogue, EmbeddedFile, stores};

/// The templates of a cloud: those of a directory first, then the built-in ones.
///
/// # Errors
/// `Invalid` with file, line and column; `Precondition` if the directory cannot be read.
pub fn templates(directory: Option<&Path>) -> Result<Templates> {
    let catalogue = Catalogue::open(CATALOGUE, directory)?;
    Ok(Templates::Catalogue(Arc::new(catalogue)))
}

const CATALOGUE: &[EmbeddedFile] = &[
    EmbeddedFile {
        name: "index.yaml",
        content: include_str!("../catalogue/cloud/index.yaml"),
    },
    EmbeddedFile {
        name: "machine.yaml",
        content: include_str!("../catalogue/cloud/machine.yaml"),
    },
    EmbeddedFile {
        name: "machine.sh.j2",
        content: include_str!("../catalogue/cloud/machine.sh.j2"),
    },
    EmbeddedFile {
        name: "kubernetes.yaml",
        content: include_str!("../catalogue/cloud/kubernetes.yaml"),
    },
    stores::NODE,
    EmbeddedFile {
        name: "etcd.yaml",
        content: include_str!("../catalogue/cloud/etcd.yaml"),
    },
    stores::ETCD,
    EmbeddedFile {
        name: "postgresql.yaml",
        content: include_str!("../catalogue/cloud/postgresql.yaml"),
    },
    stores::POSTGRESQL,
    stores::POSTGRESQL_QUORUM,
    EmbeddedFile {
        name: "redis.yaml",
        content: include_str!("../catalogue/cloud/redis.yaml"),
    },
    stores::REDIS,
];
