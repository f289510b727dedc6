//! Calls that are begun, and whose request is held back until their caller is locked out.

use std::sync::atomic::Ordering;

use drover_proto::platform::v1::{ExecRequest, ListHostsRequest, ListHostsResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};

use super::*;
use crate::common::WAITS;

const RULES: &str = "
bindings:
  - {role: admin, subjects: ['token:bob', 'token:ann']}
tokens:
  - {name: bob, token: bob-0123456789abcdef}
  - {name: ann, token: ann-0123456789abcdef}
";
const BOB: &str = "bob-0123456789abcdef";
const ANN: &str = "ann-0123456789abcdef";

struct World {
    rules: PathBuf,
    demo: Demo,
    running: Running,
    _directory: TempDir,
}

impl World {
    async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let rules = directory.path().join("access.yaml");
        replace(&rules, RULES);
        let settings = ServerSettings {
            access: Some(rules.clone()),
            metrics_auth: false,
            ..ServerSettings::default()
        };
        let demo = Demo::default();
        let seen = demo.seen.clone();
        let echo = axum::routing::post(async move |body: axum::body::Bytes| {
            seen.ran.fetch_add(1, Ordering::SeqCst);
            body
        });
        let listener = listen(&settings).await.unwrap();
        let service = service(&demo).route("/echo", echo);
        let running = spawn(service, listener, &settings, Shutdown::new()).unwrap();
        Self {
            rules,
            demo,
            running,
            _directory: directory,
        }
    }

    fn ran(&self) -> usize {
        self.demo.seen.ran.load(Ordering::SeqCst)
    }

    /// Denies Bob and waits until that is in effect. Returns the number of completed requests up to then.
    async fn deny_bob(&self) -> usize {
        replace(
            &self.rules,
            &format!("{RULES}deny:\n  - subjects: ['token:bob']\n"),
        );
        let target = at(self.running.address(), BOB);
        eventually("bob is denied", async || {
            let refused = call(&target).await.err();
            refused.is_some_and(|error| error.reason() == Reason::PermissionDenied)
        })
        .await;
        self.ran()
    }

    /// Starts a command whose first message is sent later.
    fn exec(
        &self,
        token: &str,
    ) -> (
        mpsc::Sender<ExecRequest>,
        tokio::task::JoinHandle<Result<(), Status>>,
    ) {
        let (send, messages) = mpsc::channel(1);
        let mut client = NodeAccessServiceClient::new(connect(&at(self.running.address(), token)));
        let mut request = Request::new(ReceiverStream::new(messages));
        request.metadata_mut().insert(WAITS, "1".parse().unwrap());
        let answer = tokio::spawn(async move { client.exec(request).await.map(drop) });
        (send, answer)
    }

    /// Starts a call with a single message that is sent later.
    fn list(
        &self,
        token: &str,
    ) -> (
        mpsc::Sender<ListHostsRequest>,
        tokio::task::JoinHandle<Result<(), Status>>,
    ) {
        let (send, messages) = mpsc::channel(1);
        let mut client = Grpc::new(connect(&at(self.running.address(), token)));
        let answer = tokio::spawn(async move {
            client.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<ListHostsRequest, ListHostsResponse>::default();
            let path = PathAndQuery::from_static("/drover.platform.v1.InventoryService/ListHosts");
            let request = Request::new(ReceiverStream::new(messages));
            client
                .client_streaming(request, path, codec)
                .await
                .map(drop)
        });
        (send, answer)
    }

    async fn in_flight(&self, wanted: usize) {
        eventually("the calls have begun", async || {
            let (_, text) = crate::common::get(&self.running, "/metrics").await;
            let lines = text
                .lines()
                .filter(|line| line.starts_with("drover_rpc_in_flight{service=\"drover.platform"));
            let sum: f64 = lines
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum();
            sum == wanted as f64
        })
        .await;
    }
}

fn locked_out(outcome: Result<(), Status>) {
    let status = outcome.expect_err("it was answered");
    assert!(
        status.message().contains("the access rules have changed"),
        "{status:?}"
    );
}

#[tokio::test]
async fn nothing_runs_for_who_is_locked_out_before_the_first_message() {
    let world = World::start().await;
    let (of_bob, bob) = world.exec(BOB);
    let (of_ann, ann) = world.exec(ANN);
    eventually("both wait", async || world.demo.seen.running() == 2).await;
    let before = world.deny_bob().await;
    // The call may have been ended already.
    let _ = of_bob.send(ExecRequest::default()).await;
    locked_out(bob.await.unwrap());
    assert_eq!(world.ran(), before);
    of_ann.send(ExecRequest::default()).await.unwrap();
    ann.await.unwrap().unwrap();
    assert_eq!(world.ran(), before + 1);
}

#[tokio::test]
async fn a_call_with_one_message_that_is_held_back_is_none_of_who_is_locked_out() {
    let world = World::start().await;
    let (of_bob, bob) = world.list(BOB);
    let (of_ann, ann) = world.list(ANN);
    world.in_flight(2).await;
    let before = world.deny_bob().await;
    let _ = of_bob.send(ListHostsRequest::default()).await;
    drop(of_bob);
    locked_out(bob.await.unwrap());
    assert_eq!(world.ran(), before);
    of_ann.send(ListHostsRequest::default()).await.unwrap();
    drop(of_ann);
    ann.await.unwrap().unwrap();
    assert_eq!(world.ran(), before + 1);
}

#[tokio::test]
async fn a_body_of_plain_http_that_is_held_back_is_none_of_who_is_locked_out() {
    let world = World::start().await;
    let begin = async |token: &str| {
        let mut stream = TcpStream::connect(world.running.address()).await.unwrap();
        let head = format!(
            "POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
             content-length: 4\r\n\r\nab"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let finish = async |mut stream: TcpStream| {
        // The connection may have been closed already.
        let _ = stream.write_all(b"cd").await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    let (bob, ann) = (begin(BOB).await, begin(ANN).await);
    eventually("both have begun", async || {
        let (_, text) = crate::common::get(&world.running, "/metrics").await;
        text.contains("drover_http_in_flight{path=\"/echo\"} 2")
    })
    .await;
    let before = world.deny_bob().await;
    let answer = finish(bob).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(world.ran(), before);
    let answer = finish(ann).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(world.ran(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_first_message_does_not_come_is_given_up() {
    let world = World::start().await;
    let (_held, answer) = world.exec(ANN);
    let status = answer.await.unwrap().unwrap_err();
    assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{status:?}");
    assert!(
        status.message().contains("did not arrive within 30s"),
        "{status:?}"
    );
}
