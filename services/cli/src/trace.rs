//! A command as the beginning of a trace.

use std::{process::ExitCode, time::Duration};

use drover_telemetry::{Exporter, Kind, Settings, Span, settings::Given};

use crate::{
    cli::{Command, Global},
    commands,
    failure::Failure,
};

/// How long spans may hold up the end of a command: a collector that is there takes them in less, and one that is not
/// refuses at once.
const FLUSH: Duration = Duration::from_secs(2);

/// Runs a command, as a span of its own.
pub(crate) async fn traced(
    global: &Global,
    name: &str,
    command: Command,
) -> Result<ExitCode, Failure> {
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
        // It goes on until it is stopped, and whatever it does is its own trace.
        Command::Dev(_) => commands::run(global, command).await,
        command => {
            let mut span = Span::start(Kind::Internal, format!("drover {name}").into(), None);
            let outcome = span.scope(commands::run(global, command)).await;
            if let Err(failure) = &outcome {
                // What is said of it is for who has called, and may repeat what is in files of theirs.
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
