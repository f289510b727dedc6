//! ApplyCluster and PlanCluster: a document is fully validated, also by every reachable platform, and then made
//! durable.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drover_cluster::{Cluster, ClusterState, Resolved, order_adoption, stored_spec};
use drover_convert::value::to_timestamp;
use drover_core::{
    Error, Reason, Result, Sym, Urgency, error::Violation, name, node::Request, spec::Group,
};
use drover_executor::Point;
use drover_planner::{Plan, State};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Desired, Versioned};
use prost::Message;
use tokio::time::Instant;

use super::{
    Api,
    adopt::{self, Others},
    check::Checked,
    clusters::{expect, find_group, refuse_deleting},
    rollout,
    user_data::names_secrets,
};
use crate::status::{self, shown_spec};

/// Maximum number of retries after the cluster was created concurrently.
const MAX_TURNS: usize = 8;
/// Maximum time until a concurrently created cluster, already durable, is visible in memory.
const CREATION_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of plans that a preview combines; each would be one step of the store.
const MAX_PREVIEW: usize = 300;

impl Api {
    pub(super) async fn apply(
        &self,
        request: pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let Some(document) = &request.cluster else {
            return Err(Error::invalid("cluster", "is missing"));
        };
        let _share = if request.validate_only {
            self.shared.limits.plan(self.record.payer())?
        } else {
            None
        };
        if !request.assume_platforms.is_empty() && !request.validate_only {
            return Err(Error::invalid("assume_platforms", "is for validate_only"));
        }
        if let Err(why) = name::check_cluster_name(&document.name) {
            let mut wrong = vec![Violation {
                field: "cluster.name".to_owned(),
                description: why,
            }];
            if let Err(more) = self.read(document, None, &request) {
                wrong.extend(more.fields().iter().cloned());
            }
            return Err(Error::violations(wrong));
        }
        self.caller.about("cluster", &document.name);
        // Held so that the secrets that validation finds still exist when the reference to them is stored.
        let _secrets = if names_secrets(document) && !request.validate_only {
            Some(self.shared.secrets.refer().await)
        } else {
            None
        };
        for _ in 0..MAX_TURNS {
            if let Ok(cluster) = self.shared.clusters.find(&document.name) {
                return self.apply_to(&cluster, document, &request).await;
            }
            match self.apply_new(document, &request).await {
                // The cluster was created concurrently, or by a call that lost the store's response.
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

    /// A dry run only requires that the caller sees the cluster.
    fn may_apply(
        &self,
        document: &pb::Cluster,
        labels: &BTreeMap<String, String>,
        validate_only: bool,
    ) -> Result<()> {
        if !validate_only {
            return self.may_change(&document.name, Some(labels));
        }
        if self.caller.sees(&document.name, Some(labels)) {
            return Ok(());
        }
        Err(Error::not_found("cluster", document.name.as_str()))
    }

    async fn apply_new(
        &self,
        document: &pb::Cluster,
        request: &pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        self.may_apply(document, &document.labels, request.validate_only)?;
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
        let others = if request.adopt {
            self.may_adopt(&document.name)?;
            Some(self.others(&document.name).await?)
        } else {
            self.refuse_foreign(&document.name)?;
            None
        };
        let checked = self.check(document, None, request).await?;
        self.create(&document.name, checked, request.validate_only, others)
            .await
    }

    async fn apply_to(
        &self,
        cluster: &Arc<Cluster>,
        document: &pb::Cluster,
        request: &pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let _change = self.shared.changing.lock(cluster.uid()).await;
        {
            let inner = cluster.lock();
            // The current labels must permit the change, too: the caller can neither take a cluster by changing its
            // labels nor give it away.
            self.may_apply(
                document,
                &inner.desired().value.labels,
                request.validate_only,
            )?;
            self.may_apply(document, &document.labels, request.validate_only)?;
            // Nodes that platforms show by the time of the adoption may belong to others, even if none are visible now.
            if request.adopt {
                self.may_adopt(&document.name)?;
            }
            expect(&inner, request.expected_generation)?;
            refuse_deleting(&inner, cluster.name())?;
        }
        let checked = self.check(document, Some(cluster), request).await?;
        self.change(cluster, checked, request).await
    }

    /// Loads a cluster into memory that exists only in the store.
    async fn take_in(&self, name: &str) -> Result<()> {
        let end = Instant::now() + CREATION_WAIT;
        while Instant::now() < end {
            if self.shared.clusters.find(name).is_ok() {
                return Ok(());
            }
            tokio::time::sleep(super::SHORT_WAIT).await;
        }
        // No other call is about to load it: its creator lost the store's response.
        let Some(uid) = self.shared.store.find_cluster(name).await? else {
            return Ok(());
        };
        if let Some(row) = self.shared.store.load_cluster(uid).await? {
            self.shared.records.wrote(row.desired.revision);
            let cluster = self.shared.records.add(self.shared.records.decode(row)?);
            self.shared.records.changed(&cluster, &mut cluster.lock());
            self.shared.queue.push(uid, Urgency::Bulk);
        }
        Ok(())
    }

    pub(super) async fn plan(
        &self,
        request: pb::PlanClusterRequest,
    ) -> Result<pb::PlanClusterResponse> {
        use pb::plan_cluster_request::Subject;
        // Dry runs count against the limit where they are validated.
        let tried = matches!(
            request.subject,
            Some(Subject::Cluster(_) | Subject::Undo(_))
        );
        let _share = if tried {
            None
        } else {
            self.shared.limits.plan(self.record.payer())?
        };
        self.shared.records.reach(request.min_revision).await?;
        match request.subject {
            Some(Subject::Name(name)) => {
                let cluster = self.find(&name)?;
                let former = self.former(&cluster).await?;
                let plan = self.preview_with(&cluster, &former);
                Ok(pb::PlanClusterResponse {
                    plan: Some(plan),
                    warnings: Vec::new(),
                    revision: self.shared.records.revision(),
                    cluster: Some(self.shared.viewer.shown(&cluster)),
                })
            }
            Some(Subject::Scale(request)) => {
                let cluster = self.find(&request.cluster)?;
                let former = self.former(&cluster).await?;
                let (desired, spec) = self.scaled(&cluster, &cluster.lock(), &request)?;
                Ok(self.supposed(&cluster, desired, Some(spec), &former))
            }
            Some(Subject::Delete(request)) => {
                let cluster = self.find(&request.name)?;
                let desired = self.deleted(&cluster.lock(), &request)?;
                Ok(self.supposed(&cluster, desired, None, &[]))
            }
            Some(Subject::Restart(request)) => {
                let cluster = self.find(&request.cluster)?;
                let former = self.former(&cluster).await?;
                let desired = {
                    let inner = cluster.lock();
                    refuse_deleting(&inner, cluster.name())?;
                    rollout::restarted(&inner, request.group.as_deref())?.0
                };
                Ok(self.supposed(&cluster, desired, None, &former))
            }
            Some(Subject::Undo(request)) => {
                let (_, answer) = self.undo_as(request, true).await?;
                Ok(pb::PlanClusterResponse {
                    plan: answer.plan,
                    warnings: answer.warnings,
                    revision: answer.revision,
                    cluster: answer.cluster,
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
                    cluster: answer.cluster,
                })
            }
            None => Err(Error::invalid(
                "subject",
                "neither name nor cluster is given",
            )),
        }
    }

    /// The plan that would result from this desired state.
    pub(super) fn supposed(
        &self,
        cluster: &Cluster,
        desired: Versioned<Desired>,
        spec: Option<Arc<Resolved>>,
        former: &[Group],
    ) -> pb::PlanClusterResponse {
        let mut shown = self.shared.viewer.shown(cluster);
        shown.generation = desired.value.generation;
        shown.spec = shown_spec(
            &desired.value.spec,
            &self.shared.digests.of_cluster(cluster.uid()),
        );
        shown.delete_time = desired
            .value
            .delete_time_ms
            .map(|time| to_timestamp(u64::try_from(time).unwrap_or(0)));
        let copy = {
            let inner = cluster.lock();
            let spec = spec.unwrap_or_else(|| inner.spec().clone());
            inner.what_if(desired, spec)
        };
        let plan = self.forecast(cluster, &copy, former);
        pb::PlanClusterResponse {
            plan: Some(plan),
            warnings: Vec::new(),
            revision: self.shared.records.revision(),
            cluster: Some(shown),
        }
    }

    /// Refuses the name of a cluster of which a platform shows foreign nodes.
    fn refuse_foreign(&self, name: &str) -> Result<()> {
        for (platform, registered) in &*self.shared.platforms.read() {
            if let Some(owner) = registered.platform.foreign_owner(name) {
                let owner = if owner.is_empty() {
                    "nobody known"
                } else {
                    &owner
                };
                let platform = if self.caller.sees_platform(platform) {
                    platform
                } else {
                    "a platform"
                };
                let message = format!(
                    "{platform} shows nodes of a cluster {name:?} whose owner is {owner}; choose another name, or take \
                     them over with adopt"
                );
                return Err(Error::new(Reason::ClusterExists, message));
            }
        }
        Ok(())
    }

    async fn create(
        &self,
        name: &str,
        checked: Checked,
        validate_only: bool,
        others: Option<Others>,
    ) -> Result<pb::ApplyClusterResponse> {
        self.shared.space.admit("a new cluster")?;
        let mut checked = checked;
        let kept = self
            .warn_of_kept(name, &with_storage(&checked.resolved))
            .await;
        checked.warnings.extend(kept);
        let now = self.shared.clock.now();
        let time = i64::try_from(now).unwrap_or(i64::MAX);
        let mut value = Desired {
            name: name.to_owned(),
            labels: checked.labels,
            spec: checked.spec.encode_to_vec().into(),
            // Continues the generation of a deleted cluster of this name, so that an expected generation of the former
            // never matches.
            generation: self.shared.tombstones.generation(name) + 1,
            author: self.record.author().to_owned(),
            apply_time_ms: time,
            create_time_ms: time,
            ..Desired::default()
        };
        if others.is_some() {
            order_adoption(&mut value);
        }
        let mut answer = pb::ApplyClusterResponse {
            outcome: pb::ApplyOutcome::Created.into(),
            warnings: checked.warnings,
            ..pb::ApplyClusterResponse::default()
        };
        let cluster = if validate_only {
            let desired = Versioned { value, revision: 0 };
            answer.revision = self.shared.records.revision();
            Arc::new(Cluster::create(checked.uid, desired, checked.resolved))
        } else {
            self.shared.hooks.reach(Point::BeforeApply).await;
            let data = checked.user_data.to_store();
            let store = &self.shared.store;
            let revision = store
                .create_cluster_with(checked.uid, value.clone(), data)
                .await?;
            self.shared.hooks.reach(Point::AfterApply).await;
            self.record.generation(value.generation);
            let desired = Versioned { value, revision };
            answer.revision = revision;
            self.shared
                .records
                .add(Cluster::create(checked.uid, desired, checked.resolved))
        };
        if let Some(others) = others {
            others.show(self, &cluster);
        }
        let mut plan = {
            let mut inner = cluster.lock();
            let plan = self.forecast(&cluster, &inner, &[]);
            if !validate_only {
                self.shared.records.changed(&cluster, &mut inner);
            }
            plan
        };
        let mut shown = self.shared.viewer.shown(&cluster);
        if let Some(spec) = &mut shown.spec {
            checked.user_data.leave_out(spec);
        }
        if validate_only {
            plan.generation = 0;
            shown.uid.clear();
        } else {
            self.shared.records.wrote(answer.revision);
            self.shared.queue.push(cluster.uid(), Urgency::Bulk);
        }
        answer.warnings.extend(adopt::warning(&plan));
        answer.plan = Some(plan);
        answer.cluster = Some(shown);
        Ok(answer)
    }

    async fn change(
        &self,
        cluster: &Arc<Cluster>,
        checked: Checked,
        request: &pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let (remove_groups, validate_only) = (&request.remove_groups, request.validate_only);
        let data = self.user_data_of_change(cluster, &checked).await?;
        let former = self.former(cluster).await?;
        let (desired, same) = {
            let inner = cluster.lock();
            refuse_kept(&checked.spec, remove_groups)?;
            refuse_removed(&inner, &checked.resolved, remove_groups)?;
            refuse_shrinking(&inner, &checked.resolved)?;
            self.admit_groups(&inner, &checked.resolved)?;
            super::check::resources::refuse_removed(&inner, &checked.resolved)?;
            let mut desired = inner.desired().clone();
            let same = desired.value.labels == checked.labels
                && stored_spec(&desired.value.spec)? == checked.spec;
            if !same {
                desired.value.labels = checked.labels;
                desired.value.spec = checked.spec.encode_to_vec().into();
                inner.remember_leaving(&mut desired.value, &checked.resolved.groups);
                desired.value.generation += 1;
                desired.value.apply_time_ms =
                    i64::try_from(self.shared.clock.now()).unwrap_or(i64::MAX);
            }
            let adopts =
                request.adopt && self.adoptable(&inner, &checked.resolved, remove_groups)?;
            if adopts {
                order_adoption(&mut desired.value);
            }
            (desired, same && !adopts)
        };
        let outcome = if same {
            pb::ApplyOutcome::Unchanged
        } else {
            pb::ApplyOutcome::Configured
        };
        let before = cluster.lock().desired().value.generation;
        let mut plan = {
            let inner = cluster.lock();
            let copy = inner.what_if(desired.clone(), checked.resolved.clone());
            drop(inner);
            self.forecast(cluster, &copy, &former)
        };
        let mut warnings = checked.warnings;
        if request.adopt {
            warnings.extend(adopt::warning(&plan));
        }
        let mut shown = self.shared.viewer.shown(cluster);
        let revision = if validate_only || same {
            if validate_only && !same {
                shown.generation = desired.value.generation;
                shown.labels.clone_from(&desired.value.labels);
                let digests = self.shared.digests.of_cluster(cluster.uid());
                let mut spec = status::shown(checked.spec, &digests);
                checked.user_data.leave_out(&mut spec);
                shown.spec = Some(spec);
                plan.generation = before;
            }
            self.shared.records.revision()
        } else {
            let spec = Some(checked.resolved);
            let revision = self.store_with(cluster, desired, spec, data).await?;
            shown = self.shared.viewer.shown(cluster);
            revision
        };
        Ok(pb::ApplyClusterResponse {
            cluster: Some(shown),
            outcome: outcome.into(),
            plan: Some(plan),
            warnings,
            revision,
        })
    }

    /// Refuses a new group in a store that is too full for it.
    fn admit_groups(&self, inner: &ClusterState, resolved: &Resolved) -> Result<()> {
        let present = &inner.spec().groups;
        let is_new = |group: &&Group| !present.iter().any(|it| it.path == group.path);
        let Some(group) = resolved.groups.iter().find(is_new) else {
            return Ok(());
        };
        let what = format!("a new group {}", group.path);
        self.shared.space.admit(&what)
    }

    /// Everything that would be done at once for a record, combined from as many plans as that takes.
    fn forecast(&self, cluster: &Cluster, inner: &ClusterState, former: &[Group]) -> pb::Plan {
        let now = self.shared.clock.now();
        let mut ahead = inner.preview();
        let mut whole = Plan::default();
        let mut names: State = inner.state().clone();
        let suggestions = self.shared.planner.suggestions(&inner);
        for round in 0..MAX_PREVIEW {
            let plan = self.shared.planner.plan(&ahead, &suggestions, now, true);
            ahead.step(&plan, now);
            adopt::suppose(&mut names, &plan);
            names.requests.extend(
                ahead
                    .state()
                    .requests
                    .iter()
                    .map(|(id, request)| (*id, Request::clone(request))),
            );
            let again = plan.again;
            whole.ops.extend(plan.ops);
            if round == 0 {
                whole.report = plan.report;
                whole.renewals = plan.renewals;
            }
            whole.outlook = plan.outlook;
            if !again {
                break;
            }
        }
        let generation = inner.desired().value.generation;
        names.uid = cluster.uid();
        let known = suggestions.groups.as_ref();
        let groups = known.map_or(inner.groups(), |groups| groups);
        let revision = inner.head().revision;
        let mut plan = status::plan(&whole, &names, groups, revision, generation, now);
        plan.renewals = rollout::renewals(&whole.renewals, &names, groups, former);
        plan
    }
}

/// The platforms named by groups with storage.
fn with_storage(spec: &Resolved) -> Vec<Sym> {
    let groups = spec.groups.iter().filter(|group| group.storage.is_some());
    let mut platforms: Vec<Sym> = groups
        .flat_map(|group| &group.choices)
        .map(|choice| choice.platform.clone())
        .collect();
    platforms.sort();
    platforms.dedup();
    platforms
}

/// Refuses a group that is both in the spec and named for removal.
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

/// Refuses to remove a group with nodes unless it is named for removal.
fn refuse_removed(inner: &ClusterState, resolved: &Resolved, named: &[String]) -> Result<()> {
    for group in &inner.spec().groups {
        if resolved.groups.iter().any(|new| new.path == group.path) {
            continue;
        }
        let nodes = inner
            .state()
            .nodes
            .iter()
            .filter(|node| node.group == group.path)
            .count();
        if nodes == 0 {
            continue;
        }
        let nodes = match nodes {
            1 => "1 node".to_owned(),
            nodes => format!("{nodes} nodes"),
        };
        if group.protection {
            let what = format!("removes the group with its {nodes}");
            return Err(super::clusters::protected(inner, &group.path, &what));
        }
        let covered = named
            .iter()
            .any(|n| *n == *group.path || group.path.starts_with(&format!("{n}/")));
        if !covered {
            let message = format!(
                "the new spec lacks group {}, which has {nodes}; name it in remove_groups to delete them",
                group.path
            );
            return Err(
                Error::new(Reason::GroupHasNodes, message).with_metadata("group", &group.path)
            );
        }
    }
    Ok(())
}

fn refuse_shrinking(inner: &ClusterState, resolved: &Resolved) -> Result<()> {
    for group in inner.spec().groups.iter().filter(|group| group.protection) {
        let new = resolved.groups.iter().find(|new| new.path == group.path);
        // Removing the protection and shrinking in one step would make the protection ineffective.
        let sizes = |group: &Group| (group.size.unwrap_or(1), group.standby);
        let what = new.and_then(|new| super::clusters::lowers(sizes(group), sizes(new)));
        if let Some(what) = what {
            return Err(super::clusters::protected(inner, &group.path, &what));
        }
    }
    Ok(())
}
