//! Clients in threads of their own that send requests continuously while nodes come and go.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use drover_proto::orchestrator::v1 as pb;
use tokio::time::Instant;

use super::bench::{Bench, clients};

/// Current endpoints of a cluster's nodes; the last known ones while the orchestrator is unavailable.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<Mutex<Vec<String>>>);

impl Known {
    /// Follows the nodes of a cluster until the last handle is dropped.
    pub(crate) fn of(bench: &Bench) -> Self {
        let known = Self::default();
        let (client, cluster) = (bench.world.client(), bench.cluster);
        let wanted = Arc::downgrade(&known.0);
        tokio::spawn(async move {
            while let Some(known) = wanted.upgrade() {
                let request = pb::ListNodesRequest {
                    cluster: Some(cluster.to_owned()),
                    page_size: 1000,
                    ..Default::default()
                };
                if let Ok(answer) = client.list_nodes(request, Duration::from_secs(10)).await {
                    let found = clients(&answer.nodes);
                    if !found.is_empty() {
                        *known.lock().unwrap() = found;
                    }
                }
                drop(known);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        known
    }

    /// Endpoints as `HOST:PORT`.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        let endpoints = self.endpoints();
        let host = |it: &String| it.rsplit_once(':').map(|(host, _)| host.to_owned());
        endpoints.iter().filter_map(host).collect()
    }
}

/// Calls `ask` repeatedly with the numbers from 1 on, and keeps the results.
pub(crate) struct Asking<T> {
    answers: Arc<Mutex<Vec<T>>>,
    on: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Clone + Send + 'static> Asking<T> {
    /// `ask` must return within seconds.
    pub(crate) fn start(
        pause: Duration,
        mut ask: impl FnMut(u64) -> Option<T> + Send + 'static,
    ) -> Self {
        let answers: Arc<Mutex<Vec<T>>> = Arc::default();
        let on = Arc::new(AtomicBool::new(true));
        let (all, goes_on) = (Arc::clone(&answers), Arc::clone(&on));
        let thread = std::thread::spawn(move || {
            for number in 1.. {
                if !goes_on.load(Ordering::Relaxed) {
                    return;
                }
                if let Some(answer) = ask(number) {
                    all.lock().unwrap().push(answer);
                }
                std::thread::sleep(pause);
            }
        });
        Self {
            answers,
            on,
            thread: Some(thread),
        }
    }

    pub(crate) fn so_far(&self) -> Vec<T> {
        self.answers.lock().unwrap().clone()
    }

    /// Stops and returns all results.
    pub(crate) fn finish(mut self) -> Vec<T> {
        self.on.store(false, Ordering::Relaxed);
        self.thread.take().unwrap().join().expect("it did not fail");
        self.so_far()
    }
}

impl<T> Drop for Asking<T> {
    fn drop(&mut self) {
        self.on.store(false, Ordering::Relaxed);
    }
}

/// An acknowledged write.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    pub(crate) number: u64,
    began: Instant,
    done: Instant,
}

pub(crate) type Writer = Asking<Written>;

impl Writer {
    /// `write` returns whether a number was acknowledged.
    pub(crate) fn writes(mut write: impl FnMut(u64) -> bool + Send + 'static) -> Self {
        Self::start(Duration::from_millis(5), move |number| {
            let began = Instant::now();
            write(number).then(|| Written {
                number,
                began,
                done: Instant::now(),
            })
        })
    }

    /// Waits until this number of writes begun from now on is acknowledged.
    pub(crate) async fn until_written(&self, bench: &Bench, count: usize) {
        let from = Instant::now();
        bench
            .world
            .until("the client writes", async |_| {
                let written = self.so_far();
                written.iter().filter(|it| it.began >= from).count() >= count
            })
            .await;
    }

    /// The longest time without an acknowledgement.
    pub(crate) fn longest_pause(&self) -> Duration {
        let all = self.so_far();
        let pauses = all.windows(2).map(|pair| pair[1].done - pair[0].done);
        pauses.max().unwrap_or_default()
    }
}

/// Asserts that every acknowledged number is among these lines.
pub(crate) fn none_lost(acknowledged: &[Written], there: &str, at: &str) {
    let there: std::collections::BTreeSet<u64> = there
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect();
    let numbers = acknowledged.iter().map(|it| it.number);
    let lost: Vec<_> = numbers.filter(|it| !there.contains(it)).collect();
    assert!(
        lost.is_empty(),
        "{} of {} acknowledged writes are not at {at}: {lost:?}",
        lost.len(),
        acknowledged.len()
    );
}
