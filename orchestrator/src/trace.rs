//! Spans of the orchestrator's work: the wait in the queue, passes that do something, and their calls.

use std::{sync::Arc, time::Duration};

use drover_cluster::Cluster;
use drover_convert::error::reason_name;
use drover_core::Error;
use drover_planner::Plan;
use drover_telemetry::{Kind, Span};
use tokio::time::Instant;

use crate::queue::WorkItem;

/// Measures a pass. A pass that no caller requested only gets a span if it does something.
pub(crate) struct PassTrace {
    cluster: Arc<Cluster>,
    lane: &'static str,
    began: Instant,
    span: Option<Span>,
    changes: usize,
    calls: usize,
    planned: Duration,
}

impl PassTrace {
    /// Begins when a worker takes the cluster from the queue.
    pub(crate) fn begin(cluster: &Arc<Cluster>, item: WorkItem) -> Self {
        let began = Instant::now();
        let lane = item.urgency.as_str();
        let waited = began.saturating_duration_since(item.since);
        metrics::histogram!("drover_queue_wait_seconds", "lane" => lane)
            .record(waited.as_secs_f64());
        let span = item.asked.map(|asked| {
            let mut wait =
                Span::start(Kind::Internal, "queue".into(), Some(asked.by)).since(item.since);
            wait.set("drover.queue.lane", lane);
            drop(wait);
            let mut span = Span::start(Kind::Internal, "pass".into(), Some(asked.by));
            for other in asked.others {
                span.link(other);
            }
            span
        });
        Self {
            cluster: cluster.clone(),
            lane,
            began,
            span,
            changes: 0,
            calls: 0,
            planned: Duration::ZERO,
        }
    }

    /// Adds time spent on planning.
    pub(crate) fn has_planned(&mut self, span: Duration) {
        self.planned += span;
    }

    /// Called before a plan is carried out. Returns the span that its work belongs to.
    pub(crate) fn does(&mut self, plan: &Plan) -> &Span {
        self.changes += plan.ops.len();
        self.calls += plan.calls.len();
        self.span.get_or_insert_with(|| {
            Span::start(Kind::Internal, "pass".into(), None).since(self.began)
        })
    }

    /// Ends the pass; on an error, its changes are not known to be durable. Returns the time spent on planning.
    pub(crate) fn end(self, error: Option<&Error>) -> Duration {
        let planned = self.planned;
        let outcome = match error {
            Some(_) => "failed",
            None if self.changes + self.calls > 0 => "done",
            None => "idle",
        };
        metrics::counter!("drover_passes_total", "outcome" => outcome).increment(1);
        metrics::histogram!("drover_pass_duration_seconds")
            .record(self.began.elapsed().as_secs_f64());
        let Some(mut span) = self.span.filter(Span::is_recorded) else {
            return planned;
        };
        span.set("drover.cluster.name", self.cluster.name().to_string());
        span.set("drover.cluster.uid", self.cluster.uid().to_string());
        span.set("drover.queue.lane", self.lane);
        span.set("drover.pass.changes", self.changes);
        span.set("drover.pass.calls", self.calls);
        if let Some(error) = error {
            span.fail(reason_name(error.reason()), "");
        }
        planned
    }
}
