//! Plaintext probes of all kinds of nodes.

use drover_proto::agent::v1::{
    GetInfoResponse,
    agent_service_server::{AgentService, AgentServiceServer},
};
use tokio::net::TcpListener;

use super::*;
use crate::reach::Reach;

struct Agent(&'static str);

#[tonic::async_trait]
impl AgentService for Agent {
    async fn get_info(
        &self,
        _: tonic::Request<GetInfoRequest>,
    ) -> Result<tonic::Response<GetInfoResponse>, tonic::Status> {
        Ok(tonic::Response::new(GetInfoResponse {
            node_id: self.0.to_owned(),
            ..Default::default()
        }))
    }
}

/// The nodes of these tests run on this machine.
pub(crate) fn here(reach: &Reach) -> Gate<'_> {
    Gate { reach, local: true }
}

/// Probes in plaintext. Returns the error as it is shown.
async fn ask(health: &Health, address: &str, id: &str) -> Result<(), String> {
    super::ask(health, address, here(&Reach::default()), id, None)
        .await
        .map_err(|failed| match failed {
            Failed::Node(why) => why,
            Failed::Way(why) | Failed::Silent(why) => panic!("{why}"),
        })
}

pub(crate) fn health(probe: Probe) -> Health {
    Health {
        probe,
        timeout: Duration::from_millis(500),
        ..Health::default()
    }
}

pub(crate) async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Responds to every connection with these bytes and closes it.
pub(crate) async fn answering(bytes: &'static [u8]) -> String {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(bytes).await;
        }
    });
    address
}

/// Accepts connections and never responds.
pub(crate) async fn silent() -> String {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    address
}

/// A port without a listener.
pub(crate) async fn refusing() -> String {
    listener().await.1
}

pub(crate) async fn grpc_server(
    agent: Option<&'static str>,
    status: Option<tonic_health::ServingStatus>,
) -> String {
    let (listener, address) = listener().await;
    let (reporter, service) = tonic_health::server::health_reporter();
    if let Some(status) = status {
        reporter.set_service_status("db", status).await;
    }
    let agent = agent.map(|id| AgentServiceServer::new(Agent(id)));
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder()
        .add_service(service)
        .add_optional_service(agent);
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

#[tokio::test]
async fn tcp_is_well_if_somebody_listens() {
    let probe = health(Probe::Tcp { port: None });
    assert_eq!(ask(&probe, &silent().await, "n").await, Ok(()));
    let refused = ask(&probe, &refusing().await, "n").await.unwrap_err();
    assert!(refused.contains("connection refused"), "{refused}");
}

#[tokio::test]
async fn http_is_well_below_400_and_says_what_it_saw() {
    let probe = health(Probe::Http {
        port: None,
        path: "/healthz".into(),
        tls: None,
    });
    for good in [
        &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        b"HTTP/1.0 302 Found\r\n\r\n",
    ] {
        assert_eq!(ask(&probe, &answering(good).await, "n").await, Ok(()));
    }
    for (answer, word) in [
        (&b"HTTP/1.1 503 Unavailable\r\n\r\n"[..], "status 503"),
        (b"SSH-2.0-OpenSSH_9.6", "does not speak HTTP"),
        (
            b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7\xf6\xf5\xf4",
            "does not speak HTTP",
        ),
        (b"", "closed the connection"),
    ] {
        let why = ask(&probe, &answering(answer).await, "n")
            .await
            .unwrap_err();
        assert!(why.contains(word), "{why}");
    }
    let why = ask(&probe, &silent().await, "n").await.unwrap_err();
    assert!(why.contains("no answer within"), "{why}");
    let why = ask(&probe, &refusing().await, "n").await.unwrap_err();
    assert!(why.contains("connection refused"), "{why}");
}

#[tokio::test]
async fn grpc_is_well_if_it_serves_and_is_not_another_node() {
    use tonic_health::ServingStatus::{NotServing, Serving};
    let probe = health(Probe::Grpc {
        port: None,
        service: "db".into(),
        tls: None,
    });
    for agent in [None, Some("db-0-aaaaa"), Some("")] {
        let address = grpc_server(agent, Some(Serving)).await;
        assert_eq!(
            ask(&probe, &address, "db-0-aaaaa").await,
            Ok(()),
            "{agent:?}"
        );
    }
    for (agent, status, word) in [
        (Some("db-0-bbbbb"), Some(Serving), "another node"),
        (Some("db-0-aaaaa"), Some(NotServing), "NotServing"),
        (Some("db-0-aaaaa"), None, "NotFound"),
    ] {
        let why = ask(&probe, &grpc_server(agent, status).await, "db-0-aaaaa")
            .await
            .unwrap_err();
        assert!(why.contains(word), "{why}");
    }
    let why = ask(&probe, &silent().await, "n").await.unwrap_err();
    assert!(why.contains("no answer within"), "{why}");
    assert!(ask(&probe, &refusing().await, "n").await.is_err());
}

#[tokio::test]
async fn only_the_agent_of_the_very_node_proves_that_it_lives() {
    let second = Duration::from_secs(1);
    let reach = Reach::default();
    let says = |address: String, id: &'static str| {
        let gate = here(&reach);
        async move { agent_says(&address, id, second, gate).await }
    };
    let address = grpc_server(Some("db-0-aaaaa"), None).await;
    assert!(says(format!("grpc://{address}"), "db-0-aaaaa").await);
    assert!(says(format!("grpc://{address}/"), "db-0-aaaaa").await);
    assert!(says(format!("grpc://{address}/x?y"), "db-0-aaaaa").await);
    assert!(!says(format!("grpc://{address}"), "db-0-bbbbb").await);
    assert!(!says(format!("http://{address}"), "db-0-aaaaa").await);
    assert!(!says(address, "db-0-aaaaa").await);
    assert!(!says(format!("grpc://{}", refusing().await), "db-0-aaaaa").await);
}
