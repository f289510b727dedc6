//! `logs`: the log of a node, or of all nodes of a group or cluster.

mod follow;
mod lines;

use std::{
    collections::HashMap,
    io::{IsTerminal, stdout},
};

use drover_core::{Error, Reason, Result};
use drover_proto::{
    common::v1::Chunk,
    orchestrator::v1::{
        GetNodeRequest, Node, StreamNodeLogsRequest, stream_node_logs_request::Since,
    },
};
use tokio::task::JoinSet;
use tokio_stream::{Stream, StreamExt};

use self::lines::{Lines, Prefixed};
use super::{
    access::{Output, content},
    get,
    target::{self, Nodes},
};
use crate::{
    cli::LogsArgs,
    client::{CALL_TIMEOUT, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    output,
};

/// Bytes of each log that are received before they are printed. Of more, a few that wait would hold up all others.
pub(super) const WINDOW: u32 = 256 * 1024;
/// How many logs are opened before their turn when they are printed one after the other: enough for a slow platform to be
/// asked meanwhile, and few, since a platform may hold all of what waits.
const AHEAD: usize = 4;

pub(crate) async fn run(client: &Client, args: LogsArgs) -> Outcome {
    let meant = target::nodes(&args.target)?;
    if let Nodes::Node(cluster, name) = &meant {
        return one(client, &args, cluster, name).await;
    }
    if let Nodes::Named(cluster, name) = &meant
        && is_node(client, cluster, name).await?
    {
        return one(client, &args, cluster, name).await;
    }
    let (cluster, group) = match &meant {
        Nodes::Cluster(cluster) => (cluster, None),
        Nodes::Group(cluster, path) | Nodes::Named(cluster, path) | Nodes::Node(cluster, path) => {
            (cluster, Some(path))
        }
    };
    let listed = client
        .list_nodes_of(Some(cluster.clone()), group.cloned())
        .await
        .map_err(|error| unknown(&meant, error))?;
    let nodes = get::in_order(&listed.nodes);
    if args.follow {
        let group = group.map(String::as_str);
        return follow::run(client, &args, (cluster, group), &nodes).await;
    }
    if nodes.is_empty() {
        complain!("nothing found");
        return Ok(Exit::Done);
    }
    one_by_one(client, &args, &nodes).await
}

/// Whether a name, or an id, is that of a node.
async fn is_node(client: &Client, cluster: &str, name: &str) -> Result<bool> {
    let request = GetNodeRequest {
        cluster: cluster.to_owned(),
        id: name.to_owned(),
        min_revision: None,
    };
    let answer = client.call(client.api.get_node(request, CALL_TIMEOUT));
    match answer.await {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error, "node") => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_missing(error: &Error, kind: &str) -> bool {
    error.reason() == Reason::NotFound && error.resource().is_some_and(|(it, _)| it == kind)
}

/// What is no group either may have been meant as a node.
fn unknown(meant: &Nodes, error: Error) -> Failure {
    let (cluster, what, hint) = match meant {
        Nodes::Named(cluster, name) => (
            cluster,
            format!("no node and no group {name:?}"),
            Hint::nodes(cluster),
        ),
        Nodes::Group(cluster, path) => {
            let hint = Hint::describe(cluster);
            (cluster, format!("no group {path:?}"), hint)
        }
        Nodes::Cluster(_) | Nodes::Node(..) => return error.into(),
    };
    if !is_missing(&error, "group") {
        return error.into();
    }
    let message = format!("error: cluster {cluster} has {what}");
    Failure::new(Exit::NotFound, message).with_hint(&hint)
}

fn request(args: &LogsArgs, cluster: &str, id: &str) -> StreamNodeLogsRequest {
    StreamNodeLogsRequest {
        cluster: cluster.to_owned(),
        id: id.to_owned(),
        follow: args.follow,
        previous: args.previous,
        tail_lines: args.tail,
        since: args
            .since
            .and_then(|since| since.try_into().ok())
            .map(Since::SinceDuration),
        as_text: false,
    }
}

async fn open(
    client: Client,
    request: StreamNodeLogsRequest,
) -> Result<impl Stream<Item = Result<Chunk>> + Send + Unpin + 'static> {
    let opened = client.api.stream_node_logs(request, CALL_TIMEOUT);
    client.call(opened).await
}

/// The log of one node, as it is.
async fn one(client: &Client, args: &LogsArgs, cluster: &str, id: &str) -> Outcome {
    let mut stream = open(client.clone(), request(args, cluster, id)).await?;
    let mut out = Output::new(stdout(), stdout().is_terminal());
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| cut_off(args, error))?;
        if !out.write(chunk)? {
            return Ok(Exit::Done);
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// The end of a log that was not its end. It is not taken up again: what was said meanwhile would be missing or come twice.
fn cut_off(args: &LogsArgs, error: Error) -> Failure {
    let failure = Failure::from(error.context("the log was cut off"));
    if args.follow {
        return failure.with_hint(&Hint::follow_log(&args.target));
    }
    failure
}

/// A node in messages: of several with the same name, which one.
fn named(node: &Node) -> String {
    format!("node/{}/{}", node.cluster, node.id)
}

fn printer() -> Prefixed<std::io::Stdout> {
    Prefixed::new(stdout(), stdout().is_terminal(), output::colours())
}

/// The logs of several nodes, one after the other.
async fn one_by_one(client: &Client, args: &LogsArgs, nodes: &[&Node]) -> Outcome {
    let mut out = printer();
    nodes.iter().for_each(|node| out.make_room(&node.name));
    let (mut opening, mut opened) = (JoinSet::new(), HashMap::new());
    let mut waiting = nodes.iter().enumerate();
    let mut read = 0;
    for (at, node) in nodes.iter().enumerate() {
        let places = AHEAD.saturating_sub(opening.len() + opened.len());
        for (at, node) in waiting.by_ref().take(places) {
            let request = request(args, &node.cluster, &node.id);
            let opens = open(client.clone(), request);
            opening.spawn(async move { (at, opens.await) });
        }
        let stream = loop {
            if let Some(stream) = opened.remove(&at) {
                break stream;
            }
            match opening.join_next().await {
                Some(Ok((at, stream))) => {
                    opened.insert(at, stream);
                }
                Some(Err(_)) | None => break Err(Error::internal("the call was not made")),
            }
        };
        let printed = match stream {
            Ok(stream) => print(&mut out, node, stream).await?,
            Err(error) => Err(error),
        };
        match printed {
            Ok(true) => read += 1,
            Ok(false) => return Ok(Exit::Done),
            Err(error) => complain!("{}: {error}", named(node)),
        }
    }
    if read == 0 {
        return Err(unreadable(nodes.len()));
    }
    Ok(Exit::Done)
}

fn unreadable(nodes: usize) -> Failure {
    let nodes = output::count(nodes, "node");
    Failure::failed(format!("of {nodes} no log could be read"))
}

/// Prints a log to its end. Returns whether somebody still reads the output.
async fn print<W: std::io::Write>(
    out: &mut Prefixed<W>,
    node: &Node,
    mut stream: impl Stream<Item = Result<Chunk>> + Unpin,
) -> Outcome<Result<bool>> {
    let mut lines = Lines::default();
    let mut end = Ok(true);
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => {
                if !out.write(&node.name, &lines.feed(&content(chunk)))? {
                    return Ok(Ok(false));
                }
            }
            Err(error) => end = Err(error.context("the log was cut off")),
        }
    }
    let open = out.write(&node.name, &lines.finish())?;
    Ok(end.map(|_| open))
}
