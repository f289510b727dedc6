//! Static binaries, as in images, hold a relocation for every pointer in their data: packed, they take a tenth of the space.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| {
        std::env::var(name).is_ok_and(|it| it.split(',').any(|part| part == value))
    };
    if is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_ENV", "gnu")
        && is("CARGO_CFG_TARGET_FEATURE", "crt-static")
    {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        // Generic code has many functions with the same instructions: each once. `safe` leaves C alone, which compares the
        // addresses of its functions. Only lld knows the option; it is rustc's linker on this architecture.
        if is("CARGO_CFG_TARGET_ARCH", "x86_64") {
            println!("cargo::rustc-link-arg-bins=-Wl,--icf=safe");
        }
    }
}
