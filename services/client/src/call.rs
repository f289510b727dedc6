//! Common parts of all calls: deadlines and error classification.

use std::{error::Error as StdError, future::Future, time::Duration};

use drover_core::{Error, Reason, Result};
use tonic::{Request, Response, Status};

use crate::{TransportError, turn::After};

/// Metadata key of errors that did not come from a server. Local to this process, never sent.
const UNREACHABLE: &str = "unreachable";
/// Metadata key of errors after which another attempt need not wait long. Local to this process, never sent.
const AGAIN: &str = "again";
const AT_ONCE: &str = "at once";
const SOON: &str = "soon";

/// Creates a request that carries its deadline, so that the server stops working when the caller no longer waits.
pub(crate) fn request<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

/// Waits for a response until the deadline. The server knows the same deadline; this one applies if it does not
/// respond.
///
/// A call takes kilobytes until it is answered. It is boxed because every function that awaits it would hold it twice.
pub(crate) fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> impl Future<Output = Result<T>> {
    let call = Box::pin(call);
    async move {
        match tokio::time::timeout(deadline, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(to_error(&status)),
            Err(_) => Err(silent(deadline)),
        }
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
        if let Some(failure) = at.downcast_ref::<TransportError>() {
            return match failure.after() {
                After::Unreachable => error.with_metadata(UNREACHABLE, true),
                After::Next => error.with_metadata(AGAIN, AT_ONCE),
                After::Soon => error.with_metadata(AGAIN, SOON),
                After::Usual => error,
            };
        }
        cause = at.source();
    }
    error
}

/// When to try again after this error.
pub(crate) fn after(error: &Error) -> After {
    match error.metadata().get(AGAIN).map(String::as_str) {
        Some(AT_ONCE) => After::Next,
        Some(SOON) => After::Soon,
        _ if is_unreachable(error) => After::Unreachable,
        _ => After::Usual,
    }
}

/// Whether the error means that the server could not be reached, as opposed to an error that it returned. Of several
/// servers: that none of them could be.
#[must_use]
pub fn is_unreachable(error: &Error) -> bool {
    error.reason() == Reason::Unavailable && error.metadata().contains_key(UNREACHABLE)
}
