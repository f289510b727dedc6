//! Health checks with `grpc.health.v1`.

use std::time::Duration;

use drover_core::{Error, Reason};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

pub use tonic_health::pb::health_check_response::ServingStatus;

use crate::{Target, connect, is_unreachable, to_error};

/// Deadline of a health check.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Parses an address: `HOST:PORT`, a URL with `http`, `https`, `grpc` or `grpcs`, or `unix:PATH`. Without a scheme, TLS
/// is used if `encrypted`.
///
/// # Errors
///
/// `Invalid` for anything else.
pub fn target(address: &str, encrypted: bool) -> Result<Target, Error> {
    if let Some(path) = address.strip_prefix("unix:") {
        return Ok(Target::on_socket(path));
    }
    match address.split_once("://") {
        Some(("grpc", rest)) => format!("http://{rest}").parse(),
        Some(("grpcs", rest)) => format!("https://{rest}").parse(),
        Some(_) => address.parse(),
        None if encrypted => format!("https://{address}").parse(),
        None => format!("http://{address}").parse(),
    }
}

/// Checks the health of a service; the empty name stands for the whole server.
///
/// # Errors
///
/// `Unavailable` if the server cannot be reached, `DeadlineExceeded` after 5 s, `NotFound` if it does not know the
/// service, otherwise the error that it returned.
pub async fn check(target: &Target, service: &str) -> Result<ServingStatus, Error> {
    let mut client = HealthClient::new(connect(target));
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    match tokio::time::timeout(TIMEOUT, client.check(request)).await {
        Ok(Ok(answer)) => Ok(answer.into_inner().status()),
        Ok(Err(status)) => {
            let error = to_error(&status);
            Err(if is_unreachable(&error) {
                error.context(format!("cannot reach {target}"))
            } else {
                error
            })
        }
        Err(_) => Err(Error::new(
            Reason::DeadlineExceeded,
            format!("{target} did not answer within {TIMEOUT:?}"),
        )),
    }
}
