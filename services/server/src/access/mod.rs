//! Authentication and authorization of callers.
//!
//! ```text
//! certificate (verified by TLS) ─┐
//! bearer token (static, OIDC) ───┤
//! another replica vouches ───────┼─> Identity ─ bindings of the access file ─> grants ─> Caller
//! nothing (anonymous) ───────────┘                                               │
//!                          permission of the call ─ here, from a single table ────┤
//!                          scope by cluster ─ in the handlers, by asking Caller ──┘
//! ```
//!
//! Without an access file and `tls.client_ca`, everyone who can connect may do everything. With `tls.client_ca` alone,
//! the roles are those claimed by the certificates that `drover certs` issues (`spiffe://drover/ROLE/NAME`).

mod deny;
mod file;
mod forwarded;
mod oidc;
mod permissions;
mod place;
mod policy;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use drover_core::{Error, Reason};
use drover_tls::Peer;
use http::{HeaderMap, header};
use tokio::time::Instant;

use self::{
    file::{AccessFile, Proof},
    policy::{Left, Policy},
};
pub(crate) use self::{
    file::{Lease, Terms},
    forwarded::{Believed, CALLER, caller},
    permissions::http_permission,
};
pub use self::{
    forwarded::{Forwarded, Forwarding, Replicas, Voucher},
    permissions::{Permission, Role, permission},
    place::{Part, Place, Refusal},
    policy::{AccessError, Grant},
};
use crate::ServerSettings;

/// Maximum length of an object name in the audit log in bytes, so that callers cannot write arbitrarily long lines.
const LONGEST_OBJECT: usize = 512;

/// An authenticated identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `spiffe://…`, `cn:…`, `token:…`, `oidc:…` or `anonymous`.
    name: Arc<str>,
    /// Groups according to an OIDC provider.
    groups: Vec<String>,
    /// Whether the provider omitted further groups from the token.
    groups_withheld: bool,
    /// The role that a Drover certificate claims.
    claimed: Option<String>,
}

impl Identity {
    /// The anonymous identity.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: "anonymous".into(),
            groups: Vec::new(),
            groups_withheld: false,
            claimed: None,
        }
    }

    /// The identity of a static token, by its subject `token:…`.
    fn token(name: Arc<str>) -> Self {
        Self {
            name,
            groups: Vec::new(),
            groups_withheld: false,
            claimed: None,
        }
    }

    /// `spiffe://…`, `cn:…`, `token:…`, `oidc:…` or `anonymous`.
    pub(crate) fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    pub(crate) fn peer(peer: &Peer) -> Self {
        let name = peer.name();
        Self {
            // A common name must not be mistaken for another kind of identity.
            name: if name.starts_with("spiffe://") {
                name.into()
            } else {
                format!("cn:{name}").into()
            },
            groups: Vec::new(),
            groups_withheld: false,
            claimed: peer.role().map(ToOwned::to_owned),
        }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        &*self.name == "anonymous"
    }

    /// Whether a subject of a binding matches the identity.
    fn is(&self, subject: &str) -> bool {
        if self.is_anonymous() {
            return subject == "anonymous";
        }
        if let Some(group) = subject.strip_prefix("group:") {
            return self.groups.iter().any(|one| policy::matches(group, one));
        }
        subject != "anonymous" && policy::matches(subject, &self.name)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The authorized caller, by which handlers determine the clusters that it may see and change.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// `None` if everything is allowed.
    grants: Option<Arc<[Grant]>>,
    object: Arc<OnceLock<String>>,
}

impl Caller {
    /// The caller of a request. A request that did not pass through a server of this crate may do everything.
    #[must_use]
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request
            .extensions()
            .get::<Self>()
            .cloned()
            .unwrap_or_default()
    }

    /// Nobody, who may do nothing.
    #[must_use]
    pub fn nobody() -> Self {
        Self::new([].into())
    }

    fn new(grants: Arc<[Grant]>) -> Self {
        Self {
            grants: Some(grants),
            object: Arc::default(),
        }
    }

    fn may(
        &self,
        permission: Permission,
        cluster: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> bool {
        self.grants.as_ref().is_none_or(|grants| {
            grants
                .iter()
                .any(|grant| grant.role.has(permission) && grant.covers(cluster, labels))
        })
    }

    /// Whether it may see a cluster. Without known labels, `labels` is `None`.
    #[must_use]
    pub fn sees(&self, cluster: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.may(Permission::Read, cluster, labels)
    }

    /// Whether it may change a cluster.
    #[must_use]
    pub fn changes(&self, cluster: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.may(Permission::Change, cluster, labels)
    }

    /// Whether it may see all clusters.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.grants.as_ref().is_none_or(|grants| {
            grants
                .iter()
                .any(|grant| grant.role.has(Permission::Read) && grant.is_whole())
        })
    }

    /// Whether it may do this to what is in a namespace of a Kubernetes; `None` for what is in no namespace.
    #[must_use]
    pub fn reaches(&self, permission: Permission, namespace: Option<&str>) -> bool {
        self.grants.as_ref().is_none_or(|grants| {
            grants
                .iter()
                .any(|grant| grant.role.has(permission) && grant.limits.reach(namespace))
        })
    }

    /// Sets the object of the call in the audit log (`cluster/orders`). Only the first call has an effect. Names are
    /// truncated to 512 bytes; no existing object has a longer name.
    pub fn about(&self, kind: &str, name: &str) {
        let name = &name[..name.floor_char_boundary(LONGEST_OBJECT)];
        self.object.get_or_init(|| format!("{kind}/{name}"));
    }

    pub(crate) fn object(&self) -> Option<&str> {
        self.object.get().map(String::as_str)
    }
}

/// Authentication and authorization of callers.
#[derive(Clone, Debug, Default)]
pub(crate) enum Access {
    /// Everyone may do everything.
    #[default]
    Open,
    /// Roles as claimed by certificates.
    Certificates,
    /// Rules of an access file.
    File(Arc<AccessFile>),
}

/// Result of authorizing a call.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub(crate) who: Identity,
    pub(crate) outcome: Result<Caller, Error>,
    /// The conditions under which the call may continue. `None` for no conditions.
    pub(crate) lease: Option<Terms>,
}

/// The properties of a call that are known before its message is read.
pub(crate) struct Asked<'a> {
    /// Identity of the remote side according to TLS.
    pub(crate) peer: Option<&'a Result<Peer, String>>,
    pub(crate) headers: &'a HeaderMap,
    /// The caller, if another replica has forwarded the call.
    pub(crate) forwarded: Option<Result<Forwarded, Error>>,
    /// `None` if the call is not in the permission table.
    pub(crate) permission: Option<Permission>,
}

impl Access {
    /// Creates the access control for the settings. Fails if the access file is invalid.
    pub(crate) fn of(settings: &ServerSettings) -> Result<Self, AccessError> {
        Ok(match (&settings.access, &settings.tls.client_ca) {
            (Some(path), _) => Self::File(Arc::new(AccessFile::load(path.clone())?)),
            (None, Some(_)) => Self::Certificates,
            (None, None) => Self::Open,
        })
    }

    /// Authenticates and authorizes a call.
    pub(crate) async fn judge(&self, asked: Asked<'_>) -> Judgement {
        let open = asked.permission == Some(Permission::Open);
        let (policy, replaced) = match self {
            Self::File(file) => {
                let (policy, replaced) = file.current();
                (Some(policy), Some((file.clone(), replaced)))
            }
            Self::Open | Self::Certificates => (None, None),
        };
        if matches!(self, Self::Open) {
            let who = match (&asked.forwarded, asked.peer) {
                (Some(Ok(caller)), _) => caller.who.clone(),
                (_, Some(Ok(peer))) => Identity::peer(peer),
                _ => Identity::anonymous(),
            };
            return Judgement {
                who,
                outcome: match asked.forwarded {
                    Some(Err(error)) => Err(error),
                    _ => Ok(Caller::default()),
                },
                lease: None,
            };
        }
        let (who, proof) = match identify(policy.as_deref(), &asked).await {
            Ok(known) => known,
            Err(_) if open => (Identity::anonymous(), Proof::Connection),
            Err(error) => {
                return Judgement {
                    who: Identity::anonymous(),
                    outcome: Err(error),
                    lease: None,
                };
            }
        };
        let shown = match &asked.forwarded {
            Some(caller) => caller.as_ref().ok().and_then(|it| it.shown.clone()),
            None => asked
                .peer
                .and_then(|peer| peer.as_ref().ok())
                .map(Identity::peer),
        };
        let denied_by_rules = match &policy {
            Some(policy) if !open => policy.denials.check(&who, shown.as_ref()),
            _ => Ok(()),
        };
        if let Err(error) = denied_by_rules {
            return Judgement {
                who,
                outcome: Err(error),
                lease: None,
            };
        }
        let grants = match &policy {
            Some(policy) => policy.grants(&who),
            None => who
                .claimed
                .as_deref()
                .map(Role::of_identity)
                .unwrap_or_default()
                .iter()
                .map(|role| Grant::whole(*role))
                .collect(),
        };
        let allowed = open
            || asked
                .permission
                .is_some_and(|permission| grants.iter().any(|grant| grant.role.has(permission)));
        if !allowed {
            let error = denied(&who, &grants, asked.permission);
            return Judgement {
                who,
                outcome: Err(error),
                lease: None,
            };
        }
        let caller = Caller::new(grants);
        let lease = replaced
            .filter(|_| !open)
            .map(|(file, replaced)| Terms::new(file, (&who, shown), proof, &caller, replaced));
        Judgement {
            who,
            outcome: Ok(caller),
            lease,
        }
    }
}

async fn identify(policy: Option<&Policy>, asked: &Asked<'_>) -> Result<(Identity, Proof), Error> {
    let refused = |why: &str| Error::new(Reason::Unauthenticated, why);
    if let Some(caller) = &asked.forwarded {
        return Ok((caller.clone()?.who, Proof::Connection));
    }
    if let Some(value) = asked.headers.get(header::AUTHORIZATION) {
        let policy = policy
            .filter(|policy| policy.knows_tokens())
            .ok_or_else(|| refused("a token was sent, and this server knows none"))?;
        let token = value
            .to_str()
            .ok()
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| refused("the authorization header is not a bearer token"))?;
        let digest = policy::digest(token);
        if let Some(token) = policy.token(&digest) {
            let left = token
                .left()
                .ok_or_else(|| refused("the token has expired; call again with a new one"))?;
            let until = match left {
                Left::Forever => None,
                // An expiry that cannot be represented never comes.
                Left::For(left) => Instant::now().checked_add(left),
            };
            let proof = Proof::Token(digest, token.clone(), until);
            return Ok((Identity::token(token.subject.clone()), proof));
        }
        return match &policy.oidc {
            Some(oidc) => {
                // Boxed: few calls bring such a token, and all would have room for it.
                let (who, until) = Box::pin(oidc.identify(token)).await?;
                Ok((who, Proof::Provider(oidc.clone(), until)))
            }
            None => Err(refused("the token is not known here")),
        };
    }
    let who = match asked.peer {
        Some(Ok(peer)) => Identity::peer(peer),
        Some(Err(why)) => return Err(refused(why)),
        None => Identity::anonymous(),
    };
    Ok((who, Proof::Connection))
}

fn denied(who: &Identity, grants: &[Grant], permission: Option<Permission>) -> Error {
    if who.is_anonymous() {
        return Error::new(
            Reason::Unauthenticated,
            "this server wants to know who calls: a client certificate (--cert and --key) or a token \
             (--token-file), and neither was shown",
        );
    }
    let needed: Vec<String> = permission
        .map(|permission| {
            Role::ALL
                .into_iter()
                .filter(|role| role.has(permission))
                .map(|role| role.to_string())
                .collect()
        })
        .unwrap_or_default();
    let mut has: Vec<String> = grants.iter().map(|grant| grant.role.to_string()).collect();
    has.sort();
    has.dedup();
    let has = if has.is_empty() {
        "no role".to_owned()
    } else {
        has.join(", ")
    };
    let message = if needed.is_empty() {
        format!("nobody may call this: it has no permission; {who} has {has}")
    } else {
        format!("{who} has {has}; this needs {}", needed.join(" or "))
    };
    Error::new(Reason::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use drover_proto::DESCRIPTORS;
    use prost::Message;

    use super::*;

    #[test]
    fn every_call_has_a_permission() {
        let set = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let mut calls = 0;
        for file in &set.file {
            for service in &file.service {
                let full = format!("{}.{}", file.package(), service.name());
                for method in &service.method {
                    let found = permission(&full, method.name());
                    assert!(found.is_some(), "{full}/{} is in no table", method.name());
                    // Reading must not require a permission for changes, nor the reverse.
                    let reads = method
                        .options
                        .as_ref()
                        .is_some_and(|options| options.idempotency_level() as i32 == 1);
                    if reads && found != Some(Permission::Administer) {
                        assert!(
                            found.unwrap().is_read(),
                            "{full}/{} changes nothing",
                            method.name()
                        );
                    }
                    calls += 1;
                }
            }
        }
        assert!(calls > 40, "{calls}");
    }

    #[test]
    fn roles_have_what_they_need_and_no_more() {
        use Permission as P;
        let all = [
            P::Open,
            P::Known,
            P::Read,
            P::Change,
            P::Administer,
            P::PlatformRead,
            P::PlatformChange,
            P::Agent,
            P::ResourceRead,
            P::ResourceChange,
            P::PodAccess,
        ];
        let has = |role: Role| -> Vec<P> { all.into_iter().filter(|p| role.has(*p)).collect() };
        assert_eq!(has(Role::Viewer), [P::Open, P::Known, P::Read]);
        assert_eq!(has(Role::Operator), [P::Open, P::Known, P::Read, P::Change]);
        assert_eq!(has(Role::Admin), all);
        assert_eq!(
            has(Role::Platform),
            [P::Open, P::Known, P::PlatformRead, P::PlatformChange]
        );
        assert_eq!(has(Role::Agent), [P::Open, P::Known, P::Agent]);
        assert_eq!(
            has(Role::ResourceViewer),
            [P::Open, P::Known, P::ResourceRead]
        );
        assert_eq!(
            has(Role::ResourceOperator),
            [
                P::Open,
                P::Known,
                P::ResourceRead,
                P::ResourceChange,
                P::PodAccess
            ]
        );
    }

    #[test]
    fn a_name_does_not_pass_for_another_kind() {
        let token = Identity::token("token:a".into());
        assert!(token.is("token:a") && token.is("token:*") && token.is("*"));
        assert!(!token.is("cn:a") && !token.is("anonymous") && !token.is("group:a"));
        let nobody = Identity::anonymous();
        assert!(nobody.is("anonymous") && !nobody.is("*"));
        let member = Identity {
            groups: vec!["sre".to_owned()],
            ..Identity::token("token:a".into())
        };
        assert!(member.is("group:sre") && !member.is("group:s"));
    }
}
