//! Compiles the protos with protox, so that no protoc is needed, and keeps their comments for reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

/// Every file that holds a service; the others are imported by these.
const ROOTS: &[&str] = &[
    "drover/agent/v1/agent_service.proto",
    "drover/common/v1/error_reason.proto",
    "drover/orchestrator/v1/cluster_service.proto",
    "drover/orchestrator/v1/platform_registry_service.proto",
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

/// Messages that may hold secrets. prost ignores `debug_redact`, so they get a hand-written `Debug`.
const SECRET: &[&str] = &[
    ".drover.common.v1.Chunk",
    ".drover.orchestrator.v1.BootstrapSource",
    ".drover.orchestrator.v1.ExecNodeStart",
    ".drover.orchestrator.v1.SecretValue",
    ".drover.platform.v1.Bootstrap",
    ".drover.platform.v1.TemplateSecret",
    ".drover.platform.v1.ExecStart",
];

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
    prost.skip_debug(SECRET);
    prost.enable_type_names();
    prost.btree_map(["."]);
    tonic_prost_build::configure()
        .extern_path(".google.rpc", "::tonic_types::pb")
        .include_file("protos.rs")
        .compile_fds_with_config(descriptors, prost)?;
    Ok(())
}
