//! Pagination of lists.

use serde_json::Value;

use super::json::Problem;
use super::settings::GceSettings;
use crate::server::Call;

/// Maximum and default page size.
const MAX: usize = 500;

/// Returns the page that a call asks for, and the token of the next one. The token is based on a monotonic key, so that
/// elements added or removed between two pages do not shift the others.
pub(super) fn page<T>(
    settings: &GceSettings,
    call: &Call,
    mut all: Vec<(u64, T)>,
) -> Result<(Vec<T>, Option<String>), Problem> {
    let asked = match call.query("maxResults") {
        Some(text) => text
            .parse()
            .ok()
            .filter(|n| *n <= MAX)
            .ok_or_else(|| Problem::field("maxResults", text, "Must be between 0 and 500."))?,
        None => MAX,
    };
    let size = asked.min(settings.common.page_size.unwrap_or(MAX)).max(1);
    if let Some(token) = call.query("pageToken").filter(|token| !token.is_empty()) {
        let after: u64 = token
            .strip_prefix("after-")
            .and_then(|text| u64::from_str_radix(text, 16).ok())
            .ok_or_else(|| Problem::field("pageToken", token, "Invalid page token."))?;
        all.retain(|(key, _)| *key > after);
    }
    all.sort_by_key(|(key, _)| *key);
    let more = all.len() > size;
    all.truncate(size);
    let next = all.last().filter(|_| more).map(|(key, _)| after(*key));
    Ok((all.into_iter().map(|(_, element)| element).collect(), next))
}

/// The token of the page that begins after the element with this key.
pub(super) fn after(key: u64) -> String {
    format!("after-{key:x}")
}

/// A list with its next page token.
pub(super) fn list(kind: &str, items: Value, next: Option<String>) -> Value {
    let mut value = serde_json::json!({ "kind": kind, "id": "list", "items": items });
    if let Some(next) = next {
        value["nextPageToken"] = next.into();
    }
    value
}
