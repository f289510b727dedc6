//! What is done at intervals, in case that something was missed: every cluster is planned, and after a suspend of the
//! machine every platform is looked at anew.

use std::{sync::Arc, time::Duration};

use drover_core::{Millis, Urgency};
use drover_executor::Hooks;
use drover_platforms::Platforms;
use drover_store::Clock;

use crate::{queue::Queue, records::Records};

/// Interval between looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Every cluster is planned at least once in this period, spread evenly.
const SAFETY_SWEEP: Duration = Duration::from_secs(300);

/// Looks after all clusters and platforms.
pub(crate) struct SafetySweep {
    pub(crate) records: Arc<Records>,
    pub(crate) queue: Queue,
    pub(crate) platforms: Arc<Platforms>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) hooks: Hooks,
}

impl SafetySweep {
    /// Looks until it is dropped.
    pub(crate) async fn run(self) {
        let mut look = tokio::time::interval(INTERVAL);
        let mut wall = Wall::new(self.hooks.wall(), self.clock.now());
        loop {
            look.tick().await;
            self.check(&mut wall);
            self.visit_some();
        }
    }

    fn check(&self, wall: &mut Wall) {
        if let Some(gap) = wall.jumped(self.hooks.wall(), self.clock.now()) {
            tracing::warn!(gap_ms = %gap, "the clock jumped; platforms are looked at anew");
            for registered in self.platforms.read().values() {
                registered.platform.doubt();
                registered.retry();
            }
        }
    }

    /// Plans a share of all clusters, so that each is planned once per safety sweep.
    fn visit_some(&self) {
        let all = self.records.clusters().all();
        let rounds = (SAFETY_SWEEP.as_secs() / INTERVAL.as_secs()).max(1);
        let share = all.len().div_ceil(usize::try_from(rounds).unwrap_or(1));
        let turn =
            usize::try_from(self.clock.now() / drover_core::millis(INTERVAL) % rounds).unwrap_or(0);
        for cluster in all.iter().skip(turn * share).take(share) {
            self.queue.push(cluster.uid(), Urgency::Bulk);
        }
    }
}

/// Detects jumps between wall clock and monotonic clock: the machine was suspended, and earlier observations no longer
/// count.
struct Wall {
    behind: i128,
}

/// A larger gap is a suspend, not a clock correction.
const GAP: i128 = 30_000;

impl Wall {
    fn new(wall: Millis, monotonic: Millis) -> Self {
        Self {
            behind: Self::difference(wall, monotonic),
        }
    }

    fn difference(wall: Millis, monotonic: Millis) -> i128 {
        i128::from(wall) - i128::from(monotonic)
    }

    /// By how many milliseconds the clocks have diverged since the last jump.
    fn jumped(&mut self, wall: Millis, monotonic: Millis) -> Option<i128> {
        let now = Self::difference(wall, monotonic);
        let gap = now - self.behind;
        if gap.abs() <= GAP {
            return None;
        }
        self.behind = now;
        Some(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_corrected_is_none_that_jumped_and_each_jump_counts_once() {
        let mut wall = Wall {
            behind: Wall::difference(1_000_000, 0),
        };
        assert_eq!(wall.jumped(1_005_000, 5_000), None);
        assert_eq!(
            wall.jumped(1_039_000, 10_000),
            None,
            "29 s are a correction"
        );
        assert_eq!(wall.jumped(1_046_000, 15_000), Some(31_000), "a suspend");
        assert_eq!(wall.jumped(1_051_000, 20_000), None, "once");
        assert_eq!(wall.jumped(1_020_000, 25_000), Some(-36_000), "set back");
        assert_eq!(wall.jumped(4_620_000, 30_000), Some(3_595_000), "and on");
    }
}
