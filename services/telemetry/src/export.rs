//! Export of spans to a collector. Best effort; it never blocks anything else.

mod channel;

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::uri::PathAndQuery;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tonic::{Code, Request, Status, client::Grpc, metadata::MetadataMap, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{
    otlp::{self, ExportRequest, ExportResponse, KeyValue, ResourceSpans, Scope, ScopeSpans},
    settings::{Settings, TelemetryError},
    span::{Recorded, Value},
};

/// Maximum number of queued spans: a few seconds of a busy server, a few megabytes at most. Further spans are dropped.
const QUEUE: usize = 4096;
/// Maximum number of spans per call.
const BATCH: usize = 512;
/// Maximum time that a span waits for its batch to fill.
const LINGER: Duration = Duration::from_secs(1);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// First backoff after a failed call; it doubles.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Maximum backoff after a failed call.
const RETRY_MOST: Duration = Duration::from_secs(30);
/// How long a batch is retried: long enough for a collector to restart.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// The export state that all spans of this process share.
struct Way {
    sender: mpsc::Sender<Box<Recorded>>,
    ratio: f64,
    open: AtomicBool,
}

static WAY: OnceLock<Way> = OnceLock::new();

/// Fraction of the traces starting here that are sampled. `None` if there is no exporter.
pub(crate) fn sample_ratio() -> Option<f64> {
    WAY.get()
        .filter(|way| way.open.load(Ordering::Relaxed))
        .map(|way| way.ratio)
}

/// Queues a span for export.
pub(crate) fn send(span: Box<Recorded>) {
    if let Some(way) = WAY.get()
        && way.sender.try_send(span).is_err()
    {
        dropped("queue", 1);
    }
}

fn dropped(reason: &'static str, spans: usize) {
    metrics::counter!("drover_otlp_spans_dropped_total", "reason" => reason)
        .increment(spans as u64);
}

/// The exporter task. Dropping it stops it immediately; spans that were not sent are lost.
#[derive(Debug)]
pub struct Exporter {
    flush: mpsc::Sender<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Starts to record and export spans; at most once per process. Requires a tokio runtime. Fails if TLS files are
    /// invalid.
    pub fn start(settings: Settings) -> Result<Option<Self>, TelemetryError> {
        let channel = channel::open(&settings)?;
        let (sender, queue) = mpsc::channel(QUEUE);
        let way = Way {
            sender,
            ratio: settings.sample_ratio,
            open: AtomicBool::new(true),
        };
        if WAY.set(way).is_err() {
            return Ok(None);
        }
        // Both metrics exist from the start, so that an increase is visible.
        metrics::counter!("drover_otlp_spans_exported_total").increment(0);
        for reason in ["queue", "collector", "rejected"] {
            dropped(reason, 0);
        }
        let (flush, flushes) = mpsc::channel(1);
        let endpoint = settings.endpoint.to_string();
        let worker = Worker {
            queue,
            flushes,
            client: Grpc::new(channel),
            headers: settings.headers.into_iter().collect(),
            resource: otlp::Resource {
                attributes: settings
                    .resource
                    .into_iter()
                    .map(|(key, value)| KeyValue::new(&key, Value::from(value)))
                    .collect(),
            },
            batch: Vec::new(),
            trouble: None,
            endpoint,
        };
        Ok(Some(Self {
            flush,
            task: tokio::spawn(worker.run()),
        }))
    }

    /// Stops recording, sends the queued spans, and stops, waiting at most this long.
    pub async fn finish(self, within: Duration) {
        if let Some(way) = WAY.get() {
            way.open.store(false, Ordering::Relaxed);
        }
        let sent = async {
            let (done, flushed) = oneshot::channel();
            if self.flush.send(done).await.is_ok() {
                // An error also means that it is done.
                let _ = flushed.await;
            }
        };
        // Spans that were not sent by then are dropped.
        let _ = timeout(within, sent).await;
        self.task.abort();
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Consecutive failed calls.
struct Trouble {
    since: Instant,
    calls: u32,
    next: Instant,
}

struct Worker {
    queue: mpsc::Receiver<Box<Recorded>>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    client: Grpc<Channel>,
    headers: http::HeaderMap,
    resource: otlp::Resource,
    #[expect(clippy::vec_box, reason = "as they come out of the queue")]
    batch: Vec<Box<Recorded>>,
    trouble: Option<Trouble>,
    endpoint: String,
}

impl Worker {
    async fn run(mut self) {
        let mut ticks = interval(LINGER);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = BATCH.saturating_sub(self.batch.len());
            tokio::select! {
                biased;
                done = self.flushes.recv() => {
                    self.flush().await;
                    if let Some(done) = done {
                        // The receiver may have stopped waiting.
                        let _ = done.send(());
                    }
                    return;
                }
                _ = self.queue.recv_many(&mut self.batch, room), if room > 0 => {
                    if self.batch.len() < BATCH {
                        continue;
                    }
                }
                _ = ticks.tick() => {}
            }
            let due = self
                .trouble
                .as_ref()
                .is_none_or(|it| it.next <= Instant::now());
            if due && !self.batch.is_empty() {
                self.export().await;
            }
        }
    }

    /// Sends all queued spans, each batch once.
    async fn flush(&mut self) {
        self.queue.close();
        loop {
            while self.batch.len() < BATCH
                && let Ok(span) = self.queue.try_recv()
            {
                self.batch.push(span);
            }
            if self.batch.is_empty() || !self.export().await {
                return;
            }
        }
    }

    /// Sends the batch. Returns whether it is done with: if the collector may accept it later, it is retried.
    async fn export(&mut self) -> bool {
        let count = self.batch.len();
        match self.call().await {
            Ok(rejected) => {
                let rejected = usize::try_from(rejected).unwrap_or(0).min(count);
                metrics::counter!("drover_otlp_spans_exported_total")
                    .increment((count - rejected) as u64);
                if rejected > 0 {
                    dropped("rejected", rejected);
                }
                self.batch.clear();
                if self.trouble.take().is_some() {
                    tracing::info!(endpoint = self.endpoint, "traces are sent again");
                }
                true
            }
            Err(status) => self.failed(&status),
        }
    }

    fn failed(&mut self, status: &Status) -> bool {
        let now = Instant::now();
        if self.trouble.is_none() {
            // Logged only once per outage; a metric counts the lost spans.
            let error = reason(status);
            tracing::warn!(endpoint = self.endpoint, %error, "traces cannot be sent; nothing else suffers from it");
        }
        let trouble = self.trouble.get_or_insert(Trouble {
            since: now,
            calls: 0,
            next: now,
        });
        let wait = RETRY_FIRST
            .saturating_mul(1 << trouble.calls.min(10))
            .min(RETRY_MOST);
        trouble.calls = trouble.calls.saturating_add(1);
        trouble.next = now + wait.mul_f64(0.5 + fastrand::f64() / 2.0);
        let again = matches!(
            status.code(),
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::Aborted
                | Code::OutOfRange
                | Code::DataLoss
                | Code::ResourceExhausted
        );
        if again && now.duration_since(trouble.since) < RETRY_FOR {
            return false;
        }
        dropped("collector", self.batch.len());
        self.batch.clear();
        true
    }

    /// Makes one call. Returns the number of spans that the collector rejected.
    async fn call(&mut self) -> Result<i64, Status> {
        let spans = self.batch.iter().map(|span| (**span).clone().into());
        let message = ExportRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(Scope {
                        name: "drover".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                    }),
                    spans: spans.collect(),
                }],
            }],
        };
        let mut request = Request::new(message);
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        let call = async {
            self.client
                .ready()
                .await
                .map_err(|error| Status::unavailable(channel::words(&error)))?;
            let codec = ProstCodec::<ExportRequest, ExportResponse>::default();
            let path = PathAndQuery::from_static(otlp::EXPORT);
            self.client.unary(request, path, codec).await
        };
        let answer = timeout(CALL_TIMEOUT, call)
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))?;
        let partial = answer.into_inner().partial_success;
        Ok(partial.map_or(0, |partial| partial.rejected_spans))
    }
}

/// The message of a status including its underlying cause.
fn reason(status: &Status) -> String {
    let below = std::error::Error::source(status).map(channel::words);
    match below {
        Some(below) if !status.message().contains(&below) => {
            format!("{}: {below}", status.message())
        }
        _ => status.message().to_owned(),
    }
}
