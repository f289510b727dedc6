//! Simulated networks, endpoints and firewalls: created one after the other, each ready after the boot delay.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use async_trait::async_trait;
use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::{
    Endpoint, InfrastructureOutputs, InfrastructureSpec, InfrastructureState, Resource,
    ResourcePhase, Warning,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    Simulated,
    faults::{Operation, lost},
    state_file,
};
use drover_platform::infrastructure::{Infrastructure, Owner, Progress};

/// The kinds in creation order; they are released in reverse.
const KINDS: [&str; 3] = ["network", "endpoint", "firewall"];
/// Default port of an endpoint.
const DEFAULT_PORT: u32 = 6443;

/// The existing resources, by cluster, owner and kind.
#[derive(Default)]
pub(super) struct Estate {
    made: BTreeMap<Key, Made>,
    last: u32,
    /// How often each resource was ever created.
    ledger: BTreeMap<Key, u32>,
    file: Option<PathBuf>,
}

type Key = (String, String, usize);

#[derive(Clone, Serialize, Deserialize)]
struct Made {
    id: String,
    sequence: u64,
    /// The spec that it was created from, which must not change.
    wanted: String,
    port: u32,
    #[serde(skip)]
    ready_at: Option<Instant>,
    #[serde(skip)]
    gone_at: Option<Instant>,
}

#[derive(Default, Serialize, Deserialize)]
struct Stored {
    last: u32,
    made: Vec<(Key, Made)>,
}

impl Estate {
    /// Restores the resources in this file.
    pub(super) fn open(file: Option<PathBuf>) -> std::io::Result<Self> {
        let mut estate = Self {
            file,
            ..Self::default()
        };
        let Some(file) = &estate.file else {
            return Ok(estate);
        };
        let stored: Stored = state_file::load(file)?;
        estate.last = stored.last;
        estate.made = stored.made.into_iter().collect();
        Ok(estate)
    }

    fn save(&self) {
        let Some(file) = &self.file else { return };
        let made = self.made.iter();
        let stored = Stored {
            last: self.last,
            made: made
                .map(|(key, made)| (key.clone(), made.clone()))
                .collect(),
        };
        state_file::save(file, &stored);
    }

    /// Drops resources that are gone by now.
    fn settle(&mut self) {
        let now = Instant::now();
        self.made
            .retain(|_, made| made.gone_at.is_none_or(|at| at > now));
    }

    fn state(&self, owner: &Owner) -> InfrastructureState {
        let resources: Vec<Resource> = self
            .made
            .iter()
            .filter(|(key, _)| is_of(key, owner))
            .map(|(key, made)| resource(key, made))
            .collect();
        let ready = |kind: usize| {
            let made = self.made.get(&key(owner, kind))?;
            (phase(made) == ResourcePhase::Ready).then_some(made)
        };
        let outputs = InfrastructureOutputs {
            network_id: ready(0).map(|made| made.id.clone()).unwrap_or_default(),
            endpoint: ready(1).map(|made| Endpoint {
                host: made.id.clone(),
                port: made.port,
            }),
            ..InfrastructureOutputs::default()
        };
        InfrastructureState {
            phase: ResourcePhase::Unspecified.into(),
            resources,
            outputs: Some(outputs),
        }
    }

    /// One reconciliation step: creates the first missing resource, if those before it are ready.
    fn step(
        &mut self,
        owner: &Owner,
        sequence: u64,
        spec: &InfrastructureSpec,
        delay: Duration,
    ) -> bool {
        for (kind, wanted, port) in parts(spec) {
            let key = key(owner, kind);
            match self.made.get(&key) {
                Some(made) if phase(made) == ResourcePhase::Ready => {}
                Some(_) => return true,
                None => {
                    self.last += 1;
                    *self.ledger.entry(key.clone()).or_default() += 1;
                    let id = match kind {
                        1 if !wanted.is_empty() => wanted.clone(),
                        1 => format!("203.0.113.{}", self.last % 250 + 1),
                        _ => format!("{}-{:08x}", KINDS[kind], self.last),
                    };
                    let made = Made {
                        id,
                        sequence,
                        wanted,
                        port,
                        ready_at: Some(Instant::now() + delay),
                        gone_at: None,
                    };
                    self.made.insert(key, made);
                    self.save();
                    return true;
                }
            }
        }
        false
    }

    fn check(&self, owner: &Owner, spec: &InfrastructureSpec) -> Result<()> {
        for (kind, wanted, _) in parts(spec) {
            if let Some(made) = self.made.get(&key(owner, kind))
                && made.wanted != wanted
            {
                return Err(Error::new(
                    Reason::Immutable,
                    format!("the {} was made already and cannot be changed", KINDS[kind]),
                )
                .with_violation(
                    format!("spec.{}", KINDS[kind]),
                    "cannot be changed once it is made",
                ));
            }
        }
        Ok(())
    }

    fn release(&mut self, owner: &Owner, delay: Duration) {
        for kind in (0..KINDS.len()).rev() {
            if let Some(made) = self.made.get_mut(&key(owner, kind)) {
                made.gone_at.get_or_insert(Instant::now() + delay);
                // Resources before it can only be released once it is gone.
                break;
            }
        }
        self.settle();
        self.save();
    }
}

fn parts(spec: &InfrastructureSpec) -> Vec<(usize, String, u32)> {
    let mut parts = Vec::new();
    if let Some(network) = &spec.network {
        let wanted = format!(
            "{}|{:?}|{}",
            network.cidr, network.prefix_length, network.public
        );
        parts.push((0, wanted, 0));
    }
    if let Some(endpoint) = &spec.endpoint {
        let port = if endpoint.port == 0 {
            DEFAULT_PORT
        } else {
            endpoint.port
        };
        parts.push((1, endpoint.host.clone(), port));
    }
    if let Some(firewall) = &spec.firewall {
        parts.push((2, format!("{}|{}", firewall.image, firewall.node_class), 0));
    }
    parts
}

fn key(owner: &Owner, kind: usize) -> Key {
    (owner.cluster_id.clone(), owner.owner.clone(), kind)
}

fn is_of(key: &Key, owner: &Owner) -> bool {
    key.0 == owner.cluster_id && key.1 == owner.owner
}

fn phase(made: &Made) -> ResourcePhase {
    if made.gone_at.is_some() {
        ResourcePhase::Releasing
    } else if made.ready_at.is_some_and(|at| at > Instant::now()) {
        ResourcePhase::Pending
    } else {
        ResourcePhase::Ready
    }
}

fn resource(key: &Key, made: &Made) -> Resource {
    Resource {
        cluster_id: key.0.clone(),
        owner: key.1.clone(),
        kind: KINDS[key.2].to_owned(),
        name: KINDS[key.2].to_owned(),
        id: made.id.clone(),
        phase: phase(made).into(),
        sequence: made.sequence,
        ..Resource::default()
    }
}

impl Simulated {
    async fn estate_call<T>(
        &self,
        operation: Operation,
        change: impl FnOnce(&mut Estate) -> Result<T>,
    ) -> Result<T> {
        let lost_answer = self.call(operation).await?;
        let mut estate = self.estate.lock();
        estate.settle();
        let outcome = change(&mut estate);
        if lost_answer { Err(lost()) } else { outcome }
    }

    fn progress(&self, estate: &Estate, owner: &Owner, again: bool, delay: Duration) -> Progress {
        Progress {
            state: estate.state(owner),
            poll_after: again.then(|| delay.max(Duration::from_millis(1))),
        }
    }
}

#[async_trait]
impl Infrastructure for Simulated {
    async fn check(&self, owner: &Owner, spec: &InfrastructureSpec) -> Result<()> {
        self.estate_call(Operation::List, |estate| estate.check(owner, spec))
            .await
    }

    async fn ensure(
        &self,
        owner: &Owner,
        sequence: u64,
        spec: &InfrastructureSpec,
    ) -> Result<Progress> {
        let delay = self.settings.scaled(self.settings.boot_delay);
        self.estate_call(Operation::Ensure, |estate| {
            estate.check(owner, spec)?;
            let again = estate.step(owner, sequence, spec, delay);
            Ok(self.progress(estate, owner, again, delay))
        })
        .await
    }

    async fn get(&self, owner: &Owner) -> Result<InfrastructureState> {
        self.estate_call(Operation::List, |estate| Ok(estate.state(owner)))
            .await
    }

    async fn list(&self) -> Result<(Vec<Resource>, Vec<Warning>)> {
        self.estate_call(Operation::List, |estate| {
            let resources = estate.made.iter().map(|(key, made)| resource(key, made));
            Ok((resources.collect(), Vec::new()))
        })
        .await
    }

    async fn release(&self, owner: &Owner) -> Result<Progress> {
        let delay = self.settings.scaled(self.settings.stop_delay);
        self.estate_call(Operation::Release, |estate| {
            estate.release(owner, delay);
            let again = estate.made.keys().any(|key| is_of(key, owner));
            Ok(self.progress(estate, owner, again, delay))
        })
        .await
    }
}

/// For tests.
impl Estate {
    /// All existing resources.
    pub(super) fn resources(&mut self) -> Vec<Resource> {
        self.settle();
        self.made
            .iter()
            .map(|(key, made)| resource(key, made))
            .collect()
    }

    /// How often each resource was ever created.
    pub(super) fn created(&self) -> BTreeMap<(String, String, String), u32> {
        self.ledger
            .iter()
            .map(|((cluster, owner, kind), count)| {
                (
                    (cluster.clone(), owner.clone(), KINDS[*kind].to_owned()),
                    *count,
                )
            })
            .collect()
    }

    /// Removes a resource out of band. Returns whether it existed.
    pub(super) fn vanish(&mut self, cluster_id: &str, kind: &str) -> bool {
        let found = self
            .made
            .keys()
            .find(|key| key.0 == cluster_id && KINDS[key.2] == kind)
            .cloned();
        found.is_some_and(|key| self.made.remove(&key).is_some())
    }
}
