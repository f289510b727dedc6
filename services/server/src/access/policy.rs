//! The rules of an access file.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

pub(crate) use drover_core::allow::matches;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};

use super::{
    Identity, Role,
    deny::{DenialFile, Denials},
    oidc::{Oidc, OidcSettings},
    place::{self, Limits, LimitsFile},
};
use crate::settings::Secret;

/// Maximum size of the access file.
const MAX_BYTES: u64 = 1024 * 1024;
/// Maximum number of callers whose grants are cached.
const MAX_KNOWN: usize = 1024;
/// Minimum length of a token, because shorter ones can be guessed.
const MIN_TOKEN: usize = 16;

/// An invalid access file. Never shows a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("access file {}: {why}", path.display())]
pub struct AccessError {
    path: PathBuf,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    bindings: Vec<BindingFile>,
    #[serde(default)]
    deny: Vec<DenialFile>,
    #[serde(default)]
    tokens: Vec<TokenFile>,
    #[serde(default)]
    oidc: Option<OidcSettings>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingFile {
    role: Role,
    subjects: Vec<String>,
    #[serde(default, deserialize_with = "said")]
    clusters: Option<Vec<String>>,
    #[serde(default, deserialize_with = "said")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "said")]
    platforms: Option<Vec<String>>,
    #[serde(default, deserialize_with = "said")]
    namespaces: Option<Vec<String>>,
    #[serde(default, deserialize_with = "said", alias = "nodeClasses")]
    node_classes: Option<Vec<String>>,
    #[serde(default, deserialize_with = "said")]
    properties: Option<BTreeMap<String, Vec<serde_json::Value>>>,
}

/// Distinguishes a field without a value, which is as empty as `[]`, from an omitted field.
fn said<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(from).map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    name: String,
    #[serde(default)]
    sha256: Option<String>,
    #[serde(default)]
    token: Option<Secret>,
    #[serde(default)]
    expires: Option<String>,
}

/// A static token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StaticToken {
    /// `token:NAME`.
    pub(crate) subject: Arc<str>,
    /// Time at which it expires. `None` if it never does.
    expires: Option<SystemTime>,
}

impl StaticToken {
    /// The remaining validity. `None` if it has expired.
    pub(crate) fn left(&self) -> Option<Left> {
        match self.expires {
            None => Some(Left::Forever),
            Some(end) => match end.duration_since(SystemTime::now()) {
                Ok(left) if !left.is_zero() => Some(Left::For(left)),
                _ => None,
            },
        }
    }
}

/// Remaining validity of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Forever,
    For(Duration),
}

/// A role, limited to certain clusters, and to certain placements of their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The granted role.
    pub role: Role,
    /// Patterns of cluster names; empty for all clusters.
    clusters: Vec<String>,
    /// Labels that a cluster must have; empty for any.
    labels: BTreeMap<String, String>,
    /// Limits on where and how nodes may be created.
    pub(super) limits: Limits,
}

impl Grant {
    /// Grants a role without any limits.
    #[must_use]
    pub fn whole(role: Role) -> Self {
        Self {
            role,
            clusters: Vec::new(),
            labels: BTreeMap::new(),
            limits: Limits::default(),
        }
    }

    /// Whether it applies to all clusters and placements.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.clusters.is_empty() && self.labels.is_empty() && self.limits.is_none()
    }

    /// Whether a role may be limited so: of what is limited in a cluster, or to namespaces of a Kubernetes.
    fn fits_role(&self) -> bool {
        match self.role {
            Role::Viewer | Role::Operator => true,
            Role::ResourceViewer | Role::ResourceOperator => {
                self.clusters.is_empty() && self.labels.is_empty() && self.limits.is_of_namespaces()
            }
            Role::Admin | Role::Platform | Role::Agent => self.is_whole(),
        }
    }

    /// Whether it applies to a cluster. Unknown labels count as no labels.
    #[must_use]
    pub fn covers(&self, name: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        let named =
            self.clusters.is_empty() || self.clusters.iter().any(|pattern| matches(pattern, name));
        let labelled = || {
            labels.is_some_and(|labels| {
                self.labels
                    .iter()
                    .all(|(key, value)| labels.get(key) == Some(value))
            })
        };
        named && (self.labels.is_empty() || labelled())
    }
}

#[derive(Debug)]
struct Binding {
    subjects: Vec<String>,
    grant: Grant,
}

/// The parsed rules of an access file.
#[derive(Debug)]
pub(crate) struct Policy {
    bindings: Vec<Binding>,
    pub(super) denials: Denials,
    /// Static tokens by SHA-256.
    tokens: HashMap<[u8; 32], StaticToken>,
    pub(crate) oidc: Option<Arc<Oidc>>,
    /// Cache of the grants of callers.
    known: Mutex<HashMap<Arc<str>, Arc<[Grant]>>>,
}

impl Policy {
    /// Parses the rules. Keys that `before` has already fetched are kept if the issuer is unchanged.
    pub(crate) fn read(
        path: &Path,
        text: &str,
        before: Option<&Policy>,
    ) -> Result<Self, AccessError> {
        let wrong = |why: String| AccessError {
            path: path.to_owned(),
            why,
        };
        let file: File = serde_saphyr::from_str(text).map_err(|e| {
            let e = e.without_snippet();
            let at = e
                .location()
                .map(|l| format!("line {}, column {}: ", l.line(), l.column()))
                .unwrap_or_default();
            wrong(format!("{at}{e}"))
        })?;
        let tokens = read_tokens(file.tokens).map_err(wrong)?;
        let denials = Denials::read(file.deny).map_err(wrong)?;
        let mut bindings = Vec::new();
        for (at, binding) in file.bindings.into_iter().enumerate() {
            bindings.push(
                binding
                    .read()
                    .map_err(|why| wrong(format!("bindings[{at}]: {why}")))?,
            );
        }
        let oidc = match file.oidc {
            None => None,
            Some(settings) => {
                let same = before
                    .and_then(|before| before.oidc.clone())
                    .filter(|before| *before.settings() == settings);
                Some(match same {
                    Some(same) => same,
                    None => {
                        Arc::new(Oidc::new(settings).map_err(|why| wrong(format!("oidc: {why}")))?)
                    }
                })
            }
        };
        Ok(Self {
            bindings,
            denials,
            tokens,
            oidc,
            known: Mutex::default(),
        })
    }

    /// Returns the grants of an identity.
    pub(crate) fn grants(&self, identity: &Identity) -> Arc<[Grant]> {
        // Not cached, because groups may differ with each token.
        if !identity.groups.is_empty() {
            return self.look_up(identity);
        }
        if let Some(known) = self.known.lock().get(&identity.name) {
            return known.clone();
        }
        let found = self.look_up(identity);
        let mut known = self.known.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(identity.name.clone(), found.clone());
        found
    }

    fn look_up(&self, identity: &Identity) -> Arc<[Grant]> {
        self.bindings
            .iter()
            .filter(|binding| binding.subjects.iter().any(|subject| identity.is(subject)))
            .map(|binding| binding.grant.clone())
            .collect()
    }

    /// Looks up a token by its digest, so that the timing reveals nothing about the token itself. It may have expired.
    pub(crate) fn token(&self, digest: &[u8; 32]) -> Option<&StaticToken> {
        self.tokens.get(digest)
    }

    /// Whether any kind of token is accepted.
    pub(crate) fn knows_tokens(&self) -> bool {
        !self.tokens.is_empty() || self.oidc.is_some()
    }
}

/// Reads an access file.
pub(crate) fn read_text(path: &Path) -> Result<String, AccessError> {
    let wrong = |why: String| AccessError {
        path: path.to_owned(),
        why,
    };
    let size = std::fs::metadata(path)
        .map_err(|e| wrong(e.to_string()))?
        .len();
    if size > MAX_BYTES {
        return Err(wrong(format!(
            "has {size} bytes; expected at most {MAX_BYTES}"
        )));
    }
    std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))
}

/// Parses the tokens by SHA-256. A name may have at most two tokens, so that a token can be rotated; at least one of the
/// two must then have an expiry.
fn read_tokens(files: Vec<TokenFile>) -> Result<HashMap<[u8; 32], StaticToken>, String> {
    let mut tokens: HashMap<_, StaticToken> = HashMap::new();
    for (at, file) in files.into_iter().enumerate() {
        let place = |why: String| format!("tokens[{at}]: {why}");
        let name = file.name.clone();
        let (digest, token) = file.read().map_err(place)?;
        let mut others = tokens
            .values()
            .filter(|known| known.subject == token.subject);
        match (others.next(), others.next()) {
            (Some(_), Some(_)) => {
                return Err(place(format!(
                    "there are more than two tokens named {name}"
                )));
            }
            (Some(other), None) if other.expires.is_none() && token.expires.is_none() => {
                return Err(place(format!(
                    "there are two tokens named {name}, and neither has `expires`: one replaces the other, which has to end"
                )));
            }
            _ => {}
        }
        if tokens.insert(digest, token).is_some() {
            return Err(place("it is the same as another one".to_owned()));
        }
    }
    Ok(tokens)
}

impl TokenFile {
    fn read(self) -> Result<([u8; 32], StaticToken), String> {
        if self.name.is_empty() || self.name.contains(['*', ' ']) {
            return Err("name is empty, or has a blank or an asterisk".to_owned());
        }
        let digest = match (self.sha256, self.token) {
            (Some(hex), None) => unhex(&hex).ok_or("sha256: expected 64 hexadecimal digits")?,
            (None, Some(token)) if token.expose().len() >= MIN_TOKEN => digest(token.expose()),
            (None, Some(_)) => {
                return Err(format!("token: expected at least {MIN_TOKEN} characters"));
            }
            _ => return Err("expected sha256 or token".to_owned()),
        };
        let token = StaticToken {
            subject: format!("token:{}", self.name).into(),
            expires: self.expires.as_deref().map(read_time).transpose()?,
        };
        Ok((digest, token))
    }
}

fn read_time(text: &str) -> Result<SystemTime, String> {
    text.parse::<prost_types::Timestamp>()
        .ok()
        .and_then(|time| SystemTime::try_from(time).ok())
        .ok_or_else(|| {
            "expires: expected a time as of RFC 3339, for example \"2027-01-31T12:00:00Z\""
                .to_owned()
        })
}

impl BindingFile {
    fn read(self) -> Result<Binding, String> {
        if self.subjects.is_empty() {
            return Err("subjects is empty".to_owned());
        }
        for subject in &self.subjects {
            check_subject(subject)?;
        }
        let clusters = place::patterns("clusters", self.clusters)?;
        if self.labels.as_ref().is_some_and(BTreeMap::is_empty) {
            return Err(place::ambiguous("labels"));
        }
        let limits = LimitsFile {
            platforms: self.platforms,
            namespaces: self.namespaces,
            node_classes: self.node_classes,
            properties: self.properties,
        };
        let grant = Grant {
            role: self.role,
            clusters,
            labels: self.labels.unwrap_or_default(),
            limits: limits.read()?,
        };
        if !grant.fits_role() {
            return Err(format!(
                "clusters, labels, platforms, namespaces, node_classes and properties are for viewer and operator, not for {}; \
                 namespaces are for resource-viewer and resource-operator, too",
                grant.role
            ));
        }
        Ok(Binding {
            subjects: self.subjects,
            grant,
        })
    }
}

pub(super) fn check_subject(subject: &str) -> Result<(), String> {
    const KINDS: [&str; 5] = ["spiffe://", "cn:", "token:", "oidc:", "group:"];
    if matches!(subject, "*" | "anonymous")
        || KINDS.iter().any(|kind| {
            subject
                .strip_prefix(kind)
                .is_some_and(|rest| !rest.is_empty())
        })
    {
        return Ok(());
    }
    Err(format!(
        "{subject:?} is not a subject; expected spiffe://…, cn:NAME, token:NAME, oidc:NAME, group:NAME, * (everybody who \
         says who it is) or anonymous"
    ))
}

fn unhex(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

pub(crate) fn digest(text: &str) -> [u8; 32] {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

#[cfg(test)]
mod tests;
