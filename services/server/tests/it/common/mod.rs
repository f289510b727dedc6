//! A server with calls that misbehave on demand.
#![allow(dead_code, unreachable_pub)]

pub use drover_testing::wait::holds as eventually;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use drover_client::{Channel, Target, connect};
use drover_proto::{
    common::v1::{Chunk, chunk},
    platform::v1::{
        ExecRequest, ExecResponse, Host, ListHostsRequest, ListHostsResponse, NodeTarget,
        StreamLogsRequest, StreamLogsResponse,
        inventory_service_client::InventoryServiceClient,
        inventory_service_server::{InventoryService, InventoryServiceServer},
        node_access_service_client::NodeAccessServiceClient,
        node_access_service_server::{NodeAccessService, NodeAccessServiceServer},
    },
};
use drover_server::{Running, ServerSettings, Service, Shutdown, listen, spawn};
use futures::{Stream, StreamExt, stream};
use tokio::sync::{Notify, Semaphore};
use tonic::{Request, Response, Status, Streaming};

/// Metadata key of a command that waits for its first message.
pub const WAITS: &str = "waits";

/// Observations of the handlers.
#[derive(Debug, Default)]
pub struct Seen {
    pub entered: Notify,
    pub running: AtomicUsize,
    /// Number of requests that arrived completely.
    pub ran: AtomicUsize,
    /// Number of bytes sent by endless streams.
    pub given: AtomicUsize,
    pub deadline: parking_lot::Mutex<Option<Option<Duration>>>,
    pub trace: parking_lot::Mutex<Option<String>>,
}

impl Seen {
    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }
}

struct Inside(Arc<Seen>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Debug)]
pub struct Demo {
    pub seen: Arc<Seen>,
    /// Gate that waiting calls wait for.
    pub gate: Arc<Semaphore>,
}

impl Default for Demo {
    fn default() -> Self {
        Self {
            seen: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Demo {
    fn enter<T>(&self, request: &Request<T>) -> Inside {
        let left = drover_server::deadline(request).map(|at| at - tokio::time::Instant::now());
        *self.seen.deadline.lock() = Some(left);
        *self.seen.trace.lock() = drover_server::trace_id(request).map(|id| id.to_string());
        self.seen.running.fetch_add(1, Ordering::SeqCst);
        self.seen.entered.notify_one();
        Inside(self.seen.clone())
    }
}

#[tonic::async_trait]
impl InventoryService for Demo {
    async fn list_hosts(
        &self,
        request: Request<ListHostsRequest>,
    ) -> Result<Response<ListHostsResponse>, Status> {
        let _inside = self.enter(&request);
        self.seen.ran.fetch_add(1, Ordering::SeqCst);
        match request.get_ref().cluster_id.as_str() {
            "wait" => drop(self.gate.acquire().await.unwrap()),
            "panic" => panic!("the secret is hunter2"),
            _ => {}
        }
        let hosts = vec![Host {
            id: "h1".to_owned(),
            ..Host::default()
        }];
        Ok(Response::new(ListHostsResponse {
            hosts,
            ..Default::default()
        }))
    }
}

/// Line length of an endless stream in bytes.
pub const ENDLESS: usize = 8 * 1024;

fn line(text: &str) -> StreamLogsResponse {
    StreamLogsResponse {
        chunk: Some(Chunk {
            content: Some(chunk::Content::Text(text.to_owned())),
        }),
    }
}

#[tonic::async_trait]
impl NodeAccessService for Demo {
    type StreamLogsStream = Pin<Box<dyn Stream<Item = Result<StreamLogsResponse, Status>> + Send>>;
    type ExecStream = Pin<Box<dyn Stream<Item = Result<ExecResponse, Status>> + Send>>;

    async fn stream_logs(
        &self,
        request: Request<StreamLogsRequest>,
    ) -> Result<Response<Self::StreamLogsStream>, Status> {
        let inside = self.enter(&request);
        let what = request.into_inner().node.unwrap_or_default().node_id;
        if what == "wait" {
            drop(self.gate.acquire().await.unwrap());
        }
        if what == "endless" {
            let seen = self.seen.clone();
            let lines = stream::repeat_with(move || {
                let _inside = &inside;
                seen.given.fetch_add(ENDLESS, Ordering::SeqCst);
                Ok(line(&"x".repeat(ENDLESS)))
            });
            return Ok(Response::new(lines.boxed()));
        }
        let first = stream::once(async { Ok(line("first")) });
        let rest = stream::poll_fn(move |_| {
            let _inside = &inside;
            assert!(what != "panic", "the secret is hunter2");
            if what == "end" {
                std::task::Poll::Ready(None)
            } else {
                std::task::Poll::Pending
            }
        });
        Ok(Response::new(first.chain(rest).boxed()))
    }

    async fn exec(
        &self,
        request: Request<Streaming<ExecRequest>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        // Like real platforms, which respond only once they know what to run.
        if request.metadata().contains_key(WAITS) {
            let _inside = self.enter(&request);
            request.into_inner().message().await?;
            self.seen.ran.fetch_add(1, Ordering::SeqCst);
        }
        Ok(Response::new(stream::pending().boxed()))
    }
}

pub struct Fixture {
    pub demo: Demo,
    pub running: Running,
    pub channel: Channel,
    pub hosts: InventoryServiceClient<Channel>,
    pub logs: NodeAccessServiceClient<Channel>,
}

pub fn service(demo: &Demo) -> Service {
    Service::new("demo", "0.0.0")
        .add(InventoryServiceServer::new(demo.clone()))
        .add(NodeAccessServiceServer::new(demo.clone()))
}

pub async fn start(settings: ServerSettings) -> Fixture {
    start_with(settings, |service| service).await
}

pub async fn start_with(
    settings: ServerSettings,
    change: impl FnOnce(Service) -> Service,
) -> Fixture {
    let demo = Demo::default();
    let listener = listen(&settings).await.unwrap();
    let running = spawn(change(service(&demo)), listener, &settings, Shutdown::new()).unwrap();
    let channel = connect(
        &format!("http://{}", running.address())
            .parse::<Target>()
            .unwrap(),
    );
    Fixture {
        demo,
        running,
        hosts: InventoryServiceClient::new(channel.clone()),
        logs: NodeAccessServiceClient::new(channel.clone()),
        channel,
    }
}

pub fn ask(what: &str) -> ListHostsRequest {
    ListHostsRequest {
        cluster_id: what.to_owned(),
        ..Default::default()
    }
}

pub fn follow(what: &str) -> StreamLogsRequest {
    let node = NodeTarget {
        node_id: what.to_owned(),
        ..Default::default()
    };
    StreamLogsRequest {
        node: Some(node),
        follow: true,
        ..Default::default()
    }
}

/// Sends an HTTP/1 request and returns status and body.
pub async fn get(running: &Running, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(running.address())
        .await
        .unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (status, body)
}
