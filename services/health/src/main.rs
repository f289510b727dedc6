//! `drover health` alone: the command line would be most of an image that only needs a health check.
//!
//! `drover-health ADDR` asks `grpc.health.v1`; over TLS if `DROVER_CA` names a file with authorities, with the name
//! `DROVER_SERVER_NAME` instead of the host. Exit codes: 0 serving, 1 not, 5 not reachable, 64 wrong usage.

use std::{env, process::ExitCode, time::Duration};

use drover_client::{Authorities, ClientSettings, Target};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

/// How long a server may take to say how it is.
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let (Some(address), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: drover-health ADDR");
        return ExitCode::from(64);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asked = match runtime {
        Ok(runtime) => runtime.block_on(ask(&address)),
        Err(error) => Err((1, error.to_string())),
    };
    match asked {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, why)) => {
            eprintln!("{address}: {why}");
            ExitCode::from(code)
        }
    }
}

/// Errors: the exit code, and why.
async fn ask(address: &str) -> Result<(), (u8, String)> {
    let target = target(address).map_err(|why| (64, why))?;
    let mut client = HealthClient::new(drover_client::connect(&target));
    let answer = tokio::time::timeout(TIMEOUT, client.check(HealthCheckRequest::default())).await;
    match answer {
        Ok(Ok(answer)) if answer.get_ref().status() == ServingStatus::Serving => Ok(()),
        Ok(Ok(answer)) => Err((1, answer.get_ref().status().as_str_name().to_owned())),
        Ok(Err(status)) => Err((5, drover_client::to_error(&status).to_string())),
        Err(_) => Err((5, format!("no answer within {TIMEOUT:?}"))),
    }
}

fn target(address: &str) -> Result<Target, String> {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let ca = set("DROVER_CA");
    let url = match (address.contains("://"), &ca) {
        (true, _) => address.to_owned(),
        (false, Some(_)) => format!("https://{address}"),
        (false, None) => format!("http://{address}"),
    };
    let target: Target = url.parse().map_err(|error| format!("{error}"))?;
    if !target.is_encrypted() {
        return Ok(target);
    }
    let settings = ClientSettings {
        authorities: ca.map_or(Authorities::System, |path| Authorities::File(path.into())),
        certificate: None,
        server_name: set("DROVER_SERVER_NAME"),
    };
    target.with_tls(settings).map_err(|error| error.to_string())
}
