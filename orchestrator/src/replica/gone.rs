//! Notices that the process of the leader has ended, before its lease has.
//!
//! A process that is killed leaves its port closed, and its machine says so at once. The leader is then asked by way of the
//! store whether it lives, since its address may be that of something in front of it. One that stands still, or whose
//! machine or network is lost, leaves no answer at all: then its lease has to run out. A wrong judgement costs a change of
//! the lead and nothing else: a former leader is fenced, in the store and at platforms, and looks whether it still leads
//! before it meets a platform's server that was started again.

use std::{net::SocketAddr, time::Duration};

use drover_core::Result;
use drover_store::{ReplicaRow, Store, backend::LeaseId};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::sight::{Port, find, look};

const LOOK: Duration = Duration::from_millis(250);
/// How long a port may take to accept.
const ACCEPTS: Duration = Duration::from_millis(500);
/// Refusals in a row that are believed, and the delay between them.
const REFUSALS: u32 = 3;
const AGAIN: Duration = Duration::from_millis(30);

/// A leader whose port was open.
struct Known {
    lease: LeaseId,
    address: SocketAddr,
}

/// Ends the lease of each leader whose port is closed after it was open, and who does not say that it lives.
pub(super) async fn watch(store: &Store, leader: &Mutex<Option<ReplicaRow>>) {
    let mut known: Option<Known> = None;
    loop {
        sleep(LOOK).await;
        let present = leader.lock().clone().filter(|leader| !leader.is_this);
        let Some((leader, lease)) = present.and_then(|it| it.lease.map(|lease| (it, lease))) else {
            continue;
        };
        match &known {
            Some(Known { lease: of, address }) if *of == lease => {
                if is_closed(*address).await {
                    known = None;
                    bury(store, &leader.name, lease).await;
                }
            }
            _ => {
                known = find(&leader.address, ACCEPTS)
                    .await
                    .map(|address| Known { lease, address });
            }
        }
    }
}

async fn bury(store: &Store, name: &str, lease: LeaseId) {
    let buried = async {
        // One that has handed over before it ended leads no more.
        let leader = store.leader().await?;
        if leader.is_none_or(|leader| leader.lease != Some(lease)) {
            return Ok(None);
        }
        if store.bury(name, lease).await? {
            return Ok(Some(true));
        }
        // Another one that stands by may have done it meanwhile.
        let leader = store.leader().await?;
        let leads = leader.is_some_and(|leader| leader.lease == Some(lease));
        Ok(leads.then_some(false))
    };
    let buried: Result<Option<bool>> = buried.await;
    match buried {
        Ok(Some(true)) => tracing::warn!(leader = name, "the leader's process has ended"),
        Ok(Some(false)) => tracing::info!(
            leader = name,
            "the leader lives, though its address refuses connections"
        ),
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "the lease of the leader runs out by itself"),
    }
}

async fn is_closed(address: SocketAddr) -> bool {
    for at in 0..REFUSALS {
        if at > 0 {
            sleep(AGAIN).await;
        }
        if look(address, ACCEPTS).await != Port::Refused {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc};

    use drover_store::{Backend, Me};
    use drover_testing::{store::MemoryBackend, wait::PATIENCE};
    use tokio::{net::TcpListener, time::timeout};

    use super::*;

    struct Pair {
        backend: Arc<MemoryBackend>,
        leads: Option<Store>,
        stands_by: Arc<Store>,
    }

    impl Pair {
        /// Nobody answers for the leader any more.
        fn kill(&mut self) {
            self.leads = None;
        }
    }

    /// A leader and one that stands by, on one store.
    async fn pair(address: &str) -> Pair {
        let backend = Arc::new(MemoryBackend::new());
        let me = |name: &str, address: &str| Me {
            address: address.to_owned(),
            ..Me::named(name)
        };
        let leads = Store::open_as(backend.clone(), me("a", address)).await;
        let leads = leads.unwrap();
        leads.take_all().await.unwrap();
        let stands_by = Store::open_as(backend.clone(), me("b", "")).await.unwrap();
        Pair {
            backend,
            leads: Some(leads),
            stands_by: Arc::new(stands_by),
        }
    }

    /// Looks for the leader, and whether its lease is ended within some time, although it is renewed all the time.
    async fn is_buried(pair: &Pair, within: Duration) -> bool {
        let leader = pair.stands_by.leader().await.unwrap();
        let lease = leader.as_ref().and_then(|leader| leader.lease).unwrap();
        let leader = Arc::new(Mutex::new(leader));
        let watching = {
            let store = pair.stands_by.clone();
            tokio::spawn(async move { watch(&store, &leader).await })
        };
        let ended = async {
            while pair.backend.renew(lease).await.is_ok() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let ended = timeout(within, ended).await.is_ok();
        watching.abort();
        ended
    }

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        (listener, address)
    }

    /// Closes the port once it was found open.
    fn close_after_one(listener: TcpListener) {
        tokio::spawn(async move {
            let _ = listener.accept().await;
        });
    }

    const LONG_ENOUGH: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn a_leader_whose_port_closes_and_who_does_not_answer_is_buried() {
        let (listener, address) = listener().await;
        let mut pair = pair(&address).await;
        pair.kill();
        close_after_one(listener);
        assert!(is_buried(&pair, PATIENCE).await);
    }

    #[tokio::test]
    async fn one_that_lives_behind_a_closed_port_says_so_and_goes_on_leading() {
        let (listener, address) = listener().await;
        let pair = pair(&address).await;
        close_after_one(listener);
        assert!(!is_buried(&pair, LONG_ENOUGH).await);
        assert!(pair.leads.unwrap().holds());
    }

    #[tokio::test]
    async fn one_that_was_never_reached_is_not_judged_by_its_port() {
        let (listener, address) = listener().await;
        let mut pair = pair(&address).await;
        pair.kill();
        drop(listener);
        assert!(!is_buried(&pair, LONG_ENOUGH).await);
    }

    #[tokio::test]
    async fn one_that_accepts_and_answers_nothing_is_not_either() {
        let (listener, address) = listener().await;
        let mut pair = pair(&address).await;
        pair.kill();
        assert!(!is_buried(&pair, LONG_ENOUGH).await);
        drop(listener);
    }
}
