//! Assigns slots to requests: the lowest ordinals that neither a node of the group nor another request has.

use std::collections::{HashMap, HashSet};

use drover_core::{
    Error, Reason, Result,
    name::{node_id, node_name},
};
use drover_proto::platform::v1::{NodeRole, Slot};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

use crate::OWNER;
use drover_platform::provision::reused;

/// Maximum number of requests whose slots are remembered, at about 300 B per node. Beyond that, those that ended first
/// are forgotten.
const MAX_PLANS: usize = 16_384;

/// The parts of a request on which its slots depend.
#[derive(Clone, Copy)]
pub(crate) struct Wish<'a> {
    pub(crate) request_id: Uuid,
    pub(crate) cluster_id: &'a str,
    pub(crate) group_id: &'a str,
    pub(crate) count: usize,
}

/// The existing nodes of a group according to a read of the backend.
pub(crate) struct Seen {
    pub(crate) ordinals: HashSet<u32>,
    /// Start of that read.
    pub(crate) began: Instant,
    /// How long an existing node may be missing in reads.
    pub(crate) visibility_delay: Duration,
    /// How long after a call with an unknown outcome a node may still come into existence.
    pub(crate) creation_time: Duration,
    /// How long a request may be repeated.
    pub(crate) request_memory: Duration,
}

/// The slots of requests that are in progress or may be repeated.
#[derive(Default)]
pub(crate) struct Plans(Mutex<HashMap<Uuid, Plan>>);

struct Plan {
    cluster_id: String,
    group_id: String,
    slots: Vec<Slot>,
    calls: usize,
    /// From when on a read shows all nodes of the request. `None` while a call is in flight.
    visible: Option<Instant>,
}

/// The slots of a request, for one call. Dropping it ends the call.
pub(crate) struct Planned<'a> {
    pub(crate) slots: Vec<Slot>,
    end: End,
    plans: &'a Plans,
    request_id: Uuid,
    visibility_delay: Duration,
    creation_time: Duration,
}

/// Outcome of a call, as far as its ordinals depend on it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum End {
    /// Unknown; nodes may still be created.
    Unknown,
    /// All created nodes exist.
    Known,
    /// Nothing was created: the ordinals are free again.
    NothingMade,
}

impl Plans {
    /// Whether the slots of a request are remembered.
    pub(crate) fn knows(&self, request_id: Uuid) -> bool {
        self.0.lock().contains_key(&request_id)
    }

    /// Returns the slots of a request: the ones it already has, or new ones.
    ///
    /// # Errors
    ///
    /// `RequestIdReused` if the request differed before; `Overloaded`.
    pub(crate) fn plan(&self, wish: Wish<'_>, seen: &Seen) -> Result<Planned<'_>> {
        let mut plans = self.0.lock();
        let slots = match plans.get_mut(&wish.request_id) {
            Some(plan) if !plan.is_for(wish) => return Err(reused(&wish.request_id.to_string())),
            Some(plan) => {
                plan.calls += 1;
                plan.visible = None;
                plan.slots.clone()
            }
            None => {
                forget(&mut plans, seen)?;
                let slots = slots(wish, &taken(&plans, wish, seen));
                let plan = Plan {
                    cluster_id: wish.cluster_id.to_owned(),
                    group_id: wish.group_id.to_owned(),
                    slots: slots.clone(),
                    calls: 1,
                    visible: None,
                };
                plans.insert(wish.request_id, plan);
                slots
            }
        };
        Ok(Planned {
            slots,
            end: End::Unknown,
            plans: self,
            request_id: wish.request_id,
            visibility_delay: seen.visibility_delay,
            creation_time: seen.creation_time,
        })
    }
}

impl Plan {
    fn is_for(&self, wish: Wish<'_>) -> bool {
        self.cluster_id == wish.cluster_id
            && self.group_id == wish.group_id
            && self.slots.len() == wish.count
    }
}

/// Returns the ordinals of the group that are in use.
fn taken(plans: &HashMap<Uuid, Plan>, wish: Wish<'_>, seen: &Seen) -> HashSet<u32> {
    let same = |plan: &&Plan| {
        plan.cluster_id == wish.cluster_id
            && plan.group_id == wish.group_id
            // If the request ended long enough before the read began, its nodes are in the read, or gone again.
            && plan.visible.is_none_or(|visible| visible >= seen.began)
    };
    plans
        .values()
        .filter(same)
        .flat_map(|plan| plan.slots.iter().filter_map(|slot| slot.ordinal))
        .chain(seen.ordinals.iter().copied())
        .collect()
}

fn slots(wish: Wish<'_>, taken: &HashSet<u32>) -> Vec<Slot> {
    let free = (0_u32..).filter(|ordinal| !taken.contains(ordinal));
    (0_u32..)
        .zip(free)
        .take(wish.count)
        .map(|(index, ordinal)| Slot {
            index: Some(index),
            id: node_id(wish.group_id, ordinal, OWNER, wish.request_id, index),
            name: node_name(wish.group_id, ordinal),
            ordinal: Some(ordinal),
            role: NodeRole::Active.into(),
            host_id: None,
        })
        .collect()
}

fn forget(plans: &mut HashMap<Uuid, Plan>, seen: &Seen) -> Result<()> {
    let now = Instant::now();
    plans.retain(|_, plan| {
        plan.visible
            .is_none_or(|visible| now < visible + seen.request_memory)
    });
    if plans.len() < MAX_PLANS {
        return Ok(());
    }
    let oldest = plans
        .iter()
        .filter_map(|(id, plan)| Some((plan.visible?, *id)))
        .min();
    match oldest {
        Some((_, id)) => {
            plans.remove(&id);
            Ok(())
        }
        None => Err(Error::new(
            Reason::Overloaded,
            "too many requests are under way",
        )),
    }
}

impl Planned<'_> {
    /// Ends the call with this outcome; without this the outcome is unknown.
    pub(crate) fn ended(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Planned<'_> {
    fn drop(&mut self) {
        let mut plans = self.plans.0.lock();
        let Some(plan) = plans.get_mut(&self.request_id) else {
            return;
        };
        plan.calls -= 1;
        if plan.calls > 0 {
            return;
        }
        let visible = Instant::now() + self.visibility_delay;
        match self.end {
            End::Unknown => plan.visible = Some(visible + self.creation_time),
            End::Known => plan.visible = Some(visible),
            End::NothingMade => drop(plans.remove(&self.request_id)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    fn seen(ordinals: &[u32]) -> Seen {
        Seen {
            ordinals: ordinals.iter().copied().collect(),
            began: Instant::now(),
            visibility_delay: Duration::from_secs(5),
            creation_time: Duration::from_secs(30),
            request_memory: Duration::from_secs(60),
        }
    }

    fn wish(request: u128, count: usize) -> Wish<'static> {
        Wish {
            request_id: Uuid::from_u128(request),
            cluster_id: "orders",
            group_id: "data",
            count,
        }
    }

    fn ordinals(planned: &Planned<'_>) -> Vec<u32> {
        planned.slots.iter().filter_map(|s| s.ordinal).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn ordinals_are_the_lowest_that_nobody_has() {
        let plans = Plans::default();
        let first = plans.plan(wish(1, 2), &seen(&[0, 2])).unwrap();
        assert_eq!(ordinals(&first), [1, 3]);
        let second = plans.plan(wish(2, 1), &seen(&[0, 2])).unwrap();
        assert_eq!(ordinals(&second), [4], "1 and 3 are being made");
        let elsewhere = Wish {
            group_id: "log",
            ..wish(3, 1)
        };
        let third = plans.plan(elsewhere, &seen(&[])).unwrap();
        assert_eq!(ordinals(&third), [0]);

        let before = seen(&[0, 2]);
        first.ended(End::Known);
        second.ended(End::Known);
        let fourth = plans.plan(wish(4, 1), &before).unwrap();
        assert_eq!(ordinals(&fourth), [5], "that read may not show them yet");
        tokio::time::sleep(Duration::from_secs(6)).await;
        let fifth = plans.plan(wish(5, 1), &seen(&[0, 1])).unwrap();
        assert_eq!(ordinals(&fifth), [2], "this one would show them");
        fifth.ended(End::NothingMade);
        let sixth = plans.plan(wish(6, 1), &seen(&[0, 1])).unwrap();
        assert_eq!(ordinals(&sixth), [2]);
        drop((sixth, fourth));
        tokio::time::sleep(Duration::from_secs(6)).await;
        let seventh = plans.plan(wish(7, 1), &seen(&[0, 1])).unwrap();
        assert_eq!(ordinals(&seventh), [3], "2 and 5 may still be made");
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeat_has_the_same_slots_as_long_as_it_may_come() {
        let plans = Plans::default();
        let first = plans.plan(wish(1, 2), &seen(&[])).unwrap();
        let again = plans.plan(wish(1, 2), &seen(&[0, 1])).unwrap();
        assert_eq!(first.slots, again.slots);
        let other = plans.plan(wish(1, 3), &seen(&[])).err().unwrap();
        assert_eq!(other.reason(), Reason::RequestIdReused);
        drop((first, again));
        tokio::time::sleep(Duration::from_secs(60 + 5 + 30 + 1)).await;
        drop(plans.plan(wish(2, 1), &seen(&[])).unwrap());
        assert!(!plans.knows(Uuid::from_u128(1)), "it is forgotten");
    }
}
