//! Common parts of all calls: deadlines and error classification.

use std::{error::Error as StdError, future::Future, time::Duration};

use drover_core::{Error, Reason, Result};
use tonic::{Request, Response, Status};

use crate::TransportError;

/// Metadata key of errors that did not come from a server. Local to this process, never sent.
const UNREACHABLE: &str = "unreachable";

/// Creates a request that carries its deadline, so that the server stops working when the caller no longer waits.
pub(crate) fn request<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

/// Waits for a response until the deadline. The server knows the same deadline; this one applies if it does not
/// respond.
pub(crate) async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(to_error(&status)),
        Err(_) => Err(silent(deadline)),
    }
}

pub(crate) fn silent(deadline: Duration) -> Error {
    Error::new(
        Reason::DeadlineExceeded,
        format!("no answer within {deadline:?}"),
    )
}

/// Converts the status of a call over a [`Channel`](crate::Channel) to an error.
#[must_use]
pub fn to_error(status: &Status) -> Error {
    let error = drover_convert::error::from_status(status);
    let mut cause = status.source();
    while let Some(at) = cause {
        if at.is::<TransportError>() {
            return error.with_metadata(UNREACHABLE, true);
        }
        cause = at.source();
    }
    error
}

/// Whether the error means that the server could not be reached, as opposed to an error that it returned.
#[must_use]
pub fn is_unreachable(error: &Error) -> bool {
    error.reason() == Reason::Unavailable && error.metadata().contains_key(UNREACHABLE)
}
