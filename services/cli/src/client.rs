//! Client of the orchestrator for the commands.

use std::{future::Future, ops::ControlFlow, slice, time::Duration};

use drover_client::{
    Channel, Target, is_unreachable, orchestrator::OrchestratorClient, retry::Policy, watch::Update,
};
use drover_core::{Error, Result};
use drover_proto::{
    common::v1::LabelSelector,
    orchestrator::v1::{
        Cluster, ClusterView, GetPlatformRequest, ListClustersRequest, ListClustersResponse,
        ListNodesRequest, ListNodesResponse, ListPlatformsRequest, ListPlatformsResponse, Node,
        Platform, WatchClustersRequest, WatchNodesRequest,
    },
};
use tokio_stream::{Stream, StreamExt};

/// Timeout of one call: the orchestrator answers from its store, and gives the platforms that it asks less time.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an unreachable orchestrator is retried: a restart takes less, and a person is waiting.
const UNREACHABLE: Duration = Duration::from_secs(1);

/// A connection to the orchestrator, or to several of which one leads.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) api: OrchestratorClient,
    /// Address of the orchestrator, or of all: `A, B or C`.
    server: String,
    several: bool,
    /// What the address was taken from, for who did not expect it. Empty: nothing says another one.
    origin: String,
}

impl Client {
    /// A client for the orchestrator at an address. Sends nothing yet.
    pub(crate) fn connect(target: &Target) -> Self {
        Self::to(slice::from_ref(target))
    }

    /// A client for the one that leads of the orchestrators at these addresses. Sends nothing yet.
    pub(crate) fn to(targets: &[Target]) -> Self {
        Self {
            several: targets.len() > 1,
            ..Self::over(drover_client::connect_any(targets), any(targets))
        }
    }

    /// A client over an existing channel.
    pub(crate) fn over(channel: Channel, server: String) -> Self {
        Self {
            api: OrchestratorClient::new(channel).with_policy(Policy {
                unreachable: UNREACHABLE,
                ..Policy::default()
            }),
            server,
            several: false,
            origin: String::new(),
        }
    }

    /// The same, with what the address was taken from.
    pub(crate) fn named_by(mut self, origin: &str) -> Self {
        origin.clone_into(&mut self.origin);
        self
    }

    /// Address of the orchestrator, or of all, for messages.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Makes one call. If the orchestrator is unreachable, the error contains a hint.
    pub(crate) async fn call<A>(&self, call: impl Future<Output = Result<A>>) -> Result<A> {
        call.await.map_err(|error| {
            if is_unreachable(&error) {
                let server = &self.server;
                // `drover dev` is never one of several.
                let hint = if self.several || server.starts_with("https://") {
                    ""
                } else {
                    " (is `drover dev` running?)"
                };
                let what = if self.several { "addresses" } else { "address" };
                let origin = match self.origin.as_str() {
                    "" => String::new(),
                    origin => format!(", the {what} of {origin}"),
                };
                error.context(format!(
                    "cannot reach the orchestrator at {server}{origin}{hint}"
                ))
            } else {
                error
            }
        })
    }

    pub(crate) async fn list_clusters(
        &self,
        selector: Option<LabelSelector>,
    ) -> Result<ListClustersResponse> {
        let mut all = ListClustersResponse::default();
        loop {
            let page = ListClustersRequest {
                page_token: std::mem::take(&mut all.next_page_token),
                selector: selector.clone(),
                view: ClusterView::Full.into(),
                ..Default::default()
            };
            let page = self
                .call(self.api.list_clusters(page, CALL_TIMEOUT))
                .await?;
            all.clusters.extend(page.clusters);
            all.revision = page.revision;
            all.next_page_token = page.next_page_token;
            if all.next_page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    pub(crate) async fn list_nodes(&self, cluster: Option<String>) -> Result<ListNodesResponse> {
        self.list_nodes_of(cluster, None).await
    }

    /// The nodes of all clusters, one, or a group of it.
    pub(crate) async fn list_nodes_of(
        &self,
        cluster: Option<String>,
        group: Option<String>,
    ) -> Result<ListNodesResponse> {
        let mut all = ListNodesResponse::default();
        loop {
            let page = ListNodesRequest {
                cluster: cluster.clone(),
                group: group.clone(),
                page_token: std::mem::take(&mut all.next_page_token),
                ..Default::default()
            };
            let page = self.call(self.api.list_nodes(page, CALL_TIMEOUT)).await?;
            all.nodes.extend(page.nodes);
            all.revision = page.revision;
            all.next_page_token = page.next_page_token;
            if all.next_page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    pub(crate) async fn list_platforms(&self) -> Result<ListPlatformsResponse> {
        let mut all = ListPlatformsResponse::default();
        loop {
            let page = ListPlatformsRequest {
                page_token: std::mem::take(&mut all.next_page_token),
                ..Default::default()
            };
            let page = self
                .call(self.api.list_platforms(page, CALL_TIMEOUT))
                .await?;
            all.platforms.extend(page.platforms);
            all.revision = page.revision;
            all.next_page_token = page.next_page_token;
            if all.next_page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    pub(crate) async fn get_platform(&self, name: &str) -> Result<Platform> {
        let request = GetPlatformRequest {
            name: name.to_owned(),
            min_revision: None,
        };
        let answer = self
            .call(self.api.get_platform(request, CALL_TIMEOUT))
            .await?;
        answer
            .platform
            .ok_or_else(|| Error::internal("the answer has no platform"))
    }

    /// Passes one cluster, or all, and every change to `see` until it breaks. Survives lost connections.
    pub(crate) async fn watch_clusters<T>(
        &self,
        name: Option<&str>,
        selector: Option<LabelSelector>,
        see: impl FnMut(Change<'_, Cluster>) -> ControlFlow<T>,
    ) -> Result<T> {
        let request = WatchClustersRequest {
            name: name.map(str::to_owned),
            selector,
            view: ClusterView::Full.into(),
            ..Default::default()
        };
        let watch = self
            .call(self.api.watch_clusters(request, CALL_TIMEOUT))
            .await?;
        follow(watch, see).await
    }

    /// Passes the nodes of one cluster, or of all, and every change to `see` until it breaks.
    pub(crate) async fn watch_nodes<T>(
        &self,
        cluster: Option<&str>,
        see: impl FnMut(Change<'_, Node>) -> ControlFlow<T>,
    ) -> Result<T> {
        self.watch_nodes_of(cluster, None, see).await
    }

    /// The same with the nodes of a group.
    pub(crate) async fn watch_nodes_of<T>(
        &self,
        cluster: Option<&str>,
        group: Option<&str>,
        see: impl FnMut(Change<'_, Node>) -> ControlFlow<T>,
    ) -> Result<T> {
        let request = WatchNodesRequest {
            cluster: cluster.map(str::to_owned),
            group: group.map(str::to_owned),
            ..Default::default()
        };
        let watch = self
            .call(self.api.watch_nodes(request, CALL_TIMEOUT))
            .await?;
        follow(watch, see).await
    }
}

/// Servers in a sentence: `A, B or C`.
fn any(targets: &[Target]) -> String {
    let names: Vec<String> = targets.iter().map(Target::to_string).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// A change reported by a watch.
#[derive(Debug)]
pub(crate) enum Change<'a, T> {
    /// The object exists, or has changed.
    Upsert(&'a T),
    /// The object of this name is gone.
    Removal(&'a str),
    /// All existing objects were reported.
    Complete,
}

async fn follow<T, R>(
    mut watch: impl Stream<Item = Result<Update<T>>> + Unpin,
    mut see: impl FnMut(Change<'_, T>) -> ControlFlow<R>,
) -> Result<R> {
    let mut lost = String::new();
    while let Some(update) = watch.next().await {
        let flow = match update? {
            Update::Upserts(items) => items.iter().try_for_each(|item| see(Change::Upsert(item))),
            Update::Removals(names) => names.iter().try_for_each(|name| see(Change::Removal(name))),
            Update::Synced { .. } => see(Change::Complete),
            Update::Reconnecting(error) => {
                let why = error.to_string();
                // It is retried repeatedly; the same reason is printed once.
                if why != lost {
                    complain!("the connection was lost ({why}), trying again");
                    lost = why;
                }
                ControlFlow::Continue(())
            }
        };
        if let ControlFlow::Break(value) = flow {
            return Ok(value);
        }
    }
    Err(Error::unavailable("the watch ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_as_in_a_sentence() {
        let target = |name: &&str| format!("http://{name}:1").parse().unwrap();
        for (names, text) in [
            (&["a"][..], "http://a:1"),
            (&["a", "b"], "http://a:1 or http://b:1"),
            (&["a", "b", "c"], "http://a:1, http://b:1 or http://c:1"),
        ] {
            let targets: Vec<Target> = names.iter().map(target).collect();
            assert_eq!(any(&targets), text);
        }
    }
}
