//! The client of the API server: its credentials, and the limits around its calls.

mod call;
mod connection;
pub mod limits;
pub mod protobuf;

use std::{path::PathBuf, sync::Arc, time::Duration};

use drover_core::Result;
use kube::Client;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_util::task::AbortOnDropHandle;

pub use call::Call;
pub use limits::{CallPermit, LimitLayer};

use connection::Connection;

/// Calls in flight at once. An API server serves a client some hundred at a time, and everybody else too.
pub const MAX_CONCURRENT_CALLS: usize = 32;
/// Time limit of a call. Longer than the 60 s of an API server would leave its own answer unheard of.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the API server is, and to what limits it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Kubeconfig file. `None`: `KUBECONFIG`, `~/.kube/config`, or the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. `None`: its current one.
    pub context: Option<String>,
    /// Calls in flight at once.
    pub max_concurrent_calls: usize,
    /// Time limit of a call.
    pub call_timeout: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            max_concurrent_calls: MAX_CONCURRENT_CALLS,
            call_timeout: CALL_TIMEOUT,
        }
    }
}

/// The client of the API server, with limits around every call. Cheap to clone.
#[derive(Clone)]
pub struct ApiClient {
    connection: Arc<Connection>,
    limits: LimitLayer,
    /// Reloads credentials for as long as the client is used.
    _following: Arc<AbortOnDropHandle<()>>,
}

impl ApiClient {
    /// Reads the credentials, which are read again when they change on disk. Does not contact the API server. Must be
    /// called within a runtime of tokio.
    ///
    /// # Errors
    /// `Precondition` if there are none, or they cannot be used.
    pub async fn open(settings: &ClientSettings) -> Result<Self> {
        let limits = LimitLayer::new(settings.max_concurrent_calls, settings.call_timeout);
        let (kubeconfig, context) = (settings.kubeconfig.clone(), settings.context.clone());
        let connection = Connection::open(kubeconfig, context, limits.clone()).await?;
        let connection = Arc::new(connection);
        let followed = Arc::clone(&connection);
        let following = tokio::spawn(async move { followed.follow().await });
        Ok(Self {
            connection,
            limits,
            _following: Arc::new(AbortOnDropHandle::new(following)),
        })
    }

    /// A client with the present credentials. Not to be kept: they change.
    #[must_use]
    pub fn kube(&self) -> Client {
        self.connection.client()
    }

    /// Waits until a call may be made. For callers that look afterwards whether they still want to; all others need not
    /// ask.
    pub async fn permit(&self) -> CallPermit {
        self.limits.permit().await
    }

    /// The credentials of [`ApiClient::kube`], for [`ApiClient::renew`].
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        Credentials(self.connection.digest())
    }

    /// Checks the files of the credentials now, rather than soon. Returns whether there are others than these.
    pub async fn renew(&self, refused: &Credentials) -> bool {
        self.connection.reload(&refused.0).await
    }

    /// Namespace of the kubeconfig's context, or of the pod that this runs in.
    #[must_use]
    pub fn default_namespace(&self) -> String {
        self.connection.default_namespace()
    }
}

/// Credentials that can be told from others, and not read.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(connection::Digested);

/// The clients of a process: one for each set of settings, so that its limits hold for all who use it.
#[derive(Default)]
pub struct Clients(tokio::sync::Mutex<Vec<(ClientSettings, ApiClient)>>);

impl Clients {
    /// The client with these settings.
    ///
    /// # Errors
    /// See [`ApiClient::open`].
    pub async fn get(&self, settings: &ClientSettings) -> Result<ApiClient> {
        let mut opened = self.0.lock().await;
        if let Some((_, client)) = opened.iter().find(|(known, _)| known == settings) {
            return Ok(client.clone());
        }
        let client = ApiClient::open(settings).await?;
        opened.push((settings.clone(), client.clone()));
        Ok(client)
    }
}

/// What is written as it is in a segment of a path (RFC 3986, unreserved).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Percent-encodes text for a path, into which kube writes it as it is.
#[must_use]
pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

#[cfg(test)]
mod tests;
