//! Crash points for tests. Compiled to nothing in normal builds.

use std::time::{SystemTime, UNIX_EPOCH};

use drover_core::{Millis, millis};
#[cfg(feature = "crash-points")]
use tokio::time::Instant;

/// A point at which a test may crash the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// A plan was made; nothing of it is durable.
    BeforeCommit,
    /// The operations are durable, but not yet visible in memory.
    AfterCommit,
    /// Before a Provision call.
    BeforeProvision,
    /// The Provision call returned; the result is not processed yet.
    AfterProvision,
    /// Before a Deprovision call.
    BeforeDeprovision,
    /// The Deprovision call returned; the result is not processed yet.
    AfterDeprovision,
    /// Before an UpdateNode call for a role.
    BeforeRoleChange,
    /// The UpdateNode call returned; the result is not processed yet.
    AfterRoleChange,
    /// Before an UpdateNode call for the labels of a host.
    BeforeRelabel,
    /// The UpdateNode call returned; the result is not processed yet.
    AfterRelabel,
    /// Before an UpdateNode call for storage.
    BeforeGrow,
    /// The UpdateNode call returned; the result is not processed yet.
    AfterGrow,
    /// Before a hook is run in a node.
    BeforeHook,
    /// The hook ended or timed out; the result is not processed yet.
    AfterHook,
    /// Before an UpdateNode call for an adoption.
    BeforeAdopt,
    /// The adoption call returned; the result is not processed yet.
    AfterAdopt,
    /// Before an EnsureInfrastructure call.
    BeforeEnsure,
    /// The EnsureInfrastructure call returned; the result is not processed yet.
    AfterEnsure,
    /// Before a ReleaseInfrastructure call.
    BeforeRelease,
    /// The ReleaseInfrastructure call returned; the result is not processed yet.
    AfterRelease,
    /// Before an EnsureAddon call.
    BeforeEnsureAddon,
    /// The EnsureAddon call returned; the result is not processed yet.
    AfterEnsureAddon,
    /// Before a RemoveAddon call.
    BeforeRemoveAddon,
    /// The RemoveAddon call returned; the result is not processed yet.
    AfterRemoveAddon,
    /// Before a complete read.
    BeforeConfirm,
    /// The complete read returned; the result is not processed yet.
    AfterConfirm,
    /// Before a user's change is made durable.
    BeforeApply,
    /// The user's change is durable; the user has no response yet.
    AfterApply,
    /// Before the record of a deleted cluster is removed.
    BeforeFinish,
    /// The record is removed, but still visible in memory.
    AfterFinish,
}

#[cfg(not(feature = "crash-points"))]
mod imp {
    use drover_core::Millis;

    use super::{Point, wall};

    /// Crash points of a normal build, without any effect.
    #[derive(Clone, Debug, Default)]
    pub struct Hooks(());

    impl Hooks {
        #[expect(clippy::unused_async, reason = "the same shape as the one for tests")]
        /// Ends the task here if the test says so.
        pub async fn reach(&self, _point: Point) {}

        /// The wall clock of this machine.
        #[must_use]
        pub fn wall(&self) -> Millis {
            wall()
        }
    }
}

#[cfg(feature = "crash-points")]
mod imp {
    use std::{
        fmt,
        sync::{
            Arc,
            atomic::{AtomicI64, Ordering},
        },
    };

    use drover_core::Millis;

    use super::{Point, wall};

    /// Calls the test at each point, which decides whether the process dies there.
    #[derive(Clone, Default)]
    pub struct Hooks {
        dies: Option<Arc<dyn Fn(Point) -> bool + Send + Sync>>,
        clock_error: Arc<AtomicI64>,
    }

    impl Hooks {
        /// Creates hooks from this predicate. If it returns `true`, the task that reached the point never continues.
        pub fn new(dies: impl Fn(Point) -> bool + Send + Sync + 'static) -> Self {
            Self {
                dies: Some(Arc::new(dies)),
                clock_error: Arc::default(),
            }
        }

        /// Simulates a machine whose clock is off by this many milliseconds, which may change while the process runs.
        #[must_use]
        pub fn with_clock_error(self, clock_error: Arc<AtomicI64>) -> Self {
            Self {
                clock_error,
                ..self
            }
        }

        /// Ends the task here if the test says so.
        pub async fn reach(&self, point: Point) {
            if self.dies.as_ref().is_some_and(|dies| dies(point)) {
                std::future::pending::<()>().await;
            }
        }

        /// The wall clock of this machine.
        #[must_use]
        pub fn wall(&self) -> Millis {
            wall().saturating_add_signed(self.clock_error.load(Ordering::Relaxed))
        }
    }

    impl fmt::Debug for Hooks {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Hooks")
        }
    }
}

pub use imp::Hooks;

/// The wall clock, in milliseconds since the Unix epoch.
#[cfg(not(feature = "crash-points"))]
fn wall() -> Millis {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, millis)
}

/// Wall clock that advances with the runtime's clock, which a test may pause: all restarts within a test share one time
/// axis without jumps.
#[cfg(feature = "crash-points")]
fn wall() -> Millis {
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
