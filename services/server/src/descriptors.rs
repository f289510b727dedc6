//! What is known of the services: only of those that are served, because all of it would be most of the memory of an
//! agent.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Error, Result};
use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet, ServiceDescriptorProto};

/// Files that no service imports and clients want all the same: what the details of errors are.
const ALWAYS: &[&str] = &[
    "google/rpc/error_details.proto",
    "drover/common/v1/error_reason.proto",
];

/// What of a `FileDescriptorSet` says how methods are called. Most of a set is messages and comments, which are skipped.
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

/// The services of descriptor sets, by full name. Errors: `Internal` if one is damaged.
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

/// The files of the named services with all that they import. Errors: `Internal` if a descriptor set is damaged.
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
