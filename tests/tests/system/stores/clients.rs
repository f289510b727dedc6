//! Clients that write while nodes die, and the acknowledgements that they receive.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::time::Instant;

use crate::stores::{Ports, UP, WRITES, find, real::World};

/// An acknowledged write.
struct Write {
    number: u64,
    began: Instant,
    done: Instant,
}

/// A client that writes one number after the other and records the acknowledged ones.
pub(crate) struct Writer {
    acknowledged: Arc<Mutex<Vec<Write>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// `write` returns whether a number was acknowledged. It must return within seconds.
    pub(crate) fn start(mut write: impl FnMut(u64) -> bool + Send + 'static) -> Self {
        let acknowledged: Arc<Mutex<Vec<Write>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (all, stopped) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            for number in 1.. {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let began = Instant::now();
                if write(number) {
                    let done = Instant::now();
                    all.lock().unwrap().push(Write {
                        number,
                        began,
                        done,
                    });
                } else {
                    // Limits the rate of retries.
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Self {
            acknowledged,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Time from `moment` until the first write begun after it was acknowledged.
    pub(crate) fn since(&self, moment: Instant) -> Option<Duration> {
        let all = self.acknowledged.lock().unwrap();
        let next = all.iter().find(|write| write.began > moment)?;
        Some(next.done - moment)
    }

    pub(crate) fn longest_pause(&self) -> Duration {
        let all = self.acknowledged.lock().unwrap();
        let pauses = all.windows(2).map(|pair| pair[1].done - pair[0].done);
        pauses.max().unwrap_or_default()
    }

    pub(crate) async fn writes(&self, world: &World, cluster: &str, ports: &Ports) {
        let before = self.count();
        world
            .until_within(UP, "the client writes", async |world| {
                find(world, cluster, ports).await;
                self.count() >= before + WRITES
            })
            .await;
    }

    pub(crate) fn finish(mut self) -> BTreeSet<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let all = self.acknowledged.lock().unwrap();
        all.iter().map(|write| write.number).collect()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn lost(acknowledged: &BTreeSet<u64>, there: &BTreeSet<u64>) {
    let lost: Vec<_> = acknowledged.difference(there).collect();
    assert!(
        lost.is_empty(),
        "{} of {} acknowledged writes are lost: {lost:?}",
        lost.len(),
        acknowledged.len()
    );
}
