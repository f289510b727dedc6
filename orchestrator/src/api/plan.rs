//! PlanCluster: what a change would do, or what is about to be done.

use std::sync::Arc;

use drover_core::{Error, Result};
use drover_proto::orchestrator::v1 as pb;

use super::{
    access::{Access, per_call},
    apply::Applier,
    clusters::{Edits, refuse_deleting},
    forecast::Forecaster,
    revisions::Revisions,
    rollout,
};
use crate::{limits::Limits, records::Records, status::Viewer};

/// Answers with plans.
#[derive(Clone)]
pub(crate) struct Plans {
    pub(crate) access: Access,
    pub(crate) applier: Applier,
    pub(crate) edits: Edits,
    pub(crate) forecaster: Forecaster,
    pub(crate) revisions: Revisions,
    pub(crate) viewer: Viewer,
    pub(crate) records: Arc<Records>,
    pub(crate) limits: Arc<Limits>,
}

per_call!(Plans: access, applier, edits);

impl Plans {
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
            self.limits.plan(self.access.record.payer())?
        };
        self.records.reach(request.min_revision).await?;
        match request.subject {
            Some(Subject::Name(name)) => {
                let cluster = self.access.find(&name)?;
                let former = self.revisions.former(&cluster).await?;
                let plan = self.forecaster.preview_with(&cluster, &former);
                Ok(pb::PlanClusterResponse {
                    plan: Some(plan),
                    warnings: Vec::new(),
                    revision: self.records.revision(),
                    cluster: Some(self.viewer.shown(&cluster)),
                })
            }
            Some(Subject::Scale(request)) => {
                let cluster = self.access.find(&request.cluster)?;
                let former = self.revisions.former(&cluster).await?;
                let (desired, spec) = self.edits.scaled(&cluster, &cluster.lock(), &request)?;
                Ok(self
                    .forecaster
                    .supposed(&cluster, desired, Some(spec), &former))
            }
            Some(Subject::Delete(request)) => {
                let cluster = self.access.find(&request.name)?;
                let desired = self.edits.deleted(&cluster.lock(), &request)?;
                Ok(self.forecaster.supposed(&cluster, desired, None, &[]))
            }
            Some(Subject::Restart(request)) => {
                let cluster = self.access.find(&request.cluster)?;
                let former = self.revisions.former(&cluster).await?;
                let desired = {
                    let inner = cluster.lock();
                    refuse_deleting(&inner, cluster.name())?;
                    rollout::restarted(&inner, request.group.as_deref())?.0
                };
                Ok(self.forecaster.supposed(&cluster, desired, None, &former))
            }
            Some(Subject::Undo(request)) => {
                let (_, answer) = self.applier.undo_as(request, true).await?;
                Ok(pb::PlanClusterResponse {
                    plan: answer.plan,
                    warnings: answer.warnings,
                    revision: answer.revision,
                    cluster: answer.cluster,
                })
            }
            Some(Subject::Cluster(cluster)) => {
                let answer = self
                    .applier
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
}
