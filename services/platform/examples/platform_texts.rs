//! Minimal program that runs the template worker, for tests: a test binary cannot be its own worker.

use std::process::ExitCode;

fn main() -> ExitCode {
    drover_templates::worker::enter().unwrap_or(ExitCode::FAILURE)
}
