//! Minimal worker program that renders user data, for tests whose own program cannot.

use std::process::ExitCode;

fn main() -> ExitCode {
    drover_templates::worker::enter().unwrap_or(ExitCode::FAILURE)
}
