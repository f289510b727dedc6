//! A complete server: its built-in services, startup and shutdown.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::common;

use std::time::Duration;

use common::{ask, eventually, follow, get, start, start_with};
use drover_client::{is_unreachable, to_error};
use drover_server::{Readiness, ServerSettings, StartError, listen};
use futures::StreamExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
};
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

async fn reflect(fixture: &common::Fixture, ask: MessageRequest) -> MessageResponse {
    let mut client = ServerReflectionClient::new(fixture.channel.clone());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(ask),
    };
    let mut answers = client
        .server_reflection_info(futures::stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    answers
        .message()
        .await
        .unwrap()
        .unwrap()
        .message_response
        .unwrap()
}

#[tokio::test]
async fn reflection_lists_what_is_served_and_describes_it_with_comments() {
    let fixture = start(ServerSettings::default()).await;
    let MessageResponse::ListServicesResponse(list) =
        reflect(&fixture, MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list");
    };
    let mut names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "drover.platform.v1.InventoryService",
            "drover.platform.v1.NodeAccessService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
        ]
    );
    let symbol =
        MessageRequest::FileContainingSymbol("drover.platform.v1.InventoryService".to_owned());
    let MessageResponse::FileDescriptorResponse(files) = reflect(&fixture, symbol).await else {
        panic!("no file");
    };
    let file = <prost_types::FileDescriptorProto as prost::Message>::decode(
        &*files.file_descriptor_proto[0],
    )
    .unwrap();
    let comments = file.source_code_info.unwrap().location;
    assert!(
        comments
            .iter()
            .any(|location| location.leading_comments().contains("hosts"))
    );
}

#[tokio::test]
async fn health_follows_readiness_in_grpc_and_http() {
    let (sender, readiness) = watch::channel(Readiness::NotReady("no backend yet".to_owned()));
    let fixture = start_with(ServerSettings::default(), |service| {
        service.readiness(readiness)
    })
    .await;
    let mut health = HealthClient::new(fixture.channel.clone());
    let ours = "drover.platform.v1.InventoryService";
    for name in ["", ours] {
        let request = HealthCheckRequest {
            service: name.to_owned(),
        };
        assert_eq!(
            health.check(request).await.unwrap().into_inner().status(),
            ServingStatus::NotServing
        );
    }
    assert_eq!(
        get(&fixture.running, "/readyz").await,
        (503, "no backend yet\n".to_owned())
    );
    assert_eq!(
        get(&fixture.running, "/healthz").await,
        (200, "ok\n".to_owned())
    );

    let mut watch = health
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    sender.send(Readiness::Ready).unwrap();
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::Serving
    );
    assert_eq!(get(&fixture.running, "/readyz").await.0, 200);
    let missing = health
        .check(HealthCheckRequest {
            service: "made.up".to_owned(),
        })
        .await
        .unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
}

#[tokio::test]
async fn http_routes_are_served_on_the_same_port_and_their_panics_are_caught() {
    let fixture = start_with(ServerSettings::default(), |service| {
        service
            .route("/hello", axum::routing::get(async || "hello"))
            .route(
                "/panic",
                axum::routing::get(async || {
                    if true {
                        panic!("hunter2")
                    }
                }),
            )
    })
    .await;
    assert_eq!(
        get(&fixture.running, "/hello").await,
        (200, "hello".to_owned())
    );
    assert_eq!(get(&fixture.running, "/panic").await, (500, String::new()));
    assert_eq!(get(&fixture.running, "/nothing").await.0, 404);
    assert_eq!(get(&fixture.running, "/healthz").await.0, 200);
}

#[tokio::test]
async fn http_routes_are_counted_under_their_paths_only() {
    let fixture = start_with(ServerSettings::default(), |service| {
        service.route("/counted", axum::routing::get(async || "hello"))
    })
    .await;
    assert_eq!(get(&fixture.running, "/counted").await.0, 200);
    assert_eq!(get(&fixture.running, "/counted?secret=1").await.0, 200);
    assert_eq!(get(&fixture.running, "/made-up").await.0, 404);
    let metrics = get(&fixture.running, "/metrics").await.1;
    for line in [
        r#"drover_http_requests_total{path="/counted",method="GET",code="200"} 2"#,
        r#"drover_http_in_flight{path="/counted"} 0"#,
        r#"drover_http_duration_seconds_count{path="/counted"} 2"#,
    ] {
        assert!(metrics.contains(line), "{line} is missing in\n{metrics}");
    }
    for absent in ["made-up", "secret", r#"path="/metrics""#] {
        assert!(!metrics.contains(absent), "{absent} is in\n{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_routes_have_the_deadline_of_calls_that_bring_none() {
    let asked = |context: axum::Extension<drover_server::CallContext>| async move {
        let left = context.0.deadline.unwrap() - tokio::time::Instant::now();
        format!("{left:?}")
    };
    let settings = ServerSettings {
        default_deadline: Duration::from_secs(7),
        ..ServerSettings::default()
    };
    let fixture = start_with(settings, |service| {
        service
            .route("/asked", axum::routing::get(asked))
            .route("/stuck", axum::routing::get(std::future::pending::<()>))
    })
    .await;
    assert_eq!(
        get(&fixture.running, "/asked").await,
        (200, "7s".to_owned())
    );
    assert_eq!(get(&fixture.running, "/stuck").await, (504, String::new()));
}

#[tokio::test]
async fn http_routes_are_bounded_together_with_calls() {
    let settings = ServerSettings {
        max_concurrent_requests: 1,
        ..ServerSettings::default()
    };
    let fixture = start_with(settings, |service| {
        service.route("/hello", axum::routing::get(async || "hello"))
    })
    .await;
    let mut hosts = fixture.hosts.clone();
    let call = tokio::spawn(async move { hosts.list_hosts(ask("wait")).await });
    eventually("it is in flight", async || fixture.demo.seen.running() == 1).await;
    assert_eq!(get(&fixture.running, "/hello").await.0, 503);
    fixture.demo.gate.add_permits(1);
    call.await.unwrap().unwrap();
    assert_eq!(get(&fixture.running, "/hello").await.0, 200);
}

#[tokio::test]
async fn shutdown_lets_calls_finish_ends_streams_and_takes_no_more() {
    let mut fixture = start(ServerSettings::default()).await;
    let mut hosts = fixture.hosts.clone();
    let call = tokio::spawn(async move { hosts.list_hosts(ask("wait")).await });
    let mut stream = fixture
        .logs
        .stream_logs(follow("forever"))
        .await
        .unwrap()
        .into_inner();
    assert!(stream.message().await.unwrap().is_some());
    eventually("both are in flight", async || {
        fixture.demo.seen.running() == 2
    })
    .await;
    let mut health = HealthClient::new(fixture.channel.clone());
    let mut watch = health
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::Serving
    );

    let address = fixture.running.address();
    let stopping = tokio::spawn(fixture.running.shutdown());
    assert_eq!(
        watch.message().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    let status = stream.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        !is_unreachable(&to_error(&status)),
        "the server said so: {status:?}"
    );
    eventually("the port is closed", async || {
        TcpStream::connect(address).await.is_err()
    })
    .await;
    assert!(!stopping.is_finished(), "a call is in flight");

    fixture.demo.gate.add_permits(1);
    assert_eq!(call.await.unwrap().unwrap().into_inner().hosts.len(), 1);
    stopping.await.unwrap();
    let error = to_error(&fixture.hosts.list_hosts(ask("")).await.unwrap_err());
    assert!(is_unreachable(&error), "{error:?}");
}

#[tokio::test]
async fn shutdown_ends_streams_that_have_not_begun_to_answer() {
    let fixture = start(ServerSettings::default()).await;
    let mut logs = fixture.logs.clone();
    let call = tokio::spawn(async move { logs.stream_logs(follow("wait")).await.map(drop) });
    eventually("it is in flight", async || fixture.demo.seen.running() == 1).await;
    fixture.running.shutdown().await;
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn what_takes_longer_than_the_grace_is_cut_off() {
    let settings = ServerSettings {
        shutdown_grace: Duration::from_millis(300),
        ..ServerSettings::default()
    };
    let fixture = start(settings).await;
    let mut hosts = fixture.hosts.clone();
    let call = tokio::spawn(async move { hosts.list_hosts(ask("wait")).await });
    eventually("it is in flight", async || fixture.demo.seen.running() == 1).await;
    fixture.running.shutdown().await;
    assert!(is_unreachable(&to_error(&call.await.unwrap().unwrap_err())));
    eventually("the handler is dropped", async || {
        fixture.demo.seen.running() == 0
    })
    .await;
}

#[tokio::test]
async fn a_client_that_has_gone_silent_does_not_hold_up_the_end() {
    let fixture = start(ServerSettings::default()).await;
    let mut silent = TcpStream::connect(fixture.running.address()).await.unwrap();
    // Preface and empty SETTINGS; the responses are never read.
    silent
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut settings = [0; 9];
    silent.read_exact(&mut settings).await.unwrap();
    let stopped = tokio::time::timeout(Duration::from_secs(10), fixture.running.shutdown()).await;
    assert!(stopped.is_ok(), "the grace is 30 s");
}

#[tokio::test]
async fn plaintext_is_served_to_others_only_if_told_so() {
    let mut settings = ServerSettings {
        listen: "0.0.0.0:0".parse().unwrap(),
        ..ServerSettings::default()
    };
    let error = listen(&settings).await.unwrap_err();
    assert!(
        matches!(error, StartError::Plaintext { .. }) && error.to_string().contains("--insecure"),
        "{error}"
    );
    settings.insecure = true;
    assert!(listen(&settings).await.is_ok());
    settings = ServerSettings {
        listen: "[::1]:0".parse().unwrap(),
        ..ServerSettings::default()
    };
    assert!(!matches!(
        listen(&settings).await,
        Err(StartError::Plaintext { .. })
    ));
}

#[tokio::test]
async fn a_taken_port_is_named_with_who_has_it() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = ServerSettings {
        listen: taken.local_addr().unwrap(),
        ..ServerSettings::default()
    };
    let error = listen(&settings).await.unwrap_err().to_string();
    let port = taken.local_addr().unwrap().port();
    assert!(
        error.starts_with(&format!("port {port} is taken")),
        "{error}"
    );
    if cfg!(target_os = "linux") {
        let directory = std::env::current_dir().unwrap();
        assert!(
            error.contains(&format!("pid {} ", std::process::id())),
            "{error}"
        );
        assert!(error.contains(directory.to_str().unwrap()), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_say_nothing_or_too_little_are_closed() {
    let fixture = start(ServerSettings::default()).await;
    for begin in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "GET / HT",
        "GET / HTTP/1.1\r\nhost: localhost\r\n",
    ] {
        let mut stream = TcpStream::connect(fixture.running.address()).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed =
            tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{begin:?} stays open");
    }
}

#[tokio::test]
async fn random_bytes_never_bring_the_server_down() {
    let seed = drover_testing::seed::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut fixture = start(ServerSettings::default()).await;
    let paths = [
        "/drover.platform.v1.InventoryService/ListHosts",
        "/drover.platform.v1.NodeAccessService/StreamLogs",
        "/drover.platform.v1.NodeAccessService/Exec",
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/made.up.Service/Method",
        "//",
    ];
    for _ in 0..200 {
        let mut body: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
        if random.bool() {
            // Framed as gRPC, so that it reaches the decoder.
            let mut framed = vec![0];
            framed.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
            framed.append(&mut body);
            body = framed;
        }
        let request =
            http::Request::post(format!("http://x{}", paths[random.usize(0..paths.len())]))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("grpc-timeout", "50m")
                .body(tonic::body::Body::new(http_body_util::Full::from(body)))
                .unwrap();
        let response = match tower::ServiceExt::oneshot(fixture.channel.clone(), request).await {
            Ok(response) => response,
            // The client has the same deadline, and may report it first on a busy machine.
            Err(error) => {
                assert!(error.to_string().contains("Timeout expired"), "{error}");
                continue;
            }
        };
        let mut body = http_body_util::BodyExt::into_data_stream(response.into_body());
        while let Some(chunk) = body.next().await {
            chunk.unwrap();
        }
    }
    for _ in 0..100 {
        let mut stream = TcpStream::connect(fixture.running.address()).await.unwrap();
        let mut bytes = if random.bool() {
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
        } else {
            Vec::new()
        };
        bytes.extend((0..random.usize(1..300)).map(|_| random.u8(..)));
        // The connection may be closed while this is written.
        let _ = stream.write_all(&bytes).await;
    }
    assert_eq!(fixture.demo.seen.running(), 0);
    assert!(fixture.hosts.list_hosts(ask("")).await.is_ok());
}
