//! A minimal HTTP client that is independent of the APIs.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "each test binary uses a part of it"
)]

pub mod ec2;

use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub body: String,
}

impl Reply {
    /// The texts of all elements of this name, in order.
    pub fn all(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let parts = self.body.split(&open).skip(1);
        parts
            .filter_map(|part| part.split_once(&close))
            .map(|(text, _)| text.to_owned())
            .collect()
    }

    /// The text of the first element of this name.
    pub fn text(&self, name: &str) -> String {
        self.all(name).into_iter().next().unwrap_or_default()
    }

    /// Status and error code; `200` alone on success.
    pub fn code(&self) -> String {
        let code = self.text("Code");
        if code.is_empty() {
            self.status.to_string()
        } else {
            format!("{} {code}", self.status)
        }
    }
}

/// Sends a request on a new connection. Fails if the connection ends before the response is complete.
pub async fn send(
    url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> io::Result<Reply> {
    let address = url.strip_prefix("http://").expect("an HTTP URL");
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", address);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(Full::new(Bytes::from(body)))
        .expect("a request");
    let response = sender
        .send_request(request)
        .await
        .map_err(io::Error::other)?;
    let status = response.status().as_u16();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(io::Error::other)?
        .to_bytes();
    Ok(Reply {
        status,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// Percent-encodes all but unreserved characters.
pub fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}
