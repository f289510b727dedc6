//! Limits of the API, and the defaults documented in the protos.

use std::time::Duration;

use drover_proto::platform::v1::Limits;

/// Size at which a page or a watch message ends, well below the maximum message size.
pub(crate) const MAX_PAGE_BYTES: usize = 1024 * 1024;
/// Default page size in nodes.
pub(crate) const PAGE_SIZE: usize = 500;
/// Maximum page size in nodes.
pub(crate) const MAX_PAGE_SIZE: usize = 1000;
/// Maximum number of nodes per watch message.
pub(crate) const MAX_WATCH_NODES: usize = 256;

/// Nodes that one Provision may ask for.
#[must_use]
pub fn max_batch(limits: &Limits) -> usize {
    limits.max_batch.unwrap_or(1) as usize
}

/// How long a new node may be missing from lists.
#[must_use]
pub fn visibility_delay(limits: &Limits) -> Duration {
    span(limits.visibility_delay.as_ref(), Duration::from_secs(60))
}

pub(crate) fn min_poll_interval(limits: &Limits) -> Duration {
    span(limits.min_poll_interval.as_ref(), Duration::from_secs(10))
}

/// How long a create may take.
#[must_use]
pub fn max_creation_time(limits: &Limits) -> Duration {
    span(limits.max_creation_time.as_ref(), Duration::from_secs(120))
}

/// How long a request id is remembered.
#[must_use]
pub fn request_memory(limits: &Limits) -> Duration {
    span(limits.request_memory.as_ref(), Duration::from_secs(600))
}

fn span(value: Option<&prost_types::Duration>, default: Duration) -> Duration {
    value
        .and_then(|value| Duration::try_from(*value).ok())
        .unwrap_or(default)
}
