//! What gives a caller the right to go on with a call, looked at for as long as it lasts.

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

/// As it was found when the call began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rights {
    pub(crate) terms: Option<Terms>,
    pub(crate) certificate: Option<Ending>,
}

/// The same while it is looked at.
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
    /// Ready when the caller may not go on.
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
