//! Read-only calls.

use std::time::Duration;

use drover_client::{OrchestratorClient, watch::EventUpdate};
use drover_proto::{
    common::v1::process_output::Output,
    orchestrator::v1::{self as pb, exec_node_request::Input, plan_cluster_request::Subject},
};
use futures::StreamExt;
use tokio::time::{Instant, timeout_at};

use super::{Run, operator::CALL, specs};

/// Virtual time for which events are watched.
const FOLLOWED: Duration = Duration::from_secs(2);

impl Run {
    /// Makes a read-only call, which must not have any effect.
    pub(super) async fn look(&mut self, name: &str) {
        match self.random.u8(..14) {
            0 | 1 => self.forecast(name).await,
            2 => self.read_log(name).await,
            3 => self.run_command(name).await,
            4 => self.read_a_node(name).await,
            5 => {
                let request = pb::ListRevisionsRequest {
                    cluster: name.to_owned(),
                    ..pb::ListRevisionsRequest::default()
                };
                self.ask("ListRevisions", async |client| {
                    client.list_revisions(request.clone(), CALL).await
                })
                .await;
            }
            6 => {
                let request = pb::ListEventsRequest {
                    cluster: name.to_owned(),
                    ..pb::ListEventsRequest::default()
                };
                self.ask("ListEvents", async |client| {
                    client.list_events(request.clone(), CALL).await
                })
                .await;
            }
            7 => {
                let request = pb::ListDiscoveredClustersRequest::default();
                self.ask("ListDiscoveredClusters", async |client| {
                    client.list_discovered_clusters(request.clone(), CALL).await
                })
                .await;
            }
            8 => {
                let request = pb::ListClustersRequest::default();
                self.ask("ListClusters", async |client| {
                    client.list_clusters(request.clone(), CALL).await
                })
                .await;
            }
            9 => {
                let at = self.random.usize(..self.model.sites.len());
                let request = pb::ListHostsRequest {
                    platform: self.model.sites[at].name.clone(),
                    ..pb::ListHostsRequest::default()
                };
                self.ask("ListHosts", async |client| {
                    client.list_hosts(request.clone(), CALL).await
                })
                .await;
            }
            10 => self.follow_events(name).await,
            11 => {
                let request = pb::ListSecretsRequest::default();
                self.ask("ListSecrets", async |client| {
                    client.list_secrets(request.clone(), CALL).await
                })
                .await;
            }
            _ => {
                let request = pb::ListPlatformsRequest::default();
                self.ask("ListPlatforms", async |client| {
                    client.list_platforms(request.clone(), CALL).await
                })
                .await;
            }
        }
    }

    /// Watches the events of a cluster for a moment: each existing one must arrive once and in order.
    async fn follow_events(&mut self, name: &str) {
        let watch = async |client: OrchestratorClient| {
            let mut watch = client.watch_events(name, Some(0), CALL).await?;
            let end = Instant::now() + FOLLOWED;
            let mut told = Vec::new();
            while let Ok(Some(update)) = timeout_at(end, watch.next()).await {
                if let EventUpdate::Event(event) = update? {
                    told.push(event.sequence);
                }
            }
            Ok(told)
        };
        let Some(told) = self.ask("WatchEvents", watch).await else {
            return;
        };
        if told.windows(2).any(|pair| pair[0] + 1 != pair[1]) {
            self.wrong = Some(format!("events of {name} came as {told:?}"));
        }
    }

    async fn forecast(&mut self, name: &str) {
        let mut spec = self.model.clusters[name].spec.clone();
        let offers = self.model.offers();
        specs::change(&mut self.random, &mut spec, &offers);
        let request = pb::PlanClusterRequest {
            subject: Some(Subject::Cluster(pb::Cluster {
                name: name.to_owned(),
                spec: Some(spec),
                ..pb::Cluster::default()
            })),
            ..pb::PlanClusterRequest::default()
        };
        self.ask("PlanCluster", async |client| {
            client.plan_cluster(request.clone(), CALL).await
        })
        .await;
    }

    async fn read_a_node(&mut self, name: &str) {
        let Some(node) = self.any_node(name).await else {
            return;
        };
        let request = pb::GetNodeRequest {
            cluster: name.to_owned(),
            id: node.id,
            ..pb::GetNodeRequest::default()
        };
        self.ask("GetNode", async |client| {
            client.get_node(request.clone(), CALL).await
        })
        .await;
    }

    async fn read_log(&mut self, name: &str) {
        let Some(node) = self.any_node(name).await else {
            return;
        };
        let request = pb::StreamNodeLogsRequest {
            cluster: name.to_owned(),
            id: node.id,
            ..pb::StreamNodeLogsRequest::default()
        };
        let read = async |client: OrchestratorClient| {
            let mut chunks = client.stream_node_logs(request.clone(), CALL).await?;
            while let Some(chunk) = chunks.next().await {
                chunk?;
            }
            Ok(())
        };
        self.ask("StreamNodeLogs", read).await;
    }

    async fn run_command(&mut self, name: &str) {
        let Some(node) = self.any_node(name).await else {
            return;
        };
        let start = pb::ExecNodeRequest {
            input: Some(Input::Start(pb::ExecNodeStart {
                cluster: name.to_owned(),
                id: node.id,
                command: vec!["echo".to_owned(), "who is there".to_owned()],
                ..pb::ExecNodeStart::default()
            })),
        };
        let run = async |client: OrchestratorClient| {
            let start = start.clone();
            let input = futures::stream::once(async move { start });
            let mut output = client.exec_node(input, CALL).await?;
            let mut code = None;
            while let Some(said) = output.next().await {
                if let Some(Output::ExitCode(with)) = said?.output {
                    code = Some(with);
                }
            }
            Ok(code)
        };
        self.ask("ExecNode", run).await;
    }
}
