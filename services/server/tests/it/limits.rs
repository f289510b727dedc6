//! Abusive callers: the resources that they can hold are limited, and others are not affected.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use crate::common;

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use common::{ENDLESS, Fixture, ask, eventually, follow, get, start};
use drover_client::{Bearer, Channel, Target, connect};
use drover_proto::platform::v1::{
    inventory_service_client::InventoryServiceClient,
    node_access_service_client::NodeAccessServiceClient,
};
use drover_server::ServerSettings;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
};

/// Start of an HTTP/2 connection: preface and empty SETTINGS.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Timeout of every step.
const PATIENCE: Duration = Duration::from_secs(20);
const LIST: &str = "/drover.platform.v1.InventoryService/ListHosts";

fn bounded(connections: usize) -> ServerSettings {
    ServerSettings {
        max_connections: connections,
        ..ServerSettings::default()
    }
}

fn channel(address: SocketAddr) -> Channel {
    connect(&format!("http://{address}").parse::<Target>().unwrap())
}

/// Asserts that a caller with a connection of its own is served.
async fn is_answered(address: SocketAddr) {
    let mut hosts = InventoryServiceClient::new(channel(address));
    let answer = timeout(PATIENCE, hosts.list_hosts(ask(""))).await;
    answer.unwrap().unwrap();
}

/// Resident memory of this process in bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() * 1024
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The headers of a gRPC `POST /`, from the static table of HPACK except for the content type.
fn headers() -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x84, 0x0f, 0x10, 16];
    block.extend(b"application/grpc");
    block
}

/// Whether the server sends GOAWAY or closes the connection.
async fn is_sent_away(stream: &mut TcpStream) -> bool {
    let mut answer = Vec::new();
    let mut chunk = [0; 16 * 1024];
    let reading = async {
        loop {
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return true,
                Ok(read) => answer.extend_from_slice(&chunk[..read]),
            }
            let mut rest = &answer[..];
            while let [a, b, c, kind, ..] = rest {
                let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                if *kind == 7 {
                    return true;
                }
                rest = rest.get(9 + length..).unwrap_or_default();
            }
        }
    };
    timeout(PATIENCE, reading).await.unwrap_or(false)
}

#[tokio::test]
async fn the_place_of_an_idle_connection_is_given_to_one_that_comes() {
    let fixture = start(bounded(1)).await;
    let address = fixture.running.address();
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert_eq!(get(&fixture.running, "/healthz").await.0, 200);
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, silent.read_to_end(&mut rest)).await;
    let _ = ended.unwrap();

    // An HTTP/2 client is told by GOAWAY, and reconnects by itself.
    let mut first = InventoryServiceClient::new(channel(address));
    first.list_hosts(ask("")).await.unwrap();
    is_answered(address).await;
    eventually("the first one connects again", async || {
        first.list_hosts(ask("")).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_connection_too_many_is_told_so_in_its_own_words() {
    let mut fixture = start(bounded(1)).await;
    let address = fixture.running.address();
    let mut watch = fixture
        .logs
        .stream_logs(follow("forever"))
        .await
        .unwrap()
        .into_inner();
    assert!(watch.message().await.unwrap().is_some());
    let mut late = InventoryServiceClient::new(channel(address));
    let status = late.list_hosts(ask("")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("max_connections"), "{status:?}");
    assert_eq!(get(&fixture.running, "/healthz").await.0, 503);
    // The busy connection is left alone, and new ones are accepted once it is idle.
    drop(watch);
    eventually("there is a place", async || {
        InventoryServiceClient::new(channel(address))
            .list_hosts(ask(""))
            .await
            .is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_hold_no_more_places_than_there_are() {
    const MOST: usize = 1000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let files = raised.current.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    });
    // Both ends are in this process.
    let crowd = 10_000.min(files.saturating_sub(2 * MOST));
    let fixture = start(bounded(MOST)).await;
    let address = fixture.running.address();
    let before = memory();
    let mut idle = Vec::new();
    for number in 0..crowd {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(HELLO).await.unwrap();
        idle.push(stream);
        if number % 1000 == 0 {
            is_answered(address).await;
        }
    }
    is_answered(address).await;
    let grown = memory().saturating_sub(before);
    println!("{crowd} connections, {MOST} places: {} MiB", grown >> 20);
    assert!(grown < 256 << 20, "{grown}");
}

type Sent = futures::channel::mpsc::Sender<Result<Frame<Bytes>, std::io::Error>>;

/// Starts a call whose request body is written through the sender.
async fn dribble(
    fixture: &Fixture,
    first: &[u8],
) -> (
    Sent,
    tokio::task::JoinHandle<hyper::Result<Response<Incoming>>>,
) {
    let stream = TcpStream::connect(fixture.running.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let (mut send, body) = futures::channel::mpsc::channel(1);
    send.try_send(Ok(Frame::data(Bytes::copy_from_slice(first))))
        .unwrap();
    let request = Request::post(format!("http://x{LIST}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        // Occupies its slot for as long as possible.
        .header("grpc-timeout", "800S")
        .body(StreamBody::new(body))
        .unwrap();
    let answer = tokio::spawn(async move { sender.send_request(request).await });
    (send, answer)
}

#[tokio::test(start_paused = true)]
async fn a_message_that_does_not_arrive_gives_its_place_back() {
    let settings = ServerSettings {
        max_concurrent_requests: 1,
        ..ServerSettings::default()
    };
    let fixture = start(settings).await;
    // The header of a message, without any of its content.
    let (_open, answer) = dribble(&fixture, &[0, 0, 0, 0, 9]).await;
    let begin = tokio::time::Instant::now();
    // Its slot is occupied until the call is given up.
    let mut hosts = fixture.hosts.clone();
    let mut refused = 0;
    while let Err(status) = hosts.list_hosts(ask("")).await {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        refused += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "it holds its place"
        );
    }
    println!("{refused} refused in {:?}", begin.elapsed());
    drop(answer);
}

#[tokio::test(start_paused = true)]
async fn headers_that_never_end_end_the_connection() {
    let fixture = start(ServerSettings::default()).await;
    let mut stream = TcpStream::connect(fixture.running.address()).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    // Without END_HEADERS, after which HTTP/2 permits no other frame, not even the response to a ping.
    stream
        .write_all(&frame(1, 0, 1, &headers()[..3]))
        .await
        .unwrap();
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_secs(120), stream.read_to_end(&mut rest)).await;
    let _ = ended.expect("still open");
}

#[tokio::test]
async fn headers_above_the_limit_are_refused_in_both_protocols() {
    let fixture = start(ServerSettings::default()).await;
    let address = fixture.running.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nbig: {}\r\n\r\n",
        "x".repeat(64 * 1024)
    );
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");

    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://x{LIST}"))
        .header("content-type", "application/grpc")
        .header("big", "x".repeat(64 * 1024))
        .body(http_body_util::Empty::<Bytes>::new())
        .unwrap();
    match sender.send_request(request).await {
        Ok(answer) => assert_eq!(answer.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
        // Our own client knows the limit from the server's SETTINGS.
        Err(error) => assert!(!error.is_timeout(), "{error}"),
    }

    // CONTINUATION frames without an end are limited as well.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    stream.write_all(&frame(1, 0, 1, &headers())).await.unwrap();
    let more = frame(9, 0, 1, &[0x10, 1, b'a', 1, b'b'].repeat(2000));
    for _ in 0..1000 {
        // The connection may be closed already.
        if stream.write_all(&more).await.is_err() {
            break;
        }
    }
    assert!(is_sent_away(&mut stream).await);
    is_answered(address).await;
}

#[tokio::test]
async fn calls_taken_back_by_the_thousand_end_their_connection() {
    let fixture = start(ServerSettings::default()).await;
    let address = fixture.running.address();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    let mut flood = Vec::new();
    for number in 0..5000_u32 {
        flood.extend(frame(1, 4, 2 * number + 1, &headers()));
        flood.extend(frame(3, 0, 2 * number + 1, &8_u32.to_be_bytes()));
    }
    let _ = stream.write_all(&flood).await;
    assert!(is_sent_away(&mut stream).await);
    is_answered(address).await;
    eventually("nothing of it is left", async || {
        fixture.demo.seen.running() == 0
    })
    .await;
}

/// Answers come before their requests have arrived: what is still on its way is no violation of the protocol, of which a
/// connection may have few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_refused_at_once_leave_their_connection_to_others() {
    let fixture = start(ServerSettings::default()).await;
    let channel = channel(fixture.running.address());
    let large = Bytes::from(vec![b'x'; 100_000]);
    let calls = (0..3000).map(|number| {
        let (mut channel, large) = (channel.clone(), large.clone());
        async move {
            let request = Request::post("http://localhost/drover.platform.v1.Nothing/Do")
                .header("content-type", "application/grpc")
                .body(tonic::body::Body::new(http_body_util::Full::new(large)))
                .unwrap();
            std::future::poll_fn(|cx| tower::Service::poll_ready(&mut channel, cx))
                .await
                .unwrap();
            let answer = timeout(PATIENCE, tower::Service::call(&mut channel, request)).await;
            let answer = answer
                .unwrap()
                .unwrap_or_else(|error| panic!("call {number}: {error:?}"));
            let status = tonic::Status::from_header_map(answer.headers());
            assert_eq!(status.unwrap().code(), Code::Unimplemented);
        }
    });
    futures::stream::iter(calls)
        .for_each_concurrent(4, |call| call)
        .await;
}

#[tokio::test]
async fn pings_and_settings_that_nobody_reads_the_answers_of_are_not_collected() {
    let fixture = start(ServerSettings::default()).await;
    let address = fixture.running.address();
    let before = memory();
    for flood in [
        frame(6, 0, 0, &[7; 8]).repeat(1000),
        frame(4, 0, 0, &[]).repeat(1000),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(HELLO).await.unwrap();
        let mut written = 0_usize;
        // Until the server stops reading or ends it; both are fine.
        while written < 256 << 20
            && let Ok(Ok(())) = timeout(Duration::from_millis(500), stream.write_all(&flood)).await
        {
            written += flood.len();
        }
        is_answered(address).await;
    }
    let grown = memory().saturating_sub(before);
    // Other tests in this process allocate memory at the same time.
    assert!(grown < 128 << 20, "{grown}");
}

#[tokio::test]
async fn a_stream_that_nobody_reads_waits_and_holds_little() {
    const STREAMS: usize = 50;
    let fixture = start(ServerSettings::default()).await;
    let address = fixture.running.address();
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let slow = endpoint
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(16 << 20)
        .connect()
        .await
        .unwrap();
    let mut held = Vec::new();
    for _ in 0..STREAMS {
        let mut logs = NodeAccessServiceClient::new(slow.clone());
        held.push(logs.stream_logs(follow("endless")).await.unwrap());
    }
    let seen = fixture.demo.seen.clone();
    eventually("all of them give something", async || {
        seen.given.load(Ordering::SeqCst) >= STREAMS * ENDLESS
    })
    .await;
    for _ in 0..20 {
        is_answered(address).await;
    }
    // The client's window, the bytes that wait for it to open, and messages that are being created.
    let most = STREAMS * (64 * 1024 + 64 * 1024 + 4 * ENDLESS);
    let given = seen.given.load(Ordering::SeqCst);
    println!(
        "{} KiB for each of {STREAMS} streams",
        given / STREAMS / 1024
    );
    assert!(given <= most, "{given} > {most}");
    drop(held);
    drop(slow);
    eventually("they are let go", async || seen.running() == 0).await;
}

/// Starts a server with two known callers: `greedy` and `other`.
async fn start_for_two(settings: ServerSettings) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("access.yaml");
    std::fs::write(
        &rules,
        "tokens:\n  - {name: greedy, token: greedy-0123456789abcdef}\n  - {name: other, token: other-0123456789abcdef}\n\
         bindings: [{role: admin, subjects: ['token:*']}]\n",
    )
    .unwrap();
    let settings = ServerSettings {
        access: Some(rules),
        ..settings
    };
    // The rules are read at startup, and stay in effect when the file is gone.
    start(settings).await
}

/// Returns a connection of one of the two callers.
fn of(fixture: &Fixture, name: &str) -> Channel {
    let target: Target = format!("http://{}", fixture.running.address())
        .parse()
        .unwrap();
    connect(&target.with_bearer(Bearer::Token(token(name))))
}

fn token(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

/// Sends a request over a persistent connection and returns its status.
async fn status(stream: &mut TcpStream, path: &str, name: &str) -> u16 {
    let bearer = token(name);
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {bearer}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let head = loop {
        answer.push(stream.read_u8().await.unwrap());
        if answer.ends_with(b"\r\n\r\n") {
            break String::from_utf8(answer).unwrap().to_lowercase();
        }
    };
    let length = head.split("content-length: ").nth(1).unwrap();
    let length = length.split("\r\n").next().unwrap().parse().unwrap();
    stream.read_exact(&mut vec![0; length]).await.unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn one_caller_leaves_places_for_others() {
    let fixture = start_for_two(ServerSettings {
        max_concurrent_streams: 8,
        ..ServerSettings::default()
    })
    .await;
    let of = |name: &str| NodeAccessServiceClient::new(of(&fixture, name));
    let mut greedy = of("greedy");
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(greedy.stream_logs(follow("forever")).await.unwrap());
    }
    let status = greedy.stream_logs(follow("forever")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("token:greedy"), "{status:?}");
    of("other").stream_logs(follow("forever")).await.unwrap();
    held.pop();
    eventually("it gets its place back", async || {
        greedy.stream_logs(follow("forever")).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn one_caller_leaves_connections_for_others() {
    let fixture = start_for_two(bounded(4)).await;
    let mut greedy: Vec<_> = (0..4)
        .map(|_| NodeAccessServiceClient::new(of(&fixture, "greedy")))
        .collect();
    let mut held = Vec::new();
    for client in &mut greedy[..3] {
        held.push(client.stream_logs(follow("forever")).await.unwrap());
        // Further calls on the same connection do not count.
        held.push(client.stream_logs(follow("forever")).await.unwrap());
    }
    let refused = greedy[3].stream_logs(follow("forever")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let words = "too many connections of token:greedy";
    assert!(refused.message().contains(words), "{refused:?}");
    let mut plain = TcpStream::connect(fixture.running.address()).await.unwrap();
    assert_eq!(status(&mut plain, "/elsewhere", "greedy").await, 503);
    // Paths that must always be answered.
    assert_eq!(status(&mut plain, "/metrics", "greedy").await, 200);
    assert_eq!(status(&mut plain, "/elsewhere", "other").await, 404);
    let mut other = NodeAccessServiceClient::new(of(&fixture, "other"));
    other.stream_logs(follow("end")).await.unwrap();
    assert_eq!(get(&fixture.running, "/healthz").await.0, 200);
    held.truncate(4);
    eventually("it gets another connection", async || {
        greedy[3].stream_logs(follow("forever")).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn where_everybody_is_the_same_every_connection_may_have_calls() {
    let fixture = start(bounded(4)).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut logs = NodeAccessServiceClient::new(channel(fixture.running.address()));
        held.push(logs.stream_logs(follow("forever")).await.unwrap());
    }
}

#[tokio::test]
async fn reflection_is_a_stream_like_others() {
    let fixture = start_for_two(ServerSettings {
        max_concurrent_streams: 8,
        ..ServerSettings::default()
    })
    .await;
    let ask = async |name: &str| {
        ServerReflectionClient::new(of(&fixture, name))
            .server_reflection_info(futures::stream::pending::<ServerReflectionRequest>())
            .await
    };
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(ask("greedy").await.unwrap());
    }
    let refused = ask("greedy").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("token:greedy"), "{refused:?}");
    ask("other").await.unwrap();
}

#[tokio::test]
async fn a_request_that_is_refused_keeps_no_connection_from_being_idle() {
    let fixture = start_for_two(bounded(2)).await;
    let address = fixture.running.address();
    let mut stranger = TcpStream::connect(address).await.unwrap();
    assert_eq!(status(&mut stranger, "/metrics", "stranger").await, 401);
    let mut caller = TcpStream::connect(address).await.unwrap();
    assert_eq!(status(&mut caller, "/metrics", "other").await, 200);
    for _ in 0..50 {
        assert_eq!(status(&mut stranger, "/metrics", "stranger").await, 401);
    }
    let mut newcomer = NodeAccessServiceClient::new(of(&fixture, "other"));
    newcomer.stream_logs(follow("end")).await.unwrap();
    let ended = tokio::select! {
        _ = stranger.read_u8() => "the stranger's",
        _ = caller.read_u8() => "the caller's",
    };
    assert_eq!(ended, "the stranger's");
}

#[tokio::test]
async fn strangers_ask_for_health_only_so_often_at_once() {
    let fixture = start(ServerSettings::default()).await;
    let mut health = HealthClient::new(fixture.channel.clone());
    let mut held = Vec::new();
    let refused = loop {
        match health.watch(HealthCheckRequest::default()).await {
            Ok(watch) => held.push(watch.into_inner()),
            Err(status) => break status,
        }
        assert!(held.len() <= 32, "no bound");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(held.len(), 32);
    for watch in &mut held {
        assert!(watch.next().await.unwrap().is_ok());
    }
    // Working calls on the same connection are not affected.
    let mut hosts = fixture.hosts.clone();
    hosts.list_hosts(ask("")).await.unwrap();
}
