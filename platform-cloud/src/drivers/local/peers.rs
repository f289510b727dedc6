//! The peers of a node: `peers.json` in its directory, rewritten as nodes of its cluster are created, deleted and
//! changed. Only for nodes whose template requests it. Programs beside them are told in the same rounds.

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
    Shared,
    endpoints::Endpoints,
    files,
    node::{Node, blocking},
    state::{PEERS, Record},
};

/// Interval between updates, which batches nodes that are created together. A promotion waits for it.
const ROUND: Duration = Duration::from_millis(20);

/// Retry delay of what programs are told, after a file system error.
const RETRY: Duration = Duration::from_secs(1);

/// Collects the clusters whose peer lists are outdated.
#[derive(Default)]
pub(super) struct PeerNotifier {
    clusters: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl PeerNotifier {
    pub(super) fn changed(&self, cluster_id: &str) {
        self.clusters.lock().insert(cluster_id.to_owned());
        self.wake.notify_one();
    }

    fn take(&self) -> BTreeSet<String> {
        mem::take(&mut *self.clusters.lock())
    }
}

/// A node as seen by its peers.
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

/// Keeps the peer lists, and the files for programs, up to date until cancelled.
pub(super) async fn keep(shared: Arc<Shared>, cancel: CancellationToken) {
    let mut endpoints = Endpoints::open(&shared).await;
    // Groups may have gone without a word: a round removes their files.
    shared.peer_notifier.wake.notify_one();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = shared.peer_notifier.wake.notified() => {}
            () = sleep(RETRY), if endpoints.is_behind() => {}
        }
        let clusters = shared.peer_notifier.take();
        // Nodes first: a promotion waits for them.
        for cluster in &clusters {
            tell(&shared, cluster).await;
        }
        endpoints.update(&shared, &clusters).await;
        sleep(ROUND).await;
    }
}

/// Rewrites the peer lists of a cluster.
async fn tell(shared: &Shared, cluster: &str) {
    let (nodes, peers) = listed(shared, cluster, None);
    for node in nodes.iter().filter(|node| node.record().peers) {
        let (path, peers) = (node.directory.join(PEERS), peers.clone());
        match blocking(move || rewrite(&path, &peers)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(node = %node.directory.display(), %error, "a node cannot be told of the others");
                shared.peer_notifier.changed(cluster);
            }
            // Its directory is gone.
            _ => {}
        }
    }
}

/// The initial list for a node that does not exist yet.
pub(super) fn at_first(shared: &Shared, record: &Record) -> Vec<u8> {
    listed(shared, &record.identity.cluster_id, Some(record)).1
}

/// The nodes of a cluster whose processes have not ended, and their peer list as JSON.
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
    // Serializing strings and numbers cannot fail.
    let peers = files::to_json(&peers.collect::<Vec<_>>()).unwrap_or_default();
    (nodes, peers)
}

fn role(record: &Record) -> &'static str {
    match NodeRole::try_from(record.identity.role) {
        Ok(NodeRole::Standby) => "standby",
        _ => "active",
    }
}

/// Not synced: after a machine crash it is written again.
pub(super) fn rewrite(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    let temporary = path.with_extension("new");
    write(&temporary, content)?;
    fs::rename(&temporary, path)
}

/// World-readable, as nodes and programs may run as any user.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}
