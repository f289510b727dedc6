//! The middleware of every call: deadlines, limits, panics, metrics.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::common;

use std::time::Duration;

use common::{ask, eventually, follow, get, start};
use drover_client::to_error;
use drover_core::Reason;
use drover_server::ServerSettings;
use tonic::{Code, Request};

fn timeout<T>(message: T, millis: u64) -> Request<T> {
    // Set manually, because `set_timeout` would also make the client give up.
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("grpc-timeout", format!("{millis}m").parse().unwrap());
    request
}

#[tokio::test]
async fn a_deadline_is_told_to_the_handler_and_ends_it() {
    let mut fixture = start(ServerSettings::default()).await;
    let status = fixture
        .hosts
        .list_hosts(timeout(ask("wait"), 300))
        .await
        .unwrap_err();
    assert_eq!(to_error(&status).reason(), Reason::DeadlineExceeded);
    let left = fixture.demo.seen.deadline.lock().unwrap().unwrap();
    assert!(left <= Duration::from_millis(300), "{left:?}");
    eventually("the handler is dropped", async || {
        fixture.demo.seen.running() == 0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_unary_call_without_deadline_gets_the_default_and_a_long_one_is_cut() {
    let settings = ServerSettings {
        default_deadline: Duration::from_secs(7),
        max_deadline: Duration::from_secs(9),
        ..ServerSettings::default()
    };
    let demo = common::Demo::default();
    let routes = common::service(&demo)
        .into_routes(&settings, drover_server::Shutdown::new())
        .unwrap();
    let channel = drover_client::in_process(routes);
    let mut hosts =
        drover_proto::platform::v1::inventory_service_client::InventoryServiceClient::new(channel);
    for (request, limit) in [
        (Request::new(ask("wait")), 7),
        (timeout(ask("wait"), 99_999_999), 9),
    ] {
        let start = tokio::time::Instant::now();
        let status = hosts.list_hosts(request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        let elapsed = start.elapsed().as_millis();
        assert!(
            (limit * 1000..limit * 1000 + 10).contains(&elapsed),
            "{elapsed}"
        );
    }
}

#[tokio::test]
async fn a_stream_has_only_the_deadline_that_it_brings() {
    let settings = ServerSettings {
        default_deadline: Duration::from_millis(50),
        ..ServerSettings::default()
    };
    let mut fixture = start(settings).await;
    let mut unlimited = fixture
        .logs
        .stream_logs(follow("forever"))
        .await
        .unwrap()
        .into_inner();
    assert!(unlimited.message().await.unwrap().is_some());
    assert_eq!(*fixture.demo.seen.deadline.lock(), Some(None));

    let mut limited = fixture
        .logs
        .stream_logs(timeout(follow("forever"), 300))
        .await
        .unwrap()
        .into_inner();
    assert!(limited.message().await.unwrap().is_some());
    let status = limited.message().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    eventually("its handler is dropped", async || {
        fixture.demo.seen.running() == 1
    })
    .await;
    // Still open long after the default deadline.
    let silent = tokio::time::timeout(Duration::from_millis(100), unlimited.message()).await;
    assert!(silent.is_err(), "{silent:?}");
}

#[tokio::test]
async fn a_malformed_deadline_is_refused() {
    let mut fixture = start(ServerSettings::default()).await;
    let mut request = Request::new(ask(""));
    request
        .metadata_mut()
        .insert("grpc-timeout", "soon".parse().unwrap());
    let error = to_error(&fixture.hosts.list_hosts(request).await.unwrap_err());
    assert_eq!(
        (error.reason(), error.fields()[0].field.as_str()),
        (Reason::Invalid, "grpc-timeout")
    );
}

#[tokio::test]
async fn too_many_calls_are_turned_away_at_once_and_health_is_not() {
    let settings = ServerSettings {
        max_concurrent_requests: 2,
        max_concurrent_streams: 1,
        ..ServerSettings::default()
    };
    let mut fixture = start(settings).await;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let mut hosts = fixture.hosts.clone();
        waiting.spawn(async move { hosts.list_hosts(ask("wait")).await });
    }
    eventually("two calls are in flight", async || {
        fixture.demo.seen.running() == 2
    })
    .await;
    let error = to_error(&fixture.hosts.list_hosts(ask("")).await.unwrap_err());
    assert_eq!(error.reason(), Reason::Overloaded);
    assert!(error.retry_after().is_some());

    // Streams have a limit of their own, released when they end.
    let stream = fixture.logs.stream_logs(follow("forever")).await.unwrap();
    let error = to_error(&fixture.logs.stream_logs(follow("end")).await.unwrap_err());
    assert_eq!(error.reason(), Reason::Overloaded);
    drop(stream);
    eventually("the place of the stream is free", async || {
        fixture.logs.stream_logs(follow("end")).await.is_ok()
    })
    .await;

    let mut health = tonic_health::pb::health_client::HealthClient::new(fixture.channel.clone());
    assert!(
        health
            .check(tonic_health::pb::HealthCheckRequest::default())
            .await
            .is_ok()
    );
    assert_eq!(get(&fixture.running, "/healthz").await.0, 200);
    assert_eq!(get(&fixture.running, "/anything").await.0, 503);
    fixture.demo.gate.add_permits(2);
    while let Some(answer) = waiting.join_next().await {
        assert!(answer.unwrap().is_ok());
    }
    assert!(fixture.hosts.list_hosts(ask("")).await.is_ok());
}

#[tokio::test]
async fn a_panic_answers_internal_without_its_text_and_the_server_lives() {
    let mut fixture = start(ServerSettings::default()).await;
    let status = fixture.hosts.list_hosts(ask("panic")).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(!format!("{status:?}").contains("hunter2"), "{status:?}");

    let mut stream = fixture
        .logs
        .stream_logs(follow("panic"))
        .await
        .unwrap()
        .into_inner();
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(!format!("{status:?}").contains("hunter2"), "{status:?}");
    assert_eq!(fixture.demo.seen.running(), 0);

    assert_eq!(
        fixture
            .hosts
            .list_hosts(ask(""))
            .await
            .unwrap()
            .into_inner()
            .hosts
            .len(),
        1
    );
}

#[tokio::test]
async fn a_message_above_the_limit_is_refused() {
    let mut fixture = start(ServerSettings::default()).await;
    let large = "x".repeat(drover_server::MAX_MESSAGE_BYTES + 1);
    let status = fixture.hosts.list_hosts(ask(&large)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert!(status.message().contains("too large"), "{status:?}");
    assert!(fixture.hosts.list_hosts(ask("")).await.is_ok());
}

#[tokio::test]
async fn a_caller_that_goes_away_drops_the_handler() {
    let fixture = start(ServerSettings::default()).await;
    let mut hosts = fixture.hosts.clone();
    let call = tokio::spawn(async move { hosts.list_hosts(ask("wait")).await });
    eventually("the call is in flight", async || {
        fixture.demo.seen.running() == 1
    })
    .await;
    call.abort();
    eventually("the handler is dropped", async || {
        fixture.demo.seen.running() == 0
    })
    .await;
}

#[tokio::test]
async fn a_trace_goes_on() {
    let mut fixture = start(ServerSettings::default()).await;
    let mut request = Request::new(ask(""));
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    request
        .metadata_mut()
        .insert("traceparent", parent.parse().unwrap());
    fixture.hosts.list_hosts(request).await.unwrap();
    assert_eq!(
        fixture.demo.seen.trace.lock().as_deref(),
        Some("4bf92f3577b34da6a3ce929d0e0e4736")
    );
}

#[tokio::test]
async fn calls_are_counted_by_method_and_code_and_made_up_methods_together() {
    let mut fixture = start(ServerSettings::default()).await;
    fixture.hosts.list_hosts(ask("")).await.unwrap();
    let _ = fixture.hosts.list_hosts(ask("panic")).await;
    for n in 0..3 {
        let path = format!("/made.up.Service/Method{n}").parse().unwrap();
        let mut grpc = tonic::client::Grpc::new(fixture.channel.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_codec();
        let status = grpc.unary(Request::new(()), path, codec).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(
            status
                .message()
                .contains(&format!("/made.up.Service/Method{n}")),
            "{status:?}"
        );
    }
    let (status, text) = get(&fixture.running, "/metrics").await;
    assert_eq!(status, 200);
    let method = r#"service="drover.platform.v1.InventoryService",method="ListHosts""#;
    for expected in [
        format!(r#"drover_rpc_requests_total{{{method},code="OK"}}"#),
        format!(r#"drover_rpc_requests_total{{{method},code="INTERNAL"}}"#),
        format!("drover_rpc_in_flight{{{method}}}"),
        format!(r#"drover_rpc_duration_seconds_bucket{{{method},le="0.001"}}"#),
        r#"drover_rpc_requests_total{service="unknown",method="unknown",code="UNIMPLEMENTED"}"#
            .to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected} is not in\n{text}");
    }
    assert!(!text.contains("made.up"), "{text}");
}

/// A codec with empty messages in both directions.
fn tonic_codec() -> impl tonic::codec::Codec<Encode = (), Decode = ()> {
    tonic_prost::ProstCodec::<(), ()>::default()
}
