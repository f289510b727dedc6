//! Reloading of the access file, and revocation of streams that were opened under earlier rules.

use std::{
    fmt,
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use drover_core::Error;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    AccessError, Caller, Grant, Identity,
    oidc::Oidc,
    policy::{Policy, StaticToken, read_text},
};

/// Interval at which the access file is checked. A change takes effect once two consecutive checks find the same
/// content.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The access file and its current rules.
#[derive(Debug)]
pub(crate) struct AccessFile {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    policy: Arc<Policy>,
    /// Cancelled when another policy replaces this one.
    replaced: CancellationToken,
    loaded: String,
    pending: Option<Result<String, AccessError>>,
    refused: Option<Result<String, AccessError>>,
}

impl AccessFile {
    pub(crate) fn load(path: PathBuf) -> Result<Self, AccessError> {
        let text = read_text(&path)?;
        let policy = Policy::read(&path, &text, None)?;
        let state = Mutex::new(State {
            policy: Arc::new(policy),
            replaced: CancellationToken::new(),
            loaded: text,
            pending: None,
            refused: None,
        });
        Ok(Self { path, state })
    }

    /// The current policy, and a token that is cancelled when it is replaced.
    pub(super) fn current(&self) -> (Arc<Policy>, CancellationToken) {
        let state = self.state.lock();
        (state.policy.clone(), state.replaced.clone())
    }

    /// Checks the file once. Returns whether new rules are in effect, or, once for each content, why its rules are
    /// invalid.
    fn look(&self) -> Result<bool, AccessError> {
        let found = read_text(&self.path);
        let mut state = self.state.lock();
        if found.as_ref().is_ok_and(|text| *text == state.loaded) {
            state.pending = None;
            state.refused = None;
            return Ok(false);
        }
        if state.refused.as_ref() == Some(&found) {
            return Ok(false);
        }
        if state.pending.as_ref() != Some(&found) {
            state.pending = Some(found);
            return Ok(false);
        }
        state.pending = None;
        let read = found
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|text| Policy::read(&self.path, text, Some(&state.policy)));
        match read {
            Ok(policy) => {
                state.policy = Arc::new(policy);
                std::mem::take(&mut state.replaced).cancel();
                state.loaded = found.unwrap_or_default();
                state.refused = None;
                Ok(true)
            }
            Err(error) => {
                state.refused = Some(found);
                Err(error)
            }
        }
    }

    /// Checks the file and the keys of the OIDC provider periodically. Runs until the runtime shuts down.
    pub(crate) async fn follow(self: Arc<Self>) {
        // Concurrently, because the provider may be slow and must not delay the rules.
        tokio::join!(self.follow_rules(), self.follow_keys());
    }

    async fn follow_keys(&self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let oidc = self.current().0.oidc.clone();
            if let Some(oidc) = oidc {
                oidc.refresh().await;
            }
        }
    }

    async fn follow_rules(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let this = self.clone();
            match tokio::task::spawn_blocking(move || this.look()).await {
                Ok(Ok(true)) => {
                    tracing::info!(path = %self.path.display(), "new access rules in use");
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::error!(%error, "the changed access rules cannot be used; the last good ones stay");
                }
                // The runtime is shutting down.
                Err(_) => return,
            }
        }
    }
}

/// Evidence for an identity.
#[derive(Clone, Debug)]
pub(super) enum Proof {
    /// Verified by TLS, or anonymous.
    Connection,
    /// A static token: its digest, its entry in the rules, and its expiry.
    Token([u8; 32], StaticToken, Option<Instant>),
    /// A token of an OIDC provider, and its expiry.
    Provider(Arc<Oidc>, Instant),
}

/// The conditions under which a call was authorized.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    file: Arc<AccessFile>,
    who: Identity,
    /// Identity in the certificate of the connection, even if the call is authenticated by a token.
    shown: Option<Identity>,
    proof: Proof,
    grants: Arc<[Grant]>,
    replaced: CancellationToken,
}

impl Terms {
    pub(super) fn new(
        file: Arc<AccessFile>,
        (who, shown): (&Identity, Option<Identity>),
        proof: Proof,
        caller: &Caller,
        replaced: CancellationToken,
    ) -> Self {
        Self {
            file,
            who: who.clone(),
            shown,
            proof,
            grants: caller.grants.clone().unwrap_or_default(),
            replaced,
        }
    }

    /// Begins the call.
    pub(crate) fn begin(self) -> Lease {
        let expiry = match &self.proof {
            Proof::Provider(_, until) | Proof::Token(_, _, Some(until)) => {
                Some(Box::pin(tokio::time::sleep_until(*until)))
            }
            Proof::Connection | Proof::Token(_, _, None) => None,
        };
        Lease {
            file: self.file,
            who: self.who,
            shown: self.shown,
            proof: self.proof,
            grants: self.grants,
            replaced: Box::pin(self.replaced.cancelled_owned()),
            expiry,
        }
    }
}

/// The right of a call to continue. It ends when the rules for its caller change, or when its token expires.
pub(crate) struct Lease {
    file: Arc<AccessFile>,
    who: Identity,
    shown: Option<Identity>,
    proof: Proof,
    grants: Arc<[Grant]>,
    replaced: Pin<Box<WaitForCancellationFutureOwned>>,
    expiry: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("who", &self.who)
            .finish_non_exhaustive()
    }
}

impl Lease {
    /// Resolves with the reason once the lease has ended. A new call is authorized again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if let Some(expiry) = &mut self.expiry
            && expiry.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Error::unavailable(
                "the token has expired; call again with a new one",
            ));
        }
        while self.replaced.as_mut().poll(cx).is_ready() {
            let (policy, replaced) = self.file.current();
            let known = match &self.proof {
                Proof::Connection => true,
                Proof::Token(digest, token, _) => policy.token(digest) == Some(token),
                Proof::Provider(oidc, _) => policy
                    .oidc
                    .as_ref()
                    .is_some_and(|now| Arc::ptr_eq(now, oidc)),
            };
            let denied = policy
                .denials
                .check(&self.who, self.shown.as_ref())
                .is_err();
            if !known || denied || policy.grants(&self.who) != self.grants {
                return Poll::Ready(Error::unavailable(
                    "the access rules have changed; call again",
                ));
            }
            self.replaced = Box::pin(replaced.cancelled_owned());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_rules_are_said_once_and_the_last_good_ones_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.yaml");
        let good = "bindings: [{role: viewer, subjects: ['*']}]";
        std::fs::write(&path, good).unwrap();
        let file = AccessFile::load(path.clone()).unwrap();
        let before = file.current().0;
        assert_eq!(file.look(), Ok(false));
        std::fs::write(&path, "bindings: 7").unwrap();
        // The file may still be being written.
        assert_eq!(file.look(), Ok(false));
        assert!(file.look().is_err());
        for _ in 0..10 {
            assert_eq!(file.look(), Ok(false));
        }
        assert!(Arc::ptr_eq(&before, &file.current().0));
        std::fs::write(&path, "bindings: []").unwrap();
        assert_eq!(file.look(), Ok(false));
        assert_eq!(file.look(), Ok(true));
        assert!(
            file.current()
                .0
                .grants(&Identity::token("token:a".into()))
                .is_empty()
        );
    }
}
