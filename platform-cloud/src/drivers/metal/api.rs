//! Calls to metal-api, all through one gate.

use std::time::Duration;

use drover_core::{Error, Reason, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, Method, Response, StatusCode, header::RETRY_AFTER, redirect::Policy};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Settings,
    auth::Credentials,
    documents::{AllocateMachine, Image, Ip, Machine, Network},
};
use crate::cloud::{Action, Gate, traced};

/// Maximum number of concurrent calls. More would only queue at the API.
const MAX_CONCURRENT_CALLS: usize = 8;
/// Maximum size of a response: 10,000 machines with room to spare.
const MAX_ANSWER: usize = 128 << 20;
/// Backoff when the API is at its limit of concurrent allocations.
const BUSY_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Api {
    client: Client,
    base: String,
    credentials: Credentials,
    gate: Gate,
}

/// An error response of the API.
#[derive(Deserialize)]
struct Refusal {
    statuscode: u16,
    message: String,
}

/// A list entry, parsed or not.
pub(super) enum Entry<T> {
    Read(T),
    Unreadable { id: Option<String>, message: String },
}

impl Api {
    pub(super) fn new(settings: &Settings) -> Result<Self> {
        // Fails if another driver has installed a provider first; it is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .timeout(settings.common.call_timeout())
            .pool_max_idle_per_host(MAX_CONCURRENT_CALLS)
            .redirect(Policy::none());
        if let Some(file) = &settings.ca_file {
            let wrong = |error: &dyn std::fmt::Display| {
                Error::invalid("ca_file", format!("{}: {error}", file.display()))
            };
            let pem = std::fs::read(file).map_err(|error| wrong(&error))?;
            let certificates =
                reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong(&error))?;
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder
            .build()
            .map_err(|error| Error::internal(format!("no HTTP client can be made: {error}")))?;
        Ok(Self {
            client,
            base: settings.url.trim_end_matches('/').to_owned(),
            credentials: Credentials::of(settings)?,
            gate: Gate::new(settings.common.calls_per_second, MAX_CONCURRENT_CALLS),
        })
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::GET, path, None::<&Value>).await
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        self.call(Method::POST, path, Some(body)).await
    }

    async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(Method::DELETE, path, None::<&Value>).await
    }

    /// Reads a machine by id. `None` if it does not exist.
    pub(super) async fn machine(&self, id: &str) -> Result<Option<Machine>> {
        absent(self.get(&format!("/v1/machine/{}/ipmi", segment(id))).await)
    }

    /// The machines that match the query, which is limited to one project.
    pub(super) async fn machines(&self, query: &Value) -> Result<Vec<Entry<Machine>>> {
        entries(self.post("/v1/machine/ipmi/find", query).await?, "id")
    }

    pub(super) async fn firewalls(&self, query: &Value) -> Result<Vec<Entry<Machine>>> {
        entries(self.post("/v1/firewall/find", query).await?, "id")
    }

    pub(super) async fn allocate(
        &self,
        request: &AllocateMachine,
        firewall: bool,
    ) -> Result<Machine> {
        let what = if firewall { "firewall" } else { "machine" };
        self.post(&format!("/v1/{what}/allocate"), request).await
    }

    pub(super) async fn free_machine(&self, id: &str) -> Result<Option<Machine>> {
        absent(
            self.delete(&format!("/v1/machine/{}/free", segment(id)))
                .await,
        )
    }

    pub(super) async fn network(&self, id: &str) -> Result<Option<Network>> {
        absent(self.get(&format!("/v1/network/{}", segment(id))).await)
    }

    pub(super) async fn networks(&self, query: &Value) -> Result<Vec<Entry<Network>>> {
        entries(self.post("/v1/network/find", query).await?, "id")
    }

    pub(super) async fn free_network(&self, id: &str) -> Result<Option<Network>> {
        absent(
            self.delete(&format!("/v1/network/free/{}", segment(id)))
                .await,
        )
    }

    pub(super) async fn ip(&self, address: &str) -> Result<Option<Ip>> {
        absent(self.get(&format!("/v1/ip/{}", segment(address))).await)
    }

    pub(super) async fn ips(&self, query: &Value) -> Result<Vec<Entry<Ip>>> {
        entries(self.post("/v1/ip/find", query).await?, "ipaddress")
    }

    pub(super) async fn allocate_ip(&self, address: &str, body: &Value) -> Result<Ip> {
        match address {
            "" => self.post("/v1/ip/allocate", body).await,
            address => {
                self.post(&format!("/v1/ip/allocate/{}", segment(address)), body)
                    .await
            }
        }
    }

    pub(super) async fn free_ip(&self, address: &str) -> Result<Option<Ip>> {
        absent(
            self.delete(&format!("/v1/ip/free/{}", segment(address)))
                .await,
        )
    }

    /// Resolves an image name, including short names. `None` if there is none.
    pub(super) async fn image(&self, id: &str) -> Result<Option<Image>> {
        absent(self.get(&format!("/v1/image/{}/latest", segment(id))).await)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + ?Sized)>,
    ) -> Result<T> {
        // The official client sends an empty object where a body is required.
        let body = body
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|error| Error::internal(format!("a request cannot be written: {error}")))?;
        // Only the collection, as in `/v1/machine/…`; the next segment may be an id.
        let operation = format!("{method} {}", path.split('/').nth(2).unwrap_or_default());
        // What is searched for is posted.
        let action = Action::of(method == Method::GET || path.ends_with("/find"));
        let answer = self
            .gate
            .call_as(action, || {
                traced(
                    "metal-api",
                    &operation,
                    self.once(method.clone(), path, body.clone()),
                )
            })
            .await?;
        serde_json::from_slice(&answer).map_err(|error| {
            Error::unavailable(format!(
                "metal-stack's answer to {path} cannot be read: {error}"
            ))
        })
    }

    async fn once(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let mut request = self
            .client
            .request(method.clone(), format!("{}{path}", self.base));
        for (name, value) in self.credentials.headers(method.as_str()).await? {
            request = request.header(name, value);
        }
        request = request
            .header("accept", "application/json")
            .header("content-type", "application/json");
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(|error| lost(path, &error))?;
        let status = response.status();
        let retry_after = retry_after(&response);
        let answer = read(response, path).await?;
        if status.is_success() {
            return Ok(answer);
        }
        Err(self.judge(path, status, retry_after, &answer))
    }

    /// Maps an unsuccessful response of any call.
    fn judge(
        &self,
        path: &str,
        status: StatusCode,
        retry_after: Option<Duration>,
        answer: &[u8],
    ) -> Error {
        let refusal = serde_json::from_slice::<Refusal>(answer).ok();
        let own_words = refusal
            .as_ref()
            .filter(|said| said.statuscode == status.as_u16());
        let words = refusal.as_ref().map_or_else(
            || String::from_utf8_lossy(&answer[..answer.len().min(512)]).into_owned(),
            |said| said.message.clone(),
        );
        let message = format!("metal-stack ({path}): {} {words}", status.as_u16());
        match status {
            StatusCode::UNAUTHORIZED => Error::new(
                Reason::CredentialsRefused,
                format!(
                    "{message}. Put a valid token or HMAC key into {}; an HMAC also needs the right time on this machine and the right hmac_type",
                    self.credentials.place()
                ),
            ),
            StatusCode::FORBIDDEN => Error::new(
                Reason::PermissionDenied,
                format!(
                    "{message}. The credentials in {} need the role Metal-Edit or editor of the project",
                    self.credentials.place()
                ),
            ),
            StatusCode::TOO_MANY_REQUESTS => {
                let error = Error::new(Reason::RateLimited, message);
                match retry_after {
                    Some(after) => error.with_retry_after(after),
                    None => error,
                }
            }
            _ if words.contains("too many parallel machine allocations") => {
                Error::new(Reason::RateLimited, message).with_retry_after(BUSY_PAUSE)
            }
            // A 404 from anything but the API (a wrong path, a proxy) says nothing about what exists.
            StatusCode::NOT_FOUND if own_words.is_some() => Error::new(Reason::NotFound, message),
            StatusCode::NOT_FOUND => Error::unavailable(format!(
                "{message}. This is no metal-stack API; is the url in the settings right ({})?",
                self.base
            )),
            StatusCode::CONFLICT => Error::new(Reason::Conflict, message),
            StatusCode::BAD_REQUEST => Error::new(Reason::Invalid, message),
            status if status.is_server_error() => Error::unavailable(message),
            // An unexplained refusal, which may be temporary.
            _ => Error::new(Reason::Exhausted, message),
        }
    }
}

/// What is written as it is in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Percent-encodes a path segment.
fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

fn absent<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.reason() == Reason::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn entries<T: DeserializeOwned>(list: Vec<Value>, key: &str) -> Result<Vec<Entry<T>>> {
    let read = |value: Value| {
        let id = value.get(key).and_then(Value::as_str).map(str::to_owned);
        match serde_json::from_value(value) {
            Ok(entry) => Entry::Read(entry),
            Err(error) => Entry::Unreadable {
                id,
                message: error.to_string(),
            },
        }
    };
    Ok(list.into_iter().map(read).collect())
}

/// All entries, or an error if one cannot be parsed: where things are created or freed based on a list, a partial list
/// is worse than none.
pub(super) fn whole<T>(entries: Vec<Entry<T>>) -> Result<Vec<T>> {
    entries
        .into_iter()
        .map(|entry| match entry {
            Entry::Read(entry) => Ok(entry),
            Entry::Unreadable { id, message } => Err(Error::unavailable(format!(
                "metal-stack's answer about {} cannot be read: {message}",
                id.unwrap_or_default()
            ))),
        })
        .collect()
}

async fn read(mut response: Response, path: &str) -> Result<Vec<u8>> {
    let mut answer = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| lost(path, &error))? {
        if answer.len() + chunk.len() > MAX_ANSWER {
            return Err(Error::unavailable(format!(
                "metal-stack's answer to {path} is larger than {MAX_ANSWER} bytes"
            )));
        }
        answer.extend_from_slice(&chunk);
    }
    Ok(answer)
}

/// The error of a call with an unknown outcome.
fn lost(path: &str, error: &reqwest::Error) -> Error {
    let mut message = format!("metal-stack ({path}): {error}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    if error.is_timeout() {
        return Error::new(Reason::DeadlineExceeded, message);
    }
    Error::unavailable(message)
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// A query within one project, so that other projects are never read.
pub(super) fn search(project: &str, role: &str) -> Value {
    json!({ "allocation_project": project, "allocation_role": role })
}
