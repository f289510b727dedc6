//! TLS: authentication, error messages on both sides, and certificates that change.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use crate::common;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use common::{Demo, ask, eventually, follow, service};
use drover_client::{
    Authorities, Channel, ClientSettings, Target, connect, is_unreachable, to_error,
};
use drover_core::{Error, Reason};
use drover_proto::platform::v1::{
    inventory_service_client::InventoryServiceClient,
    node_access_service_client::NodeAccessServiceClient,
};
use drover_server::{
    Running, ServerSettings, Shutdown, StartError, listen, settings::TlsSettings, spawn,
};
use drover_testing::certs::{Authority, DAY, Pair, Wanted, replace};
use futures::StreamExt;
use rustls::{ClientConfig, RootCertStore, pki_types::pem::PemObject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

const ADMIN: &str = "spiffe://drover/admin/test";
/// Timeout of every step: shorter than the time until an unresponsive connection is closed.
const PATIENCE: Duration = Duration::from_secs(15);

fn tls(server: &Pair, client_ca: Option<PathBuf>) -> ServerSettings {
    ServerSettings {
        tls: TlsSettings {
            cert: Some(server.cert.clone()),
            key: Some(server.key.clone()),
            client_ca,
            ..TlsSettings::default()
        },
        ..ServerSettings::default()
    }
}

async fn start(settings: &ServerSettings) -> (Demo, Running) {
    let demo = Demo::default();
    let listener = listen(settings).await.unwrap();
    let running = spawn(service(&demo), listener, settings, Shutdown::new()).unwrap();
    (demo, running)
}

fn trusting(authority: &Authority, own: Option<&Pair>) -> ClientSettings {
    ClientSettings {
        authorities: Authorities::File(authority.ca()),
        certificate: own.map(|own| (own.cert.clone(), own.key.clone()).into()),
        ..ClientSettings::default()
    }
}

fn dial(address: SocketAddr, tls: ClientSettings) -> Channel {
    let target: Target = format!("https://{address}").parse().unwrap();
    connect(&target.with_tls(tls).unwrap())
}

async fn call(channel: &Channel) -> Result<(), Error> {
    InventoryServiceClient::new(channel.clone())
        .list_hosts(ask(""))
        .await
        .map(drop)
        .map_err(|status| to_error(&status))
}

async fn health(channel: &Channel) -> Result<(), Error> {
    HealthClient::new(channel.clone())
        .check(HealthCheckRequest::default())
        .await
        .map(drop)
        .map_err(|status| to_error(&status))
}

/// Sends an HTTP/1 request over TLS without a client certificate and returns the status.
async fn get(address: SocketAddr, authority: &Authority, path: &str) -> u16 {
    let mut roots = RootCertStore::empty();
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(drover_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect("localhost".try_into().unwrap(), stream)
        .await
        .unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A missing close_notify is not relevant here.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn with_a_certificate_of_the_authority_everything_works() {
    let authority = Authority::new("ours");
    let (_demo, running) = start(&tls(&authority.server(), Some(authority.ca()))).await;
    let admin = authority.client("admin", ADMIN);
    let channel = dial(running.address(), trusting(&authority, Some(&admin)));
    call(&channel).await.unwrap();
    health(&channel).await.unwrap();
    running.shutdown().await;
}

#[tokio::test]
async fn without_a_certificate_only_health_answers() {
    let authority = Authority::new("ours");
    let (demo, running) = start(&tls(&authority.server(), Some(authority.ca()))).await;
    let channel = dial(running.address(), trusting(&authority, None));
    health(&channel).await.unwrap();
    let error = call(&channel).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unauthenticated);
    assert!(error.message().contains("client certificate"), "{error}");
    assert!(demo.seen.deadline.lock().is_none(), "the handler ran");
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 401),
        ("/nothing", 401),
    ] {
        assert_eq!(
            get(running.address(), &authority, path).await,
            status,
            "{path}"
        );
    }
    let open = ServerSettings {
        metrics_auth: false,
        ..tls(&authority.server(), Some(authority.ca()))
    };
    let (_demo, running) = start(&open).await;
    assert_eq!(get(running.address(), &authority, "/metrics").await, 200);
}

#[tokio::test]
async fn a_certificate_that_names_nobody_is_nobodys() {
    let authority = Authority::new("ours");
    let (_demo, running) = start(&tls(&authority.server(), Some(authority.ca()))).await;
    let nameless = authority.write(&Wanted {
        names: vec!["somewhere"],
        ..Wanted::server("nameless")
    });
    let twice = authority.write(&Wanted {
        uris: vec![ADMIN, "spiffe://drover/viewer/test"],
        ..Wanted::server("twice")
    });
    for (pair, words) in [(nameless, "names nobody"), (twice, "several SPIFFE")] {
        let channel = dial(running.address(), trusting(&authority, Some(&pair)));
        let error = call(&channel).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unauthenticated);
        assert!(error.message().contains(words), "{error}");
    }
}

#[tokio::test]
async fn the_client_says_what_is_wrong_with_the_server() {
    let ours = Authority::new("ours");
    let others = Authority::new("others");
    let wanted = |file, valid| Wanted {
        valid,
        ..Wanted::server(file)
    };
    let elsewhere = Wanted {
        names: vec!["db.example.com"],
        ..Wanted::server("elsewhere")
    };
    let cases = [
        (
            ours.write(&wanted("old", (-2 * DAY, -DAY))),
            "it expired at 20",
        ),
        (
            ours.write(&wanted("young", (DAY, 2 * DAY))),
            "it is not valid before 20",
        ),
        (
            ours.write(&elsewhere),
            "it is for db.example.com and not for 127.0.0.1",
        ),
        (
            others.server(),
            "it is of an authority that is not trusted here",
        ),
    ];
    for (pair, words) in cases {
        let (_demo, running) = start(&tls(&pair, None)).await;
        let error = call(&dial(running.address(), trusting(&ours, None)))
            .await
            .unwrap_err();
        assert!(is_unreachable(&error), "{error}");
        let all = format!("the server's certificate is refused: {words}");
        assert!(error.message().contains(&all), "{error}");
    }
    // The right name, set by the client.
    let (_demo, running) = start(&tls(&ours.write(&elsewhere), None)).await;
    let named = ClientSettings {
        server_name: Some("db.example.com".to_owned()),
        ..trusting(&ours, None)
    };
    call(&dial(running.address(), named)).await.unwrap();
}

#[tokio::test]
async fn the_client_says_what_the_server_has_against_it() {
    refusals_of_clients().await;
}

/// The connection has a task of its own, which may be faster than the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_client_says_so_on_several_threads_too() {
    for _ in 0..20 {
        refusals_of_clients().await;
    }
}

async fn refusals_of_clients() {
    let ours = Authority::new("ours");
    let others = Authority::new("others");
    let (_demo, running) = start(&tls(&ours.server(), Some(ours.ca()))).await;
    let wanted = |file, valid| Wanted {
        valid,
        ..Wanted::client(file, ADMIN)
    };
    let cases = [
        (
            ours.write(&wanted("old", (-2 * DAY, -DAY))),
            "it expired at 20",
        ),
        (
            ours.write(&wanted("young", (DAY, 2 * DAY))),
            "it is not valid before 20",
        ),
        (
            others.client("stranger", ADMIN),
            "it is of an authority that the server does not trust",
        ),
    ];
    for (pair, words) in cases {
        let error = call(&dial(running.address(), trusting(&ours, Some(&pair))))
            .await
            .unwrap_err();
        assert!(is_unreachable(&error), "{error}");
        let all = format!("the server refuses the client's certificate: {words}");
        assert!(error.message().contains(&all), "{error}");
    }
}

#[tokio::test]
async fn the_wrong_protocol_is_named_on_both_ways() {
    let authority = Authority::new("ours");
    let (_demo, running) = start(&tls(&authority.server(), None)).await;
    let plain = connect(&format!("http://{}", running.address()).parse().unwrap());
    let error = call(&plain).await.unwrap_err();
    assert!(error.message().contains("https://"), "{error}");

    let (_demo, running) = start(&ServerSettings::default()).await;
    let error = call(&dial(running.address(), trusting(&authority, None)))
        .await
        .unwrap_err();
    assert!(error.message().contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn a_plain_request_to_a_tls_port_is_told_so() {
    let authority = Authority::new("ours");
    let (_demo, running) = start(&tls(&authority.server(), None)).await;
    let (status, body) = common::get(&running, "/healthz").await;
    assert_eq!(status, 400);
    assert!(body.contains("https://"), "{body}");
}

#[tokio::test]
async fn a_changed_certificate_is_used_and_connections_stay() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let pair = old.server();
    let (demo, running) = start(&tls(&pair, None)).await;
    let before = dial(running.address(), trusting(&old, None));
    let mut open = NodeAccessServiceClient::new(before.clone())
        .stream_logs(follow("open"))
        .await
        .unwrap()
        .into_inner();
    open.next().await.unwrap().unwrap();

    let (cert, key) = new.make(&Wanted::server("server"));
    replace(&pair.key, &key);
    replace(&pair.cert, &cert);
    eventually("the new certificate is shown", async || {
        call(&dial(running.address(), trusting(&new, None)))
            .await
            .is_ok()
    })
    .await;
    let error = call(&dial(running.address(), trusting(&old, None)))
        .await
        .unwrap_err();
    assert!(error.message().contains("not trusted"), "{error}");
    // The old connection is still open.
    call(&before).await.unwrap();
    assert_eq!(demo.seen.running(), 1);
    drop(open);
}

#[tokio::test]
async fn a_client_shows_its_certificate_as_it_is_when_it_connects() {
    let ours = Authority::new("ours");
    let others = Authority::new("others");
    let (_demo, running) = start(&tls(&ours.server(), Some(ours.ca()))).await;
    let own = others.client("own", ADMIN);
    let channel = dial(running.address(), trusting(&ours, Some(&own)));
    assert!(is_unreachable(&call(&channel).await.unwrap_err()));
    let (cert, key) = ours.make(&Wanted::client("own", ADMIN));
    replace(&own.key, &key);
    replace(&own.cert, &cert);
    // The same channel, with its next connection.
    call(&channel).await.unwrap();
}

#[tokio::test]
async fn a_connection_ends_when_its_client_certificate_expires() {
    let ours = Authority::new("ours");
    let (demo, running) = start(&tls(&ours.server(), Some(ours.ca()))).await;
    let own = ours.write(&Wanted {
        valid: (-DAY, 6),
        ..Wanted::client("own", ADMIN)
    });
    let channel = dial(running.address(), trusting(&ours, Some(&own)));
    call(&channel).await.unwrap();
    let mut open = NodeAccessServiceClient::new(channel.clone())
        .stream_logs(follow("open"))
        .await
        .unwrap()
        .into_inner();
    open.message().await.unwrap().unwrap();
    let mut hosts = InventoryServiceClient::new(channel.clone());
    let under_way = tokio::spawn(async move { hosts.list_hosts(ask("wait")).await });
    eventually("a call is under way", async || demo.seen.running() == 2).await;
    // A connection that neither sends nor responds to anything.
    let shown = drover_tls::Client::new(trusting(&ours, Some(&own)));
    let stream = TcpStream::connect(running.address()).await.unwrap();
    let mut silent = tokio_rustls::TlsConnector::from(shown.config().unwrap().config.clone())
        .connect("127.0.0.1".try_into().unwrap(), stream)
        .await
        .unwrap();
    silent
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();

    let status = tokio::time::timeout(PATIENCE, open.message())
        .await
        .expect("the stream goes on")
        .unwrap_err();
    assert_eq!(to_error(&status).reason(), Reason::Unavailable);
    assert!(
        status.message().contains("certificate has expired"),
        "{status}"
    );
    demo.gate.add_permits(1);
    under_way.await.unwrap().unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut rest)).await;
    // Closed or reset, but ended.
    let _ = ended.expect("the connection stays");
    eventually("calls need another certificate", async || {
        call(&channel).await.is_err_and(|error| {
            let words = "the server refuses the client's certificate: it expired at 20";
            error.message().contains(words)
        })
    })
    .await;

    // The same channel, with the current files.
    let (cert, key) = ours.make(&Wanted::client("own", ADMIN));
    replace(&own.key, &key);
    replace(&own.cert, &cert);
    eventually("a new certificate is shown", async || {
        call(&channel).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_read_keeps_the_server_from_starting_and_is_named() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let good = ours.server();
    let refused = async |settings: ServerSettings| match listen(&settings).await {
        Err(error @ StartError::Tls(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let missing = Pair {
        cert: ours.path("missing.pem"),
        ..good.clone()
    };
    let words = refused(tls(&missing, None)).await;
    assert!(words.contains("missing.pem"), "{words}");
    let crossed = Pair {
        cert: good.cert.clone(),
        ..others.server()
    };
    let words = refused(tls(&crossed, None)).await;
    assert!(words.contains("is not the key of"), "{words}");
    let swapped = Pair {
        cert: good.key.clone(),
        key: good.cert.clone(),
        ..good.clone()
    };
    let words = refused(tls(&swapped, None)).await;
    assert!(words.contains("holds no certificate"), "{words}");
    replace(&ours.path("empty.pem"), "");
    let words = refused(tls(&good, Some(ours.path("empty.pem")))).await;
    assert!(
        words.contains("authorities of clients") && words.contains("empty.pem"),
        "{words}"
    );
    // The client's errors about its own files.
    let target: Target = "https://127.0.0.1:1".parse().unwrap();
    let error = target
        .with_tls(trusting(&ours, Some(&missing)))
        .unwrap_err();
    assert!(error.message().contains("missing.pem"), "{error}");
}

#[tokio::test]
async fn off_loopback_clients_have_to_say_who_they_are() {
    let ours = Authority::new("ours");
    let off = |settings: ServerSettings| ServerSettings {
        listen: "0.0.0.0:0".parse().unwrap(),
        ..settings
    };
    assert!(matches!(
        listen(&off(ServerSettings::default())).await,
        Err(StartError::Plaintext { .. })
    ));
    assert!(matches!(
        listen(&off(tls(&ours.server(), None))).await,
        Err(StartError::Anonymous { .. })
    ));
    listen(&off(tls(&ours.server(), Some(ours.ca()))))
        .await
        .unwrap();
    let allowed = ServerSettings {
        insecure: true,
        ..off(ServerSettings::default())
    };
    listen(&allowed).await.unwrap();
}

#[tokio::test]
async fn who_does_not_shake_hands_loses_its_place() {
    let ours = Authority::new("ours");
    let settings = ServerSettings {
        max_connections: 2,
        ..tls(&ours.server(), None)
    };
    let (_demo, running) = start(&settings).await;
    let mut idle = Vec::new();
    for beginning in [&b""[..], &[0x16, 0x03, 0x01]] {
        let mut stream = TcpStream::connect(running.address()).await.unwrap();
        stream.write_all(beginning).await.unwrap();
        idle.push(stream);
    }
    for mut stream in idle {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(9), stream.read_to_end(&mut rest));
        // Closed or reset, but ended.
        let _ = ended.await.expect("still open");
    }
    call(&dial(running.address(), trusting(&ours, None)))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_crowd_of_silent_clients_keeps_nobody_out() {
    let ours = Authority::new("ours");
    let settings = ServerSettings {
        max_connections: 4,
        ..tls(&ours.server(), None)
    };
    let (_demo, running) = start(&settings).await;
    let mut crowd = Vec::new();
    for _ in 0..50 {
        crowd.push(TcpStream::connect(running.address()).await.unwrap());
    }
    // Well before the silent connections time out.
    let channel = dial(running.address(), trusting(&ours, None));
    let answer = tokio::time::timeout(Duration::from_secs(3), call(&channel));
    answer.await.unwrap().unwrap();
}

#[tokio::test]
async fn handshakes_that_are_refused_are_audited_and_a_flood_of_them_is_not() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let log = ours.path("audit.jsonl");
    let settings = ServerSettings {
        audit_log: Some(log.clone()),
        ..tls(&ours.server(), Some(ours.ca()))
    };
    let (_demo, running) = start(&settings).await;
    let expired = ours.write(&Wanted {
        valid: (-2 * DAY, -DAY),
        ..Wanted::client("expired", "spiffe://drover/admin/late")
    });
    let stranger = theirs.client("stranger", "spiffe://drover/admin/stranger");
    for own in [&expired, &stranger] {
        let channel = dial(running.address(), trusting(&ours, Some(own)));
        call(&channel).await.unwrap_err();
    }
    // Without a certificate the handshake succeeds, and the call fails.
    call(&dial(running.address(), trusting(&ours, None)))
        .await
        .unwrap_err();
    for _ in 0..300 {
        let mut plain = TcpStream::connect(running.address()).await.unwrap();
        plain.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = plain.read_to_end(&mut answer).await;
    }
    running.shutdown().await;
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |code: &str, why: &str| {
        let found = lines.iter().find(|line| {
            let said = line["why"].as_str().unwrap_or_default();
            line["code"] == code && said.contains(why)
        });
        found.unwrap_or_else(|| panic!("no {code} {why} in {text}"))
    };
    for line in [
        of("client_certificate", "expired"),
        of("client_certificate", "authority"),
        of("UNAUTHENTICATED", ""),
    ] {
        let (who, denied) = (&line["who"], &line["denied"]);
        assert_eq!((who, denied), (&"anonymous".into(), &true.into()));
        let peer = line["peer"].as_str().unwrap();
        assert!(peer.starts_with("127.0.0.1:"), "{line}");
    }
    assert_eq!(of("client_certificate", "expired")["what"], "TLS handshake");
    let floods = lines
        .iter()
        .filter(|line| line["code"] == "not_tls")
        .count();
    assert!((50..200).contains(&floods), "{floods} of 300 are written");
}
