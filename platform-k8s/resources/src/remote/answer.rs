//! Answers of the other server, and its errors as those of this one.

use std::error::Error as StdError;

use drover_convert::error::from_status;
use drover_core::{Error, Reason, Result};
use drover_tls::explain;
use futures::StreamExt;
use tonic::{Response, Status, Streaming};

use super::Remote;
use crate::parts::Answers;

impl Remote {
    /// The message of an answer.
    pub(super) fn message<T>(&self, answer: Result<Response<T>, Status>) -> Result<T> {
        answer
            .map(Response::into_inner)
            .map_err(|status| self.failed(&status))
    }

    /// A stream of answers.
    pub(super) fn answers<A, T>(
        &self,
        stream: Result<Response<Streaming<A>>, Status>,
        take: fn(A) -> Option<T>,
    ) -> Result<Answers<T>>
    where
        A: Send + 'static,
        T: Send + 'static,
    {
        let (stream, remote) = (self.message(stream)?, self.clone());
        let answers = stream.map(move |item| match item {
            Ok(item) => given(take(item)),
            Err(status) => Err(remote.failed(&status)),
        });
        Ok(answers.boxed())
    }

    /// The error of a call. The other server is called in the name of this one: what it refuses to this one, it does not
    /// refuse to whoever has called here.
    fn failed(&self, status: &Status) -> Error {
        if let Some(lost) = lost(status) {
            let why = self.trouble.get().unwrap_or(lost);
            let message = format!("the other server cannot be called: {why}");
            let reason = match explain::is_of_client(&message) {
                true => Reason::CredentialsRefused,
                false => Reason::Unavailable,
            };
            return Error::new(reason, message);
        }
        let error = from_status(status);
        let refused = match error.reason() {
            Reason::Unauthenticated => true,
            // With a resource it is about that: a file that may not be read.
            Reason::PermissionDenied => error.resource().is_none(),
            Reason::Overloaded => return error.context("the other server"),
            _ => false,
        };
        if !refused {
            return error;
        }
        let message = format!("the other server refuses this one: {}", error.message());
        Error::new(Reason::CredentialsRefused, message)
    }
}

/// Why a call has no answer of the other server. `None`: it has.
fn lost(status: &Status) -> Option<String> {
    let mut at = status.source()?;
    let mut words = at.to_string();
    while let Some(cause) = at.source() {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        at = cause;
    }
    Some(words)
}

/// A field of an answer that is always set.
pub(super) fn given<T>(field: Option<T>) -> Result<T> {
    field.ok_or_else(|| Error::internal("the other server sent an answer without its object"))
}
