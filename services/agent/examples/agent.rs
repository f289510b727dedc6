//! The agent as a separate process: `cargo run -p drover-agent --example agent -- --node-id n1`.

use clap::Parser;
use drover_agent::{AgentSettings, run_blocking};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    settings: AgentSettings,
}

fn main() -> anyhow::Result<()> {
    drover_server::telemetry::init(drover_server::settings::LogFormat::Auto);
    run_blocking(Cli::parse().settings)
}
