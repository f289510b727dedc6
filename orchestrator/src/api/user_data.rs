//! User data of nodes: extracted from applied documents, stored under its digest, and referred to by that digest from
//! then on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use drover_cluster::{
    Cluster, ClusterState, Resolved,
    request::{self, digest_not_stored},
    stored_spec,
};
use drover_convert::spec::cluster_spec;
use drover_core::{
    Error, Result,
    error::Violation,
    secrecy::{HIDDEN, placeholder},
    spec::{MAX_TEMPLATE_SECRET, SecretRef, UserDataSource, digest},
};
use drover_platforms::has;
use drover_proto::{
    orchestrator::v1::{self as pb, bootstrap_source::Source},
    platform::v1 as wire,
};
use drover_secrets::KnownKey;
use drover_store::{MAX_USER_DATA, UserData};
use uuid::Uuid;

use super::{
    addon_secrets,
    check::{Checked, Validator},
    probe_tls,
    revisions::{Earlier, specs},
};
use crate::status::sources;

/// Reported to callers who may not change a cluster and include user data in a plan request for it.
const COUNTS_AS_CHANGED: &str = "the user data of the document counts as changed: whether it is \
                                 what is stored is told only to who may change the cluster";

/// User data of a document. `Debug` only shows digests and sizes.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// By digest.
    data: BTreeMap<String, Bytes>,
    /// Contents of the referenced secrets.
    keys: BTreeMap<SecretRef, Bytes>,
    /// Paths at which the document itself contains data.
    brought: BTreeSet<String>,
    /// The document's data is identified by random digests that do not depend on the data.
    apart: bool,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.data.iter();
        let sizes = sizes.map(|(digest, data)| (digest, data.len()));
        f.debug_map().entries(sizes).finish()
    }
}

impl Known {
    /// Replaces the user data in a spec by its digest, and returns the data.
    pub(super) fn take_out(spec: &mut pb::ClusterSpec, wrong: &mut Vec<Violation>) -> Self {
        let mut known = Self::default();
        let mut size = 0;
        for (path, source) in sources(spec) {
            let data: Bytes = match source.source.take() {
                Some(Source::Text(text)) if !text.is_empty() => text.into_bytes().into(),
                Some(Source::Binary(data)) if !data.is_empty() => data.into(),
                other => {
                    source.source = other;
                    continue;
                }
            };
            let digest = digest(&data);
            source.source = Some(Source::Sha256(digest.clone()));
            known.brought.insert(path.clone());
            if known.data.contains_key(&digest) {
                continue;
            }
            size += data.len();
            if size > MAX_USER_DATA {
                let description = format!(
                    "brings the user data to {size} bytes; at most {MAX_USER_DATA} are possible at a time"
                );
                wrong.push(Violation {
                    field: path,
                    description,
                });
            }
            known.data.insert(digest, data);
        }
        known
    }

    fn get(&self, digest: &str) -> Option<&Bytes> {
        self.data.get(digest)
    }

    /// Hides the random digests in a spec that is returned to the caller.
    pub(super) fn leave_out(&self, spec: &mut pb::ClusterSpec) {
        if !self.apart {
            return;
        }
        for (path, source) in sources(spec) {
            if self.brought.contains(&path) {
                source.source = Some(Source::Sha256(HIDDEN.to_owned()));
            }
        }
    }

    /// User data in the wire format, for validation by a platform. For callers who may not change the cluster
    /// (`changes`) templates are not executed: if the platform cannot limit itself to parsing them, they are not
    /// rendered at all.
    pub(super) fn bootstrap(
        &self,
        bootstrap: &drover_core::spec::Bootstrap,
        platform: &wire::Platform,
        changes: bool,
    ) -> Option<wire::Bootstrap> {
        let data = self.of(bootstrap)?;
        let parses = has(platform, wire::Capability::BootstrapParse);
        let mut told = request::bootstrap(data, bootstrap.render && (changes || parses));
        told.parse_only = told.render && !changes;
        Some(told)
    }

    /// The secrets that templates see, in the wire format.
    pub(super) fn secrets(
        &self,
        seen: &BTreeMap<String, SecretRef>,
    ) -> BTreeMap<String, wire::TemplateSecret> {
        let seen = seen.iter().filter_map(|(name, of)| {
            let told = request::template_secret(of, self.keys.get(of)?).ok()?;
            Some((name.clone(), told))
        });
        seen.collect()
    }

    fn of(&self, bootstrap: &drover_core::spec::Bootstrap) -> Option<&Bytes> {
        match &bootstrap.source {
            UserDataSource::Sha256(digest) => self.get(digest),
            UserDataSource::Secret(of) => self.keys.get(of),
        }
    }

    /// The new data to store.
    pub(super) fn to_store(&self) -> UserData {
        UserData {
            put: self.data.clone(),
            drop: Vec::new(),
        }
    }
}

/// The digests that a spec refers to, with their paths.
fn digests(spec: &pb::ClusterSpec) -> Vec<(String, String, bool)> {
    let mut spec = spec.clone();
    let sources = sources(&mut spec).into_iter();
    sources
        .filter_map(|(path, source)| match &source.source {
            Some(Source::Sha256(digest)) => {
                Some((digest.to_ascii_lowercase(), path, source.render))
            }
            _ => None,
        })
        .collect()
}

/// A reference of a spec to a key of a secret.
struct Named {
    of: SecretRef,
    field: String,
    /// The path at which it is used as text, and why, if it is.
    as_text: Option<(String, &'static str)>,
    /// Maximum size in bytes.
    most: usize,
}

fn secret_keys(spec: &pb::ClusterSpec) -> Vec<Named> {
    let of = |key: &pb::SecretKeyRef| SecretRef {
        name: key.name.clone(),
        key: key.key.clone(),
    };
    let mut owned = spec.clone();
    let sources = sources(&mut owned).into_iter();
    let mut found: Vec<_> = sources
        .filter_map(|(path, source)| match &source.source {
            Some(Source::SecretKey(key)) => Some(Named {
                of: of(key),
                field: format!("{path}.secret_key"),
                as_text: source
                    .render
                    .then(|| (format!("{path}.render"), "only text can be rendered")),
                most: usize::MAX,
            }),
            _ => None,
        })
        .collect();
    let mut open = vec![("spec".to_owned(), &spec.secrets, &spec.groups)];
    while let Some((at, secrets, groups)) = open.pop() {
        for (index, secret) in secrets.iter().enumerate() {
            let field = format!("{at}.secrets[{index}].secret_key_ref");
            found.extend(secret.secret_key_ref.as_ref().map(|key| Named {
                of: of(key),
                as_text: Some((field.clone(), "holds no text; templates take nothing else")),
                field,
                most: MAX_TEMPLATE_SECRET,
            }));
        }
        let groups = groups.iter().enumerate();
        open.extend(groups.map(|(index, group)| {
            let at = format!("{at}.groups[{index}]");
            (at, &group.secrets, &group.groups)
        }));
    }
    found
}

/// Checks the size of a secret. Callers who may not change the cluster are not told the actual size.
fn wrong_size(of: &SecretRef, size: usize, most: usize, changes: bool) -> Option<String> {
    if size == 0 {
        Some(format!("secret {of} is empty"))
    } else if size <= most {
        None
    } else if changes {
        Some(format!(
            "secret {of} has {size} bytes; templates take at most {most}"
        ))
    } else {
        Some(format!(
            "secret {of} is too large; templates take at most {most} bytes"
        ))
    }
}

/// Whether a document refers to a secret.
pub(super) fn names_secrets(document: &pb::Cluster) -> bool {
    let spec = document.spec.as_ref();
    spec.is_some_and(|spec| {
        !secret_keys(spec).is_empty()
            || probe_tls::names_secrets(spec)
            || addon_secrets::names_secrets(spec)
    })
}

impl Validator {
    /// Finds a key that a spec refers to. Callers who may not refer to the secret do not learn which other secrets
    /// exist.
    pub(super) fn find_secret(&self, of: &SecretRef, changes: bool) -> Result<KnownKey> {
        let found = self.vault.find(of);
        found.map_err(|error| match self.access.may_name(of, changes) {
            Ok(()) => error,
            Err(_) => drover_secrets::not_there(of),
        })
    }

    /// Reads the referenced secrets. A missing one is an error with its path. Callers who may not change the cluster
    /// (`changes`) get placeholders, because the results are shown to them.
    async fn check_secrets(
        &self,
        checked: &Checked,
        cluster: Option<&Arc<Cluster>>,
        changes: bool,
        known: &mut Known,
        wrong: &mut Vec<Violation>,
    ) -> Result<()> {
        let before = cluster.map(|cluster| cluster.lock().spec().clone());
        for named in secret_keys(&checked.spec) {
            let (of, at) = (named.of, named.field);
            let purpose = pb::SecretPurpose::Workload;
            let before = before.as_ref();
            let there = before.is_some_and(|it| it.secrets.contains(&(of.clone(), purpose)));
            if !there {
                self.access.may_name(&of, changes)?;
            }
            let key = match self.find_secret(&of, changes) {
                Ok(key) => key,
                Err(error) => {
                    let known = self.vault.get(&of.name).is_some();
                    let field = if known { "key" } else { "name" };
                    let why = error.message().to_owned();
                    return Err(error.with_violation(format!("{at}.{field}"), why));
                }
            };
            let other = self.vault.wrong_purpose(&of, purpose);
            if let Some(description) = other.filter(|_| !there) {
                wrong.push(Violation {
                    field: at,
                    description,
                });
                continue;
            }
            if let Some((field, why)) = named.as_text.filter(|_| !key.text) {
                wrong.push(Violation {
                    field,
                    description: why.to_owned(),
                });
            }
            let data = self.vault.read(&of).await?.content;
            if let Some(description) = wrong_size(&of, data.len(), named.most, changes) {
                wrong.push(Violation {
                    field: format!("{at}.key"),
                    description,
                });
            }
            let data = if changes {
                data
            } else {
                placeholder(&data).into()
            };
            known.keys.insert(of, data);
        }
        Ok(())
    }

    /// Replaces the digests of the document's data by random ones: from equal and different digests, a caller who may
    /// not change the cluster could find out what the cluster's user data is.
    fn set_apart(&self, checked: &mut Checked) -> Result<()> {
        let own = &mut checked.user_data;
        if own.brought.is_empty() {
            return Ok(());
        }
        // Secret and never repeated.
        let by = Uuid::new_v4();
        let mut data = BTreeMap::new();
        // A digest that was given as a reference stays, even if the document contains the same data elsewhere.
        for (path, source) in sources(&mut checked.spec) {
            if let Some(Source::Sha256(sha256)) = &mut source.source
                && own.brought.contains(&path)
                && let Some(brought) = own.data.get(sha256.as_str())
            {
                *sha256 = digest(format!("{by}/{sha256}").as_bytes());
                data.insert(sha256.clone(), brought.clone());
            }
        }
        (own.data, own.apart) = (data, true);
        let spec = cluster_spec(&checked.spec)?;
        checked.resolved = Arc::new(Resolved::new(spec, &self.digests.of_cluster(checked.uid))?);
        Ok(())
    }

    /// Reads the user data that the document refers to, and has platforms that may get it validate all of it. Callers
    /// who may not change the cluster (`changes`) get placeholders, and their data is not compared with anything.
    pub(super) async fn check_user_data(
        &self,
        checked: &mut Checked,
        cluster: Option<&Arc<Cluster>>,
        changes: bool,
    ) -> Result<Known> {
        if !changes {
            self.set_apart(checked)?;
            if checked.user_data.apart && cluster.is_some() {
                checked.warnings.push(COUNTS_AS_CHANGED.to_owned());
            }
        }
        let mut known = checked.user_data.clone();
        let mut wrong = Vec::new();
        self.check_secrets(checked, cluster, changes, &mut known, &mut wrong)
            .await?;
        self.check_probe_tls(checked, cluster, changes, &mut wrong)
            .await?;
        for (digest, path, render) in digests(&checked.spec) {
            let brought = known.get(&digest).cloned();
            let shown = changes || brought.is_some();
            let data = match (brought, cluster) {
                (Some(data), _) => Some(data),
                (None, Some(cluster)) => self.store.user_data(cluster.uid(), &digest).await?,
                (None, None) => None,
            };
            let Some(data) = data else {
                return Err(digest_not_stored(&digest).with_metadata("field", path));
            };
            if render && std::str::from_utf8(&data).is_err() {
                wrong.push(Violation {
                    field: format!("{path}.render"),
                    description: "only text can be rendered".to_owned(),
                });
            }
            let data = if shown {
                data
            } else {
                placeholder(&data).into()
            };
            known.data.insert(digest, data);
        }
        for group in &checked.resolved.groups {
            let Some(bootstrap) = &group.bootstrap else {
                continue;
            };
            let size = known.of(bootstrap).map_or(0, Bytes::len);
            let field = super::check::Origin::of(&checked.spec, &group.field).bootstrap();
            for choice in &group.choices {
                let registered = self.platforms.get(&choice.platform);
                let Some(handshake) = registered.and_then(|r| r.platform.handshake()) else {
                    continue;
                };
                let mut refuse = |field: String, why: String| {
                    let violation = Violation {
                        field,
                        description: format!("platform {} {why}", choice.platform),
                    };
                    if !wrong.contains(&violation) {
                        wrong.push(violation);
                    }
                };
                if !has(&handshake, wire::Capability::Bootstrap) {
                    refuse(field.clone(), "takes no user data".to_owned());
                } else if bootstrap.render && !has(&handshake, wire::Capability::BootstrapRender) {
                    refuse(
                        format!("{field}.render"),
                        "cannot render user data".to_owned(),
                    );
                }
                let most = handshake
                    .limits
                    .and_then(|limits| limits.max_bootstrap_bytes);
                if let Some(most) = most.filter(|most| size > *most as usize) {
                    let why = format!("takes at most {most} bytes of user data; these are {size}");
                    refuse(field.clone(), why);
                }
            }
        }
        if wrong.is_empty() {
            Ok(known)
        } else {
            Err(Error::violations(wrong))
        }
    }

    /// The user data that an apply adds, and that which is no longer referred to after it: neither by the new spec, nor
    /// by a retained revision, nor by a request that may be resent.
    pub(super) async fn user_data_of_change(
        &self,
        cluster: &Cluster,
        checked: &Checked,
        earlier: &Earlier,
    ) -> Result<UserData> {
        let mut data = checked.user_data.to_store();
        let named = |spec: &pb::ClusterSpec| digests(spec).into_iter().map(|(digest, ..)| digest);
        let mut kept: BTreeSet<String> = named(&checked.spec).collect();
        for spec in specs(earlier)? {
            kept.extend(named(&spec));
        }
        {
            let inner = cluster.lock();
            kept.extend(named(&stored_spec(&inner.desired().value.spec)?));
            kept.extend(open_digests(&inner)?);
        }
        if kept.is_empty() {
            return Ok(data);
        }
        let stored = self.store.user_data_digests(cluster.uid()).await?;
        let old = stored.into_iter().filter(|digest| !kept.contains(digest));
        data.drop = old
            .filter(|digest| !data.put.contains_key(digest))
            .collect();
        Ok(data)
    }
}

fn open_digests(inner: &ClusterState) -> Result<Vec<String>> {
    inner
        .bodies()
        .map(|body| Ok(request::decode(body)?.1.user_data))
        .filter(|digest| digest.as_ref().is_ok_and(|digest| !digest.is_empty()) || digest.is_err())
        .collect()
}

#[cfg(test)]
mod tests {
    use drover_core::spec::Bootstrap;

    use super::*;

    #[test]
    fn what_may_not_be_run_is_parsed_or_where_that_cannot_be_asked_for_neither() {
        let data = Bytes::from_static(b"{{ node.name }}");
        let digest = digest(&data);
        let known = Known {
            data: [(digest.clone(), data)].into(),
            ..Known::default()
        };
        let bootstrap = Bootstrap {
            source: UserDataSource::Sha256(digest),
            render: true,
            known_as: String::new(),
            formerly_known_as: String::new(),
        };
        let platform = |capabilities: &[wire::Capability]| wire::Platform {
            capabilities: capabilities.iter().map(|it| i32::from(*it)).collect(),
            ..wire::Platform::default()
        };
        let old = platform(&[wire::Capability::BootstrapRender]);
        let new = platform(&[
            wire::Capability::BootstrapRender,
            wire::Capability::BootstrapParse,
        ]);
        for (platform, changes, expected) in [
            (&old, true, (true, false)),
            (&new, true, (true, false)),
            (&old, false, (false, false)),
            (&new, false, (true, true)),
        ] {
            let told = known.bootstrap(&bootstrap, platform, changes).unwrap();
            assert_eq!((told.render, told.parse_only), expected, "{platform:?}");
        }
    }
}
