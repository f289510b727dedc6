//! Which pods of a node are evicted, and how far each is. No I/O: the time is told.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::kubernetes::v1 as api;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::Outcome;
use crate::{
    convert::{self, Why},
    wait::{Change, count},
};

/// Marks the copy of a static pod in the API server.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Pods that a refusal names.
const MAX_NAMED: usize = 10;
/// Pods that progress names.
const MAX_PENDING: usize = 100;

type Key = (String, String);

/// A pod to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl Target {
    fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        }
    }

    fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}

#[derive(Debug)]
enum State {
    /// To be evicted at this time. `None`: at once.
    Waits(Option<Instant>),
    Evicted,
    Gone,
}

#[derive(Debug)]
struct Entry {
    target: Target,
    state: State,
    why: Why,
}

/// The pods that a drain is about: those of the first list.
#[derive(Debug)]
pub(super) struct Plan {
    node: String,
    force: bool,
    delete_empty_dir_data: bool,
    arriving: BTreeMap<Key, Pod>,
    entries: Option<BTreeMap<Key, Entry>>,
}

impl Plan {
    pub(super) fn new(node: String, force: bool, delete_empty_dir_data: bool) -> Self {
        Self {
            node,
            force,
            delete_empty_dir_data,
            arriving: BTreeMap::new(),
            entries: None,
        }
    }

    /// Fails, before anything is evicted, if one of the pods must not be.
    pub(super) fn apply(&mut self, change: Change<Pod>) -> Result<()> {
        match change {
            Change::Listing => self.arriving.clear(),
            Change::Listed(pod) => {
                self.arriving.insert(Target::of(&pod).key(), pod);
            }
            Change::Complete => {
                let pods = std::mem::take(&mut self.arriving);
                match &mut self.entries {
                    None => self.entries = Some(self.begin(&pods)?),
                    Some(entries) => {
                        for (key, entry) in entries {
                            match pods.get(key) {
                                Some(pod) => entry.seen(pod),
                                None => entry.state = State::Gone,
                            }
                        }
                    }
                }
            }
            Change::Changed(pod) => {
                if let Some(entry) = self.entry(&pod) {
                    entry.seen(&pod);
                }
            }
            Change::Gone(pod) => {
                let target = Target::of(&pod);
                if let Some(entry) = self.entry(&pod)
                    && entry.target == target
                {
                    entry.state = State::Gone;
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, pod: &Pod) -> Option<&mut Entry> {
        self.entries.as_mut()?.get_mut(&Target::of(pod).key())
    }

    fn begin(&self, pods: &BTreeMap<Key, Pod>) -> Result<BTreeMap<Key, Entry>> {
        let mut refused = Vec::new();
        let mut entries = BTreeMap::new();
        for (key, pod) in pods {
            if stays(pod) {
                continue;
            }
            if let Some(why) = self.refuses(pod) {
                refused.push(format!("{}/{} ({why})", key.0, key.1));
            }
            let entry = Entry {
                target: Target::of(pod),
                state: State::Waits(None),
                why: Why::new("Waiting", None),
            };
            entries.insert(key.clone(), entry);
        }
        if refused.is_empty() {
            return Ok(entries);
        }
        let (number, node) = (refused.len(), &self.node);
        refused.truncate(MAX_NAMED);
        let message = format!(
            "nothing of node {node:?} was evicted: {number} of its pods must not be: {}",
            refused.join(", ")
        );
        Err(Error::new(Reason::Precondition, message).with_resource("node", node))
    }

    fn refuses(&self, pod: &Pod) -> Option<&'static str> {
        if ended(pod) {
            return None;
        }
        if !self.force && controller(pod).is_none() {
            return Some("nothing makes it again; needs force");
        }
        let volumes = pod.spec.iter().filter_map(|spec| spec.volumes.as_ref());
        let local = volumes.flatten().any(|volume| volume.empty_dir.is_some());
        (local && !self.delete_empty_dir_data)
            .then_some("loses the data of an empty_dir; needs delete_empty_dir_data")
    }

    /// The next pod to evict.
    pub(super) fn due(&self, now: Instant) -> Option<Target> {
        let mut entries = self.entries.iter().flat_map(BTreeMap::values);
        let due = entries.find(|entry| match entry.state {
            State::Waits(at) => at.is_none_or(|at| at <= now),
            State::Evicted | State::Gone => false,
        });
        due.map(|entry| entry.target.clone())
    }

    /// When the next pod is to be tried.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        let entries = self.entries.iter().flat_map(BTreeMap::values);
        let times = entries.filter_map(|entry| match entry.state {
            State::Waits(at) => at,
            State::Evicted | State::Gone => None,
        });
        times.min()
    }

    pub(super) fn tried(&mut self, target: &Target, outcome: Outcome, now: Instant) {
        let entries = self.entries.as_mut();
        let Some(entry) = entries.and_then(|it| it.get_mut(&target.key())) else {
            return;
        };
        if matches!(entry.state, State::Gone) {
            return;
        }
        match outcome {
            Outcome::Evicted => {
                entry.state = State::Evicted;
                entry.why = Why::new("Terminating", None);
            }
            Outcome::Gone => entry.state = State::Gone,
            Outcome::Later(why, pause) => {
                entry.state = State::Waits(Some(now + pause));
                entry.why = why;
            }
        }
    }

    /// How far the drain is, once it has begun.
    pub(super) fn progress(&self) -> Option<api::WaitProgress> {
        let entries = self.entries.as_ref()?;
        let open = entries
            .values()
            .filter(|it| !matches!(it.state, State::Gone));
        let number = open.clone().count();
        let pending = open.take(MAX_PENDING).map(|entry| api::WaitPending {
            namespace: entry.target.namespace.clone(),
            name: entry.target.name.clone(),
            reason: entry.why.reason.clone(),
            message: entry.why.message.clone(),
            uid: entry.target.uid.clone(),
        });
        Some(api::WaitProgress {
            matched: count(entries.len()),
            met: count(entries.len() - number),
            pending: pending.collect(),
            done: number == 0,
        })
    }
}

impl Entry {
    fn seen(&mut self, pod: &Pod) {
        if Target::of(pod) != self.target {
            self.state = State::Gone;
        } else if pod.metadata.deletion_timestamp.is_some() && !matches!(self.state, State::Gone) {
            // Whoever has deleted it: there is nothing left to do.
            self.state = State::Evicted;
            self.why = convert::why(pod);
        }
    }
}

/// Pods that would be back at once, or that the API server cannot remove.
fn stays(pod: &Pod) -> bool {
    let daemon = controller(pod) == Some("DaemonSet") && !ended(pod);
    daemon || pod.annotations().contains_key(MIRROR)
}

fn controller(pod: &Pod) -> Option<&str> {
    let owners = pod.owner_references().iter();
    let mut owners = owners.filter(|it| it.controller == Some(true));
    owners.next().map(|it| it.kind.as_str())
}

fn ended(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = convert::phase(status.and_then(|it| it.phase.as_deref()));
    matches!(phase, api::PodPhase::Succeeded | api::PodPhase::Failed)
}
