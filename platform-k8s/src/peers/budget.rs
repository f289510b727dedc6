//! The disruption budget of a group: how many of its pods may be evicted at the same time.

use std::collections::{BTreeMap, BTreeSet};

use drover_core::{Error, Result};
use drover_proto::platform::v1::Node;
use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use tokio::time::Instant;

use super::{
    Sizes,
    shared::{GroupLabels, Patience, Place, is_marked},
};
use crate::{
    client::{Api, Meta as _},
    group::Member,
    labels::LabelKeys,
    objects,
    watch::NodeCache,
};

const PLURAL: &str = "poddisruptionbudgets";

/// The budgets that the pods of a cluster request, by namespace and name.
#[derive(Default)]
pub(super) struct Budgets(BTreeMap<(String, String), Budget>);

/// Desired state of a budget.
#[derive(Debug)]
pub(super) struct Budget {
    namespace: String,
    name: String,
    group: (String, String),
    of: GroupLabels,
    /// How many may be away.
    spare: u32,
    /// How many have to stay.
    stay: u32,
}

impl Budgets {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a pod that requests a budget.
    pub(super) fn add(&mut self, spare: u32, owner: &str, node: &Node, member: &Member) {
        let namespace = member.namespace.to_string();
        let name = objects::group_name(&node.cluster_id, &node.group);
        let key = (namespace.clone(), name.clone());
        let wanted = self.0.entry(key).or_insert_with(|| Budget {
            namespace,
            name,
            group: (owner.to_owned(), node.group.clone()),
            of: GroupLabels::of(owner, &node.cluster_id, &node.group),
            spare,
            stay: 0,
        });
        wanted.spare = wanted.spare.min(spare);
    }

    /// The budgets, given how many nodes each group of an owner has. A node without a pod counts: its pod is away.
    pub(super) fn wanted(self, sizes: &Sizes) -> impl Iterator<Item = Budget> {
        self.0.into_values().map(|mut wanted| {
            let nodes = sizes.get(&wanted.group).map_or(0, BTreeSet::len);
            let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
            wanted.stay = nodes.saturating_sub(wanted.spare);
            wanted
        })
    }
}

impl Budget {
    pub(super) fn place(&self) -> Place {
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        (PLURAL.to_owned(), namespace, name)
    }

    pub(super) fn digest(&self) -> u128 {
        crate::group::uid(&format!("budget {:?} {}", self.of, self.stay))
    }

    /// Creates or updates the budget. One that is larger than wanted stays for a while: a node that is being replaced is
    /// not there, and in its place no other one may be evicted. Returns when to try again in that case.
    ///
    /// # Errors
    /// `Precondition` if the budget of this name does not belong to its group; otherwise as in [`crate::errors`].
    pub(super) async fn make(
        &self,
        api: &Api,
        keys: &LabelKeys,
        cache: &NodeCache,
        patience: &Patience,
    ) -> Result<Option<Instant>> {
        let kind = api.kind_of("policy/v1", "PodDisruptionBudget").await?;
        let (namespace, name) = (&self.namespace, &self.name);
        let there = api
            .get::<PodDisruptionBudget>(&kind, namespace, name)
            .await?;
        let mut budget = self.budget(keys);
        let Some(there) = there else {
            api.create(&kind, namespace, &written(&budget)?).await?;
            // Who deletes it has it counted anew at once.
            patience.forget(&self.place());
            return Ok(None);
        };
        let meta = &there.metadata;
        self.of.check(&kind, meta, keys, cache)?;
        let stay = there.spec.as_ref().and_then(stay);
        if stay.is_some_and(|stay| stay > self.stay)
            && let Some(at) = patience.until(self.place(), self.stay)
        {
            return Ok(Some(at));
        }
        patience.forget(&self.place());
        let (spec, labels) = (&budget.spec, &budget.metadata.labels);
        if there.spec == *spec && meta.labels == *labels && is_marked(meta) {
            return Ok(None);
        }
        budget.metadata.uid = Some(meta.uid().to_owned());
        budget.metadata.resource_version = Some(meta.version().to_owned());
        api.patch(&kind, namespace, name, &written(&budget)?)
            .await?;
        Ok(None)
    }

    pub(super) fn budget(&self, keys: &LabelKeys) -> PodDisruptionBudget {
        // Where nobody has to stay, a pod that is not Ready may go as well. Otherwise it might be one that has the data.
        let unready = if self.stay == 0 {
            "AlwaysAllow"
        } else {
            "IfHealthyBudget"
        };
        // Not maxUnavailable: Kubernetes counts it by the scale of the controller, which a namespace does not have, and would
        // let none go.
        PodDisruptionBudget {
            metadata: self.of.metadata(&self.namespace, &self.name, keys),
            spec: Some(PodDisruptionBudgetSpec {
                min_available: Some(IntOrString::Int(
                    i32::try_from(self.stay).unwrap_or(i32::MAX),
                )),
                selector: Some(LabelSelector {
                    match_labels: Some(self.of.selector(keys)),
                    ..LabelSelector::default()
                }),
                unhealthy_pod_eviction_policy: Some(unready.to_owned()),
                ..PodDisruptionBudgetSpec::default()
            }),
            ..PodDisruptionBudget::default()
        }
    }
}

fn stay(spec: &PodDisruptionBudgetSpec) -> Option<u32> {
    match &spec.min_available {
        Some(IntOrString::Int(stay)) => u32::try_from(*stay).ok(),
        _ => None,
    }
}

fn written(budget: &PodDisruptionBudget) -> Result<serde_json::Value> {
    serde_json::to_value(budget)
        .map_err(|_| Error::internal("the disruption budget of a group cannot be written as JSON"))
}
