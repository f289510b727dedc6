//! A server, and a plain HTTP client.

pub(crate) use drover_testing::wait::holds as until;

use std::{collections::BTreeMap, net::SocketAddr};

use drover_platform_cloud::{
    PlatformServer, Settings,
    drivers::simulated::{SimulatedHandle, SimulatedSettings},
};
use drover_replicante::ReplicanteSettings;
use drover_server::{Running, ServerSettings, Shutdown, listen, spawn};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A request as sent by Replicante's SDK.
pub(crate) const SDK: &str = r#"{
  "cluster": {
    "attributes": {"mode": "replica-set", "tier": {"disk": "ssd", "size": 3}},
    "cluster_id": "orders",
    "store": "mongodb",
    "store_version": "4.0.5",
    "nodes": {
      "data": {
        "attributes": {"tier": {"size": null}},
        "desired_count": 3,
        "node_class": "large",
        "store_version": "4.2.1"
      },
      "log": {"attributes": {}, "desired_count": 1, "node_class": "small", "store_version": null}
    }
  },
  "provision": {"count": 2, "node_group_id": "data"}
}"#;

/// A request as in the written specification.
pub(crate) const SPECIFICATION: &str = r#"{
  "cluster": {
    "attributes": {},
    "cluster_id": "orders",
    "store": "mongodb",
    "store_version": "4.0.5",
    "nodes": {
      "data": {"attributes": {}, "desired_count": 3, "node_class": "large", "version": "4.2.1"}
    }
  },
  "provision": {"node_group_id": "data"}
}"#;

pub(crate) struct Site {
    pub(crate) server: PlatformServer,
    pub(crate) running: Running,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::with(SimulatedSettings::default()).await
    }

    pub(crate) async fn with(settings: SimulatedSettings) -> Self {
        Self::over(settings, ReplicanteSettings::default()).await
    }

    pub(crate) async fn over(
        settings: impl Into<Settings>,
        replicante: ReplicanteSettings,
    ) -> Self {
        Self::serve(settings, replicante, ServerSettings::default()).await
    }

    pub(crate) async fn serve(
        settings: impl Into<Settings>,
        replicante: ReplicanteSettings,
        server_settings: ServerSettings,
    ) -> Self {
        let server = PlatformServer::open(settings.into()).await.unwrap();
        Self::on(server.with_replicante(replicante), &server_settings).await
    }

    pub(crate) async fn of(server: PlatformServer) -> Self {
        Self::on(server, &ServerSettings::default()).await
    }

    async fn on(server: PlatformServer, settings: &ServerSettings) -> Self {
        let listener = listen(settings).await.unwrap();
        let running = spawn(server.service(), listener, settings, Shutdown::new()).unwrap();
        Self { server, running }
    }

    pub(crate) async fn stop(self) {
        self.running.shutdown().await;
        self.server.shutdown().await;
    }

    pub(crate) fn simulated(&self) -> &SimulatedHandle {
        self.server.simulated().unwrap()
    }

    /// Sends one request over HTTP/1.1.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        send(self.running.address(), method, path, headers, body).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send("POST", path, &headers, body.as_bytes()).await
    }

    pub(crate) async fn provision(&self, body: &str) -> Answer {
        self.post("/provision", body).await
    }

    /// Provisions with an idempotency key.
    pub(crate) async fn keyed(&self, key: &str, body: &str) -> Answer {
        let headers = [
            ("content-type", "application/json; charset=utf-8"),
            ("Idempotency-Key", key),
        ];
        self.send("POST", "/provision", &headers, body.as_bytes())
            .await
    }

    pub(crate) async fn deprovision(&self, cluster: &str, node: &str) -> Answer {
        let body = json!({"cluster_id": cluster, "node_id": node}).to_string();
        self.post("/deprovision", &body).await
    }

    pub(crate) async fn discover(&self) -> Value {
        let answer = self.send("GET", "/discover", &[], b"").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    /// Ids of the discovered nodes of a cluster.
    pub(crate) async fn discovered(&self, cluster: &str) -> Vec<String> {
        let found = self.discover().await;
        let clusters = found["clusters"].as_array().unwrap();
        clusters
            .iter()
            .filter(|found| found["cluster_id"] == cluster)
            .flat_map(|found| found["nodes"].as_array().unwrap())
            .map(|node| node["node_id"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json");
        serde_json::from_str(&self.body).unwrap()
    }

    /// The ids of a successful provisioning.
    #[track_caller]
    pub(crate) fn made(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{}", self.body);
        let body = self.json();
        let ids: Vec<String> = serde_json::from_value(body["node_ids"].clone()).unwrap();
        assert_eq!(body["count"], ids.len(), "all ids or none");
        ids
    }

    /// The body of an error, decoded as by the SDK.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        let body = self.json();
        assert_eq!(body["error"], true, "{body}");
        assert!(body["error_msg"].is_string(), "{body}");
        assert!(body["error_cause"].is_string(), "{body}");
        if let Some(trail) = body.get("error_trail") {
            assert!(trail.as_array().unwrap().len() > 2, "{body}");
        }
        body
    }
}

pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A server that refuses a body for its size need not read it completely.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer).await;
    assert!(end.is_ok() || !answer.is_empty(), "{end:?}");
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    Answer {
        status: status.parse().unwrap(),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    }
}
