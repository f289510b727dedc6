//! The command line of Drover.

fn main() -> std::process::ExitCode {
    drover_cli::main()
}
