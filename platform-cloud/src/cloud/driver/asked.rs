//! Launches that may still come to something: the cloud recognises a repeat only if it is for the same slots in the same
//! failure domain, whichever would be chosen by now.

use std::{collections::HashMap, time::Duration};

use drover_core::Error;
use tokio::time::Instant;

use super::super::Launch;

/// Launches that are under way or ended in doubt, by the request that they belong to.
pub(super) struct Asked {
    /// How long lists may lack what a call has made.
    settles_after: Duration,
    longest_call: Duration,
    launches: HashMap<String, Vec<AskedLaunch>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AskedLaunch {
    pub(super) failure_domain: Option<String>,
    /// Indices of the slots.
    pub(super) slots: Vec<u32>,
    /// From then on lists have what it has made.
    settled: Instant,
}

/// What a call leaves open.
pub(super) enum Left {
    /// It may have made something, or still make it.
    InDoubt,
    /// It says nothing of an earlier one, if there was one.
    AsBefore(Option<AskedLaunch>),
    /// It is known what it has made.
    Known,
}

impl AskedLaunch {
    fn of(launch: &Launch, left: Duration) -> Self {
        Self {
            failure_domain: launch.failure_domain.clone(),
            slots: indices(launch).collect(),
            settled: Instant::now() + left,
        }
    }

    fn is(&self, launch: &Launch) -> bool {
        self.failure_domain == launch.failure_domain
            && indices(launch).eq(self.slots.iter().copied())
    }

    /// The error for slots that cannot be asked for in the same way: some of the launch exist by now, or nobody answers there.
    pub(super) fn unsettled(&self) -> Error {
        let left = self.settled.saturating_duration_since(Instant::now());
        let message = "an earlier call may still make it, and cannot be repeated as it was";
        Error::unavailable(message).with_retry_after(left)
    }
}

fn indices(launch: &Launch) -> impl Iterator<Item = u32> {
    launch.slots.iter().map(|slot| slot.identity.index)
}

impl Asked {
    pub(super) fn new(settles_after: Duration, longest_call: Duration) -> Self {
        Self {
            settles_after,
            longest_call,
            launches: HashMap::new(),
        }
    }

    /// Remembers a launch before its call: whoever waits for the call may give up. Returns what was known of it.
    pub(super) fn begins(&mut self, request_id: &str, launch: &Launch) -> Option<AskedLaunch> {
        let left = self.longest_call + self.settles_after;
        self.replace(request_id, launch, Some(AskedLaunch::of(launch, left)))
    }

    /// Records what is left open at the end of its call.
    pub(super) fn ends(&mut self, request_id: &str, launch: &Launch, left: Left) {
        let known = match left {
            Left::InDoubt => Some(AskedLaunch::of(launch, self.settles_after)),
            Left::AsBefore(former) => former,
            Left::Known => None,
        };
        self.replace(request_id, launch, known);
    }

    fn replace(
        &mut self,
        request_id: &str,
        launch: &Launch,
        by: Option<AskedLaunch>,
    ) -> Option<AskedLaunch> {
        let known = self.launches.entry(request_id.to_owned()).or_default();
        let at = known.iter().position(|known| known.is(launch));
        let former = at.map(|at| known.swap_remove(at));
        known.extend(by);
        if known.is_empty() {
            self.launches.remove(request_id);
        }
        former
    }

    /// The launches of a request that may still come to something.
    pub(super) fn of(&mut self, request_id: &str) -> Vec<AskedLaunch> {
        let now = Instant::now();
        self.launches.retain(|_, launches| {
            launches.retain(|launch| launch.settled > now);
            !launches.is_empty()
        });
        self.launches.get(request_id).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use drover_platform::identity::Identity;
    use tokio::time::advance;

    use super::super::super::LaunchSlot;
    use super::*;

    const SETTLES: Duration = Duration::from_secs(60);
    const CALL: Duration = Duration::from_secs(30);

    fn launch(domain: &str, slots: &[u32]) -> Launch {
        let slot = |&index: &u32| LaunchSlot {
            identity: Identity {
                index,
                ..Identity::default()
            },
            host_id: None,
        };
        Launch {
            failure_domain: Some(domain.to_owned()),
            slots: slots.iter().map(slot).collect(),
            ..Launch::default()
        }
    }

    fn slots(asked: &mut Asked, request: &str) -> Vec<Vec<u32>> {
        asked.of(request).into_iter().map(|it| it.slots).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_launch_is_known_from_its_begin_until_lists_have_it_or_it_has_failed() {
        let mut asked = Asked::new(SETTLES, CALL);
        let (two, one) = (launch("a", &[0, 3]), launch("b", &[1]));
        asked.begins("r", &two);
        asked.begins("r", &one);
        assert_eq!(slots(&mut asked, "r"), [vec![0, 3], vec![1]]);
        assert_eq!(slots(&mut asked, "another"), Vec::<Vec<u32>>::new());
        asked.ends("r", &one, Left::Known);
        assert_eq!(slots(&mut asked, "r"), [vec![0, 3]]);
        advance(CALL).await;
        asked.ends("r", &two, Left::InDoubt);
        advance(SETTLES - Duration::from_secs(1)).await;
        assert_eq!(slots(&mut asked, "r"), [vec![0, 3]]);
        let wait = asked.of("r")[0].unsettled();
        assert_eq!(wait.retry_after(), Some(Duration::from_secs(1)));
        advance(Duration::from_secs(1)).await;
        assert_eq!(slots(&mut asked, "r"), Vec::<Vec<u32>>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeat_that_was_not_sent_leaves_the_doubt_as_it_was() {
        let mut asked = Asked::new(SETTLES, CALL);
        let one = launch("a", &[0]);
        assert_eq!(asked.begins("r", &one), None);
        asked.ends("r", &one, Left::InDoubt);
        let doubt = asked.of("r");
        advance(SETTLES / 2).await;
        let former = asked.begins("r", &one);
        assert_ne!(asked.of("r"), doubt);
        asked.ends("r", &one, Left::AsBefore(former));
        assert_eq!(asked.of("r"), doubt);
        // One that was never in doubt is not because of a call that was not sent.
        let other = launch("b", &[1]);
        let former = asked.begins("r", &other);
        asked.ends("r", &other, Left::AsBefore(former));
        assert_eq!(asked.of("r"), doubt);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_waited_for_is_in_doubt() {
        let mut asked = Asked::new(SETTLES, CALL);
        asked.begins("r", &launch("a", &[0]));
        advance(CALL + SETTLES - Duration::from_secs(1)).await;
        assert_eq!(slots(&mut asked, "r"), [vec![0]]);
        advance(Duration::from_secs(1)).await;
        assert_eq!(slots(&mut asked, "r"), Vec::<Vec<u32>>::new());
    }
}
