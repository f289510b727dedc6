//! A single time axis: the wall clock at startup, monotonic from then on.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drover_core::Millis;
use drover_planner::State;
use tokio::time::Instant;

/// The clock of this process. Recorded times stay comparable across restarts, and time never runs backwards: after
/// startup it is independent of the wall clock, and it starts no earlier than the latest time in the store.
#[derive(Debug)]
pub(crate) struct Clock {
    wall: AtomicU64,
    start: Instant,
}

impl Clock {
    pub(crate) fn new(wall: Millis) -> Self {
        Self {
            wall: AtomicU64::new(wall),
            start: Instant::now(),
        }
    }

    /// Advances the clock to at least this time, which an earlier process has recorded. Returns by how much the
    /// machine's clock is behind. Must be called before anything else happens.
    pub(crate) fn not_before(&self, latest: Millis) -> Millis {
        let behind = latest.saturating_sub(self.now());
        self.wall.fetch_add(behind, Ordering::Relaxed);
        behind
    }

    fn wall(&self) -> Millis {
        self.wall.load(Ordering::Relaxed)
    }

    /// Milliseconds since the Unix epoch.
    pub(crate) fn now(&self) -> Millis {
        self.wall() + millis(self.start.elapsed())
    }

    /// Start time of this process.
    pub(crate) fn start(&self) -> Millis {
        self.wall()
    }

    /// Converts a time to an `Instant`.
    pub(crate) fn instant(&self, at: Millis) -> Instant {
        self.start + Duration::from_millis(at.saturating_sub(self.wall()))
    }

    /// The remaining duration until a time.
    pub(crate) fn until(&self, at: Millis) -> Duration {
        Duration::from_millis(at.saturating_sub(self.now()))
    }
}

/// Deadlines are less than this ahead of the time at which they are recorded.
const AHEAD: Millis = 3_600_000;

/// The latest time at which something was recorded. Derived from deadlines as well: otherwise one that was set by a
/// clock far ahead would block until that clock's time.
pub(crate) fn latest(state: &State) -> Millis {
    let before = |deadline: Millis| deadline.saturating_sub(AHEAD);
    let nodes = state.nodes.iter().flat_map(|node| {
        let removal = node.removal.map_or(0, |removal| removal.since);
        let settled = before(node.settled);
        [node.create_time, node.state_time, removal, settled]
    });
    let requests = state.requests.values();
    let requests = requests.flat_map(|one| [one.first_sent, before(one.deadline)]);
    let below = state.infrastructure.iter().flat_map(|(_, one)| {
        let ahead = one.deadline.max(one.unsettled).max(one.next);
        [one.phase_time, one.doubt, before(ahead)]
    });
    let back_offs = state.backoffs.values().map(|back_off| back_off.last);
    let conditions = state.conditions.values().map(|condition| condition.since);
    let rollouts = state.rollouts.values().map(|rollout| rollout.progress);
    nodes
        .chain(requests)
        .chain(below)
        .chain(back_offs)
        .chain(conditions)
        .chain(rollouts)
        .max()
        .unwrap_or_default()
}

/// The wall clock, in milliseconds since the Unix epoch.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn wall() -> Millis {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, millis)
}

/// Wall clock that advances with the runtime's clock, which a test may pause: all restarts within a test share one time
/// axis without jumps.
#[cfg(feature = "crash-points")]
pub(crate) fn wall() -> Millis {
    static FIRST: std::sync::OnceLock<(Millis, Instant)> = std::sync::OnceLock::new();
    let now = Instant::now();
    let (wall, first) = *FIRST.get_or_init(|| {
        (
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, millis),
            now,
        )
    });
    // Each runtime has a clock of its own, which may be behind that of the first.
    wall + millis(now.saturating_duration_since(first))
        - millis(first.saturating_duration_since(now))
}

pub(crate) fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX / 4)
}

#[cfg(test)]
mod tests {
    use drover_core::infrastructure::Infrastructure;

    use super::*;

    #[test]
    fn what_was_closed_by_a_clock_far_ahead_tells_how_far_it_was() {
        const DAYS: Millis = 15 * 24 * AHEAD;
        let mut node = crate::fixture::node(1, drover_core::NodeState::Requested);
        (node.settled, node.maybe_until) = (DAYS, DAYS + 120_000);
        let state = State {
            nodes: vec![node],
            ..State::default()
        };
        assert_eq!(latest(&state), DAYS - AHEAD);
    }

    #[test]
    fn so_does_a_release_that_waits_for_what_a_clock_far_ahead_has_begun() {
        const DAYS: Millis = 6 * 24 * AHEAD;
        let record = Infrastructure {
            phase_time: 1_000,
            unsettled: DAYS,
            next: DAYS + 60_000,
            ..Infrastructure::default()
        };
        let mut state = State::default();
        state
            .infrastructure
            .insert(("p".into(), "u".into()), record);
        assert_eq!(latest(&state), DAYS + 60_000 - AHEAD);
    }

    #[tokio::test(start_paused = true)]
    async fn time_goes_on_from_what_is_recorded_where_the_clock_of_the_machine_is_behind() {
        let clock = Clock::new(wall());
        let recorded = clock.now() + 3_600_000;
        let behind = clock.not_before(recorded);
        assert!(behind <= 3_600_000 && behind > 3_590_000, "{behind}");
        assert_eq!((clock.now(), clock.start()), (recorded, recorded));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now(), recorded + 5_000);
        assert_eq!(clock.until(recorded + 6_000), Duration::from_secs(1));
        assert_eq!(clock.not_before(recorded), 0, "it is later already");
    }
}
