//! The orchestrator server.

use std::{path::PathBuf, process::ExitCode};

use drover_orchestrator::{Orchestrator, Settings, VERSION};
use drover_server::{Binary, ServerSettings, Shutdown};

/// Flags of the orchestrator, beside those of every server.
#[derive(Clone, Debug, clap::Args, serde::Serialize)]
struct Flags {
    /// Directory of the store [default: drover-data]
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    data_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let binary = Binary {
        name: "drover-orchestrator",
        version: VERSION,
        about: "Keeps clusters as they are declared, on whatever platforms are registered",
        port: 7400,
    };
    drover_server::run::<Flags, Settings, _>(binary, serve)
}

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn serve(server: ServerSettings, settings: Settings, stop: Shutdown) -> Outcome {
    // The port first: a second orchestrator is told so before it looks at the store.
    let listener = drover_server::listen(&server).await?;
    let orchestrator = Orchestrator::open(&settings).await?;
    let lost = orchestrator.stopped();
    let ended = stop.child_token();
    let running = drover_server::spawn(orchestrator.service(), listener, &server, ended.clone())?;
    tokio::select! {
        () = stop.cancelled() => {}
        () = lost.cancelled() => ended.cancel(),
    }
    running.finished().await;
    orchestrator.shutdown().await;
    Ok(())
}
