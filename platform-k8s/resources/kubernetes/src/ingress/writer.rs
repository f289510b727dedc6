//! One writer for each object. Whoever wants a change queues it; the writer applies all that wait, one after the other, in
//! one compare-and-swap, and gives each its own outcome. It ends as soon as nothing waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet};

use super::{
    reserved::Reserved,
    rule::{self, Change, Rules},
};

/// Longest pause after a conflict: another process has just written, and its own batch grows meanwhile.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// What holds rules and is written as a whole.
#[async_trait]
pub(super) trait Object: Send + Sync + 'static {
    /// What a write is compared with.
    type Version: Send + Sync;

    async fn read(&self) -> Result<State<Self::Version>>;

    /// Whether a host may be added.
    async fn admit(&self, version: &Self::Version, host: &str) -> Result<()>;

    /// Makes what follows from the object as it was read follow: an earlier write may have ended in between.
    async fn settle(&self, state: &State<Self::Version>) -> Result<()>;

    /// Keeps others in this process from adding any of these hosts elsewhere, until it is dropped.
    async fn reserve(&self, hosts: &BTreeSet<&str>) -> Reserved;

    /// Takes hosts back that were added a moment ago.
    async fn withdraw(&self, hosts: &BTreeSet<&str>) -> Result<()>;

    /// Writes the rules if the object is still as it was read. `Conflict`, `AlreadyExists` and `NotFound` mean that it
    /// is not, and that nothing was written.
    async fn write(
        &self,
        state: &State<Self::Version>,
        rules: &Rules,
    ) -> Result<State<Self::Version>>;
}

/// An object as it was read or written.
pub(super) struct State<V> {
    pub(super) version: V,
    pub(super) rules: Rules,
}

struct Waiting {
    host: String,
    change: Change,
    reply: oneshot::Sender<Result<api::IngressRule>>,
}

/// Changes that wait for the writer of an object. An object with an entry has a writer.
type Queues = Arc<Mutex<HashMap<String, Vec<Waiting>>>>;

/// The writers of all objects of a kind. They end with it.
#[derive(Default)]
pub(super) struct Writers {
    queues: Queues,
    tasks: Mutex<JoinSet<()>>,
}

impl Writers {
    /// Makes a change and answers the rule right after it. `key` says which object it is.
    pub(super) async fn change<O: Object>(
        &self,
        key: String,
        object: O,
        host: &str,
        change: Change,
    ) -> Result<api::IngressRule> {
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting {
            host: host.to_owned(),
            change,
            reply,
        };
        let begins = match self.queues.lock().entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().push(waiting);
                false
            }
            Entry::Vacant(place) => {
                place.insert(vec![waiting]);
                true
            }
        };
        if begins {
            let place = Place {
                queues: Arc::clone(&self.queues),
                key,
                left: AtomicBool::new(false),
            };
            self.spawn(run(object, place));
        }
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Does what must not end in between because whoever asked has gone.
    pub(super) async fn whole<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.spawn(async move {
            // Whoever has gone does not want to know.
            let _ = reply.send(work.await);
        });
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }

    /// How many objects have a writer.
    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.queues.lock().len()
    }
}

fn ended() -> Error {
    Error::unavailable("the server ended while it wrote; the outcome is unknown")
}

/// The writer's place among the others, given up when it ends in any way.
struct Place {
    queues: Queues,
    key: String,
    /// Given up: it may already be another writer's.
    left: AtomicBool,
}

impl Place {
    /// What waits. `None`, and no longer a writer, if nothing does.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queues = self.queues.lock();
        let batch = std::mem::take(queues.get_mut(&self.key)?);
        if batch.is_empty() {
            queues.remove(&self.key);
            self.left.store(true, Ordering::Relaxed);
            return None;
        }
        Some(batch)
    }

    /// What came since, while the writer tries again.
    fn more(&self) -> Vec<Waiting> {
        let mut queues = self.queues.lock();
        queues
            .get_mut(&self.key)
            .map(std::mem::take)
            .unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It was aborted or has panicked: whoever waits is told, and the next change gets a new writer.
        if !self.left.load(Ordering::Relaxed) {
            self.queues.lock().remove(&self.key);
        }
    }
}

async fn run<O: Object>(object: O, place: Place) {
    let mut known = None;
    while let Some(batch) = place.next() {
        write(&object, &place, &mut known, batch, true).await;
    }
}

/// Writes a batch, until it is done or nobody waits for it.
fn write<'a, O: Object>(
    object: &'a O,
    place: &'a Place,
    known: &'a mut Option<State<O::Version>>,
    mut batch: Vec<Waiting>,
    grows: bool,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(async move {
        let mut conflicts = 0;
        loop {
            if grows && conflicts > 0 {
                batch.extend(place.more());
            }
            batch.retain(|waiting| !waiting.reply.is_closed());
            if batch.is_empty() {
                return;
            }
            let remembered = known.take();
            let fresh = remembered.is_none();
            let before = match remembered {
                Some(state) => state,
                None => match object.read().await {
                    Ok(state) => state,
                    Err(error) => return refuse(batch, &error),
                },
            };
            let adds = added(&before.rules, &batch);
            let reserved = match adds.is_empty() {
                true => None,
                false => Some(object.reserve(&adds).await),
            };
            let mut after = before.rules.clone();
            let outcomes = apply_all(object, &before.version, &mut after, &batch).await;
            if after == before.rules {
                // What somebody else wrote since would go unseen, because no write compares.
                if !fresh {
                    continue;
                }
                drop(reserved);
                let done = outcomes.iter().any(Result::is_ok);
                let settled = if done {
                    object.settle(&before).await
                } else {
                    Ok(())
                };
                *known = Some(before);
                return reply(batch, all_and(outcomes, &settled));
            }
            let written = object.write(&before, &after).await;
            let contested = match &written {
                Ok(written) => {
                    // Those that were refused are not there.
                    let there = |host: &&str| after.contains_key(*host);
                    let adds = adds.iter().copied().filter(there).collect();
                    contested(object, &written.version, &adds).await
                }
                Err(_) => BTreeMap::new(),
            };
            // A smaller batch reserves again.
            drop(reserved);
            match written {
                Ok(_) if !contested.is_empty() => {
                    let outcomes = without(outcomes, &batch, &contested);
                    return reply(batch, outcomes);
                }
                Ok(written) => {
                    *known = Some(written);
                    return reply(batch, outcomes);
                }
                Err(error) if has_changed(&error) => {
                    pause(conflicts).await;
                    conflicts += 1;
                }
                Err(error) if batch.len() > 1 && is_refused(&error) => {
                    let rest = batch.split_off(batch.len() / 2);
                    write(object, place, known, batch, false).await;
                    return write(object, place, known, rest, false).await;
                }
                Err(error) => {
                    return reply(batch, all_and(outcomes, &Err(error)));
                }
            }
        }
    })
}

/// Takes back those of the added hosts that somebody else, who looked at the same time, routes as well. Returns why, by host.
async fn contested<O: Object>(
    object: &O,
    version: &O::Version,
    added: &BTreeSet<&str>,
) -> BTreeMap<String, Error> {
    let mut contested = BTreeMap::new();
    for host in added {
        if let Err(error) = object.admit(version, host).await {
            contested.insert((*host).to_owned(), error);
        }
    }
    let hosts: BTreeSet<&str> = contested.keys().map(String::as_str).collect();
    if !hosts.is_empty()
        && let Err(error) = object.withdraw(&hosts).await
    {
        let stays = crate::objects::after_write(error);
        return hosts
            .iter()
            .map(|host| ((*host).to_owned(), stays.clone()))
            .collect();
    }
    contested
}

/// The outcomes, without those of hosts that were taken back.
fn without(
    outcomes: Vec<Result<api::IngressRule>>,
    batch: &[Waiting],
    contested: &BTreeMap<String, Error>,
) -> Vec<Result<api::IngressRule>> {
    let each = outcomes.into_iter().zip(batch);
    each.map(|(outcome, waiting)| match contested.get(&waiting.host) {
        Some(error) => Err(error.clone()),
        None => outcome,
    })
    .collect()
}

/// Applies the changes in turn. One that fails leaves the rules as they were.
async fn apply_all<O: Object>(
    object: &O,
    version: &O::Version,
    rules: &mut Rules,
    batch: &[Waiting],
) -> Vec<Result<api::IngressRule>> {
    let mut outcomes = Vec::with_capacity(batch.len());
    let mut refused: HashMap<&str, Error> = HashMap::new();
    for Waiting { host, change, .. } in batch {
        let adds = match change {
            Change::Upsert(_) => !rules.contains_key(host),
            Change::Remove(_) => false,
        };
        if adds && !refused.contains_key(host.as_str()) {
            // Applied to nothing: what cannot be done is not asked about.
            if let Err(error) = rule::apply(&mut Rules::new(), host, change) {
                outcomes.push(Err(error));
                continue;
            }
            if let Err(error) = object.admit(version, host).await {
                refused.insert(host, error);
            }
        }
        outcomes.push(match refused.get(host.as_str()).filter(|_| adds) {
            Some(error) => Err(error.clone()),
            None => rule::apply(rules, host, change),
        });
    }
    outcomes
}

/// The outcomes, where each success is one only if this is.
fn all_and(
    outcomes: Vec<Result<api::IngressRule>>,
    also: &Result<()>,
) -> Vec<Result<api::IngressRule>> {
    let both = |outcome: Result<api::IngressRule>| {
        let rule = outcome?;
        also.clone().map(|()| rule)
    };
    outcomes.into_iter().map(both).collect()
}

/// The hosts that a batch may add.
fn added<'a>(rules: &Rules, batch: &'a [Waiting]) -> BTreeSet<&'a str> {
    let adds = batch.iter().filter(|waiting| match waiting.change {
        Change::Upsert(_) => !rules.contains_key(&waiting.host),
        Change::Remove(_) => false,
    });
    adds.map(|waiting| waiting.host.as_str()).collect()
}

fn reply(batch: Vec<Waiting>, outcomes: Vec<Result<api::IngressRule>>) {
    for (waiting, outcome) in batch.into_iter().zip(outcomes) {
        // Whoever has gone does not want to know.
        let _ = waiting.reply.send(outcome);
    }
}

fn refuse(batch: Vec<Waiting>, error: &Error) {
    for waiting in batch {
        let _ = waiting.reply.send(Err(error.clone()));
    }
}

/// Whether the object is no longer as it was read, so that nothing was written.
fn has_changed(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::Conflict | Reason::AlreadyExists | Reason::NotFound
    )
}

/// Whether nothing was written because of what was to be written, which may be the fault of one change alone.
fn is_refused(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::Invalid | Reason::Precondition | Reason::QuotaExceeded
    )
}

async fn pause(conflicts: u32) {
    let most = Duration::from_millis(5)
        .saturating_mul(1 << conflicts.min(8))
        .min(MAX_PAUSE);
    tokio::time::sleep(most.mul_f64(fastrand::f64())).await;
}

#[cfg(test)]
mod tests;
