//! The rights of a caller, which are checked for as long as a call lasts.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use drover_core::Error;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::{
    access::{Lease, Terms},
    ending::Ending,
};

/// The rights at the start of the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rights {
    pub(crate) terms: Option<Terms>,
    pub(crate) certificate: Option<Ending>,
}

/// The same rights while they are being watched.
pub(super) struct Watched {
    lease: Option<Lease>,
    certificate: Option<(Pin<Box<WaitForCancellationFutureOwned>>, Ending)>,
}

impl Rights {
    pub(super) fn watch(self) -> Watched {
        Watched {
            lease: self.terms.map(Terms::begin),
            certificate: self.certificate.map(|it| (Box::pin(it.over()), it)),
        }
    }
}

impl Watched {
    /// Resolves when the caller may not continue.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if let Some((over, certificate)) = &mut self.certificate
            && over.as_mut().poll(cx).is_ready()
            && let Some(error) = certificate.error()
        {
            return Poll::Ready(error);
        }
        match &mut self.lease {
            Some(lease) => lease.poll(cx),
            None => Poll::Pending,
        }
    }
}
