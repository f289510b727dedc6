//! Keeps elastic IP addresses pointed at their nodes as these come and go: EC2 moves none by itself.

use std::{collections::HashSet, sync::Arc, time::Duration};

use drover_core::Result;
use drover_proto::platform::v1::ResourcePhase;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{
    super::{api::Api, catalogue::filter},
    Kind,
    follow::{Candidate, choose, point},
    seen::{self, Address, BORROWED, KIND, OWNER},
};
use crate::cloud::Machine;

/// How often the addresses are read while no node changes, in case a person has moved one.
const DRIFT: Duration = Duration::from_secs(300);

/// Follows the complete lists of nodes.
pub(in crate::drivers::aws) struct Follower {
    seen: watch::Sender<Seen>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

#[derive(Clone, Default)]
struct Seen {
    /// The running nodes. `None` before the first list.
    candidates: Option<Arc<Vec<Candidate>>>,
    /// How often addresses were made or changed.
    changes: u64,
}

impl Follower {
    /// Starts to follow; ends with [`Follower::end`], or when it is dropped.
    pub(in crate::drivers::aws) fn new(api: &Arc<Api>) -> Self {
        let (seen, receiver) = watch::channel(Seen::default());
        let task = AbortOnDropHandle::new(tokio::spawn(follow(Arc::clone(api), receiver)));
        Self {
            seen,
            task: Mutex::new(Some(task)),
        }
    }

    /// Called with every complete list.
    pub(in crate::drivers::aws) fn seen(&self, machines: &[Machine]) {
        let candidates: Vec<Candidate> = machines.iter().filter_map(Candidate::of).collect();
        self.seen
            .send_modify(|seen| seen.candidates = Some(Arc::new(candidates)));
    }

    /// Called when an address may have been made or changed.
    pub(super) fn look_again(&self) {
        self.seen.send_modify(|seen| seen.changes += 1);
    }

    pub(in crate::drivers::aws) fn end(&self) {
        drop(self.task.lock().take());
    }
}

async fn follow(api: Arc<Api>, mut receiver: watch::Receiver<Seen>) {
    let mut done: Option<(Seen, Instant)> = None;
    while receiver.changed().await.is_ok() {
        let seen = receiver.borrow_and_update().clone();
        let Some(candidates) = &seen.candidates else {
            continue;
        };
        let is_done = done.as_ref().is_some_and(|(before, at)| {
            before.candidates == seen.candidates
                && before.changes == seen.changes
                && at.elapsed() < DRIFT
        });
        if is_done {
            continue;
        }
        match point_all(&api, candidates).await {
            Ok(true) => done = Some((seen, Instant::now())),
            // The next list is the next attempt.
            Ok(false) => done = None,
            Err(error) => {
                done = None;
                tracing::debug!(%error, "the addresses of clusters cannot be read");
            }
        }
    }
}

/// Points every address to its best candidate. Returns whether all of them point there now.
async fn point_all(api: &Api, candidates: &[Candidate]) -> Result<bool> {
    // Without a candidate there is nothing to point to.
    if candidates.is_empty() {
        return Ok(true);
    }
    let ours = filter(&format!("tag:{KIND}"), [Kind::Endpoint.name()]);
    let mut addresses = seen::addresses(api, Some(vec![ours])).await?;
    let mut whole = true;
    for address in single(&mut addresses) {
        let chosen = choose(address, candidates).map(|chosen| chosen.id.clone());
        if chosen.is_none() || chosen == address.instance {
            continue;
        }
        let (phase, message) = point(api, address, candidates).await;
        if phase == ResourcePhase::Ready {
            tracing::info!(address = address.ip, "{message}");
        } else {
            whole = false;
            tracing::warn!(
                address = address.ip,
                "cannot be pointed to a node: {message}"
            );
        }
    }
    Ok(whole)
}

/// The addresses without those that a cluster has twice: one of these is being freed.
fn single(addresses: &mut [Address]) -> impl Iterator<Item = &mut Address> {
    let mut seen = HashSet::new();
    let twice: HashSet<(String, String)> = addresses
        .iter()
        .map(of)
        .filter(|of| !seen.insert(of.clone()))
        .collect();
    addresses.iter_mut().filter(move |address| {
        let is_usable = !address.in_use || !address.thing.tag(BORROWED).is_empty();
        is_usable && !twice.contains(&of(address))
    })
}

fn of(address: &Address) -> (String, String) {
    let tag = |key: &str| address.thing.tag(key).to_owned();
    (tag(OWNER), tag(super::CLUSTER))
}
