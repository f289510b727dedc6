//! Hands content to pods by a command in them, at once. The annotation that says the same is what counts, but the kubelet
//! shows a change of it only after it has looked at the pod's containers again, which it does about once a second.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Result};
use drover_platform::identity::hex;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::api::AttachParams;
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncWriteExt as _, sync::Semaphore, time::timeout};

use super::Backend;
use crate::client::Call;

/// Until then the kubelet has shown it.
const LIMIT: Duration = Duration::from_secs(5);
/// Commands at the same time.
const AT_ONCE: usize = 8;

/// Pods to which content is handed.
pub(super) struct Hand {
    backend: Arc<Backend>,
    places: Arc<Semaphore>,
}

impl Hand {
    pub(super) fn new(backend: Arc<Backend>) -> Self {
        Self {
            backend,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Hands this version of the content to a pod, without waiting for the end of it.
    pub(super) fn give(&self, pod: &str, version: u64, content: Arc<str>) {
        if !self.backend.may_hand {
            return;
        }
        let (backend, places) = (Arc::clone(&self.backend), Arc::clone(&self.places));
        let (pod, command) = (pod.to_owned(), command(version, &content));
        tokio::spawn(async move {
            let Ok(_place) = places.acquire().await else {
                return;
            };
            let handed = timeout(LIMIT, backend.run(&pod, &command, &content)).await;
            let failed = match &handed {
                Ok(Ok(())) => return,
                Ok(Err(error)) => drover_convert::error::reason_name(error.reason()),
                Err(_) => "no answer",
            };
            tracing::debug!(
                pod,
                failed,
                "content was not handed to a pod; its kubelet shows it"
            );
        });
    }
}

/// Puts what it reads where the pod looks for it, if it has read all of it.
fn command(version: u64, content: &str) -> String {
    let digest = hex(&Sha256::digest(content.as_bytes()));
    format!(
        "set -e; cd /run/drover; mkdir -p handed; head -c {} >handed/.{version}; \
         case $(sha256sum <handed/.{version}) in {digest}*) mv handed/.{version} handed/{version} ;; \
         *) rm handed/.{version}; exit 1 ;; esac",
        content.len()
    )
}

impl Backend {
    async fn run(&self, pod: &str, command: &str, input: &str) -> Result<()> {
        let call = Call::new("create", "pods/exec", &self.namespace, pod);
        let wrong = |error: &kube::Error| crate::errors::of(&call, error);
        let cut = || Error::unavailable(format!("{call}: the connection to the command was cut"));
        let pods = kube::Api::<Pod>::namespaced(self.api.kube(), &self.namespace);
        let with = AttachParams::default()
            .stdin(true)
            .stdout(false)
            .stderr(false);
        let opened = pods.exec(pod, ["sh", "-c", command], &with).await;
        let mut process = opened.map_err(|error| wrong(&error))?;
        let status = process.take_status();
        if let Some(mut stdin) = process.stdin() {
            let written = async {
                stdin.write_all(input.as_bytes()).await?;
                stdin.flush().await
            };
            written.await.map_err(|_| cut())?;
            // It reads as many bytes as it was told of, and need not see an end.
            let ended = ended(status).await;
            drop(stdin);
            return ended.ok_or_else(cut);
        }
        Err(cut())
    }
}

/// `None` if the command did not succeed, or nobody can say.
async fn ended(status: Option<impl Future<Output = Option<Status>>>) -> Option<()> {
    let status = status?.await?;
    (status.status.as_deref() == Some("Success")).then_some(())
}
