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
    failure::{Exit, Failure, Outcome},
    output,
};

/// Timeout of a request to a server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Calls grpc.health.v1. Exit code 0: serving, 1: not serving, 3: unknown service, 5: unreachable. Of several servers it is 0
/// if one serves.
pub(crate) async fn health(global: &Global, address: Option<&str>, service: &str) -> Outcome {
    let targets = match address {
        Some(address) => vec![server(global, address)?],
        None => context::place(global)?.targets()?,
    };
    if let [target] = targets.as_slice() {
        let (word, exit) = said(probe::check(target, service).await?);
        output::line(word)?;
        return Ok(exit);
    }
    each(&targets, service).await
}

fn said(status: ServingStatus) -> (&'static str, Exit) {
    match status {
        ServingStatus::Serving => ("serving", Exit::Done),
        ServingStatus::NotServing => ("not serving", Exit::Failed),
        ServingStatus::ServiceUnknown => ("unknown service", Exit::NotFound),
        ServingStatus::Unknown => ("unknown", Exit::Failed),
    }
}

/// Asks each of several servers. One that serves is enough; otherwise the last one decides.
async fn each(targets: &[Target], service: &str) -> Outcome {
    let mut serves = false;
    let mut exit = Exit::Failed;
    for target in targets {
        exit = match probe::check(target, service).await {
            Ok(status) => {
                let (word, exit) = said(status);
                output::line(&format!("{target}: {word}"))?;
                exit
            }
            Err(error) => {
                complain!("{target}: {error}");
                Failure::from(error).exit
            }
        };
        serves |= exit == Exit::Done;
    }
    Ok(if serves { Exit::Done } else { exit })
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
