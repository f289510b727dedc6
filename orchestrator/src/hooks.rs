//! Points at which a test can stop the process dead. Nothing of it is in a normal build.

/// Where a crash can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// A plan was made; nothing of it is durable.
    BeforeCommit,
    /// Its operations are durable; memory does not show them.
    AfterCommit,
    /// A Provision call is about to be made.
    BeforeProvision,
    /// It was answered; nobody has taken that in.
    AfterProvision,
    /// A Deprovision call is about to be made.
    BeforeDeprovision,
    /// It was answered; nobody has taken that in.
    AfterDeprovision,
    /// An UpdateNode call is about to be made.
    BeforeRoleChange,
    /// It was answered; nobody has taken that in.
    AfterRoleChange,
    /// A hook is about to be run in a node.
    BeforeHook,
    /// It has ended, or its time is over; nobody has taken that in.
    AfterHook,
    /// An UpdateNode call that adopts is about to be made.
    BeforeAdopt,
    /// It was answered; nobody has taken that in.
    AfterAdopt,
    /// An EnsureInfrastructure call is about to be made.
    BeforeEnsure,
    /// It was answered; nobody has taken that in.
    AfterEnsure,
    /// A ReleaseInfrastructure call is about to be made.
    BeforeRelease,
    /// It was answered; nobody has taken that in.
    AfterRelease,
    /// A complete read is about to be made.
    BeforeConfirm,
    /// It was answered; nobody has taken that in.
    AfterConfirm,
    /// A change that a user asked for is about to be made durable.
    BeforeApply,
    /// It is durable; nobody was told.
    AfterApply,
    /// The record of a deleted cluster is about to go.
    BeforeFinish,
    /// It is gone; memory does not show it.
    AfterFinish,
}

#[cfg(not(feature = "crash-points"))]
mod imp {
    use drover_core::Millis;

    use super::Point;
    use crate::clock::wall;

    /// Does nothing.
    #[derive(Clone, Debug, Default)]
    pub struct Hooks(());

    impl Hooks {
        #[expect(clippy::unused_async, reason = "the same shape as the one for tests")]
        pub(crate) async fn reach(&self, _point: Point) {}

        pub(crate) fn wall(&self) -> Millis {
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

    use super::Point;
    use crate::clock::wall;

    /// Asks at each point whether the process dies there.
    #[derive(Clone, Default)]
    pub struct Hooks {
        dies: Option<Arc<dyn Fn(Point) -> bool + Send + Sync>>,
        clock_error: Arc<AtomicI64>,
    }

    impl Hooks {
        /// Hooks that ask this. True: what reached the point never gets any further.
        pub fn new(dies: impl Fn(Point) -> bool + Send + Sync + 'static) -> Self {
            Self {
                dies: Some(Arc::new(dies)),
                clock_error: Arc::default(),
            }
        }

        /// The same on a machine whose clock is so many milliseconds off; it may be set while the process runs.
        #[must_use]
        pub fn with_clock_error(self, clock_error: Arc<AtomicI64>) -> Self {
            Self {
                clock_error,
                ..self
            }
        }

        pub(crate) async fn reach(&self, point: Point) {
            if self.dies.as_ref().is_some_and(|dies| dies(point)) {
                std::future::pending::<()>().await;
            }
        }

        pub(crate) fn wall(&self) -> Millis {
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
