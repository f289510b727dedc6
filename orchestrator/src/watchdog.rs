//! Ends a leader that lives and does no work. Its lease might be renewed for ever, and no other replica take its place.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use drover_store::Store;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{queue::Queue, tasks::Tasks};

/// Longer than a round of a pass takes with a store that answers late: a commit may be sent nine times, wait four seconds
/// for each answer and five for each look whether it was done, and twice as long for its place.
const LONGEST: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(5);
const BEAT: Duration = Duration::from_secs(1);

/// What the thread has seen.
#[derive(Debug, Default)]
struct Watch {
    beats: u64,
    /// For how many looks nothing has beaten.
    silent: u32,
    before: Option<String>,
}

impl Watch {
    /// Why the process is to end. Whoever was stopped as a whole finds everything old when it goes on, and needs a moment: so
    /// one look does not suffice.
    fn look(&mut self, beats: u64, holds: bool, queue: &Queue) -> Option<String> {
        let silent = if beats == self.beats {
            self.silent + 1
        } else {
            0
        };
        (self.beats, self.silent) = (beats, silent);
        if LOOK * silent > LONGEST {
            return Some("no task of this process is carried out any more".to_owned());
        }
        // Whoever has lost touch is not to do anything.
        let stuck = holds.then(|| queue.stuck(LONGEST)).flatten();
        let before = std::mem::replace(&mut self.before, stuck.clone());
        stuck.filter(|_| before == self.before)
    }
}

/// Looks from a thread of its own, which no task can hold up.
pub(crate) fn start(tasks: &Tasks, store: &Arc<Store>, queue: Queue) {
    // Without a lock, which a task could keep.
    let pulse = Arc::new(AtomicU64::new(0));
    let (beating, stop) = (pulse.clone(), tasks.stop().clone());
    tasks.spawn(async move {
        while !stop.is_cancelled() {
            beating.fetch_add(1, Ordering::Relaxed);
            let _ = stop.run_until_cancelled(sleep(BEAT)).await;
        }
    });
    let (store, stop) = (Arc::downgrade(store), tasks.stop().clone());
    let started = thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || watch(&store, &queue, &stop, &pulse));
    if let Err(error) = started {
        tracing::warn!(%error, "nobody looks whether this process does its work");
    }
}

fn watch(store: &Weak<Store>, queue: &Queue, stop: &CancellationToken, pulse: &AtomicU64) {
    let mut watch = Watch::default();
    loop {
        thread::sleep(LOOK);
        let Some(store) = store.upgrade() else {
            return;
        };
        if stop.is_cancelled() {
            return;
        }
        let beats = pulse.load(Ordering::Relaxed);
        if let Some(why) = watch.look(beats, store.holds(), queue) {
            tracing::error!(
                why,
                "this process is stuck; it ends, so that it is started anew and another replica leads"
            );
            // What is stuck cannot be waited for.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_core::Urgency;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_process_whose_tasks_stand_still_ends_also_after_it_has_lost_touch() {
        let (mut watch, queue) = (Watch::default(), Queue::default());
        let mut looks = 0;
        while watch.look(7, false, &queue).is_none() {
            looks += 1;
        }
        assert_eq!(looks, 61, "five minutes");
        assert!(watch.look(8, false, &queue).is_none(), "it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_has_lost_touch_may_leave_its_queue_as_it_is() {
        let (mut watch, queue) = (Watch::default(), Queue::default());
        queue.push(Uuid::from_u128(1), Urgency::Urgent);
        tokio::time::advance(LONGEST * 2).await;
        for beats in 1..5 {
            assert_eq!(watch.look(beats, false, &queue), None);
        }
        assert_eq!(watch.look(5, true, &queue), None, "it has just come back");
        assert!(watch.look(6, true, &queue).is_some());
    }
}
