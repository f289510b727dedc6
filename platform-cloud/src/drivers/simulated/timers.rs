//! A single task for the timers of all nodes.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Weak},
};

use tokio::{task::JoinHandle, time::Instant};

use super::{Simulated, faults::Death};

/// A scheduled change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Run,
    Ready,
    Show,
    Die,
    Gone,
}

/// Events by time; those at the same time in insertion order.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32, Event)>>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Instant, node: u32, event: Event) {
        self.heap.push(Reverse((at, node, event)));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    pub(super) fn due(&mut self, now: Instant) -> Option<(u32, Event)> {
        if self.next()? > now {
            return None;
        }
        self.heap
            .pop()
            .map(|Reverse((_, node, event))| (node, event))
    }
}

/// Maximum number of events that are handled per lock acquisition, so that calls are not delayed.
const MAX_EVENTS: usize = 256;

pub(super) fn spawn(simulated: &Arc<Simulated>) -> JoinHandle<()> {
    // Only a weak reference is held across waits, so that dropping the driver ends the task.
    let mut changed = simulated.changed.subscribe();
    let weak = Arc::downgrade(simulated);
    tokio::spawn(async move {
        loop {
            changed.mark_unchanged();
            let Some((next, more)) = fire(&weak) else {
                return;
            };
            if more {
                tokio::task::yield_now().await;
                continue;
            }
            let sleep = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                changed = changed.changed() => if changed.is_err() { return },
            }
        }
    })
}

/// Handles the due events. Returns the time of the next event and whether more are due already.
fn fire(simulated: &Weak<Simulated>) -> Option<(Option<Instant>, bool)> {
    let simulated = simulated.upgrade()?;
    let mut world = simulated.world.lock();
    let now = Instant::now();
    for _ in 0..MAX_EVENTS {
        let Some((node, event)) = world.timers.due(now) else {
            return Some((world.timers.next(), false));
        };
        match event {
            Event::Run => world.run(node, &simulated.settings, now),
            Event::Ready => world.ready(node),
            Event::Show => world.show(node),
            Event::Die => world.die(node, simulated.settings.death),
            Event::Gone => world.gone(node, Death::Terminated),
        }
    }
    Some((None, true))
}
