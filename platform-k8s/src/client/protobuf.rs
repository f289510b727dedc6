//! The protobuf encoding of Kubernetes: a quarter of the size of JSON, and cached by the API server for its own
//! controllers, which makes a watch in it almost free for the server. Unused fields are skipped. Field numbers are
//! those of `generated.proto` in `k8s.io/apimachinery` (`meta/v1`, `runtime`).
//!
//! Ours, as kube and k8s-openapi read JSON only.

use std::collections::BTreeMap;

use bytes::Bytes;
use drover_resources_kubernetes::client::protobuf::{object, status};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::core::{
    ListMeta, ObjectList, ObjectMeta, TypeMeta, WatchEvent,
    watch::{Bookmark, BookmarkMeta},
};
use prost::{DecodeError, Message};
use serde::de::DeserializeOwned;
use tokio_util::codec::LengthDelimitedCodec;

use super::Object;

pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An object that can be read from JSON and from protobuf.
pub trait Readable: DeserializeOwned + Clone + Send {
    /// Protobuf message with the fields that are read.
    type Wire: Message + Default + Into<Self>;
}

impl Readable for Object {
    type Wire = Partial;
}

/// Decodes one page of a list.
pub(super) fn list<T: Readable>(body: Bytes) -> Result<ObjectList<T>, DecodeError> {
    let list: List = object(body)?;
    let items = list.items.into_iter();
    let items = items.map(|item| T::Wire::decode(item).map(Into::into));
    let meta = list.metadata.unwrap_or_default();
    Ok(ObjectList {
        types: TypeMeta::default(),
        metadata: ListMeta {
            resource_version: Some(meta.resource_version),
            continue_: Some(meta.next),
            ..ListMeta::default()
        },
        items: items.collect::<Result<_, _>>()?,
    })
}

/// Cuts a watch into its events, which have a length prefix of 4 bytes.
pub(super) fn framing(most: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(most)
        .new_codec()
}

/// Decodes a watch event.
pub(super) fn event<T: Readable>(frame: Bytes) -> Result<WatchEvent<T>, DecodeError> {
    let event = WireEvent::decode(frame)?;
    let body = event.object.unwrap_or_default().raw;
    let item = |body| object::<T::Wire>(body).map(Into::into);
    Ok(match event.kind.as_str() {
        "ADDED" => WatchEvent::Added(item(body)?),
        "MODIFIED" => WatchEvent::Modified(item(body)?),
        "DELETED" => WatchEvent::Deleted(item(body)?),
        "BOOKMARK" => {
            let it: Partial = object(body)?;
            WatchEvent::Bookmark(Bookmark {
                types: TypeMeta::default(),
                metadata: BookmarkMeta {
                    resource_version: it.metadata.unwrap_or_default().resource_version,
                    annotations: BTreeMap::new(),
                },
            })
        }
        _ => WatchEvent::Error(Box::new(status(body))),
    })
}

/// `meta/v1` WatchEvent.
#[derive(Clone, PartialEq, Message)]
struct WireEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// A list of any kind.
#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<WireListMeta>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct WireListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    next: String,
}

/// Any object, reduced to its metadata; also `meta/v1` PartialObjectMetadata.
#[derive(Clone, PartialEq, Message)]
pub struct Partial {
    #[prost(message, optional, tag = "1")]
    metadata: Option<WireMeta>,
}

impl From<Partial> for Object {
    fn from(from: Partial) -> Self {
        super::partial(from.metadata.unwrap_or_default().into())
    }
}

/// `meta/v1` ObjectMeta.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<WireTime>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<WireTime>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<Owner>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
}

impl From<WireMeta> for ObjectMeta {
    fn from(from: WireMeta) -> Self {
        let text = |it: String| (!it.is_empty()).then_some(it);
        let map = |it: BTreeMap<_, _>| (!it.is_empty()).then_some(it);
        let owners = from.owner_references.into_iter().map(Into::into);
        Self {
            name: text(from.name),
            namespace: text(from.namespace),
            uid: text(from.uid),
            resource_version: text(from.resource_version),
            labels: map(from.labels),
            annotations: map(from.annotations),
            creation_timestamp: from.creation_timestamp.and_then(WireTime::time),
            deletion_timestamp: from.deletion_timestamp.and_then(WireTime::time),
            finalizers: Some(from.finalizers).filter(|it| !it.is_empty()),
            owner_references: Some(owners.collect()).filter(|it: &Vec<_>| !it.is_empty()),
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct WireTime {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl WireTime {
    /// `None` for the zero time, which stands for an unset one.
    pub(crate) fn time(self) -> Option<Time> {
        let time = jiff::Timestamp::new(self.seconds, self.nanos).ok()?;
        (self.seconds > 0).then_some(Time(time))
    }
}

#[derive(Clone, PartialEq, Message)]
struct Owner {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, tag = "6")]
    controller: bool,
}

impl From<Owner> for OwnerReference {
    fn from(from: Owner) -> Self {
        Self {
            api_version: from.api_version,
            kind: from.kind,
            name: from.name,
            uid: from.uid,
            controller: from.controller.then_some(true),
            block_owner_deletion: None,
        }
    }
}

#[cfg(test)]
mod tests;
