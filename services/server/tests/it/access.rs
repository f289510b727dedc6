//! Authentication by certificate, static token and OIDC token, and changes of rules.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use crate::common;
mod audit;
mod held;
mod provider;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use common::{Demo, ask, eventually, follow, service};
use drover_client::{Authorities, Bearer, ClientSettings, Target, connect, to_error};
use drover_core::{Error, Reason};
use drover_proto::platform::v1::{
    inventory_service_client::InventoryServiceClient,
    node_access_service_client::NodeAccessServiceClient,
};
use drover_server::{
    Role, Running, ServerSettings, Shutdown, StartError, listen, settings::TlsSettings, spawn,
};
use drover_testing::certs::{Authority, Pair, Wanted, replace};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

async fn start(settings: &ServerSettings) -> Running {
    let demo = Demo::default();
    let listener = listen(settings).await.unwrap();
    let service = service(&demo).route("/discover", axum::routing::get(async || "here\n"));
    spawn(service, listener, settings, Shutdown::new()).unwrap()
}

/// Starts a server with this access file.
async fn with_rules(directory: &TempDir, rules: &str) -> Running {
    let path = directory.path().join("access.yaml");
    replace(&path, rules);
    let settings = ServerSettings {
        access: Some(path),
        ..ServerSettings::default()
    };
    start(&settings).await
}

async fn call(target: &Target) -> Result<(), Error> {
    InventoryServiceClient::new(connect(target))
        .list_hosts(ask(""))
        .await
        .map(drop)
        .map_err(|status| to_error(&status))
}

fn at(address: SocketAddr, token: &str) -> Target {
    let target: Target = format!("http://{address}").parse().unwrap();
    target.with_bearer(Bearer::Token(token.to_owned()))
}

/// Sends an HTTP/1 request and returns the status.
async fn http(address: SocketAddr, path: &str, token: Option<&str>) -> u16 {
    http_text(address, path, token).await.0
}

/// Sends an HTTP/1 request and returns the status and the whole response.
async fn http_text(address: SocketAddr, path: &str, token: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let token = token
        .map(|token| format!("authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

fn secure(authority: &Authority, access: Option<PathBuf>) -> ServerSettings {
    let server = authority.server();
    ServerSettings {
        tls: TlsSettings {
            cert: Some(server.cert),
            key: Some(server.key),
            client_ca: Some(authority.ca()),
            ..TlsSettings::default()
        },
        access,
        ..ServerSettings::default()
    }
}

fn by(authority: &Authority, address: SocketAddr, own: &Pair) -> Target {
    let target: Target = format!("https://{address}").parse().unwrap();
    target
        .with_tls(ClientSettings {
            authorities: Authorities::File(authority.ca()),
            certificate: Some((own.cert.clone(), own.key.clone()).into()),
            ..ClientSettings::default()
        })
        .unwrap()
}

#[tokio::test]
async fn without_rules_a_certificate_has_the_role_that_it_claims() {
    let authority = Authority::new("ours");
    let running = start(&secure(&authority, None)).await;
    for (file, uri, allowed) in [
        ("admin", "spiffe://drover/admin/a", true),
        ("orchestrator", "spiffe://drover/orchestrator/a", true),
        ("viewer", "spiffe://drover/viewer/a", false),
        ("operator", "spiffe://drover/operator/a", false),
        // Roles that are only called need not call.
        ("platform", "spiffe://drover/platform/a", false),
        ("agent", "spiffe://drover/agent/a", false),
        ("elsewhere", "spiffe://other/admin/a", false),
        ("short", "spiffe://drover/admin", false),
        ("longer", "spiffe://drover/admin/", false),
    ] {
        let pair = authority.client(file, uri);
        let answer = call(&by(&authority, running.address(), &pair)).await;
        let reason = answer.err().map(|error| error.reason());
        let wanted = (!allowed).then_some(Reason::PermissionDenied);
        assert_eq!(reason, wanted, "{uri}");
    }
    let plain = authority.write(&Wanted {
        common_name: Some("admin"),
        names: Vec::new(),
        ..Wanted::server("plain")
    });
    let error = call(&by(&authority, running.address(), &plain))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
    assert!(error.message().contains("cn:admin has no role"), "{error}");
}

#[tokio::test]
async fn rules_bind_certificates_by_uri_and_by_common_name() {
    let authority = Authority::new("ours");
    let rules = authority.path("access.yaml");
    replace(
        &rules,
        "bindings:\n  - {role: platform, subjects: ['spiffe://corp/*/deploy', 'cn:bob']}\n",
    );
    let running = start(&secure(&authority, Some(rules))).await;
    let deploy = authority.client("deploy", "spiffe://corp/ci/deploy");
    call(&by(&authority, running.address(), &deploy))
        .await
        .unwrap();
    for (name, allowed) in [("bob", true), ("alice", false), ("token:bob", false)] {
        let pair = authority.write(&Wanted {
            common_name: Some(name),
            names: Vec::new(),
            ..Wanted::server("named")
        });
        let answer = call(&by(&authority, running.address(), &pair)).await;
        assert_eq!(answer.is_ok(), allowed, "{name}: {answer:?}");
    }
    // With rules, claimed roles do not count.
    let admin = authority.client("admin", "spiffe://drover/admin/a");
    let error = call(&by(&authority, running.address(), &admin))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
}

#[tokio::test]
async fn whoever_is_denied_is_refused_whatever_is_granted_and_what_is_open_ends() {
    let authority = Authority::new("ours");
    let rules = authority.path("access.yaml");
    let granted = "
bindings:
  - {role: admin, subjects: ['spiffe://drover/admin/*', 'token:robot']}
tokens:
  - {name: robot, token: robot-0123456789abcdef}
";
    replace(&rules, granted);
    let running = start(&secure(&authority, Some(rules.clone()))).await;
    let ann = authority.client("ann", "spiffe://drover/admin/ann");
    let bob = authority.client("bob", "spiffe://drover/admin/bob");
    let [ann, bob] = [&ann, &bob].map(|own| by(&authority, running.address(), own));
    let robot = Bearer::Token("robot-0123456789abcdef".to_owned());
    let bob_as_robot = bob.clone().with_bearer(robot.clone());
    let ann_as_robot = ann.clone().with_bearer(robot);
    let open = async |target: &Target| {
        let mut client = NodeAccessServiceClient::new(connect(target));
        let mut stream = client
            .stream_logs(follow("open"))
            .await
            .unwrap()
            .into_inner();
        stream.message().await.unwrap().unwrap();
        stream
    };
    let mut kept = open(&ann).await;
    let ends = [open(&bob).await, open(&bob_as_robot).await];

    let denied = format!("{granted}deny:\n  - subjects: ['spiffe://drover/admin/bob']\n");
    replace(&rules, &denied);
    for mut stream in ends {
        let end = tokio::time::timeout(Duration::from_secs(15), stream.message()).await;
        let status = end.expect("it goes on").unwrap_err();
        assert!(
            status.message().contains("the access rules have changed"),
            "{status}"
        );
    }
    for denied in [&bob, &bob_as_robot] {
        let error = call(denied).await.unwrap_err();
        assert_eq!(error.reason(), Reason::PermissionDenied);
        let words = "spiffe://drover/admin/bob is denied by the access rules";
        assert!(error.message().contains(words), "{error}");
        // Health checks are open to everyone.
        HealthClient::new(connect(denied))
            .check(HealthCheckRequest::default())
            .await
            .unwrap();
    }
    for allowed in [&ann, &ann_as_robot] {
        call(allowed).await.unwrap();
    }
    let silence = tokio::time::timeout(Duration::from_millis(50), kept.message()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test]
async fn a_token_is_denied_like_a_certificate() {
    let directory = TempDir::new().unwrap();
    let rules = "
bindings:
  - {role: platform, subjects: ['*']}
deny:
  - subjects: ['token:ro*t']
tokens:
  - {name: robot, token: robot-0123456789abcdef}
  - {name: other, token: other-0123456789abcdef}
";
    let running = with_rules(&directory, rules).await;
    call(&at(running.address(), "other-0123456789abcdef"))
        .await
        .unwrap();
    let error = call(&at(running.address(), "robot-0123456789abcdef"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
    for (token, status) in [("other", 200), ("robot", 403)] {
        let token = format!("{token}-0123456789abcdef");
        assert_eq!(
            http(running.address(), "/discover", Some(&token)).await,
            status
        );
    }
}

const TOKENS: &str = "
tokens:
  - {name: platform, token: platform-0123456789}
  - {name: viewer, token: viewer-0123456789}
bindings:
  - {role: platform, subjects: ['token:platform']}
  - {role: viewer, subjects: ['token:viewer']}
";

#[tokio::test]
async fn a_token_says_who_calls_in_grpc_and_in_http() {
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, TOKENS).await;
    let address = running.address();
    call(&at(address, "platform-0123456789")).await.unwrap();
    for (token, reason) in [
        ("viewer-0123456789", Reason::PermissionDenied),
        ("made-up-0123456789", Reason::Unauthenticated),
    ] {
        let error = call(&at(address, token)).await.unwrap_err();
        assert_eq!(error.reason(), reason);
        assert!(!error.message().contains("0123456789"), "{error}");
    }
    let nobody: Target = format!("http://{address}").parse().unwrap();
    let error = call(&nobody).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unauthenticated);
    HealthClient::new(connect(&nobody))
        .check(HealthCheckRequest::default())
        .await
        .unwrap();
    for (path, token, status) in [
        ("/healthz", None, 200),
        ("/healthz", Some("made-up-0123456789"), 200),
        ("/metrics", None, 401),
        ("/metrics", Some("viewer-0123456789"), 200),
        ("/discover", None, 401),
        ("/discover", Some("viewer-0123456789"), 403),
        ("/discover", Some("platform-0123456789"), 200),
        ("/elsewhere", Some("platform-0123456789"), 403),
    ] {
        assert_eq!(http(address, path, token).await, status, "{path} {token:?}");
    }
}

#[tokio::test]
async fn metrics_are_for_those_who_look_at_all_clusters() {
    let directory = TempDir::new().unwrap();
    let mut tokens = String::new();
    let mut bindings = String::new();
    let scopes = ["clusters: ['orders*']", "labels: {team: shop}"];
    let roles = Role::ALL.map(|role| (role.to_string(), role, ""));
    let scoped = [("orders", scopes[0]), ("shop", scopes[1])]
        .map(|(name, scope)| (name.to_owned(), Role::Operator, scope));
    for (name, role, scope) in roles.into_iter().chain(scoped) {
        tokens += &format!("  - {{name: {name}, token: {name}-0123456789abcdef}}\n");
        bindings += &format!("  - {{role: {role}, subjects: ['token:{name}'], {scope}}}\n");
    }
    // A role without access to clusters does not widen the scope.
    bindings += "  - {role: platform, subjects: ['token:shop']}\n";
    let running = with_rules(
        &directory,
        &format!("tokens:\n{tokens}bindings:\n{bindings}"),
    )
    .await;
    for (name, status, words) in [
        ("viewer", 200, "drover_"),
        ("operator", 200, "drover_"),
        ("admin", 200, "drover_"),
        ("platform", 403, "needs viewer or operator or admin"),
        ("agent", 403, "needs viewer or operator or admin"),
        ("orders", 403, "for those who see all of them"),
        ("shop", 403, "for those who see all of them"),
    ] {
        let token = format!("{name}-0123456789abcdef");
        let answer = http_text(running.address(), "/metrics", Some(&token)).await;
        assert_eq!(answer.0, status, "{name}: {}", answer.1);
        assert!(answer.1.contains(words), "{name}: {}", answer.1);
    }
    // Where metrics are open, an authenticated caller sees no less.
    let open = ServerSettings {
        access: Some(directory.path().join("access.yaml")),
        metrics_auth: false,
        ..ServerSettings::default()
    };
    let running = start(&open).await;
    for token in [None, Some("orders-0123456789abcdef")] {
        assert_eq!(http(running.address(), "/metrics", token).await, 200);
    }
}

/// Formats the time in this many seconds as in the rules.
fn time(seconds: u64) -> String {
    let at = std::time::SystemTime::now() + Duration::from_secs(seconds);
    prost_types::Timestamp::from(at).to_string()
}

#[tokio::test]
async fn a_token_ends_when_it_expires_and_the_one_that_replaces_it_goes_on() {
    let directory = TempDir::new().unwrap();
    let rules = |end: &str| {
        format!(
            "
tokens:
  - {{name: platform, token: old-0123456789abcdef, expires: '{end}'}}
  - {{name: platform, token: new-0123456789abcdef}}
  - {{name: gone, token: gone-0123456789abcdef, expires: 2020-01-31T12:00:00Z}}
bindings:
  - {{role: platform, subjects: ['token:platform', 'token:gone']}}
"
        )
    };
    let running = with_rules(&directory, &rules(&time(3600))).await;
    let (old, new) = ("old-0123456789abcdef", "new-0123456789abcdef");
    for token in [old, new] {
        call(&at(running.address(), token)).await.unwrap();
    }
    let error = call(&at(running.address(), "gone-0123456789abcdef"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unauthenticated);
    assert!(error.message().contains("the token has expired"), "{error}");

    // Near its expiry, and open: a stream ends with its token, and only with that one.
    let soon = with_rules(&directory, &rules(&time(3))).await;
    let open = async |token: &str| {
        let mut client = NodeAccessServiceClient::new(connect(&at(soon.address(), token)));
        let mut stream = client
            .stream_logs(follow("open"))
            .await
            .unwrap()
            .into_inner();
        stream.message().await.unwrap().unwrap();
        stream
    };
    let mut kept = open(new).await;
    let mut ended = open(old).await;
    let status = tokio::time::timeout(Duration::from_secs(60), ended.message())
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        status.message().contains("the token has expired"),
        "{status}"
    );
    let error = call(&at(soon.address(), old)).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unauthenticated);
    call(&at(soon.address(), new)).await.unwrap();
    let silence = tokio::time::timeout(Duration::from_millis(50), kept.message()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test]
async fn a_token_file_is_read_again() {
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, TOKENS).await;
    let file = directory.path().join("token");
    replace(&file, "viewer-0123456789\n");
    let target: Target = format!("http://{}", running.address()).parse().unwrap();
    let target = target.with_bearer(Bearer::File(file.clone()));
    let channel = connect(&target);
    let call = async || {
        InventoryServiceClient::new(channel.clone())
            .list_hosts(ask(""))
            .await
            .map(drop)
            .map_err(|status| to_error(&status))
    };
    assert_eq!(call().await.unwrap_err().reason(), Reason::PermissionDenied);
    replace(&file, "platform-0123456789\n");
    eventually("the new token is sent", async || call().await.is_ok()).await;
    assert!(!format!("{target:?} {channel:?}").contains("0123456789"));
}

#[tokio::test]
async fn changed_rules_hold_without_a_restart() {
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, TOKENS).await;
    let path = directory.path().join("access.yaml");
    let viewer = at(running.address(), "viewer-0123456789");
    let platform = at(running.address(), "platform-0123456789");
    call(&platform).await.unwrap();
    let swapped = TOKENS
        .replace("['token:platform']", "['token:x']")
        .replace("role: viewer", "role: platform");
    replace(&path, &swapped);
    eventually("the viewer may", async || call(&viewer).await.is_ok()).await;
    let error = call(&platform).await.unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
}

#[tokio::test]
async fn a_stream_ends_when_who_opened_it_may_not_any_more_and_others_go_on() {
    let directory = TempDir::new().unwrap();
    let more = TOKENS.replace(
        "bindings:",
        "  - {name: other, token: other-0123456789}\nbindings:\n  - {role: platform, subjects: ['token:other']}",
    );
    let running = with_rules(&directory, &more).await;
    let open = async |token: &str| {
        let mut client = NodeAccessServiceClient::new(connect(&at(running.address(), token)));
        let mut stream = client
            .stream_logs(follow("open"))
            .await
            .unwrap()
            .into_inner();
        stream.message().await.unwrap().unwrap();
        stream
    };
    let mut kept = open("platform-0123456789").await;
    let mut ended = open("other-0123456789").await;
    // The binding still exists, but the token does not.
    let fewer = more.replace("other-0123456789}", "another-0123456789}");
    replace(&directory.path().join("access.yaml"), &fewer);
    let status = tokio::time::timeout(Duration::from_secs(10), ended.message())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(to_error(&status).reason(), Reason::Unavailable);
    assert!(status.message().contains("rules have changed"), "{status}");
    let error = call(&at(running.address(), "other-0123456789"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unauthenticated);
    let silence = tokio::time::timeout(Duration::from_millis(50), kept.message()).await;
    assert!(silence.is_err(), "{silence:?}");
}

#[tokio::test]
async fn rules_that_cannot_be_used_keep_the_server_from_starting() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("access.yaml");
    let settings = ServerSettings {
        access: Some(path.clone()),
        ..ServerSettings::default()
    };
    let refused = async || match listen(&settings).await {
        Err(error @ StartError::Access(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused().await.contains("access.yaml"));
    replace(&path, "bindings:\n  - role: viewer\n    subject: [a]\n");
    let words = refused().await;
    assert!(
        words.contains("line 3") && words.contains("subject"),
        "{words}"
    );
    let audit = ServerSettings {
        audit_log: Some(directory.path().join("nowhere").join("audit.jsonl")),
        ..ServerSettings::default()
    };
    let listener = listen(&audit).await.unwrap();
    let error = spawn(service(&Demo::default()), listener, &audit, Shutdown::new()).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}
