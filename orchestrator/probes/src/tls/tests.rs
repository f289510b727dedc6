//! Nodes behind real TLS.

use std::collections::BTreeMap;

use drover_core::spec::{Health, Probe, TLS_CERT, TLS_KEY};
use drover_store::{DigestKey, Keyring, Store};
use drover_testing::store::MemoryBackend;
use drover_tls::provider;
use parking_lot::Mutex as Lock;
use prost::Message;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use tokio::io::copy_bidirectional;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    network::{
        ask,
        tests::{answering, grpc_server, health, here, listener, silent},
    },
    reach::Reach,
};
use drover_secrets::{Content, ContentKey, Vault};

use drover_testing::certs::{Authority, DAY, Wanted};

/// Store encryption key of these tests.
const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
const ID: &str = "db-0-aaaaa";

/// TLS configuration of a server with this certificate, which optionally requires clients of this CA.
fn config(pair: &(String, String), clients: Option<&Authority>) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            let der = CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap();
            roots.add(der).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        }
    };
    let chain = CertificateDer::pem_slice_iter(pair.0.as_bytes());
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.1.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), HTTP1.to_vec()];
    Arc::new(config)
}

/// Terminates TLS and forwards plaintext. The config applies to the next connection.
async fn terminator(
    config: Arc<ServerConfig>,
    to: String,
) -> (String, Arc<Lock<Arc<ServerConfig>>>) {
    let (listener, address) = listener().await;
    let current = Arc::new(Lock::new(config));
    let config = current.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(config.lock().clone());
            let to = to.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut inner = TcpStream::connect(&to).await?;
                copy_bidirectional(&mut stream, &mut inner).await
            });
        }
    });
    (address, current)
}

/// Secrets in an encrypted store, and the probes that use them.
struct Secrets {
    store: Arc<Store>,
    vault: Vault,
    kept: Kept,
}

impl Secrets {
    async fn new() -> Self {
        let store = Store::open(Arc::new(MemoryBackend::new())).await.unwrap();
        let store = Arc::new(store);
        let keys = Keyring::parse(KEY, "keys of tests").unwrap();
        store.unlock(keys).await.unwrap();
        let digests = Arc::new(DigestKey::random().unwrap());
        let vault = Vault::load(store.clone(), digests).await.unwrap();
        Self {
            store,
            vault,
            kept: Kept::default(),
        }
    }

    async fn put(&self, name: &str, data: &[(&str, &str)]) {
        let keys: BTreeMap<_, _> = data.iter().copied().collect();
        let key = |(name, text): (&str, &str)| ContentKey::new(name, text.to_owned().into());
        let content = Content {
            keys: keys.into_iter().map(key).collect(),
            ..Content::default()
        };
        let stored = content.encode_to_vec().into();
        let revision = self.store.put_secret(name, stored, None).await.unwrap();
        self.vault.put(name, &content, revision);
    }

    async fn put_pair(&self, name: &str, (cert, key): &(String, String)) {
        self.put(name, &[(TLS_CERT, cert), (TLS_KEY, key)]).await;
    }

    /// Probes a node as the orchestrator does.
    async fn ask(&self, probe: Probe, address: &str) -> Result<(), Failed> {
        let health = Health {
            timeout: std::time::Duration::from_secs(5),
            ..health(probe)
        };
        let (_, tls) = health.probe.tls().unwrap();
        let secure = self.kept.get(&self.vault, tls).await?;
        let reach = Reach::default();
        ask(&health, address, here(&reach), ID, Some(&secure)).await
    }
}

fn trusting(secret: &str) -> ProbeTls {
    ProbeTls {
        trust: Trust::Secret(secret.to_owned()),
        server_name: None,
        client_certificate: None,
    }
}

/// Both kinds of TLS probes.
fn both(tls: &ProbeTls) -> [Probe; 2] {
    let http = Probe::Http {
        port: None,
        path: "/healthz".into(),
        tls: Some(tls.clone()),
    };
    let grpc = Probe::Grpc {
        port: None,
        service: "db".into(),
        tls: Some(tls.clone()),
    };
    [http, grpc]
}

/// The servers behind TLS for each of [`both`].
async fn both_nodes() -> [String; 2] {
    let serving = Some(tonic_health::ServingStatus::Serving);
    [answering(GOOD).await, grpc_server(Some(ID), serving).await]
}

fn node(failed: Result<(), Failed>) -> String {
    match failed {
        Err(Failed::Node(why)) => why,
        other => panic!("not the node's fault: {other:?}"),
    }
}

fn way(failed: Result<(), Failed>) -> String {
    match failed {
        Err(Failed::Way(why)) => why,
        other => panic!("not the fault of who asks: {other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_of_a_node_is_believed_as_it_is_said() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let vault = Secrets::new().await;
    vault.put("ours", &[(CA_CERT, &ours.pem)]).await;
    vault.put("other", &[(CA_CERT, &other.pem)]).await;
    let good = ours.make(&Wanted::server("good"));
    let expired = ours.make(&Wanted {
        valid: (-2 * DAY, -DAY),
        ..Wanted::server("expired")
    });
    let early = ours.make(&Wanted {
        valid: (DAY, 2 * DAY),
        ..Wanted::server("early")
    });
    let named = ours.make(&Wanted {
        names: vec!["db.test"],
        ..Wanted::server("named")
    });
    let any = ProbeTls {
        trust: Trust::Any,
        ..trusting("")
    };
    let by_name = ProbeTls {
        server_name: Some("db.test".into()),
        ..trusting("ours")
    };
    let cases: [(_, ProbeTls, &str); 10] = [
        (&good, trusting("ours"), ""),
        (&good, trusting("other"), "authority that is not trusted"),
        (&expired, trusting("ours"), "it expired at "),
        (&early, trusting("ours"), "it is not valid before "),
        (
            &named,
            trusting("ours"),
            "it is for db.test and not for 127.0.0.1",
        ),
        (&named, by_name.clone(), ""),
        (&good, by_name, "and not for db.test"),
        (&expired, any.clone(), ""),
        (&named, any.clone(), ""),
        (&good, any, ""),
    ];
    let nodes = both_nodes().await;
    for (pair, tls, word) in cases {
        for (probe, node_at) in both(&tls).into_iter().zip(&nodes) {
            let (address, _) = terminator(config(pair, None), node_at.clone()).await;
            let answer = vault.ask(probe, &address).await;
            if word.is_empty() {
                assert_eq!(answer, Ok(()), "{tls:?}");
            } else {
                let why = node(answer);
                assert!(why.contains(word) && why.contains(&address), "{why}");
                assert!(!why.contains("--ca"), "no flag helps: {why}");
            }
        }
    }
}

#[tokio::test]
async fn a_node_that_refuses_who_asks_is_not_sick() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let vault = Secrets::new().await;
    vault.put("ca", &[(CA_CERT, &ours.pem)]).await;
    let client = |valid| Wanted {
        common_name: Some("prober"),
        valid,
        ..Wanted::client("client", "spiffe://drover/orchestrator/a")
    };
    vault
        .put_pair("good", &ours.make(&client((-DAY, DAY))))
        .await;
    vault
        .put_pair("old", &ours.make(&client((-2 * DAY, -DAY))))
        .await;
    vault
        .put_pair("strange", &other.make(&client((-DAY, DAY))))
        .await;
    let demanding = config(&ours.make(&Wanted::server("db")), Some(&ours));
    let nodes = both_nodes().await;
    for (own, word) in [
        (Some("good"), ""),
        (None, "wants a client certificate, and none was shown"),
        (Some("old"), "it expired at "),
        (Some("strange"), "authority that the server "),
    ] {
        let tls = ProbeTls {
            client_certificate: own.map(str::to_owned),
            ..trusting("ca")
        };
        for (probe, node_at) in both(&tls).into_iter().zip(&nodes) {
            let (address, _) = terminator(demanding.clone(), node_at.clone()).await;
            let answer = vault.ask(probe, &address).await;
            if word.is_empty() {
                assert_eq!(answer, Ok(()));
            } else {
                let why = way(answer);
                assert!(why.contains(word), "{own:?}: {why}");
                assert!(!why.contains("--cert"), "no flag helps: {why}");
            }
        }
    }
}

#[tokio::test]
async fn a_changed_secret_is_used_by_the_next_probe() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let vault = Secrets::new().await;
    let client = Wanted::client("client", "spiffe://drover/orchestrator/a");
    vault.put("ca", &[(CA_CERT, &old.pem)]).await;
    vault.put_pair("own", &old.make(&client)).await;
    let tls = ProbeTls {
        client_certificate: Some("own".into()),
        ..trusting("ca")
    };
    for (probe, node_at) in both(&tls).into_iter().zip(both_nodes().await) {
        vault.put("ca", &[(CA_CERT, &old.pem)]).await;
        vault.put_pair("own", &old.make(&client)).await;
        let server =
            |authority: &Authority| config(&authority.make(&Wanted::server("db")), Some(authority));
        let (address, current) = terminator(server(&old), node_at).await;
        assert_eq!(vault.ask(probe.clone(), &address).await, Ok(()));

        *current.lock() = server(&new);
        let why = node(vault.ask(probe.clone(), &address).await);
        assert!(why.contains("authority that is not trusted"), "{why}");
        vault.put("ca", &[(CA_CERT, &new.pem)]).await;
        let why = way(vault.ask(probe.clone(), &address).await);
        assert!(why.contains("the server refuses the client's"), "{why}");
        vault.put_pair("own", &new.make(&client)).await;
        assert_eq!(vault.ask(probe.clone(), &address).await, Ok(()));
    }
}

#[tokio::test]
async fn a_secret_that_holds_something_else_is_named_and_never_shown() {
    let ours = Authority::new("ours");
    let vault = Secrets::new().await;
    let pair = ours.make(&Wanted::client("client", "spiffe://drover/a/b"));
    let other = ours.make(&Wanted::client("client", "spiffe://drover/a/b"));
    vault.put("ca", &[(CA_CERT, &ours.pem)]).await;
    vault
        .put(
            "hush",
            &[(CA_CERT, "hush"), (TLS_CERT, "hush"), (TLS_KEY, "hush")],
        )
        .await;
    vault.put("half", &[(TLS_CERT, &pair.0)]).await;
    vault.put_pair("mixed", &(pair.0.clone(), other.1)).await;
    vault
        .put("key", &[(TLS_CERT, &pair.0), (TLS_KEY, "hush")])
        .await;
    let own = |name: &str| ProbeTls {
        client_certificate: Some(name.to_owned()),
        ..trusting("ca")
    };
    for (tls, words) in [
        (trusting("gone"), ["\"gone\"", "\"ca.crt\""]),
        (trusting("hush"), ["\"hush\"", "holds no certificate"]),
        (own("hush"), ["\"hush\"", "holds no certificate"]),
        (own("gone"), ["there is no secret", "\"gone\""]),
        (own("half"), ["\"half\"", "has no key \"tls.key\""]),
        (own("mixed"), ["\"mixed\"", "is not the key of"]),
        (own("key"), ["\"key\"", "holds no private key"]),
    ] {
        let [http, _] = both(&tls);
        let why = way(vault.ask(http, "127.0.0.1:1").await);
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
    let read = read(&vault.vault, &trusting("ca")).await.unwrap();
    assert!(read.certificate.is_none());
    vault.put_pair("own", &pair).await;
    let secure = vault.kept.get(&vault.vault, &own("own")).await.unwrap();
    assert!(!format!("{secure:?}").contains("PRIVATE"), "{secure:?}");
}

#[tokio::test]
async fn what_speaks_something_else_is_told_apart() {
    let ours = Authority::new("ours");
    let vault = Secrets::new().await;
    vault.put("ca", &[(CA_CERT, &ours.pem)]).await;
    let [http, grpc] = both(&trusting("ca"));
    let plain = answering(GOOD).await;
    let why = node(vault.ask(http.clone(), &plain).await);
    assert!(why.contains("does not speak TLS"), "{why}");
    let why = node(vault.ask(grpc, &grpc_server(None, None).await).await);
    assert!(why.contains("TLS"), "{why}");
    let closing = node(vault.ask(http, &answering(b"").await).await);
    assert!(closing.contains("closed the connection"), "{closing}");

    // And the reverse: plaintext against a TLS server.
    let pair = config(&ours.make(&Wanted::server("db")), None);
    let (address, _) = terminator(pair, plain).await;
    let in_plaintext = Probe::Http {
        port: None,
        path: "/".into(),
        tls: None,
    };
    let reach = Reach::default();
    let gate = here(&reach);
    let why = node(ask(&health(in_plaintext), &address, gate, ID, None).await);
    assert!(why.contains("it speaks TLS there"), "{why}");

    // The probe's timeout bounds the wait.
    let mut patient = health(both(&trusting("ca"))[0].clone());
    patient.timeout = std::time::Duration::from_millis(50);
    let (_, tls) = patient.probe.tls().unwrap();
    let secure = vault.kept.get(&vault.vault, tls).await.unwrap();
    let why = node(ask(&patient, &silent().await, gate, ID, Some(&secure)).await);
    assert!(why.contains("no answer within"), "{why}");
}
