//! The known state of the backend: shared complete reads, and the change log that watchers follow.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use drover_core::Result;
use drover_proto::platform::v1::{Node, RemovalEvidence, Warning};
use futures::{FutureExt, future::BoxFuture, future::Shared};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    changelog::{Changelog, Key, MAX_REMOVALS},
    clock::Clock,
    driver::{Changes, Driver, Listing},
    feed::Listener,
    limits,
};

/// A complete read of the backend, or of one cluster.
#[derive(Debug)]
pub struct Reading {
    /// Start of the read.
    pub observe_time: SystemTime,
    /// What was there.
    pub listing: Listing,
}

type SharedReading = Shared<BoxFuture<'static, Result<Arc<Reading>>>>;

/// The known state of the backend.
pub(crate) struct Observer {
    driver: Arc<dyn Driver>,
    clock: Clock,
    log: Arc<Changelog>,
    /// The read that has not started yet, shared by all callers until it does.
    next: Mutex<Option<SharedReading>>,
    /// Held by the read in progress.
    reading: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Current warnings, and how often they changed.
    warnings: watch::Sender<(u64, Vec<Warning>)>,
    /// Notified when the next read of a polled driver may be due earlier.
    hurry: Notify,
}

struct State {
    observe_time: SystemTime,
    /// Number of lists processed.
    lists: u64,
    /// The nodes of a polled driver.
    polled: HashMap<Key, Polled>,
}

struct Polled {
    node: Arc<Node>,
    /// Reads that began before this show an older state.
    changed: Instant,
    /// Reads that began before this may not show the node yet.
    visible_from: Instant,
}

impl Observer {
    /// Connects to the driver.
    #[must_use]
    pub(crate) fn new(driver: Arc<dyn Driver>, clock: Clock) -> Arc<Self> {
        let log = Changelog::new(MAX_REMOVALS);
        if let Some(live) = driver.live() {
            live.connect(Changes::new(Arc::clone(&log) as Arc<dyn Listener>));
        }
        let state = State {
            observe_time: clock.now(),
            lists: 0,
            polled: HashMap::new(),
        };
        Arc::new(Self {
            driver,
            clock,
            log,
            next: Mutex::new(None),
            reading: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            warnings: watch::Sender::new((0, Vec::new())),
            hurry: Notify::new(),
        })
    }

    #[must_use]
    pub(crate) fn log(&self) -> &Arc<Changelog> {
        &self.log
    }

    /// The current warnings. The receiver is notified when they change.
    #[must_use]
    pub(crate) fn warnings(&self) -> watch::Receiver<(u64, Vec<Warning>)> {
        self.warnings.subscribe()
    }

    /// The platform's current time.
    #[must_use]
    pub(crate) fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// When the backend was last known completely. The log contains everything up to then.
    #[must_use]
    pub(crate) fn observe_time(&self) -> SystemTime {
        let mut state = self.state.lock();
        if let Some(live) = self.driver.live()
            && live.is_current()
        {
            state.observe_time = self.clock.now();
        }
        state.observe_time
    }

    /// Ensures that the log contains everything that exists now.
    ///
    /// # Errors
    ///
    /// Those of the driver if it cannot read.
    pub(crate) async fn prepare(self: &Arc<Self>) -> Result<()> {
        match self.driver.live() {
            // A driver that pushes changes needs no read while it is connected.
            Some(live) if live.is_current() => Ok(()),
            _ => self.read().await.map(drop),
        }
    }

    /// Returns the known state of a node, from memory.
    #[must_use]
    pub(crate) fn node(&self, key: &Key) -> Option<Node> {
        match self.driver.live() {
            Some(live) => live.node(&key.cluster_id, &key.node_id),
            None => self
                .state
                .lock()
                .polled
                .get(key)
                .map(|polled| Node::clone(&polled.node)),
        }
    }

    /// Reads everything. The read begins after this call; callers that arrive before it begins share it.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub(crate) async fn read(self: &Arc<Self>) -> Result<Arc<Reading>> {
        let read = {
            let mut next = self.next.lock();
            next.get_or_insert_with(|| {
                let this = Arc::clone(self);
                async move { this.read_now().await }.boxed().shared()
            })
            .clone()
        };
        read.await
    }

    async fn read_now(self: Arc<Self>) -> Result<Arc<Reading>> {
        let _reading = self.reading.lock().await;
        // The read begins here; later callers need another one.
        *self.next.lock() = None;
        let began = Instant::now();
        let listing = self.driver.list().await?;
        let observe_time = self.clock.at(began);
        self.apply(&listing, began, observe_time);
        Ok(Arc::new(Reading {
            observe_time,
            listing,
        }))
    }

    /// Reads one cluster, alone if that is cheaper than reading everything.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub(crate) async fn read_cluster(self: &Arc<Self>, cluster_id: &str) -> Result<Arc<Reading>> {
        let observe_time = self.clock.now();
        match self.driver.list_cluster(cluster_id).await? {
            Some(listing) => Ok(Arc::new(Reading {
                observe_time,
                listing,
            })),
            None => self.read().await,
        }
    }

    fn apply(&self, listing: &Listing, began: Instant, observe_time: SystemTime) {
        self.warnings.send_if_modified(|(count, warnings)| {
            let changed = *warnings != listing.warnings;
            if changed {
                *count += 1;
                warnings.clone_from(&listing.warnings);
            }
            changed
        });
        let mut state = self.state.lock();
        state.observe_time = state.observe_time.max(observe_time);
        if self.driver.live().is_some() {
            return;
        }
        let mut before = std::mem::take(&mut state.polled);
        // The backend may have several replicas: a node that is new at one of them may be missing in the lists of the
        // others for a while.
        let settles = match state.lists {
            0 => began,
            _ => began + limits::visibility_delay(&self.driver.description().limits),
        };
        state.lists += 1;
        for found in &listing.nodes {
            let key = key(&found.node);
            match before.remove(&key) {
                Some(known) if *known.node == found.node => {
                    state.polled.insert(key, known);
                }
                known => {
                    // A change by a call after the read began is newer than the result of the read.
                    let node = match known {
                        Some(known) if known.changed > began => known,
                        known => {
                            self.log.changed(&key.cluster_id, &key.node_id);
                            Polled {
                                node: Arc::new(found.node.clone()),
                                changed: began,
                                visible_from: known.map_or(settles, |known| known.visible_from),
                            }
                        }
                    };
                    state.polled.insert(key, node);
                }
            }
        }
        for (key, known) in before {
            if known.visible_from > began {
                state.polled.insert(key, known);
            } else {
                self.log
                    .removed(&key.cluster_id, &key.node_id, RemovalEvidence::NotListed);
            }
        }
    }

    /// Records a node that a call created or changed, before the next read shows it.
    pub(crate) fn made(&self, node: &Node) {
        if self.driver.live().is_some() {
            return;
        }
        let changed = Instant::now();
        let visible_from = changed + limits::visibility_delay(&self.driver.description().limits);
        let key = key(node);
        // Update the node before the log: watchers read it as soon as they are notified.
        let node = Polled {
            node: Arc::new(node.clone()),
            changed,
            visible_from,
        };
        self.state.lock().polled.insert(key.clone(), node);
        self.log.changed(&key.cluster_id, &key.node_id);
        self.hurry();
    }

    /// Refreshes the nodes in transition. Returns whether that was possible without reading everything.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub(crate) async fn look(&self) -> Result<bool> {
        let began = Instant::now();
        let Some(nodes) = self.driver.look().await? else {
            return Ok(false);
        };
        let mut changed = Vec::new();
        let mut state = self.state.lock();
        for node in nodes {
            let key = key(&node);
            if let Some(known) = state.polled.get_mut(&key)
                && known.changed <= began
                && *known.node != node
            {
                known.node = Arc::new(node);
                known.changed = began;
                changed.push(key);
            }
        }
        drop(state);
        for key in changed {
            self.log.changed(&key.cluster_id, &key.node_id);
        }
        Ok(true)
    }

    /// Signals that the driver now knows of a transition at the backend.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Waits until the backend should be read again: after the usual interval since the last read, or after the
    /// driver's interval while nodes are in transition. Returns whether the usual interval has passed.
    pub(crate) async fn pause(&self, read: Instant, usual: Duration) -> bool {
        let since = Instant::now();
        loop {
            let soon = self.driver.next_poll().map(|soon| since + soon);
            let due = soon.map_or(read + usual, |soon| soon.min(read + usual));
            tokio::select! {
                () = tokio::time::sleep_until(due) => return due == read + usual,
                () = self.hurry.notified() => {}
            }
        }
    }
}

fn key(node: &Node) -> Key {
    Key {
        cluster_id: node.cluster_id.as_str().into(),
        node_id: node.node_id.as_str().into(),
    }
}
