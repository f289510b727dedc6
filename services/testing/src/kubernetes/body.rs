//! Response bodies that end properly, or not.

use std::{collections::VecDeque, io};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::broadcast;

/// A response to the client.
pub type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// An event in the life of a running watch.
#[derive(Clone, Debug)]
pub enum Happens {
    /// The connection breaks in the middle of an event.
    Cut,
    /// It ends as after the API server's timeout.
    End,
    /// It stays open, and nothing more comes.
    Silence,
    /// It sends this ERROR event, then ends.
    Error(Value),
}

pub fn whole(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub fn json(status: http::StatusCode, body: &Value) -> Answer {
    let mut answer = Response::new(whole(body.to_string()));
    *answer.status_mut() = status;
    let media = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, media);
    answer
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "broken on purpose")
}

/// The head of a response and half of its body, then a broken connection.
pub fn cut(head: http::response::Parts, body: &Bytes) -> Answer {
    let half = body.slice(..body.len() / 2);
    let frames = stream::iter([Ok(Frame::data(half)), Err(broken())]);
    let mut answer = Response::from_parts(head, StreamBody::new(frames).boxed_unsync());
    let length = HeaderValue::from(body.len().max(1));
    answer.headers_mut().insert(header::CONTENT_LENGTH, length);
    answer
}

/// The body, streamed through.
pub fn passed(body: Body) -> UnsyncBoxBody<Bytes, io::Error> {
    body.map_err(io::Error::other).boxed_unsync()
}

/// An ERROR event, as a line of JSON or `framed` in protobuf.
pub fn error_event(status: &Value, framed: bool) -> Bytes {
    if !framed {
        let event = serde_json::json!({"type": "ERROR", "object": status});
        return Bytes::from(format!("{event}\n"));
    }
    let text = |name: &str| status[name].as_str().unwrap_or_default().as_bytes();
    let code = status["code"].as_u64().unwrap_or_default();
    // A `meta/v1` Status in a `runtime.Unknown`, in a WatchEvent, with its length as a prefix.
    let mut object = Vec::new();
    put(&mut object, 3, text("message"));
    put(&mut object, 4, text("reason"));
    object.push(6 << 3);
    varint(&mut object, code);
    let mut unknown = b"k8s\0".to_vec();
    put(&mut unknown, 2, &object);
    let mut extension = Vec::new();
    put(&mut extension, 1, &unknown);
    let mut event = Vec::new();
    put(&mut event, 1, b"ERROR");
    put(&mut event, 2, &extension);
    let length = u32::try_from(event.len()).unwrap().to_be_bytes();
    [length.as_slice(), &event].concat().into()
}

fn put(into: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    into.push(field << 3 | 2);
    varint(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

fn varint(into: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

struct Watch {
    upstream: Option<Body>,
    commands: broadcast::Receiver<(String, Happens)>,
    resource: String,
    ready: VecDeque<io::Result<Frame<Bytes>>>,
    silent: bool,
    framed: bool,
}

/// The events of a watch, `framed` in protobuf or as lines of JSON, until a [`Happens`] ends it.
pub fn watched(
    upstream: Body,
    commands: broadcast::Receiver<(String, Happens)>,
    resource: String,
    silent: bool,
    framed: bool,
) -> UnsyncBoxBody<Bytes, io::Error> {
    let watch = Watch {
        upstream: Some(upstream),
        commands,
        resource,
        ready: VecDeque::new(),
        silent,
        framed,
    };
    StreamBody::new(stream::unfold(watch, next).boxed()).boxed_unsync()
}

async fn next(mut watch: Watch) -> Option<(io::Result<Frame<Bytes>>, Watch)> {
    loop {
        if let Some(frame) = watch.ready.pop_front() {
            return Some((frame, watch));
        }
        let upstream = watch.upstream.as_mut()?;
        tokio::select! {
            biased;
            command = watch.commands.recv() => match command {
                Ok((resource, happens)) if resource == watch.resource => watch.happens(happens),
                Ok(_) => {}
                // The proxy is gone, or too many commands were sent, which no test does.
                Err(_) => watch.upstream = None,
            },
            frame = upstream.frame(), if !watch.silent => match frame {
                Some(Ok(frame)) => watch.ready.push_back(Ok(frame)),
                Some(Err(error)) => {
                    watch.ready.push_back(Err(io::Error::other(error)));
                    watch.upstream = None;
                }
                None => watch.upstream = None,
            },
        }
    }
}

impl Watch {
    fn happens(&mut self, happens: Happens) {
        match happens {
            Happens::Cut => {
                let half: &[u8] = if self.framed {
                    b"\0\0\x01\0\x0a\x05ADDED\x12\xff\x01"
                } else {
                    b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Po"
                };
                let half = Bytes::from_static(half);
                self.ready.extend([Ok(Frame::data(half)), Err(broken())]);
                self.upstream = None;
            }
            Happens::End => self.upstream = None,
            Happens::Silence => self.silent = true,
            Happens::Error(status) => {
                self.ready
                    .push_back(Ok(Frame::data(error_event(&status, self.framed))));
                self.upstream = None;
            }
        }
    }
}
