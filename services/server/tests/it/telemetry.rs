//! Spans that cannot be exported cost a limited amount of memory and no time.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{net::TcpListener, time::Duration};

use drover_telemetry::{Exporter, Kind, Settings, Span, settings::Given};
use tokio::time::Instant;

/// Far more than the queue can hold.
const FLOOD: usize = 20_000;
/// The queue and the batch in flight.
const KEPT: usize = 4096 + 512;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_spans_to_a_silent_collector_is_dropped_and_counted() {
    let metrics = drover_server::telemetry::metrics();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let given = Given {
        endpoint: Some(format!("http://{}", silent.local_addr().unwrap())),
        ..Given::default()
    };
    let settings = Settings::resolve(&given, ("tests", "0"), |_| None).unwrap();
    let exporter = Exporter::start(settings.unwrap()).unwrap().unwrap();
    let begin = Instant::now();
    for _ in 0..FLOOD {
        let mut span = Span::start(Kind::Internal, "flood".into(), None);
        assert!(span.is_recorded());
        span.set("text", "x".repeat(10_000));
    }
    assert!(begin.elapsed() < Duration::from_secs(10));
    let text = metrics.render();
    let line = "drover_otlp_spans_dropped_total{reason=\"queue\"} ";
    let dropped = text.lines().find_map(|it| it.strip_prefix(line)).unwrap();
    let dropped: usize = dropped.parse().unwrap();
    assert!((FLOOD - 2 * KEPT..FLOOD).contains(&dropped), "{dropped}");
    let end = Instant::now();
    exporter.finish(Duration::from_millis(200)).await;
    assert!(end.elapsed() < Duration::from_secs(5));
    assert!(!Span::start(Kind::Internal, "late".into(), None).is_recorded());
}
