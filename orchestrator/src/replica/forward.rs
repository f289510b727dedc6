//! Forwards calls to the replica that leads, as they are.

use std::{convert::Infallible, task, time::Duration};

use bytes::Bytes;
use drover_client::TransportError;
use drover_convert::error::{from_status, to_status};
use drover_core::{Error, Reason, Result};
use drover_server::{Arrival, CallContext, MAX_MESSAGE_BYTES, Shutdown, access::Forwarding};
use futures::{StreamExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Request, Response, header, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, Full, Limited, StreamBody};
use tokio::time::Instant;
use tonic::{Code, Status, body::Body, server::NamedService};
use tower::ServiceExt;

use super::routing::{Leader, Remote, Routing};
use crate::services::Services;

/// How long a call waits for a replica that leads: longer than it takes to replace one that was killed.
const HOLD: Duration = Duration::from_secs(5);
/// Delay before a leader that cannot be reached, or leads no more, is asked again, unless another one leads by then.
const AGAIN: Duration = Duration::from_millis(50);
/// Size of the gRPC message header.
const GRPC_HEADER: usize = 5;
const TIMEOUT: &str = "grpc-timeout";

/// A service of this process, for while it leads.
type Local<S> = fn(&Services) -> S;

/// A service that is answered by whichever replica leads.
pub(super) struct Routed<S> {
    routing: Routing,
    local: Local<S>,
}

impl<S> Routed<S> {
    pub(super) fn new(routing: &Routing, local: Local<S>) -> Self {
        let routing = routing.clone();
        Self { routing, local }
    }
}

impl<S> Clone for Routed<S> {
    fn clone(&self) -> Self {
        Self {
            routing: self.routing.clone(),
            local: self.local,
        }
    }
}

impl<S: NamedService> NamedService for Routed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> tower::Service<Request<Body>> for Routed<S>
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, std::result::Result<Response<Body>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut task::Context<'_>,
    ) -> task::Poll<std::result::Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // What is one message can be answered by another replica, if this one loses the lead meanwhile.
        let arrival = request.extensions().get::<Arrival>();
        if arrival.is_none_or(|arrival| !arrival.one_message)
            && let Some(services) = self.routing.present()
        {
            return Box::pin((self.local)(&services).oneshot(request));
        }
        let this = self.clone();
        Box::pin(async move {
            let answer = this.forward(request).await;
            Ok(answer.unwrap_or_else(Status::into_http))
        })
    }
}

impl<S> Routed<S>
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    async fn forward(&self, request: Request<Body>) -> std::result::Result<Response<Body>, Status> {
        let mut call = Held::of(request).await?;
        let via = call.arrival.via.clone();
        loop {
            let (until, stop) = (call.until, &call.stop);
            let leader = match &via {
                Some(via) => self.routing.own_lead(via, until, stop).await,
                None => self.routing.answerer(until, stop).await,
            };
            let leader = leader.map_err(|error| to_status(&error))?;
            let answer = match &leader {
                Leader::This(services) => {
                    let answer = (self.local)(services).oneshot(call.own_request()?).await;
                    let answer = answer.unwrap_or_else(|never| match never {});
                    not_leading(answer.headers()).map_or(Ok(answer), Err)
                }
                Leader::Another(leader) => self.ask(leader, &mut call).await?,
                Leader::Unknown => return Err(self.nobody()),
            };
            let failure = match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let next = Instant::now() + AGAIN;
            if !call.is_whole() || call.stop.is_cancelled() {
                return Err(failure);
            }
            if next >= call.until {
                // Whoever was asked took all of the time. Another one that leads by now is asked once.
                if call.is_late || call.is_over() || !self.routing.has_changed(&leader) {
                    return Err(failure);
                }
                call.is_late = true;
                continue;
            }
            self.routing.changed(&leader, next).await;
        }
    }

    fn nobody(&self) -> Status {
        to_status(&self.routing.nobody())
    }

    /// Asks a leader. The inner error is one after which another attempt may be made.
    async fn ask(
        &self,
        leader: &Remote,
        call: &mut Held,
    ) -> std::result::Result<std::result::Result<Response<Body>, Status>, Status> {
        let is_stream = !call.arrival.one_message || call.deadline.is_none();
        let Some(channel) = leader.channel(is_stream) else {
            return Err(self.nobody());
        };
        let mut request = call.request()?;
        let vouched = self.routing.voucher().vouch(
            &call.arrival.caller,
            Forwarding {
                by: self.routing.name(),
                to: &leader.name,
                to_key: &leader.key,
                path: call.head.uri.path(),
            },
            request.headers_mut(),
        );
        vouched.map_err(|error| to_status(&error))?;
        match channel.oneshot(request).await {
            Ok(answer) => Ok(match not_leading(answer.headers()) {
                Some(status) => Err(status),
                None => Ok(relayed(answer, &leader.name)),
            }),
            Err(error) if call.arrival.is_read || !error.was_sent() => {
                Ok(Err(lost(&error, &leader.name)))
            }
            Err(error) => Err(lost(&error, &leader.name)),
        }
    }
}

/// A call that is forwarded, or waits for that.
struct Held {
    head: Parts,
    content: Content,
    arrival: Arrival,
    deadline: Option<Instant>,
    until: Instant,
    /// Whether it is asked after that.
    is_late: bool,
    stop: Shutdown,
}

enum Content {
    Whole(Bytes),
    /// Can be sent once. `None` if it was.
    Stream(Option<Body>),
}

impl Held {
    async fn of(request: Request<Body>) -> std::result::Result<Self, Status> {
        let (head, body) = request.into_parts();
        let missing = || Status::internal("a call without what the server adds to it");
        let arrival = head
            .extensions
            .get::<Arrival>()
            .cloned()
            .ok_or_else(missing)?;
        let context = head
            .extensions
            .get::<CallContext>()
            .cloned()
            .ok_or_else(missing)?;
        let content = if arrival.one_message {
            Content::Whole(whole(body).await?)
        } else {
            Content::Stream(Some(body))
        };
        let hold = Instant::now() + HOLD;
        Ok(Self {
            head,
            content,
            arrival,
            until: context.deadline.map_or(hold, |deadline| deadline.min(hold)),
            deadline: context.deadline,
            is_late: false,
            stop: context.shutdown,
        })
    }

    /// Whether it can be sent again.
    fn is_whole(&self) -> bool {
        matches!(self.content, Content::Whole(_))
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|end| end <= Instant::now())
    }

    fn body(&mut self) -> std::result::Result<Body, Status> {
        match &mut self.content {
            Content::Whole(bytes) => Ok(Body::new(Full::new(bytes.clone()))),
            Content::Stream(body) => body
                .take()
                .ok_or_else(|| Status::internal("a stream cannot be sent twice")),
        }
    }

    /// The request as it came, for a service of this process.
    fn own_request(&mut self) -> std::result::Result<Request<Body>, Status> {
        let body = self.body()?;
        Ok(Request::from_parts(self.head.clone(), body))
    }

    /// The request for another process.
    fn request(&mut self) -> std::result::Result<Request<Body>, Status> {
        let mut request = Request::new(self.body()?);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = self.head.uri.clone();
        *request.headers_mut() = self.head.headers.clone();
        let headers = request.headers_mut();
        headers.remove(header::HOST);
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let text = format!("{}m", left.as_millis().min(99_999_999));
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(TIMEOUT, value);
            }
        }
        Ok(request)
    }
}

/// A message, which is no longer than what a service of this process would take.
async fn whole(body: Body) -> std::result::Result<Bytes, Status> {
    let body = Limited::new(body, MAX_MESSAGE_BYTES + GRPC_HEADER);
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(match error.downcast::<Status>() {
            Ok(status) => *status,
            Err(_) => Status::out_of_range(format!(
                "the message has more than {MAX_MESSAGE_BYTES} bytes"
            )),
        }),
    }
}

/// The answer of a replica that does not lead, and has done nothing.
fn not_leading(headers: &HeaderMap) -> Option<Status> {
    let code = headers.get(Status::GRPC_STATUS)?;
    if Code::from_bytes(code.as_bytes()) != Code::Unavailable {
        return None;
    }
    let status = Status::from_header_map(headers)?;
    (from_status(&status).reason() == Reason::NotLeader).then_some(status)
}

fn lost(error: &TransportError, leader: &str) -> Status {
    let message = error.status().message();
    to_status(&Error::unavailable(format!(
        "{leader}, which leads: {message}"
    )))
}

/// The answer as it is. A connection that ends becomes the status of the call.
fn relayed(answer: Response<Body>, leader: &str) -> Response<Body> {
    let (head, body) = answer.into_parts();
    if head.headers.contains_key(Status::GRPC_STATUS) {
        return Response::from_parts(head, Body::empty());
    }
    let leader = leader.to_owned();
    let frames = BodyStream::new(body).map(move |frame| -> Result<Frame<Bytes>, Status> {
        frame.or_else(|status| {
            let message = format!("{leader}, which led: {}", status.message());
            let mut trailers = HeaderMap::new();
            to_status(&Error::unavailable(message)).add_header(&mut trailers)?;
            Ok(Frame::trailers(trailers))
        })
    });
    // Nothing comes after the status.
    let frames = frames.scan(false, |ended, frame| {
        let last = frame.as_ref().map_or(true, Frame::is_trailers);
        let goes_on = !std::mem::replace(ended, last);
        std::future::ready(goes_on.then_some(frame))
    });
    Response::from_parts(head, Body::new(StreamBody::new(frames)))
}
