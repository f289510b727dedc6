//! Closed-loop clients over HTTP/2 and TLS, each with a persistent connection of its own. The same for all servers, so
//! that only the servers are compared.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::TlsConnector;

/// Window of a connection and of a stream: large enough that no response has to wait for it.
const WINDOW: u32 = 1024 * 1024;

/// Address and credentials of a server.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    pub tls: Arc<ClientConfig>,
    /// Value of the `authorization` header.
    pub authorization: String,
}

/// A kind of request. `request` creates the one with this number; `check` validates its response.
pub trait Question: Send + Sync + 'static {
    fn request(&self, server: &Server, number: usize) -> Request<Full<Bytes>>;
    fn check(&self, headers: &HeaderMap, body: &[u8], trailers: Option<&HeaderMap>);
}

/// Results of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub took: Duration,
    /// In microseconds, sorted.
    pub latencies: Vec<u32>,
}

impl Measured {
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }

    /// In milliseconds.
    pub fn percentile(&self, percent: f64) -> f64 {
        let at = (self.latencies.len() as f64 * percent / 100.0) as usize;
        f64::from(self.latencies[at.min(self.latencies.len() - 1)]) / 1e3
    }

    pub fn add(&mut self, other: &Self) {
        self.took += other.took;
        self.latencies.extend_from_slice(&other.latencies);
        self.latencies.sort_unstable();
    }
}

/// TLS settings for a server with this CA, and the client certificate and key in PEM, if any.
pub fn tls(authority: &[u8], own: Option<(&[u8], &[u8])>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate);
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_slice(key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

pub struct Client {
    server: Server,
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    pub async fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::from(server.address.ip());
        let stream = TlsConnector::from(server.tls.clone())
            .connect(name, stream)
            .await
            .unwrap();
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        // Ends when the sender is dropped.
        tokio::spawn(connection);
        Self {
            server: server.clone(),
            sender,
        }
    }

    /// Sends one request and returns the response body.
    pub async fn ask(&mut self, question: &dyn Question, number: usize) -> Bytes {
        let request = question.request(&self.server, number);
        let answer = self.sender.send_request(request).await.unwrap();
        let (head, mut body) = answer.into_parts();
        assert_eq!(head.status, StatusCode::OK, "{head:?}");
        let (mut whole, mut trailers) = (BytesMut::new(), None);
        while let Some(frame) = body.frame().await {
            match frame.unwrap().into_data() {
                Ok(data) => whole.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        question.check(&head.headers, &whole, trailers.as_ref());
        whole.freeze()
    }
}

/// Lets all clients send requests for this time, with random numbers below `objects`.
pub async fn measure(
    clients: &mut Vec<Client>,
    question: Arc<dyn Question>,
    objects: usize,
    span: Duration,
) -> Measured {
    let began = Instant::now();
    let end = began + span;
    let tasks: Vec<_> = clients
        .drain(..)
        .enumerate()
        .map(|(at, mut client)| {
            let question = question.clone();
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(at as u64);
                let mut latencies = Vec::with_capacity(1 << 16);
                let mut asked = Instant::now();
                while asked < end {
                    client.ask(&*question, random.usize(..objects)).await;
                    let now = Instant::now();
                    latencies.push(u32::try_from((now - asked).as_micros()).unwrap());
                    asked = now;
                }
                (client, latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        let (client, mut own) = task.await.unwrap();
        clients.push(client);
        latencies.append(&mut own);
    }
    latencies.sort_unstable();
    Measured {
        took: began.elapsed(),
        latencies,
    }
}
