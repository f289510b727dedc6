//! The command line with an orchestrator over mutual TLS, using the certificates that it creates itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{path::Path, process::Output, time::Duration};

use drover_orchestrator::{Orchestrator, Settings};
use drover_server::{ServerSettings, Shutdown, settings::TlsSettings};
use drover_testing::processes::program;

/// Runs `drover` in a directory with a configuration of its own.
pub(crate) async fn drover(directory: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = program(env!("CARGO_BIN_EXE_drover"));
    command
        .args(arguments)
        .current_dir(directory)
        .env("XDG_CONFIG_HOME", directory.join("config"));
    // Not on a thread that runs the server.
    let output: Output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificates_that_it_makes_are_enough_for_mutual_tls() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let (code, text) = drover(here, &["certs", "init", "--user", "viewer/vera"]).await;
    assert_eq!(code, 0, "{text}");
    let orchestrator = Orchestrator::open(&Settings {
        data_dir: here.join("data"),
        ..Settings::default()
    })
    .await
    .unwrap();
    let file = |name: &str| Some(here.join("certs").join(name));
    let settings = ServerSettings {
        tls: TlsSettings {
            cert: file("orchestrator.pem"),
            key: file("orchestrator.key"),
            client_ca: file("ca.pem"),
            crl: file("crl.pem"),
        },
        ..ServerSettings::default()
    };
    let (code, text) = drover(here, &["certs", "crl"]).await;
    assert!(code == 0 && text.contains("0 revoked"), "{text}");
    let listener = drover_server::listen(&settings).await.unwrap();
    let running =
        drover_server::spawn(orchestrator.service(), listener, &settings, Shutdown::new()).unwrap();
    let url = format!("https://{}", running.address());
    let ca = "certs/ca.pem";

    let health = drover(here, &["health", &url, "--ca", ca]).await;
    assert_eq!(health, (0, "serving\n".to_owned()));
    let (code, text) = drover(here, &["get", "clusters", "--server", &url]).await;
    assert_eq!(code, 5, "{text}");
    assert!(
        text.contains("not trusted here") || text.contains("the system has none"),
        "{text}"
    );
    let (code, text) = drover(here, &["get", "clusters", "--server", &url, "--ca", ca]).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("a client certificate"), "{text}");

    // A context works in any directory, as it has absolute paths.
    let set = [
        "context",
        "set",
        "secure",
        &url,
        "--ca",
        ca,
        "--cert",
        "certs/admin.pem",
        "--key",
        "certs/admin.key",
    ];
    assert_eq!(drover(here, &set).await.0, 0);
    std::fs::create_dir(here.join("below")).unwrap();
    let below = program(env!("CARGO_BIN_EXE_drover"))
        .args(["get", "clusters"])
        .current_dir(here.join("below"))
        .env("XDG_CONFIG_HOME", here.join("config"))
        .status();
    assert!(below.unwrap().success());
    let vera = ["--cert", "certs/vera.pem", "--key", "certs/vera.key"];
    assert_eq!(
        drover(here, &[&["get", "clusters"], &vera[..]].concat())
            .await
            .0,
        0
    );
    let (code, text) = drover(here, &[&["pause", "orders"], &vera[..]].concat()).await;
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("spiffe://drover/viewer/vera has viewer"),
        "{text}"
    );
    let (code, text) = drover(here, &["pause", "orders"]).await;
    assert_eq!(code, 3, "{text}");

    // Invalid combinations are refused before anything is sent.
    let (code, text) = drover(here, &["get", "clusters", "--cert", "certs/vera.pem"]).await;
    assert_eq!(code, 64, "{text}");
    let plain = [
        "get",
        "clusters",
        "--server",
        "http://127.0.0.1:1",
        "--ca",
        ca,
    ];
    let (code, text) = drover(here, &plain).await;
    assert!(
        code == 1 && text.contains("certificates are for https"),
        "{text}"
    );
    let missing = ["get", "clusters", "--ca", "certs/missing.pem"];
    let (code, text) = drover(here, &missing).await;
    assert!(code == 1 && text.contains("missing.pem"), "{text}");

    // A revoked certificate, given by its name, is refused once the server has read the new list.
    let (code, text) = drover(here, &["certs", "revoke", "vera"]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("spiffe://drover/viewer/vera"), "{text}");
    assert!(text.contains("made certs/crl.pem   1 revoked"), "{text}");
    let refused = async {
        loop {
            let answer = drover(here, &[&["get", "clusters"], &vera[..]].concat()).await;
            if answer.0 != 0 {
                return answer;
            }
        }
    };
    let (code, text) = tokio::time::timeout(Duration::from_secs(30), refused)
        .await
        .expect("it is let in");
    assert!(code == 5 && text.contains("it is revoked"), "{text}");
    assert_eq!(drover(here, &["get", "clusters"]).await.0, 0);
    let (code, text) = drover(here, &["certs", "show"]).await;
    let of_vera = text.lines().find(|line| line.contains("vera.pem"));
    assert!(code == 1 && of_vera.unwrap().contains("Revoked"), "{text}");
    let others = text.lines().filter(|line| line.contains("Revoked"));
    assert_eq!(others.count(), 1, "{text}");
    for (wrong, words) in [
        (
            "nobody",
            "there is neither certs/nobody.pem nor a file nobody",
        ),
        (
            "ca",
            "is not a certificate that the authority in certs has made",
        ),
    ] {
        let (code, text) = drover(here, &["certs", "revoke", wrong]).await;
        assert!(code == 1 && text.contains(words), "{text}");
    }
    // Nor a certificate of another authority, whose name is different too.
    let (code, text) = drover(here, &["certs", "init", "--dir", "other"]).await;
    assert_eq!(code, 0, "{text}");
    let (code, text) = drover(here, &["certs", "revoke", "other/admin.pem"]).await;
    let words = "is not a certificate that the authority in certs has made";
    assert!(code == 1 && text.contains(words), "{text}");
    let [ours, theirs] = ["certs", "other"].map(|directory| {
        let path = here.join(directory).join("ca.pem");
        drover_tls::Certificate::read_file(&path)
            .unwrap()
            .remove(0)
            .issuer
    });
    assert_ne!(ours, theirs);
    // Repeating it changes nothing, and a new list has the same content.
    let (_, text) = drover(here, &["certs", "revoke", "certs/vera.pem"]).await;
    assert!(text.contains("1 revoked"), "{text}");
    let (_, text) = drover(here, &["certs", "crl", "--days", "30"]).await;
    assert!(text.contains("1 revoked"), "{text}");

    // A platform's certificate, although valid for the same host names, is not that of an orchestrator.
    let settings = ServerSettings {
        tls: TlsSettings {
            cert: file("platform-cloud.pem"),
            key: file("platform-cloud.key"),
            client_ca: file("ca.pem"),
            ..TlsSettings::default()
        },
        ..ServerSettings::default()
    };
    let listener = drover_server::listen(&settings).await.unwrap();
    let false_one =
        drover_server::spawn(orchestrator.service(), listener, &settings, Shutdown::new()).unwrap();
    let url = format!("https://{}", false_one.address());
    let (code, text) = drover(here, &["get", "clusters", "--server", &url, "--ca", ca]).await;
    assert_eq!(code, 5, "{text}");
    let words = "it is that of spiffe://drover/platform/platform-cloud, and \
                 spiffe://drover/orchestrator/NAME was expected";
    assert!(text.contains(words), "{text}");
    false_one.shutdown().await;
    running.shutdown().await;
    orchestrator.shutdown().await;
}
