//! What a node may know of the others: `peers.json` in its directory, rewritten as nodes of its cluster come, go and
//! change. Only for nodes whose template asks for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io, mem,
    path::Path,
    sync::Arc,
    time::Duration,
};

use drover_proto::platform::v1::NodeRole;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Shared, files,
    node::{Node, blocking},
    state::{PEERS, Record},
};

/// Time between two rounds: nodes that come together are told of together. A promotion waits for it.
const ROUND: Duration = Duration::from_millis(20);

/// Clusters of which something has changed.
#[derive(Default)]
pub(super) struct News {
    clusters: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl News {
    pub(super) fn of(&self, cluster_id: &str) {
        self.clusters.lock().insert(cluster_id.to_owned());
        self.wake.notify_one();
    }

    fn take(&self) -> BTreeSet<String> {
        mem::take(&mut *self.clusters.lock())
    }
}

/// A node as the others see it.
#[derive(Serialize)]
struct Peer<'a> {
    name: &'a str,
    id: &'a str,
    group: &'a str,
    ordinal: u32,
    role: &'static str,
    host: &'a str,
    ports: &'a BTreeMap<String, u16>,
}

/// Keeps the lists up to date until it is cancelled.
pub(super) async fn keep(shared: Arc<Shared>, cancel: CancellationToken) {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = shared.news.wake.notified() => {}
        }
        for cluster in shared.news.take() {
            let (nodes, peers) = listed(&shared, &cluster, None);
            for node in nodes.iter().filter(|node| node.record().peers) {
                let (path, peers) = (node.directory.join(PEERS), peers.clone());
                match blocking(move || rewrite(&path, &peers)).await {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        warn!(node = %node.directory.display(), %error, "a node cannot be told of the others");
                        shared.news.of(&cluster);
                    }
                    // Its directory is gone.
                    _ => {}
                }
            }
        }
        sleep(ROUND).await;
    }
}

/// The list for a node that does not exist yet.
pub(super) fn at_first(shared: &Shared, record: &Record) -> Vec<u8> {
    listed(shared, &record.identity.cluster_id, Some(record)).1
}

/// The nodes of a cluster whose processes have not ended, and all of them as JSON.
fn listed(shared: &Shared, cluster: &str, new: Option<&Record>) -> (Vec<Arc<Node>>, Vec<u8>) {
    let mut nodes = shared.nodes.lock().values().cloned().collect::<Vec<_>>();
    nodes.retain(|node| node.cluster_id() == cluster && !node.has_ended());
    let mut records = nodes.iter().map(|node| node.record()).collect::<Vec<_>>();
    records.extend(new.cloned());
    records.sort_by(|a, b| {
        let key = |of: &Record| (of.identity.group.clone(), of.identity.ordinal);
        key(a).cmp(&key(b))
    });
    let peers = records.iter().map(|record| Peer {
        name: &record.identity.name,
        id: &record.identity.id,
        group: &record.identity.group,
        ordinal: record.identity.ordinal,
        role: role(record),
        host: &record.host,
        ports: &record.ports,
    });
    // Names and numbers always make JSON.
    let peers = files::to_json(&peers.collect::<Vec<_>>()).unwrap_or_default();
    (nodes, peers)
}

fn role(record: &Record) -> &'static str {
    match NodeRole::try_from(record.identity.role) {
        Ok(NodeRole::Standby) => "standby",
        _ => "active",
    }
}

/// Not synced: after a crash of the machine it is written again.
fn rewrite(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    let temporary = path.with_extension("new");
    write(&temporary, content)?;
    fs::rename(&temporary, path)
}

/// Readable for whatever user the node runs as.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}
