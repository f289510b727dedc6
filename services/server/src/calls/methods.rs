//! The methods of a server and their metrics.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use drover_core::Result;
use drover_telemetry::rpc::code_name;
use metrics::{Counter, Gauge, Histogram};
use tonic::Code;

use crate::{
    access::{Permission, permission},
    service::HEALTH,
};

/// Number of gRPC codes, 0 to 16.
const CODES: usize = 17;

/// The limits that apply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A single response, within the default deadline.
    Unary,
    /// A stream of responses, without a default deadline.
    Stream,
    /// Health checks, which must always work.
    Own {
        /// Whether it is a stream.
        stream: bool,
    },
}

impl Kind {
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Self::Stream | Self::Own { stream: true })
    }
}

/// A gRPC method. Its metric handles are looked up once, not per call.
pub(crate) struct Method {
    pub(crate) service: String,
    pub(crate) name: String,
    /// `service/name`.
    pub(crate) full: Arc<str>,
    pub(crate) kind: Kind,
    /// Whether its request is a single message.
    pub(crate) one_message: bool,
    /// The required permission. `None` if it is not in the table, so that nobody has it.
    pub(crate) permission: Option<Permission>,
    requests: [OnceLock<Counter>; CODES],
    pub(crate) duration: Histogram,
    pub(crate) in_flight: Gauge,
}

impl Method {
    fn new(service: &str, name: &str, kind: Kind, one_message: bool) -> Arc<Self> {
        let labels = [("service", service.to_owned()), ("method", name.to_owned())];
        Arc::new(Self {
            service: service.to_owned(),
            name: name.to_owned(),
            full: format!("{service}/{name}").into(),
            kind,
            one_message,
            permission: permission(service, name),
            requests: [const { OnceLock::new() }; CODES],
            duration: metrics::histogram!("drover_rpc_duration_seconds", &labels),
            in_flight: metrics::gauge!("drover_rpc_in_flight", &labels),
        })
    }

    /// The name of its spans.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.service, self.name)
    }

    /// Counts a call that has ended.
    pub(crate) fn count(&self, code: Code) {
        let Some(slot) = self.requests.get(code as usize) else {
            return;
        };
        slot.get_or_init(|| {
            metrics::counter!(
                "drover_rpc_requests_total",
                "service" => self.service.clone(),
                "method" => self.name.clone(),
                "code" => code_name(code)
            )
        })
        .increment(1);
    }
}

/// The gRPC methods of a server, by path.
pub(crate) struct Methods {
    by_path: HashMap<String, Arc<Method>>,
    /// All other paths, under a single label, so that clients cannot create labels.
    unknown: Arc<Method>,
}

impl Methods {
    /// Collects the methods of these services from the descriptor sets. Fails with `Internal` if one is corrupt.
    pub(crate) fn of(names: &[&str], descriptors: &[&[u8]]) -> Result<Self> {
        crate::telemetry::metrics();
        let mut by_path = HashMap::new();
        for (full, service) in crate::descriptors::services(descriptors)? {
            if !names.contains(&full.as_str()) {
                continue;
            }
            let own = full == HEALTH;
            for method in &service.method {
                let stream = method.server_streaming();
                let kind = match (own, stream) {
                    (true, stream) => Kind::Own { stream },
                    (false, true) => Kind::Stream,
                    (false, false) => Kind::Unary,
                };
                let path = format!("/{full}/{}", method.name());
                let method = Method::new(&full, method.name(), kind, !method.client_streaming());
                by_path.insert(path, method);
            }
        }
        Ok(Self {
            by_path,
            unknown: Method::new("unknown", "unknown", Kind::Unary, true),
        })
    }

    /// Whether this is the placeholder for unknown methods.
    pub(crate) fn is_unknown(&self, method: &Arc<Method>) -> bool {
        Arc::ptr_eq(method, &self.unknown)
    }

    pub(crate) fn get(&self, path: &str) -> Arc<Method> {
        self.by_path.get(path).unwrap_or(&self.unknown).clone()
    }
}
