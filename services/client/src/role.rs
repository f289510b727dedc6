//! What the server at the other end has to be.

use std::sync::{Arc, OnceLock};

use drover_tls::{explain, peer};
use rustls::pki_types::CertificateDer;

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Orchestrator,
    Platform,
}

/// The role that a server must have, once somebody wants one. Clones share it: who makes a typed client of a channel knows
/// it, and connections are made by the first call after that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    role: Arc<OnceLock<Role>>,
    /// Whether its certificate has to say so.
    required: bool,
}

impl Wanted {
    pub(crate) fn new(required: bool) -> Self {
        Self {
            role: Arc::default(),
            required,
        }
    }

    /// The first one counts.
    pub(crate) fn want(&self, role: Role) {
        self.role.get_or_init(|| role);
    }

    /// Whether a server with this certificate is what is wanted. Errors: in words.
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
