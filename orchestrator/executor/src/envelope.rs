//! What all calls to platforms have in common: the backend that is meant, a place among its calls, fence and instance, the
//! points at which tests kill the process, a span, and what the end of the call says about the platform.

use std::{sync::Arc, time::Duration};

use drover_client::PlatformClient;
use drover_core::{Error, Reason, Result, Sym, Urgency};
use drover_platforms::{BreakerChange, Registered};
use drover_proto::platform::v1 as wire;
use drover_telemetry::span;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::{Executor, points::Point, trace};

/// A call that could not begin this long before its deadline is not made.
pub(super) const LEAST: Duration = Duration::from_millis(500);

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request for nodes.
    Provision,
    /// A removal.
    Deprovision,
    /// A change of a node's role.
    RoleChange,
    /// A change of the labels of a node's host.
    Relabel,
    /// Growth of a node's storage.
    Grow,
    /// A node that gets another owner.
    Adopt,
    /// A complete read for one cluster.
    Confirm,
    /// A command inside a node. It takes no place among the calls, because it may take as long as it is allowed to.
    Hook,
    /// A request for infrastructure.
    Ensure,
    /// A release of infrastructure.
    Release,
    /// A read of infrastructure.
    Read,
    /// A request for an addon.
    EnsureAddon,
    /// A removal of an addon.
    RemoveAddon,
    /// A read of addons.
    ReadAddons,
}

impl Kind {
    /// Name of its span.
    fn span(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Deprovision => "deprovision",
            Self::RoleChange | Self::Relabel | Self::Grow => "update",
            Self::Adopt => "adopt",
            Self::Confirm => "confirm",
            Self::Hook => "exec",
            Self::Ensure | Self::Release | Self::Read => "infrastructure",
            Self::EnsureAddon | Self::RemoveAddon | Self::ReadAddons => "addon",
        }
    }

    /// Where a test may kill the process, before the call and after it. A hook goes on after it was begun, and has its own.
    fn points(self) -> Option<(Point, Point)> {
        Some(match self {
            Self::Provision => (Point::BeforeProvision, Point::AfterProvision),
            Self::Deprovision => (Point::BeforeDeprovision, Point::AfterDeprovision),
            Self::RoleChange => (Point::BeforeRoleChange, Point::AfterRoleChange),
            Self::Relabel => (Point::BeforeRelabel, Point::AfterRelabel),
            Self::Grow => (Point::BeforeGrow, Point::AfterGrow),
            Self::Adopt => (Point::BeforeAdopt, Point::AfterAdopt),
            Self::Confirm => (Point::BeforeConfirm, Point::AfterConfirm),
            Self::Ensure => (Point::BeforeEnsure, Point::AfterEnsure),
            Self::Release => (Point::BeforeRelease, Point::AfterRelease),
            Self::EnsureAddon => (Point::BeforeEnsureAddon, Point::AfterEnsureAddon),
            Self::RemoveAddon => (Point::BeforeRemoveAddon, Point::AfterRemoveAddon),
            Self::Hook | Self::Read | Self::ReadAddons => return None,
        })
    }
}

/// A call that is to be made.
pub struct Envelope<'a> {
    /// Who makes it.
    pub executor: &'a Executor,
    /// What it is about.
    pub kind: Kind,
    /// The platform that is called.
    pub platform: &'a Sym,
    /// Uid of the backend that is meant. Nothing is sent to another one.
    pub uid: &'a str,
    /// Cluster whose fence the call carries.
    pub owner: Uuid,
    /// Whether it may use the calls that are reserved for what is urgent.
    pub urgency: Urgency,
    /// Its place among the calls of the platform, if it was waited for. Otherwise it is waited for here.
    pub turn: Option<Turn>,
}

/// A place among the calls of a platform.
#[derive(Debug)]
pub enum Turn {
    /// Its turn has come.
    Come(OwnedSemaphorePermit),
    /// It waited for too long.
    Missed,
}

impl From<Option<OwnedSemaphorePermit>> for Turn {
    fn from(permit: Option<OwnedSemaphorePermit>) -> Self {
        permit.map_or(Self::Missed, Self::Come)
    }
}

impl<'a> Envelope<'a> {
    /// Waits for the turn of the call, and has it made. Everything in it is part of one span.
    ///
    /// # Errors
    /// `NotSent` if the platform cannot be called now, or not in time; whatever `make` says.
    pub async fn send<T, F>(self, make: impl FnOnce(Open<'a>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let traced = trace::call(self.kind.span(), self.platform);
        let answer = span::within(traced.as_ref(), async {
            let open = self.open().await?;
            // Boxed, as what every call awaits: each of its callers would hold it twice.
            Box::pin(make(open)).await
        })
        .await;
        trace::called(traced, answer.as_ref().err());
        answer
    }

    async fn open(self) -> Result<Open<'a>> {
        let Self {
            executor,
            kind,
            platform,
            uid,
            owner,
            urgency,
            turn,
        } = self;
        let registered = executor.platforms.require(platform)?;
        let backend = || registered.platform.identity();
        if backend().0 != uid {
            let message = format!("{platform} is another backend now");
            return Err(Error::new(Reason::NotSent, message));
        }
        let client = registered.platform.client();
        let client = client.ok_or_else(|| not_sent(platform))?;
        let permit = if kind == Kind::Hook {
            None
        } else {
            let turn = match turn {
                Some(turn) => turn,
                None => executor.wait(&registered, urgency).await,
            };
            match turn {
                Turn::Come(permit) => Some(permit),
                Turn::Missed => return Err(not_sent(platform)),
            }
        };
        // After the wait, in which the lead may have been lost.
        if !executor.platforms.may_act(owner) {
            let message = "the store has not answered for so long that another replica may lead";
            return Err(Error::new(Reason::NotSent, message));
        }
        Ok(Open {
            executor,
            kind,
            fence: executor.platforms.fence(owner),
            // After the wait: the platform may have been started again meanwhile.
            instance: backend().1,
            registered,
            client,
            permit,
        })
    }
}

/// A call whose turn has come.
pub struct Open<'a> {
    executor: &'a Executor,
    kind: Kind,
    /// The fence that a call which changes something carries.
    pub fence: wire::Fence,
    /// The start of the platform's server that is meant.
    pub instance: String,
    /// The platform that is called.
    pub registered: Arc<Registered>,
    client: PlatformClient,
    permit: Option<OwnedSemaphorePermit>,
}

impl Open<'_> {
    /// Makes the call, and takes in what its end says about the platform.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn call<T, F>(self, call: impl FnOnce(PlatformClient) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let points = self.kind.points();
        if let Some((before, _)) = points {
            self.executor.hooks.reach(before).await;
        }
        let answer = call(self.client).await;
        drop(self.permit);
        record_end(self.executor, &self.registered, answer.as_ref().err());
        if let Some((_, after)) = points {
            self.executor.hooks.reach(after).await;
        }
        answer
    }
}

/// A call that was never made: it made nothing, and may be repeated as it is.
pub(crate) fn not_sent(platform: &str) -> Error {
    Error::new(
        Reason::NotSent,
        format!("{platform} could not be called in time"),
    )
}

/// Takes in what the end of a call says about a platform.
fn record_end(executor: &Executor, registered: &Registered, error: Option<&Error>) {
    if registered
        .platform
        .record_call_result(error, executor.clock.now())
        == BreakerChange::Changed
    {
        executor
            .platforms
            .changed(&registered.platform.name, Urgency::Bulk);
    }
    if error.is_some_and(|error| error.reason() == Reason::PlatformRestarted) {
        registered.retry();
    }
}
