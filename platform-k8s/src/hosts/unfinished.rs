//! What the first host of a request says while it may lack others.

use std::time::Duration;

use jiff::Timestamp;

/// How long a request that nobody completes is believed to be repeated: callers do so every minute. What it has serves
/// from then on, and is not given back any more. A mark may also be as old as that because a platform that knows of no
/// marks has completed the request.
pub(super) const UNFINISHED_LASTS: Duration = Duration::from_secs(120);

/// What the first host of a request says while it may lack others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// Number of slots of the request.
    pub(super) slots: usize,
    begun: Timestamp,
}

impl Unfinished {
    pub(super) fn now(slots: usize) -> Self {
        let begun = Timestamp::now();
        Self { slots, begun }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let (slots, begun) = text.split_once(' ')?;
        Some(Self {
            slots: slots.parse().ok()?,
            begun: begun.parse().ok()?,
        })
    }

    pub(super) fn text(self) -> String {
        format!("{} {}", self.slots, self.begun)
    }

    /// How long it is believed from now on. `None` if it is not, or its time is far from now.
    pub(super) fn lasts(self) -> Option<Duration> {
        let age = Timestamp::now().duration_since(self.begun);
        UNFINISHED_LASTS.checked_sub(age.unsigned_abs())
    }
}
