//! Limits on the shared resources that a single caller may use.

use std::{sync::Arc, time::Duration};

use drover_core::{Error, Reason, Result};
use drover_server::{Rates, Share, Shares};
use serde::{Deserialize, Serialize};

/// Burst of plans, in seconds of the rate: a directory of manifests is planned in one go.
const BURST: u32 = 5;
/// Retry delay for a caller that has reached its memory limit: long enough for one of its streams to end.
const RETRY: Duration = Duration::from_secs(1);

/// What one caller may take: who has to say who it is by that, others by their address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// Bytes that the watches, logs and commands of one caller may hold here, as they are counted: 64 KiB each, what waits to
    /// be read, and of watches 96 bytes for each node and 160 for each cluster that was sent. What would hold more is answered
    /// `RESOURCE_EXHAUSTED`, or ends so. Default 67108864 (64 MiB): about 60 watches of 10,000 nodes.
    pub watch_bytes_per_caller: usize,
    /// Plans of one caller under way at once, dry runs of an apply among them. Default 8.
    pub plans_per_caller: usize,
    /// Plans that one caller may ask for a second, and five times as many at once. Default 20.
    pub plans_per_second_per_caller: u32,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            watch_bytes_per_caller: 64 << 20,
            plans_per_caller: 8,
            plans_per_second_per_caller: 20,
        }
    }
}

/// Current usage of each caller.
#[derive(Debug)]
pub(crate) struct Limits {
    watches: Shares,
    plans: Shares,
    rate: Rates,
}

impl Limits {
    /// Fails if a value is invalid.
    pub(crate) fn of(settings: &LimitSettings) -> Result<Self> {
        for (name, value) in [
            ("watch_bytes_per_caller", settings.watch_bytes_per_caller),
            ("plans_per_caller", settings.plans_per_caller),
            (
                "plans_per_second_per_caller",
                settings.plans_per_second_per_caller as usize,
            ),
        ] {
            if value == 0 {
                return Err(Error::invalid(
                    format!("limits.{name}"),
                    "expected at least 1",
                ));
            }
        }
        let a_second = settings.plans_per_second_per_caller;
        Ok(Self {
            watches: Shares::new(settings.watch_bytes_per_caller),
            plans: Shares::new(settings.plans_per_caller),
            rate: Rates::new(a_second.saturating_mul(BURST), a_second),
        })
    }

    /// Accounts for a plan as long as the share is held. Returns `Overloaded` if the limit is reached.
    pub(crate) fn plan(&self, caller: &Arc<str>) -> Result<Option<Share>> {
        // In-process callers are not limited.
        if caller.is_empty() {
            return Ok(None);
        }
        self.rate.take(caller).map_err(|wait| {
            let message =
                format!("too many plans of {caller} (limits.plans_per_second_per_caller)");
            Error::new(Reason::Overloaded, message).with_retry_after(wait)
        })?;
        let share = self.plans.take(caller, 1);
        let message = || format!("too many plans of {caller} under way (limits.plans_per_caller)");
        share.map(Some).ok_or_else(|| full(message()))
    }

    /// Accounts for the memory of a stream. Returns `Overloaded` if the limit is reached.
    pub(crate) fn hold(&self, caller: &Arc<str>, bytes: usize) -> Result<Held> {
        if caller.is_empty() {
            return Ok(Held(None));
        }
        let share = self.watches.take(caller, bytes);
        let share = share.ok_or_else(|| too_much(caller))?;
        Ok(Held(Some((share, caller.clone()))))
    }
}

/// Memory of a stream, accounted for until dropped.
#[derive(Debug)]
pub(crate) struct Held(Option<(Share, Arc<str>)>);

impl Held {
    /// Changes the amount of memory. Returns `Overloaded` if the limit is reached, upon which the stream must end.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<()> {
        let Some((share, caller)) = &mut self.0 else {
            return Ok(());
        };
        if share.resize(bytes) {
            Ok(())
        } else {
            Err(too_much(caller))
        }
    }
}

fn too_much(caller: &str) -> Error {
    full(format!(
        "watches, logs and commands of {caller} hold too much memory (limits.watch_bytes_per_caller)"
    ))
}

fn full(message: String) -> Error {
    Error::new(Reason::Overloaded, message).with_retry_after(RETRY)
}
