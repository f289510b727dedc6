//! Users of etcd who log in with a password. Others are known by their certificate.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use drover_client::Channel;
use drover_core::{Error, Reason, Result};
use parking_lot::RwLock;
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, sleep_until, timeout},
};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
};

use crate::api::{AuthenticateRequest, auth_client::AuthClient};

/// How long a login may take: its member checks the password with bcrypt, and all of them note the token.
const LOGIN: Duration = Duration::from_secs(2);
/// Least time from one login to the next, so that those of several replicas leave etcd its processors, whatever makes it
/// refuse their tokens again and again.
const REST: Duration = Duration::from_millis(500);

/// A user who logs in. All calls of a backend share what a login yields.
#[derive(Clone)]
pub(crate) struct Login(Arc<Inner>);

struct Inner {
    user: String,
    password_file: PathBuf,
    pass: RwLock<Option<Pass>>,
    turn: Arc<Mutex<Turn>>,
}

/// What a call shows.
#[derive(Clone, Default)]
pub(crate) struct Pass {
    /// None for calls that a certificate speaks for, and where etcd asks nobody.
    token: Option<MetadataValue<Ascii>>,
    /// Tells passes apart: tokens of two logins can be equal.
    number: u64,
}

/// Held by whoever logs in: only one at a time, and the others take what it got.
#[derive(Default)]
struct Turn {
    logins: u64,
    /// When one has succeeded.
    last: Option<Instant>,
    /// When the user was refused, and how.
    refused: Option<(Instant, Status)>,
}

impl Login {
    /// The password is read at each login; here it is only checked that there is one.
    ///
    /// # Errors
    /// Why the file holds no password.
    pub(crate) fn new(user: String, password_file: PathBuf) -> Result<Self, String> {
        password(&password_file, std::fs::read_to_string(&password_file))?;
        Ok(Self(Arc::new(Inner {
            user,
            password_file,
            pass: RwLock::default(),
            turn: Arc::default(),
        })))
    }

    /// What calls show at present. Logs in at this member if nobody has.
    pub(crate) async fn pass(&self, member: &Channel) -> Result<Pass, Status> {
        match self.0.other_than(None) {
            Some(pass) => Ok(pass),
            None => self.log_in(None, member).await,
        }
    }

    /// What to show instead of what a member has refused.
    pub(crate) async fn renewed(&self, refused: &Pass, member: &Channel) -> Result<Pass, Status> {
        self.log_in(Some(refused.number), member).await
    }

    /// Has the next call log in. A member that was put back to an earlier state does not refuse later tokens: it waits until
    /// it is as far.
    pub(crate) fn forget(&self) {
        *self.0.pass.write() = None;
    }

    async fn log_in(&self, refused: Option<u64>, member: &Channel) -> Result<Pass, Status> {
        let inner = self.0.clone();
        let turn = inner.turn.clone().lock_owned().await;
        // Somebody else was quicker.
        if let Some(pass) = inner.other_than(refused) {
            return Ok(pass);
        }
        if let Some((at, status)) = &turn.refused
            && at.elapsed() < REST
        {
            return Err(status.clone());
        }
        // A task of its own: calls may wait less long than a login takes, and the next one finds what it got.
        let login = tokio::spawn(inner.take(turn, member.clone()));
        let stopped = |_| Err(Status::unavailable("the login was stopped"));
        login.await.unwrap_or_else(stopped)
    }
}

impl Inner {
    fn other_than(&self, refused: Option<u64>) -> Option<Pass> {
        let pass = self.pass.read();
        let other = pass.as_ref().filter(|pass| Some(pass.number) != refused);
        other.cloned()
    }

    async fn take(
        self: Arc<Self>,
        mut turn: OwnedMutexGuard<Turn>,
        member: Channel,
    ) -> Result<Pass, Status> {
        if let Some(last) = turn.last {
            sleep_until(last + REST).await;
        }
        let late = || Status::deadline_exceeded("etcd did not answer a login in time");
        let outcome = timeout(LOGIN, self.authenticate(member)).await;
        match outcome.unwrap_or_else(|_| Err(late())) {
            Ok(token) => {
                turn.logins += 1;
                turn.last = Some(Instant::now());
                let pass = Pass {
                    token,
                    number: turn.logins,
                };
                *self.pass.write() = Some(pass.clone());
                Ok(pass)
            }
            Err(status) => {
                if refusal(&status).is_some() {
                    if turn.last.is_some() {
                        tracing::warn!(why = status.message(), "cannot log in to etcd again");
                    }
                    turn.refused = Some((Instant::now(), status.clone()));
                }
                Err(status)
            }
        }
    }

    async fn authenticate(&self, member: Channel) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let read = tokio::fs::read_to_string(&self.password_file).await;
        let password = password(&self.password_file, read)
            .map_err(|why| refused(format!("etcd.password_file: {why}")))?;
        let request = AuthenticateRequest {
            name: self.user.clone(),
            password,
        };
        // Without a pass: a login with one that is not valid is refused, too.
        let status = match AuthClient::new(member).authenticate(request).await {
            Ok(answer) => return token(&answer.into_inner().token).map(Some),
            Err(status) => status,
        };
        if status.message().contains("authentication is not enabled") {
            tracing::warn!(
                "etcd asks nobody for a password: whoever reaches it may read and write"
            );
            return Ok(None);
        }
        if !is_final(&status) {
            return Err(status);
        }
        // After which part of etcd it was.
        let why = status.message();
        let why = why.rsplit_once(": ").map_or(why, |(_, why)| why);
        Err(refused(format!(
            "etcd refuses user {:?}: {why} (etcd.user, etcd.password_file)",
            self.user
        )))
    }
}

impl Interceptor for Pass {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        Ok(request)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?})", self.0.user)
    }
}

/// The password in a file, or why there is none.
fn password(path: &Path, read: io::Result<String>) -> Result<String, String> {
    let text = read.map_err(|error| format!("{}: {error}", path.display()))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err(format!("{}: holds no password", path.display()));
    }
    Ok(line.to_owned())
}

fn token(text: &str) -> Result<MetadataValue<Ascii>, Status> {
    let token = text.parse::<MetadataValue<Ascii>>();
    let mut token = token.map_err(|_| Status::internal("etcd gave a token that is none"))?;
    token.set_sensitive(true);
    Ok(token)
}

/// Whether no member of etcd would let the user in.
fn is_final(status: &Status) -> bool {
    let codes = [
        Code::InvalidArgument,
        Code::FailedPrecondition,
        Code::PermissionDenied,
        Code::Unauthenticated,
    ];
    // Of a user without a password etcd says so without a code.
    codes.contains(&status.code()) || status.message().contains("authentication failed")
}

/// The status of a call that is not made since its user cannot log in.
fn refused(why: String) -> Status {
    let error = Error::new(Reason::Precondition, why);
    let mut status = Status::unauthenticated(error.message());
    status.set_source(Arc::new(error));
    status
}

/// Why the user cannot log in, if that is why a call was not made.
pub(crate) fn refusal(status: &Status) -> Option<&Error> {
    std::error::Error::source(status)?.downcast_ref()
}

/// Whether etcd does not know, or no more, who calls: the token has ended or was withdrawn, or etcd asks only since a moment
/// ago. It says so before it changes anything: a transaction is refused before it is proposed to the members
/// (`AuthInfoFromCtx` there), or by each of them before it looks at the comparisons (`checkTxnAuth`).
pub(crate) fn is_unknown(status: &Status) -> bool {
    let said = [
        "invalid auth token",
        "revision of auth store is old",
        "user name is empty",
        "user name not found",
    ];
    said.iter().any(|said| status.message().contains(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_a_file_without_its_last_newline() {
        let path = Path::new("/secret");
        let of = |text: &str| password(path, Ok(text.to_owned()));
        for text in ["a b", "a b\n", "a b\r\n"] {
            assert_eq!(of(text).as_deref(), Ok("a b"), "{text:?}");
        }
        assert_eq!(of(" a\n\n").as_deref(), Ok(" a\n"), "only one");
        for text in ["", "\n", "\r\n"] {
            let why = of(text).unwrap_err();
            assert!(why.contains("/secret"), "{why}");
        }
    }

    #[test]
    fn a_token_is_sent_and_not_shown() {
        let mut pass = Pass {
            token: Some(token("abc.17").unwrap()),
            number: 1,
        };
        let request = pass.call(Request::new(())).unwrap();
        let sent = request.metadata().get("token").unwrap();
        assert_eq!(sent.to_str().unwrap(), "abc.17");
        assert!(!format!("{request:?}").contains("abc"), "{request:?}");
        assert!(token("a\nb").is_err());
    }

    #[test]
    fn why_a_user_is_refused_is_known_of_the_call_that_was_not_made() {
        let status = refused("etcd refuses user \"a\"".to_owned()).clone();
        let error = refusal(&status).unwrap();
        assert_eq!(error.reason(), Reason::Precondition);
        assert_eq!(error.message(), status.message());
        assert_eq!(refusal(&Status::unauthenticated("by etcd")), None);
    }

    #[test]
    fn a_user_who_is_refused_is_told_from_trouble_of_one_member() {
        for (code, message) in [
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
            ),
            (
                Code::Unknown,
                "auth: authentication failed, password was given for no password user",
            ),
        ] {
            assert!(is_final(&Status::new(code, message)), "{message}");
        }
        for (code, message) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unknown, "transport error"),
        ] {
            assert!(!is_final(&Status::new(code, message)), "{message}");
        }
    }
}
