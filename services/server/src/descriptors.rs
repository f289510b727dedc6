//! Service descriptors, limited to the services that are served: all of them would account for most of an agent's
//! memory.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Error, Result};
use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto};

/// Files that clients need although no service imports them: the error details.
const ALWAYS: &[&str] = &[
    "google/rpc/error_details.proto",
    "drover/common/v1/error_reason.proto",
];

/// The parts of a `FileDescriptorSet` that describe methods. Messages and comments, which make up most of a set, are
/// skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct Outline {
    #[prost(message, repeated, tag = "1")]
    files: Vec<FileOutline>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileOutline {
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "6")]
    services: Vec<ServiceDescriptorProto>,
}

/// Returns the services of descriptor sets by full name. Fails with `Internal` if one is corrupt.
pub(crate) fn services(encoded: &[&[u8]]) -> Result<BTreeMap<String, ServiceDescriptorProto>> {
    let mut services = BTreeMap::new();
    for bytes in encoded {
        for file in Outline::decode(*bytes).map_err(damaged)?.files {
            for service in file.services {
                let name = format!("{}.{}", file.package, service.name());
                services.entry(name).or_insert(service);
            }
        }
    }
    Ok(services)
}

fn damaged(error: prost::DecodeError) -> Error {
    Error::internal(format!("a descriptor set is damaged: {error}"))
}

/// Returns the files of the named services including all imports. Fails with `Internal` if a descriptor set is corrupt.
pub(crate) fn needed(encoded: &[&[u8]], services: &[&str]) -> Result<FileDescriptorSet> {
    let mut files = BTreeMap::new();
    for bytes in encoded {
        for file in FileDescriptorSet::decode(*bytes).map_err(damaged)?.file {
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
