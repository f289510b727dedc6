//! Creates the nodes of a request at most once, however often and by however many callers it is sent.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use drover_convert::error::to_rpc_status;
use drover_core::{Class, Error, Reason, Result, secrecy::Hidden};
use drover_proto::platform::v1::{IndexError, Node, ProvisionRequest, ProvisionResponse};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::{
    batch::{Batch, Caller, Lifetime},
    check,
    driver::{Found, Outcome},
    fences::UnderWay,
    identity::fingerprint,
    limits,
    platform::Platform,
    templates::Renderer,
};

/// Maximum number of requests kept in [`Memory`]. Only requests with a final failure or a removed node are kept, at
/// about 200 B each.
const MAX_REMEMBERED: usize = 65_536;

/// The requests in progress, by id.
#[derive(Default)]
pub(crate) struct Requests(Mutex<HashMap<String, UnderWork>>);

#[derive(Clone)]
struct UnderWork {
    fingerprint: String,
    lifetime: Arc<Lifetime>,
    done: watch::Receiver<Option<Result<Arc<Done>>>>,
}

/// Result of processing a request.
struct Done {
    response: ProvisionResponse,
    /// Some creates were not started because no caller was waiting any more.
    incomplete: bool,
}

impl Platform {
    /// Handles a Provision call of `caller`.
    ///
    /// # Errors
    /// Those of the call, as the proto documents them.
    pub async fn provision(
        self: &Arc<Self>,
        request: ProvisionRequest,
        deadline: Option<Instant>,
        caller: &str,
    ) -> Result<ProvisionResponse> {
        self.meant(
            &request.expected_platform_uid,
            true,
            &request.expected_instance_id,
        )?;
        let description = self.description();
        check::provision(&request, &description)?;
        let renderer = self.templates.select(&request)?;
        let renderer = Arc::new(renderer.in_turn(&self.texts, caller));
        let properties = request
            .group
            .as_ref()
            .and_then(|group| group.properties.as_ref());
        self.check_properties(properties)?;

        let fingerprint = fingerprint(&request);
        let request = Arc::new(request);
        let fence = request.fence.clone().unwrap_or_default();
        if request.validate_only {
            self.fences.check(&fence)?;
            self.existing(&request, &fingerprint).await?;
            let all = (0..request.slots.len()).collect();
            let batch = Batch::new(
                Arc::clone(&request),
                fingerprint,
                all,
                renderer,
                Lifetime::new(),
            );
            self.check(&batch).await?;
            return Ok(ProvisionResponse::default());
        }
        let under_way = Arc::new(self.fences.begin(&fence)?);
        loop {
            let (work, caller) =
                self.join(&request, &fingerprint, deadline, &renderer, &under_way)?;
            let done = wait(work.done, deadline).await?;
            drop(caller);
            if !done.incomplete {
                return Ok(done.response.clone());
            }
            // All callers of that attempt gave up before it was complete, but this caller is still there.
        }
    }

    /// Joins the work on this request, or starts it.
    fn join(
        self: &Arc<Self>,
        request: &Arc<ProvisionRequest>,
        fingerprint: &str,
        deadline: Option<Instant>,
        renderer: &Arc<Renderer>,
        under_way: &Arc<UnderWay>,
    ) -> Result<(UnderWork, Caller)> {
        let mut requests = self.requests.0.lock();
        if let Some(work) = requests.get(&request.request_id) {
            if work.fingerprint != fingerprint {
                return Err(reused(&request.request_id));
            }
            return Ok((work.clone(), work.lifetime.join(deadline)));
        }
        let (done, receiver) = watch::channel(None);
        let work = UnderWork {
            fingerprint: fingerprint.to_owned(),
            lifetime: Lifetime::new(),
            done: receiver,
        };
        let caller = work.lifetime.join(deadline);
        requests.insert(request.request_id.clone(), work.clone());
        let registered = Registered {
            platform: Arc::clone(self),
            request_id: request.request_id.clone(),
        };
        let (request, renderer, lifetime) = (
            Arc::clone(request),
            Arc::clone(renderer),
            Arc::clone(&work.lifetime),
        );
        let (fingerprint, under_way) = (fingerprint.to_owned(), Arc::clone(under_way));
        // The work runs within the trace of the first caller.
        let trace = drover_telemetry::current();
        self.tasks
            .spawn(drover_telemetry::context::scope(trace, async move {
                let outcome = registered
                    .platform
                    .work(request, fingerprint, renderer, lifetime)
                    .await;
                // There may be no receiver any more.
                let _ = done.send(Some(outcome.map(Arc::new)));
                drop((registered, under_way));
            }));
        Ok((work, caller))
    }

    async fn work(
        &self,
        request: Arc<ProvisionRequest>,
        fingerprint: String,
        renderer: Arc<Renderer>,
        lifetime: Arc<Lifetime>,
    ) -> Result<Done> {
        let existing = self.existing(&request, &fingerprint).await?;
        let remembered = self.memory.failures(&request.request_id, &fingerprint)?;
        let mut outcomes: BTreeMap<u32, Outcome> = BTreeMap::new();
        // If nodes of the request already exist, the request as a whole has proven to be valid.
        let proven = !existing.is_empty();
        let made = match self.driver.is_unfinished(&request.request_id) {
            true => Vec::new(),
            false => existing,
        };
        for node in made {
            let Some(index) = node.slot.as_ref().and_then(|slot| slot.index) else {
                continue;
            };
            if outcomes
                .insert(index, Outcome::Made(Box::new(node)))
                .is_some()
            {
                tracing::error!(
                    request_id = request.request_id,
                    index,
                    "two nodes have the same slot"
                );
            }
        }
        for (index, error) in remembered {
            outcomes.entry(index).or_insert(Outcome::Failed(error));
        }
        // Nodes that existed before may have been created from an earlier template.
        let all_new = !proven && outcomes.is_empty();
        let template_digest = renderer.digest().to_owned();
        let position = |index: &u32| !outcomes.contains_key(index);
        let missing: Vec<u32> = (0..request.slots.len() as u32).filter(position).collect();
        if !missing.is_empty() {
            let positions = missing.iter().map(|&index| index as usize).collect();
            let batch = Batch::new(
                Arc::clone(&request),
                fingerprint.clone(),
                positions,
                renderer,
                lifetime,
            );
            let checked = match proven || !outcomes.is_empty() {
                true => Ok(()),
                false => self.check(&batch).await,
            };
            let made = match checked {
                Ok(()) => self.driver.create(&batch).await,
                // Another caller may have joined in the meantime, and must not get the error of the caller that gave
                // up.
                Err(error) if is_given_up(&error) => {
                    missing.iter().map(|_| Outcome::NotStarted).collect()
                }
                Err(error) => return Err(error),
            };
            let mut made = made.into_iter();
            for index in missing {
                let silent = || {
                    Outcome::Unknown(Error::internal("the driver did not say what became of it"))
                };
                let outcome = made.next().unwrap_or_else(silent);
                outcomes.insert(index, clean(batch.hidden(), outcome));
            }
        }
        let mut done = self.done(&request, &fingerprint, outcomes)?;
        if all_new && !done.response.nodes.is_empty() {
            done.response.template_digest = template_digest;
        }
        Ok(done)
    }

    async fn check(&self, batch: &Batch) -> Result<()> {
        batch.check_limits()?;
        let checked = self.driver.check(batch).await;
        checked.map_err(|error| batch.hidden().error(error))
    }

    fn done(
        &self,
        request: &ProvisionRequest,
        fingerprint: &str,
        outcomes: BTreeMap<u32, Outcome>,
    ) -> Result<Done> {
        if let Some(error) = nothing_made(&outcomes).or_else(|| nothing_known(&outcomes)) {
            return Err(error);
        }
        let mut done = Done {
            response: ProvisionResponse::default(),
            incomplete: false,
        };
        let entry = |index, error: &Error| IndexError {
            index,
            error: Some(to_rpc_status(error)),
        };
        for (index, outcome) in outcomes {
            match outcome {
                Outcome::Made(node) => {
                    self.observer.made(&node);
                    done.response.nodes.push(*node);
                }
                Outcome::Failed(error) => {
                    done.response.failures.push(entry(index, &error));
                    self.remember(&request.request_id, Some(fingerprint), index, error);
                }
                Outcome::Unknown(error) => done.response.unknown.push(entry(index, &error)),
                Outcome::NotStarted => {
                    done.incomplete = true;
                    let error = Error::new(
                        Reason::Cancelled,
                        "was not started: nobody waited for it any more",
                    );
                    done.response.unknown.push(entry(index, &error));
                }
            }
        }
        Ok(done)
    }

    /// Returns the existing nodes of a request. Fails if they have a different fingerprint.
    async fn existing(&self, request: &ProvisionRequest, fingerprint: &str) -> Result<Vec<Node>> {
        let found = self.driver.of_request(&request.request_id).await?;
        if found.iter().all(|found| fits(found, request, fingerprint)) {
            Ok(found.into_iter().map(|found| found.node).collect())
        } else {
            Err(reused(&request.request_id))
        }
    }

    pub(crate) fn remember(
        &self,
        request_id: &str,
        fingerprint: Option<&str>,
        index: u32,
        error: Error,
    ) {
        let keep = limits::request_memory(&self.driver.description().limits);
        self.memory
            .remember(request_id, fingerprint, index, error, keep);
    }
}

/// Whether rendering was skipped because no caller was waiting any more, so that nothing was started.
fn is_given_up(error: &Error) -> bool {
    error.reason() == Reason::Cancelled
}

/// Redacts secrets and user data from the outcome of a slot, because a backend may repeat its input in messages.
fn clean(hidden: &Hidden, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Made(mut node) => {
            if !node.message.is_empty() {
                node.message = hidden.text(&node.message).into_owned();
            }
            Outcome::Made(node)
        }
        Outcome::Failed(error) => Outcome::Failed(hidden.error(error)),
        Outcome::Unknown(error) if is_given_up(&error) => Outcome::NotStarted,
        Outcome::Unknown(error) => Outcome::Unknown(hidden.error(error)),
        Outcome::NotStarted => Outcome::NotStarted,
    }
}

/// Returns the error of the whole call if all slots failed in the same way, so that nothing was created.
fn nothing_made(outcomes: &BTreeMap<u32, Outcome>) -> Option<Error> {
    let mut first: Option<&Error> = None;
    for outcome in outcomes.values() {
        let Outcome::Failed(error) = outcome else {
            return None;
        };
        let promises_nothing = matches!(
            error.class(),
            Class::Cannot | Class::NoCapacity | Class::Credentials
        );
        if !promises_nothing || first.is_some_and(|first| first.reason() != error.reason()) {
            return None;
        }
        first.get_or_insert(error);
    }
    // A node that was created and removed later does not mean that it could not be created.
    first
        .filter(|error| !error.metadata().contains_key(REMOVED))
        .cloned()
}

/// Returns the error of the whole call if nothing is known about any slot: sending the same request again resolves it.
fn nothing_known(outcomes: &BTreeMap<u32, Outcome>) -> Option<Error> {
    let all = outcomes.values().all(
        |outcome| matches!(outcome, Outcome::Unknown(error) if error.class() == Class::Unknown),
    );
    match outcomes.values().next() {
        Some(Outcome::Unknown(error)) if all => Some(error.clone()),
        _ => None,
    }
}

/// Metadata key that marks the remembered error of a removed node.
const REMOVED: &str = "removed_node_id";

/// The error that a repeated request gets for a slot whose node was removed.
pub(crate) fn removed(node_id: &str) -> Error {
    Error::new(
        Reason::Precondition,
        "the node of this slot was removed; it is not made again",
    )
    .with_metadata(REMOVED, node_id)
}

/// The error for a request id that stands for another request.
#[must_use]
pub fn reused(request_id: &str) -> Error {
    Error::new(
        Reason::RequestIdReused,
        format!("request id {request_id} was used for something else"),
    )
}

/// Whether a node was created by exactly this request.
fn fits(found: &Found, request: &ProvisionRequest, fingerprint: &str) -> bool {
    if !found.fingerprint.is_empty() {
        return found.fingerprint == fingerprint;
    }
    // An adopted node has no fingerprint; all of the fields that it covers must match instead.
    let node = &found.node;
    let slot = node.slot.clone().unwrap_or_default();
    let asked = slot
        .index
        .and_then(|index| request.slots.get(index as usize));
    slot.owner == request.owner
        && request
            .cluster
            .as_ref()
            .is_some_and(|cluster| cluster.id == node.cluster_id)
        && request
            .group
            .as_ref()
            .is_some_and(|group| group.path == node.group)
        && node.spec_hash == request.spec_hash
        && asked.is_some_and(|asked| {
            asked.id == node.id && asked.name == node.name && asked.ordinal == node.ordinal
        })
}

async fn wait(
    mut done: watch::Receiver<Option<Result<Arc<Done>>>>,
    deadline: Option<Instant>,
) -> Result<Arc<Done>> {
    let answer = async {
        match done.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(lost())),
            Err(_) => Err(lost()),
        }
    };
    match deadline {
        None => answer.await,
        Some(deadline) => tokio::time::timeout_at(deadline, answer)
            .await
            .unwrap_or_else(|_| {
                Err(Error::new(
                    Reason::DeadlineExceeded,
                    "the deadline passed before the answer",
                ))
            }),
    }
}

fn lost() -> Error {
    Error::internal("the work on this request ended without an answer; its outcome is unknown")
}

/// Registration of work in progress, removed on drop.
struct Registered {
    platform: Arc<Platform>,
    request_id: String,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.platform.requests.0.lock().remove(&self.request_id);
    }
}

/// Slots that will never have a node (again), remembered for as long as their request may be repeated.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    requests: HashMap<String, Request>,
    order: VecDeque<(Instant, String)>,
}

struct Request {
    fingerprint: Option<String>,
    failures: BTreeMap<u32, Error>,
}

impl Memory {
    fn failures(&self, request_id: &str, fingerprint: &str) -> Result<BTreeMap<u32, Error>> {
        let mut memory = self.0.lock();
        memory.forget(Instant::now());
        let Some(request) = memory.requests.get(request_id) else {
            return Ok(BTreeMap::new());
        };
        match &request.fingerprint {
            Some(known) if known != fingerprint => Err(reused(request_id)),
            _ => Ok(request.failures.clone()),
        }
    }

    fn remember(
        &self,
        request_id: &str,
        fingerprint: Option<&str>,
        index: u32,
        error: Error,
        keep: Duration,
    ) {
        let mut memory = self.0.lock();
        let now = Instant::now();
        memory.forget(now);
        if !memory.requests.contains_key(request_id) {
            memory.order.push_back((now + keep, request_id.to_owned()));
        }
        let empty = || Request {
            fingerprint: None,
            failures: BTreeMap::new(),
        };
        let request = memory
            .requests
            .entry(request_id.to_owned())
            .or_insert_with(empty);
        if request.fingerprint.is_none() {
            request.fingerprint = fingerprint.map(str::to_owned);
        }
        request.failures.entry(index).or_insert(error);
    }
}

impl Remembered {
    fn forget(&mut self, now: Instant) {
        while let Some((until, _)) = self.order.front()
            && (*until <= now || self.order.len() > MAX_REMEMBERED)
        {
            if let Some((_, request_id)) = self.order.pop_front() {
                self.requests.remove(&request_id);
            }
        }
    }
}
