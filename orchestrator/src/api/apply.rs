//! ApplyCluster: a document is fully validated, also by every reachable platform, and then made durable.

use std::{collections::BTreeMap, sync::Arc};

use drover_cluster::{Cluster, ClusterState, Resolved, order_adoption, stored_spec};
use drover_core::{Error, Reason, Result, error::Violation, name, spec::Group, words};
use drover_platforms::Platforms;
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Along, Clock};
use prost::Message;

use super::{
    access::{Access, per_call},
    adopt,
    check::{Checked, Validator},
    clusters::{expect, find_group, refuse_deleting},
    create::Creator,
    editor::Editor,
    forecast::Forecaster,
    revisions::{self, Revisions},
    user_data::names_secrets,
};
use crate::{
    limits::Limits,
    records::Records,
    secrets::Secrets,
    space::Space,
    status::{self, Viewer},
};

/// Maximum number of retries after the cluster was created concurrently.
const MAX_TURNS: usize = 8;

/// Applies documents.
#[derive(Clone)]
pub(crate) struct Applier {
    pub(crate) access: Access,
    pub(crate) validator: Validator,
    pub(crate) creator: Creator,
    pub(crate) editor: Editor,
    pub(crate) forecaster: Forecaster,
    pub(crate) revisions: Revisions,
    pub(crate) viewer: Viewer,
    pub(crate) records: Arc<Records>,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) space: Arc<Space>,
    pub(crate) clock: Arc<Clock>,
}

per_call!(Applier: access, validator, creator, editor);

impl Applier {
    pub(super) async fn apply(
        &self,
        request: pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let Some(document) = &request.cluster else {
            return Err(Error::invalid("cluster", "is missing"));
        };
        let _share = if request.validate_only {
            self.limits.plan(self.access.record.payer())?
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
            if let Err(more) = self.validator.read(document, None, &request) {
                wrong.extend(more.fields().iter().cloned());
            }
            return Err(Error::violations(wrong));
        }
        self.access.caller.about("cluster", &document.name);
        // Held so that the secrets that validation finds still exist when the reference to them is stored.
        let _secrets = if names_secrets(document) && !request.validate_only {
            Some(self.secrets.refer().await)
        } else {
            None
        };
        for _ in 0..MAX_TURNS {
            if let Ok(cluster) = self.records.clusters().find(&document.name) {
                return self.apply_to(&cluster, document, &request).await;
            }
            match self.apply_new(document, &request).await {
                // The cluster was created concurrently, or by a call that lost the store's response.
                Err(error)
                    if error.reason() == Reason::ClusterExists && error.resource().is_some() =>
                {
                    self.creator.take_in(&document.name).await?;
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
            return self.access.may_change(&document.name, Some(labels));
        }
        if self.access.caller.sees(&document.name, Some(labels)) {
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
            self.access.may_adopt(&document.name)?;
            Some(self.creator.others(&document.name).await?)
        } else {
            self.creator.refuse_foreign(&document.name)?;
            None
        };
        let checked = self.validator.check(document, None, request).await?;
        self.creator
            .create(&document.name, checked, request.validate_only, others)
            .await
    }

    async fn apply_to(
        &self,
        cluster: &Arc<Cluster>,
        document: &pb::Cluster,
        request: &pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let _change = self.editor.lock(cluster).await;
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
                self.access.may_adopt(&document.name)?;
            }
            expect(&inner, request.expected_generation)?;
            refuse_deleting(&inner, cluster.name())?;
        }
        let checked = self
            .validator
            .check(document, Some(cluster), request)
            .await?;
        self.change(cluster, checked, request).await
    }

    async fn change(
        &self,
        cluster: &Arc<Cluster>,
        checked: Checked,
        request: &pb::ApplyClusterRequest,
    ) -> Result<pb::ApplyClusterResponse> {
        let (remove_groups, validate_only) = (&request.remove_groups, request.validate_only);
        let earlier = self.revisions.earlier(cluster).await?;
        let data = self
            .validator
            .user_data_of_change(cluster, &checked, &earlier)
            .await?;
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
                desired.value.apply_time_ms = i64::try_from(self.clock.now()).unwrap_or(i64::MAX);
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
        let along = Along {
            data,
            former: revisions::replaced(cluster, &desired.value, &earlier)?,
        };
        let former = self.revisions.groups(cluster, earlier)?;
        let mut plan = {
            let inner = cluster.lock();
            let copy = inner.what_if(desired.clone(), checked.resolved.clone());
            drop(inner);
            self.forecaster.forecast(cluster, &copy, &former)
        };
        let mut warnings = checked.warnings;
        if request.adopt {
            warnings.extend(adopt::warning(&plan));
        }
        let mut shown = self.viewer.shown(cluster);
        let revision = if validate_only || same {
            if validate_only && !same {
                shown.generation = desired.value.generation;
                shown.labels.clone_from(&desired.value.labels);
                let digests = self.viewer.digests.of_cluster(cluster.uid());
                let mut spec = status::shown(checked.spec, &digests);
                checked.user_data.leave_out(&mut spec);
                shown.spec = Some(spec);
                plan.generation = before;
            }
            self.records.revision()
        } else {
            let spec = Some(checked.resolved);
            let revision = self
                .editor
                .store_with(cluster, desired, spec, along)
                .await?;
            shown = self.viewer.shown(cluster);
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
        self.space.admit(&what)
    }
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
        let nodes = words::count(nodes, "node");
        if group.protection {
            let what = format!("removes the group with its {nodes}");
            return Err(super::clusters::protected(inner, &group.path, &what));
        }
        let covered = named
            .iter()
            .any(|n| *n == *group.path || group.path.starts_with(&format!("{n}/")));
        if !covered {
            let message = format!(
                "the new spec lacks group {path}, which has {nodes}; to delete the group with them: \
                 `--remove-group {path}`",
                path = group.path
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
