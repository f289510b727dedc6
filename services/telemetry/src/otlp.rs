//! The part of `opentelemetry.proto.collector.trace.v1` that is used here.

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::{
    context::Context,
    span::{Kind, Recorded, Value},
};

/// gRPC path of the call.
pub(crate) const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(crate) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(crate) error_message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(fixed32, tag = "6")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

/// `STATUS_CODE_ERROR`
const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Content", tags = "1, 3")]
    content: Option<Content>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Content {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

impl KeyValue {
    pub(crate) fn new(key: &str, value: Value) -> Self {
        let content = match value {
            Value::Text(text) => Content::Text(text.into_owned()),
            Value::Number(number) => Content::Number(number),
        };
        Self {
            key: key.to_owned(),
            value: Some(AnyValue {
                content: Some(content),
            }),
        }
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl From<Context> for Link {
    fn from(context: Context) -> Self {
        Self {
            trace_id: context.trace_id().to_be_bytes().to_vec(),
            span_id: context.span_id().to_be_bytes().to_vec(),
            flags: context.flags().into(),
        }
    }
}

impl From<Recorded> for SpanMessage {
    fn from(span: Recorded) -> Self {
        let parent = span.parent.map(|id| id.to_be_bytes().to_vec());
        let attributes = span.attributes.into_iter();
        Self {
            trace_id: span.context.trace_id().to_be_bytes().to_vec(),
            span_id: span.context.span_id().to_be_bytes().to_vec(),
            parent_span_id: parent.unwrap_or_default(),
            name: span.name.into_owned(),
            kind: match span.kind {
                Kind::Internal => 1,
                Kind::Server => 2,
                Kind::Client => 3,
            },
            start_time_unix_nano: nanos(span.start),
            end_time_unix_nano: nanos(span.end),
            attributes: attributes
                .map(|(key, value)| KeyValue::new(key, value))
                .collect(),
            links: span.links.into_iter().map(Link::from).collect(),
            status: span.error.map(|message| Status {
                message,
                code: ERROR,
            }),
            flags: span.context.flags().into(),
        }
    }
}
