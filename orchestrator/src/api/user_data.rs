//! User data of nodes: taken out of what is applied, kept under its digest, and referred to ever after.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use drover_core::{Error, Result, error::Violation, spec::digest};
use drover_proto::{
    orchestrator::v1::{self as pb, bootstrap_source::Source},
    platform::v1 as wire,
};
use drover_store::{MAX_USER_DATA, UserData};

use super::{Api, check::Checked};
use crate::{
    calls::digest_not_stored,
    cluster::{Cluster, Inner, stored_spec},
    platform::has,
    request,
};

/// User data by its digest. `Debug` shows digests and sizes.
#[derive(Clone, Default)]
pub(super) struct Known(BTreeMap<String, Bytes>);

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.0.iter().map(|(digest, data)| (digest, data.len()));
        f.debug_map().entries(sizes).finish()
    }
}

impl Known {
    /// Takes the user data out of a spec: what stays is its digest.
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
            if known.0.contains_key(&digest) {
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
            known.0.insert(digest, data);
        }
        known
    }

    fn get(&self, digest: &str) -> Option<&Bytes> {
        self.0.get(digest)
    }

    /// As platforms are told it.
    pub(super) fn bootstrap(
        &self,
        bootstrap: &drover_core::spec::Bootstrap,
    ) -> Option<wire::Bootstrap> {
        let data = self.get(&bootstrap.sha256)?;
        Some(request::bootstrap(data, bootstrap.render))
    }

    /// What is new of it, for the store.
    pub(super) fn to_store(&self) -> UserData {
        UserData {
            put: self.0.clone(),
            drop: Vec::new(),
        }
    }
}

/// Every place of a spec that gives user data, with its path.
fn sources(spec: &mut pb::ClusterSpec) -> Vec<(String, &mut pb::BootstrapSource)> {
    let mut found = Vec::new();
    if let Some(source) = &mut spec.bootstrap {
        found.push(("spec.bootstrap".to_owned(), source));
    }
    let named = |at: &str, groups| {
        let groups: &mut Vec<pb::GroupSpec> = groups;
        let groups = groups.iter_mut().enumerate();
        let groups = groups.map(|(index, group)| (format!("{at}.groups[{index}]"), group));
        groups.collect::<Vec<_>>()
    };
    let mut open = named("spec", &mut spec.groups);
    while let Some((at, group)) = open.pop() {
        if let Some(source) = &mut group.bootstrap {
            found.push((format!("{at}.bootstrap"), source));
        }
        open.extend(named(&at, &mut group.groups));
    }
    found
}

/// Digests that a spec refers to, each with its path.
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

impl Api {
    /// Reads what is referred to and not brought along, and checks all of it against the platforms that may get it.
    pub(super) async fn check_user_data(
        &self,
        checked: &mut Checked,
        cluster: Option<&Arc<Cluster>>,
    ) -> Result<Known> {
        let mut known = checked.user_data.clone();
        let mut wrong = Vec::new();
        for (digest, path, render) in digests(&checked.spec) {
            let data = match (known.get(&digest), cluster) {
                (Some(data), _) => Some(data.clone()),
                (None, Some(cluster)) => self.shared.store.user_data(cluster.uid, &digest).await?,
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
            known.0.insert(digest, data);
        }
        for group in &checked.resolved.groups {
            let Some(bootstrap) = &group.bootstrap else {
                continue;
            };
            let size = known.get(&bootstrap.sha256).map_or(0, Bytes::len);
            let field = super::check::Origin::of(&checked.spec, &group.field).bootstrap();
            for choice in &group.choices {
                let registered = self.shared.platform(&choice.platform);
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

    /// What an apply brings, and what nothing needs any more after it: neither the new spec, nor one that it can go back
    /// to, nor a request that may be sent again.
    pub(super) async fn user_data_of_change(
        &self,
        cluster: &Cluster,
        checked: &Checked,
    ) -> Result<UserData> {
        let mut data = checked.user_data.to_store();
        let named = |spec: &pb::ClusterSpec| digests(spec).into_iter().map(|(digest, ..)| digest);
        let mut kept: BTreeSet<String> = named(&checked.spec).collect();
        for spec in self.kept_specs(cluster).await? {
            kept.extend(named(&spec));
        }
        {
            let inner = cluster.inner.lock();
            kept.extend(named(&stored_spec(&inner.desired.value.spec)?));
            kept.extend(open_digests(&inner)?);
        }
        if kept.is_empty() {
            return Ok(data);
        }
        let stored = self.shared.store.user_data_digests(cluster.uid).await?;
        let old = stored.into_iter().filter(|digest| !kept.contains(digest));
        data.drop = old
            .filter(|digest| !data.put.contains_key(digest))
            .collect();
        Ok(data)
    }
}

fn open_digests(inner: &Inner) -> Result<Vec<String>> {
    let bodies = inner.bodies.values();
    bodies
        .map(|body| Ok(request::decode(body)?.1))
        .filter(|digest| digest.as_ref().is_ok_and(|digest| !digest.is_empty()) || digest.is_err())
        .collect()
}
