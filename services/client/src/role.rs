//! The role that a server must have.

use std::sync::{Arc, OnceLock};

use drover_tls::{explain, peer};
use rustls::pki_types::CertificateDer;

/// Role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Orchestrator,
    Platform,
}

/// The role that a server must have, once one was set. Clones share it: the role is known to the code that creates a
/// typed client for a channel, and connections are only established by the first call after that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    role: Arc<OnceLock<Role>>,
    /// Whether the certificate must state the role.
    required: bool,
}

impl Wanted {
    pub(crate) fn new(required: bool) -> Self {
        Self {
            role: Arc::default(),
            required,
        }
    }

    /// Sets the role; only the first call has an effect.
    pub(crate) fn want(&self, role: Role) {
        self.role.get_or_init(|| role);
    }

    /// Checks that the certificate of a server has the required role. The error is human-readable.
    pub(crate) fn check(&self, server: Option<&CertificateDer<'_>>) -> Result<(), String> {
        let (Some(role), Some(server)) = (self.role.get(), server) else {
            return Ok(());
        };
        let role = match role {
            Role::Orchestrator => "orchestrator",
            Role::Platform => "platform",
        };
        peer::check_role(server, role, self.required).map_err(|why| explain::wrong_role(&why))
    }
}
