//! Creation: distribution over failure domains, launches, and what becomes of them.

use std::collections::BTreeMap;

use drover_core::{Error, Reason, Result};
use drover_proto::platform::v1::Slot;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::super::{Cloud, Created, Facts, Filter, Launch, gate, launch};
use crate::placement::Placer;
use drover_platform::driver::{Batch, Outcome, index};

use super::CloudDriver;
use super::known::{SEATS_FOR, Seat, seat};

impl<C: Cloud> CloudDriver<C> {
    /// Distributes slots over failure domains and makes them, in waves: slots that met a full domain go to another one,
    /// as their failure was final, and those that a required spread holds back wait for the wave before them.
    pub(super) async fn place(
        &self,
        batch: &Batch,
        placer: &mut Placer<'_>,
        facts: &Facts,
    ) -> Vec<Outcome> {
        let mut outcomes: BTreeMap<u32, Outcome> = BTreeMap::new();
        let mut waiting: Vec<&Slot> = batch.slots().collect();
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
                    // The words of the cloud, if it was asked, say more than ours.
                    let failed = outcomes.entry(index(slot));
                    failed.or_insert(Outcome::Failed(error));
                }
                break;
            }
            waiting.extend(later.into_iter().map(|(slot, _)| slot));
            let again = self.make(batch, wave, placer, facts, &mut outcomes).await;
            waiting.extend(batch.slots().filter(|slot| again.contains(&index(slot))));
            placer.confirm();
        }
        batch
            .slots()
            .map(|slot| outcomes.remove(&index(slot)).unwrap_or(Outcome::NotStarted))
            .collect()
    }

    /// Makes one wave. Answers the slots that may be tried in another failure domain.
    async fn make(
        &self,
        batch: &Batch,
        wave: BTreeMap<Option<&str>, Vec<&Slot>>,
        placer: &mut Placer<'_>,
        facts: &Facts,
        outcomes: &mut BTreeMap<u32, Outcome>,
    ) -> Vec<u32> {
        let mut launches = Vec::new();
        for (domain, slots) in wave {
            let validator = &self.template_validator;
            let made =
                launch::launches(batch, &slots, domain, facts, &self.settings, validator).await;
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
            .buffer_unordered(facts.max_concurrent_launches.max(1));
        let made: Vec<_> = made.collect().await;
        let settled = made
            .into_iter()
            .map(|(launch, results)| self.settle(&launch, results, placer, outcomes));
        settled.flatten().collect()
    }

    async fn launch(&self, batch: &Batch, launch: Launch) -> (Launch, Option<Vec<Created>>) {
        if !batch.may_start() {
            return (launch, None);
        }
        let created = gate::within(batch.lifetime(), self.cloud.create(&launch)).await;
        (launch, Some(created))
    }

    /// Takes in what became of a launch. Answers the slots that may be tried in another failure domain.
    fn settle(
        &self,
        launch: &Launch,
        results: Option<Vec<Created>>,
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
                Some(Created::Made(machine)) => {
                    let node = self.found(&machine).node;
                    let mut known = self.known.lock();
                    // Physical machines have the same id in every life.
                    known.removed.remove(&machine.id);
                    if let Some((seats, _)) = known.seats.get_mut(&slot.identity.cluster_id) {
                        seats.push(Seat {
                            id: machine.id.clone(),
                            group: slot.identity.group.clone(),
                            failure_domain: machine.failure_domain.clone(),
                        });
                    }
                    known
                        .made
                        .insert(machine.id.clone(), (*machine, Instant::now()));
                    Outcome::Made(Box::new(node))
                }
                Some(Created::Failed(error)) => {
                    if let Some(domain) = &launch.failure_domain
                        && error.reason() == Reason::NoCapacity
                        && slot.host_id.is_none()
                    {
                        placer.take_back(domain);
                        placer.full(domain);
                        let key = (launch.node_class.clone(), domain.clone());
                        self.known.lock().full.insert(key, Instant::now());
                        again.push(index);
                    }
                    Outcome::Failed(error)
                }
                Some(Created::Unknown(error)) if gate::not_started(&error) => Outcome::NotStarted,
                Some(Created::Unknown(error)) => Outcome::Unknown(error),
                None => {
                    Outcome::Unknown(Error::internal("the cloud did not say what became of it"))
                }
            };
            outcomes.insert(index, outcome);
        }
        again
    }

    /// A placer that knows what exists, read only if there is a choice.
    pub(super) async fn placer<'a>(
        &self,
        batch: &'a Batch,
        facts: &'a Facts,
    ) -> Result<Placer<'a>> {
        let group = batch.request.group.as_ref();
        let placement = group.and_then(|group| group.placement.as_ref());
        let mut placer = Placer::new(&facts.failure_domains, placement);
        if facts.failure_domains.len() > 1 {
            let cluster = batch
                .request
                .cluster
                .as_ref()
                .map_or("", |cluster| &cluster.id);
            let path = group.map_or("", |group| &group.path);
            for seat in self.seats(cluster).await? {
                placer.count(&seat.failure_domain, seat.group == path);
            }
        }
        Ok(placer)
    }

    /// Where the living machines of a cluster are.
    pub(super) async fn seats(&self, cluster: &str) -> Result<Vec<Seat>> {
        let began = Instant::now();
        if let Some((seats, since)) = self.known.lock().seats.get(cluster)
            && *since + SEATS_FOR > began
        {
            return Ok(seats.clone());
        }
        let listed = self.read(&Filter::Cluster(cluster.to_owned())).await?;
        let seats: Vec<Seat> = listed.machines.iter().filter_map(seat).collect();
        let mut known = self.known.lock();
        // Another reading may have ended meanwhile, and more been made since it began.
        let (kept, _) = known
            .seats
            .entry(cluster.to_owned())
            .and_modify(|(kept, since)| {
                if *since < began {
                    (*kept, *since) = (seats.clone(), began);
                }
            })
            .or_insert((seats, began));
        Ok(kept.clone())
    }
}
