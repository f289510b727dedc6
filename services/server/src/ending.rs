//! Signals the end of a connection's client certificate to its calls.

use std::sync::{Arc, OnceLock};

use drover_core::Error;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Whether the client certificate of a connection has ceased to be valid, and why. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    over: CancellationToken,
    why: Arc<OnceLock<&'static str>>,
}

impl Ending {
    /// Marks the certificate as no longer valid.
    pub(crate) fn end(&self, why: &'static str) {
        self.why.get_or_init(|| why);
        self.over.cancel();
    }

    /// The error for calls on the connection, once the certificate is no longer valid.
    pub(crate) fn error(&self) -> Option<Error> {
        self.why.get().map(|why| Error::unavailable(*why))
    }

    /// Resolves when the certificate is no longer valid.
    pub(crate) fn over(&self) -> WaitForCancellationFutureOwned {
        self.over.clone().cancelled_owned()
    }
}
