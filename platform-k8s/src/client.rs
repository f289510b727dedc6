//! The only access to the API server. Every call waits for a permit (limited concurrency, and none while the server has
//! asked for a pause), has a timeout, and is sent once: calls that change something are never retried here.

mod kinds;
mod meta;
mod protobuf;
mod stream;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use drover_telemetry::Span;
use http::{HeaderValue, Request, header};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{
    api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, ValidationDirective},
    client::Body,
    core::{self, ObjectMeta, Resource as _},
};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::settings::Settings;

pub(crate) use meta::nullable;
pub(crate) use protobuf::{WireMeta, WireStatus, is_protobuf, object as read_protobuf};
pub(crate) use stream::bytes;

pub use drover_resources_kubernetes::client::Call;
pub use kinds::{Kind, Kinds};
pub use kube::core::WatchEvent;
pub use meta::{Meta, Object, partial};
pub use protobuf::Readable;
pub use stream::{Events, ListQuery, Shape};

use drover_resources_kubernetes::client::Connection;

const JSON: &str = "application/json";
/// Longest pause that a server can request.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Pause if the server names none.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

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
    page_size: u32,
    field_manager: String,
    kinds: kinds::Cache,
}

/// Permission to make one call now. Acquiring it may take a while: check afterwards whether the call is still wanted.
#[derive(Debug)]
pub struct CallPermit(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

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
        let (kubeconfig, context) = (settings.kubeconfig.clone(), settings.context.clone());
        Ok(Self {
            inner: Arc::new(Inner {
                connection: Connection::open(kubeconfig, context, None).await?,
                permits: Arc::new(Semaphore::new(settings.max_concurrent_calls.max(1))),
                pause: Mutex::new(None),
                timeout: settings.call_timeout(),
                page_size: u32::try_from(settings.page_size.max(1)).unwrap_or(u32::MAX),
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
        let body = self.find(&call, kind, JSON).await?;
        body.map(|body| decode(&call, &body)).transpose()
    }

    /// Reads the metadata of an object. `None` if it does not exist.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn get_meta(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectMeta>> {
        let call = Call::new("get", kind, namespace, name);
        let body = self.find(&call, kind, stream::METADATA_ONLY).await?;
        body.map(|body| read_object(&call, body).map(|object| object.metadata))
            .transpose()
    }

    async fn find(&self, call: &Call, kind: &Kind, accept: &'static str) -> Result<Option<Bytes>> {
        let requests = kind.requests(&call.namespace);
        let request = requests.get(&escape(&call.name), &GetParams::default());
        match self.read(call, prepared(call, request, accept)?).await {
            Ok(body) => Ok(Some(body)),
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
        self.post(permit, kind, namespace, object, false).await
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
        let tried = self.post(permit, kind, namespace, object, true).await;
        tried.map(drop)
    }

    async fn post(
        &self,
        permit: CallPermit,
        kind: &Kind,
        namespace: &str,
        object: &Value,
        dry_run: bool,
    ) -> Result<Object> {
        let call = Call::new("create", kind, namespace, name_of(object));
        let parameters = PostParams {
            dry_run,
            field_manager: Some(self.inner.field_manager.clone()),
        };
        let requests = kind.requests(namespace);
        let request = written(object).and_then(|body| requests.create(&parameters, body));
        let mut request = prepared(&call, request, stream::METADATA_ONLY)?;
        let validation = if dry_run {
            ValidationDirective::Strict
        } else {
            // The dry run has validated the fields; doing it again costs the server as much as the first time.
            ValidationDirective::Ignore
        };
        // `PostParams` has no such field.
        let uri = format!("{}&fieldValidation={}", request.uri(), validation.as_str());
        *request.uri_mut() = uri
            .parse()
            .map_err(|_| Error::internal(format!("{call}: the request cannot be written")))?;
        let body = self.change(permit, &call, request).await?;
        read_object(&call, body)
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
        let request = self.patching(kind, namespace, name, &Patch::Apply(object));
        let request = prepared(&call, request, JSON)?;
        let body = self.change(permit, &call, request).await?;
        decode(&call, &body)
    }

    fn patching(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        patch: &Patch<&Value>,
    ) -> BuiltRequest {
        let parameters = PatchParams::apply(&self.inner.field_manager);
        let requests = kind.requests(namespace);
        requests.patch(&escape(name), &parameters, patch)
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
        let request = self.patching(kind, namespace, name, &Patch::Merge(patch));
        let request = prepared(&call, request, stream::METADATA_ONLY)?;
        let body = self.change(permit, &call, request).await?;
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
        options: &DeleteParams,
    ) -> Result<Deletion> {
        let call = Call::new("delete", kind, namespace, name);
        let request = kind.requests(namespace).delete(&escape(name), options);
        let request = prepared(&call, request, JSON)?;
        let preconditions = options.preconditions.as_ref();
        match self.change(permit, &call, request).await {
            Ok(_) => Ok(Deletion::Accepted),
            Err(error) if error.reason() == Reason::NotFound => Ok(Deletion::Gone),
            // In a deletion only preconditions conflict: the object of this name is another one now.
            Err(error)
                if error.reason() == Reason::Conflict
                    && preconditions.is_some_and(|it| it.uid.is_some()) =>
            {
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
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: Some(subresource.to_owned()),
                    namespace: Some(namespace.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        // Without an answer it counts as allowed: the call itself will tell.
        self.review(&review)
            .await
            .map_or(true, |it| it.status.is_none_or(|status| status.allowed))
    }

    async fn review(&self, review: &SelfSubjectAccessReview) -> Result<SelfSubjectAccessReview> {
        let path = SelfSubjectAccessReview::url_path(&(), None);
        let call = Call::path("create", &path);
        let requests = core::Request::new(path);
        let request =
            written(review).and_then(|body| requests.create(&PostParams::default(), body));
        let request = prepared(&call, request, JSON)?;
        let permit = self.acquire_permit().await;
        let body = self.change(permit, &call, request).await?;
        decode(&call, &body)
    }

    /// Reads any path as JSON.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn read_path<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: &'static str,
    ) -> Result<T> {
        let call = Call::path("get", path);
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(core::request::Error::BuildRequest);
        let body = self.read(&call, prepared(&call, request, accept)?).await?;
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

    /// A read-only call. Retried once after a pause that the server asked for, or with new credentials.
    async fn read(&self, call: &Call, request: Request<Vec<u8>>) -> Result<Bytes> {
        let first = {
            let _permit = self.acquire_permit().await;
            self.send(call, request.clone()).await
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
        request: Request<Vec<u8>>,
    ) -> Result<Bytes> {
        let done = self.send(call, request).await;
        drop(permit);
        if matches!(&done, Err(error) if error.reason() == Reason::CredentialsRefused) {
            // Used by the next call; this one is not retried.
            self.inner.connection.reload_if_changed().await;
        }
        done
    }

    async fn send(&self, call: &Call, request: Request<Vec<u8>>) -> Result<Bytes> {
        use http_body_util::BodyExt as _;
        let mut span = span(call, request.method().as_str());
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

    /// Sends a request and awaits the head of the response. A status other than success becomes an error: kube's own
    /// drops `Retry-After`, and reads neither protobuf nor the text of a proxy.
    async fn respond(
        &self,
        call: &Call,
        mut request: Request<Vec<u8>>,
    ) -> Result<http::Response<Body>> {
        use http_body_util::BodyExt as _;
        // API servers support tracing too.
        if let Some(context) = drover_telemetry::current() {
            context.put(request.headers_mut());
        }
        let response = self
            .raw()
            .send(request.map(Body::from))
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

/// Client span of a call. `None` outside of a trace.
fn span(call: &Call, method: &str) -> Option<Span> {
    let mut span = Span::client(format!("{} {}", call.verb, call.kind))?;
    span.set("http.request.method", method.to_owned());
    if !call.namespace.is_empty() {
        span.set("k8s.namespace.name", call.namespace.clone());
    }
    Some(span)
}

type BuiltRequest = std::result::Result<Request<Vec<u8>>, core::request::Error>;

fn written(object: &impl Serialize) -> std::result::Result<Vec<u8>, core::request::Error> {
    serde_json::to_vec(object).map_err(core::request::Error::SerializeBody)
}

/// A request that accepts a media type in answer.
pub(crate) fn prepared(
    call: &Call,
    request: BuiltRequest,
    accept: &'static str,
) -> Result<Request<Vec<u8>>> {
    let mut request = request.map_err(|error| match error {
        core::request::Error::Validation(words) => Error::invalid("", format!("{call}: {words}")),
        // The sources quote what was to be sent.
        _ => Error::internal(format!("{call}: the request cannot be written")),
    })?;
    let accept = HeaderValue::from_static(accept);
    request.headers_mut().insert(header::ACCEPT, accept);
    Ok(request)
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

/// What is written as it is in a segment of a path (RFC 3986, unreserved).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Percent-encodes text for a path, into which kube writes it as it is.
#[must_use]
pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}
