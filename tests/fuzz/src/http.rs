//! An HTTP client with a persistent connection.

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

    /// Sends a request. Fails if the connection ends without a response.
    pub(crate) async fn ask(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, String> {
        // The server may close an idle connection at any time.
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
            // Ends when the sender is dropped.
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
