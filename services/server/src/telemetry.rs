//! Logs to stderr, metrics to `/metrics`.

use std::{io::IsTerminal, sync::OnceLock};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::settings::LogFormat;

/// Bounds of all histograms in seconds: from a call in memory to a cloud that takes its time.
const BUCKETS: &[f64] = &[
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// Sends logs and panics to stderr. The level is that of `RUST_LOG`, default `info`. Once per process; later calls
/// change nothing.
pub fn init(format: LogFormat) {
    let human = match format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    let colours = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let installed = if human {
        registry
            .with(fmt::layer().with_writer(std::io::stderr).with_ansi(colours))
            .try_init()
    } else {
        registry
            .with(
                fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_writer(std::io::stderr),
            )
            .try_init()
    };
    if installed.is_ok() {
        // One line in the format of all others, instead of several in one of its own.
        std::panic::set_hook(Box::new(|panic| {
            let location = panic
                .location()
                .map(ToString::to_string)
                .unwrap_or_default();
            let message = panic.payload_as_str().unwrap_or("");
            tracing::error!(location, message, "panic");
        }));
    }
}

/// The metrics of this process.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Everything, in the text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Puts recorded values into their buckets, so that they do not pile up while nobody reads.
    pub(crate) fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// The metrics of this process; installs the recorder at the first call. Metrics registered before that are lost.
pub fn metrics() -> &'static Metrics {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    METRICS.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        // Fails only for an empty list of buckets.
        let builder = builder
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)
            .unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("this process has another metrics recorder; /metrics stays empty");
        }
        Metrics(handle)
    })
}
