//! Paged lists, and watches.

use std::{marker::PhantomData, time::Duration};

use bytes::{Bytes, BytesMut};
use drover_core::{Error, Reason, Result};
use futures::StreamExt as _;
use http::Method;
use http::header;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    Api, Call, JSON, Kind, decode, escape,
    protobuf::{self, PROTOBUF, Readable},
};

/// Only the metadata of an object, or of the objects of a watch. Servers that do not support partial objects send whole
/// ones.
pub(super) const METADATA_ONLY: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Whole objects. Kinds added to the API server, such as custom resources, are available as JSON only.
const WHOLE: &str = "application/vnd.kubernetes.protobuf,application/json";
const WHOLE_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/json";
const METADATA_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Maximum size of a watch event; objects have at most 3 MiB.
const MAX_EVENT: usize = 16 * 1024 * 1024;
/// How long the server keeps a watch open, in seconds.
const WATCH_SECONDS: u32 = 290;

/// How much of each object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The whole object.
    Full,
    /// Only its metadata.
    Metadata,
}

/// Selection of the objects of a list or watch.
#[derive(Clone, Debug)]
pub struct ListQuery<'a> {
    /// Kind of the objects.
    pub kind: &'a Kind,
    /// Namespace. Empty for all.
    pub namespace: &'a str,
    /// Label selector. Empty for all objects.
    pub labels: &'a str,
    /// Field selector. Empty for all objects.
    pub fields: &'a str,
    /// How much of each object is read.
    pub shape: Shape,
}

/// One page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub struct Page<T> {
    /// resourceVersion of the list, and continue token.
    #[serde(default)]
    metadata: PageMeta,
    /// Objects of the page.
    #[serde(default = "Vec::new", deserialize_with = "super::meta::nullable")]
    pub items: Vec<T>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

impl Api {
    /// Reads all pages of a consistent list, passing each to `page`. Returns the resourceVersion of the list, from
    /// which a watch continues.
    ///
    /// # Errors
    /// [`Reason::PageTokenExpired`] if the continue token expired before the last page: list again. Otherwise as in
    /// [`crate::errors`].
    pub async fn list<T: Readable>(
        &self,
        query: &ListQuery<'_>,
        mut page: impl FnMut(Vec<T>),
    ) -> Result<String> {
        let call = Call::new("list", query.kind, query.namespace, "");
        let accept = match query.shape {
            Shape::Full => WHOLE,
            Shape::Metadata => METADATA_LIST,
        };
        let mut next = String::new();
        loop {
            let path = format!(
                "{}?limit={}{}{}",
                query.kind.path(query.namespace, None),
                self.inner.page_size,
                query.selectors(),
                parameter("continue", &next)
            );
            let body = self
                .read(&call, &self.request(Method::GET, &path, accept))
                .await?;
            let (items, version, more) = if protobuf::is_protobuf(&body) {
                protobuf::list(body)
                    .map_err(|error| crate::errors::unreadable_protobuf(&call, &error))?
            } else {
                let read: Page<T> = decode(&call, &body)?;
                (
                    read.items,
                    read.metadata.resource_version,
                    read.metadata.next,
                )
            };
            page(items);
            if more.is_empty() {
                return Ok(version);
            }
            next = more;
        }
    }

    /// Collects all objects of a list.
    ///
    /// # Errors
    /// See [`Api::list`].
    pub async fn list_all<T: Readable>(&self, query: &ListQuery<'_>) -> Result<Vec<T>> {
        let mut all = Vec::new();
        self.list(query, |page| all.extend(page)).await?;
        Ok(all)
    }

    /// All objects of a kind in a namespace as JSON, for fields that are read nowhere else.
    ///
    /// # Errors
    /// See [`Api::list`].
    pub async fn list_json<T: DeserializeOwned>(
        &self,
        kind: &Kind,
        namespace: &str,
    ) -> Result<Vec<T>> {
        let call = Call::new("list", kind, namespace, "");
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let path = format!(
                "{}?limit={}{}",
                kind.path(namespace, None),
                self.inner.page_size,
                parameter("continue", &next)
            );
            let body = self
                .read(&call, &self.request(Method::GET, &path, JSON))
                .await?;
            let page: Page<T> = decode(&call, &body)?;
            all.extend(page.items);
            if page.metadata.next.is_empty() {
                return Ok(all);
            }
            next = page.metadata.next;
        }
    }

    /// Opens a watch from a resourceVersion. It holds no permit while it is open.
    ///
    /// # Errors
    /// [`Reason::PageTokenExpired`] if the server no longer has that version. Otherwise as in [`crate::errors`].
    pub async fn watch<T: Readable>(
        &self,
        query: &ListQuery<'_>,
        version: &str,
    ) -> Result<Events<T>> {
        let call = Call::new("watch", query.kind, query.namespace, "");
        let accept = match query.shape {
            Shape::Full => WHOLE_WATCH,
            Shape::Metadata => METADATA_WATCH,
        };
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}{}{}",
            query.kind.path(query.namespace, None),
            query.selectors(),
            parameter("resourceVersion", version)
        );
        // A permit only for opening, so that a pause applies to watches too.
        let permit = self.acquire_permit().await;
        let wanted = self.request(Method::GET, &path, accept);
        let opened = tokio::time::timeout(self.inner.timeout, self.respond(&call, &wanted)).await;
        drop(permit);
        let response = match opened {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                if error.reason() == Reason::CredentialsRefused {
                    self.inner.connection.reload_if_changed().await;
                }
                return Err(error);
            }
            Err(_) => return Err(crate::errors::timeout(&call, self.inner.timeout)),
        };
        let media = response.headers().get(header::CONTENT_TYPE);
        let framed = media.is_some_and(|media| media.as_bytes().starts_with(PROTOBUF.as_bytes()));
        Ok(Events {
            call,
            framed,
            body: response.into_body(),
            buffer: BytesMut::new(),
            searched: 0,
            item: PhantomData,
        })
    }
}

impl ListQuery<'_> {
    fn selectors(&self) -> String {
        format!(
            "{}{}",
            parameter("labelSelector", self.labels),
            parameter("fieldSelector", self.fields)
        )
    }
}

fn parameter(name: &str, value: &str) -> String {
    if value.is_empty() {
        String::new()
    } else {
        format!("&{name}={}", escape(value))
    }
}

/// Type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventType {
    /// The object is new to this watch.
    Added,
    /// The object has changed.
    Modified,
    /// The object was deleted, or the selector no longer matches it.
    Deleted,
    /// No change; all events up to its resourceVersion were sent.
    Bookmark,
    /// The server ends the watch.
    Error,
}

/// One event of a watch.
#[derive(Debug, Deserialize)]
pub struct Event<T> {
    /// Type of the event.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Object to which it happened.
    pub object: T,
}

/// The events of a watch, in order of arrival.
pub struct Events<T> {
    call: Call,
    /// In protobuf each event has a length prefix; otherwise each is a line of JSON.
    framed: bool,
    body: Body,
    buffer: BytesMut,
    /// Bytes at the start of the buffer that are known to contain no newline.
    searched: usize,
    item: PhantomData<fn() -> T>,
}

impl<T: Readable> Events<T> {
    /// The next event, or `None` if the server has ended the watch. Cancel safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Reason::PageTokenExpired`]: the version has expired, list again. [`Reason::DeadlineExceeded`]: nothing arrived
    /// for `silence`. Others: the stream was cut.
    pub async fn next(&mut self, silence: Duration) -> Result<Option<Event<T>>> {
        loop {
            let read = if self.framed {
                self.framed()?
            } else {
                self.lined()?
            };
            if read.is_some() {
                return Ok(read);
            }
            match tokio::time::timeout(silence, self.body.frame()).await {
                Err(_) => return Err(crate::errors::timeout(&self.call, silence)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(crate::errors::cut_off(&self.call, &error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The next event in the buffer, if it is complete.
    fn framed(&mut self) -> Result<Option<Event<T>>> {
        let frame = protobuf::frame(&mut self.buffer, MAX_EVENT).map_err(|_| self.is_too_long())?;
        let Some(frame) = frame else {
            return Ok(None);
        };
        let wrong = |error| crate::errors::unreadable_protobuf(&self.call, &error);
        let (kind, object) = protobuf::event(frame).map_err(wrong)?;
        let kind = match kind.as_str() {
            "ADDED" => EventType::Added,
            "MODIFIED" => EventType::Modified,
            "DELETED" => EventType::Deleted,
            "BOOKMARK" => EventType::Bookmark,
            _ => {
                let status: protobuf::WireStatus = protobuf::object(object).map_err(wrong)?;
                return Err(crate::errors::of_status(&self.call, status.into(), None));
            }
        };
        let object: T::Wire = protobuf::object(object).map_err(wrong)?;
        Ok(Some(Event {
            kind,
            object: object.into(),
        }))
    }

    fn lined(&mut self) -> Result<Option<Event<T>>> {
        while let Some(line) = self.line() {
            if !line.iter().all(u8::is_ascii_whitespace) {
                return self.event(&line).map(Some);
            }
        }
        if self.buffer.len() > MAX_EVENT {
            return Err(self.is_too_long());
        }
        Ok(None)
    }

    fn is_too_long(&self) -> Error {
        Error::unavailable(format!("{}: an event is too long", self.call))
    }

    fn line(&mut self) -> Option<Bytes> {
        let Some(at) = self.buffer[self.searched..]
            .iter()
            .position(|&b| b == b'\n')
        else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + at + 1).freeze();
        self.searched = 0;
        Some(line)
    }

    fn event(&self, line: &[u8]) -> Result<Event<T>> {
        #[derive(Deserialize)]
        struct Type {
            #[serde(rename = "type")]
            kind: EventType,
        }
        // Most events have the expected shape and are parsed once.
        match serde_json::from_slice::<Event<T>>(line) {
            Ok(event) if event.kind != EventType::Error => return Ok(event),
            Ok(_) => {}
            Err(error) => match serde_json::from_slice::<Type>(line) {
                Ok(event) if event.kind == EventType::Error => {}
                _ => return Err(crate::errors::unreadable(&self.call, &error)),
            },
        }
        let status: Event<crate::errors::Status> = decode(&self.call, line)?;
        Err(crate::errors::of_status(&self.call, status.object, None))
    }
}

/// The body of a response as it arrives (logs).
pub(crate) async fn bytes(
    api: &Api,
    call: Call,
    path: &str,
) -> Result<futures::stream::BoxStream<'static, Result<Vec<u8>>>> {
    let permit = api.acquire_permit().await;
    let wanted = api.request(Method::GET, path, "*/*");
    let response = api.respond(&call, &wanted).await?;
    drop(permit);
    let stream = response.into_body().into_data_stream();
    Ok(stream
        .map(move |piece| match piece {
            Ok(piece) => Ok(piece.to_vec()),
            Err(error) => Err(crate::errors::cut_off(&call, &error)),
        })
        .boxed())
}
