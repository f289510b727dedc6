//! What a call may take: its permit, its connection, its time.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason};
use http::HeaderMap;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{OPEN_TIMEOUT, Shared, methods::Kind, timeout::parse_timeout};
use crate::{
    access::{Access, Permission},
    connection_limiter::{Busy, ConnectionHandle},
    quota::Share,
};

/// Retry delay for callers that were refused: long enough for typical calls to end.
const OVERLOADED_RETRY: Duration = Duration::from_secs(1);

/// Permit for a call, from the limit of all calls and from the caller's share.
pub(crate) type Permit = Option<(OwnedSemaphorePermit, Option<Share>)>;

impl Shared {
    /// Registers a call on its connection. Only calls that require a permission count as work.
    pub(super) fn occupy(
        &self,
        handle: Option<ConnectionHandle>,
        permission: Option<Permission>,
        caller: &Arc<str>,
    ) -> Result<Option<Busy>, Error> {
        let Some(handle) = handle else {
            return Ok(None);
        };
        let busy = if permission == Some(Permission::Open) {
            let busy = handle.open();
            busy.ok_or_else(|| full("too many health checks on one connection".to_owned()))?
        } else if matches!(self.access, Access::Open) {
            // Without authentication there are no callers to share the connections among.
            handle.working()
        } else {
            let busy = handle.working_of(|| self.connection_shares.take(caller, 1));
            busy.ok_or_else(|| {
                full(format!(
                    "too many connections of {caller} with calls in flight"
                ))
            })?
        };
        Ok(Some(busy))
    }

    /// Never waits, because a queue would only delay everyone.
    pub(super) fn admit(&self, kind: Kind, caller: &Arc<str>) -> Result<Permit, Error> {
        let (all, shares) = match kind {
            Kind::Unary => (&self.unary, &self.unary_shares),
            Kind::Stream => (&self.streams, &self.stream_shares),
            Kind::Own { .. } => return Ok(None),
        };
        // As in `occupy`.
        let share = if matches!(self.access, Access::Open) {
            None
        } else {
            let share = shares.take(caller, 1);
            Some(share.ok_or_else(|| full(format!("too many calls of {caller} in flight")))?)
        };
        let place = all.clone().try_acquire_owned();
        let place = place.map_err(|_| full("too many calls in flight".to_owned()))?;
        Ok(Some((place, share)))
    }

    pub(super) fn deadline(
        &self,
        headers: &HeaderMap,
        kind: Kind,
    ) -> Result<Option<Instant>, Error> {
        let asked = match headers.get("grpc-timeout") {
            None => None,
            Some(value) => Some(parse_timeout(value.as_bytes()).ok_or_else(|| {
                Error::invalid(
                    "grpc-timeout",
                    "expected up to 8 digits and one of H, M, S, m, u, n",
                )
            })?),
        };
        let longest = match kind {
            Kind::Own { .. } => OPEN_TIMEOUT,
            Kind::Unary | Kind::Stream => self.max_deadline,
        };
        let limit = match (kind.is_stream(), asked) {
            (true, None) => return Ok(None),
            (true, Some(asked)) => asked,
            (false, None) => self.default_deadline.min(longest),
            (false, Some(asked)) => asked.min(longest),
        };
        // `None` if the deadline cannot be represented.
        Ok(Instant::now().checked_add(limit))
    }
}

fn full(message: String) -> Error {
    Error::new(Reason::Overloaded, message).with_retry_after(OVERLOADED_RETRY)
}
