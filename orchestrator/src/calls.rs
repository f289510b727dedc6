//! Has the calls of a plan made, each as a task of its own, and takes in how they end.

use std::{collections::HashSet, sync::Arc};

use drover_cluster::{CallEnd, Cluster, ClusterState, CompleteRead, Observation, Source};
use drover_core::{Millis, Urgency, resource::Asked};
use drover_executor::{Complete, Ended, Executor, Shown};
use drover_planner::{Call, Op, Plan, ResourceChange};
use drover_telemetry::{context, current};

use crate::{
    observer::Observer, queue::Queue, records::Records, resources::Leaks, tasks::Tasks,
    waiter::Waiters,
};

/// How urgent a call of a plan is. An addon that is told of other targets still sends connections to those that are gone.
pub(crate) fn urgency_of(plan: &Plan, call: &Call, pass: Urgency) -> Urgency {
    let Call::Resource { key, .. } = call else {
        return pass;
    };
    let follows = plan.ops.iter().any(|op| {
        matches!(op, Op::Resource { key: own, change: ResourceChange::Follow, .. } if own == key)
    });
    if follows { Urgency::Urgent } else { pass }
}

/// Has calls made, and tells of their ends whoever waits for them.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    pub(crate) executor: Arc<Executor>,
    pub(crate) tasks: Tasks,
    pub(crate) leaks: Arc<Leaks>,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) observer: Observer,
    pub(crate) records: Arc<Records>,
    pub(crate) queue: Queue,
}

impl Dispatcher {
    /// Starts a call as a task of its own.
    pub(crate) fn start(&self, cluster: &Arc<Cluster>, call: &Call, urgency: Urgency) {
        if let Call::Resource { key, asked } = call
            && *asked != Asked::Read
        {
            self.leaks.used(&key.platform);
        }
        let (owner, cluster, call) = (self.clone(), cluster.clone(), call.clone());
        self.tasks.spawn(context::scope(current(), async move {
            if let Some(ended) = owner.executor.call(&cluster, call, urgency).await {
                owner.take_in(&cluster, ended);
            }
        }));
    }

    fn take_in(&self, cluster: &Cluster, ended: Ended) {
        let Ended {
            end,
            shown,
            at,
            urgency,
        } = ended;
        let is_role_change = matches!(end, CallEnd::RoleChange { .. });
        let mut state = cluster.lock();
        // Whoever is told of the end finds it in the cluster: the lock is held until it was taken in.
        self.waiters.call_ended(cluster.uid(), &end);
        if !state.call_ended(end, at) {
            return;
        }
        if let Some(shown) = &shown {
            self.observe(cluster, &mut state, shown, at);
        }
        if is_role_change {
            self.records.changed(cluster, &mut state);
        }
        drop(state);
        self.queue.push(cluster.uid(), urgency);
    }

    fn observe(&self, cluster: &Cluster, state: &mut ClusterState, shown: &Shown, now: Millis) {
        let source = Source {
            platform: &shown.platform,
            uid: &shown.uid,
        };
        for (at, node) in shown.nodes.iter().enumerate() {
            let seen = Observation {
                source,
                node,
                as_of: shown.as_of,
                now,
                listed: at < shown.listed,
            };
            self.observer.observe(cluster, state, seen);
        }
        let Some(Complete { warnings, alive }) = &shown.complete else {
            return;
        };
        let own = shown.nodes.iter().filter_map(|node| {
            let (owner, request, index) = drover_convert::node::slot(node)?;
            (owner == cluster.uid()).then_some((request, index))
        });
        let own: HashSet<_> = own.collect();
        let ids = shown.nodes.iter().map(|node| node.node_id.as_str());
        let complete = CompleteRead {
            source,
            as_of: shown.as_of,
            own,
            ids: ids.collect(),
            warnings,
            alive,
        };
        state.read_completely(&complete, cluster.name());
    }
}
