//! A client of HTTP that keeps its connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

pub(crate) struct Client {
    address: SocketAddr,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            sender: None,
        }
    }

    /// What is answered. Errors: the connection ended without an answer.
    pub(crate) async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, String> {
        // A connection that was used before may be closed at any time, as the server likes.
        if self.sender.is_some()
            && let Ok(answer) = self.ask_once(request.clone()).await
        {
            return Ok(answer);
        }
        self.sender = None;
        self.ask_once(request).await
    }

    async fn ask_once(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
        let ready = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !ready {
            let stream = TcpStream::connect(self.address).await;
            let stream = stream.map_err(|error| error.to_string())?;
            let (sender, connection) = handshake(TokioIo::new(stream))
                .await
                .map_err(|error| error.to_string())?;
            // Ends with its sender.
            tokio::spawn(connection);
            self.sender = Some(sender);
        }
        let Some(sender) = &mut self.sender else {
            return Err("there is no connection".to_owned());
        };
        let answer = sender.send_request(request).await;
        let (head, body) = answer.map_err(|error| error.to_string())?.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}
