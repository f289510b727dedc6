//! Who is let in by certificate, by token and by a provider's token, and rules that change.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

#[path = "common/certs.rs"]
mod certs;
mod common;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use certs::{Authority, Pair, Wanted, replace};
use common::{Demo, ask, eventually, follow, service};
use drover_client::{Authorities, Bearer, ClientSettings, Target, connect, to_error};
use drover_core::{Error, Reason};
use drover_proto::platform::v1::{
    inventory_service_client::InventoryServiceClient,
    node_access_service_client::NodeAccessServiceClient,
};
use drover_server::{
    Running, ServerSettings, Shutdown, StartError, listen, settings::TlsSettings, spawn,
};
use parking_lot::Mutex;
use ring::{
    rand::SystemRandom,
    rsa::PublicKeyComponents,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

async fn start(settings: &ServerSettings) -> Running {
    let demo = Demo::default();
    let listener = listen(settings).await.unwrap();
    let service = service(&demo).route("/discover", axum::routing::get(async || "here\n"));
    spawn(service, listener, settings, Shutdown::new()).unwrap()
}

/// A server with this access file.
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

async fn http(address: SocketAddr, path: &str, token: Option<&str>) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let token = token
        .map(|token| format!("authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn secure(authority: &Authority, access: Option<PathBuf>) -> ServerSettings {
    let server = authority.server();
    ServerSettings {
        tls: TlsSettings {
            cert: Some(server.cert),
            key: Some(server.key),
            client_ca: Some(authority.ca()),
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
            certificate: Some((own.cert.clone(), own.key.clone())),
            server_name: None,
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
        // Who is called need not call.
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
    // With rules, claims count for nothing.
    let admin = authority.client("admin", "spiffe://drover/admin/a");
    let error = call(&by(&authority, running.address(), &admin))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
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
    // The binding is still there, but the token is not.
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

#[tokio::test]
async fn an_audit_log_that_is_moved_away_goes_on_in_a_new_file() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let rules = directory.path().join("access.yaml");
    replace(&rules, TOKENS);
    let settings = ServerSettings {
        access: Some(rules),
        audit_log: Some(log.clone()),
        audit_reads: true,
        ..ServerSettings::default()
    };
    let running = start(&settings).await;
    let target = at(running.address(), "platform-0123456789");
    let lines = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
    call(&target).await.unwrap();
    eventually("a line", async || lines() == 1).await;
    let old = directory.path().join("audit.jsonl.1");
    std::fs::rename(&log, &old).unwrap();
    eventually("a line in the new file", async || {
        call(&target).await.unwrap();
        lines() > 0
    })
    .await;
    assert_eq!(http(running.address(), "/discover", None).await, 401);
    eventually("the refusal", async || {
        std::fs::read_to_string(&log)
            .unwrap()
            .contains("\"GET /discover\"")
    })
    .await;
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&log).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_stream_that_changes_something_is_written_down_when_it_begins_and_when_it_ends() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("audit.jsonl");
    let rules = directory.path().join("access.yaml");
    replace(&rules, TOKENS);
    let settings = ServerSettings {
        access: Some(rules),
        audit_log: Some(log.clone()),
        ..ServerSettings::default()
    };
    let running = start(&settings).await;
    let channel = connect(&at(running.address(), "platform-0123456789"));
    let mut client = NodeAccessServiceClient::new(channel);
    let logs = client.stream_logs(follow("open")).await.unwrap();
    // As long as there may be more input, the call goes on.
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let input = futures::StreamExt::take_until(futures::stream::pending(), ended);
    let exec = client.exec(input).await.unwrap();
    let codes = || {
        let text = std::fs::read_to_string(&log).unwrap();
        let code = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            (line["what"].clone(), line["code"].clone())
        };
        text.lines().map(code).collect::<Vec<_>>()
    };
    let what = json!("drover.platform.v1.NodeAccessService/Exec");
    let begun = (what.clone(), json!("STARTED"));
    eventually("its beginning", async || codes() == [begun.clone()]).await;
    drop((logs, exec, end));
    let ended = (what, json!("CANCELLED"));
    eventually("its end", async || {
        codes() == [begun.clone(), ended.clone()]
    })
    .await;
}

/// A provider of identities.
struct Issuer {
    key: EcdsaKeyPair,
    id: String,
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn claims() -> Value {
    json!({"iss": "https://id.example.com", "aud": ["drover", "other"], "sub": "alice", "exp": now() + 600,
        "groups": ["sre"]})
}

impl Issuer {
    fn new(id: &str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self {
            key: EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap(),
            id: id.to_owned(),
        }
    }

    fn jwk(&self) -> Value {
        let point = self.key.public_key().as_ref();
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id,
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..])})
    }

    fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed.as_bytes())
            .unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(
            &json!({"alg": "ES256", "kid": self.id, "typ": "JWT"}),
            claims,
        )
    }
}

fn rules_of(jwks: &str) -> String {
    format!(
        "oidc: {{issuer: 'https://id.example.com', audience: drover, jwks: '{jwks}'}}
bindings:
  - {{role: platform, subjects: ['oidc:alice', 'group:robots']}}
"
    )
}

/// A key as PKCS #1 in DER. `ring` makes none of this kind.
fn rsa_key() -> Vec<u8> {
    let made = std::process::Command::new("openssl")
        .args(["genpkey", "-quiet", "-algorithm", "RSA", "-outform", "DER"])
        .args(["-pkeyopt", "rsa_keygen_bits:2048"])
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
    made.stdout
}

#[tokio::test]
async fn a_providers_token_is_believed_if_all_of_it_holds() {
    let directory = TempDir::new().unwrap();
    let (issuer, stranger) = (Issuer::new("one"), Issuer::new("one"));
    let rsa = RsaKeyPair::from_der(&rsa_key()).unwrap();
    let public: PublicKeyComponents<Vec<u8>> = rsa.public().into();
    let jwks = directory.path().join("jwks.json");
    let rsa_jwk = json!({"kty": "RSA", "kid": "rsa", "alg": "RS256",
        "n": URL_SAFE_NO_PAD.encode(&public.n), "e": URL_SAFE_NO_PAD.encode(&public.e)});
    let unknown = json!({"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": "AA"});
    replace(
        &jwks,
        &json!({"keys": [issuer.jwk(), rsa_jwk, unknown]}).to_string(),
    );
    let running = with_rules(&directory, &rules_of(jwks.to_str().unwrap())).await;
    let address = running.address();

    call(&at(address, &issuer.sign(&claims()))).await.unwrap();
    let signed = format!(
        "{}.{}",
        part(&json!({"alg": "RS256", "kid": "rsa"})),
        part(&claims())
    );
    let mut signature = vec![0; rsa.public().modulus_len()];
    rsa.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        signed.as_bytes(),
        &mut signature,
    )
    .unwrap();
    let by_rsa = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(&signature));
    call(&at(address, &by_rsa)).await.unwrap();
    // A member of a group that is bound.
    let mut robot = claims();
    robot["sub"] = json!("r2");
    robot["groups"] = json!(["robots"]);
    call(&at(address, &issuer.sign(&robot))).await.unwrap();
    // Known, and nobody here.
    robot["groups"] = json!([]);
    let error = call(&at(address, &issuer.sign(&robot))).await.unwrap_err();
    assert_eq!(error.reason(), Reason::PermissionDenied);
    assert!(error.message().contains("oidc:r2 has no role"), "{error}");

    let changed = |key: &str, value: Value| {
        let mut claims = claims();
        claims[key] = value;
        issuer.sign(&claims)
    };
    let good = issuer.sign(&claims());
    let pieces: Vec<&str> = good.split('.').collect();
    let mut other = claims();
    other["sub"] = json!("admin");
    let wrong = [
        ("issuer", changed("iss", json!("https://evil.example.com"))),
        ("audience", changed("aud", json!("other"))),
        ("audience", changed("aud", Value::Null)),
        ("expired", changed("exp", json!(now() - 60))),
        ("never expires", changed("exp", Value::Null)),
        ("not valid yet", changed("nbf", json!(now() + 600))),
        ("claim \"sub\"", changed("sub", json!(""))),
        ("claim \"sub\"", changed("sub", json!(7))),
        ("signature is wrong", stranger.sign(&claims())),
        (
            "signature is wrong",
            format!("{}.{}.{}", pieces[0], part(&other), pieces[2]),
        ),
        (
            "neither with RS256",
            format!("{}.{}.", part(&json!({"alg": "none"})), part(&claims())),
        ),
        (
            "neither with RS256",
            issuer.sign_with(&json!({"alg": "HS256", "kid": "one"}), &claims()),
        ),
        (
            "none of the provider's",
            issuer.sign_with(&json!({"alg": "RS256", "kid": "one"}), &claims()),
        ),
        (
            "demands",
            issuer.sign_with(
                &json!({"alg": "ES256", "kid": "one", "crit": ["b64"]}),
                &claims(),
            ),
        ),
        ("nor a JWT", "neither-0123456789".to_owned()),
        ("header", "a.b.c".to_owned()),
    ];
    for (words, token) in wrong {
        let error = call(&at(address, &token)).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Unauthenticated, "{words}: {error}");
        assert!(error.message().contains(words), "{words}: {error}");
    }
}

#[tokio::test]
async fn keys_are_fetched_once_and_again_when_they_are_rotated() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let served = Arc::new(Mutex::new((json!({"keys": [old.jwk()]}), 0)));
    let answers = served.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = listener.local_addr().unwrap();
    let router = axum::Router::new().route(
        "/keys",
        axum::routing::get(async move || {
            let mut answers = answers.lock();
            answers.1 += 1;
            answers.0.to_string()
        }),
    );
    let task = tokio::spawn(async move { axum::serve(listener, router).await });
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, &rules_of(&format!("http://{provider}/keys"))).await;
    let address = running.address();
    for _ in 0..10 {
        call(&at(address, &old.sign(&claims()))).await.unwrap();
    }
    assert_eq!(served.lock().1, 1);

    // Made-up keys do not become a flood at the provider.
    for _ in 0..10 {
        assert!(call(&at(address, &new.sign(&claims()))).await.is_err());
    }
    assert_eq!(served.lock().1, 1);
    served.lock().0 = json!({"keys": [new.jwk()]});
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    call(&at(address, &new.sign(&claims()))).await.unwrap();
    assert_eq!(served.lock().1, 2);
    let error = call(&at(address, &old.sign(&claims()))).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Unauthenticated);

    // Without the provider the last keys hold.
    task.abort();
    let _ = task.await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11 * 60)).await;
    tokio::time::resume();
    call(&at(address, &new.sign(&claims()))).await.unwrap();
}

#[tokio::test]
async fn a_provider_that_cannot_be_reached_is_no_reason_to_let_anybody_in() {
    let directory = TempDir::new().unwrap();
    let running = with_rules(&directory, &rules_of("http://127.0.0.1:1/keys")).await;
    let error = call(&at(running.address(), &Issuer::new("a").sign(&claims())))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::Unavailable);
    for jwks in ["http://id.example.com/keys", "ftp://127.0.0.1/keys"] {
        replace(&directory.path().join("wrong.yaml"), &rules_of(jwks));
        let settings = ServerSettings {
            access: Some(directory.path().join("wrong.yaml")),
            ..ServerSettings::default()
        };
        let error = listen(&settings).await.unwrap_err();
        assert!(
            error.to_string().contains("expected a file or https"),
            "{error}"
        );
    }
}
