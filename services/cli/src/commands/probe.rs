//! `health` and `version`: status and versions of servers.

use std::time::Duration;

use drover_client::{
    Target,
    health::{self as probe, ServingStatus},
};

use crate::{
    cli::Global,
    client::Client,
    context::{self, Security},
    failure::{Exit, Outcome},
    output,
};

/// Timeout of a request to a server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Calls grpc.health.v1. Exit code 0: serving, 1: not serving, 3: unknown service, 5: unreachable.
pub(crate) async fn health(global: &Global, address: Option<&str>, service: &str) -> Outcome {
    let target = match address {
        Some(address) => server(global, address)?,
        None => context::place(global)?.target()?,
    };
    let (word, exit) = match probe::check(&target, service).await? {
        ServingStatus::Serving => ("serving", Exit::Done),
        ServingStatus::NotServing => ("not serving", Exit::Failed),
        ServingStatus::ServiceUnknown => ("unknown service", Exit::NotFound),
        ServingStatus::Unknown => ("unknown", Exit::Failed),
    };
    output::line(word)?;
    Ok(exit)
}

fn server(global: &Global, address: &str) -> Outcome<Target> {
    let secure = Security::of(&global.secure);
    // Authorities imply TLS.
    let target = probe::target(address, secure.ca.is_some())?;
    if target.is_encrypted() {
        secure.apply(target)
    } else {
        Ok(target)
    }
}

/// Prints the version of this program, and of every platform that the orchestrator knows.
pub(crate) async fn version(client: &Client) -> Outcome {
    output::line(&format!("drover {}", env!("CARGO_PKG_VERSION")))?;
    let answer = tokio::time::timeout(TIMEOUT, client.list_platforms()).await;
    match answer {
        Ok(Ok(answer)) => {
            output::line(&format!(
                "orchestrator at {}: API drover.orchestrator.v1",
                client.server()
            ))?;
            for platform in answer.platforms {
                let handshake = platform
                    .status
                    .and_then(|status| status.handshake)
                    .unwrap_or_default();
                let version = if handshake.version.is_empty() {
                    "not known yet"
                } else {
                    &handshake.version
                };
                output::line(&format!("platform/{}: {version}", platform.name))?;
            }
        }
        Ok(Err(error)) => complain!("{error}"),
        Err(_) => complain!("the orchestrator at {} did not answer", client.server()),
    }
    Ok(Exit::Done)
}
