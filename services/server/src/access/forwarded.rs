//! Calls that another replica of this server forwards: it has authenticated the caller, and vouches for who it is.
//!
//! The vouching replica signs with a key that only lives in its process, and whose public half is published where only
//! replicas write. So there is nothing to distribute, and neither a certificate nor a backup of the store lets anyone
//! speak for others.

use std::{
    collections::HashSet,
    fmt,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use drover_core::{Error, Reason, Result};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use ring::{
    rand::{SecureRandom, SystemRandom},
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Identity;

/// Header with the caller of a forwarded call: claims and signature, in base64, with a dot between them.
pub(crate) const CALLER: HeaderName = HeaderName::from_static("drover-caller");

/// How long a claim holds. It bounds how far the clocks of two replicas may be apart.
const HOLDS: Duration = Duration::from_secs(60);

/// The replicas of a server, as each of them knows them.
pub trait Replicas: Send + Sync {
    /// Name of this replica.
    fn this(&self) -> String;

    /// Public key of this process, by which a call for one that had its name before is told.
    fn key(&self) -> &[u8];

    /// Whether a replica of this name lives and has published this public key. An error if that cannot be found out.
    /// Strangers make it ask, so a wrong key must cost little.
    fn publishes<'a>(&'a self, name: &'a str, key: &'a [u8]) -> BoxFuture<'a, Result<bool>>;
}

/// Vouches for callers whose calls this process forwards.
pub struct Voucher {
    key: Ed25519KeyPair,
}

impl fmt::Debug for Voucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Voucher").finish_non_exhaustive()
    }
}

/// A forwarded call.
#[derive(Clone, Copy, Debug)]
pub struct Forwarding<'a> {
    /// Name of the replica that forwards it.
    pub by: &'a str,
    /// Name of the replica that is to answer it.
    pub to: &'a str,
    /// Public key of its process.
    pub to_key: &'a [u8],
    /// Path of the call.
    pub path: &'a str,
}

/// The caller of a forwarded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Who calls.
    pub who: Identity,
    /// Who the caller is by the certificate of its connection, for rules about that beside a token.
    pub shown: Option<Identity>,
    /// Name of the replica that has forwarded the call. `None` if the caller itself has made it here.
    pub via: Option<String>,
}

impl Forwarded {
    /// A caller that this replica knows by itself.
    pub(crate) fn at_first_hand(who: Identity, shown: Option<Identity>) -> Self {
        Self {
            who,
            shown,
            via: None,
        }
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Person {
    name: String,
    groups: Vec<String>,
    groups_withheld: bool,
    role: Option<String>,
}

/// Replicas of the version before and after this one forward calls to it, and it to them: a field that one of them does not
/// know is passed over, and one that is missing has its default.
#[derive(Debug, Deserialize, Serialize)]
struct Claims {
    who: Person,
    shown: Option<Person>,
    by: String,
    to: String,
    path: String,
    key: String,
    /// Seconds since 1970.
    made: u64,
    /// Random, so that no two are alike.
    #[serde(default)]
    nonce: String,
    /// Of the process that is to answer. Its name outlives a restart, what it has believed does not.
    #[serde(default)]
    to_key: String,
}

/// Claims that were believed, each of which is believed once: whoever reads along may not make the same call again.
#[derive(Debug)]
pub(crate) struct Believed(Mutex<Claimed>);

#[derive(Debug)]
struct Claimed {
    /// Those since then, and those of the time before, which are remembered as long as they could hold.
    since: Instant,
    now: HashSet<Signature>,
    before: HashSet<Signature>,
}

/// Of claims. Each of the same claims has the same one.
type Signature = [u8; 64];

impl Default for Believed {
    fn default() -> Self {
        Self(Mutex::new(Claimed {
            since: Instant::now(),
            now: HashSet::new(),
            before: HashSet::new(),
        }))
    }
}

impl Believed {
    /// Whether nobody has claimed this before.
    fn is_first(&self, signature: Signature) -> bool {
        let mut claimed = self.0.lock();
        // A claim holds for as long before the time that it says as after it.
        if claimed.since.elapsed() > 2 * HOLDS {
            claimed.before = std::mem::take(&mut claimed.now);
            claimed.since = Instant::now();
        }
        !claimed.before.contains(&signature) && claimed.now.insert(signature)
    }
}

impl Voucher {
    /// Generates the key of this process.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub fn generate() -> Result<Self> {
        let failed = |_| Error::internal("the system has no random numbers");
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let key = Ed25519KeyPair::from_pkcs8(key.as_ref())
            .map_err(|_| Error::internal("a key that was generated cannot be read"))?;
        Ok(Self { key })
    }

    /// The public key, to be published as that of this replica.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        self.key.public_key().as_ref()
    }

    /// Replaces what the headers say of the caller.
    ///
    /// # Errors
    /// `Internal` if the identity cannot be written down.
    pub fn vouch(
        &self,
        caller: &Forwarded,
        call: Forwarding<'_>,
        headers: &mut HeaderMap,
    ) -> Result<()> {
        let mut nonce = [0; 16];
        let failed = |_| Error::internal("the system has no random numbers");
        SystemRandom::new().fill(&mut nonce).map_err(failed)?;
        let claims = Claims {
            who: Person::of(&caller.who),
            shown: caller.shown.as_ref().map(Person::of),
            by: call.by.to_owned(),
            to: call.to.to_owned(),
            path: call.path.to_owned(),
            key: URL_SAFE_NO_PAD.encode(self.public_key()),
            made: now(),
            nonce: URL_SAFE_NO_PAD.encode(nonce),
            to_key: URL_SAFE_NO_PAD.encode(call.to_key),
        };
        let unwritable = |_| Error::internal("the caller of a call cannot be written down");
        let claims = serde_json::to_vec(&claims).map_err(unwritable)?;
        let signature = self.key.sign(&claims);
        let text = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(&claims),
            URL_SAFE_NO_PAD.encode(signature)
        );
        let mut value = HeaderValue::try_from(text)
            .map_err(|_| Error::internal("the caller of a call cannot be written down"))?;
        value.set_sensitive(true);
        headers.insert(CALLER, value);
        Ok(())
    }
}

impl Person {
    fn of(identity: &Identity) -> Self {
        Self {
            name: identity.name.to_string(),
            groups: identity.groups.clone(),
            groups_withheld: identity.groups_withheld,
            role: identity.claimed.clone(),
        }
    }

    fn identity(self) -> Identity {
        Identity {
            name: self.name.into(),
            groups: self.groups,
            groups_withheld: self.groups_withheld,
            claimed: self.role,
        }
    }
}

/// The caller of a forwarded call. `None` if it was not forwarded.
pub(crate) async fn caller(
    replicas: &dyn Replicas,
    believed: &Believed,
    headers: &HeaderMap,
    path: &str,
) -> Option<Result<Forwarded>> {
    let value = headers.get(CALLER)?;
    Some(verify(replicas, believed, value, path).await)
}

async fn verify(
    replicas: &dyn Replicas,
    believed: &Believed,
    value: &HeaderValue,
    path: &str,
) -> Result<Forwarded> {
    let (claims, key, signature) =
        signed(value).ok_or_else(|| refused("its signature is not right"))?;
    if claims.path != path {
        return Err(refused("it was signed for another call"));
    }
    let is_for_this_process =
        claims.to_key.is_empty() || claims.to_key == URL_SAFE_NO_PAD.encode(replicas.key());
    if claims.to != replicas.this() || !is_for_this_process {
        // As after a restart: the replica that forwards looks again who leads.
        return Err(Error::new(
            Reason::NotLeader,
            format!("the call is for the replica {:?}", claims.to),
        ));
    }
    if now().abs_diff(claims.made) > HOLDS.as_secs() {
        return Err(refused(&format!(
            "it is of another time: the clocks of {} and {} are more than {} s apart",
            claims.by,
            claims.to,
            HOLDS.as_secs()
        )));
    }
    // Its lease may have ended just now, or the store does not answer: nothing was begun, and it may try again.
    if !matches!(replicas.publishes(&claims.by, &key).await, Ok(true)) {
        return Err(Error::new(
            Reason::NotLeader,
            format!(
                "no replica {:?} that may forward calls is known here",
                claims.by
            ),
        ));
    }
    // Last, so that only replicas use up memory.
    if !believed.is_first(signature) {
        return Err(refused("it was used before"));
    }
    Ok(Forwarded {
        who: claims.who.identity(),
        shown: claims.shown.map(Person::identity),
        via: Some(claims.by),
    })
}

/// The claims, their key, and their signature, if it is that of the key.
fn signed(value: &HeaderValue) -> Option<(Claims, Vec<u8>, Signature)> {
    let (claims, signature) = value.to_str().ok()?.split_once('.')?;
    let text = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    let claims: Claims = serde_json::from_slice(&text).ok()?;
    let key = URL_SAFE_NO_PAD.decode(&claims.key).ok()?;
    let verified = UnparsedPublicKey::new(&ED25519, &key).verify(&text, &signature);
    verified.ok()?;
    Some((claims, key, signature.try_into().ok()?))
}

fn refused(why: &str) -> Error {
    Error::new(
        Reason::Unauthenticated,
        format!("the header {CALLER} is not believed: {why}"),
    )
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Forwarding<'static> = Forwarding {
        by: "b",
        to: "a",
        to_key: &[1; 32],
        path: "/x.S/M",
    };

    /// Replica `a`, which knows the key of `b`.
    struct Known(Vec<u8>);

    impl Replicas for Known {
        fn this(&self) -> String {
            "a".to_owned()
        }

        fn key(&self) -> &[u8] {
            CALL.to_key
        }

        fn publishes<'a>(&'a self, name: &'a str, key: &'a [u8]) -> BoxFuture<'a, Result<bool>> {
            Box::pin(async move { Ok(name == "b" && key == self.0) })
        }
    }

    fn alice() -> Forwarded {
        let who = Identity {
            name: "oidc:alice".into(),
            groups: vec!["ops".to_owned()],
            groups_withheld: true,
            claimed: Some("viewer".to_owned()),
        };
        let shown = Identity {
            name: "cn:laptop".into(),
            ..Identity::anonymous()
        };
        Forwarded::at_first_hand(who, Some(shown))
    }

    fn vouched(voucher: &Voucher, call: Forwarding<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        voucher.vouch(&alice(), call, &mut headers).unwrap();
        headers
    }

    async fn reason(known: &Known, headers: &HeaderMap) -> Reason {
        let believed = Believed::default();
        let caller = caller(known, &believed, headers, CALL.path).await.unwrap();
        caller.unwrap_err().reason()
    }

    #[tokio::test]
    async fn a_caller_is_who_a_known_replica_says() {
        let voucher = Voucher::generate().unwrap();
        let known = Known(voucher.public_key().to_vec());
        let headers = vouched(&voucher, CALL);
        let believed = Believed::default();
        let first = caller(&known, &believed, &headers, CALL.path).await;
        let forwarded = Forwarded {
            via: Some("b".to_owned()),
            ..alice()
        };
        assert_eq!(first.unwrap().unwrap(), forwarded);
        let none = caller(&known, &believed, &HeaderMap::new(), CALL.path).await;
        assert!(none.is_none());
    }

    #[tokio::test]
    async fn what_was_claimed_once_is_not_believed_again() {
        let voucher = Voucher::generate().unwrap();
        let known = Known(voucher.public_key().to_vec());
        let believed = Believed::default();
        let call = async |headers: &HeaderMap| {
            let answer = caller(&known, &believed, headers, CALL.path).await;
            answer.unwrap().map_err(|error| error.reason())
        };
        let headers = vouched(&voucher, CALL);
        assert!(call(&headers).await.is_ok());
        assert_eq!(call(&headers).await.unwrap_err(), Reason::Unauthenticated);
        // The same caller may make the same call in the same second.
        assert!(call(&vouched(&voucher, CALL)).await.is_ok());
    }

    #[tokio::test]
    async fn nobody_else_is_believed() {
        let (voucher, other) = (Voucher::generate().unwrap(), Voucher::generate().unwrap());
        let known = Known(voucher.public_key().to_vec());
        let right = vouched(&voucher, CALL);
        // A key that is not published, or under another name.
        let unknown = vouched(&other, CALL);
        assert_eq!(reason(&known, &unknown).await, Reason::NotLeader);
        let named = vouched(&voucher, Forwarding { by: "c", ..CALL });
        assert_eq!(reason(&known, &named).await, Reason::NotLeader);
        // Another call, and another replica.
        let path = vouched(
            &voucher,
            Forwarding {
                path: "/x.S/N",
                ..CALL
            },
        );
        assert_eq!(reason(&known, &path).await, Reason::Unauthenticated);
        let to = vouched(&voucher, Forwarding { to: "c", ..CALL });
        assert_eq!(reason(&known, &to).await, Reason::NotLeader);
        // The process that had this replica's name before, which may have answered it.
        let to_key = &[2; 32];
        let before = vouched(&voucher, Forwarding { to_key, ..CALL });
        assert_eq!(reason(&known, &before).await, Reason::NotLeader);
        // The claims of one with the signature of another, and text that is no header of ours.
        let part = |headers: &HeaderMap, at: usize| {
            let text = headers[CALLER].to_str().unwrap();
            text.split('.').nth(at).unwrap().to_owned()
        };
        let forged = format!("{}.{}", part(&right, 0), part(&unknown, 1));
        for text in [forged.as_str(), "", ".", "a.b", "\"", &part(&right, 0)] {
            let headers = HeaderMap::from_iter([(CALLER, text.parse().unwrap())]);
            assert_eq!(
                reason(&known, &headers).await,
                Reason::Unauthenticated,
                "{text}"
            );
        }
    }

    #[tokio::test]
    async fn an_old_claim_is_not_believed() {
        let voucher = Voucher::generate().unwrap();
        let known = Known(voucher.public_key().to_vec());
        let headers = vouched(&voucher, CALL);
        let (mut claims, ..) = signed(&headers[CALLER]).unwrap();
        claims.made -= HOLDS.as_secs() + 1;
        let headers = signed_as(&voucher, &serde_json::to_value(&claims).unwrap());
        assert_eq!(reason(&known, &headers).await, Reason::Unauthenticated);
    }

    fn signed_as(voucher: &Voucher, claims: &serde_json::Value) -> HeaderMap {
        let text = serde_json::to_vec(claims).unwrap();
        let signature = URL_SAFE_NO_PAD.encode(voucher.key.sign(&text));
        let value = format!("{}.{signature}", URL_SAFE_NO_PAD.encode(&text));
        HeaderMap::from_iter([(CALLER, value.parse().unwrap())])
    }

    #[tokio::test]
    async fn a_replica_of_the_version_before_or_after_is_believed_once_as_well() {
        let voucher = Voucher::generate().unwrap();
        let known = Known(voucher.public_key().to_vec());
        let (claims, ..) = signed(&vouched(&voucher, CALL)[CALLER]).unwrap();
        let mut before = serde_json::to_value(&claims).unwrap();
        let mut after = before.clone();
        for unknown in ["nonce", "to_key"] {
            before.as_object_mut().unwrap().remove(unknown).unwrap();
        }
        after["later"] = "x".into();
        after["who"]["later"] = "x".into();
        for claims in [before, after] {
            let headers = signed_as(&voucher, &claims);
            let believed = Believed::default();
            let again = async || {
                let answer = caller(&known, &believed, &headers, CALL.path).await;
                answer.unwrap().map_err(|error| error.reason())
            };
            assert_eq!(again().await.unwrap().who, alice().who);
            assert_eq!(again().await.unwrap_err(), Reason::Unauthenticated);
        }
    }
}
