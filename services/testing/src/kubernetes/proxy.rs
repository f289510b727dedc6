//! A proxy in front of an API server: plain HTTP for the client under test, with a log of its calls and faults on
//! demand.

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{broadcast, watch},
    task::JoinHandle,
};

use super::{
    Call, Fault, On, Rig,
    body::{self, Answer, Happens},
    raw::config,
    refusal, until,
};

/// Credentials that reach the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// The administrator's.
    AsAdministrator,
    /// The client's own.
    AsClient,
}

/// Dropping the proxy closes it with all its connections.
pub struct FaultProxy {
    shared: Arc<Shared>,
    address: std::net::SocketAddr,
    folder: tempfile::TempDir,
    task: JoinHandle<()>,
}

struct Shared {
    upstream: kube::Client,
    state: Mutex<State>,
    happens: broadcast::Sender<(String, Happens)>,
    dead: watch::Sender<bool>,
    severed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    rules: Vec<(On, Fault)>,
    calls: Vec<Call>,
    watches: Vec<String>,
}

/// Closes the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("severed on purpose")]
struct Severed;

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.dead.send_replace(true);
        self.task.abort();
    }
}

impl FaultProxy {
    pub async fn start(rig: &Rig) -> Self {
        Self::over(rig.kubeconfig(), Speaks::AsAdministrator).await
    }

    /// Starts a proxy in front of the API server of a kubeconfig.
    pub async fn over(kubeconfig: &Path, speaks: Speaks) -> Self {
        let mut config = config(kubeconfig).await;
        if speaks == Speaks::AsClient {
            config.auth_info = Default::default();
        }
        let shared = Arc::new(Shared {
            upstream: kube::Client::try_from(config).unwrap(),
            state: Mutex::default(),
            happens: broadcast::channel(64).0,
            dead: watch::channel(false).0,
            severed: watch::channel(()).0,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        let folder = tempfile::tempdir().unwrap();
        let proxy = Self {
            shared,
            address,
            folder,
            task,
        };
        proxy.write_kubeconfig("");
        proxy
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig for the proxy.
    pub fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Rewrites the kubeconfig, with a line of credentials (`token: abc`, `tokenFile: /path`).
    pub fn write_kubeconfig(&self, user: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n",
            self.url()
        );
        // Atomically, as people and tools do it.
        let draft = self.folder.path().join("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::rename(draft, self.kubeconfig()).unwrap();
    }

    /// Adds a fault. The first rule that matches a call applies; each rule counts its calls separately.
    pub fn fail(&self, on: On, fault: Fault) {
        self.shared.state.lock().rules.push((on, fault));
    }

    /// Faults that have not hit a call yet.
    pub fn faults_left(&self) -> usize {
        self.shared.state.lock().rules.len()
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.shared.state.lock().rules.clear();
    }

    /// All calls so far, in the order of their arrival.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.state.lock().calls.clone()
    }

    /// Clears the log of calls.
    pub fn forget(&self) {
        self.shared.state.lock().calls.clear();
    }

    pub fn count(&self, verb: &str, resource: &str) -> usize {
        let fits = |call: &&Call| call.verb == verb && call.resource == resource && !call.dry_run;
        self.shared.state.lock().calls.iter().filter(fits).count()
    }

    /// Whether a client has crashed here ([`Fault::DieBefore`], [`Fault::DieAfter`]).
    pub fn is_dead(&self) -> bool {
        *self.shared.dead.borrow()
    }

    /// Lets nothing reach the API server any more.
    pub fn die(&self) {
        self.shared.dead.send_replace(true);
    }

    /// Closes all connections that are open, with what runs over them. New ones are accepted.
    pub fn sever(&self) {
        self.shared.severed.send_replace(());
    }

    pub fn watches(&self) -> Watches<'_> {
        Watches { proxy: self }
    }
}

/// The running watches of a proxy.
pub struct Watches<'a> {
    proxy: &'a FaultProxy,
}

impl Watches<'_> {
    fn happens(&self, resource: &str, happens: Happens) {
        // Without a watch nothing receives it; `until_running` reports that.
        let _ = self
            .proxy
            .shared
            .happens
            .send((resource.to_owned(), happens));
    }

    pub fn running(&self, resource: &str) -> usize {
        let state = self.proxy.shared.state.lock();
        state
            .watches
            .iter()
            .filter(|name| *name == resource)
            .count()
    }

    pub async fn until_running(&self, resource: &str) {
        until(&format!("{resource} are watched"), || async {
            (self.running(resource) > 0).then_some(())
        })
        .await;
    }

    /// They break in the middle of an event.
    pub fn cut(&self, resource: &str) {
        self.happens(resource, Happens::Cut);
    }

    /// They end as after the API server's timeout.
    pub fn end(&self, resource: &str) {
        self.happens(resource, Happens::End);
    }

    /// They stay open, and send nothing any more.
    pub fn silence(&self, resource: &str) {
        self.happens(resource, Happens::Silence);
    }

    /// They send an ERROR event with code 410.
    pub fn expire(&self, resource: &str) {
        let (_, status) = refusal(
            410,
            "Expired",
            "The resourceVersion for the provided watch is too old.",
        );
        self.happens(resource, Happens::Error(status));
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                let _ = stream.set_nodelay(true);
                connections.spawn(connection(stream, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let mut dead = shared.dead.subscribe();
    let mut severed = shared.severed.subscribe();
    let serve = http1::Builder::new()
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(Arc::clone(&shared), request)),
        )
        .with_upgrades();
    tokio::select! {
        // Nothing is read any more of what came after the end.
        biased;
        _ = dead.wait_for(|dead| *dead) => {}
        _ = severed.changed() => {}
        // How a connection ends is up to the client.
        _ = serve => {}
    }
}

async fn answer(shared: Arc<Shared>, mut request: Request<Incoming>) -> Result<Answer, Severed> {
    let upgrade = request
        .headers()
        .contains_key(header::UPGRADE)
        .then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Severed)?.to_bytes();
    let request = Request::from_parts(head, body);
    let call = Call::read(&request, request.body());
    let (index, fault) = shared.begin(call.clone());
    let outcome = match upgrade {
        Some(upgrade) if fault.is_none() => shared.tunnel(request, upgrade).await,
        _ => shared.befall(&call, request, fault).await,
    };
    if let Ok(answer) = &outcome {
        shared.status(index, answer.status());
    }
    outcome
}

impl Shared {
    /// Logs a call, and returns the fault that hits it.
    fn begin(&self, mut call: Call) -> (usize, Option<Fault>) {
        let mut state = self.state.lock();
        let mut fault = None;
        for (on, what) in &mut state.rules {
            if !on.is(&call) {
                continue;
            }
            if on.skip > 0 {
                on.skip -= 1;
                continue;
            }
            on.times = on.times.saturating_sub(usize::from(on.times != usize::MAX));
            fault = Some(what.clone());
            break;
        }
        state.rules.retain(|(on, _)| on.times > 0);
        call.fault = fault.as_ref().map(Fault::name);
        state.calls.push(call);
        (state.calls.len() - 1, fault)
    }

    fn status(&self, index: usize, status: StatusCode) {
        if let Some(call) = self.state.lock().calls.get_mut(index) {
            call.status = Some(status.as_u16());
        }
    }

    async fn upstream(&self, request: Request<Bytes>) -> Result<Response<Body>, Severed> {
        let (mut head, body) = request.into_parts();
        for name in [header::HOST, header::CONTENT_LENGTH] {
            head.headers.remove(name);
        }
        let request = Request::from_parts(head, Body::from(body));
        self.upstream.send(request).await.map_err(|_| Severed)
    }

    /// Lets the API server execute the call, and reads the whole response.
    async fn done(
        &self,
        request: Request<Bytes>,
    ) -> Result<(http::response::Parts, Bytes), Severed> {
        let (mut head, body) = self.upstream(request).await?.into_parts();
        let body = body.collect().await.map_err(|_| Severed)?.to_bytes();
        head.headers.remove(header::TRANSFER_ENCODING);
        Ok((head, body))
    }

    async fn befall(
        self: &Arc<Self>,
        call: &Call,
        request: Request<Bytes>,
        fault: Option<Fault>,
    ) -> Result<Answer, Severed> {
        match fault {
            None => self.pass(call, request, false).await,
            Some(Fault::WatchSilent) => self.pass(call, request, true).await,
            Some(Fault::Refuse(status, body)) => Ok(body::json(status, &body)),
            Some(Fault::RefuseAfter(status, body)) => {
                self.done(request).await?;
                Ok(body::json(status, &body))
            }
            Some(Fault::Throttle { seconds }) => {
                let text =
                    "the server has received too many requests and has asked us to try again later";
                let (status, body) = refusal(429, "TooManyRequests", text);
                let mut answer = body::json(status, &body);
                let after = HeaderValue::from(seconds);
                answer.headers_mut().insert(header::RETRY_AFTER, after);
                Ok(answer)
            }
            Some(Fault::Disconnect) => Err(Severed),
            Some(Fault::LoseAnswer) => {
                self.done(request).await?;
                Err(Severed)
            }
            Some(Fault::CutAnswer) => {
                let (head, body) = self.done(request).await?;
                Ok(body::cut(head, &body))
            }
            Some(Fault::Stall) => std::future::pending().await,
            Some(Fault::StallAfter) => {
                self.done(request).await?;
                std::future::pending().await
            }
            Some(Fault::DieBefore) => {
                self.dead.send_replace(true);
                Err(Severed)
            }
            Some(Fault::DieAfter) => {
                self.done(request).await?;
                self.dead.send_replace(true);
                Err(Severed)
            }
            Some(Fault::WatchError(_, status)) => {
                let event = body::error_event(&status, false);
                Ok(Response::new(body::whole(event)))
            }
        }
    }

    async fn pass(
        self: &Arc<Self>,
        call: &Call,
        request: Request<Bytes>,
        silent: bool,
    ) -> Result<Answer, Severed> {
        let (mut head, body) = self.upstream(request).await?.into_parts();
        head.headers.remove(header::TRANSFER_ENCODING);
        if call.verb != "watch" || !head.status.is_success() {
            return Ok(Response::from_parts(head, body::passed(body)));
        }
        let commands = self.happens.subscribe();
        let running = Running::new(self, &call.resource);
        let media = head.headers.get(header::CONTENT_TYPE);
        let framed = media.is_some_and(|media| media.as_bytes().starts_with(b"application/vnd"));
        let events = body::watched(body, commands, call.resource.clone(), silent, framed);
        // The guard lives as long as the body, whatever ends that.
        let events = events.map_frame(move |frame| {
            let _ = &running;
            frame
        });
        Ok(Response::from_parts(head, events.boxed_unsync()))
    }

    /// Forwards an upgraded connection, in both directions.
    async fn tunnel(
        &self,
        request: Request<Bytes>,
        client: hyper::upgrade::OnUpgrade,
    ) -> Result<Answer, Severed> {
        let answer = self.upstream(request).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (mut head, body) = answer.into_parts();
            head.headers.remove(header::TRANSFER_ENCODING);
            return Ok(Response::from_parts(head, body::passed(body)));
        }
        let mut head = Response::new(());
        *head.status_mut() = answer.status();
        *head.headers_mut() = answer.headers().clone();
        let mut dead = self.dead.subscribe();
        let mut severed = self.severed.subscribe();
        // Ends with either side, or with the proxy.
        tokio::spawn(async move {
            let both = async {
                let server = hyper::upgrade::on(answer).await.map_err(io::Error::other)?;
                let client = client.await.map_err(io::Error::other)?;
                let (mut server, mut client) = (TokioIo::new(server), TokioIo::new(client));
                tokio::io::copy_bidirectional(&mut server, &mut client).await
            };
            tokio::select! {
                _ = both => {}
                _ = dead.wait_for(|dead| *dead) => {}
                _ = severed.changed() => {}
            }
        });
        Ok(head.map(|()| body::whole(Bytes::new())))
    }
}

/// Counts a watch as long as it runs.
struct Running {
    shared: Arc<Shared>,
    resource: String,
}

impl Running {
    fn new(shared: &Arc<Shared>, resource: &str) -> Self {
        shared.state.lock().watches.push(resource.to_owned());
        Self {
            shared: Arc::clone(shared),
            resource: resource.to_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(at) = state.watches.iter().position(|name| *name == self.resource) {
            state.watches.swap_remove(at);
        }
    }
}
