//! Applying a document: checked whole, by us and by every platform that can be reached, then made durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use drover_convert::spec::{MAX_SPEC, cluster_spec};
use drover_core::{
    Class, Error, Reason, Result, Sym,
    error::Violation,
    name::{self, node_id, node_name},
    node::Request,
    spec::{Choice, Group, UpdateStrategy, check_labels},
};
use drover_planner::{Call, Plan, State};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_store::{Desired, Versioned};
use futures::StreamExt;
use prost::Message;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Api,
    clusters::{expect, find_group, hypothetical, refuse_deleting},
    status,
    suggest::instead,
};
use crate::{
    cluster::{Cluster, Inner, Resolved, stored_spec},
    hooks::Point,
    pass,
    platform::has,
    queue::Urgency,
    request,
    shared::Registered,
};

/// How long a platform may take to check a group: it makes nothing, and somebody waits.
const VALIDATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Questions to platforms under way at once for one document.
const VALIDATE_AT_ONCE: usize = 16;
/// How often an apply looks again after somebody else made the cluster meanwhile.
const MAX_TURNS: usize = 8;
/// How long whoever makes a cluster may take from durable to visible.
const CREATION_WAIT: Duration = Duration::from_secs(1);
/// Plans that a preview puts together; each is one step of the store.
const MAX_PREVIEW: usize = 300;

/// Where a group has from what it does not say itself: paths of the groups around it, or its own.
struct Origin {
    platforms: String,
    /// Which of the choices name a class themselves.
    own_class: Vec<bool>,
    class: String,
    placement: String,
}

impl Origin {
    /// Of the group at this path of the spec (`spec.groups[0].groups[1]`).
    fn of(spec: &pb::ClusterSpec, field: &str) -> Self {
        let own_class = |choices: &[pb::PlatformChoice]| {
            choices.iter().map(|c| c.node_class.is_some()).collect()
        };
        let top = || "spec".to_owned();
        let mut origin = Self {
            platforms: top(),
            own_class: own_class(&spec.platforms),
            class: top(),
            placement: top(),
        };
        let (mut at, mut groups) = (top(), &spec.groups);
        for part in field.split(".groups[").skip(1) {
            let index = part.trim_end_matches(']').parse().unwrap_or(usize::MAX);
            let Some(group) = groups.get(index) else {
                break;
            };
            at = format!("{at}.groups[{index}]");
            if !group.platforms.is_empty() {
                origin.platforms.clone_from(&at);
                origin.own_class = own_class(&group.platforms);
            }
            if group.node_class.is_some() {
                origin.class.clone_from(&at);
            }
            if group.placement.is_some() {
                origin.placement.clone_from(&at);
            }
            groups = &group.groups;
        }
        origin
    }

    fn choice(&self, index: usize) -> String {
        format!("{}.platforms[{index}]", self.platforms)
    }

    fn node_class(&self, index: usize) -> String {
        if self.own_class.get(index).copied().unwrap_or(false) {
            return format!("{}.node_class", self.choice(index));
        }
        format!("{}.node_class", self.class)
    }
}

/// A checked document.
struct Checked {
    labels: BTreeMap<String, String>,
    spec: pb::ClusterSpec,
    resolved: Arc<Resolved>,
    warnings: Vec<String>,
}

impl Api {
    pub(super) async fn apply(
        &self,
        request: pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let Some(document) = &request.cluster else {
            return Err(Error::invalid("cluster", "is missing"));
        };
        if request.adopt {
            return Err(Error::invalid(
                "adopt",
                "adoption is not available in this version; leave it out",
            ));
        }
        if !request.assume_platforms.is_empty() && !request.validate_only {
            return Err(Error::invalid("assume_platforms", "is for validate_only"));
        }
        if let Err(why) = name::check_cluster_name(&document.name) {
            let mut wrong = vec![Violation {
                field: "cluster.name".to_owned(),
                description: why,
            }];
            if let Err(more) = self.read(document, None, &request.assume_platforms) {
                wrong.extend(more.fields().iter().cloned());
            }
            return Err(Error::violations(wrong));
        }
        for _ in 0..MAX_TURNS {
            if let Ok(cluster) = self.shared.find(&document.name) {
                return self.apply_to(&cluster, document, &request).await;
            }
            match self.apply_new(document, &request).await {
                // Somebody was quicker to create it, or did and was never told.
                Err(error)
                    if error.reason() == Reason::ClusterExists && error.resource().is_some() =>
                {
                    self.take_in(&document.name).await?;
                }
                answer => return answer,
            }
        }
        Err(Error::new(
            Reason::Conflict,
            format!("{} comes and goes too quickly; try again", document.name),
        ))
    }

    async fn apply_new(
        &self,
        document: &pb::Cluster,
        request: &pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        if request
            .expected_generation
            .is_some_and(|generation| generation > 0)
        {
            return Err(Error::new(
                Reason::GenerationMismatch,
                format!("there is no cluster {:?}", document.name),
            )
            .with_metadata("generation", 0));
        }
        self.refuse_foreign(&document.name)?;
        let checked = self
            .check(document, None, &request.assume_platforms)
            .await?;
        self.create(&document.name, checked, request.validate_only)
            .await
    }

    async fn apply_to(
        &self,
        cluster: &Arc<Cluster>,
        document: &pb::Cluster,
        request: &pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let _change = cluster.change.lock().await;
        {
            let inner = cluster.inner.lock();
            expect(&inner, request.expected_generation)?;
            refuse_deleting(&inner, &cluster.name)?;
        }
        let checked = self
            .check(document, Some(cluster), &request.assume_platforms)
            .await?;
        self.change(
            cluster,
            checked,
            &request.remove_groups,
            request.validate_only,
        )
        .await
    }

    /// Takes a cluster into memory that the store has.
    async fn take_in(&self, name: &str) -> Result<()> {
        let end = Instant::now() + CREATION_WAIT;
        while Instant::now() < end {
            if self.shared.find(name).is_ok() {
                return Ok(());
            }
            tokio::time::sleep(super::SHORT_WAIT).await;
        }
        // Nobody is about to do so: whoever made it lost the answer of the store.
        let Some(uid) = self.shared.store.find_cluster(name).await? else {
            return Ok(());
        };
        if let Some(row) = self.shared.store.load_cluster(uid).await? {
            self.shared.wrote(row.desired.revision);
            let cluster = self.shared.add(Cluster::load(row, &self.shared.interner)?);
            self.shared.changed(&cluster, &mut cluster.inner.lock());
            self.shared.queue.push(uid, Urgency::Bulk);
        }
        Ok(())
    }

    pub(super) async fn plan(
        &self,
        request: pb::PlanClusterRequest,
    ) -> Result<pb::PlanClusterResponse> {
        use pb::plan_cluster_request::Subject;
        self.shared.reach(request.min_revision).await?;
        match request.subject {
            Some(Subject::Name(name)) => {
                let cluster = self.shared.find(&name)?;
                let plan = self.preview(&cluster);
                Ok(pb::PlanClusterResponse {
                    plan: Some(plan),
                    warnings: Vec::new(),
                    revision: self.shared.revision(),
                })
            }
            Some(Subject::Cluster(cluster)) => {
                let answer = self
                    .apply(pb::ApplyClusterRequest {
                        cluster: Some(cluster),
                        validate_only: true,
                        ..pb::ApplyClusterRequest::default()
                    })
                    .await?;
                Ok(pb::PlanClusterResponse {
                    plan: answer.plan,
                    warnings: answer.warnings,
                    revision: answer.revision,
                })
            }
            None => Err(Error::invalid(
                "subject",
                "neither name nor cluster is given",
            )),
        }
    }

    /// A name of which a platform shows nodes that are not ours.
    fn refuse_foreign(&self, name: &str) -> Result<()> {
        for (platform, registered) in &*self.shared.platforms.read() {
            if let Some(owner) = registered.platform.foreign_owner(name) {
                let owner = if owner.is_empty() {
                    "nobody known"
                } else {
                    &owner
                };
                let message = format!(
                    "{platform} shows nodes of a cluster {name:?} whose owner is {owner}; choose another name"
                );
                return Err(Error::new(Reason::ClusterExists, message));
            }
        }
        Ok(())
    }

    async fn check(
        &self,
        document: &pb::Cluster,
        cluster: Option<&Arc<Cluster>>,
        assumed: &[String],
    ) -> Result<Checked> {
        let mut checked = self.read(document, cluster, assumed)?;
        self.ask_platforms(document, &mut checked, cluster).await?;
        Ok(checked)
    }

    /// Reads a document and checks all that can be known without asking anybody.
    fn read(
        &self,
        document: &pb::Cluster,
        cluster: Option<&Arc<Cluster>>,
        assumed: &[String],
    ) -> Result<Checked> {
        let mut wrong: Vec<Violation> = Vec::new();
        check_labels("labels", &document.labels, &mut wrong);
        let mut spec = document.spec.clone().unwrap_or_default();
        keep_sizes(&mut spec, cluster);
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
        let resolved = match cluster_spec(&spec).and_then(|spec| Resolved::new(&spec)) {
            Ok(resolved) => resolved,
            Err(error) => {
                wrong.extend(error.fields().iter().cloned());
                return Err(Error::violations(wrong));
            }
        };
        let mut warnings = Vec::new();
        let known: Vec<String> = self
            .shared
            .platforms
            .read()
            .keys()
            .map(ToString::to_string)
            .collect();
        for group in &resolved.groups {
            let origin = Origin::of(&spec, &group.field);
            for (index, choice) in group.choices.iter().enumerate() {
                if let Some(registered) = self.shared.platform(&choice.platform) {
                    self.check_choice(
                        &origin,
                        index,
                        group,
                        choice,
                        &registered,
                        &mut wrong,
                        &mut warnings,
                    );
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
        // What groups inherit is wrong once, not once a group.
        let mut seen = BTreeSet::new();
        wrong.retain(|one| seen.insert(one.clone()));
        if wrong.is_empty() {
            Ok(Checked {
                labels: document.labels.clone(),
                spec,
                resolved: Arc::new(resolved.interned(&self.shared.interner)),
                warnings,
            })
        } else {
            Err(Error::violations(wrong))
        }
    }

    /// What a handshake alone can tell.
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
        let placement = &group.placement;
        let required = placement.spread.iter().any(|spread| spread.required);
        let preferred = placement.spread.iter().any(|spread| !spread.required);
        for (wanted, capability, what) in [
            (
                !placement.failure_domains.is_empty(),
                wire::Capability::FailureDomains,
                "failure domains",
            ),
            (
                required,
                wire::Capability::SpreadRequired,
                "a required spread",
            ),
            (
                preferred,
                wire::Capability::SpreadPreferred,
                "a preferred spread",
            ),
        ] {
            if wanted && !has(&handshake, capability) {
                refuse(
                    format!("{}.placement", origin.placement),
                    format!("platform {} cannot do {what}", choice.platform),
                );
            }
        }
    }

    /// Has every platform that can be reached check every group that it may get.
    async fn ask_platforms(
        &self,
        document: &pb::Cluster,
        checked: &mut Checked,
        cluster: Option<&Arc<Cluster>>,
    ) -> Result<()> {
        // What was accepted before is not asked about again, nor is the same thing twice.
        let mut known: BTreeSet<Sym> = cluster.map_or_else(BTreeSet::new, |cluster| {
            let inner = cluster.inner.lock();
            let choices = inner.spec.groups.iter().flat_map(|group| &group.choices);
            choices.map(|choice| choice.spec_hash.clone()).collect()
        });
        let end = Instant::now() + VALIDATE_TIMEOUT;
        let mut asked = Vec::new();
        for group in &checked.resolved.groups {
            let origin = Origin::of(&checked.spec, &group.field);
            for (index, choice) in group.choices.iter().enumerate() {
                if !known.insert(choice.spec_hash.clone()) {
                    continue;
                }
                let Some(registered) = self.shared.platform(&choice.platform) else {
                    continue;
                };
                let Some(client) = registered.platform.client() else {
                    continue;
                };
                let message =
                    self.probe_request(document, &checked.resolved, group, choice, &registered);
                let (field, platform) = (origin.choice(index), choice.platform.clone());
                asked.push(async move {
                    let left = end.saturating_duration_since(Instant::now());
                    let answer = client.provision(message, left).await;
                    (field, platform, answer.err())
                });
            }
        }
        let mut answers: Vec<_> = futures::stream::iter(asked)
            .buffered(VALIDATE_AT_ONCE)
            .collect()
            .await;
        let mut wrong = Vec::new();
        for (field, platform, error) in answers.drain(..) {
            let Some(error) = error else { continue };
            if error.class() == Class::Cannot {
                if error.fields().is_empty() {
                    wrong.push(Violation {
                        field: field.clone(),
                        description: format!("{platform}: {error}"),
                    });
                }
                for inner in error.fields() {
                    let description = format!("{platform}: {}: {}", inner.field, inner.description);
                    wrong.push(Violation {
                        field: field.clone(),
                        description,
                    });
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
            fence: Some(self.shared.fence(owner)),
            owner: owner.to_string(),
            request_id: id.to_string(),
            sequence: 1,
            slots: vec![slot],
            cluster: Some(cluster),
            group: Some(request::resolved_group(group, choice)),
            spec_hash: choice.spec_hash.to_string(),
            validate_only: true,
            ..wire::ProvisionRequest::default()
        }
    }

    async fn create(
        &self,
        name: &str,
        checked: Checked,
        validate_only: bool,
    ) -> Result<pb::ApplyClusterResponse> {
        let now = self.shared.now();
        let time = i64::try_from(now).unwrap_or(i64::MAX);
        let value = Desired {
            name: name.to_owned(),
            labels: checked.labels,
            spec: checked.spec.encode_to_vec().into(),
            // Counted on, so that what was expected of a deleted one never fits.
            generation: self.shared.tombstones.generation(name) + 1,
            apply_time_ms: time,
            create_time_ms: time,
            ..Desired::default()
        };
        let mut answer = pb::ApplyClusterResponse {
            outcome: pb::ApplyOutcome::Created.into(),
            warnings: checked.warnings,
            ..pb::ApplyClusterResponse::default()
        };
        let cluster = if validate_only {
            let desired = Versioned { value, revision: 0 };
            answer.revision = self.shared.revision();
            Arc::new(Cluster::create(Uuid::now_v7(), desired, checked.resolved))
        } else {
            self.shared.hooks.reach(Point::BeforeApply).await;
            let (uid, revision) = self.shared.store.create_cluster(value.clone()).await?;
            self.shared.hooks.reach(Point::AfterApply).await;
            let desired = Versioned { value, revision };
            answer.revision = revision;
            self.shared
                .add(Cluster::create(uid, desired, checked.resolved))
        };
        let mut plan = {
            let mut inner = cluster.inner.lock();
            let plan = self.forecast(&cluster, &mut inner);
            if !validate_only {
                self.shared.changed(&cluster, &mut inner);
            }
            plan
        };
        let mut shown = self.shown(&cluster);
        if validate_only {
            plan.generation = 0;
            shown.uid.clear();
        } else {
            self.shared.wrote(answer.revision);
            self.shared.queue.push(cluster.uid, Urgency::Bulk);
        }
        answer.plan = Some(plan);
        answer.cluster = Some(shown);
        Ok(answer)
    }

    async fn change(
        &self,
        cluster: &Arc<Cluster>,
        checked: Checked,
        remove_groups: &[String],
        validate_only: bool,
    ) -> Result<pb::ApplyClusterResponse> {
        let (desired, same) = {
            let inner = cluster.inner.lock();
            refuse_kept(&checked.spec, remove_groups)?;
            refuse_removed(&inner, &checked.resolved, remove_groups)?;
            refuse_shrinking(&inner, &checked.resolved)?;
            refuse_outdating(&inner, &checked.resolved)?;
            let mut desired = inner.desired.clone();
            let same = desired.value.labels == checked.labels
                && stored_spec(&desired.value.spec)? == checked.spec;
            if !same {
                desired.value.labels = checked.labels;
                desired.value.spec = checked.spec.encode_to_vec().into();
                desired.value.generation += 1;
                desired.value.apply_time_ms = i64::try_from(self.shared.now()).unwrap_or(i64::MAX);
            }
            (desired, same)
        };
        let outcome = if same {
            pb::ApplyOutcome::Unchanged
        } else {
            pb::ApplyOutcome::Configured
        };
        let before = cluster.inner.lock().desired.value.generation;
        let mut plan = {
            let inner = cluster.inner.lock();
            let mut copy = what_if(&inner, desired.clone(), checked.resolved.clone());
            drop(inner);
            self.forecast(cluster, &mut copy)
        };
        let mut shown = self.shown(cluster);
        let revision = if validate_only || same {
            if validate_only && !same {
                shown.generation = desired.value.generation;
                shown.labels.clone_from(&desired.value.labels);
                shown.spec = Some(checked.spec);
                plan.generation = before;
            }
            self.shared.revision()
        } else {
            let revision = self.store(cluster, desired, Some(checked.resolved)).await?;
            shown = self.shown(cluster);
            revision
        };
        Ok(pb::ApplyClusterResponse {
            cluster: Some(shown),
            outcome: outcome.into(),
            plan: Some(plan),
            warnings: checked.warnings,
            revision,
        })
    }

    /// All that would be done at once for a record, put together from as many plans as that takes.
    fn forecast(&self, cluster: &Cluster, inner: &mut Inner) -> pb::Plan {
        let now = self.shared.now();
        let before = inner.state.clone();
        let mut whole = Plan::default();
        let mut names: State = before.clone();
        for round in 0..MAX_PREVIEW {
            let plan = pass::plan(&self.shared, inner, now, round == 0);
            drover_planner::apply(&mut inner.state, &plan.ops, now);
            for call in &plan.calls {
                if let Call::Deprovision { slot } = call
                    && let Some(node) = inner.state.node_mut(*slot)
                {
                    node.call.in_flight = true;
                }
            }
            names.requests.extend(
                inner
                    .state
                    .requests
                    .iter()
                    .map(|(id, request)| (*id, Request::clone(request))),
            );
            let again = plan.again;
            whole.ops.extend(plan.ops);
            whole.report.extend(plan.report);
            if !again {
                break;
            }
        }
        let generation = inner.desired.value.generation;
        inner.state = before;
        names.uid = cluster.uid;
        status::plan(&whole, &names, inner.head.revision, generation, now)
    }
}

/// A copy of what is known of a cluster, as if this were wanted of it.
fn what_if(inner: &Inner, desired: Versioned<Desired>, spec: Arc<Resolved>) -> Inner {
    let mut copy = Inner {
        desired,
        spec,
        head: inner.head.clone(),
        state: hypothetical(&inner.state),
        bodies: std::collections::HashMap::new(),
        first_slots: std::collections::HashMap::new(),
        defaults: None,
        witness: None,
        version: 0,
        finished: false,
    };
    copy.follow_desired();
    copy.state.paused = false;
    copy
}

/// A size that is not said is 1 at first, and later as it is.
fn keep_sizes(spec: &mut pb::ClusterSpec, cluster: Option<&Arc<Cluster>>) {
    let mut before =
        cluster.and_then(|cluster| stored_spec(&cluster.inner.lock().desired.value.spec).ok());
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

/// A group that is to be removed and wanted at once.
fn refuse_kept(spec: &pb::ClusterSpec, named: &[String]) -> Result<()> {
    let mut groups = spec.groups.clone();
    let kept = named
        .iter()
        .enumerate()
        .filter(|(_, path)| find_group(&mut groups, path).is_some());
    let wrong = kept.map(|(index, path)| Violation {
        field: format!("remove_groups[{index}]"),
        description: format!("the spec still has group {path:?}"),
    });
    let wrong: Vec<_> = wrong.collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Error::violations(wrong))
    }
}

/// A group that has nodes goes only if it is named.
fn refuse_removed(inner: &Inner, resolved: &Resolved, named: &[String]) -> Result<()> {
    for group in &inner.spec.groups {
        if resolved.groups.iter().any(|new| new.path == group.path) {
            continue;
        }
        let nodes = inner
            .state
            .nodes
            .iter()
            .filter(|node| node.group == group.path)
            .count();
        if nodes == 0 {
            continue;
        }
        if group.protection {
            return Err(super::clusters::protected(&group.path));
        }
        let covered = named
            .iter()
            .any(|n| *n == *group.path || group.path.starts_with(&format!("{n}/")));
        if !covered {
            let message = format!(
                "the new spec lacks group {}, which has {nodes} nodes; name it in remove_groups to delete them",
                group.path
            );
            return Err(
                Error::new(Reason::GroupHasNodes, message).with_metadata("group", &group.path)
            );
        }
    }
    Ok(())
}

fn refuse_shrinking(inner: &Inner, resolved: &Resolved) -> Result<()> {
    for group in inner.spec.groups.iter().filter(|group| group.protection) {
        let new = resolved.groups.iter().find(|new| new.path == group.path);
        // Taking the protection away and shrinking at once would make it no protection.
        if new.is_some_and(|new| new.size.unwrap_or(1) < group.size.unwrap_or(1)) {
            return Err(super::clusters::protected(&group.path));
        }
    }
    Ok(())
}

/// Without rolling updates, a change that outdates living nodes has to say that it waits for them to go.
fn refuse_outdating(inner: &Inner, resolved: &Resolved) -> Result<()> {
    let mut wrong = Vec::new();
    for group in resolved
        .groups
        .iter()
        .filter(|group| group.update == UpdateStrategy::Unset)
    {
        let outdated = inner
            .state
            .nodes
            .iter()
            .filter(|node| node.group == group.path && node.removal.is_none())
            .filter(|node| {
                group
                    .choices
                    .iter()
                    .all(|choice| choice.spec_hash != node.spec_hash)
            })
            .count();
        if outdated > 0 {
            let description = format!(
                "{outdated} nodes would have to be replaced, and rolling updates are not available in this version; \
                 with `update: {{strategy: OnDelete}}` they are replaced when they go for another reason"
            );
            wrong.push(Violation {
                field: group.field.clone(),
                description,
            });
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Error::violations(wrong))
    }
}
