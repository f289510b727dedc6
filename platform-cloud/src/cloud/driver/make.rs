//! Creation: distribution over failure domains, launches and their outcomes.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Slot;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::super::{Cloud, CloudInfo, CloudOutcome, Filter, Launch, gate, launch};
use drover_platform::driver::{Batch, Outcome, index};
use drover_platform::placement::domains::Placer;

use super::CloudDriver;
use super::asked::Left;
use super::node_cache::{NodePlacement, PLACEMENTS_TTL, placement_of};

/// The outcome of a slot for which no failure domain is left. One that does not answer is not one without capacity.
fn unplaced(error: Error, silent: &[String]) -> Outcome {
    if silent.is_empty() || error.reason() != Reason::NoCapacity {
        return Outcome::Failed(error);
    }
    Outcome::Unknown(Error::unavailable(format!(
        "{} do not answer, and nothing can be placed elsewhere: {error}",
        silent.join(", ")
    )))
}

/// Whether a machine may exist, or still come to exist, by this call.
fn is_in_doubt(outcome: &CloudOutcome) -> bool {
    matches!(outcome, CloudOutcome::Unknown(error) if !gate::not_started(error))
}

/// Whether this leaves open what became of an earlier call for the same: it was not sent, or not for what it asked for.
fn says_nothing(outcome: &CloudOutcome) -> bool {
    match outcome {
        CloudOutcome::Made(_) => false,
        CloudOutcome::Failed(error) => error.reason() != Reason::NoCapacity,
        CloudOutcome::Unknown(_) => true,
    }
}

impl<C: Cloud> CloudDriver<C> {
    /// Distributes the slots over failure domains and creates them in waves. A slot whose domain was full moves to
    /// another domain, which is safe since that failure is final. A slot held back by a required spread waits for the
    /// wave before it. `silent`: the domains that are not used because they do not answer.
    pub(super) async fn place(
        &self,
        batch: &Batch,
        placer: &mut Placer<'_>,
        info: &CloudInfo,
        silent: &[String],
    ) -> Vec<Outcome> {
        let mut outcomes: BTreeMap<u32, Outcome> = BTreeMap::new();
        let mut waiting = self
            .repeat(batch, placer, info, silent, &mut outcomes)
            .await;
        while !waiting.is_empty() {
            let mut wave: BTreeMap<Option<&str>, Vec<&Slot>> = BTreeMap::new();
            let mut later = Vec::new();
            for slot in std::mem::take(&mut waiting) {
                match placer.choose() {
                    Ok(domain) => wave.entry(domain).or_default().push(slot),
                    Err(error) => later.push((slot, error)),
                }
            }
            if wave.is_empty() {
                for (slot, error) in later {
                    // If the cloud was asked, its message is more specific than the placer's.
                    let failed = outcomes.entry(index(slot));
                    failed.or_insert(unplaced(error, silent));
                }
                break;
            }
            waiting.extend(later.into_iter().map(|(slot, _)| slot));
            let again = self.make(batch, wave, placer, info, &mut outcomes).await;
            waiting.extend(batch.slots().filter(|slot| again.contains(&index(slot))));
            placer.confirm();
        }
        batch
            .slots()
            .map(|slot| outcomes.remove(&index(slot)).unwrap_or(Outcome::NotStarted))
            .collect()
    }

    /// Asks again, and in the same way, for what is in doubt. Returns the slots that may be placed anywhere.
    async fn repeat<'a>(
        &self,
        batch: &'a Batch,
        placer: &mut Placer<'_>,
        info: &CloudInfo,
        silent: &[String],
        outcomes: &mut BTreeMap<u32, Outcome>,
    ) -> Vec<&'a Slot> {
        let mut free: Vec<&Slot> = batch.slots().collect();
        let asked = self.cache.lock().asked.of(&batch.request.request_id);
        for launch in asked {
            let is_its = |slot: &&Slot| launch.slots.contains(&index(slot));
            let (missing, others): (Vec<&Slot>, _) = free.into_iter().partition(is_its);
            free = others;
            if missing.is_empty() {
                continue;
            }
            let domain = launch.failure_domain.as_deref();
            // Another call to one that does not answer would only stay in doubt for longer.
            let is_offered = domain.is_none_or(|domain| {
                let mut offered = info.failure_domains.iter();
                offered.any(|it| it.name == domain) && !silent.iter().any(|it| it == domain)
            });
            if missing.len() < launch.slots.len() || !is_offered {
                let unsettled = || Outcome::Unknown(launch.unsettled());
                outcomes.extend(missing.iter().map(|slot| (index(slot), unsettled())));
                continue;
            }
            for domain in domain.iter().cycle().take(missing.len()) {
                placer.take(domain);
            }
            let wave = BTreeMap::from([(domain, missing)]);
            let again = self.make(batch, wave, placer, info, outcomes).await;
            placer.confirm();
            free.extend(batch.slots().filter(|slot| again.contains(&index(slot))));
        }
        free
    }

    /// Creates one wave. Returns the slots that may be retried in another failure domain.
    async fn make(
        &self,
        batch: &Batch,
        wave: BTreeMap<Option<&str>, Vec<&Slot>>,
        placer: &mut Placer<'_>,
        info: &CloudInfo,
        outcomes: &mut BTreeMap<u32, Outcome>,
    ) -> Vec<u32> {
        let mut launches = Vec::new();
        for (domain, slots) in wave {
            let validator = &self.template_validator;
            let made =
                launch::launches(batch, &slots, domain, info, &self.settings, validator).await;
            match made {
                Ok(made) => launches.extend(made),
                Err(error) => {
                    let failed = || Outcome::not_begun(error.clone());
                    outcomes.extend(slots.iter().map(|slot| (index(slot), failed())));
                }
            }
        }
        let made = stream::iter(launches)
            .map(|launch| self.launch(batch, launch))
            .buffer_unordered(info.max_concurrent_launches.max(1));
        let made: Vec<_> = made.collect().await;
        let settled = made
            .into_iter()
            .map(|(launch, results)| self.settle(&launch, results, placer, outcomes));
        settled.flatten().collect()
    }

    async fn launch(&self, batch: &Batch, launch: Launch) -> (Launch, Option<Vec<CloudOutcome>>) {
        if !batch.may_start() {
            return (launch, None);
        }
        let request_id = &batch.request.request_id;
        let former = self.cache.lock().asked.begins(request_id, &launch);
        let created = gate::within(batch.lifetime(), self.cloud.create(&launch)).await;
        let left = if created.len() < launch.slots.len() || created.iter().any(is_in_doubt) {
            Left::InDoubt
        } else if created.iter().all(says_nothing) {
            Left::AsBefore(former)
        } else {
            Left::Known
        };
        self.cache.lock().asked.ends(request_id, &launch, left);
        (launch, Some(created))
    }

    /// Records the outcome of a launch. Returns the slots that may be retried in another failure domain.
    fn settle(
        &self,
        launch: &Launch,
        results: Option<Vec<CloudOutcome>>,
        placer: &mut Placer<'_>,
        outcomes: &mut BTreeMap<u32, Outcome>,
    ) -> Vec<u32> {
        let mut again = Vec::new();
        let Some(results) = results else {
            let slots = launch.slots.iter().map(|slot| slot.identity.index);
            outcomes.extend(slots.map(|index| (index, Outcome::NotStarted)));
            return again;
        };
        let mut results = results.into_iter();
        for slot in &launch.slots {
            let index = slot.identity.index;
            let outcome = match results.next() {
                Some(CloudOutcome::Made(machine)) => {
                    let node = self.found(&machine).node;
                    let mut cache = self.cache.lock();
                    // A physical machine keeps its id when it is allocated again.
                    cache.removed.remove(&machine.id);
                    if let Some((placements, _)) =
                        cache.placements.get_mut(&slot.identity.cluster_id)
                    {
                        placements.push(NodePlacement {
                            id: machine.id.clone(),
                            group: slot.identity.group.clone(),
                            failure_domain: machine.failure_domain.clone(),
                        });
                    }
                    cache.domains.made(&machine);
                    cache
                        .made
                        .insert(machine.id.clone(), (*machine, Instant::now()));
                    Outcome::Made(Box::new(node))
                }
                Some(CloudOutcome::Failed(error)) => {
                    if let Some(domain) = &launch.failure_domain
                        && error.reason() == Reason::NoCapacity
                        && slot.host_id.is_none()
                    {
                        placer.take_back(domain);
                        placer.full(domain);
                        let key = (launch.node_class.clone(), domain.clone());
                        self.cache.lock().full.insert(key, Instant::now());
                        again.push(index);
                    }
                    Outcome::Failed(error)
                }
                Some(CloudOutcome::Unknown(error)) if gate::not_started(&error) => {
                    Outcome::NotStarted
                }
                Some(CloudOutcome::Unknown(error)) => {
                    self.doubts(launch);
                    Outcome::Unknown(error)
                }
                None => {
                    self.doubts(launch);
                    Outcome::Unknown(Error::internal("the cloud did not say what became of it"))
                }
            };
            outcomes.insert(index, outcome);
        }
        again
    }

    /// Remembers that the machines of a launch may exist in its failure domain without being listed.
    fn doubts(&self, launch: &Launch) {
        if let (Some(domain), Some(slot)) = (&launch.failure_domain, launch.slots.first()) {
            let request = &slot.identity.request_id;
            self.cache.lock().domains.doubt(domain, request);
        }
    }

    /// A placer that knows the existing nodes; they are only read if there is a choice of domains.
    pub(super) async fn placer<'a>(
        &self,
        batch: &'a Batch,
        info: &'a CloudInfo,
    ) -> Result<Placer<'a>> {
        let group = batch.request.group.as_ref();
        let placement = group.and_then(|group| group.placement.as_ref());
        let mut placer = Placer::new(&info.failure_domains, placement);
        if info.failure_domains.len() > 1 {
            let cluster = batch
                .request
                .cluster
                .as_ref()
                .map_or("", |cluster| &cluster.id);
            let path = group.map_or("", |group| &group.path);
            for node in self.placements(cluster).await? {
                placer.count(&node.failure_domain, node.group == path);
            }
        }
        Ok(placer)
    }

    /// Placements of the live machines of a cluster.
    pub(super) async fn placements(&self, cluster: &str) -> Result<Vec<NodePlacement>> {
        let began = Instant::now();
        if let Some((placements, since)) = self.cache.lock().placements.get(cluster)
            && *since + PLACEMENTS_TTL > began
        {
            return Ok(placements.clone());
        }
        let listed = self.read(&Filter::Cluster(cluster.to_owned())).await?;
        let placements: Vec<NodePlacement> =
            listed.machines.iter().filter_map(placement_of).collect();
        let mut cache = self.cache.lock();
        // Another read may have finished in the meantime, and more may have been created since this one began.
        let (kept, _) = cache
            .placements
            .entry(cluster.to_owned())
            .and_modify(|(kept, since)| {
                if *since < began {
                    (*kept, *since) = (placements.clone(), began);
                }
            })
            .or_insert((placements, began));
        Ok(kept.clone())
    }
}
