//! Compiles the protos with protox, so that no protoc is needed, and keeps their comments for reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;
use protox::prost_reflect::{DescriptorPool, FieldDescriptor};

/// Every file that holds a service; the others are imported by these.
const ROOTS: &[&str] = &[
    "drover/agent/v1/agent_service.proto",
    "drover/common/v1/error_reason.proto",
    "drover/kubernetes/v1/configuration_service.proto",
    "drover/kubernetes/v1/ingress_service.proto",
    "drover/kubernetes/v1/network_policy_service.proto",
    "drover/kubernetes/v1/node_service.proto",
    "drover/kubernetes/v1/pod_service.proto",
    "drover/kubernetes/v1/service_service.proto",
    "drover/orchestrator/v1/cluster_service.proto",
    "drover/orchestrator/v1/platform_registry_service.proto",
    "drover/orchestrator/v1/replica_service.proto",
    "drover/orchestrator/v1/secret_service.proto",
    "drover/platform/v1/addon_service.proto",
    "drover/platform/v1/infrastructure_service.proto",
    "drover/platform/v1/inventory_service.proto",
    "drover/platform/v1/node_access_service.proto",
    "drover/platform/v1/platform_service.proto",
    "drover/platform/v1/storage_service.proto",
    "google/rpc/error_details.proto",
    "google/rpc/status.proto",
];

/// Messages with a field that is marked `debug_redact`, which prost ignores: they have no `Debug` but a hand-written one,
/// and without it nothing that holds them compiles.
fn redacted(pool: &DescriptorPool) -> Vec<String> {
    let marked = |field: FieldDescriptor| {
        let options = field.options();
        let mark = options.get_field_by_name("debug_redact");
        mark.is_some_and(|mark| mark.as_bool() == Some(true))
    };
    let messages = pool.all_messages();
    let messages = messages.filter(|message| message.fields().any(marked));
    messages
        .map(|message| format!(".{}", message.full_name()))
        .collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=drover");
    println!("cargo:rerun-if-changed=google");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(ROOTS)?;
    let descriptors = compiler.file_descriptor_set();
    fs::write(
        out.join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    debug_assert!(descriptors.encoded_len() > 0);

    let mut prost = tonic_prost_build::Config::new();
    prost.skip_debug(redacted(&compiler.descriptor_pool()));
    prost.enable_type_names();
    prost.btree_map(["."]);
    tonic_prost_build::configure()
        .extern_path(".google.rpc", "::tonic_types::pb")
        .include_file("protos.rs")
        .compile_fds_with_config(descriptors, prost)?;
    Ok(())
}
