//! Specs as they are planned with: inherited settings resolved, names interned.

use std::collections::BTreeSet;

use drover_core::{
    Error, Millis, Result,
    addon::{AddonSpec, NamedSecret, WantedAddon},
    resource::Wanted,
    spec::{ClusterSpec, Group, GroupSpec, OrphanPolicy, SecretRef, Settings, UserDataSource},
};
use drover_proto::orchestrator::v1 as pb;
use drover_store::digest::ClusterDigests;
use prost::Message;

use crate::Interner;

/// How long an orphan is visible before it is deleted, unless the spec says otherwise.
const ORPHAN_GRACE: Millis = 120_000;

/// A spec with all inherited settings resolved.
#[derive(Debug)]
pub struct Resolved {
    /// The software that the nodes run.
    pub software: String,
    /// Its version, where a group has none of its own. Empty if none is given.
    pub version: String,
    /// Attributes of the whole cluster.
    pub attributes: drover_core::spec::Object,
    /// All groups that have nodes, in the order of the spec.
    pub groups: Vec<Group>,
    /// Infrastructure, at most one of each platform.
    pub infrastructure: Vec<Wanted>,
    /// Addons, in the order of the spec.
    pub addons: Vec<WantedAddon>,
    /// What becomes of nodes without a record.
    pub orphans: OrphanPolicy,
    /// How long they are visible before that.
    pub orphan_grace: Millis,
    /// All secrets that templates and probes of the spec refer to, and their purposes, whether a group uses them or not.
    pub secrets: BTreeSet<(SecretRef, pb::SecretPurpose)>,
    /// Those that addons refer to. Who may use one there may not therefore use it in a node.
    pub addon_secrets: BTreeSet<(SecretRef, pb::SecretPurpose)>,
}

/// Replaces inline user data by the digests that it is known by outside of the store.
fn known_as(mut spec: ClusterSpec, digests: &ClusterDigests<'_>) -> ClusterSpec {
    let name = |settings: &mut Settings| {
        if let Some(own) = &mut settings.bootstrap
            && let UserDataSource::Sha256(digest) = &own.source
        {
            own.known_as = digests.user_data(digest);
            own.formerly_known_as = digests.former_user_data(digest);
        }
    };
    name(&mut spec.settings);
    let mut open: Vec<&mut GroupSpec> = spec.groups.iter_mut().collect();
    while let Some(group) = open.pop() {
        name(&mut group.settings);
        open.extend(&mut group.groups);
    }
    spec
}

/// The secrets that a spec refers to, and their purposes.
fn secrets(spec: &ClusterSpec) -> BTreeSet<(SecretRef, pb::SecretPurpose)> {
    use pb::SecretPurpose::{Probe, Workload};
    let mut found = BTreeSet::new();
    let mut add = |settings: &Settings| {
        let source = settings.bootstrap.as_ref().map(|own| &own.source);
        if let Some(UserDataSource::Secret(of)) = source {
            found.insert((of.clone(), Workload));
        }
        let seen = settings.secrets.values();
        found.extend(seen.map(|of| (of.clone(), Workload)));
        if let Some((_, tls)) = settings.health.as_ref().and_then(|own| own.probe.tls()) {
            found.extend(tls.secrets().into_iter().map(|(_, of)| (of, Probe)));
        }
    };
    add(&spec.settings);
    let mut open: Vec<&GroupSpec> = spec.groups.iter().collect();
    while let Some(group) = open.pop() {
        add(&group.settings);
        open.extend(&group.groups);
    }
    found
}

/// The secrets that addons refer to.
fn addon_secrets(spec: &ClusterSpec) -> BTreeSet<(SecretRef, pb::SecretPurpose)> {
    let named = spec.addons.iter().flat_map(AddonSpec::secrets);
    let references = named.flat_map(|secret| references(&secret));
    references
        .map(|of| (of, pb::SecretPurpose::Workload))
        .collect()
}

/// The keys of a secret that an addon depends on. Without a key, the secret as a whole.
fn references(secret: &NamedSecret) -> Vec<SecretRef> {
    let keys: &[&str] = match secret.keys {
        [keys] => keys,
        _ => &[""],
    };
    let of = |key: &&str| SecretRef {
        name: secret.name.clone(),
        key: (*key).to_owned(),
    };
    keys.iter().map(of).collect()
}

impl Resolved {
    /// Resolves a spec.
    ///
    /// # Errors
    /// `Invalid` if inherited settings contradict each other.
    pub fn new(spec: ClusterSpec, digests: &ClusterDigests<'_>) -> Result<Self> {
        let spec = &known_as(spec, digests);
        Ok(Self {
            software: spec.software.clone(),
            version: spec.version.clone(),
            attributes: spec.settings.attributes.clone(),
            groups: spec.resolve()?,
            infrastructure: spec
                .infrastructure
                .iter()
                .map(drover_convert::infrastructure::wanted)
                .collect(),
            addons: spec
                .addons
                .iter()
                .map(drover_convert::addon::wanted)
                .collect(),
            orphans: spec.orphans,
            orphan_grace: spec.orphan_grace.map_or(ORPHAN_GRACE, drover_core::millis),
            secrets: secrets(spec),
            addon_secrets: addon_secrets(spec),
        })
    }

    /// All secrets that anything in the spec refers to, and their purposes.
    pub fn named_secrets(&self) -> impl Iterator<Item = &(SecretRef, pb::SecretPurpose)> {
        self.secrets.iter().chain(&self.addon_secrets)
    }

    /// Interns the names that many clusters share.
    pub fn interned(mut self, interner: &Interner) -> Self {
        let addons = self.addons.iter_mut().map(|addon| &mut addon.wanted);
        for wanted in self.infrastructure.iter_mut().chain(addons) {
            wanted.platform = interner.get(&wanted.platform);
        }
        for group in &mut self.groups {
            group.path = interner.get(&group.path);
            group.version = interner.get(&group.version);
            for choice in &mut group.choices {
                choice.platform = interner.get(&choice.platform);
                choice.class = interner.get(&choice.class);
                choice.spec_hash = interner.get(&choice.spec_hash);
            }
        }
        self
    }

    /// Decodes a stored spec.
    pub fn from_stored(bytes: &[u8], digests: &ClusterDigests<'_>) -> Result<Self> {
        let spec = drover_convert::spec::cluster_spec(&stored_spec(bytes)?)?;
        Self::new(spec, digests)
    }
}

/// Decodes a stored spec.
///
/// # Errors
/// `Internal` if it is damaged, or of a newer version.
pub fn stored_spec(bytes: &[u8]) -> Result<pb::ClusterSpec> {
    pb::ClusterSpec::decode(bytes).map_err(|_| {
        Error::internal("the stored spec cannot be read: it is damaged, or of a newer version")
    })
}
