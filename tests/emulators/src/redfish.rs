//! A management controller with one system, as far as its power goes. After the Redfish specification
//! (DSP0266, <https://www.dmtf.org/dsp/DSP0266>): basic authentication, `PowerState` of a ComputerSystem, and its action
//! `ComputerSystem.Reset`.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

/// Path of the only system.
const SYSTEM: &str = "/redfish/v1/Systems/1";
/// Path of its action.
const RESET: &str = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset";

/// A management controller on 127.0.0.1. Dropping it takes it away.
#[derive(Debug)]
pub struct Controller {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    authorization: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    is_on: bool,
    resets: Vec<String>,
    refused: usize,
    delay: Duration,
}

impl Controller {
    /// Starts one whose system is on, for this user.
    ///
    /// # Errors
    /// No port can be had.
    pub async fn start(user: &str, password: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let credentials = BASE64.encode(format!("{user}:{password}"));
        let shared = Arc::new(Shared {
            authorization: format!("Basic {credentials}"),
            state: Mutex::new(State {
                is_on: true,
                resets: Vec::new(),
                refused: 0,
                delay: Duration::ZERO,
            }),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            task,
        })
    }

    /// Address of the system, as a BareMetalHost of metal3 has it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("redfish+http://{}{SYSTEM}", self.address)
    }

    /// Whether the system is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.state.lock().is_on
    }

    /// The types of all resets that were carried out.
    #[must_use]
    pub fn resets(&self) -> Vec<String> {
        self.shared.state.lock().resets.clone()
    }

    /// The number of requests with other credentials.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.shared.state.lock().refused
    }

    /// Lets every answer take so long.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.state.lock().delay = delay;
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    let service = service_fn(|request| answer(Arc::clone(&shared), request));
                    let stream = TokioIo::new(stream);
                    // How a connection ends is up to the client.
                    let _ = http1::Builder::new().serve_connection(stream, service).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let delay = shared.state.lock().delay;
    tokio::time::sleep(delay).await;
    let given = request.headers().get(header::AUTHORIZATION);
    if given.is_none_or(|given| given.as_bytes() != shared.authorization.as_bytes()) {
        shared.state.lock().refused += 1;
        let mut refused = said(
            StatusCode::UNAUTHORIZED,
            &error("the credentials are wrong"),
        );
        let challenge = header::HeaderValue::from_static("Basic realm=\"Redfish\"");
        refused
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, challenge);
        return Ok(refused);
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let Ok(body) = request.into_body().collect().await else {
        return Ok(said(StatusCode::BAD_REQUEST, &error("the body is cut off")));
    };
    Ok(match (&method, path.as_str()) {
        (&Method::GET, SYSTEM) => said(StatusCode::OK, &shared.system()),
        (&Method::POST, RESET) => shared.reset(&body.to_bytes()),
        (_, SYSTEM | RESET) => said(
            StatusCode::METHOD_NOT_ALLOWED,
            &error("the method is not allowed"),
        ),
        _ => said(StatusCode::NOT_FOUND, &error("there is no such resource")),
    })
}

impl Shared {
    fn system(&self) -> Value {
        let power = match self.state.lock().is_on {
            true => "On",
            false => "Off",
        };
        json!({
            "@odata.id": SYSTEM,
            "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
            "Id": "1",
            "PowerState": power,
            "Actions": {"#ComputerSystem.Reset": {
                "target": RESET,
                "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "ForceRestart"],
            }},
        })
    }

    fn reset(&self, body: &[u8]) -> Response<Full<Bytes>> {
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        let kind = asked["ResetType"].as_str().unwrap_or_default();
        let is_on = match kind {
            "On" | "ForceRestart" => true,
            "ForceOff" => false,
            _ => {
                let unknown = error("ResetType is none of the allowable values");
                return said(StatusCode::BAD_REQUEST, &unknown);
            }
        };
        let mut state = self.state.lock();
        state.is_on = is_on;
        state.resets.push(kind.to_owned());
        let mut done = Response::new(Full::default());
        *done.status_mut() = StatusCode::NO_CONTENT;
        done
    }
}

fn error(message: &str) -> Value {
    json!({"error": {"code": "Base.1.18.GeneralError", "message": message}})
}

fn said(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(body.to_string()));
    *answer.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}
