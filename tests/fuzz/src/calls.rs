//! Raw calls of all gRPC methods.

use std::time::Duration;

use drover_client::Channel;
use drover_testing::needles::Needles;
use http_body_util::{BodyExt, Full};
use prost_reflect::MessageDescriptor;
use tonic::{Code, Status, body::Body};
use tower::Service;

/// How long to wait for the next message of a stream: most streams have nothing to send, so there is no point in
/// waiting.
const STREAM: Duration = Duration::from_millis(20);

/// A method and the channel to its service.
pub(crate) struct Method {
    pub(crate) path: String,
    /// `None` for a method that only receives raw bytes.
    pub(crate) input: Option<MessageDescriptor>,
    pub(crate) streams: bool,
    pub(crate) channel: Channel,
}

/// Outcome of a call.
pub(crate) struct Answer {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The secret that was leaked in the response.
    pub(crate) told: Option<String>,
}

impl Method {
    /// Calls the method. Fails if there is no gRPC response at all.
    pub(crate) async fn call(&self, body: Vec<u8>, needles: &Needles) -> Result<Answer, String> {
        let request = http::Request::post(format!("http://localhost{}", self.path))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "10S")
            .body(Body::new(Full::from(body)))
            .map_err(|error| error.to_string())?;
        let mut channel = self.channel.clone();
        std::future::poll_fn(|cx| channel.poll_ready(cx))
            .await
            .map_err(|error| error.to_string())?;
        let response = channel
            .call(request)
            .await
            .map_err(|error| error.to_string())?;
        if response.status() != 200 {
            return Err(format!("HTTP {}", response.status()));
        }
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Ok(answer(&status, needles, &[]));
        }
        let mut body = response.into_body();
        let mut said = Vec::new();
        loop {
            let next = body.frame();
            let frame = if self.streams {
                match tokio::time::timeout(STREAM, next).await {
                    Ok(frame) => frame,
                    // The stream stays open for as long as somebody listens.
                    Err(_) => return Ok(answer(&Status::ok(""), needles, &said)),
                }
            } else {
                next.await
            };
            let Some(frame) = frame else {
                return Err("it ended without a status".to_owned());
            };
            match frame.map_err(|error| error.to_string())?.into_trailers() {
                Ok(trailers) => {
                    let status = Status::from_header_map(&trailers);
                    let status = status.ok_or("trailers without a status")?;
                    return Ok(answer(&status, needles, &said));
                }
                Err(frame) => said.extend(frame.into_data().unwrap_or_default()),
            }
            if self.streams && !said.is_empty() {
                return Ok(answer(&Status::ok(""), needles, &said));
            }
        }
    }
}

fn answer(status: &Status, needles: &Needles, said: &[u8]) -> Answer {
    let mut texts = [status.message().as_bytes(), status.details(), said].into_iter();
    Answer {
        code: status.code(),
        message: status.message().to_owned(),
        told: texts.find_map(|text| needles.find(text)),
    }
}
