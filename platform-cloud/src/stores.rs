//! Templates that are built in for clouds: machines whose user data install a store.

use std::{path::Path, sync::Arc};

use drover_core::Result;
use drover_platform::templates::Templates;
use drover_templates::{Catalogue, EmbeddedFile, embedded, stores};

/// The templates of a cloud: those of a directory first, then the built-in ones.
///
/// # Errors
/// `Invalid` with file, line and column; `Precondition` if the directory cannot be read.
pub fn templates(directory: Option<&Path>) -> Result<Templates> {
    let catalogue = Catalogue::open(CATALOGUE, directory)?;
    Ok(Templates::Catalogue(Arc::new(catalogue)))
}

const CATALOGUE: &[EmbeddedFile] = &[
    embedded!("../catalogue/cloud/", "index.yaml"),
    embedded!("../catalogue/cloud/", "machine.yaml"),
    embedded!("../catalogue/cloud/", "machine.sh.j2"),
    embedded!("../catalogue/cloud/", "kubernetes.yaml"),
    stores::NODE,
    embedded!("../catalogue/cloud/", "etcd.yaml"),
    stores::ETCD,
    embedded!("../catalogue/cloud/", "postgresql.yaml"),
    stores::POSTGRESQL,
    stores::POSTGRESQL_QUORUM,
    stores::POSTGRESQL_APPLICATION,
    embedded!("../catalogue/cloud/", "redis.yaml"),
    stores::REDIS,
];
