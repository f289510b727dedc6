//! Requirements of a client on the server's certificate beyond its name: the role of the server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail when they cannot go on"
)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::common::eventually;
use drover_client::{
    Authorities, Bearer, Channel, ClientSettings, OrchestratorClient, PlatformClient, Target,
    connect, is_unreachable,
};
use drover_core::Error;
use drover_proto::orchestrator::v1::ListClustersRequest;
use drover_testing::certs::{Authority, Pair, Wanted};
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{io::AsyncReadExt, net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

const PATIENCE: Duration = Duration::from_secs(5);
const TOKEN: &str = "token-0123456789abcdef";

/// A server that never responds, and records what clients send after the handshake.
struct Silent {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
    task: JoinHandle<()>,
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Silent {
    async fn with(pair: &Pair) -> Self {
        let chain = vec![CertificateDer::from_pem_file(&pair.cert).unwrap()];
        let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
        let mut config = ServerConfig::builder_with_provider(drover_tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
        let keep = heard.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let mut read = Vec::new();
                    // The client may close the connection in any way.
                    let _ = stream.read_buf(&mut read).await;
                    keep.lock().append(&mut read);
                }
            }
        });
        Self {
            address,
            heard,
            task,
        }
    }

    fn heard_nothing(&self) -> bool {
        self.heard.lock().is_empty()
    }
}

fn certificate(authority: &Authority, uris: &[&'static str]) -> Pair {
    authority.write(&Wanted {
        uris: uris.to_vec(),
        ..Wanted::server("server")
    })
}

fn channel(address: SocketAddr, authority: &Authority, require_role: bool) -> Channel {
    let target: Target = format!("https://{address}").parse().unwrap();
    let tls = ClientSettings {
        authorities: Authorities::File(authority.ca()),
        require_role,
        ..ClientSettings::default()
    };
    let target = target.with_tls(tls).unwrap();
    connect(&target.with_bearer(Bearer::Token(TOKEN.to_owned())))
}

async fn as_orchestrator(channel: Channel) -> Error {
    let client = OrchestratorClient::new(channel);
    let request = ListClustersRequest::default();
    client.list_clusters(request, PATIENCE).await.unwrap_err()
}

#[tokio::test]
async fn a_server_of_another_role_is_refused_before_anything_is_sent_to_it() {
    let authority = Authority::new("ours");
    for (uris, found) in [
        (
            &["spiffe://drover/platform/local"][..],
            "spiffe://drover/platform/local",
        ),
        // The holder of such a key may access clusters, but must not impersonate a server.
        (&["spiffe://drover/admin/ann"], "spiffe://drover/admin/ann"),
        (
            &["spiffe://drover/orchestrator/a", "spiffe://drover/agent/b"],
            "spiffe://drover/agent/b",
        ),
        (&["spiffe://drover/nothing"], "spiffe://drover/nothing"),
    ] {
        let server = Silent::with(&certificate(&authority, uris)).await;
        let error = as_orchestrator(channel(server.address, &authority, false)).await;
        assert!(is_unreachable(&error), "{error}");
        let words = format!(
            "the server's certificate is refused: it is that of {found}, and \
             spiffe://drover/orchestrator/NAME was expected"
        );
        assert!(error.message().contains(&words), "{error}");
        assert!(server.heard_nothing(), "{found}");
    }
    let orchestrator = certificate(&authority, &["spiffe://drover/orchestrator/a"]);
    let server = Silent::with(&orchestrator).await;
    let platform = PlatformClient::new(channel(server.address, &authority, false));
    let error = platform.get_platform(PATIENCE).await.unwrap_err();
    let words = "it is that of spiffe://drover/orchestrator/a, and spiffe://drover/platform/NAME";
    assert!(error.message().contains(words), "{error}");
    assert!(server.heard_nothing());
}

#[tokio::test]
async fn a_server_that_says_no_role_is_believed_unless_it_has_to_say_one() {
    let authority = Authority::new("ours");
    for uris in [
        &[][..],
        &["https://drover.example.com"],
        // From another trust domain, such as that of a service mesh.
        &["spiffe://cluster.local/ns/drover/sa/orchestrator"],
    ] {
        let pair = certificate(&authority, uris);
        let server = Silent::with(&pair).await;
        let calling = tokio::spawn(as_orchestrator(channel(server.address, &authority, false)));
        eventually("it is called", async || !server.heard_nothing()).await;
        calling.abort();
        let server = Silent::with(&pair).await;
        let error = as_orchestrator(channel(server.address, &authority, true)).await;
        let words = "it is that of no orchestrator: it has no spiffe://drover/orchestrator/NAME";
        assert!(error.message().contains(words), "{error}");
        assert!(server.heard_nothing(), "{uris:?}");
    }
    let pair = certificate(&authority, &["spiffe://drover/orchestrator/a"]);
    let server = Silent::with(&pair).await;
    let calling = tokio::spawn(as_orchestrator(channel(server.address, &authority, true)));
    eventually("it is called", async || !server.heard_nothing()).await;
    calling.abort();
}
