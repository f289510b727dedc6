//! The claims of one request: all of its hosts, or none.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use drover_core::{Class, Error, Reason, Result};
use drover_platform::{
    driver::{Batch, Outcome, Target, index},
    identity::Identity,
    inventory::properties::Properties,
};
use drover_proto::platform::v1::Slot;
use kube::ResourceExt as _;
use serde_json::Value;

use super::{
    backend::{Backend, MAX_CONFLICTS},
    cache::Begun,
    choice::Asked,
    claim,
    host::{self, BareMetalHost},
};

/// Pause before hosts are chosen again that another request was about to claim.
const RESERVED_PAUSE: Duration = Duration::from_millis(5);

/// What became of the slots of a request.
pub(super) struct Claims<'a> {
    backend: &'a Backend,
    batch: &'a Batch,
    properties: Properties,
    _begun: Begun<'a>,
    left: Vec<&'a Slot>,
    made: Vec<(&'a Slot, BareMetalHost)>,
    /// Hosts of slots that serve already.
    kept: Vec<(&'a Slot, BareMetalHost)>,
    unknown: Vec<(&'a Slot, Error)>,
}

/// Whether a claim may have been made.
fn is_open(error: &Error) -> bool {
    error.class() == Class::Unknown && error.reason() != Reason::Conflict
}

fn changed() -> Error {
    Error::new(Reason::Conflict, "the host has changed")
}

impl<'a> Claims<'a> {
    /// The claims of a batch, of which some may have been made before.
    pub(super) fn new(backend: &'a Backend, batch: &'a Batch, properties: Properties) -> Self {
        let mut begun = backend.cache.begun(&batch.request.request_id);
        let (mut made, mut kept, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for slot in batch.slots() {
            match begun.hosts.remove(&index(slot)) {
                Some(host) if begun.is_unfinished => made.push((slot, BareMetalHost::clone(&host))),
                Some(host) => kept.push((slot, BareMetalHost::clone(&host))),
                None => left.push(slot),
            }
        }
        Self {
            backend,
            batch,
            properties,
            _begun: begun,
            left,
            made,
            kept,
            unknown: Vec::new(),
        }
    }

    /// Claims hosts for all slots, or for none.
    pub(super) async fn run(mut self) -> BTreeMap<u32, Outcome> {
        let mut refusal = self.taken();
        let mut conflicts = 0;
        while refusal.is_none()
            && !self.left.is_empty()
            && self.unknown.is_empty()
            && self.batch.may_start()
        {
            match self.round().await {
                Ok(()) => {}
                Err(error) if error.reason() == Reason::Conflict && conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                }
                Err(error) => {
                    refusal = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = refusal {
            return self.give_back(&error).await;
        }
        if self.left.is_empty() && self.unknown.is_empty() {
            self.finish().await;
        }
        self.outcomes(None).await
    }

    /// Says that all slots have hosts: from now on they serve. If that is not known to be written, the request is to be
    /// repeated.
    async fn finish(&mut self) {
        let first = self
            .made
            .iter_mut()
            .find(|(_, host)| claim::is_unfinished(host));
        let Some((slot, host)) = first else {
            return;
        };
        let target = target(self.batch, slot);
        let finish = |host: &BareMetalHost, _: Option<&Identity>| Some(claim::finish(host));
        match self.backend.change(&host::id(host), &target, finish).await {
            Ok(Some(finished)) => *host = finished,
            Ok(None) => self.doubt(&Error::unavailable("a host of the request has gone")),
            Err(error) => self.doubt(&error),
        }
    }

    /// Nothing is known of any slot, so that the request is repeated.
    fn doubt(&mut self, error: &Error) {
        let error = match error.class() {
            Class::Unknown => error.clone(),
            _ => Error::unavailable(error.message()),
        };
        let slots = self.batch.slots();
        self.unknown = slots.map(|slot| (slot, error.clone())).collect();
        self.left.clear();
        self.made.clear();
        self.kept.clear();
    }

    /// Why these slots get no hosts: their cluster has a node of the same id in another slot, and calls about that id could
    /// then mean either.
    fn taken(&self) -> Option<Error> {
        self.left.iter().find_map(|slot| {
            let identity = self.batch.identity(slot);
            let (cluster, id) = (&identity.cluster_id, &identity.id);
            let other = self.backend.cache.node(cluster, id)?;
            (other.slot.as_ref() != Some(&identity.key())).then(|| {
                let message = format!("cluster {cluster:?} has a node {id:?} in another slot");
                Error::new(Reason::Precondition, message).with_resource("node", id)
            })
        })
    }

    /// Chooses hosts for what is left, and claims them.
    ///
    /// # Errors
    /// `Conflict` if a host has changed since it was seen; then the others are to be chosen again.
    async fn round(&mut self) -> Result<()> {
        self.settle().await?;
        let Backend { cache, secrets, .. } = self.backend;
        let named = self.left.iter().map(|slot| slot.host_id.clone());
        let asked = Asked::new(cache, secrets, self.batch, &self.properties);
        let chosen = asked.choose(named.collect()).await?;
        let ids = chosen.iter().map(|known| host::id(&known.host)).collect();
        let Some(_reserved) = cache.reserve(ids) else {
            // Another request has one of them in its hands, and not for long.
            tokio::time::sleep(RESERVED_PAUSE).await;
            return Ok(());
        };
        for (slot, known) in self.left.clone().into_iter().zip(chosen) {
            if !self.claim(slot, &known.host).await? {
                break;
            }
        }
        Ok(())
    }

    /// Finds out what became of claims of these slots without an answer, before another host is chosen for them: a claim
    /// that arrives late would make two nodes of one slot.
    async fn settle(&mut self) -> Result<()> {
        for slot in self.left.clone() {
            let Some(host) = self.backend.cache.open(&self.key(slot)) else {
                continue;
            };
            match self.claim(slot, &host).await {
                Err(error) if error.reason() == Reason::Conflict => {}
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_of(host: &BareMetalHost, identity: &Identity) -> bool {
        claim::identity(host).as_ref() == Some(identity)
    }

    fn key(&self, slot: &Slot) -> (String, u32) {
        (self.batch.request.request_id.clone(), index(slot))
    }

    /// Claims a host in the state in which it was seen. Answers whether others may be claimed after it.
    ///
    /// # Errors
    /// `Conflict` if it has changed; others if it certainly was not claimed.
    async fn claim(&mut self, slot: &'a Slot, host: &Arc<BareMetalHost>) -> Result<bool> {
        let permit = self.backend.client.permit().await;
        // After the wait: what has not begun by now must not begin.
        if !self.batch.may_start() {
            return Ok(false);
        }
        let identity = self.batch.identity(slot);
        let keys = &self.backend.settings.labels;
        let labels = &self.properties.host_labels;
        let patch = claim::claim(host, &identity, keys, labels, self.first_of());
        let claimed = match self.backend.patch(permit, host, &patch).await {
            Err(error) if is_open(&error) => self.look_again(host, &identity, &patch, error).await,
            patched => patched,
        };
        let key = self.key(slot);
        match claimed {
            Ok(host) => self.made.push((slot, host)),
            Err(error) if is_open(&error) => {
                self.backend.cache.set_open(key, Some(Arc::clone(host)));
                self.unknown.push((slot, error));
                self.left.retain(|other| index(other) != index(slot));
                return Ok(false);
            }
            Err(error) => {
                self.backend.cache.set_open(key.clone(), None);
                if !matches!(error.reason(), Reason::Conflict | Reason::NotFound) {
                    return Err(error);
                }
                // What is known of the host is not what it is; it may be this very claim, which arrived late.
                let now = self.backend.get(&host::id(host)).await?;
                match now.filter(|now| Self::is_of(now, &identity)) {
                    Some(now) => self.made.push((slot, now)),
                    None => return Err(changed()),
                }
            }
        }
        self.backend.cache.set_open(key, None);
        self.left.retain(|other| index(other) != index(slot));
        Ok(true)
    }

    /// The number of slots of the request, if none has a host and there are several.
    fn first_of(&self) -> Option<usize> {
        let count = self.batch.request.slots.len();
        let none =
            self.made.is_empty() && self.kept.is_empty() && self.batch.slots().len() == count;
        (none && count > 1).then_some(count)
    }

    /// What became of a claim without an answer. As long as the host is as it was, the claim may still arrive; the same
    /// claim made again decides it: one of the two is made, and the other finds the host changed.
    async fn look_again(
        &self,
        host: &BareMetalHost,
        identity: &Identity,
        patch: &Value,
        error: Error,
    ) -> Result<BareMetalHost> {
        let look = || async {
            // An error of the look says nothing about the claim.
            self.backend
                .get(&host::id(host))
                .await
                .map_err(|_| error.clone())
        };
        match look().await? {
            Some(now) if Self::is_of(&now, identity) => return Ok(now),
            Some(now) if now.resource_version() == host.resource_version() => {}
            _ => return Err(changed()),
        }
        let permit = self.backend.client.permit().await;
        match self.backend.patch(permit, host, patch).await {
            Ok(host) => Ok(host),
            Err(again) if again.reason() == Reason::Conflict => match look().await? {
                Some(now) if Self::is_of(&now, identity) => Ok(now),
                _ => Err(changed()),
            },
            // A refusal of the second says nothing about the first.
            Err(_) => Err(error),
        }
    }

    /// Releases what was claimed, because the rest cannot be. Hosts that somebody uses already are kept: then the request
    /// is as whole as it can be.
    async fn give_back(mut self, error: &Error) -> BTreeMap<u32, Outcome> {
        let mut made = std::mem::take(&mut self.made);
        // Until the last one is released, all of them are known to be half a request.
        made.sort_by_key(|(_, host)| claim::is_unfinished(host));
        let begun = made
            .last()
            .is_some_and(|(_, host)| claim::is_unfinished(host));
        let uses = |(_, host): &(&Slot, BareMetalHost)| {
            let known = self.backend.cache.get(&host::id(host));
            known.is_some_and(|known| known.host.spec.consumer_ref.is_some())
        };
        if made.iter().any(uses) || self.serves(&made).await {
            self.made = made;
            self.finish().await;
            return self.outcomes(Some(error)).await;
        }
        for (slot, host) in made {
            match self.take_back(slot, &host).await {
                Ok(true) => self.left.push(slot),
                Err(why) if begun => {
                    self.doubt(&why);
                    return self.outcomes(None).await;
                }
                // It is a node still, and its owner hears of it.
                Ok(false) | Err(_) => self.made.push((slot, host)),
            }
        }
        self.finish().await;
        self.outcomes(Some(error)).await
    }

    /// Whether another platform over these hosts has ended the request meanwhile, so that what it has serves.
    async fn serves(&self, made: &[(&Slot, BareMetalHost)]) -> bool {
        let Some((_, first)) = made.iter().find(|(_, host)| claim::is_unfinished(host)) else {
            return false;
        };
        // What cannot be read cannot be released either.
        let now = self.backend.get(&host::id(first)).await;
        now.is_ok_and(|now| now.is_some_and(|now| !claim::is_unfinished(&now)))
    }

    /// Releases a host, unless somebody uses it. Answers whether it is free.
    async fn take_back(&self, slot: &Slot, host: &BareMetalHost) -> Result<bool> {
        let used = AtomicBool::new(false);
        let release = |host: &BareMetalHost, _: Option<&Identity>| {
            if host.spec.consumer_ref.is_some() {
                used.store(true, Ordering::Relaxed);
                return None;
            }
            Some(claim::release(host, &self.backend.settings.labels))
        };
        let target = target(self.batch, slot);
        self.backend
            .change(&host::id(host), &target, release)
            .await?;
        Ok(!used.load(Ordering::Relaxed))
    }

    async fn outcomes(self, refusal: Option<&Error>) -> BTreeMap<u32, Outcome> {
        let mut outcomes = BTreeMap::new();
        for (slot, host) in self.made.into_iter().chain(self.kept) {
            let listing = self.backend.nodes(vec![host]).await;
            let node = listing.nodes.into_iter().next();
            let outcome = match node {
                Some(found) => Outcome::Made(Box::new(found.node)),
                None => Outcome::Unknown(Error::internal("a claimed host is no node")),
            };
            outcomes.insert(index(slot), outcome);
        }
        for (slot, error) in self.unknown {
            outcomes.insert(index(slot), Outcome::Unknown(error));
        }
        for slot in self.left {
            let outcome = match refusal {
                Some(error) => Outcome::not_begun(error.clone()),
                None => Outcome::NotStarted,
            };
            outcomes.insert(index(slot), outcome);
        }
        outcomes
    }
}

/// The node of a slot.
fn target(batch: &Batch, slot: &Slot) -> Target {
    let identity = batch.identity(slot);
    Target {
        cluster_id: identity.cluster_id.clone(),
        node_id: identity.id.clone(),
        slot: Some(identity.key()),
    }
}
