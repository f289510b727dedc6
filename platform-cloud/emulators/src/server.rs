//! The HTTP server of all emulators: reads requests, injects faults, and keeps the log.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::control::{Control, Fault, Request};
use crate::world::{Clock, Hand, Machine, Made, Rate, Settings};

pub use crate::emulator::Emulator;

/// Limit of request bodies. None of the emulated APIs accepts larger ones.
const BODY_LIMIT: usize = 16 << 20;

/// An emulated API. Calls are serialized and execute immediately; the effects of elapsed time are computed from the
/// clock at the next call.
pub trait Api: Send + Sync + 'static {
    /// Returns the API's own name of the operation (`?` if unknown), and parameters worth asserting on: never user data
    /// or credentials.
    fn name(&self, call: &Call) -> (String, Vec<(String, String)>);

    /// Returns the name of a call that changes something: its operation, followed by ` of ` and a kind if the operation
    /// changes things of several kinds. `None` for a call that only reads, and for one that is not known.
    fn change(&self, operation: &str, call: &Call) -> Option<String> {
        (call.method != Method::GET && operation != "?").then(|| operation.to_owned())
    }

    /// Executes the call. Credentials are checked here, so that faults take precedence over them.
    fn handle(&self, operation: &str, call: &Call) -> Answer;

    /// Formats an error of the API.
    fn refuse(&self, operation: &str, call: &Call, refusal: &Refusal) -> Answer;

    /// All machines that are not deleted, whether lists show them or not.
    fn machines(&self) -> Vec<Machine>;

    /// All resources ever created.
    fn ledger(&self) -> Vec<Made>;

    /// Applies a change out of band, bypassing the API. Returns false if there is no such machine, or nothing to do.
    fn by_hand(&self, id: &str, hand: &Hand) -> bool;
}

/// Reason for which a request is refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// An injected error.
    Error {
        /// HTTP status.
        status: u16,
        /// Error code of the API.
        code: String,
        /// Error message.
        message: String,
    },
    /// Throttling.
    Throttle {
        /// Delay until the next attempt, if known.
        retry_after: Option<Duration>,
    },
    /// The zone has no capacity left.
    NoCapacity,
    /// The quota of the account is exceeded.
    Quota,
    /// The call is accepted, and its operation fails.
    Later {
        /// Error code of the operation.
        code: String,
        /// Error message.
        message: String,
    },
}

/// A parsed request.
#[derive(Clone)]
pub struct Call {
    /// HTTP method.
    pub method: Method,
    /// Path without the query, still percent-encoded.
    pub path: String,
    /// Decoded query parameters in order.
    pub query: Vec<(String, String)>,
    /// HTTP headers.
    pub headers: HeaderMap,
    /// Complete body; empty if there is none.
    pub body: Bytes,
}

impl Call {
    /// The decoded segments of the path, without empty ones.
    pub fn segments(&self) -> Vec<String> {
        self.path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(decode_path)
            .collect()
    }

    /// Returns the first value of a query parameter.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// How the client calls itself, in the header `user-agent` and Amazon's own.
    pub fn client(&self) -> String {
        let names = ["user-agent", "x-amz-user-agent"];
        let names = names.map(|name| self.header(name).unwrap_or_default());
        names.join(" ")
    }

    /// Returns a header if it is present and valid text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Parses the body as JSON; an empty body is null.
    pub fn json(&self) -> Result<Value, serde_json::Error> {
        if self.body.is_empty() {
            Ok(Value::Null)
        } else {
            serde_json::from_slice(&self.body)
        }
    }

    /// Parses the body as form parameters, in order.
    pub fn form(&self) -> Vec<(String, String)> {
        pairs(&String::from_utf8_lossy(&self.body))
    }
}

/// A response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers other than length and date.
    pub headers: Vec<(HeaderName, String)>,
    /// Complete body.
    pub body: Bytes,
    /// Time until it is sent.
    pub after: Duration,
}

impl Answer {
    /// Creates a response without a body.
    pub fn empty(status: u16) -> Answer {
        Answer {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            after: Duration::ZERO,
        }
    }

    /// Creates a response with a body of this content type.
    pub fn text(status: u16, content_type: &str, body: impl Into<Bytes>) -> Answer {
        let headers = vec![(http::header::CONTENT_TYPE, content_type.to_owned())];
        Answer {
            status,
            headers,
            body: body.into(),
            after: Duration::ZERO,
        }
    }

    /// Creates a JSON response.
    pub fn json(status: u16, value: &Value) -> Answer {
        Answer::text(status, "application/json", value.to_string())
    }

    /// Sends it only after this time.
    pub fn after(mut self, time: Duration) -> Answer {
        self.after = time;
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers
            .push((HeaderName::from_static(name), value.into()));
        self
    }
}

/// A running server. It stops on shutdown or drop.
pub struct Server {
    address: SocketAddr,
    control: Control,
    clock: Arc<Clock>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Serves an API on the settings' port of 127.0.0.1. Must be called within a tokio runtime.
    pub async fn start<A: Api>(
        api: Arc<A>,
        clock: Arc<Clock>,
        settings: &Settings,
    ) -> io::Result<Arc<Server>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port)).await?;
        let address = listener.local_addr()?;
        let control = Control::new();
        let host = Arc::new(Host {
            api,
            control: control.clone(),
            clock: clock.clone(),
            rate: settings.rate.map(|rate| Rate::new(rate, settings.burst)),
            stalled: Mutex::default(),
        });
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(accept(listener, host, stopped));
        Ok(Arc::new(Server {
            address,
            control,
            clock,
            stop,
            task: Mutex::new(Some(task)),
        }))
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Fault injection and request log.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The clock from which the API takes its times.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Closes all connections and the port. The state remains readable.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::warn!(%error, "the emulator's server did not end well");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

struct Host<A> {
    api: Arc<A>,
    control: Control,
    clock: Arc<Clock>,
    rate: Option<Rate>,
    /// Stalled requests; they complete even if their client has disconnected.
    stalled: Mutex<JoinSet<()>>,
}

async fn accept<A: Api>(
    listener: TcpListener,
    host: Arc<Host<A>>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(connection(stream, host.clone())); }
                // Most likely out of file descriptors, some of which will be closed soon.
                Err(error) => {
                    tracing::warn!(%error, "an emulator cannot accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    tracing::error!(%error, "an emulator's handler panicked");
                }
            }
            _ = stopped.changed() => return,
        }
    }
}

async fn connection<A: Api>(stream: TcpStream, host: Arc<Host<A>>) {
    // A response is one small write; Nagle's algorithm would delay it by 40 ms.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let host = host.clone();
        async move { serve(host, request).await }
    });
    // An error means that the connection was closed by a fault, or by the client: the log has it.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The connection is to be closed without a response.
#[derive(Debug)]
struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("closed without an answer")
    }
}

impl std::error::Error for Closed {}

async fn serve<A: Api>(
    host: Arc<Host<A>>,
    request: http::Request<Incoming>,
) -> Result<http::Response<AnswerBody>, Closed> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, BODY_LIMIT).collect().await else {
        return Ok(response(&host.clock, Answer::empty(413), false));
    };
    let call = Call {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: pairs(head.uri.query().unwrap_or_default()),
        headers: head.headers,
        body: body.to_bytes(),
    };
    if let Some(answer) = crate::admin::answer(&*host.api, &host.control, &host.clock, &call) {
        return Ok(response(&host.clock, answer, false));
    }
    let (operation, parameters) = host.api.name(&call);
    let change = host.api.change(&operation, &call);
    let fault = host.control.take_fault(&operation, change.as_deref());
    if let Some(change) = change {
        host.control.changed(change, call.client());
    }
    let number = host.control.arrived(Request {
        operation: operation.clone(),
        method: call.method.to_string(),
        path: call.path.clone(),
        parameters,
        status: None,
        fault: fault.clone(),
        at: Instant::now(),
    });
    let cut = fault == Some(Fault::CutAnswer);
    let answer = host.meet(fault, operation, call).await.ok_or(Closed)?;
    if !answer.after.is_zero() {
        tokio::time::sleep(answer.after).await;
    }
    host.control.answered(number, answer.status);
    Ok(response(&host.clock, answer, cut))
}

impl<A: Api> Host<A> {
    /// Executes a request under a fault; `None` if the connection is to be closed.
    async fn meet(
        self: &Arc<Self>,
        fault: Option<Fault>,
        operation: String,
        call: Call,
    ) -> Option<Answer> {
        let refuse = |refusal: Refusal| Some(self.api.refuse(&operation, &call, &refusal));
        match fault {
            None | Some(Fault::CutAnswer) => Some(self.handle(&operation, &call)),
            Some(Fault::Refuse {
                status,
                code,
                message,
            }) => refuse(Refusal::Error {
                status,
                code,
                message,
            }),
            Some(Fault::RefuseAfter {
                status,
                code,
                message,
            }) => {
                self.handle(&operation, &call);
                refuse(Refusal::Error {
                    status,
                    code,
                    message,
                })
            }
            Some(Fault::Throttle { retry_after }) => refuse(Refusal::Throttle { retry_after }),
            Some(Fault::NoCapacity) => refuse(Refusal::NoCapacity),
            Some(Fault::Quota) => refuse(Refusal::Quota),
            Some(Fault::FailLater { code, message }) => refuse(Refusal::Later { code, message }),
            Some(Fault::LoseAnswer) => {
                self.handle(&operation, &call);
                None
            }
            Some(Fault::Refused) => None,
            Some(Fault::Stall(wait)) => self.stall(wait, operation, call).await,
        }
    }

    fn handle(&self, operation: &str, call: &Call) -> Answer {
        match self.rate.as_ref().map_or(Ok(()), Rate::take) {
            Ok(()) => self.api.handle(operation, call),
            Err(wait) => self.api.refuse(
                operation,
                call,
                &Refusal::Throttle {
                    retry_after: Some(wait),
                },
            ),
        }
    }

    /// Runs in a task of its own, because hyper drops the request when the client disconnects.
    async fn stall(
        self: &Arc<Self>,
        wait: Duration,
        operation: String,
        call: Call,
    ) -> Option<Answer> {
        let (send, receive) = oneshot::channel();
        let host = Arc::downgrade(self);
        {
            let mut stalled = self.stalled.lock();
            while stalled.try_join_next().is_some() {}
            stalled.spawn(async move {
                tokio::time::sleep(wait).await;
                if let Some(host) = host.upgrade() {
                    // Fails if the client has disconnected.
                    let _ = send.send(host.handle(&operation, &call));
                }
            });
        }
        receive.await.ok()
    }
}

fn response(clock: &Clock, answer: Answer, cut: bool) -> http::Response<AnswerBody> {
    let length = answer.body.len();
    let body = if cut {
        AnswerBody {
            parts: VecDeque::from([answer.body.slice(..length / 2)]),
            cut: Cut::Flush,
            left: length as u64,
        }
    } else {
        AnswerBody {
            parts: VecDeque::from([answer.body]),
            cut: Cut::No,
            left: length as u64,
        }
    };
    let mut response = http::Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    for (name, value) in answer.headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.append(name, value);
        }
    }
    let date = clock
        .now()
        .strftime("%a, %d %b %Y %H:%M:%S GMT")
        .to_string();
    if let Ok(date) = HeaderValue::from_str(&date) {
        headers.insert(http::header::DATE, date);
    }
    if answer.status != 204 {
        headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// A complete response body, or its first half followed by the end of the connection.
struct AnswerBody {
    parts: VecDeque<Bytes>,
    cut: Cut,
    left: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    No,
    /// Lets the connection flush its buffer before it is closed.
    Flush,
    Close,
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(part) = self.parts.pop_front() {
            self.left = self.left.saturating_sub(part.len() as u64);
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        match self.cut {
            Cut::No => Poll::Ready(None),
            Cut::Flush => {
                self.cut = Cut::Close;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Cut::Close => Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty() && self.cut == Cut::No
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Parses the parameters of a query or a form.
pub fn pairs(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true), decode(value, true))
        })
        .collect()
}

fn decode_path(text: &str) -> String {
    decode(text, false)
}

fn decode(text: &str, plus: bool) -> String {
    let spaced = if plus {
        Cow::Owned(text.replace('+', " "))
    } else {
        Cow::Borrowed(text)
    };
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}
