//! The platform's calls of the API server: any kind, as little of each object as is needed, in protobuf where there is
//! some. The limits are those of the client below, which the resources use too; calls that change something are sent
//! once.

mod kinds;
mod meta;
mod protobuf;
mod stream;

use std::sync::Arc;

use bytes::Bytes;
use drover_core::{Error, Reason, Result};
use drover_resources_kubernetes::client::{ApiClient, protobuf as wire};
use drover_telemetry::Span;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{
    api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, ValidationDirective},
    client::Body,
    core::{self, ObjectMeta, Resource as _},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::settings::Settings;

pub(crate) use meta::{is_namespace, nullable};
pub(crate) use protobuf::{WireMeta, WireTime};
pub(crate) use stream::bytes;

pub use drover_resources_kubernetes::client::{Call, CallPermit, escape};
pub use kinds::{Kind, Kinds};
pub use kube::core::WatchEvent;
pub use meta::{Meta, Object, partial};
pub use protobuf::Readable;
pub use stream::{Events, ListQuery, Shape};

const JSON: &str = "application/json";

/// Client of the API server. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    client: ApiClient,
    page_size: u32,
    field_manager: String,
    kinds: kinds::Cache,
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
    /// A client of its own. Reads the credentials, and does not contact the API server.
    pub async fn open(settings: &Settings) -> Result<Self> {
        let client = ApiClient::open(&settings.client()).await?;
        Ok(Self::over(client, settings))
    }

    /// Calls through a client, within its limits.
    #[must_use]
    pub fn over(client: ApiClient, settings: &Settings) -> Self {
        Self {
            inner: Arc::new(Inner {
                client,
                page_size: u32::try_from(settings.page_size.max(1)).unwrap_or(u32::MAX),
                field_manager: settings.field_manager.clone(),
                kinds: kinds::Cache::default(),
            }),
        }
    }

    /// Namespace of the kubeconfig context, or of the pod in which this process runs.
    #[must_use]
    pub fn default_namespace(&self) -> String {
        self.inner.client.default_namespace()
    }

    /// Waits until a call may be made, for [`Api::create_now`].
    pub async fn permit(&self) -> CallPermit {
        self.inner.client.permit().await
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
        let read = self.read(call, prepared(call, request, accept)?).await;
        match read.map_err(|error| crate::errors::of(call, &error)) {
            Ok(body) => Ok(Some(body)),
            Err(error) if error.reason() == Reason::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object that must not exist yet. Returns its metadata.
    ///
    /// # Errors
    /// [`Reason::AlreadyExists`] if the name is taken; otherwise as in [`crate::errors`].
    pub async fn create(&self, kind: &Kind, namespace: &str, object: &Value) -> Result<Object> {
        self.post(None, kind, namespace, object, false).await
    }

    /// Like [`Api::create`], by a caller who has waited until it may call.
    ///
    /// # Errors
    /// See [`Api::create`].
    pub async fn create_now(
        &self,
        permit: CallPermit,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Object> {
        self.post(Some(permit), kind, namespace, object, false)
            .await
    }

    /// Dry run of [`Api::create`] that also rejects unknown fields. Creates nothing.
    ///
    /// # Errors
    /// See [`Api::create`].
    pub async fn try_create(&self, kind: &Kind, namespace: &str, object: &Value) -> Result<()> {
        let tried = self.post(None, kind, namespace, object, true).await;
        tried.map(drop)
    }

    async fn post(
        &self,
        permit: Option<CallPermit>,
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
        if let Some(permit) = permit {
            request.extensions_mut().insert(permit);
        }
        let body = self.change(&call, request).await?;
        read_object(&call, body)
    }

    /// Server-side apply without force: creates the object, or updates the fields of our field manager. Returns the
    /// whole object.
    ///
    /// # Errors
    /// [`Reason::Conflict`] if another field manager owns a field, or another object has the name than that of
    /// `metadata.uid`; otherwise as in [`crate::errors`].
    pub async fn apply(&self, kind: &Kind, namespace: &str, object: &Value) -> Result<Value> {
        let name = name_of(object);
        let call = Call::new("patch", kind, namespace, name);
        let request = self.patching(kind, namespace, name, &Patch::Apply(object));
        let request = prepared(&call, request, JSON)?;
        let body = self.change(&call, request).await.map_err(of_patch)?;
        decode(&call, &body)
    }

    /// Server-side apply of an object that is ours: fields that others have set meanwhile are taken back. With
    /// `metadata.uid` in the object, only an object that has it. With `dry_run` nothing is written, and unknown fields are
    /// refused. Returns its metadata.
    ///
    /// # Errors
    /// See [`Api::apply`].
    pub async fn apply_ours(
        &self,
        kind: &Kind,
        namespace: &str,
        object: &Value,
        dry_run: bool,
    ) -> Result<Object> {
        let name = name_of(object);
        let call = Call::new("patch", kind, namespace, name);
        let mut parameters = PatchParams::apply(&self.inner.field_manager).force();
        parameters.dry_run = dry_run;
        parameters.field_validation = dry_run.then_some(ValidationDirective::Strict);
        let requests = kind.requests(namespace);
        let request = requests.patch(&escape(name), &parameters, &Patch::Apply(object));
        let request = prepared(&call, request, stream::METADATA_ONLY)?;
        let body = self.change(&call, request).await.map_err(of_patch)?;
        read_object(&call, body)
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
        kind: &Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Object> {
        self.patch_by(kind, namespace, name, &Patch::Merge(patch))
            .await
    }

    /// Like [`Api::patch`], by a strategic merge patch: lists whose elements have keys keep what the patch does not name.
    ///
    /// # Errors
    /// See [`Api::patch`].
    pub async fn patch_elements(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Object> {
        self.patch_by(kind, namespace, name, &Patch::Strategic(patch))
            .await
    }

    async fn patch_by(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        patch: &Patch<&Value>,
    ) -> Result<Object> {
        let call = Call::new("patch", kind, namespace, name);
        let request = self.patching(kind, namespace, name, patch);
        let request = prepared(&call, request, stream::METADATA_ONLY)?;
        let body = self.change(&call, request).await.map_err(of_patch)?;
        read_object(&call, body)
    }

    /// Deletes an object, or starts its deletion.
    ///
    /// # Errors
    /// See [`crate::errors`].
    pub async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &DeleteParams,
    ) -> Result<Deletion> {
        let call = Call::new("delete", kind, namespace, name);
        let request = kind.requests(namespace).delete(&escape(name), options);
        let request = prepared(&call, request, JSON)?;
        let preconditions = options.preconditions.as_ref();
        match self.change(&call, request).await {
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
        let body = self.change(&call, request).await?;
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
        let body = self.read(&call, prepared(&call, request, accept)?).await;
        let body = body.map_err(|error| crate::errors::of(&call, &error))?;
        decode(&call, &body)
    }

    /// The client below, for what is sent by kube itself.
    pub(crate) fn kube(&self) -> kube::Client {
        self.inner.client.kube()
    }

    /// A read-only call. Sent once more with new credentials if there are any.
    async fn read(&self, call: &Call, request: Request<Vec<u8>>) -> kube::Result<Bytes> {
        let used = self.inner.client.credentials();
        let answer = self.send(call, request.clone()).await;
        if answer.as_ref().is_err_and(are_refused) && self.inner.client.renew(&used).await {
            return self.send(call, request).await;
        }
        answer
    }

    /// A call that changes something. With new credentials only the next one is sent.
    async fn change(&self, call: &Call, request: Request<Vec<u8>>) -> Result<Bytes> {
        let used = self.inner.client.credentials();
        let answer = self.send(call, request).await;
        if answer.as_ref().is_err_and(are_refused) {
            self.inner.client.renew(&used).await;
        }
        answer.map_err(|error| crate::errors::of(call, &error))
    }

    async fn send(&self, call: &Call, request: Request<Vec<u8>>) -> kube::Result<Bytes> {
        let mut span = span(call, request.method().as_str());
        let sent = async {
            let answer = self.respond(request).await?;
            let body = answer.into_body().collect().await?;
            Ok(body.to_bytes())
        };
        let answer = drover_telemetry::span::within(span.as_ref(), sent).await;
        if let (Some(span), Err(error)) = (&mut span, &answer) {
            // The message of the API server, or of a webhook, may quote rendered template output.
            let reason = crate::errors::of(call, error).reason();
            span.fail(drover_convert::error::reason_name(reason), "");
        }
        answer
    }

    /// Sends a request and awaits the head of the answer. A failure becomes an error, as in kube's own calls.
    async fn respond(&self, mut request: Request<Vec<u8>>) -> kube::Result<http::Response<Body>> {
        // API servers support tracing too.
        if let Some(context) = drover_telemetry::current() {
            context.put(request.headers_mut());
        }
        let answer = self.kube().send(request.map(Body::from)).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let body = answer.into_body().collect().await?.to_bytes();
        let status = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
        Err(kube::Error::Api(status))
    }
}

/// The error of a patch. Of an object that was replaced, an API server compares the resourceVersion first, which is a
/// conflict; a uid alone it refuses as a change of an immutable field.
fn of_patch(error: Error) -> Error {
    let mut fields = error.fields().iter();
    if error.reason() == Reason::Invalid && fields.any(|it| it.field.ends_with(".metadata.uid")) {
        return Error::new(Reason::Conflict, error.message());
    }
    error
}

/// Whether the credentials were the reason of a failure.
fn are_refused(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == StatusCode::UNAUTHORIZED,
        kube::Error::Auth(_) => true,
        _ => false,
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
    if !wire::is_protobuf(&body) {
        return decode(call, &body);
    }
    let read: protobuf::Partial =
        wire::object(body).map_err(|error| crate::errors::unreadable_protobuf(call, &error))?;
    Ok(read.into())
}

fn name_of(object: &Value) -> &str {
    let name = object.pointer("/metadata/name");
    name.and_then(Value::as_str).unwrap_or_default()
}
