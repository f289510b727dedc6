//! Failures of calls by kube, and the fields of requests that they are about.

use drover_core::{Error, Reason};

use super::{chain, of_redacted, timeout, transport, unreadable_at};
use crate::client::{Call, limits::LimitError};

/// The error for a call that kube made.
#[must_use]
pub fn of(call: &Call, error: &kube::Error) -> Error {
    match error {
        kube::Error::Api(status) => of_redacted(call, status, None),
        kube::Error::SerdeError(error) => super::unreadable(call, error),
        kube::Error::Service(service) => match service.downcast_ref::<LimitError>() {
            Some(LimitError::Timeout(limit)) => timeout(call, *limit),
            Some(LimitError::CutOff(source)) => Error::unavailable(format!(
                "{call}: the answer was cut off: {}",
                chain(source.as_ref())
            )),
            Some(error @ LimitError::TooLarge) => Error::unavailable(format!("{call}: {error}")),
            Some(LimitError::Unreadable { line, column }) => unreadable_at(call, *line, *column),
            None => transport(call, error),
        },
        kube::Error::BuildRequest(_) => {
            // The source quotes what was to be sent.
            Error::internal(format!("{call}: the request cannot be written"))
        }
        _ => transport(call, error),
    }
}

/// How the fields of Kubernetes are called in a request.
pub(crate) struct Fields {
    /// Field of the request that holds the object (`pod`).
    pub(crate) object: &'static str,
    /// Parts of paths, in snake case, and what they are called here. The first that fits comes first.
    pub(crate) names: &'static [(&'static str, &'static str)],
}

impl Fields {
    /// Names the fields of a refused object as its request does.
    pub(crate) fn of_request(&self, call: &Call, error: Error) -> Error {
        if error.reason() != Reason::Invalid {
            return error;
        }
        let prefix = format!("{}.", call.object());
        let mut named = Error::new(error.reason(), error.message());
        for violation in error.fields() {
            let field = violation.field.strip_prefix(&prefix);
            let field = field.map_or_else(|| violation.field.clone(), |field| self.path(field));
            named = named.with_violation(field, &violation.description);
        }
        match error.retry_after() {
            Some(after) => named.with_retry_after(after),
            None => named,
        }
    }

    fn path(&self, field: &str) -> String {
        let mut path = snake(field);
        for (theirs, ours) in self.names {
            path = path.replace(theirs, ours);
        }
        format!("{}.{path}", self.object)
    }
}

/// A path in snake case; keys in brackets stay as they are.
fn snake(path: &str) -> String {
    let mut out = String::with_capacity(path.len() + 8);
    let mut depth = 0_usize;
    let mut previous = '.';
    for c in path.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && c.is_ascii_uppercase() {
            if previous.is_ascii_lowercase() {
                out.push('_');
            }
            out.push(c.to_ascii_lowercase());
        } else {
            out.push(c);
        }
        previous = c;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_refuses_is_named_as_in_the_request() {
        const FIELDS: Fields = Fields {
            object: "pod",
            names: &[("config_map.", "configuration.")],
        };
        let path = |path| FIELDS.path(path);
        assert_eq!(
            path("spec.volumes[0].configMap.name"),
            "pod.spec.volumes[0].configuration.name"
        );
        assert_eq!(path("spec.clusterIPs[0]"), "pod.spec.cluster_ips[0]");
        assert_eq!(
            path("metadata.labels[camelCase]"),
            "pod.metadata.labels[camelCase]"
        );
    }
}
