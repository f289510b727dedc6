//! Access to nodes through their platforms: logs and commands.

use std::{pin::Pin, sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_cluster::Cluster;
use drover_core::{Error, Reason, Result};
use drover_executor::hook::OPEN_TIMEOUT;
use drover_platforms::Platforms;
use drover_proto::{common::v1 as common, orchestrator::v1 as pb, platform::v1 as wire};
use drover_secrets::Vault;
use drover_store::Store;
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::{
    access::{Access, per_call},
    clusters::find_node,
    watch::STREAM_BYTES,
};
use crate::{
    limits::{Held, Limits},
    tasks::Tasks,
};

/// Interval at which the access of a streaming caller is checked again.
const LOOK: Duration = Duration::from_secs(1);

pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;

/// Reaches nodes through their platforms.
#[derive(Clone)]
pub(crate) struct NodeStreams {
    pub(crate) access: Access,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) store: Arc<Store>,
    pub(crate) tasks: Tasks,
    pub(crate) limits: Arc<Limits>,
}

per_call!(NodeStreams: access);

impl NodeStreams {
    /// Whether the caller may access the nodes of a cluster in this way.
    fn may_reach(&self, cluster: &Cluster, capability: wire::Capability) -> Result<()> {
        let labels = cluster.lock().desired().value.labels.clone();
        if !self.access.caller.sees(cluster.name(), Some(&labels)) {
            return Err(Error::not_found("cluster", cluster.name().to_string()));
        }
        // Running a command in a node counts as changing it.
        if capability == wire::Capability::NodeExec {
            self.access.may_change(cluster.name(), Some(&labels))?;
        }
        Ok(())
    }

    /// A node by its slot, its platform, and the node as the platform identifies it.
    fn target(
        &self,
        cluster: &str,
        id: &str,
        capability: wire::Capability,
        what: &str,
    ) -> Result<(Arc<Cluster>, u64, PlatformClient, wire::NodeTarget)> {
        self.access.caller.about("node", &format!("{cluster}/{id}"));
        let cluster = self.access.find(cluster)?;
        self.may_reach(&cluster, capability)?;
        let (slot, platform, target) = {
            let inner = cluster.lock();
            let node = find_node(&cluster, &inner, id)?;
            let Some(target) = drover_cluster::request::target(&cluster, node) else {
                let message = format!("{} is not there yet", node.name());
                return Err(Error::new(Reason::NodeNotRunning, message));
            };
            (node.slot, node.platform.clone(), target)
        };
        let registered = self.platforms.require(&platform)?;
        let client = registered
            .platform
            .client()
            .ok_or_else(|| Error::unavailable(format!("platform {platform} does not answer")))?;
        if !registered.platform.has(capability) {
            let message = format!("platform {platform} cannot {what}");
            return Err(Error::new(Reason::CapabilityMissing, message)
                .with_metadata("capability", capability.as_str_name()));
        }
        Ok((cluster, slot, client, target))
    }

    pub(super) async fn logs(
        &self,
        request: pb::StreamNodeLogsRequest,
    ) -> Result<Answers<pb::StreamNodeLogsResponse>> {
        use pb::stream_node_logs_request::Since;
        let capability = wire::Capability::NodeLogs;
        let (cluster, slot, client, target) =
            self.target(&request.cluster, &request.id, capability, "show logs")?;
        let held = self.limits.hold(self.access.record.payer(), STREAM_BYTES)?;
        let message = wire::StreamLogsRequest {
            node: Some(target),
            follow: request.follow,
            previous: request.previous,
            tail_lines: request.tail_lines,
            as_text: request.as_text,
            since: request.since.map(|since| match since {
                Since::SinceTime(time) => wire::stream_logs_request::Since::SinceTime(time),
                Since::SinceDuration(span) => wire::stream_logs_request::Since::SinceDuration(span),
            }),
        };
        let opened = client.stream_logs(message, OPEN_TIMEOUT).await;
        let chunks = self.vault.hide(&cluster, slot, opened).await?;
        let chunks = without(self.vault.clone(), cluster.clone(), slot, chunks)
            .map(|chunk| chunk.map(|chunk| pb::StreamNodeLogsResponse { chunk: Some(chunk) }));
        Ok(self.while_allowed(cluster, capability, held, chunks))
    }

    pub(super) async fn exec(
        &self,
        mut input: Streaming<pb::ExecNodeRequest>,
    ) -> Result<Answers<pb::ExecNodeResponse>> {
        use pb::exec_node_request::Input;
        let out_of_order =
            || Error::invalid("input", "the first message is `start`, and only the first");
        let first = input
            .message()
            .await
            .map_err(|status| drover_client::to_error(&status))?;
        let Some(Input::Start(start)) = first.and_then(|message| message.input) else {
            return Err(out_of_order());
        };
        if start.command.is_empty() {
            return Err(Error::invalid("start.command", "is empty"));
        }
        // Another replica may have begun to lead while the message was waited for.
        self.store.in_touch()?;
        let capability = wire::Capability::NodeExec;
        let (cluster, slot, client, target) = self.target(
            &start.cluster,
            &start.id,
            capability,
            "run commands in nodes",
        )?;
        let held = self.limits.hold(self.access.record.payer(), STREAM_BYTES)?;
        self.access.record.runs(&start.command).await?;
        let first = wire::ExecStart {
            node: Some(target),
            fence: None,
            command: start.command,
            stdin: start.stdin,
            tty: start.tty,
            terminal_size: start.terminal_size,
            as_text: start.as_text,
        };
        let first = wire::ExecRequest {
            input: Some(wire::exec_request::Input::Start(first)),
        };
        // A message out of order ends both directions; the platform then ends the command.
        let wrong = CancellationToken::new();
        let refused = wrong.clone();
        let rest = input
            .map(move |message| {
                let passed = passed_on(message.ok()?);
                if passed.is_none() {
                    refused.cancel();
                }
                passed
            })
            .take_while(|message| futures::future::ready(message.is_some()))
            .filter_map(futures::future::ready);
        let requests = futures::stream::once(async move { first }).chain(rest);
        let opened = client.exec(requests, OPEN_TIMEOUT).await;
        let outputs = self.vault.hide(&cluster, slot, opened).await?;
        let outputs = without(self.vault.clone(), cluster.clone(), slot, outputs).map(|output| {
            output.map(|output| pb::ExecNodeResponse {
                output: Some(output),
            })
        });
        let outputs = until(outputs, async move {
            wrong.cancelled_owned().await;
            out_of_order()
        });
        Ok(self.while_allowed(cluster, capability, held, outputs))
    }

    /// Ends a stream when the orchestrator stops, and when the cluster leaves the caller's scope.
    fn while_allowed<T: Send + 'static>(
        &self,
        cluster: Arc<Cluster>,
        capability: wire::Capability,
        held: Held,
        stream: impl Stream<Item = Result<T>> + Send + 'static,
    ) -> Answers<T> {
        let (stop, streams) = (self.tasks.stop().clone(), self.clone());
        let stream = until(stream, async move {
            let mut look = tokio::time::interval(LOOK);
            loop {
                look.tick().await;
                if let Err(error) = streams.may_reach(&cluster, capability) {
                    return error;
                }
            }
        });
        let stream = stream.map(move |item| {
            let _ = &held;
            item.map_err(|error| drover_convert::error::to_status(&error))
        });
        Box::pin(stream.take_until(stop.cancelled_owned()))
    }
}

/// Redacts from the errors of a stream everything that the node was given.
fn without<T>(
    vault: Arc<Vault>,
    cluster: Arc<Cluster>,
    slot: u64,
    stream: impl Stream<Item = Result<T>>,
) -> impl Stream<Item = Result<T>> {
    stream.then(move |item| {
        let (vault, cluster) = (vault.clone(), cluster.clone());
        async move { vault.hide(&cluster, slot, item).await }
    })
}

/// Ends a stream with this error as soon as it is available.
fn until<T>(
    stream: impl Stream<Item = Result<T>>,
    end: impl Future<Output = Error>,
) -> impl Stream<Item = Result<T>> {
    let state = Some((Box::pin(stream), Box::pin(end)));
    futures::stream::unfold(state, |state| async {
        let (mut stream, mut end) = state?;
        tokio::select! {
            biased;
            error = &mut end => Some((Err(error), None)),
            item = stream.next() => Some((item?, Some((stream, end)))),
        }
    })
}

fn passed_on(message: pb::ExecNodeRequest) -> Option<wire::ExecRequest> {
    use pb::exec_node_request::Input;
    use wire::exec_request::Input as To;
    let input = match message.input? {
        Input::Start(_) => return None,
        Input::Stdin(chunk) => To::Stdin(common::Chunk::clone(&chunk)),
        Input::Resize(size) => To::Resize(size),
        Input::StdinClosed(closed) => To::StdinClosed(closed),
    };
    Some(wire::ExecRequest { input: Some(input) })
}

/// Node filter.
pub(super) struct Filter {
    pub(super) cluster: Option<String>,
    /// The cluster as it was when the filter was created.
    pub(super) found: Option<Arc<Cluster>>,
    group: Option<String>,
}

impl Filter {
    pub(super) fn new(
        access: &Access,
        cluster: Option<String>,
        group: Option<String>,
    ) -> Result<Self> {
        let found = match (&cluster, &group) {
            (None, Some(_)) => return Err(Error::invalid("group", "needs cluster")),
            (Some(name), group) => {
                let found = access.find(name)?;
                if let Some(group) = group {
                    let inner = found.lock();
                    let inside = format!("{group}/");
                    let groups = inner.spec().groups.iter().map(|group| &group.path);
                    let nodes = inner.state().nodes.iter().map(|node| &node.group);
                    let known = groups
                        .chain(nodes)
                        .any(|at| **at == **group || at.starts_with(&inside));
                    if !known {
                        return Err(super::clusters::no_group(name, group));
                    }
                }
                Some(found)
            }
            (None, None) => None,
        };
        Ok(Self {
            cluster,
            found,
            group,
        })
    }

    pub(super) fn has(&self, group: &str) -> bool {
        self.group.as_deref().is_none_or(|wanted| {
            group == wanted
                || (group.starts_with(wanted) && group.as_bytes().get(wanted.len()) == Some(&b'/'))
        })
    }
}
