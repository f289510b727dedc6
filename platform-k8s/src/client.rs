//! The only access to the API server. Every call waits for a permit (limited concurrency, and none while the server has
//! asked for a pause), has a timeout, and is sent once: calls that change something are never retried here.

mod call;
mod connection;
mod kinds;
mod meta;
mod protobuf;
mod stream;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use http::{Method, Request, header};
use kube::client::Body;
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::settings::Settings;

pub(crate) use meta::nullable;
pub(crate) use protobuf::{ObjectMeta, WireStatus, is_protobuf, object as read_protobuf};
pub(crate) use stream::bytes;

pub use call::Call;
pub use kinds::{Kind, Kinds};
pub use meta::{Meta, Object, OwnerReference};
pub use protobuf::Readable;
pub use stream::{Event, EventType, Events, ListQuery, Page, Shape};

use connection::Connection;

const JSON: &str = "application/json";
/// Server-side apply takes YAML, and JSON is a subset of it.
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
/// Longest pause that a server can request.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Pause if the server names none.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// Content type of the request, and accepted type of the response.
#[derive(Clone, Copy)]
struct Media {
    sent: &'static str,
    wanted: &'static str,
}

const SEND_JSON: Media = Media {
    sent: JSON,
    wanted: JSON,
};
const SEND_METADATA: Media = Media {
    sent: JSON,
    wanted: stream::METADATA_ONLY,
};
const SEND_MERGE: Media = Media {
    sent: MERGE,
    wanted: stream::METADATA_ONLY,
};
const SEND_APPLY: Media = Media {
    sent: APPLY,
    wanted: JSON,
};

/// Client of the API server. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    permits: Arc<Semaphore>,
    /// No call is made before this time, as the server requested.
    pause: Mutex<Option<Instant>>,
    timeout: Duration,
    page_size: usize,
    field_manager: String,
    kinds: kinds::Cache,
}

/// Permission to make one call now. Acquiring it may take a while: check afterwards whether the call is still wanted.
#[derive(Debug)]
pub struct CallPermit(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

/// Options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// Precondition: the uid of the object.
    pub uid: Option<String>,
    /// Precondition: the resourceVersion of the object.
    pub version: Option<String>,
    /// Grace period. `None` for the object's own.
    pub grace: Option<Duration>,
    /// Foreground deletion: dependents are deleted first.
    pub foreground: bool,
    /// Validates without deleting.
    pub dry_run: bool,
}

/// Result of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// The deletion has started, now or before. The API server returns the object or a status.
    Accepted,
    /// There is no such object, or it has another uid.
    Gone,
}

impl Api {
    /// Reads the credentials. Does not contact the API server.
    pub async fn open(settings: &Settings) -> Result<Self> {
        Ok(Self {
            inner: Arc::new(Inner {
                connection: Connection::open(settings).await?,
                permits: Arc::new(Semaphore::new(settings.max_concurrent_calls.max(1))),
                pause: Mutex::new(None),
                timeout: settings.call_timeout(),
                page_size: settings.page_size.max(1),
                field_manager: settings.field_manager.clone(),
                kinds: kinds::Cache::default(),
            }),
        })
    }

    /// Namespace of the kubeconfig context, or of the pod in which this process runs.
    #[must_use]
    pub fn default_namespace(&self) -> String {
        self.inner.connection.default_namespace()
    }

    /// Waits until a call may be made.
    pub async fn acquire_permit(&self) -> CallPermit {
        loop {
            let pause = *self.inner.pause.lock();
            match pause {
                Some(until) if Instant::now() < until => tokio::time::sleep_until(until).await,
                _ => {}
            }
            let permits = Arc::clone(&self.inner.permits);
            let Ok(permit) = permits.acquire_owned().await else {
                // The semaphore is never closed.
                std::future::pending::<()>().await;
                continue;
            };
            let paused = self
                .inner
                .pause
                .lock()
                .is_some_and(|until| Instant::now() < until);
            if !paused {
                return CallPermit(permit);
            }
        }
    }

    /// Reads an object into a type with the fields that the caller needs ([`Object`], [`Value`], …). `None` if it does
    /// not exist.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn get<T: DeserializeOwned>(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>> {
        let call = Call::new("get", kind, namespace, name);
        let request = self.request(Method::GET, &kind.path(namespace, Some(name)), JSON);
        match self.read(&call, &request).await {
            Ok(body) => decode(&call, &body).map(Some),
            Err(error) if error.reason() == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the metadata of an object. `None` if it does not exist.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn get_meta(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Meta>> {
        let call = Call::new("get", kind, namespace, name);
        let path = kind.path(namespace, Some(name));
        let request = self.request(Method::GET, &path, stream::METADATA_ONLY);
        match self.read(&call, &request).await {
            Ok(body) => read_object(&call, body).map(|object| Some(object.metadata)),
            Err(error) if error.reason() == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object that must not exist yet. Returns its metadata.
    ///
    /// # Errors
    /// [`Reason::AlreadyExists`] if the name is taken; otherwise as in [`crate::errors`].
    pub async fn create(
        &self,
        permit: CallPermit,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Object> {
        let call = Call::new("create", kind, namespace, name_of(object));
        // The dry run has validated the fields; doing it again costs the server as much as the first time.
        let path = self.writing(kind, namespace, None, "&fieldValidation=Ignore");
        let body = self
            .change(permit, &call, Method::POST, &path, SEND_METADATA, object)
            .await?;
        read_object(&call, body)
    }

    /// Dry run of [`Api::create`] that also rejects unknown fields. Creates nothing.
    ///
    /// # Errors
    /// See [`Api::create`].
    pub async fn try_create(
        &self,
        permit: CallPermit,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<()> {
        let call = Call::new("create", kind, namespace, name_of(object));
        let path = self.writing(kind, namespace, None, "&dryRun=All&fieldValidation=Strict");
        self.change(permit, &call, Method::POST, &path, SEND_METADATA, object)
            .await
            .map(drop)
    }

    /// Server-side apply without force: creates the object, or updates the fields of our field manager. Returns the
    /// whole object.
    ///
    /// # Errors
    /// [`Reason::Conflict`] if another field manager owns a field; otherwise as in [`crate::errors`].
    pub async fn apply(
        &self,
        permit: CallPermit,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Value> {
        let name = name_of(object);
        let call = Call::new("patch", kind, namespace, name);
        let path = self.writing(kind, namespace, Some(name), "");
        let body = self
            .change(permit, &call, Method::PATCH, &path, SEND_APPLY, object)
            .await?;
        decode(&call, &body)
    }

    fn writing(&self, kind: &Kind, namespace: &str, name: Option<&str>, more: &str) -> String {
        let path = kind.path(namespace, name);
        let manager = escape(&self.inner.field_manager);
        format!("{path}?fieldManager={manager}{more}")
    }

    /// Changes an object by a JSON merge patch. With `metadata.uid` or `metadata.resourceVersion` in the patch, only an
    /// object that has these. Returns its metadata.
    ///
    /// # Errors
    /// [`Reason::Conflict`] if it has others; `NotFound`; otherwise as in [`crate::errors`].
    pub async fn patch(
        &self,
        permit: CallPermit,
        kind: &Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Object> {
        let call = Call::new("patch", kind, namespace, name);
        let path = self.writing(kind, namespace, Some(name), "");
        let body = self
            .change(permit, &call, Method::PATCH, &path, SEND_MERGE, patch)
            .await?;
        read_object(&call, body)
    }

    /// Deletes an object, or starts its deletion.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn delete(
        &self,
        permit: CallPermit,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &Delete,
    ) -> Result<Deletion> {
        let call = Call::new("delete", kind, namespace, name);
        let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if let Some(uid) = &options.uid {
            body["preconditions"] = json!({"uid": uid});
        }
        if let Some(version) = &options.version {
            body["preconditions"]["resourceVersion"] = json!(version);
        }
        if let Some(grace) = options.grace {
            body["gracePeriodSeconds"] = json!(grace.as_secs());
        }
        if options.foreground {
            body["propagationPolicy"] = json!("Foreground");
        }
        if options.dry_run {
            body["dryRun"] = json!(["All"]);
        }
        let path = kind.path(namespace, Some(name));
        let deleted = self
            .change(permit, &call, Method::DELETE, &path, SEND_JSON, &body)
            .await;
        match deleted {
            Ok(_) => Ok(Deletion::Accepted),
            Err(error) if error.reason() == Reason::NotFound => Ok(Deletion::Gone),
            // In a deletion only preconditions conflict: the object of this name is another one now.
            Err(error) if error.reason() == Reason::Conflict && options.uid.is_some() => {
                Ok(Deletion::Gone)
            }
            Err(error) => Err(error),
        }
    }

    /// The kinds that the API server serves. Cached after the first call.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn kinds(&self) -> Result<Arc<Kinds>> {
        self.inner.kinds.get(self).await
    }

    /// The kind of an object by its `apiVersion` and `kind`. Discovery is repeated for an unknown one, as it may be
    /// new.
    ///
    /// # Errors
    /// `Precondition` if the API server does not serve it; otherwise as in [`crate::errors`].
    pub async fn kind_of(&self, api_version: &str, kind: &str) -> Result<Arc<Kind>> {
        if let Some(found) = self.kinds().await?.of(api_version, kind) {
            return Ok(found);
        }
        let kinds = self.inner.kinds.refresh(self).await?;
        kinds.of(api_version, kind).ok_or_else(|| {
            Error::new(
                Reason::Precondition,
                format!("the API server does not serve the kind {kind} of {api_version}"),
            )
        })
    }

    /// Whether the credentials allow a verb on a subresource of pods in a namespace; an empty namespace means all.
    /// Assumed to be allowed if the server does not tell: it refuses the call itself later.
    pub async fn may(&self, verb: &str, subresource: &str, namespace: &str) -> bool {
        self.may_with(verb, ("", "pods"), subresource, namespace)
            .await
    }

    /// Like [`Api::may`], for any resource by API group and plural.
    pub async fn may_with(
        &self,
        verb: &str,
        (group, resource): (&str, &str),
        subresource: &str,
        namespace: &str,
    ) -> bool {
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": verb, "group": group, "resource": resource, "subresource": subresource,
                "namespace": namespace
            }}
        });
        let call = Call::path("create", path);
        let permit = self.acquire_permit().await;
        let answer = self
            .change(permit, &call, Method::POST, path, SEND_JSON, &review)
            .await;
        let answer = answer.and_then(|body| decode::<Value>(&call, &body));
        let allowed = answer.map(|it| it.pointer("/status/allowed").and_then(Value::as_bool));
        !matches!(allowed, Ok(Some(false)))
    }

    /// Reads any path as JSON.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn read_path<T: DeserializeOwned>(&self, path: &str, accept: &str) -> Result<T> {
        let call = Call::path("get", path);
        let request = self.request(Method::GET, path, accept);
        let body = self.read(&call, &request).await?;
        decode(&call, &body)
    }

    /// Timeout of one call.
    pub(crate) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    pub(crate) fn raw(&self) -> kube::Client {
        self.inner.connection.client()
    }

    /// Reloads credentials when they change on disk. Runs until it is dropped.
    pub async fn follow_credentials(&self) {
        self.inner.connection.follow().await;
    }

    fn request(&self, method: Method, path: &str, accept: &str) -> PreparedRequest {
        PreparedRequest {
            method,
            path: path.to_owned(),
            accept: accept.to_owned(),
            content_type: None,
            body: Bytes::new(),
        }
    }

    /// A read-only call. Retried once after a pause that the server asked for, or with new credentials.
    async fn read(&self, call: &Call, request: &PreparedRequest) -> Result<Bytes> {
        let first = {
            let _permit = self.acquire_permit().await;
            self.send(call, request).await
        };
        match first {
            Err(error) if error.reason() == Reason::RateLimited => {}
            Err(error)
                if error.reason() == Reason::CredentialsRefused
                    && self.inner.connection.reload_if_changed().await => {}
            other => return other,
        }
        let _permit = self.acquire_permit().await;
        self.send(call, request).await
    }

    async fn change(
        &self,
        permit: CallPermit,
        call: &Call,
        method: Method,
        path: &str,
        media: Media,
        body: &impl Serialize,
    ) -> Result<Bytes> {
        let body = serde_json::to_vec(body).map_err(|_| {
            Error::internal(format!("{call}: the object cannot be written as JSON"))
        })?;
        let request = PreparedRequest {
            method,
            path: path.to_owned(),
            accept: media.wanted.to_owned(),
            content_type: Some(media.sent),
            body: Bytes::from(body),
        };
        let done = self.send(call, &request).await;
        drop(permit);
        if matches!(&done, Err(error) if error.reason() == Reason::CredentialsRefused) {
            // Used by the next call; this one is not retried.
            self.inner.connection.reload_if_changed().await;
        }
        done
    }

    async fn send(&self, call: &Call, request: &PreparedRequest) -> Result<Bytes> {
        use http_body_util::BodyExt as _;
        let mut span = call.span(request.method.as_str());
        let sent = async {
            let response = self.respond(call, request).await?;
            match response.into_body().collect().await {
                Ok(body) => Ok(body.to_bytes()),
                Err(error) => Err(crate::errors::cut_off(call, &error)),
            }
        };
        let sent = tokio::time::timeout(self.inner.timeout, sent);
        let answer = match drover_telemetry::span::within(span.as_ref(), sent).await {
            Ok(answer) => answer,
            Err(_) => Err(crate::errors::timeout(call, self.inner.timeout)),
        };
        if let (Some(span), Err(error)) = (&mut span, &answer) {
            // The message of the API server, or of a webhook, may quote rendered template output.
            span.fail(drover_convert::error::reason_name(error.reason()), "");
        }
        answer
    }

    /// Sends a request and awaits the head of the response. A status other than success becomes an error.
    async fn respond(
        &self,
        call: &Call,
        request: &PreparedRequest,
    ) -> Result<http::Response<Body>> {
        use http_body_util::BodyExt as _;
        let response = self
            .raw()
            .send(request.build()?)
            .await
            .map_err(|error| crate::errors::transport(call, &error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let limited = http_body_util::Limited::new(body, crate::errors::MAX_STATUS);
        // Without a readable body the status code still tells what is wrong.
        let body = limited
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let error = crate::errors::status(call, head.status, &head.headers, &body);
        if error.reason() == Reason::RateLimited {
            self.pause(error.retry_after().unwrap_or(DEFAULT_PAUSE));
        }
        Err(error)
    }

    /// Suspends calls for a while.
    fn pause(&self, span: Duration) {
        let until = Instant::now() + span.min(MAX_PAUSE);
        let mut pause = self.inner.pause.lock();
        *pause = Some(pause.map_or(until, |now| now.max(until)));
    }
}

struct PreparedRequest {
    method: Method,
    path: String,
    accept: String,
    content_type: Option<&'static str>,
    body: Bytes,
}

impl PreparedRequest {
    fn build(&self) -> Result<Request<Body>> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(header::ACCEPT, &self.accept);
        if let Some(content_type) = self.content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let mut request = request
            .body(Body::from(self.body.clone()))
            .map_err(|_| Error::invalid("", format!("{:?} is no path of an API", self.path)))?;
        // API servers support tracing too.
        if let Some(context) = drover_telemetry::current() {
            context.put(request.headers_mut());
        }
        Ok(request)
    }
}

fn decode<T: DeserializeOwned>(call: &Call, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| crate::errors::unreadable(call, &error))
}

/// The metadata of an object, in JSON or protobuf.
fn read_object(call: &Call, body: Bytes) -> Result<Object> {
    if !is_protobuf(&body) {
        return decode(call, &body);
    }
    let read: protobuf::Partial =
        read_protobuf(body).map_err(|error| crate::errors::unreadable_protobuf(call, &error))?;
    Ok(read.into())
}

fn name_of(object: &Value) -> &str {
    let name = object.pointer("/metadata/name");
    name.and_then(Value::as_str).unwrap_or_default()
}

/// Percent-encodes text for a path or query.
#[must_use]
pub fn escape(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut out, byte| {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
                out.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
            out
        })
}
