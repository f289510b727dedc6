//! What a server serves of its cluster, and to what limits.

use std::cmp::Ordering;

use drover_core::{Error, Reason, Result};

use crate::pod_policy::PodPolicies;

/// Waits of all callers at once. Each holds a watch at the API server, which has to send every change to all of them.
pub const MAX_WAITS: usize = 256;
/// Commands, files and logs of all callers at once. Each holds a connection to the API server and one to a kubelet.
pub const MAX_STREAMS: usize = 128;

/// The namespaces that are served, and the limits of the server.
#[derive(Clone, Debug)]
pub struct Served {
    /// Namespace of requests that name none.
    pub default_namespace: String,
    /// Namespaces that are served, in order. Empty: all.
    pub namespaces: Vec<String>,
    /// Namespaces that are not served where all are.
    pub excluded_namespaces: Vec<String>,
    /// What pods may be, by namespace.
    pub pod_policy: PodPolicies,
    /// Most waits at once.
    pub max_waits: usize,
    /// Most commands, files and logs at once.
    pub max_streams: usize,
    /// Most waits of one caller at once. `None`: three quarters of `max_waits`, as of a server's other limits.
    pub max_waits_per_caller: Option<usize>,
    /// Most commands, files and logs of one caller at once. `None`: three quarters of `max_streams`.
    pub max_streams_per_caller: Option<usize>,
}

impl Default for Served {
    fn default() -> Self {
        Self {
            default_namespace: "default".to_owned(),
            namespaces: Vec::new(),
            excluded_namespaces: Vec::new(),
            pod_policy: PodPolicies::default(),
            max_waits: MAX_WAITS,
            max_streams: MAX_STREAMS,
            max_waits_per_caller: None,
            max_streams_per_caller: None,
        }
    }
}

/// The order of namespaces, in which `a-b` comes before `a`: that of the keys `NAMESPACE/NAME` in the API server's storage.
/// Its pages over all namespaces have it, and to sort them anew would take all of them at once.
pub(crate) fn in_order(a: &str, b: &str) -> Ordering {
    let key = |namespace: &str| namespace.bytes().chain([b'/']).collect::<Vec<u8>>();
    key(a).cmp(&key(b))
}

impl Served {
    /// Whether a namespace is served.
    #[must_use]
    pub fn serves(&self, namespace: &str) -> bool {
        let named = |all: &[String]| all.iter().any(|one| one == namespace);
        (self.namespaces.is_empty() || named(&self.namespaces)) && !named(&self.excluded_namespaces)
    }

    /// Refuses a namespace that is not served.
    pub(crate) fn check(&self, namespace: &str) -> Result<()> {
        if self.serves(namespace) {
            return Ok(());
        }
        let message = format!("this server does not serve the namespace {namespace:?}");
        Err(Error::new(Reason::NamespaceNotServed, message).with_resource("namespace", namespace))
    }

    /// The namespaces that a list of one namespace, or of all (empty), reads one after the other. Empty text: all at once.
    pub(crate) fn scopes(&self, namespace: &str) -> Vec<String> {
        if !namespace.is_empty() || self.namespaces.is_empty() {
            return vec![namespace.to_owned()];
        }
        let mut scopes = self.namespaces.clone();
        scopes.retain(|one| self.serves(one));
        scopes.sort_unstable_by(|a, b| in_order(a, b));
        scopes.dedup();
        scopes
    }
}
