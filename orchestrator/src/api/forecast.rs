//! What would be done, without doing it.

use std::sync::Arc;

use drover_cluster::{Cluster, ClusterState, Resolved};
use drover_convert::value::to_timestamp;
use drover_core::{node::Request, spec::Group};
use drover_planner::{Plan, State};
use drover_proto::orchestrator::v1 as pb;
use drover_store::{Desired, Versioned};

use super::{adopt, rollout};
use crate::{
    planning::Planner,
    records::Records,
    status::{self, Viewer, shown_spec},
};

/// Maximum number of plans that a preview combines; each would be one step of the store.
const MAX_PREVIEW: usize = 300;

/// Plans ahead.
#[derive(Clone)]
pub(crate) struct Forecaster {
    pub(crate) planner: Planner,
    pub(crate) viewer: Viewer,
    pub(crate) records: Arc<Records>,
}

impl Forecaster {
    /// The next plan of a stored cluster.
    pub(super) fn preview(&self, cluster: &Cluster) -> pb::Plan {
        self.preview_with(cluster, &[])
    }

    /// Like [`Self::preview`], with groups of former specs to explain the causes of an update.
    pub(super) fn preview_with(&self, cluster: &Cluster, former: &[Group]) -> pb::Plan {
        let inner = cluster.lock();
        let now = self.viewer.clock.now();
        let suggestions = self.planner.suggestions(&inner);
        let plan = self.planner.plan(&inner, &suggestions, now, true);
        let mut shown = status::plan_of(&plan, &inner, now);
        let known = suggestions.groups.as_ref();
        let groups = known.map_or(&inner.spec().groups, |groups| groups);
        shown.renewals = rollout::renewals(&plan.renewals, inner.state(), groups, former);
        shown
    }

    /// Everything that would be done at once for a record, combined from as many plans as that takes.
    pub(super) fn forecast(
        &self,
        cluster: &Cluster,
        inner: &ClusterState,
        former: &[Group],
    ) -> pb::Plan {
        let now = self.viewer.clock.now();
        let mut ahead = inner.preview();
        let mut whole = Plan::default();
        let mut names: State = inner.state().clone();
        let suggestions = self.planner.suggestions(inner);
        for round in 0..MAX_PREVIEW {
            let plan = self.planner.plan(&ahead, &suggestions, now, true);
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

    /// The plan that would result from this desired state.
    pub(super) fn supposed(
        &self,
        cluster: &Cluster,
        desired: Versioned<Desired>,
        spec: Option<Arc<Resolved>>,
        former: &[Group],
    ) -> pb::PlanClusterResponse {
        let mut shown = self.viewer.shown(cluster);
        shown.generation = desired.value.generation;
        shown.spec = shown_spec(
            &desired.value.spec,
            &self.viewer.digests.of_cluster(cluster.uid()),
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
            revision: self.records.revision(),
            cluster: Some(shown),
        }
    }
}
