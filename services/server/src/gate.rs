//! Who may come in.

use drover_core::{Error, Reason};
use http::Extensions;

use crate::{ServerSettings, encryption::Shown, service::HEALTH};

/// What is answered to everybody over plain HTTP: kubelets and load balancers have no certificate.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];
const METRICS: &str = "/metrics";

/// Decides about every call and every request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    /// Whether a certificate is needed.
    demand: bool,
    /// Whether metrics need none.
    open_metrics: bool,
}

impl Gate {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        Self {
            demand: settings.tls.client_ca.is_some(),
            open_metrics: !settings.metrics_auth,
        }
    }

    /// Whether a call of this service may go on.
    pub(crate) fn call(&self, service: &str, extensions: &Extensions) -> Result<(), Error> {
        if service == HEALTH {
            return Ok(());
        }
        self.known(extensions)
    }

    /// Whether a request of plain HTTP may go on.
    pub(crate) fn request(&self, path: &str, extensions: &Extensions) -> Result<(), Error> {
        if OPEN_PATHS.contains(&path) || (path == METRICS && self.open_metrics) {
            return Ok(());
        }
        self.known(extensions)
    }

    fn known(&self, extensions: &Extensions) -> Result<(), Error> {
        if !self.demand {
            return Ok(());
        }
        let why = match extensions.get::<std::sync::Arc<Shown>>().map(AsRef::as_ref) {
            Some(Ok(_)) => return Ok(()),
            Some(Err(why)) => why.clone(),
            None => "this server wants a client certificate (--cert and --key), and none was shown"
                .to_owned(),
        };
        Err(Error::new(Reason::Unauthenticated, why))
    }
}
