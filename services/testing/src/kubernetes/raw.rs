//! JSON to and from an API server, without any of our code in between.

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc, time::Duration};

use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::wait::PATIENCE;

/// Timeout of a whole response. Only requests that end are made.
const ANSWER: Duration = PATIENCE;
/// How often a read is asked for, and after which pause, when the server asks for that.
const ASKS: usize = 60;
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// An API server. The client belongs to the runtime in which it was opened.
#[derive(Clone)]
pub struct Raw {
    client: Client,
    pub(super) discovered: Discovered,
}

/// Resource groups by the path that they were read from, each with the etag by which the server reports that they are
/// unchanged.
pub(super) type Discovered = Arc<Mutex<BTreeMap<&'static str, (String, Arc<Value>)>>>;

/// A refusal of the API server.
#[derive(Clone, PartialEq)]
pub struct Refused {
    /// HTTP status. 0 if there was no response.
    pub code: u16,
    /// The response, or why there is none.
    pub message: String,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// The settings of a kubeconfig, without retries, which would hide faults.
pub async fn config(kubeconfig: &Path) -> Config {
    // Two crates of the workspace bring a provider for rustls, so one is selected explicitly.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.default_retry = false;
    config
}

impl Raw {
    pub async fn open(kubeconfig: &Path) -> Self {
        Self::by(config(kubeconfig).await)
    }

    fn by(config: Config) -> Self {
        Self {
            client: Client::try_from(config).unwrap(),
            discovered: Discovered::default(),
        }
    }

    /// The same server with a token as credentials.
    pub async fn with_token(kubeconfig: &Path, token: &str) -> Self {
        let mut config = config(kubeconfig).await;
        config.auth_info = Default::default();
        config.auth_info.token = Some(token.to_owned().into());
        Self::by(config)
    }

    /// The underlying client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, Refused> {
        let mut request = Request::builder().method(method).uri(path);
        let mut content = Body::empty();
        if let Some((media, value)) = body {
            request = request.header(header::CONTENT_TYPE, media);
            content = Body::from(serde_json::to_vec(value).unwrap());
        }
        let lost = |error: &dyn fmt::Display| Refused {
            code: 0,
            message: error.to_string(),
        };
        let answered = async {
            let sent = self.client.send(request.body(content).unwrap()).await;
            let answer = sent.map_err(|error| lost(&error))?;
            let code = answer.status();
            let body = answer.into_body().collect().await;
            Ok((code, body.map_err(|error| lost(&error))?.to_bytes()))
        };
        let answered = timeout(ANSWER, answered).await;
        let (code, bytes) = answered.map_err(|elapsed| lost(&elapsed))??;
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        let value = serde_json::from_slice::<Value>(&bytes).unwrap_or_else(|_| text().into());
        if code.is_success() {
            return Ok(value);
        }
        let message = value["message"].as_str().map_or_else(text, str::to_owned);
        Err(Refused {
            code: code.as_u16(),
            message,
        })
    }

    pub async fn get(&self, path: &str) -> Result<Value, Refused> {
        let mut asked = 0;
        loop {
            let answer = self.call(Method::GET, path, None).await;
            asked += 1;
            match answer {
                // The cache of a kind that was just defined is not there yet.
                Err(refused) if refused.code == 429 && asked < ASKS => sleep(ASK_AGAIN).await,
                answer => return answer,
            }
        }
    }

    pub async fn create(&self, path: &str, object: &Value) -> Result<Value, Refused> {
        self.call(Method::POST, path, Some(("application/json", object)))
            .await
    }

    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value, Refused> {
        self.call(Method::PUT, path, Some(("application/json", object)))
            .await
    }

    /// Applies a JSON merge patch.
    pub async fn merge(&self, path: &str, patch: &Value) -> Result<Value, Refused> {
        self.call(
            Method::PATCH,
            path,
            Some(("application/merge-patch+json", patch)),
        )
        .await
    }

    /// Forced server-side apply with the field manager of the tests.
    pub async fn apply(&self, path: &str, object: &Value) -> Result<Value, Refused> {
        let path = format!("{path}?fieldManager=drover-tests&force=true");
        let media = "application/apply-patch+yaml";
        self.call(Method::PATCH, &path, Some((media, object))).await
    }

    /// Deletes without a grace period; it is not an error if the object does not exist.
    pub async fn delete(&self, path: &str) -> Result<(), Refused> {
        let options = json!({"gracePeriodSeconds": 0});
        let outcome = self
            .call(Method::DELETE, path, Some(("application/json", &options)))
            .await;
        match outcome {
            Err(refused) if refused.code != 404 => Err(refused),
            _ => Ok(()),
        }
    }
}
