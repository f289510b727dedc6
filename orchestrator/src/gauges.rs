//! Domain metrics. Counts are maintained incrementally; a scrape only looks at clusters that changed since the last
//! one.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use drover_cluster::{Cluster, ClusterState};
use drover_core::{Millis, NodeState, Sym, resource::ResourceRecord};
use drover_platforms::Platforms;
use drover_proto::orchestrator::v1::ClusterPhase;
use drover_server::telemetry::Exposition;
use metrics::{describe_counter, describe_histogram};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::{
    queue::Queue,
    records::Records,
    space::Space,
    status::{self, Viewer, Visible},
};

/// Cluster phases and their label values.
const PHASES: [(ClusterPhase, &str); 5] = [
    (ClusterPhase::Progressing, "progressing"),
    (ClusterPhase::Ready, "ready"),
    (ClusterPhase::Degraded, "degraded"),
    (ClusterPhase::Blocked, "blocked"),
    (ClusterPhase::Deleting, "deleting"),
];

/// Counts what exists.
pub(crate) struct Gauges {
    records: Arc<Records>,
    viewer: Viewer,
    queue: Queue,
    space: Arc<Space>,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    clusters: HashMap<Uuid, One>,
    all: Sums,
}

/// The contribution of one cluster.
#[derive(Debug)]
struct One {
    sums: Sums,
    /// Since when the cluster has deviated from its desired state, as far as this process has seen.
    waiting_since: Option<Millis>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    phases: BTreeMap<&'static str, i64>,
    wanted: i64,
    ready: i64,
    nodes: BTreeMap<(Sym, &'static str), i64>,
    addons: BTreeMap<(Sym, &'static str), i64>,
    back_offs: BTreeMap<Sym, i64>,
}

impl Sums {
    fn add(&mut self, other: &Self, sign: i64) {
        fn add<K: Ord + Clone>(to: &mut BTreeMap<K, i64>, from: &BTreeMap<K, i64>, sign: i64) {
            for (key, count) in from {
                let sum = to.entry(key.clone()).or_default();
                *sum += sign * count;
                if *sum == 0 {
                    to.remove(key);
                }
            }
        }
        add(&mut self.phases, &other.phases, sign);
        add(&mut self.nodes, &other.nodes, sign);
        add(&mut self.addons, &other.addons, sign);
        add(&mut self.back_offs, &other.back_offs, sign);
        self.wanted += sign * other.wanted;
        self.ready += sign * other.ready;
    }
}

impl Gauges {
    pub(crate) fn new(
        records: Arc<Records>,
        viewer: Viewer,
        queue: Queue,
        space: Arc<Space>,
    ) -> Self {
        Self {
            records,
            viewer,
            queue,
            space,
            counted: Mutex::default(),
        }
    }

    fn count(&self, now: Millis) {
        let changed = self.records.take_uncounted();
        if changed.is_empty() {
            return;
        }
        let visible = self.viewer.visible();
        let mut counted = self.counted.lock();
        let Counted { clusters, all } = &mut *counted;
        for uid in changed {
            let before = clusters.remove(&uid);
            if let Some(before) = &before {
                all.add(&before.sums, -1);
            }
            let Some(cluster) = self.records.clusters().get(uid) else {
                continue;
            };
            let mut one = one(&cluster, &visible, now);
            all.add(&one.sums, 1);
            if let (Some(since), Some(before)) = (&mut one.waiting_since, before) {
                *since = before.waiting_since.unwrap_or(*since);
            }
            clusters.insert(uid, one);
        }
    }

    /// Writes all current values of a process that leads.
    pub(crate) fn write(&self, out: &mut Exposition) {
        leads(out, true);
        let (clock, platforms) = (&self.viewer.clock, &self.viewer.platforms);
        let now = clock.now();
        self.count(now);
        {
            let counted = self.counted.lock();
            let waiting = counted
                .clusters
                .values()
                .filter_map(|one| one.waiting_since);
            let oldest = waiting.min().map_or(0, |since| now.saturating_sub(since));
            write_clusters(&counted.all, oldest, out);
            write_addons(platforms, &counted.all.addons, out);
            write_platforms(platforms, &counted.all.back_offs, (clock.start(), now), out);
        }
        write_queue(&self.queue, out);
        self.space.write(out);
    }
}

fn one(cluster: &Cluster, visible: &Visible, now: Millis) -> One {
    let inner = cluster.lock();
    let (phase, wanted, ready) = status::figures(&inner, visible);
    let label = PHASES.iter().find(|(own, _)| *own == phase);
    let label = label.map_or("unknown", |(_, label)| label);
    let mut sums = Sums {
        wanted: i64::from(wanted),
        ready: i64::from(ready),
        ..Sums::default()
    };
    sums.phases.insert(label, 1);
    for node in &inner.state().nodes {
        let key = (node.platform.clone(), state(node.state));
        *sums.nodes.entry(key).or_default() += 1;
    }
    for (key, record) in inner
        .state()
        .resources
        .iter()
        .filter(|(key, _)| key.is_addon())
    {
        let key = (key.platform.clone(), addon_state(record));
        *sums.addons.entry(key).or_default() += 1;
    }
    for (key, _) in inner.state().backoffs.iter() {
        *sums.back_offs.entry(key.platform.clone()).or_default() += 1;
    }
    One {
        sums,
        waiting_since: is_late(&inner, phase).then_some(now),
    }
}

/// Whether the duration of this phase matters. A paused cluster does not converge by intent.
fn is_late(inner: &ClusterState, phase: ClusterPhase) -> bool {
    phase != ClusterPhase::Ready && inner.desired().value.paused.is_none()
}

fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Requested => "requested",
        NodeState::Provisioning => "provisioning",
        NodeState::Starting => "starting",
        NodeState::Ready => "ready",
        NodeState::Draining => "draining",
        NodeState::Deprovisioning => "deprovisioning",
        NodeState::Unhealthy => "unhealthy",
        NodeState::Failed => "failed",
    }
}

const ADDON_STATES: [&str; 4] = ["removing", "failed", "ready", "pending"];

fn addon_state(record: &ResourceRecord) -> &'static str {
    if record.releasing {
        "removing"
    } else if !record.reason.is_empty() {
        "failed"
    } else if record.is_ready() {
        "ready"
    } else {
        "pending"
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn float(count: i64) -> f64 {
    count as f64
}

fn seconds(millis: Millis) -> f64 {
    std::time::Duration::from_millis(millis).as_secs_f64()
}

fn write_clusters(all: &Sums, oldest: Millis, out: &mut Exposition) {
    let count = |label: &str| float(all.phases.get(label).copied().unwrap_or_default());
    let phases = PHASES.map(|(_, label)| (vec![("phase", label.to_owned())], count(label)));
    out.gauge("drover_clusters", "Clusters by phase.", phases);
    out.gauge(
        "drover_clusters_not_ready_oldest_seconds",
        "How long the cluster that has waited longest is not as wanted, paused ones apart; counted from the start of \
         this process at the earliest.",
        [(Vec::new(), seconds(oldest))],
    );
    out.gauge(
        "drover_nodes_wanted",
        "Nodes that specs want.",
        [(Vec::new(), float(all.wanted))],
    );
    out.gauge(
        "drover_nodes_ready",
        "Nodes that are ready and visible.",
        [(Vec::new(), float(all.ready))],
    );
    let nodes = all.nodes.iter().map(|((platform, state), count)| {
        let labels = vec![
            ("platform", platform.to_string()),
            ("state", (*state).to_owned()),
        ];
        (labels, float(*count))
    });
    out.gauge(
        "drover_nodes",
        "Nodes on record by platform and state.",
        nodes,
    );
}

/// Each platform has all states, so that the first addon that fails is an increase and not a new series.
fn write_addons(
    platforms: &Platforms,
    counts: &BTreeMap<(Sym, &'static str), i64>,
    out: &mut Exposition,
) {
    let none = {
        let platforms = platforms.read();
        let all = platforms
            .keys()
            .flat_map(|name| ADDON_STATES.map(|state| ((Sym::clone(name), state), 0)));
        all.collect::<BTreeMap<_, _>>()
    };
    let all = none
        .into_iter()
        .chain(counts.clone())
        .collect::<BTreeMap<_, _>>();
    let addons = all.into_iter().map(|((platform, state), count)| {
        let labels = vec![
            ("platform", platform.to_string()),
            ("state", state.to_owned()),
        ];
        (labels, float(count))
    });
    out.gauge(
        "drover_addons",
        "Addons on record by platform and state: ready, pending (being made, or told of other nodes), failed, removing.",
        addons,
    );
}

fn write_queue(queue: &Queue, out: &mut Exposition) {
    let waiting = queue.waiting();
    let lane = |lane: drover_core::Urgency| vec![("lane", lane.as_str().to_owned())];
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let depths = waiting.map(|(urgency, count, _)| (lane(urgency), count as f64));
    out.gauge(
        "drover_queue_depth",
        "Clusters that wait for a pass.",
        depths,
    );
    let oldest = waiting.map(|(urgency, _, oldest)| (lane(urgency), oldest.as_secs_f64()));
    out.gauge(
        "drover_queue_oldest_seconds",
        "How long the cluster that has waited longest for a pass has waited.",
        oldest,
    );
}

fn write_platforms(
    platforms: &Platforms,
    back_offs: &BTreeMap<Sym, i64>,
    (start, now): (Millis, Millis),
    out: &mut Exposition,
) {
    let platforms: Vec<_> = {
        let platforms = platforms.read();
        platforms
            .iter()
            .map(|(name, registered)| (name.to_string(), registered.platform.health(now)))
            .collect()
    };
    let of = |value: fn(&drover_platforms::PlatformHealth) -> f64| {
        platforms
            .iter()
            .map(move |(name, health)| (vec![("platform", name.clone())], value(health)))
    };
    out.gauge(
        "drover_platform_ready",
        "1 if what exists on a platform is known, else 0.",
        of(|health| f64::from(u8::from(health.visible))),
    );
    out.gauge(
        "drover_platform_suspended",
        "1 while a platform is left alone after failures in a row, else 0.",
        of(|health| f64::from(u8::from(health.suspended))),
    );
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let claims = of(|health| health.claims as f64);
    out.gauge(
        "drover_platform_foreign_claims",
        "Nodes that a platform shows as its own and that are recorded on another one. They are not believed.",
        claims,
    );
    let ages = platforms.iter().map(|(name, health)| {
        let since = health.fresh_at.unwrap_or(start);
        let age = seconds(now.saturating_sub(since));
        (vec![("platform", name.clone())], age)
    });
    out.gauge(
        "drover_platform_observation_age_seconds",
        "How old the newest observation of a platform is; without one, how old this process is.",
        ages,
    );
    let back_offs = platforms.iter().map(|(name, _)| {
        let count = back_offs.get(name.as_str()).copied().unwrap_or_default();
        (vec![("platform", name.clone())], float(count))
    });
    out.gauge(
        "drover_back_offs",
        "Groups that wait after failures on a platform.",
        back_offs,
    );
}

/// Registers the descriptions of the metrics that are recorded where the events happen.
pub(crate) fn describe() {
    drover_store::describe_metrics();
    drover_client::describe_metrics();
    describe_histogram!(
        "drover_queue_wait_seconds",
        "How long clusters waited for a pass."
    );
    describe_histogram!(
        "drover_pass_duration_seconds",
        "How long passes took, calls to platforms apart."
    );
    describe_counter!(
        "drover_passes_total",
        "Passes by outcome: idle (nothing to do), done, failed (the store did not take a step)."
    );
    describe_counter!(
        "drover_back_offs_total",
        "Times that a group began to wait, or waits longer, after a failure on a platform."
    );
    describe_counter!(
        "drover_probes_total",
        "Health probes of nodes by result: ok, failed."
    );
    describe_histogram!(
        "drover_probe_duration_seconds",
        "How long health probes of nodes took."
    );
    for outcome in ["idle", "done", "failed"] {
        metrics::counter!("drover_passes_total", "outcome" => outcome).increment(0);
    }
    for result in ["ok", "failed"] {
        metrics::counter!("drover_probes_total", "result" => result).increment(0);
    }
}

/// Initializes the counters of a registered platform, so that their first increase is visible.
pub(crate) fn platform(name: &str) {
    metrics::counter!("drover_back_offs_total", "platform" => name.to_owned()).increment(0);
}

/// Whether this process leads.
pub(crate) fn leads(out: &mut Exposition, leads: bool) {
    out.gauge(
        "drover_leader",
        "1 if this orchestrator keeps the clusters, 0 while it stands by for another one that does.",
        [(Vec::new(), if leads { 1.0 } else { 0.0 })],
    );
}
