//! Applying a document: checked whole, by us and by every platform that can be reached, then made durable.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_convert::spec::{MAX_SPEC, cluster_spec};
use drover_core::{
    Class, Error, Reason, Result,
    error::Violation,
    name::{self, node_id, node_name},
    node::Request,
    spec::{Choice, Group, UpdateStrategy, check_labels},
};
use drover_planner::{Call, Plan, State};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_store::{Desired, Versioned};
use prost::Message;
use uuid::Uuid;

use super::{
    Api,
    clusters::{expect, find_group, hypothetical, refuse_deleting},
    status,
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
/// Plans that a preview puts together; each is one step of the store.
const MAX_PREVIEW: usize = 300;

/// A checked document.
struct Checked {
    labels: BTreeMap<String, String>,
    spec: pb::ClusterSpec,
    resolved: Arc<Resolved>,
    warnings: Vec<String>,
}

impl Api {
    pub(super) async fn apply(&self, request: pb::ApplyClusterRequest) -> Result<pb::ApplyClusterResponse> {
        let document = request.cluster.ok_or_else(|| Error::invalid("cluster", "is missing"))?;
        if request.adopt {
            return Err(Error::invalid("adopt", "adoption is not available in this version; leave it out"));
        }
        if !request.assume_platforms.is_empty() && !request.validate_only {
            return Err(Error::invalid("assume_platforms", "is for validate_only"));
        }
        name::check_cluster_name(&document.name).map_err(|why| Error::invalid("cluster.name", why))?;
        let Ok(cluster) = self.shared.find(&document.name) else {
            if request.expected_generation.is_some_and(|generation| generation > 0) {
                return Err(Error::new(Reason::GenerationMismatch, format!("there is no cluster {:?}", document.name))
                    .with_metadata("generation", 0));
            }
            self.refuse_foreign(&document.name)?;
            let checked = self.check(&document, None, &request.assume_platforms).await?;
            return self.create(&document.name, checked, request.validate_only).await;
        };
        let _change = cluster.change.lock().await;
        {
            let inner = cluster.inner.lock();
            expect(&inner, request.expected_generation)?;
            refuse_deleting(&inner, &cluster.name)?;
        }
        let checked = self.check(&document, Some(&cluster), &request.assume_platforms).await?;
        self.change(&cluster, checked, &request.remove_groups, request.validate_only).await
    }

    pub(super) async fn plan(&self, request: pb::PlanClusterRequest) -> Result<pb::PlanClusterResponse> {
        use pb::plan_cluster_request::Subject;
        self.shared.reach(request.min_revision).await?;
        match request.subject {
            Some(Subject::Name(name)) => {
                let cluster = self.shared.find(&name)?;
                let plan = self.preview(&cluster);
                Ok(pb::PlanClusterResponse { plan: Some(plan), warnings: Vec::new(), revision: self.shared.revision() })
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
            None => Err(Error::invalid("subject", "neither name nor cluster is given")),
        }
    }

    /// A name of which a platform shows nodes that are not ours.
    fn refuse_foreign(&self, name: &str) -> Result<()> {
        for (platform, registered) in &*self.shared.platforms.read() {
            if let Some(owner) = registered.platform.foreign_owner(name) {
                let owner = if owner.is_empty() { "nobody known" } else { &owner };
                let message = format!("{platform} shows nodes of a cluster {name:?} whose owner is {owner}; choose another name");
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
        let mut wrong: Vec<Violation> = Vec::new();
        check_labels("labels", &document.labels, &mut wrong);
        let mut spec = document.spec.clone().unwrap_or_default();
        if spec.encoded_len() > MAX_SPEC {
            let why = format!("has {} bytes encoded; at most {MAX_SPEC} are allowed", spec.encoded_len());
            return Err(Error::invalid("spec", why));
        }
        keep_sizes(&mut spec, cluster);
        let resolved = match cluster_spec(&spec).and_then(|spec| Resolved::new(&spec)) {
            Ok(resolved) => resolved,
            Err(error) => {
                wrong.extend(error.fields().iter().cloned());
                return Err(Error::violations(wrong));
            }
        };
        let mut warnings = Vec::new();
        for group in &resolved.groups {
            for (index, choice) in group.choices.iter().enumerate() {
                let field = format!("{}.platforms[{index}]", group.field);
                let Some(registered) = self.shared.platform(&choice.platform) else {
                    if !assumed.iter().any(|assumed| **assumed == *choice.platform) {
                        let known: Vec<String> = self.shared.platforms.read().keys().map(ToString::to_string).collect();
                        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                        let why = format!("no platform {:?} (registered: {known})", &*choice.platform);
                        wrong.push(Violation { field: format!("{field}.name"), description: why });
                    }
                    continue;
                };
                self.check_choice(&field, group, choice, &registered, &mut wrong, &mut warnings);
            }
        }
        if !wrong.is_empty() {
            return Err(Error::violations(wrong));
        }
        let resolved = Arc::new(resolved);
        self.ask_platforms(document, &resolved, cluster, &mut warnings).await?;
        Ok(Checked { labels: document.labels.clone(), spec, resolved, warnings })
    }

    /// What a handshake alone can tell.
    fn check_choice(
        &self,
        field: &str,
        group: &Group,
        choice: &Choice,
        registered: &Registered,
        wrong: &mut Vec<Violation>,
        warnings: &mut Vec<String>,
    ) {
        let mut refuse = |field: String, description: String| wrong.push(Violation { field, description });
        let Some(handshake) = registered.platform.handshake() else {
            let warning = format!("platform {} has not answered yet; what needs it waits", choice.platform);
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
            return;
        };
        if !choice.version_requirement.is_empty() {
            match drover_templates::Requirement::parse(&choice.version_requirement) {
                Err(error) => refuse(format!("{field}.version_requirement"), error.to_string()),
                Ok(requirement) if !requirement.accepts(&handshake.version) => refuse(
                    format!("{field}.version_requirement"),
                    format!("{} has version {}, not {}", choice.platform, handshake.version, choice.version_requirement),
                ),
                Ok(_) => {}
            }
        }
        if !choice.class.is_empty()
            && !handshake.node_classes.is_empty()
            && !handshake.node_classes.iter().any(|class| *class.name == *choice.class)
        {
            let known: Vec<&str> = handshake.node_classes.iter().map(|class| class.name.as_str()).collect();
            let why = format!("{} has no node class {:?} (it has: {})", choice.platform, &*choice.class, known.join(", "));
            refuse(format!("{field}.node_class"), why);
        }
        let placement = &group.placement;
        let required = placement.spread.iter().any(|spread| spread.required);
        let preferred = placement.spread.iter().any(|spread| !spread.required);
        for (wanted, capability, what) in [
            (!placement.failure_domains.is_empty(), wire::Capability::FailureDomains, "failure domains"),
            (required, wire::Capability::SpreadRequired, "a required spread"),
            (preferred, wire::Capability::SpreadPreferred, "a preferred spread"),
        ] {
            if wanted && !has(&handshake, capability) {
                refuse(format!("{}.placement", group.field), format!("platform {} cannot do {what}", choice.platform));
            }
        }
    }

    /// Has every platform that can be reached check every group that it may get.
    async fn ask_platforms(
        &self,
        document: &pb::Cluster,
        resolved: &Resolved,
        cluster: Option<&Arc<Cluster>>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        // What was accepted before is not asked about again.
        let known: Vec<_> = cluster.map_or_else(Vec::new, |cluster| {
            let inner = cluster.inner.lock();
            let choices = inner.spec.groups.iter().flat_map(|group| &group.choices);
            choices.map(|choice| choice.spec_hash.clone()).collect()
        });
        let mut asked = Vec::new();
        for group in resolved.groups.iter() {
            for (index, choice) in group.choices.iter().enumerate() {
                if known.contains(&choice.spec_hash) {
                    continue;
                }
                let Some(registered) = self.shared.platform(&choice.platform) else { continue };
                let Some(client) = registered.platform.client() else { continue };
                let message = self.probe_request(document, resolved, group, choice, &registered);
                asked.push(async move {
                    let answer = client.provision(message, VALIDATE_TIMEOUT).await;
                    (format!("{}.platforms[{index}]", group.field), choice.platform.clone(), answer.err())
                });
            }
        }
        let mut wrong = Vec::new();
        for (field, platform, error) in futures::future::join_all(asked).await {
            let Some(error) = error else { continue };
            if error.class() == Class::Cannot {
                if error.fields().is_empty() {
                    wrong.push(Violation { field: field.clone(), description: format!("{platform}: {error}") });
                }
                for inner in error.fields() {
                    let description = format!("{platform}: {}: {}", inner.field, inner.description);
                    wrong.push(Violation { field: field.clone(), description });
                }
            } else {
                let warning = format!("platform {platform} could not check the spec: {error}");
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(Error::violations(wrong)) }
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

    async fn create(&self, name: &str, checked: Checked, validate_only: bool) -> Result<pb::ApplyClusterResponse> {
        let now = self.shared.now();
        let time = i64::try_from(now).unwrap_or(i64::MAX);
        let value = Desired {
            name: name.to_owned(),
            labels: checked.labels,
            spec: checked.spec.encode_to_vec().into(),
            generation: 1,
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
            self.shared.wrote(revision);
            answer.revision = revision;
            self.shared.add(Cluster::create(uid, desired, checked.resolved))
        };
        {
            let mut inner = cluster.inner.lock();
            answer.plan = Some(self.forecast(&cluster, &mut inner));
            if !validate_only {
                self.shared.changed(&cluster, &mut inner);
            }
        }
        answer.cluster = Some(self.shown(&cluster));
        if !validate_only {
            self.shared.queue.push(cluster.uid, Urgency::Bulk);
        }
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
            refuse_removed(&inner, &checked.resolved, remove_groups)?;
            refuse_shrinking(&inner, &checked.resolved)?;
            refuse_outdating(&inner, &checked.resolved)?;
            let mut desired = inner.desired.clone();
            let same = desired.value.labels == checked.labels && stored_spec(&desired.value.spec)? == checked.spec;
            if !same {
                desired.value.labels = checked.labels;
                desired.value.spec = checked.spec.encode_to_vec().into();
                desired.value.generation += 1;
                desired.value.apply_time_ms = i64::try_from(self.shared.now()).unwrap_or(i64::MAX);
            }
            (desired, same)
        };
        let outcome = if same { pb::ApplyOutcome::Unchanged } else { pb::ApplyOutcome::Configured };
        let plan = {
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
            names.requests.extend(inner.state.requests.iter().map(|(id, request)| (*id, Request::clone(request))));
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
        status::plan(&whole, &names, generation, now)
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
        version: 0,
        finished: false,
    };
    copy.follow_desired();
    copy.state.paused = false;
    copy
}

/// A size that is not said is 1 at first, and later as it is.
fn keep_sizes(spec: &mut pb::ClusterSpec, cluster: Option<&Arc<Cluster>>) {
    let mut before = cluster.and_then(|cluster| stored_spec(&cluster.inner.lock().desired.value.spec).ok());
    let mut open: Vec<(String, &mut pb::GroupSpec)> =
        spec.groups.iter_mut().map(|group| (group.name.clone(), group)).collect();
    while let Some((path, group)) = open.pop() {
        if !group.groups.is_empty() {
            open.extend(group.groups.iter_mut().map(|inner| (format!("{path}/{}", inner.name), inner)));
        } else if group.size.is_none() {
            let old = before.as_mut().and_then(|spec| find_group(&mut spec.groups, &path)?.size);
            group.size = Some(old.unwrap_or(1));
        }
    }
}

/// A group that has nodes goes only if it is named.
fn refuse_removed(inner: &Inner, resolved: &Resolved, named: &[String]) -> Result<()> {
    for group in &inner.spec.groups {
        if resolved.groups.iter().any(|new| new.path == group.path) {
            continue;
        }
        let nodes = inner.state.nodes.iter().filter(|node| node.group == group.path).count();
        if nodes == 0 {
            continue;
        }
        if group.protection {
            return Err(super::clusters::protected(&group.path));
        }
        let covered = named.iter().any(|n| *n == *group.path || group.path.starts_with(&format!("{n}/")));
        if !covered {
            let message = format!("the new spec lacks group {}, which has {nodes} nodes; name it in remove_groups to delete them", group.path);
            return Err(Error::new(Reason::GroupHasNodes, message).with_metadata("group", &group.path));
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
    for group in resolved.groups.iter().filter(|group| group.update == UpdateStrategy::Unset) {
        let outdated = inner
            .state
            .nodes
            .iter()
            .filter(|node| node.group == group.path && node.removal.is_none())
            .filter(|node| group.choices.iter().all(|choice| choice.spec_hash != node.spec_hash))
            .count();
        if outdated > 0 {
            let description = format!(
                "{outdated} nodes would have to be replaced, and rolling updates are not available in this version; \
                 with `update: {{strategy: OnDelete}}` they are replaced when they go for another reason"
            );
            wrong.push(Violation { field: group.field.clone(), description });
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::violations(wrong)) }
}
