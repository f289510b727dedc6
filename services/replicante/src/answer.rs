//! Errors in the format of Replicante clients.

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use drover_core::{Class, Error, Reason, error::Violation};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::document;

/// An error response.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    what: &'static str,
    cause: String,
    /// The invalid fields, if there are several.
    fields: Vec<Violation>,
    more: Map<String, Value>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refusal {
    /// Creates a response from the failed operation and its error.
    pub(crate) fn of(what: &'static str, error: Error) -> Self {
        let header = error.retry_after().and_then(|after| {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            let value = HeaderValue::from_str(&seconds.to_string()).ok()?;
            Some((header::RETRY_AFTER, value))
        });
        Self {
            status: status(error.reason()),
            what,
            cause: error.message().to_owned(),
            fields: error.fields().to_vec(),
            more: Map::new(),
            header,
        }
    }

    /// Creates a response for a violation of HTTP itself.
    pub(crate) fn plain(status: StatusCode, what: &'static str, cause: impl Into<String>) -> Self {
        Self {
            status,
            what,
            cause: cause.into(),
            fields: Vec::new(),
            more: Map::new(),
            header: None,
        }
    }

    /// Adds the SDK's fields about an unknown node group, if that is the problem.
    pub(crate) fn or_groups(mut self, document: &Value) -> Self {
        if self.status == StatusCode::UNPROCESSABLE_ENTITY
            && let Some((unknown, defined)) = document::unknown_group(document)
        {
            self.more.insert("node_group_id".to_owned(), json!(unknown));
            self.more
                .insert("defined_node_groups".to_owned(), json!(defined));
        }
        self
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = self.more;
        body.insert("error".to_owned(), json!(true));
        body.insert("error_msg".to_owned(), json!(self.what));
        body.insert("error_cause".to_owned(), json!(self.cause));
        if self.fields.len() > 1 {
            let fields = self
                .fields
                .iter()
                .map(|v| format!("{}: {}", v.field, v.description));
            let trail: Vec<_> = std::iter::once(self.what.to_owned())
                .chain(fields)
                .collect();
            body.insert("error_trail".to_owned(), json!(trail));
        }
        let mut response = json(self.status, &body);
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// Creates a JSON response.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        // Cannot fail, because the bodies consist of strings and numbers.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The response to a method that a path does not support.
pub(crate) fn wrong_method(allow: &'static str) -> Response {
    let cause = format!("the methods of this path are {allow}");
    let mut refusal = Refusal::plain(StatusCode::METHOD_NOT_ALLOWED, "wrong method", cause);
    refusal.header = Some((header::ALLOW, HeaderValue::from_static(allow)));
    refusal.into_response()
}

/// Never 404, because clients drop its body.
fn status(reason: Reason) -> StatusCode {
    match reason {
        Reason::Invalid | Reason::OutOfRange => StatusCode::BAD_REQUEST,
        Reason::NotOwned => StatusCode::FORBIDDEN,
        Reason::NodeNotInCluster | Reason::SlotMismatch | Reason::Conflict => StatusCode::CONFLICT,
        Reason::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Reason::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        other => match other.class() {
            Class::Cannot | Class::Reused => StatusCode::UNPROCESSABLE_ENTITY,
            Class::Credentials => StatusCode::BAD_GATEWAY,
            Class::NoCapacity | Class::Stale | Class::Unknown => StatusCode::SERVICE_UNAVAILABLE,
        },
    }
}
