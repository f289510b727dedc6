//! The limits of the API, and the defaults that the protos state.

use std::time::Duration;

use drover_proto::platform::v1::Limits;

/// Size at which a page or a watch message ends, so that it stays far below the largest message.
pub(crate) const MAX_PAGE_BYTES: usize = 1024 * 1024;
/// Nodes in a page if the request says nothing.
pub(crate) const PAGE_SIZE: usize = 500;
/// Most nodes in a page.
pub(crate) const MAX_PAGE_SIZE: usize = 1000;
/// Most nodes in a message of a watch.
pub(crate) const MAX_WATCH_NODES: usize = 256;
/// Largest piece of a log or of what a command writes.
pub(crate) const MAX_CHUNK: usize = 64 * 1024;

pub(crate) fn max_batch(limits: &Limits) -> usize {
    limits.max_batch.unwrap_or(1) as usize
}

pub(crate) fn visibility_delay(limits: &Limits) -> Duration {
    span(limits.visibility_delay.as_ref(), Duration::from_secs(60))
}

pub(crate) fn min_poll_interval(limits: &Limits) -> Duration {
    span(limits.min_poll_interval.as_ref(), Duration::from_secs(10))
}

pub(crate) fn max_creation_time(limits: &Limits) -> Duration {
    span(limits.max_creation_time.as_ref(), Duration::from_secs(120))
}

pub(crate) fn request_memory(limits: &Limits) -> Duration {
    span(limits.request_memory.as_ref(), Duration::from_secs(600))
}

fn span(value: Option<&prost_types::Duration>, default: Duration) -> Duration {
    value
        .and_then(|value| Duration::try_from(*value).ok())
        .unwrap_or(default)
}
