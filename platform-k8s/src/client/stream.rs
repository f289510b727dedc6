//! Paged lists, and watches.

use std::{marker::PhantomData, time::Duration};

use bytes::{Bytes, BytesMut};
use drover_core::{Error, Result};
use drover_resources_kubernetes::client::limits;
use futures::StreamExt as _;
use http::{Request, header};
use http_body_util::BodyExt as _;
use kube::{
    api::{ListParams, WatchParams},
    client::Body,
    core::{ObjectList, WatchEvent},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::codec::{Decoder as _, LengthDelimitedCodec, LinesCodec};

use super::{
    Api, Call, JSON, Kind, decode, prepared,
    protobuf::{self, PROTOBUF, Readable},
    wire,
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

impl Api {
    /// Reads all pages of a consistent list, passing each to `page`. Returns the resourceVersion of the list, from
    /// which a watch continues.
    ///
    /// # Errors
    /// `PageTokenExpired` if the continue token expired before the last page: list again. Otherwise as in
    /// [`crate::errors`].
    pub async fn list<T: Readable>(
        &self,
        query: &ListQuery<'_>,
        page: impl FnMut(Vec<T>),
    ) -> Result<String> {
        let accept = match query.shape {
            Shape::Full => WHOLE,
            Shape::Metadata => METADATA_LIST,
        };
        let read = |call: &Call, body: Bytes| {
            if !wire::is_protobuf(&body) {
                return decode(call, &body);
            }
            protobuf::list(body).map_err(|error| crate::errors::unreadable_protobuf(call, &error))
        };
        self.pages(query, accept, read, page).await
    }

    async fn pages<T: Clone>(
        &self,
        query: &ListQuery<'_>,
        accept: &'static str,
        read: impl Fn(&Call, Bytes) -> Result<ObjectList<T>>,
        mut page: impl FnMut(Vec<T>),
    ) -> Result<String> {
        let call = Call::new("list", query.kind, query.namespace, "");
        let requests = query.kind.requests(query.namespace);
        let mut parameters = ListParams {
            label_selector: some(query.labels),
            field_selector: some(query.fields),
            limit: Some(self.inner.page_size),
            ..ListParams::default()
        };
        loop {
            let request = prepared(&call, requests.list(&parameters), accept)?;
            let body = match self.read(&call, request).await {
                Ok(body) => body,
                Err(error) if limits::is_too_large(&error) && parameters.limit > Some(1) => {
                    parameters.limit = parameters.limit.map(|limit| limit / 2);
                    continue;
                }
                Err(error) => return Err(crate::errors::of(&call, &error)),
            };
            let list = read(&call, body)?;
            page(list.items);
            parameters.continue_token = list.metadata.continue_.filter(|next| !next.is_empty());
            if parameters.continue_token.is_none() {
                return Ok(list.metadata.resource_version.unwrap_or_default());
            }
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
    pub async fn list_json<T: DeserializeOwned + Clone>(
        &self,
        kind: &Kind,
        namespace: &str,
    ) -> Result<Vec<T>> {
        let query = ListQuery {
            kind,
            namespace,
            labels: "",
            fields: "",
            shape: Shape::Full,
        };
        self.list_json_of(&query).await
    }

    /// Like [`Api::list_json`], of a selection.
    ///
    /// # Errors
    /// See [`Api::list`].
    pub async fn list_json_of<T: DeserializeOwned + Clone>(
        &self,
        query: &ListQuery<'_>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let read = |call: &Call, body: Bytes| decode(call, &body);
        self.pages(query, JSON, read, |page| all.extend(page))
            .await?;
        Ok(all)
    }

    /// Opens a watch from a resourceVersion. Only its opening is within the limits of calls.
    ///
    /// # Errors
    /// `PageTokenExpired` if the server no longer has that version. Otherwise as in [`crate::errors`].
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
        let parameters = WatchParams {
            label_selector: some(query.labels),
            field_selector: some(query.fields),
            ..WatchParams::default()
        };
        let request = query.kind.requests(query.namespace);
        let request = prepared(&call, request.watch(&parameters, version), accept)?;
        let response = self.respond(request).await;
        let response = response.map_err(|error| crate::errors::of(&call, &error))?;
        let media = response.headers().get(header::CONTENT_TYPE);
        let framing = if media.is_some_and(|it| it.as_bytes().starts_with(PROTOBUF.as_bytes())) {
            Framing::Protobuf(protobuf::framing(MAX_EVENT))
        } else {
            Framing::Json(LinesCodec::new_with_max_length(MAX_EVENT))
        };
        Ok(Events {
            call,
            framing,
            body: response.into_body(),
            buffer: BytesMut::new(),
            item: PhantomData,
        })
    }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

/// The events of a watch, in order of arrival.
pub struct Events<T> {
    call: Call,
    framing: Framing,
    body: Body,
    buffer: BytesMut,
    item: PhantomData<fn() -> T>,
}

enum Framing {
    /// Each event has a length prefix.
    Protobuf(LengthDelimitedCodec),
    /// Each event is a line.
    Json(LinesCodec),
}

impl<T: Readable> Events<T> {
    /// The next event, or `None` if the server has ended the watch. Cancel safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// `PageTokenExpired`: the version has expired, list again. `DeadlineExceeded`: nothing arrived
    /// for `silence`. Others: the stream was cut.
    pub async fn next(&mut self, silence: Duration) -> Result<Option<WatchEvent<T>>> {
        loop {
            match self.buffered()? {
                Some(WatchEvent::Error(status)) => {
                    return Err(crate::errors::of_status(&self.call, &status, None));
                }
                Some(event) => return Ok(Some(event)),
                None => {}
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
    fn buffered(&mut self) -> Result<Option<WatchEvent<T>>> {
        let call = &self.call;
        let framing = |error: &dyn std::error::Error| {
            Error::unavailable(format!("{call}: an event cannot be read: {error}"))
        };
        match &mut self.framing {
            Framing::Protobuf(codec) => {
                let frame = codec.decode(&mut self.buffer).map_err(|it| framing(&it))?;
                let event = frame
                    .map(|frame| protobuf::event(frame.freeze()))
                    .transpose();
                event.map_err(|error| crate::errors::unreadable_protobuf(call, &error))
            }
            Framing::Json(codec) => loop {
                match codec.decode(&mut self.buffer).map_err(|it| framing(&it))? {
                    None => return Ok(None),
                    Some(line) if line.trim().is_empty() => {}
                    Some(line) => return json_event(call, &line).map(Some),
                }
            },
        }
    }
}

/// An event in JSON. That the watch has failed is read whatever else the server has written there.
fn json_event<T: Readable>(call: &Call, line: &str) -> Result<WatchEvent<T>> {
    decode(call, line.as_bytes()).or_else(|error| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        if event["type"] == "ERROR" {
            return Ok(WatchEvent::Error(Box::new(crate::errors::read(
                &event["object"],
            ))));
        }
        Err(error)
    })
}

/// The body of a response as it arrives (logs).
pub(crate) async fn bytes(
    api: &Api,
    call: Call,
    request: Request<Vec<u8>>,
) -> Result<futures::stream::BoxStream<'static, Result<Vec<u8>>>> {
    let response = api.respond(request).await;
    let response = response.map_err(|error| crate::errors::of(&call, &error))?;
    let stream = response.into_body().into_data_stream();
    Ok(stream
        .map(move |piece| match piece {
            Ok(piece) => Ok(piece.to_vec()),
            Err(error) => Err(crate::errors::cut_off(&call, &error)),
        })
        .boxed())
}
