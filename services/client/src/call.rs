//! What is the same for every call: its deadline, and what its failure means.

use std::{error::Error as StdError, future::Future, time::Duration};

use drover_core::{Error, Reason, Result};
use tonic::{Request, Response, Status};

use crate::TransportError;

/// Metadata key of an error that did not come from a server. Kept inside of this process, never sent.
const UNREACHABLE: &str = "unreachable";

/// A request with its deadline on it, so that the server stops when nobody waits any more.
pub(crate) fn request<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

/// Waits for an answer until the deadline. The server was told the same deadline; this one counts when it is silent.
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

/// What a status of a call over a [`Channel`](crate::Channel) means.
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

/// Whether an error says that there was no way to the server, as opposed to an answer of it.
#[must_use]
pub fn is_unreachable(error: &Error) -> bool {
    error.reason() == Reason::Unavailable && error.metadata().contains_key(UNREACHABLE)
}
