//! What is known of the services: only of those that are served, because all of it would be most of the memory of an
//! agent.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Error, Result};
use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};

/// Files that no service imports and clients want all the same: what the details of errors are.
const ALWAYS: &[&str] = &[
    "google/rpc/error_details.proto",
    "drover/common/v1/error_reason.proto",
];

/// The files of the named services with all that they import. Errors: `Internal` if a descriptor set is damaged.
pub(crate) fn needed(encoded: &[&[u8]], services: &[&str]) -> Result<FileDescriptorSet> {
    let mut files = BTreeMap::new();
    for bytes in encoded {
        let set = FileDescriptorSet::decode(*bytes)
            .map_err(|e| Error::internal(format!("a descriptor set is damaged: {e}")))?;
        for file in set.file {
            files.entry(file.name().to_owned()).or_insert(file);
        }
    }
    let serves = |file: &FileDescriptorProto| {
        file.service.iter().any(|service| {
            services.contains(&format!("{}.{}", file.package(), service.name()).as_str())
        })
    };
    let mut open: Vec<String> = files
        .values()
        .filter(|file| serves(file))
        .map(|file| file.name().to_owned())
        .collect();
    open.extend(ALWAYS.iter().map(ToString::to_string));
    let mut wanted = BTreeSet::new();
    while let Some(name) = open.pop() {
        if let Some(file) = files.get(&name) {
            open.extend(
                file.dependency
                    .iter()
                    .filter(|import| !wanted.contains(*import))
                    .cloned(),
            );
        }
        wanted.insert(name);
    }
    Ok(FileDescriptorSet {
        file: files
            .into_values()
            .filter(|file| wanted.contains(file.name()))
            .collect(),
    })
}
