//! A platform that is called over mutual TLS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{path::Path, time::Duration};

use drover_client::in_process;
use drover_orchestrator::{Orchestrator, PlatformTlsSettings, Settings};
use drover_platform_cloud::{
    PlatformServer, Settings as PlatformSettings, drivers::simulated::SimulatedSettings,
};
use drover_proto::orchestrator::v1::{
    self as pb, platform_registry_service_client::PlatformRegistryServiceClient,
    secret_service_client::SecretServiceClient, secret_value::Value,
};
use drover_server::{Running, ServerSettings, Shutdown, settings::TlsSettings};
use drover_testing::certs::{Authority, Pair, Wanted};

/// Maximum wait for a condition.
const PATIENCE: Duration = Duration::from_secs(30);

async fn platform(pair: &Pair, authority: &Authority) -> (PlatformServer, Running) {
    let platform = PlatformServer::open(PlatformSettings::from(SimulatedSettings::default()))
        .await
        .unwrap();
    let settings = ServerSettings {
        tls: TlsSettings {
            cert: Some(pair.cert.clone()),
            key: Some(pair.key.clone()),
            client_ca: Some(authority.ca()),
            ..TlsSettings::default()
        },
        ..ServerSettings::default()
    };
    let listener = drover_server::listen(&settings).await.unwrap();
    let running =
        drover_server::spawn(platform.service(), listener, &settings, Shutdown::new()).unwrap();
    (platform, running)
}

async fn orchestrator(directory: &Path, own: Option<&Pair>) -> Orchestrator {
    let settings = Settings {
        data_dir: directory.to_owned(),
        platform_tls: PlatformTlsSettings {
            ca: None,
            cert: own.map(|own| own.cert.clone()),
            key: own.map(|own| own.key.clone()),
            ..PlatformTlsSettings::default()
        },
        ..Settings::default()
    };
    Orchestrator::open(&settings).await.unwrap()
}

fn registration(endpoint: String, tls: pb::PlatformTls) -> pb::RegisterPlatformRequest {
    pb::RegisterPlatformRequest {
        platform: Some(pb::Platform {
            name: "sim".into(),
            spec: Some(pb::PlatformSpec {
                endpoint,
                tls: Some(tls),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_platform_is_reached_over_mutual_tls() {
    let authority = Authority::new("ours");
    let named = authority.write(&Wanted {
        names: vec!["platform.test"],
        ..Wanted::server("platform")
    });
    let own = authority.client("own", "spiffe://drover/orchestrator/test");
    let (platform, running) = platform(&named, &authority).await;
    let directory = tempfile::tempdir().unwrap();
    let orchestrator = orchestrator(directory.path(), Some(&own)).await;
    let mut client = PlatformRegistryServiceClient::new(in_process(orchestrator.routes()));
    let endpoint = format!("https://{}", running.address());

    let tls = pb::PlatformTls {
        ca_pem: authority.pem.clone(),
        ..Default::default()
    };
    let answer = client
        .register_platform(registration(endpoint.clone(), tls.clone()))
        .await
        .unwrap()
        .into_inner();
    // Its certificate is for another name.
    let warning = answer.warnings.concat();
    assert!(
        warning.contains("it is for platform.test and not for 127.0.0.1"),
        "{warning}"
    );

    let tls = pb::PlatformTls {
        server_name: "platform.test".into(),
        ..tls
    };
    let answer = client
        .register_platform(registration(endpoint, tls))
        .await
        .unwrap()
        .into_inner();
    assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    let ready = async {
        loop {
            let request = pb::GetPlatformRequest {
                name: "sim".into(),
                ..Default::default()
            };
            let shown = client.get_platform(request).await.unwrap().into_inner();
            let status = shown.platform.unwrap().status.unwrap();
            if status.phase() == pb::PlatformPhase::Ready {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.unwrap();
    orchestrator.shutdown().await;
    platform.shutdown().await;
    running.shutdown().await;
}

#[tokio::test]
async fn a_server_whose_certificate_says_another_role_is_no_platform() {
    let authority = Authority::new("ours");
    let false_one = authority.write(&Wanted {
        uris: vec!["spiffe://drover/orchestrator/other"],
        ..Wanted::server("other")
    });
    let own = authority.client("own", "spiffe://drover/orchestrator/test");
    let (platform, running) = platform(&false_one, &authority).await;
    let directory = tempfile::tempdir().unwrap();
    let orchestrator = orchestrator(directory.path(), Some(&own)).await;
    let mut client = PlatformRegistryServiceClient::new(in_process(orchestrator.routes()));
    let tls = pb::PlatformTls {
        ca_pem: authority.pem.clone(),
        ..Default::default()
    };
    let endpoint = format!("https://{}", running.address());
    let answer = client
        .register_platform(registration(endpoint, tls))
        .await
        .unwrap()
        .into_inner();
    let warning = answer.warnings.concat();
    let words = "it is that of spiffe://drover/orchestrator/other, and \
                 spiffe://drover/platform/NAME was expected";
    assert!(warning.contains(words), "{warning}");
    orchestrator.shutdown().await;
    platform.shutdown().await;
    running.shutdown().await;
}

#[tokio::test]
async fn without_a_certificate_of_its_own_the_orchestrator_is_told_why_not() {
    let authority = Authority::new("ours");
    let (_platform, running) = platform(&authority.server(), &authority).await;
    let directory = tempfile::tempdir().unwrap();
    let orchestrator = orchestrator(directory.path(), None).await;
    let mut client = PlatformRegistryServiceClient::new(in_process(orchestrator.routes()));
    let tls = pb::PlatformTls {
        ca_pem: authority.pem.clone(),
        ..Default::default()
    };
    let answer = client
        .register_platform(registration(format!("https://{}", running.address()), tls))
        .await
        .unwrap()
        .into_inner();
    let warning = answer.warnings.concat();
    assert!(
        warning.contains("a client certificate (--cert and --key)"),
        "{warning}"
    );
    orchestrator.shutdown().await;
}

#[tokio::test]
async fn an_own_certificate_that_cannot_be_read_keeps_the_orchestrator_from_starting() {
    let authority = Authority::new("ours");
    let own = authority.client("own", "spiffe://drover/orchestrator/test");
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings {
        data_dir: directory.path().to_owned(),
        platform_tls: PlatformTlsSettings {
            cert: Some(own.cert),
            key: Some(authority.path("gone.key")),
            ..Default::default()
        },
        ..Settings::default()
    };
    let error = Orchestrator::open(&settings).await.unwrap_err();
    assert!(error.message().contains("gone.key"), "{error}");
}

#[tokio::test]
async fn a_platform_is_shown_the_certificate_of_a_secret_and_its_next_one_without_a_restart() {
    let (authority, strange) = (Authority::new("ours"), Authority::new("strange"));
    let (platform, running) = platform(&authority.server(), &authority).await;
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys");
    std::fs::write(&keys, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n").unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&keys, private).unwrap();
    let mut settings = Settings {
        data_dir: directory.path().join("store"),
        ..Settings::default()
    };
    settings.secrets.key_file = Some(keys);
    let orchestrator = Orchestrator::open(&settings).await.unwrap();
    let mut secrets = SecretServiceClient::new(in_process(orchestrator.routes()));
    let mut put = async |authority: &Authority| {
        let wanted = Wanted::client("own", "spiffe://drover/orchestrator/test");
        let (cert, key) = authority.make(&wanted);
        let text = |text| pb::SecretValue {
            value: Some(Value::Text(text)),
        };
        let request = pb::ApplySecretRequest {
            name: "own".into(),
            data: [
                ("tls.crt".into(), text(cert)),
                ("tls.key".into(), text(key)),
            ]
            .into(),
            purpose: pb::SecretPurpose::Platform.into(),
            ..Default::default()
        };
        secrets.apply_secret(request).await.unwrap();
    };
    put(&authority).await;
    let mut client = PlatformRegistryServiceClient::new(in_process(orchestrator.routes()));
    let tls = pb::PlatformTls {
        ca_pem: authority.pem.clone(),
        client_certificate_secret: "own".into(),
        ..Default::default()
    };
    let request = registration(format!("https://{}", running.address()), tls);
    let answer = client
        .register_platform(request)
        .await
        .unwrap()
        .into_inner();
    assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    let mut until = async |phase: pb::PlatformPhase, words: &str| {
        let reached = async {
            loop {
                let request = pb::GetPlatformRequest {
                    name: "sim".into(),
                    ..Default::default()
                };
                let shown = client.get_platform(request).await.unwrap().into_inner();
                let status = shown.platform.unwrap().status.unwrap();
                if status.phase() == phase && status.message.contains(words) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect(words);
    };
    until(pb::PlatformPhase::Ready, "").await;
    put(&strange).await;
    let refused = "the server refuses the client's certificate";
    until(pb::PlatformPhase::Unreachable, refused).await;
    put(&authority).await;
    until(pb::PlatformPhase::Ready, "").await;
    orchestrator.shutdown().await;
    platform.shutdown().await;
    running.shutdown().await;
}
