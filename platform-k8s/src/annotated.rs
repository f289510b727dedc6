//! Texts in annotations of running pods, which a volume of theirs exposes as a file. The kubelet looks at a pod at once
//! when its object changes, and at a ConfigMap only about once a minute.

use std::sync::Arc;

use drover_core::{Reason, Result};
use futures::{StreamExt as _, stream};
use serde_json::json;

use crate::client::{Api, Kind};

/// Concurrent writes of pods.
const AT_ONCE: usize = 8;
/// Maximum size of a text in bytes: all annotations of an object together have at most 256 KiB.
pub(crate) const MAX_LIST: usize = 200 * 1024;

/// A text that a pod does not have yet.
pub(crate) struct Untold {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Box<str>,
    pub(crate) list: Arc<str>,
}

/// Writes texts into an annotation of pods. Returns the first error, after everything was tried.
///
/// # Errors
/// See [`crate::errors`].
pub(crate) async fn tell(api: &Api, pods: &Kind, key: &str, untold: &[Untold]) -> Result<()> {
    let writes: Vec<_> = untold
        .iter()
        .map(|untold| async move {
            let patch = json!({"metadata": {"annotations": {key: &*untold.list}}});
            let written = api.patch(pods, &untold.namespace, &untold.name, &patch);
            known_gone(written.await.map(drop))
        })
        .collect();
    let written = stream::iter(writes).buffer_unordered(AT_ONCE);
    let written: Vec<Result<()>> = written.collect().await;
    written.into_iter().collect()
}

/// An object that was deleted or replaced meanwhile is not an error: the watch reports it.
pub(crate) fn known_gone(written: Result<()>) -> Result<()> {
    written.or_else(|error| match error.reason() {
        Reason::NotFound | Reason::Conflict => Ok(()),
        _ => Err(error),
    })
}
