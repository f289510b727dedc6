//! Links functions into `simulate` that override those of the C library and derive their results from the seed.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=seeded/seeded.c");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|is| is == value);
    // On other targets a seed determines the actions, but not the order in which tasks are polled.
    if !is("CARGO_CFG_TARGET_OS", "linux") || !is("CARGO_CFG_TARGET_ENV", "gnu") {
        return;
    }
    let objects = cc::Build::new()
        .file("seeded/seeded.c")
        .compile_intermediates();
    for object in objects {
        println!("cargo::rustc-link-arg-bin=simulate={}", object.display());
    }
}
