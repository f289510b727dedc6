//! Access control: every call for every role, and which clusters each caller sees.

mod scopes;

use std::{collections::BTreeMap, path::PathBuf};

use drover_client::{Bearer, Channel, Target, connect};
use drover_core::Reason;
use drover_orchestrator::Orchestrator;
use drover_platform_cloud::drivers::simulated::SimulatedSettings;
use drover_proto::{DESCRIPTORS, orchestrator::v1 as pb};
use drover_server::{Role, Running, ServerSettings, Shutdown, access::permission};
use prost::Message;
use tempfile::TempDir;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::api::support::{Clusters, Platforms, World, document, refused, until};

const RULES: &str = "
tokens:
  - {name: viewer, token: viewer-0123456789abcdef}
  - {name: operator, token: operator-0123456789abcdef}
  - {name: admin, token: admin-0123456789abcdef}
  - {name: platform, token: platform-0123456789abcdef}
  - {name: agent, token: agent-0123456789abcdef}
  - {name: resource-viewer, token: resource-viewer-0123456789abcdef}
  - {name: resource-operator, token: resource-operator-0123456789abcdef}
  - {name: nobody, token: nobody-0123456789abcdef}
  - {name: orders, token: orders-0123456789abcdef}
  - {name: shop, token: shop-0123456789abcdef}
bindings:
  - {role: viewer, subjects: ['token:viewer']}
  - {role: operator, subjects: ['token:operator']}
  - {role: admin, subjects: ['token:admin']}
  - {role: platform, subjects: ['token:platform']}
  - {role: agent, subjects: ['token:agent']}
  - {role: resource-viewer, subjects: ['token:resource-viewer']}
  - {role: resource-operator, subjects: ['token:resource-operator']}
  - {role: operator, subjects: ['token:orders'], clusters: ['orders*']}
  - {role: operator, subjects: ['token:shop'], labels: {team: shop}}
";

/// An orchestrator with access control.
pub(crate) struct Door {
    pub(crate) world: World,
    running: Running,
    directory: TempDir,
}

pub(crate) fn token(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

impl Door {
    pub(crate) async fn new() -> Self {
        Self::with(SimulatedSettings::default(), RULES).await
    }

    /// With this access file.
    pub(crate) async fn with(settings: SimulatedSettings, text: &str) -> Self {
        let world = World::with(settings).await;
        let directory = TempDir::new().unwrap();
        let rules = directory.path().join("access.yaml");
        std::fs::write(&rules, text).unwrap();
        let settings = ServerSettings {
            access: Some(rules),
            audit_log: Some(directory.path().join("audit.jsonl")),
            ..ServerSettings::default()
        };
        let listener = drover_server::listen(&settings).await.unwrap();
        let service = Orchestrator::service(world.orchestrator.as_ref().unwrap());
        let running = drover_server::spawn(service, listener, &settings, Shutdown::new()).unwrap();
        Self {
            world,
            running,
            directory,
        }
    }

    pub(crate) fn audit(&self) -> PathBuf {
        self.directory.path().join("audit.jsonl")
    }

    pub(crate) fn channel(&self, token: Option<String>) -> Channel {
        let target: Target = format!("http://{}", self.running.address())
            .parse()
            .unwrap();
        connect(&match token {
            Some(token) => target.with_bearer(Bearer::Token(token)),
            None => target,
        })
    }

    pub(crate) fn of(&self, name: &str) -> Clusters {
        Clusters::new(self.channel(Some(token(name))))
    }

    pub(crate) fn platforms(&self, name: &str) -> Platforms {
        Platforms::new(self.channel(Some(token(name))))
    }

    pub(crate) async fn stop(self) {
        self.running.shutdown().await;
        self.world.stop().await;
    }
}

/// Makes a call with an empty message, and returns the status of its first response.
async fn call(channel: &Channel, path: &str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client
        .ready()
        .await
        .map_err(|error| Status::unknown(error.to_string()))?;
    let answer = client
        .streaming(
            Request::new(futures::stream::iter([()])),
            path.parse().unwrap(),
            ProstCodec::<(), ()>::default(),
        )
        .await?;
    answer.into_inner().message().await.map(drop)
}

fn paths() -> Vec<(String, String)> {
    let set = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let mut paths = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let full = format!("{}.{}", file.package(), service.name());
            for method in &service.method {
                paths.push((full.clone(), method.name().to_owned()));
            }
        }
    }
    paths
}

#[tokio::test]
async fn every_call_is_for_the_roles_that_the_table_says_and_for_nobody_else() {
    const SERVED: [&str; 3] = [
        "drover.orchestrator.v1.ClusterService",
        "drover.orchestrator.v1.PlatformRegistryService",
        "drover.orchestrator.v1.SecretService",
    ];
    let door = Door::new().await;
    let mut calls = 0;
    for (service, method) in paths() {
        if !SERVED.contains(&service.as_str()) {
            continue;
        }
        let path = format!("/{service}/{method}");
        let needed = permission(&service, &method).unwrap();
        for role in Role::ALL {
            let channel = door.channel(Some(token(&role.to_string())));
            let code = call(&channel, &path)
                .await
                .map_or_else(|s| s.code(), |()| Code::Ok);
            assert_eq!(
                code == Code::PermissionDenied,
                !role.has(needed),
                "{role} {path}: {code:?}"
            );
            assert_ne!(code, Code::Unauthenticated, "{role} {path}");
            calls += 1;
        }
        let nobody = call(&door.channel(Some(token("nobody"))), &path).await;
        assert_eq!(nobody.unwrap_err().code(), Code::PermissionDenied, "{path}");
        for stranger in [None, Some("made-up-0123456789".to_owned())] {
            let answer = call(&door.channel(stranger), &path).await;
            assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated, "{path}");
        }
    }
    assert_eq!(calls, 36 * Role::ALL.len());
    door.stop().await;
}

pub(crate) fn labelled(name: &str, labels: &[(&str, &str)]) -> pb::ApplyClusterRequest {
    let mut cluster = document(name, &[("db", 1)]);
    cluster.labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect::<BTreeMap<_, _>>();
    pb::ApplyClusterRequest {
        cluster: Some(cluster),
        ..Default::default()
    }
}

#[tokio::test]
async fn changes_and_refusals_are_written_down_and_reads_and_secrets_are_not() {
    let door = Door::new().await;
    let mut operator = door.of("operator");
    operator
        .apply_cluster(labelled("orders", &[]))
        .await
        .unwrap();
    operator
        .get_cluster(pb::GetClusterRequest {
            name: "orders".into(),
            ..Default::default()
        })
        .await
        .unwrap();
    let delete = pb::DeleteClusterRequest {
        name: "orders".into(),
        ..Default::default()
    };
    let mut request = Request::new(delete);
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    request
        .metadata_mut()
        .insert("traceparent", parent.parse().unwrap());
    refused(
        door.of("viewer").delete_cluster(request).await,
        Reason::PermissionDenied,
    );
    let mut stranger = Clusters::new(door.channel(Some("made-up-0123456789".into())));
    refused(
        stranger
            .list_clusters(pb::ListClustersRequest::default())
            .await,
        Reason::Unauthenticated,
    );
    let path = door.audit();
    let text = until("three lines", async || {
        let text = std::fs::read_to_string(&path).unwrap();
        (text.lines().count() >= 3).then_some(text)
    })
    .await;
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    let of = |line: usize, key: &str| lines[line][key].as_str().unwrap_or_default().to_owned();
    assert_eq!(of(0, "who"), "token:operator");
    assert_eq!(
        of(0, "what"),
        "drover.orchestrator.v1.ClusterService/ApplyCluster"
    );
    assert_eq!(
        (of(0, "object"), of(0, "code")),
        ("cluster/orders".into(), "OK".into())
    );
    assert_eq!(of(1, "who"), "token:viewer");
    assert_eq!(of(1, "code"), "PERMISSION_DENIED");
    assert_eq!(of(1, "trace_id"), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(lines[1]["denied"], true);
    assert_eq!(
        (of(2, "who"), of(2, "code")),
        ("anonymous".into(), "UNAUTHENTICATED".into())
    );
    assert!(!text.contains("0123456789"), "{text}");
    door.stop().await;
}

#[tokio::test]
async fn a_line_of_the_audit_log_is_not_as_long_as_a_caller_likes() {
    let door = Door::new().await;
    let delete = pb::DeleteClusterRequest {
        name: "\u{1}\u{e9}".repeat(300_000),
        ..Default::default()
    };
    refused(
        door.of("operator").delete_cluster(delete).await,
        Reason::NotFound,
    );
    let path = door.audit();
    let line = until("the refusal is written down", async || {
        let text = std::fs::read_to_string(&path).unwrap();
        text.ends_with('\n').then_some(text)
    })
    .await;
    assert!(line.len() < 8 << 10, "{} bytes", line.len());
    door.stop().await;
}
