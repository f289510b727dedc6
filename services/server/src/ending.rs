//! The end of a connection's client certificate, for its calls.

use std::sync::{Arc, OnceLock};

use drover_core::Error;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Whether the client certificate of a connection holds no longer, and why. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    over: CancellationToken,
    why: Arc<OnceLock<&'static str>>,
}

impl Ending {
    /// It holds no longer.
    pub(crate) fn end(&self, why: &'static str) {
        self.why.get_or_init(|| why);
        self.over.cancel();
    }

    /// What calls on its connection are told once it holds no longer.
    pub(crate) fn error(&self) -> Option<Error> {
        self.why.get().map(|why| Error::unavailable(*why))
    }

    /// Ends when it holds no longer.
    pub(crate) fn over(&self) -> WaitForCancellationFutureOwned {
        self.over.clone().cancelled_owned()
    }
}
