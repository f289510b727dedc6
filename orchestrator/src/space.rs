//! The room that the store has left in its etcd. Before it is full it grows no more by new clusters and groups, so that
//! what is there can be kept as it is wanted.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_server::telemetry::Exposition;
use drover_store_etcd::EtcdBackend;
use parking_lot::Mutex;
use tokio::time::sleep;

/// How often etcd is asked.
const LOOK: Duration = Duration::from_secs(30);
/// Part of the quota, in percent, from which on nothing new is accepted. The rest is for healing and for changes of what
/// is there, which take the more the longer nobody makes room.
const RESERVE: u64 = 70;

/// The etcd that is asked.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    backend: Arc<EtcdBackend>,
    quota: u64,
}

impl Room {
    /// The quota is that of members who do not say theirs.
    pub(crate) fn new(backend: Arc<EtcdBackend>, quota: u64) -> Self {
        Self { backend, quota }
    }
}

/// What is known of the room of the store.
#[derive(Debug, Default)]
pub(crate) struct Space(Mutex<Known>);

/// All 0 while nothing is known, or for a store in a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    used: u64,
    quota: u64,
    alarmed: bool,
}

impl Known {
    fn percent(self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.quota.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    fn is_short(self) -> bool {
        self.alarmed || (self.quota > 0 && self.percent() >= RESERVE)
    }
}

impl Space {
    /// Refuses what would make the store grow: a new cluster or group.
    pub(crate) fn admit(&self, what: &str) -> Result<()> {
        let known = *self.0.lock();
        if !known.is_short() {
            return Ok(());
        }
        let message = format!(
            "the store is too full for {what}: etcd has {} of {} bytes ({} %); what is there is kept and can be changed. \
             Make room: drover-orchestrator store maintain; a larger --quota-backend-bytes of etcd, and etcd.quota; or \
             fewer clusters",
            known.used,
            known.quota,
            known.percent()
        );
        Err(Error::new(Reason::StorageFull, message))
    }

    /// Notes what was measured. Whether the store has just become short of room, or is no more.
    fn learn(&self, now: Known) -> Option<bool> {
        let before = std::mem::replace(&mut *self.0.lock(), now);
        (before.is_short() != now.is_short()).then_some(now.is_short())
    }

    pub(crate) fn write(&self, out: &mut Exposition) {
        let known = *self.0.lock();
        out.gauge(
            "drover_store_size_bytes",
            "Bytes of the largest database file of the etcd that holds the store, at the leader; 0 without etcd.",
            [(Vec::new(), float(known.used))],
        );
        out.gauge(
            "drover_store_quota_bytes",
            "Bytes that such a file may have, at the leader: then etcd refuses all changes. 0 without etcd.",
            [(Vec::new(), float(known.quota))],
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

/// Measures the room again and again. While etcd does not answer, what was known goes on to count.
pub(crate) async fn run(known: Arc<Space>, room: Room) {
    loop {
        match room.backend.space().await {
            Ok(space) => {
                let now = Known {
                    used: space.used,
                    quota: space.quota.unwrap_or(room.quota),
                    alarmed: space.alarmed,
                };
                if let Some(short) = known.learn(now) {
                    say(now, space.in_use, short);
                }
            }
            Err(error) => tracing::debug!(%error, "the room of the store is not known"),
        }
        sleep(LOOK).await;
    }
}

fn say(now: Known, in_use: u64, short: bool) {
    let (used, quota) = (now.used, now.quota);
    if short {
        tracing::warn!(
            used,
            in_use,
            quota,
            alarmed = now.alarmed,
            "etcd fills up: new clusters and groups are refused; make room (drover-orchestrator store maintain)"
        );
    } else {
        tracing::info!(
            used,
            in_use,
            quota,
            "etcd has room again for new clusters and groups"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(used: u64, quota: u64, alarmed: bool) -> Known {
        Known {
            used,
            quota,
            alarmed,
        }
    }

    #[test]
    fn nothing_new_is_accepted_from_70_percent_on_or_after_an_alarm() {
        let space = Space::default();
        assert!(space.admit("a cluster").is_ok(), "nothing is known");
        for (now, refused) in [
            (known(699, 1_000, false), false),
            (known(700, 1_000, false), true),
            (known(u64::MAX, 1, false), true),
            (known(10, 1_000, true), true),
            (known(10, 1_000, false), false),
        ] {
            space.learn(now);
            let answer = space.admit("a cluster");
            assert_eq!(answer.is_err(), refused, "{now:?}");
            if let Err(error) = answer {
                assert_eq!(error.reason(), Reason::StorageFull);
            }
        }
    }

    #[test]
    fn a_crossing_is_noted_once() {
        let space = Space::default();
        assert_eq!(space.learn(known(1, 100, false)), None);
        assert_eq!(space.learn(known(70, 100, false)), Some(true));
        assert_eq!(space.learn(known(90, 100, true)), None);
        assert_eq!(space.learn(known(20, 100, false)), Some(false));
        assert_eq!(space.learn(known(20, 100, false)), None);
    }
}
