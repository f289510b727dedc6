//! An admission webhook: a small HTTPS server that allows, denies or never answers.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use drover_testing::kubernetes::{Namespace, until};

/// Its response to every review.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Allow,
    Deny(&'static str),
    /// Denies creations, but allows dry runs.
    DenyKept(&'static str),
    Silence,
}

pub(crate) struct Webhook {
    state: Arc<WebhookState>,
    certificate: String,
    port: u16,
    task: JoinHandle<()>,
}

struct WebhookState {
    verdict: Mutex<Verdict>,
    asked: AtomicUsize,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Webhook {
    pub(crate) async fn start(verdict: Verdict) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(WebhookState {
            verdict: Mutex::new(verdict),
            asked: AtomicUsize::new(0),
        });
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&shared));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let answers = service_fn(move |request| answer(Arc::clone(&state), request));
                    // The API server handles failed connections.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answers)
                        .await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            state,
            certificate: made.cert.pem(),
            port,
            task,
        }
    }

    pub(crate) fn say(&self, verdict: Verdict) {
        *self.state.verdict.lock() = verdict;
    }

    /// Number of reviews.
    pub(crate) fn asked(&self) -> usize {
        self.state.asked.load(Ordering::Relaxed)
    }

    /// Registers it for the creation of pods in a namespace. Waits until the API server calls it.
    pub(crate) async fn register(&self, namespace: &Namespace) {
        let bundle = k8s_openapi::ByteString(self.certificate.clone().into_bytes());
        let url = format!("https://127.0.0.1:{}/validate", self.port);
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": namespace.name},
            "webhooks": [{
                "name": "moon.drover.dev",
                "clientConfig": {"url": url, "caBundle": bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
                "failurePolicy": "Fail", "timeoutSeconds": 3, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            }],
        });
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        namespace.raw.create(path, &configuration).await.unwrap();
        let probe = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
            "spec": {"containers": [{"name": "main", "image": "main"}]},
        });
        let path = format!("{}?dryRun=All", namespace.path("pods"));
        until("the webhook is asked", || async {
            // The verdict does not matter here.
            let _ = namespace.raw.create(&path, &probe).await;
            (self.asked() > 0).then_some(())
        })
        .await;
    }
}

async fn answer(
    state: Arc<WebhookState>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes);
    let review: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    state.asked.fetch_add(1, Ordering::Relaxed);
    let verdict = *state.verdict.lock();
    let words = match verdict {
        Verdict::Allow => None,
        Verdict::Deny(words) => Some(words),
        Verdict::DenyKept(words) => (review["request"]["dryRun"] != true).then_some(words),
        Verdict::Silence => std::future::pending().await,
    };
    let said = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": words.is_none(),
            "status": {"code": 403, "message": words.unwrap_or_default()},
        },
    });
    Ok(Response::new(Full::new(Bytes::from(said.to_string()))))
}
