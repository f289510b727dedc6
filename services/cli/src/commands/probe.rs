//! `health` and `version`: what a server says of itself.

use std::time::Duration;

use drover_client::Target;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    cli::Global,
    client::Client,
    context::Security,
    failure::{Exit, Failure, Outcome},
    output,
};

/// How long a server may take to say how it is.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks grpc.health.v1. Exit code 0: serving, 1: not, 3: unknown service, 5: not reachable.
pub(crate) async fn health(global: &Global, address: &str, service: &str) -> Outcome {
    let secure = Security::of(&global.secure);
    let url = match address.split_once("://") {
        Some(("grpc", rest)) => format!("http://{rest}"),
        Some(("grpcs", rest)) => format!("https://{rest}"),
        Some(_) => address.to_owned(),
        // Who names authorities wants to see them.
        None if secure.ca.is_some() => format!("https://{address}"),
        None => format!("http://{address}"),
    };
    let target: Target = url.parse()?;
    let target = if target.is_encrypted() {
        secure.apply(target)?
    } else {
        target
    };
    let mut client = HealthClient::new(drover_client::connect(&target));
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = match tokio::time::timeout(TIMEOUT, client.check(request)).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) => {
            let error = drover_client::to_error(&status);
            return Err(if drover_client::is_unreachable(&error) {
                error.context(format!("cannot reach {target}")).into()
            } else {
                error.into()
            });
        }
        Err(_) => {
            return Err(Failure::timed_out(format!(
                "{target} did not answer within {TIMEOUT:?}"
            )));
        }
    };
    let (word, exit) = match answer.status() {
        ServingStatus::Serving => ("serving", Exit::Done),
        ServingStatus::NotServing => ("not serving", Exit::Failed),
        ServingStatus::ServiceUnknown => ("unknown service", Exit::NotFound),
        ServingStatus::Unknown => ("unknown", Exit::Failed),
    };
    output::line(word)?;
    Ok(exit)
}

/// Version of this program, and of every platform that the orchestrator knows.
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
        Ok(Err(error)) => eprintln!("{error}"),
        Err(_) => eprintln!("the orchestrator at {} did not answer", client.server()),
    }
    Ok(Exit::Done)
}
