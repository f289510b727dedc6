//! Notices that the process of the leader has ended, before its lease has.
//!
//! A process that is killed leaves its port closed, and its machine says so at once. A leader that stands still, or whose
//! machine or network is lost, leaves no answer at all: then its lease has to run out. A wrong suspicion costs a change of
//! the lead and nothing else, since a former leader is fenced.

use std::{io::ErrorKind, time::Duration};

use drover_client::Target;
use drover_core::Result;
use drover_store::{ReplicaRow, Store, backend::LeaseId};
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

const LOOK: Duration = Duration::from_millis(100);
/// How long a port may take to accept.
const ACCEPTS: Duration = Duration::from_millis(500);
/// Refusals in a row that are believed, and the delay between them.
const REFUSALS: u32 = 3;
const AGAIN: Duration = Duration::from_millis(30);

/// Whether a port is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Open,
    Refused,
    /// Nothing can be said.
    Silent,
}

/// Ends the lease of each leader whose port is closed after it was open.
pub(super) async fn watch(store: &Store, leader: &Mutex<Option<ReplicaRow>>) {
    let mut open: Option<LeaseId> = None;
    loop {
        sleep(LOOK).await;
        let Some((lease, target)) = leader.lock().as_ref().and_then(known) else {
            continue;
        };
        match look(&target).await {
            Port::Open => open = Some(lease),
            Port::Refused if open == Some(lease) && is_closed(&target).await => {
                open = None;
                bury(store, lease).await;
            }
            Port::Refused | Port::Silent => {}
        }
    }
}

async fn bury(store: &Store, lease: LeaseId) {
    let buried = async {
        // One that has handed over before it ended leads no more.
        let leader = store.leader().await?;
        let Some(leader) = leader.filter(|leader| leader.lease == Some(lease)) else {
            return Ok(());
        };
        tracing::warn!(leader = leader.name, "the leader's process has ended");
        store.bury(lease).await
    };
    let buried: Result<()> = buried.await;
    if let Err(error) = buried {
        tracing::debug!(%error, "the lease of the leader runs out by itself");
    }
}

fn known(leader: &ReplicaRow) -> Option<(LeaseId, Target)> {
    let target = leader.address.parse().ok()?;
    Some((leader.lease.filter(|_| !leader.is_this)?, target))
}

async fn is_closed(target: &Target) -> bool {
    for _ in 1..REFUSALS {
        sleep(AGAIN).await;
        if look(target).await != Port::Refused {
            return false;
        }
    }
    true
}

async fn look(target: &Target) -> Port {
    let uri = target.uri();
    let (Some(host), Some(port)) = (uri.host(), uri.port_u16()) else {
        return Port::Silent;
    };
    // A name in brackets is an address of IPv6.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match timeout(ACCEPTS, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Port::Open,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Port::Refused,
        Ok(Err(_)) | Err(_) => Port::Silent,
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc};

    use drover_store::Me;
    use drover_testing::{store::MemoryBackend, wait::PATIENCE};
    use tokio::{net::TcpListener, time::Instant};

    use super::*;

    /// A leader and one that stands by, on one store.
    async fn pair(address: &str) -> (Store, Arc<Store>) {
        let backend = Arc::new(MemoryBackend::new());
        let me = |name: &str, address: &str| Me {
            name: name.to_owned(),
            address: address.to_owned(),
            version: String::new(),
        };
        let leads = Store::open_as(backend.clone(), me("a", address)).await;
        let leads = leads.unwrap();
        leads.take_all().await.unwrap();
        let stands_by = Store::open_as(backend, me("b", "")).await.unwrap();
        (leads, Arc::new(stands_by))
    }

    /// Looks for the leader, and whether its lease ends within some time.
    async fn ends(leads: &Store, stands_by: &Arc<Store>, within: Duration) -> bool {
        let leader = Arc::new(Mutex::new(stands_by.leader().await.unwrap()));
        let watching = {
            let (store, leader) = (stands_by.clone(), leader.clone());
            tokio::spawn(async move { watch(&store, &leader).await })
        };
        let ended = timeout(within, leads.lost().cancelled_owned())
            .await
            .is_ok();
        watching.abort();
        ended
    }

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        (listener, address)
    }

    #[tokio::test]
    async fn a_leader_whose_port_closes_is_buried_long_before_its_lease_ends() {
        let (listener, address) = listener().await;
        let (leads, stands_by) = pair(&address).await;
        tokio::spawn(async move {
            let _ = listener.accept().await;
            let _ = listener.accept().await;
        });
        assert!(ends(&leads, &stands_by, PATIENCE).await);
    }

    #[tokio::test]
    async fn one_that_was_never_reached_is_not_judged_by_its_port() {
        let (listener, address) = listener().await;
        let (leads, stands_by) = pair(&address).await;
        drop(listener);
        assert!(!ends(&leads, &stands_by, Duration::from_secs(1)).await);
    }

    #[tokio::test]
    async fn one_that_accepts_and_answers_nothing_is_not_either() {
        let (listener, address) = listener().await;
        let (leads, stands_by) = pair(&address).await;
        let begin = Instant::now();
        assert!(!ends(&leads, &stands_by, Duration::from_secs(1)).await);
        assert!(begin.elapsed() >= Duration::from_secs(1));
        drop(listener);
    }
}
