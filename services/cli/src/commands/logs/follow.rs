//! `logs -f` of several nodes, also of those that come later.

use std::{
    collections::{HashMap, HashSet},
    ops::ControlFlow,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use drover_client::{is_unreachable, retry::is_transient};
use drover_core::{Error, Result};
use drover_proto::orchestrator::v1::{Node, StreamNodeLogsRequest};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_stream::StreamExt;

use super::{Lines, content, named, open, printer, request, unreadable};
use crate::{
    cli::LogsArgs,
    client::{Change, Client},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
};

/// Pieces of logs that wait to be printed. When the output does not take more, the servers wait.
const QUEUE: usize = 64;
/// How long more of a log is waited for when its node is gone: what was said last is on its way.
const LINGER: Duration = Duration::from_secs(2);
/// Pauses before a log is opened again: a server restarts within the first, and the last asks little of one that does not.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What a reader has to say.
enum Told {
    /// Whole lines of the node of this name.
    Lines(String, Vec<u8>),
    /// A log was opened.
    Opened,
    /// That of the node with this id cannot be.
    Failed(String),
}

/// Follows the nodes of a cluster, or of a group of it: `there`, and those that come.
pub(super) async fn run(
    client: &Client,
    args: &LogsArgs,
    (cluster, group): (&str, Option<&str>),
    there: &[&Node],
) -> Outcome {
    let most = args.max_log_requests as usize;
    if there.len() > most {
        return Err(too_many(there.len(), args));
    }
    if there.is_empty() {
        complain!("nothing found yet");
    }
    for node in there.iter().filter(|node| !is_known(node)) {
        complain!("{}: is not there yet", named(node));
    }
    let (sender, told) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    let mut followed = Followed {
        client,
        args,
        there: there.iter().map(|node| node.id.clone()).collect(),
        readers: HashMap::new(),
        places: Arc::new(Semaphore::new(most)),
        sender,
        tasks: &mut tasks,
    };
    let watched = async move {
        let nodes = client.watch_nodes_of::<()>(Some(cluster), group, |change| {
            followed.see(&change);
            ControlFlow::Continue(())
        });
        tokio::select! {
            ended = nodes => ended,
            ended = gone(client, cluster) => ended,
        }
    };
    let mut shown = pin!(show(told, there));
    tokio::select! {
        ended = &mut shown => return ended,
        ended = watched => ended?,
    }
    complain!("cluster {cluster} is gone");
    // The readers end with their nodes.
    shown.await
}

fn too_many(nodes: usize, args: &LogsArgs) -> Failure {
    let most = args.max_log_requests;
    let all = Hint::follow_logs(&args.target, nodes);
    Failure::failed(format!(
        "{nodes} nodes, and -f holds at most {most} logs open at once; name a group or a node, or: {}",
        all.told()
    ))
}

/// Whether the platform of a node knows it. Before that there is no log.
fn is_known(node: &Node) -> bool {
    node.platform_node_id.is_some()
}

/// Waits until a cluster is gone.
async fn gone(client: &Client, cluster: &str) -> Result<()> {
    let mut there = false;
    client
        .watch_clusters(Some(cluster), None, |change| match change {
            Change::Upsert(_) => {
                there = true;
                ControlFlow::Continue(())
            }
            Change::Complete if there => ControlFlow::Continue(()),
            Change::Complete | Change::Removal(_) => ControlFlow::Break(()),
        })
        .await
}

/// Prints what readers say, until all have ended. Ends at once when the log of none of the first nodes can be read.
async fn show(mut told: mpsc::Receiver<Told>, there: &[&Node]) -> Outcome {
    let mut out = printer();
    there.iter().for_each(|node| out.make_room(&node.name));
    let mut unheard: HashSet<&str> = there.iter().map(|node| node.id.as_str()).collect();
    let mut opened = false;
    while let Some(told) = told.recv().await {
        match told {
            Told::Lines(name, lines) => {
                if !out.write(&name, &lines)? {
                    return Ok(Exit::Done);
                }
            }
            Told::Opened => opened = true,
            Told::Failed(id) => {
                if unheard.remove(id.as_str()) && unheard.is_empty() && !opened {
                    return Err(unreadable(there.len()));
                }
            }
        }
    }
    Ok(Exit::Done)
}

/// The nodes whose logs are read, each by a task.
struct Followed<'a> {
    client: &'a Client,
    args: &'a LogsArgs,
    /// Ids of the nodes that were there at first.
    there: HashSet<String>,
    /// By id. Dropped when the node is gone.
    readers: HashMap<String, watch::Sender<()>>,
    places: Arc<Semaphore>,
    sender: mpsc::Sender<Told>,
    tasks: &'a mut JoinSet<()>,
}

impl Followed<'_> {
    fn see(&mut self, change: &Change<'_, Node>) {
        match change {
            Change::Upsert(node) if is_known(node) && !self.readers.contains_key(&node.id) => {
                self.begin(node);
            }
            Change::Removal(name) => {
                let id = name.rsplit('/').next().unwrap_or(name);
                self.readers.remove(id);
            }
            Change::Upsert(_) | Change::Complete => {}
        }
    }

    fn begin(&mut self, node: &Node) {
        let mut request = request(self.args, &node.cluster, &node.id);
        if !self.there.contains(&node.id) {
            // Everything that it says is new.
            request.tail_lines = None;
        }
        let (sender, gone) = watch::channel(());
        self.readers.insert(node.id.clone(), sender);
        let reader = Reader {
            client: self.client.clone(),
            request,
            name: node.name.clone(),
            named: named(node),
            gone,
            places: self.places.clone(),
            sender: self.sender.clone(),
        };
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(reader.run());
    }
}

/// Reads the log of one node.
struct Reader {
    client: Client,
    request: StreamNodeLogsRequest,
    name: String,
    /// The node in messages.
    named: String,
    /// Closed when the node is gone.
    gone: watch::Receiver<()>,
    places: Arc<Semaphore>,
    sender: mpsc::Sender<Told>,
}

impl Reader {
    async fn run(mut self) {
        let places = self.places.clone();
        if places.available_permits() == 0 {
            let most = "--max-log-requests";
            complain!("{}: waits until another log ends ({most})", self.named);
        }
        let Some(Ok(_place)) = self.unless_gone(places.acquire()).await else {
            return;
        };
        let (mut pause, mut ended, mut said) = (PAUSES.0, false, String::new());
        loop {
            let mut read = false;
            let end = self.read(&mut read).await;
            if read {
                pause = PAUSES.0;
            }
            match end {
                // A server that stops ends it too, and a container that is started again: then there is more.
                Ok(()) if ended && !read => return,
                Ok(()) => {
                    if !ended {
                        complain!("{}: the log has ended", self.named);
                    }
                    ended = true;
                }
                Err(error) if is_transient(&error) => {
                    ended = false;
                    let why = error.to_string();
                    // That the orchestrator is not reached is said once, by the watch.
                    if why != said && !is_unreachable(&error) {
                        complain!("{}: {why}; trying again", self.named);
                        said = why;
                    }
                }
                // The node goes the way of its log.
                Err(_) if ended || self.gone.has_changed().is_err() => return,
                Err(error) => {
                    complain!("{}: {error}", self.named);
                    let failed = Told::Failed(self.request.id.clone());
                    return drop(self.sender.send(failed).await);
                }
            }
            if self.unless_gone(sleep(pause)).await.is_none() {
                return;
            }
            pause = PAUSES.1.min(pause * 2);
        }
    }

    /// Waits for something, but not much longer than the node is there.
    async fn unless_gone<T>(&self, wanted: impl Future<Output = T>) -> Option<T> {
        let mut gone = self.gone.clone();
        let left = async {
            while gone.changed().await.is_ok() {}
            sleep(LINGER).await;
        };
        tokio::select! {
            biased;
            wanted = wanted => Some(wanted),
            () = left => None,
        }
    }

    /// Reads the log to its end. `read`: whether there was anything in it.
    async fn read(&mut self, read: &mut bool) -> Result<()> {
        let mut stream = open(self.client.clone(), self.request.clone()).await?;
        let _ = self.sender.send(Told::Opened).await;
        // Opened again, it goes on: what was said meanwhile is missing, and nothing comes twice.
        self.request.tail_lines = Some(0);
        let mut lines = Lines::default();
        while let Some(Some(chunk)) = self.unless_gone(stream.next()).await {
            match chunk {
                Ok(chunk) => {
                    *read = true;
                    self.tell(lines.feed(&content(chunk))).await;
                }
                Err(error) => {
                    self.tell(lines.finish()).await;
                    return Err(cut_off(error));
                }
            }
        }
        self.tell(lines.finish()).await;
        Ok(())
    }

    async fn tell(&self, lines: Vec<u8>) {
        if !lines.is_empty() {
            // When nobody prints any more, this task is about to be ended.
            let _ = self
                .sender
                .send(Told::Lines(self.name.clone(), lines))
                .await;
        }
    }
}

fn cut_off(error: Error) -> Error {
    error.context("the log was cut off, and what is said meanwhile is missing")
}
