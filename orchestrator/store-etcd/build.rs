//! Compiles the part of etcd's API that is used, with protox, so that no protoc is needed.

use std::error::Error;

const API: &str = "etcd.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile([API], ["proto"])?;
    let mut prost = tonic_prost_build::Config::new();
    prost.bytes(["."]);
    // Values may be secrets, and passwords and tokens are.
    prost.skip_debug(["."]);
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds_with_config(descriptors, prost)?;
    Ok(())
}
