//! Puts in front of the C library of `simulate` what follows from its seed.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=seeded/seeded.c");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|is| is == value);
    // Elsewhere a seed says what is done, and not in which order tasks are polled.
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
