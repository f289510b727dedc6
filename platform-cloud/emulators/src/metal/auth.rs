//! Authentication: HMAC as in metal-stack's `security` library, or a bearer token.

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use super::World;
use crate::server::Call;

/// Access level of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only.
    View,
    /// Read, allocate and free.
    Edit,
}

/// Maximum age of a signature.
const LIFETIME: SignedDuration = SignedDuration::from_secs(15);

impl World {
    /// Returns the access level of a call. `None` if its credentials are rejected.
    pub(super) fn access(&self, call: &Call) -> Option<Access> {
        let (kind, secret) = call.header("authorization")?.split_once(' ')?;
        let state = self.state.lock();
        if kind.eq_ignore_ascii_case("bearer") {
            return state.tokens.get(secret).copied();
        }
        let key = self.settings.hmac.get(kind).filter(|_| !state.expired)?;
        let date = call.header("x-date")?;
        let signed: Timestamp = date.parse().ok()?;
        if self.clock.now().duration_since(signed) > LIFETIME {
            return None;
        }
        let salt = call.header("x-data-salt")?;
        let message = [date, call.method.as_str(), salt].concat();
        if hmac(key.as_bytes(), message.as_bytes()) != secret {
            return None;
        }
        Some(if kind == "Metal-View" {
            Access::View
        } else {
            Access::Edit
        })
    }
}

/// HMAC-SHA256 in hexadecimal (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> String {
    let mut block = [0_u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x36))
        .chain_update(message)
        .finalize();
    let outer = Sha256::new()
        .chain_update(block.map(|byte| byte ^ 0x5c))
        .chain_update(inner)
        .finalize();
    outer.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_second_test_case_of_rfc_4231_holds() {
        let mac = super::hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(
            mac,
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }
}
