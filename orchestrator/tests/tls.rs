//! A platform that is called over mutual TLS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

#[path = "../../services/server/tests/common/certs.rs"]
mod certs;

use std::{path::Path, time::Duration};

use certs::{Authority, Pair, Wanted};
use drover_client::in_process;
use drover_orchestrator::{Orchestrator, PlatformTlsSettings, Settings};
use drover_platform_cloud::{
    PlatformServer, Settings as PlatformSettings, drivers::simulated::SimulatedSettings,
};
use drover_proto::orchestrator::v1::{
    self as pb, platform_registry_service_client::PlatformRegistryServiceClient,
};
use drover_server::{Running, ServerSettings, Shutdown, settings::TlsSettings};

/// Time that a condition may take.
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
        },
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
    };
    let error = Orchestrator::open(&settings).await.unwrap_err();
    assert!(error.message().contains("gone.key"), "{error}");
}
