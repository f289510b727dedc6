//! Logging to stderr, metrics at `/metrics`.

use std::{
    fmt::Write as _,
    io::IsTerminal,
    sync::{Arc, OnceLock},
};

use metrics::{describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::Metadata;
use tracing_subscriber::{
    EnvFilter, filter::filter_fn, fmt, layer::SubscriberExt, util::SubscriberInitExt,
};

use crate::settings::LogFormat;

/// Bucket bounds of all histograms in seconds: from in-memory calls to slow clouds.
const BUCKETS: &[f64] = &[
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// Libraries that log what passes through them: bodies that they cannot decode, or frames with what is typed into a command.
/// What matters of that is in their errors.
const REPEATS_BODIES: [&str; 3] = ["kube_client", "tokio_tungstenite", "tungstenite"];

/// Whether something may be logged, whatever `RUST_LOG` says.
fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let module = target.split("::").next().unwrap_or(target);
    !REPEATS_BODIES.contains(&module)
}

/// Initializes logging, including panics, to stderr. The level is taken from `RUST_LOG`, default `info`. Has an effect
/// only once per process.
pub fn init(format: LogFormat) {
    let human = match format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry()
        .with(filter)
        .with(filter_fn(may_be_logged));
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
        // Panics are logged on one line in the common format instead of several lines in their own.
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
    /// Renders all metrics in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Moves recorded values to their buckets, so that they do not accumulate while nobody reads the metrics.
    pub(crate) fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Metrics that are collected on demand, in the Prometheus text format. Unlike recorded metrics, their labels can
/// disappear.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Adds a gauge with all of its samples, each with its labels.
    pub fn gauge(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Vec<(&'static str, String)>, f64)>,
    ) {
        // Cannot fail for a string.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge\n");
        for (labels, value) in samples {
            self.0.push_str(name);
            for (at, (label, text)) in labels.iter().enumerate() {
                let begin = if at == 0 { '{' } else { ',' };
                let _ = write!(self.0, "{begin}{label}=\"");
                for c in text.chars() {
                    match c {
                        '\\' => self.0.push_str("\\\\"),
                        '"' => self.0.push_str("\\\""),
                        '\n' => self.0.push_str("\\n"),
                        c => self.0.push(c),
                    }
                }
                self.0.push('"');
            }
            let end = if labels.is_empty() { "" } else { "}" };
            let _ = writeln!(self.0, "{end} {value}");
        }
        self.0.push('\n');
    }
}

/// Collects metrics on demand.
pub(crate) type Collector = Arc<dyn Fn(&mut Exposition) + Send + Sync>;

/// Renders all metrics: the recorded ones and those of the collectors.
pub(crate) fn expose(collectors: &[Collector]) -> String {
    let mut looked_up = Exposition::default();
    for collect in collectors {
        collect(&mut looked_up);
    }
    let mut text = metrics().render();
    text.push_str(&looked_up.0);
    text
}

fn describe() {
    describe_counter!(
        "drover_rpc_requests_total",
        "gRPC calls that ended, by service, method and code."
    );
    describe_histogram!("drover_rpc_duration_seconds", "How long gRPC calls took.");
    describe_gauge!("drover_rpc_in_flight", "gRPC calls under way.");
    describe_counter!(
        "drover_http_requests_total",
        "Plain HTTP requests that ended, by path, method and status."
    );
    describe_histogram!(
        "drover_http_duration_seconds",
        "How long plain HTTP requests took."
    );
    describe_gauge!("drover_http_in_flight", "Plain HTTP requests under way.");
    describe_counter!(
        "drover_requests_turned_away_total",
        "Requests that no server may answer, by reason: host (for another name), browser, version (gRPC below HTTP/2)."
    );
    for reason in ["host", "browser", "version"] {
        metrics::counter!("drover_requests_turned_away_total", "reason" => reason).increment(0);
    }
    describe_counter!(
        "drover_tls_handshakes_failed_total",
        "TLS handshakes that failed, by reason."
    );
    describe_gauge!(
        "drover_tls_certificate_expiry_timestamp_seconds",
        "When the certificate that is served expires, in seconds since 1970."
    );
    describe_gauge!(
        "drover_tls_crl_expiry_timestamp_seconds",
        "When the first list of revoked client certificates ends, in seconds since 1970; only where one is given."
    );
    describe_counter!(
        "drover_audit_dropped_total",
        "Lines of the audit log that could not be written."
    );
    metrics::counter!("drover_audit_dropped_total").increment(0);
    describe_counter!(
        "drover_audit_omitted_total",
        "Refusals that are not in the audit log because there were too many."
    );
    metrics::counter!("drover_audit_omitted_total").increment(0);
    describe_gauge!("drover_connections", "Connections that are open.");
    describe_counter!(
        "drover_connections_displaced_total",
        "Idle connections that were ended because others came."
    );
    metrics::counter!("drover_connections_displaced_total").increment(0);
    describe_counter!(
        "drover_connections_refused_total",
        "Connections that were refused: all there may be had calls in flight."
    );
    metrics::counter!("drover_connections_refused_total").increment(0);
    describe_counter!(
        "drover_otlp_spans_exported_total",
        "Spans that a collector took."
    );
    describe_counter!(
        "drover_otlp_spans_dropped_total",
        "Spans that were lost: queue (too many at once), collector (it did not take them), rejected (it did not want them)."
    );
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// Returns the metrics of this process, and installs the recorder at the first call. Metrics registered before that are
/// lost.
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
        describe();
        Metrics(handle)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_repeats_bodies_is_not_heard_at_any_level() {
        #[derive(Clone, Default)]
        struct Written(Arc<parking_lot::Mutex<Vec<u8>>>);
        impl std::io::Write for Written {
            fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
                self.0.lock().extend_from_slice(text);
                Ok(text.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::registry()
            .with(EnvFilter::new("trace,kube_client::client=trace"))
            .with(filter_fn(may_be_logged))
            .with(fmt::layer().with_writer(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "kube_client::client", "s3cret");
            tracing::trace!(target: "tungstenite::protocol", "s3cret");
            tracing::warn!(target: "kube_runtime::watcher", "heard");
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        assert!(text.contains("heard") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn what_is_looked_up_is_written_as_prometheus_reads_it() {
        let mut out = Exposition::default();
        let labels = vec![("a", "x\\y\"z\n".to_owned()), ("b", String::new())];
        out.gauge("m_seconds", "Words.", [(labels, 1.5), (Vec::new(), 2.0)]);
        let expected = "# HELP m_seconds Words.\n# TYPE m_seconds gauge\n\
                        m_seconds{a=\"x\\\\y\\\"z\\n\",b=\"\"} 1.5\nm_seconds 2\n\n";
        assert_eq!(out.0, expected);
    }
}
