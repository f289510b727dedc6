//! The span of a command, which starts a trace.

use std::time::Duration;

use drover_telemetry::{Exporter, Kind, Settings, Span, settings::Given};

use crate::{
    cli::{Command, Global},
    commands::{self, End},
    failure::Failure,
};

/// How long the export of spans may delay the exit: a running collector takes less, and a missing one refuses at once.
const FLUSH: Duration = Duration::from_secs(2);

/// Runs a command in a span of its own.
pub(crate) async fn traced(global: &Global, name: &str, command: Command) -> Result<End, Failure> {
    let given = Given {
        endpoint: global.otlp_endpoint.clone(),
        ..Given::default()
    };
    let program = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let settings = Settings::resolve(&given, program, |name| std::env::var(name).ok())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let exporter = match settings {
        Some(settings) => {
            Exporter::start(settings).map_err(|error| Failure::usage(error.to_string()))?
        }
        None => None,
    };
    let outcome = match command {
        // It runs until it is stopped, and everything it does is a trace of its own.
        Command::Dev(_) => commands::run(global, command).await,
        command => {
            let mut span = Span::start(Kind::Internal, format!("drover {name}").into(), None);
            let outcome = span.scope(commands::run(global, command)).await;
            if let Err(failure) = &outcome {
                // The message is for the caller, and may quote the caller's files.
                span.set("process.exit.code", i64::from(failure.exit as u8));
                span.fail("failed", "");
            }
            outcome
        }
    };
    if let Some(exporter) = exporter {
        exporter.finish(FLUSH).await;
    }
    outcome
}
