//! The one way to the API server. Every call waits for its turn (so many at once, none while the server has asked for a
//! pause), has a time limit, and is tried once: nothing that changes something is ever sent again by itself.

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
/// Server-side apply takes YAML, and JSON is YAML.
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
/// Longest pause that a server can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Pause when it names none.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// What is sent, and what is wanted for it.
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

/// The API server. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    turns: Arc<Semaphore>,
    /// Until when the server wants to be left alone.
    pause: Mutex<Option<Instant>>,
    timeout: Duration,
    page_size: usize,
    field_manager: String,
    kinds: kinds::Cache,
}

/// The right to make one call now. Ask whether the call is still wanted after it was got: getting it may take a while.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

/// How an object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// Only the object with this uid.
    pub uid: Option<String>,
    /// Only this version of it.
    pub version: Option<String>,
    /// Time to stop by itself. `None`: the object's own.
    pub grace: Option<Duration>,
    /// What depends on it goes first.
    pub foreground: bool,
    /// Only checks.
    pub dry_run: bool,
}

/// What became of a deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum Deletion {
    /// It is on its way, or was; the API server answers the object or a status.
    Accepted,
    /// There is no such object, or its uid is another.
    Gone,
}

impl Api {
    /// Reads the credentials. Contacts nothing.
    ///
    /// # Errors
    /// `Precondition` if there are no usable credentials.
    pub async fn open(settings: &Settings) -> Result<Self> {
        Ok(Self {
            inner: Arc::new(Inner {
                connection: Connection::open(settings).await?,
                turns: Arc::new(Semaphore::new(settings.max_concurrent_calls.max(1))),
                pause: Mutex::new(None),
                timeout: settings.call_timeout(),
                page_size: settings.page_size.max(1),
                field_manager: settings.field_manager.clone(),
                kinds: kinds::Cache::default(),
            }),
        })
    }

    /// Namespace of the context, or of the pod that this runs in.
    #[must_use]
    pub fn default_namespace(&self) -> String {
        self.inner.connection.default_namespace()
    }

    /// Waits until a call may be made.
    pub async fn turn(&self) -> Turn {
        loop {
            let pause = *self.inner.pause.lock();
            match pause {
                Some(until) if Instant::now() < until => tokio::time::sleep_until(until).await,
                _ => {}
            }
            let turns = Arc::clone(&self.inner.turns);
            let Ok(permit) = turns.acquire_owned().await else {
                // Never closed.
                std::future::pending::<()>().await;
                continue;
            };
            let paused = self
                .inner
                .pause
                .lock()
                .is_some_and(|until| Instant::now() < until);
            if !paused {
                return Turn(permit);
            }
        }
    }

    /// Reads an object; `T` takes what it needs ([`Object`], [`Value`], …). `None`: there is none.
    ///
    /// # Errors
    /// Those of [`crate::errors`].
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

    /// Reads labels, annotations and the like of an object. `None`: there is none.
    ///
    /// # Errors
    /// Those of [`crate::errors`].
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

    /// Makes an object that must not exist; answers its metadata.
    ///
    /// # Errors
    /// [`Reason::AlreadyExists`] if there is one of this name; others are those of [`crate::errors`].
    pub async fn create(
        &self,
        turn: Turn,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Object> {
        let call = Call::new("create", kind, namespace, name_of(object));
        // Its fields were tried out; a second look costs the server as much as the first.
        let path = self.writing(kind, namespace, None, "&fieldValidation=Ignore");
        let body = self
            .change(turn, &call, Method::POST, &path, SEND_METADATA, object)
            .await?;
        read_object(&call, body)
    }

    /// What would stand in the way of [`Api::create`], fields that the kind does not have included. Makes nothing.
    ///
    /// # Errors
    /// As those of [`Api::create`].
    pub async fn try_create(
        &self,
        turn: Turn,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<()> {
        let call = Call::new("create", kind, namespace, name_of(object));
        let path = self.writing(kind, namespace, None, "&dryRun=All&fieldValidation=Strict");
        self.change(turn, &call, Method::POST, &path, SEND_METADATA, object)
            .await
            .map(drop)
    }

    /// Server-side apply without force: makes the object or the fields of it that are ours; answers it whole.
    ///
    /// # Errors
    /// [`Reason::Conflict`] if a field is somebody else's; others are those of [`crate::errors`].
    pub async fn apply(
        &self,
        turn: Turn,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Value> {
        let name = name_of(object);
        let call = Call::new("patch", kind, namespace, name);
        let path = self.writing(kind, namespace, Some(name), "");
        let body = self
            .change(turn, &call, Method::PATCH, &path, SEND_APPLY, object)
            .await?;
        decode(&call, &body)
    }

    fn writing(&self, kind: &Kind, namespace: &str, name: Option<&str>, more: &str) -> String {
        let path = kind.path(namespace, name);
        let manager = escape(&self.inner.field_manager);
        format!("{path}?fieldManager={manager}{more}")
    }

    /// Changes parts of an object by a JSON merge patch; with `metadata.uid` or `metadata.resourceVersion` in it only the
    /// object, or the version of it, that has it. Answers its metadata.
    ///
    /// # Errors
    /// [`Reason::Conflict`] if it has another one; `NotFound`; others are those of [`crate::errors`].
    pub async fn patch(
        &self,
        turn: Turn,
        kind: &Kind,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Object> {
        let call = Call::new("patch", kind, namespace, name);
        let path = self.writing(kind, namespace, Some(name), "");
        let body = self
            .change(turn, &call, Method::PATCH, &path, SEND_MERGE, patch)
            .await?;
        read_object(&call, body)
    }

    /// Deletes an object, or begins to.
    ///
    /// # Errors
    /// Those of [`crate::errors`].
    pub async fn delete(
        &self,
        turn: Turn,
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
            .change(turn, &call, Method::DELETE, &path, SEND_JSON, &body)
            .await;
        match deleted {
            Ok(_) => Ok(Deletion::Accepted),
            Err(error) if error.reason() == Reason::NotFound => Ok(Deletion::Gone),
            // Only the precondition conflicts in a deletion: what has this name now is another object.
            Err(error) if error.reason() == Reason::Conflict && options.uid.is_some() => {
                Ok(Deletion::Gone)
            }
            Err(error) => Err(error),
        }
    }

    /// What the API server serves. From memory after the first time.
    ///
    /// # Errors
    /// Those of [`crate::errors`].
    pub async fn kinds(&self) -> Result<Arc<Kinds>> {
        self.inner.kinds.get(self).await
    }

    /// The kind of an object by its `apiVersion` and `kind`. Asks the API server again for one that is not known, as it
    /// may be new.
    ///
    /// # Errors
    /// `Precondition` if the API server does not serve it; others are those of [`crate::errors`].
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

    /// Whether the credentials may do this with a subresource of pods in a namespace. An empty namespace: in all of them.
    /// A server that does not say so is taken to allow it: it refuses later.
    pub async fn may(&self, verb: &str, subresource: &str, namespace: &str) -> bool {
        self.may_with(verb, ("", "pods"), subresource, namespace)
            .await
    }

    /// The same of any resource, by API group and plural.
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
        let turn = self.turn().await;
        let answer = self
            .change(turn, &call, Method::POST, path, SEND_JSON, &review)
            .await;
        let answer = answer.and_then(|body| decode::<Value>(&call, &body));
        let allowed = answer.map(|it| it.pointer("/status/allowed").and_then(Value::as_bool));
        !matches!(allowed, Ok(Some(false)))
    }

    /// Reads any path as JSON.
    ///
    /// # Errors
    /// Those of [`crate::errors`].
    pub async fn read_path<T: DeserializeOwned>(&self, path: &str, accept: &str) -> Result<T> {
        let call = Call::path("get", path);
        let request = self.request(Method::GET, path, accept);
        let body = self.read(&call, &request).await?;
        decode(&call, &body)
    }

    /// Longest time for one call.
    pub(crate) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    pub(crate) fn raw(&self) -> kube::Client {
        self.inner.connection.client()
    }

    /// Reloads credentials that have changed on disk, now or when they do. Runs until it is dropped.
    pub async fn follow_credentials(&self) {
        self.inner.connection.follow().await;
    }

    fn request(&self, method: Method, path: &str, accept: &str) -> Wanted {
        Wanted {
            method,
            path: path.to_owned(),
            accept: accept.to_owned(),
            content_type: None,
            body: Bytes::new(),
        }
    }

    /// A call that changes nothing: tried once more after a pause that the server asked for, or with new credentials.
    async fn read(&self, call: &Call, wanted: &Wanted) -> Result<Bytes> {
        let first = {
            let _turn = self.turn().await;
            self.send(call, wanted).await
        };
        match first {
            Err(error) if error.reason() == Reason::RateLimited => {}
            Err(error)
                if error.reason() == Reason::CredentialsRefused
                    && self.inner.connection.reload_if_changed().await => {}
            other => return other,
        }
        let _turn = self.turn().await;
        self.send(call, wanted).await
    }

    async fn change(
        &self,
        turn: Turn,
        call: &Call,
        method: Method,
        path: &str,
        media: Media,
        body: &impl Serialize,
    ) -> Result<Bytes> {
        let body = serde_json::to_vec(body).map_err(|_| {
            Error::internal(format!("{call}: the object cannot be written as JSON"))
        })?;
        let wanted = Wanted {
            method,
            path: path.to_owned(),
            accept: media.wanted.to_owned(),
            content_type: Some(media.sent),
            body: Bytes::from(body),
        };
        let done = self.send(call, &wanted).await;
        drop(turn);
        if matches!(&done, Err(error) if error.reason() == Reason::CredentialsRefused) {
            // The next call has them.
            self.inner.connection.reload_if_changed().await;
        }
        done
    }

    async fn send(&self, call: &Call, wanted: &Wanted) -> Result<Bytes> {
        use http_body_util::BodyExt as _;
        let mut span = call.span(wanted.method.as_str());
        let sent = async {
            let response = self.respond(call, wanted).await?;
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
            // The API server, or a webhook, may repeat of an object what a template made.
            span.fail(drover_convert::error::reason_name(error.reason()), "");
        }
        answer
    }

    /// Sends and awaits the head of the answer; one that is no success has become an error.
    async fn respond(&self, call: &Call, wanted: &Wanted) -> Result<http::Response<Body>> {
        use http_body_util::BodyExt as _;
        let response = self
            .raw()
            .send(wanted.build()?)
            .await
            .map_err(|error| crate::errors::transport(call, &error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let limited = http_body_util::Limited::new(body, crate::errors::MAX_STATUS);
        // What cannot be read says nothing, and the code is there.
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

    /// Leaves the server alone for a while.
    fn pause(&self, span: Duration) {
        let until = Instant::now() + span.min(MAX_PAUSE);
        let mut pause = self.inner.pause.lock();
        *pause = Some(pause.map_or(until, |now| now.max(until)));
    }
}

struct Wanted {
    method: Method,
    path: String,
    accept: String,
    content_type: Option<&'static str>,
    body: Bytes,
}

impl Wanted {
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
        // API servers can trace, too.
        if let Some(context) = drover_telemetry::current() {
            context.put(request.headers_mut());
        }
        Ok(request)
    }
}

fn decode<T: DeserializeOwned>(call: &Call, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| crate::errors::unreadable(call, &error))
}

/// The metadata of an object, in whichever encoding.
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

/// A text as a part of a path or query.
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
