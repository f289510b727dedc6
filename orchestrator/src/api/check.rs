//! Validation of documents, by the orchestrator and by every reachable platform.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drover_cluster::{Cluster, Interner, Resolved, request, stored_spec};
use drover_convert::spec::{MAX_SPEC, cluster_spec};
use drover_core::{
    Class, Error, Reason, Result, Sym,
    error::Violation,
    name::{node_id, node_name},
    spec::{Choice, Group, Probe, UserDataSource, check_labels},
};
use drover_platforms::{Platforms, Registered, has};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_secrets::Vault;
use drover_store::{DigestKey, Store};
use futures::StreamExt;
use prost::Message;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    access::{Access, per_call},
    clusters::find_group,
    suggest::instead,
    user_data::Known,
};

mod origin;
pub(super) mod resources;
mod storage;
mod template;

pub(super) use origin::Origin;

/// Deadline for a platform to validate a group: nothing is created, and a user waits.
const VALIDATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent validation calls for one document.
const VALIDATE_AT_ONCE: usize = 16;

/// A validated document.
pub(super) struct Checked {
    /// Uid of the cluster, or of the one that will be created.
    pub(super) uid: Uuid,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) spec: pb::ClusterSpec,
    pub(super) resolved: Arc<Resolved>,
    pub(super) warnings: Vec<String>,
    /// User data that the document itself contains.
    pub(super) user_data: Known,
}

/// Checks documents, also by the platforms that they name.
#[derive(Clone)]
pub(crate) struct Validator {
    pub(crate) access: Access,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) store: Arc<Store>,
    pub(crate) digests: Arc<DigestKey>,
    pub(crate) interner: Arc<Interner>,
}

per_call!(Validator: access);

impl Validator {
    pub(super) async fn check(
        &self,
        document: &pb::Cluster,
        cluster: Option<&Arc<Cluster>>,
        request: &pb::ApplyClusterRequest,
    ) -> Result<Checked> {
        let changes = self.access.may_change_as(document, cluster);
        let document = &self.take_digests(document, cluster, changes).await?;
        let mut checked = self.read(document, cluster, request)?;
        let known = self.check_user_data(&mut checked, cluster, changes).await?;
        self.ask_platforms(document, &mut checked, cluster, &known, changes)
            .await?;
        let secrets = self.check_addon_secrets(&checked, cluster, changes).await?;
        let Checked {
            resolved, warnings, ..
        } = &mut checked;
        let of = resources::Of {
            name: &document.name,
            resolved,
            secrets: &secrets,
            cluster,
        };
        resources::ask(&self.platforms, &of, warnings).await?;
        Ok(checked)
    }

    /// Parses a document and makes all checks that need no calls.
    pub(super) fn read(
        &self,
        document: &pb::Cluster,
        cluster: Option<&Arc<Cluster>>,
        request: &pb::ApplyClusterRequest,
    ) -> Result<Checked> {
        let assumed = &request.assume_platforms;
        let mut wrong: Vec<Violation> = Vec::new();
        check_labels("labels", &document.labels, &mut wrong);
        let mut spec = document.spec.clone().unwrap_or_default();
        keep_sizes(&mut spec, cluster);
        let user_data = Known::take_out(&mut spec, &mut wrong);
        if spec.encoded_len() > MAX_SPEC {
            let description = format!(
                "has {} bytes encoded, at most {MAX_SPEC} are possible; large attributes and properties belong into templates",
                spec.encoded_len()
            );
            wrong.push(Violation {
                field: "spec".to_owned(),
                description,
            });
            return Err(Error::violations(wrong));
        }
        let uid = cluster.map_or_else(Uuid::now_v7, |cluster| cluster.uid());
        let digests = self.digests.of_cluster(uid);
        let resolved = cluster_spec(&spec).and_then(|spec| {
            wrong.extend(spec.check_new());
            Resolved::new(spec, &digests)
        });
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(error) => {
                wrong.extend(error.fields().iter().cloned());
                return Err(Error::violations(wrong));
            }
        };
        // First, so that a platform that the caller may not use looks like one that does not exist.
        self.check_places(document, &spec, &resolved, cluster, request.validate_only)?;
        let mut warnings = Vec::new();
        let known: Vec<String> = self
            .platforms
            .read()
            .keys()
            .filter(|name| self.access.caller.sees_platform(name))
            .map(ToString::to_string)
            .collect();
        let before = cluster.map(|cluster| {
            let inner = cluster.lock();
            (inner.spec().clone(), storage::held(&inner.state().nodes))
        });
        for group in &resolved.groups {
            let origin = Origin::of(&spec, &group.field);
            if let Some((before, held)) = &before {
                let held = held.get(&group.path).copied().flatten();
                wrong.extend(storage::change(&origin, &before.groups, held, group));
            }
            for (index, choice) in group.choices.iter().enumerate() {
                if let Some(registered) = self.platforms.get(&choice.platform) {
                    self.check_choice(
                        &origin,
                        index,
                        group,
                        choice,
                        &registered,
                        &mut wrong,
                        &mut warnings,
                    );
                    if let Some(handshake) = registered.platform.handshake() {
                        let software = &resolved.software;
                        wrong.extend(template::check(
                            &origin, index, group, choice, software, &handshake,
                        ));
                    }
                } else if !assumed.iter().any(|assumed| **assumed == *choice.platform) {
                    let description = format!(
                        "no platform {:?} {}",
                        &*choice.platform,
                        instead(&choice.platform, "registered", &known)
                    );
                    wrong.push(Violation {
                        field: format!("{}.name", origin.choice(index)),
                        description,
                    });
                }
            }
        }
        let missing = resources::read(
            &self.platforms,
            &resolved,
            assumed,
            &mut wrong,
            &mut warnings,
        );
        for (field, name) in missing {
            let description = format!(
                "no platform {name:?} {}",
                instead(&name, "registered", &known)
            );
            wrong.push(Violation { field, description });
        }
        // Errors in inherited settings are reported once, not once per group.
        let mut seen = BTreeSet::new();
        wrong.retain(|one| seen.insert(one.clone()));
        if wrong.is_empty() {
            Ok(Checked {
                uid,
                labels: document.labels.clone(),
                spec,
                resolved: Arc::new(resolved.interned(&self.interner)),
                warnings,
                user_data,
            })
        } else {
            Err(Error::violations(wrong))
        }
    }

    /// Checks against the handshake alone.
    #[expect(
        clippy::too_many_arguments,
        reason = "what is checked, and what comes of it"
    )]
    fn check_choice(
        &self,
        origin: &Origin,
        index: usize,
        group: &Group,
        choice: &Choice,
        registered: &Registered,
        wrong: &mut Vec<Violation>,
        warnings: &mut Vec<String>,
    ) {
        let mut refuse =
            |field: String, description: String| wrong.push(Violation { field, description });
        let Some(handshake) = registered.platform.handshake() else {
            let warning = format!(
                "platform {} has not answered yet; what needs it waits",
                choice.platform
            );
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
            return;
        };
        if !choice.version_requirement.is_empty() {
            match drover_templates::Requirement::parse(&choice.version_requirement) {
                Err(error) => refuse(
                    format!("{}.version_requirement", origin.choice(index)),
                    error.to_string(),
                ),
                Ok(requirement) if !requirement.accepts(&handshake.version) => refuse(
                    format!("{}.version_requirement", origin.choice(index)),
                    format!(
                        "{} has version {}, not {}",
                        choice.platform, handshake.version, choice.version_requirement
                    ),
                ),
                Ok(_) => {}
            }
        }
        if !choice.class.is_empty()
            && !handshake.node_classes.is_empty()
            && !handshake
                .node_classes
                .iter()
                .any(|class| *class.name == *choice.class)
        {
            let known: Vec<String> = handshake
                .node_classes
                .iter()
                .map(|class| class.name.clone())
                .collect();
            let why = format!(
                "{} has no node class {:?} {}",
                choice.platform,
                &*choice.class,
                instead(&choice.class, "it has", &known)
            );
            refuse(origin.node_class(index), why);
        }
        let hooks = group.lifecycle.as_ref();
        if hooks.is_some_and(|hooks| hooks.pre_stop.is_some())
            && !has(&handshake, wire::Capability::NodeExec)
        {
            refuse(
                format!("{}.lifecycle.pre_stop", origin.lifecycle),
                format!("platform {} cannot run commands in nodes", choice.platform),
            );
        }
        let placement = &group.placement;
        let required = placement.spread.iter().any(|spread| spread.required);
        let preferred = placement.spread.iter().any(|spread| !spread.required);
        if placement.selector.is_some() && !has(&handshake, wire::Capability::HostLabels) {
            refuse(
                format!("{}.placement.selector", origin.placement),
                format!(
                    "platform {} cannot choose machines by their labels",
                    choice.platform
                ),
            );
        }
        for (wanted, capability, what) in [
            (
                !placement.failure_domains.is_empty(),
                wire::Capability::FailureDomains,
                "has no failure domains",
            ),
            (
                required,
                wire::Capability::SpreadRequired,
                "cannot promise a required spread",
            ),
            (
                preferred,
                wire::Capability::SpreadPreferred,
                "cannot spread nodes",
            ),
            (
                !placement.hosts.is_empty(),
                wire::Capability::NamedHosts,
                "has no named machines",
            ),
        ] {
            if wanted && !has(&handshake, capability) {
                refuse(
                    format!("{}.placement", origin.placement),
                    format!("platform {} {what}", choice.platform),
                );
            }
        }
        for (field, why) in Self::check_roles(group, &choice.platform, &handshake) {
            refuse(field, why);
        }
        let command = group
            .health
            .as_ref()
            .is_some_and(|health| matches!(health.probe, Probe::Exec { .. }));
        if command && !has(&handshake, wire::Capability::NodeExec) {
            refuse(
                format!("{}.health.exec", origin.health),
                format!("platform {} cannot run commands in nodes", choice.platform),
            );
        }
        Self::check_domains(origin, group, choice, &handshake, wrong);
        storage::check(origin, group, choice, &handshake, wrong);
    }

    /// Checks the roles of nodes against a platform's capabilities. Returns fields and causes.
    fn check_roles(
        group: &Group,
        platform: &str,
        handshake: &wire::Platform,
    ) -> Vec<(String, String)> {
        let mut wrong = Vec::new();
        if group.standby > 0 && !has(handshake, wire::Capability::UpdateNode) {
            let why = format!(
                "platform {platform} cannot change the role of a node, so no standby could ever take over"
            );
            wrong.push((format!("{}.standby", group.field), why));
        }
        let lifecycle = group.lifecycle.as_ref();
        let promotes = lifecycle.is_some_and(|lifecycle| lifecycle.post_promote.is_some());
        if promotes && !has(handshake, wire::Capability::NodeExec) {
            let why = format!("platform {platform} cannot run commands in nodes");
            wrong.push((format!("{}.lifecycle.post_promote", group.field), why));
        }
        wrong
    }

    /// Checks for failure domains that a platform does not have.
    fn check_domains(
        origin: &Origin,
        group: &Group,
        choice: &Choice,
        handshake: &wire::Platform,
        wrong: &mut Vec<Violation>,
    ) {
        let known: Vec<String> = handshake
            .failure_domains
            .iter()
            .map(|domain| domain.name.clone())
            .collect();
        if known.is_empty() {
            return;
        }
        for (index, domain) in group.placement.failure_domains.iter().enumerate() {
            if !known.contains(domain) {
                let description = format!(
                    "{} has no failure domain {domain:?} {}",
                    choice.platform,
                    instead(domain, "it has", &known)
                );
                wrong.push(Violation {
                    field: format!("{}.placement.failure_domains[{index}]", origin.placement),
                    description,
                });
            }
        }
    }

    /// Has every reachable platform validate every group that it may host. Unless the caller may change the cluster
    /// (`changes`), nothing that it wrote is executed.
    async fn ask_platforms(
        &self,
        document: &pb::Cluster,
        checked: &mut Checked,
        cluster: Option<&Arc<Cluster>>,
        user_data: &Known,
        changes: bool,
    ) -> Result<()> {
        // Groups that were accepted before are not validated again, and each group only once.
        let hashes = |choice: &Choice| (choice.spec_hash.clone(), choice.labels_hash.clone());
        let mut known: BTreeSet<(Sym, Sym)> = cluster.map_or_else(BTreeSet::new, |cluster| {
            let inner = cluster.lock();
            let choices = inner.spec().groups.iter().flat_map(|group| &group.choices);
            choices.map(hashes).collect()
        });
        let end = Instant::now() + VALIDATE_TIMEOUT;
        let mut asked = Vec::new();
        for group in &checked.resolved.groups {
            let origin = Origin::of(&checked.spec, &group.field);
            for (index, choice) in group.choices.iter().enumerate() {
                if !known.insert(hashes(choice)) {
                    continue;
                }
                let Some(registered) = self.platforms.get(&choice.platform) else {
                    continue;
                };
                let Some(client) = registered.platform.client() else {
                    continue;
                };
                let mut message =
                    self.probe_request(document, &checked.resolved, group, choice, &registered);
                let handshake = registered.platform.handshake().unwrap_or_default();
                message.bootstrap = group
                    .bootstrap
                    .as_ref()
                    .and_then(|bootstrap| user_data.bootstrap(bootstrap, &handshake, changes));
                message.secrets = user_data.secrets(&group.secrets);
                let source = group.bootstrap.as_ref().map(|own| &own.source);
                let secret = matches!(source, Some(UserDataSource::Secret(_)));
                let software = &checked.resolved.software;
                let others = (handshake.templates.iter())
                    .any(|entry| !entry.addon && entry.store == *software)
                    && !group.version.is_empty();
                let (origin, platform) = (origin.clone(), choice.platform.clone());
                asked.push(async move {
                    let left = end.saturating_duration_since(Instant::now());
                    let hidden = request::hidden(&message, secret);
                    let answer = client.provision(message, left).await;
                    (
                        (origin, index, others),
                        platform,
                        answer.err().map(|error| hidden.error(error)),
                    )
                });
            }
        }
        let mut answers: Vec<_> = futures::stream::iter(asked)
            .buffered(VALIDATE_AT_ONCE)
            .collect()
            .await;
        let mut wrong = Vec::new();
        for ((origin, index, others), platform, error) in answers.drain(..) {
            let Some(error) = error else { continue };
            if error.class() == Class::Cannot {
                if error.fields().is_empty() {
                    let field = if error.reason() == Reason::TemplateNotFound {
                        origin.store(others)
                    } else {
                        origin.choice(index)
                    };
                    wrong.push(Violation {
                        field,
                        description: format!("{platform}: {error}"),
                    });
                }
                for inner in error.fields() {
                    wrong.push(origin.theirs(index, &platform, inner));
                }
            } else {
                let warning = format!("platform {platform} could not check the spec: {error}");
                if !checked.warnings.contains(&warning) {
                    checked.warnings.push(warning);
                }
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Error::violations(wrong))
        }
    }

    fn probe_request(
        &self,
        document: &pb::Cluster,
        resolved: &Resolved,
        group: &Group,
        choice: &Choice,
        registered: &Registered,
    ) -> wire::ProvisionRequest {
        let (owner, id) = (Uuid::now_v7(), Uuid::now_v7());
        let uid = registered.platform.identity().0;
        let slot = wire::Slot {
            index: Some(0),
            id: node_id(&group.path, 0, owner, id, 0),
            name: node_name(&group.path, 0),
            ordinal: Some(0),
            role: wire::NodeRole::Active.into(),
            host_id: None,
        };
        let cluster = wire::ClusterContext {
            id: document.name.clone(),
            store: resolved.software.clone(),
            version: resolved.version.clone(),
            attributes: Some(drover_convert::value::to_struct(&resolved.attributes)),
            labels: document.labels.clone(),
        };
        wire::ProvisionRequest {
            expected_platform_uid: uid,
            fence: Some(self.platforms.fence(owner)),
            owner: owner.to_string(),
            request_id: id.to_string(),
            sequence: 1,
            slots: vec![slot],
            cluster: Some(cluster),
            group: Some(request::resolved_group(group, choice)),
            spec_hash: choice.spec_hash.to_string(),
            infrastructure: resources::announced(resolved, &choice.platform),
            validate_only: true,
            ..wire::ProvisionRequest::default()
        }
    }
}

/// Resolves omitted sizes: 1 for new groups, the current size for existing ones.
fn keep_sizes(spec: &mut pb::ClusterSpec, cluster: Option<&Arc<Cluster>>) {
    let mut before =
        cluster.and_then(|cluster| stored_spec(&cluster.lock().desired().value.spec).ok());
    let mut open: Vec<(String, &mut pb::GroupSpec)> = spec
        .groups
        .iter_mut()
        .map(|group| (group.name.clone(), group))
        .collect();
    while let Some((path, group)) = open.pop() {
        if !group.groups.is_empty() {
            open.extend(
                group
                    .groups
                    .iter_mut()
                    .map(|inner| (format!("{path}/{}", inner.name), inner)),
            );
        } else if group.size.is_none() {
            let old = before
                .as_mut()
                .and_then(|spec| find_group(&mut spec.groups, &path)?.size);
            group.size = Some(old.unwrap_or(1));
        }
    }
}
