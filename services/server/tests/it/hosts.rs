//! Accepted host names, and requests from browsers.

use crate::common;

use std::net::SocketAddr;

use bytes::Bytes;
use common::{Demo, Fixture, service, start, start_with};
use drover_client::{Authorities, ClientSettings, Target, connect, is_unreachable, to_error};
use drover_core::Reason;
use drover_proto::platform::v1::inventory_service_client::InventoryServiceClient;
use drover_server::{ServerSettings, Shutdown, listen, settings::TlsSettings, spawn};
use drover_testing::certs::{Authority, Wanted};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const LIST: &str = "/drover.platform.v1.InventoryService/ListHosts";
/// The plain HTTP paths: the server's own, a custom route, and one that does not exist.
const PATHS: [&str; 5] = ["/healthz", "/readyz", "/metrics", "/hello", "/nothing"];

async fn fixture(allowed: &[&str]) -> Fixture {
    let settings = ServerSettings {
        allowed_hosts: allowed.iter().map(ToString::to_string).collect(),
        ..ServerSettings::default()
    };
    start_with(settings, |service| {
        service.route("/hello", axum::routing::any(async || "hello"))
    })
    .await
}

/// Sends a raw HTTP/1 request and returns the status and the whole response.
async fn send(address: SocketAddr, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{head}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

/// Sends an HTTP/2 request with an empty gRPC message.
async fn call(address: SocketAddr, uri: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let mut request = Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from_static(&[0; 5]));
    let (head, body) = sender
        .send_request(request.body(body).unwrap())
        .await
        .unwrap()
        .into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

fn text(answer: &Response<Bytes>) -> String {
    String::from_utf8(answer.body().to_vec()).unwrap()
}

/// Whether a handler was called.
fn ran(demo: &Demo) -> bool {
    demo.seen.deadline.lock().is_some()
}

#[tokio::test]
async fn plain_http_is_answered_under_its_own_names_only() {
    let fixture = fixture(&["orders", "*.svc.example"]).await;
    let address = fixture.running.address();
    let port = address.port();
    let good = [
        format!("host: 127.0.0.1:{port}\r\n"),
        "host: 192.0.2.7\r\n".to_owned(),
        format!("host: [::1]:{port}\r\n"),
        "host: LOCALHOST\r\n".to_owned(),
        "host: drover.localhost\r\n".to_owned(),
        format!("host: Orders.:{port}\r\n"),
        "host: one.svc.example\r\n".to_owned(),
    ];
    for host in &good {
        let (status, answer) = send(address, &format!("GET /hello HTTP/1.1\r\n{host}")).await;
        assert_eq!(status, 200, "{host}: {answer}");
    }
    let bad = [
        "host: evil.example\r\n".to_owned(),
        format!("host: evil.example:{port}\r\n"),
        "host: evil.example.\r\n".to_owned(),
        "host: EVIL.EXAMPLE\r\n".to_owned(),
        "host: localhost.evil.example\r\n".to_owned(),
        format!("host: 127.0.0.1.evil.example:{port}\r\n"),
        format!("host: localhost@evil.example:{port}\r\n"),
        format!("host: evil.example@127.0.0.1:{port}\r\n"),
        "host: svc.example\r\n".to_owned(),
        "host: 2130706433\r\n".to_owned(),
        "host: localhost, evil.example\r\n".to_owned(),
        "host:\r\n".to_owned(),
        String::new(),
        "host: localhost\r\nhost: localhost\r\n".to_owned(),
        "host: localhost\r\nhost: evil.example\r\n".to_owned(),
        "host: evil.example\r\nx: y\r\nhost: localhost\r\n".to_owned(),
    ];
    for path in PATHS {
        for host in &bad {
            for method in ["GET", "POST"] {
                let head = format!("{method} {path} HTTP/1.1\r\n{host}");
                let (status, answer) = send(address, &head).await;
                assert_eq!(status, 421, "{head}: {answer}");
                assert!(!answer.contains("drover_rpc"), "{head}: {answer}");
            }
        }
    }
    let (_, answer) = send(address, "GET /hello HTTP/1.1\r\nhost: evil.example\r\n").await;
    assert!(
        answer.contains("not called \"evil.example\"") && answer.contains("--allowed-host"),
        "{answer}"
    );
}

#[tokio::test]
async fn an_absolute_target_and_the_host_beside_it_are_one() {
    let fixture = fixture(&[]).await;
    let address = fixture.running.address();
    for (target, host, expected) in [
        ("http://localhost/hello", "localhost", 200),
        ("http://localhost/hello", "LOCALHOST.", 200),
        ("http://localhost/hello", "evil.example", 421),
        ("http://evil.example/hello", "localhost", 421),
        ("http://evil.example/hello", "evil.example", 421),
        ("http://localhost/hello", "127.0.0.1", 421),
        ("http://localhost:1/hello", "localhost:2", 421),
        ("http://localhost@evil.example/hello", "localhost", 421),
        ("http://evil.example@localhost/hello", "localhost", 421),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n");
        let (status, answer) = send(address, &head).await;
        assert_eq!(status, expected, "{head}: {answer}");
    }
}

#[tokio::test]
async fn what_is_older_than_the_header_needs_none() {
    let fixture = fixture(&[]).await;
    let address = fixture.running.address();
    assert_eq!(send(address, "GET /readyz HTTP/1.0\r\n").await.0, 200);
    let head = "GET /readyz HTTP/1.0\r\nhost: evil.example\r\n";
    assert_eq!(send(address, head).await.0, 421);
}

#[tokio::test]
async fn grpc_is_answered_under_its_own_names_only() {
    let fixture = fixture(&["orders"]).await;
    let address = fixture.running.address();
    let port = address.port();
    for authority in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        "[::1]".to_owned(),
        format!("orders:{port}"),
    ] {
        let answer = call(address, &format!("http://{authority}{LIST}"), &[]).await;
        assert_eq!(answer.status(), 200, "{authority}");
    }
    *fixture.demo.seen.deadline.lock() = None;
    for authority in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        "evil.example.".to_owned(),
        "EVIL.example".to_owned(),
        "localhost@evil.example".to_owned(),
        "evil.example@localhost".to_owned(),
        "orders.evil.example".to_owned(),
    ] {
        let answer = call(address, &format!("http://{authority}{LIST}"), &[]).await;
        assert_eq!(answer.status(), 421, "{authority}");
        assert!(!text(&answer).is_empty(), "{authority}");
        // The part that gRPC libraries show.
        assert_eq!(answer.headers()["grpc-status"], "7", "{authority}");
    }
    // Without `:authority`, with and without a host header.
    for (uri, host, expected) in [
        (LIST, None, 421),
        (LIST, Some("evil.example"), 421),
        (LIST, Some("localhost"), 200),
    ] {
        let headers: Vec<_> = host.map(|host| ("host", host)).into_iter().collect();
        let answer = call(address, uri, &headers).await;
        assert_eq!(answer.status(), expected, "{uri} {host:?}");
        assert_eq!(ran(&fixture.demo), expected == 200, "{uri} {host:?}");
    }
    *fixture.demo.seen.deadline.lock() = None;
    let uri = format!("http://localhost{LIST}");
    let answer = call(address, &uri, &[("host", "evil.example")]).await;
    assert_eq!(answer.status(), 421);
    assert!(!ran(&fixture.demo));
}

#[tokio::test]
async fn clients_are_told_what_the_server_has_against_the_name() {
    let fixture = fixture(&[]).await;
    let endpoint = format!("http://{}", fixture.running.address());
    let channel = tonic::transport::Endpoint::from_shared(endpoint)
        .unwrap()
        .origin("http://evil.example".parse().unwrap())
        .connect_lazy();
    let status = InventoryServiceClient::new(channel)
        .list_hosts(common::ask(""))
        .await
        .unwrap_err();
    let error = to_error(&status);
    assert_eq!(error.reason(), Reason::PermissionDenied, "{error}");
    assert!(
        error.message().contains("not called \"evil.example\""),
        "{error}"
    );
    assert!(!is_unreachable(&error), "{error}");
}

#[tokio::test]
async fn grpc_is_spoken_over_http2_only() {
    let fixture = fixture(&[]).await;
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc-web",
    ] {
        let head = format!(
            "POST {LIST} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\nte: trailers\r\n\
             content-length: 0\r\n"
        );
        let (status, answer) = send(fixture.running.address(), &head).await;
        assert_eq!(status, 505, "{answer}");
        assert!(answer.contains("HTTP/2 only"), "{answer}");
    }
    assert!(!ran(&fixture.demo));
}

#[tokio::test]
async fn browsers_are_not_served() {
    let fixture = fixture(&[]).await;
    let address = fixture.running.address();
    for (name, value) in [
        ("Origin", "http://evil.example"),
        ("origin", "null"),
        ("Origin", "http://localhost:7400"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Site", "same-origin"),
        ("sec-fetch-dest", "empty"),
        ("Sec-Fetch-Storage-Access", "none"),
    ] {
        for path in PATHS {
            let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{name}: {value}\r\n");
            let (status, answer) = send(address, &head).await;
            assert_eq!(status, 403, "{head}: {answer}");
            assert!(answer.contains("browsers"), "{answer}");
        }
        let uri = format!("http://localhost{LIST}");
        let answer = call(address, &uri, &[(&name.to_lowercase(), value)]).await;
        assert_eq!(answer.status(), 403, "{name}");
    }
    assert!(!ran(&fixture.demo));
}

#[tokio::test]
async fn names_of_the_certificate_are_names_of_the_server() {
    let authority = Authority::new("ours");
    let server = authority.write(&Wanted {
        names: vec!["orders.example", "*.svc.example"],
        ..Wanted::server("server")
    });
    let settings = ServerSettings {
        tls: TlsSettings {
            cert: Some(server.cert.clone()),
            key: Some(server.key.clone()),
            client_ca: None,
            ..TlsSettings::default()
        },
        ..ServerSettings::default()
    };
    let listener = listen(&settings).await.unwrap();
    let running = spawn(
        service(&Demo::default()),
        listener,
        &settings,
        Shutdown::new(),
    )
    .unwrap();
    let call = async |name: &str| {
        let target: Target = format!("https://{}", running.address()).parse().unwrap();
        let tls = ClientSettings {
            authorities: Authorities::File(authority.ca()),
            server_name: Some(name.to_owned()),
            ..ClientSettings::default()
        };
        let channel = connect(&target.with_tls(tls).unwrap());
        InventoryServiceClient::new(channel)
            .list_hosts(common::ask(""))
            .await
            .map(drop)
            .map_err(|status| to_error(&status))
    };
    call("orders.example").await.unwrap();
    call("one.svc.example").await.unwrap();
    // The client already rejects the certificate.
    let error = call("evil.example").await.unwrap_err();
    assert!(is_unreachable(&error), "{error}");

    authority.write(&Wanted {
        names: vec!["carts.example"],
        ..Wanted::server("server")
    });
    common::eventually("the new names count", async || {
        call("carts.example").await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn requests_for_other_names_are_audited() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let settings = ServerSettings {
        audit_log: Some(log.clone()),
        ..ServerSettings::default()
    };
    let fixture = start(settings).await;
    send(
        fixture.running.address(),
        "GET /metrics HTTP/1.1\r\nhost: evil.example\r\n",
    )
    .await;
    common::eventually("it is written", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.contains("evil.example") && text.contains("\"code\":\"421\"")
    })
    .await;
}

#[tokio::test]
async fn a_name_that_is_none_keeps_a_server_from_starting() {
    let settings = ServerSettings {
        allowed_hosts: vec!["http://orders".to_owned()],
        ..ServerSettings::default()
    };
    let error = listen(&settings).await.unwrap_err().to_string();
    assert!(error.contains("allowed_hosts"), "{error}");
}
