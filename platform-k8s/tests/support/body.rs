//! Bodies of answers that end as they should, or not.

use std::{collections::VecDeque, io};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderValue, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::broadcast;

/// An answer to the client.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// What happens to a watch that runs.
#[derive(Clone, Debug)]
pub(crate) enum Happens {
    /// The connection breaks in the middle of an event.
    Cut,
    /// It ends as the API server ends it after its timeout.
    End,
    /// Nothing more comes, and it does not end.
    Silence,
    /// This ERROR event, then the end.
    Error(Value),
}

pub(crate) fn whole(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub(crate) fn json(status: http::StatusCode, body: &Value) -> Answer {
    let mut answer = Response::new(whole(body.to_string()));
    *answer.status_mut() = status;
    let media = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, media);
    answer
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "broken on purpose")
}

/// The head of an answer and half of its body; then the connection breaks.
pub(crate) fn cut(head: http::response::Parts, body: &Bytes) -> Answer {
    let half = body.slice(..body.len() / 2);
    let frames = stream::iter([Ok(Frame::data(half)), Err(broken())]);
    let mut answer = Response::from_parts(head, StreamBody::new(frames).boxed_unsync());
    let length = HeaderValue::from(body.len().max(1));
    answer.headers_mut().insert(header::CONTENT_LENGTH, length);
    answer
}

/// The body as it comes.
pub(crate) fn passed(body: Body) -> UnsyncBoxBody<Bytes, io::Error> {
    body.map_err(io::Error::other).boxed_unsync()
}

pub(crate) fn error_event(status: &Value) -> Bytes {
    let event = serde_json::json!({"type": "ERROR", "object": status});
    Bytes::from(format!("{event}\n"))
}

struct Watch {
    upstream: Option<Body>,
    commands: broadcast::Receiver<(String, Happens)>,
    resource: String,
    ready: VecDeque<io::Result<Frame<Bytes>>>,
    silent: bool,
}

/// The events of a watch, until something happens to it.
pub(crate) fn watched(
    upstream: Body,
    commands: broadcast::Receiver<(String, Happens)>,
    resource: String,
    silent: bool,
) -> UnsyncBoxBody<Bytes, io::Error> {
    let watch = Watch {
        upstream: Some(upstream),
        commands,
        resource,
        ready: VecDeque::new(),
        silent,
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
                // The proxy is gone, or was told more than fits: no test does that.
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
                let half = Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Po");
                self.ready.extend([Ok(Frame::data(half)), Err(broken())]);
                self.upstream = None;
            }
            Happens::End => self.upstream = None,
            Happens::Silence => self.silent = true,
            Happens::Error(status) => {
                self.ready.push_back(Ok(Frame::data(error_event(&status))));
                self.upstream = None;
            }
        }
    }
}
