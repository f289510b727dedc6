//! The nodes of a request that remain to be created, and how long their creation may still start.

use std::{fmt, sync::Arc};

use drover_core::{Error, Result, secrecy::Hidden};
use drover_proto::platform::v1::{ProvisionRequest, Slot};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::{
    identity::Identity,
    templates::{Place, Rendered, Renderer},
};

/// The nodes of a request that remain to be created. The request has passed all checks of the common layer, so fields
/// that the protos describe as required are present.
pub struct Batch {
    /// The request.
    pub request: Arc<ProvisionRequest>,
    /// Fingerprint of the request, stored with the nodes.
    pub fingerprint: String,
    missing: Vec<usize>,
    renderer: Arc<Renderer>,
    lifetime: Arc<Lifetime>,
}

impl Batch {
    /// Creates a batch of the slots at these positions of the request, to be created while `lifetime` lasts.
    #[must_use]
    pub fn new(
        request: Arc<ProvisionRequest>,
        fingerprint: String,
        missing: Vec<usize>,
        renderer: Arc<Renderer>,
        lifetime: Arc<Lifetime>,
    ) -> Self {
        Self {
            request,
            fingerprint,
            missing,
            renderer,
            lifetime,
        }
    }

    /// The slots to create, without those whose node already exists.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = &Slot> {
        self.missing
            .iter()
            .map(|&position| &self.request.slots[position])
    }

    /// The identity to store with the node of a slot.
    #[must_use]
    pub fn identity(&self, slot: &Slot) -> Identity {
        Identity::of(&self.request, slot, &self.fingerprint)
    }

    /// Refuses a new group that asks for more than its template provides for.
    pub(crate) fn check_limits(&self) -> Result<()> {
        self.renderer.check_limits(&self.request)
    }

    /// Names of the nodes' ports, for drivers that allocate them.
    #[must_use]
    pub fn ports(&self) -> &[String] {
        self.renderer.ports()
    }

    /// Renders the template and the user data of a slot at its place.
    ///
    /// # Errors
    ///
    /// `Precondition` if the template does not support the values of the request.
    pub async fn render(&self, slot: &Slot, place: Place) -> Result<Rendered> {
        let mut rendered = self.render_all([(slot, place)]).await;
        rendered
            .pop()
            .unwrap_or_else(|| Err(Error::internal("nothing was rendered")))
    }

    /// Like [`Batch::render`] for several slots, in their order.
    pub async fn render_all<'a>(
        &self,
        slots: impl IntoIterator<Item = (&'a Slot, Place)>,
    ) -> Vec<Result<Rendered>> {
        let slots = slots.into_iter();
        let slots = slots.map(|(slot, place)| (slot.clone(), place)).collect();
        let wanted = || self.request.validate_only || self.may_start();
        self.renderer.render_all(slots, wanted).await
    }

    /// Content that messages about the request must not repeat.
    #[must_use]
    pub fn hidden(&self) -> &Hidden {
        self.renderer.hidden()
    }

    /// Whether another create may be started: a caller is waiting and its deadline has not passed.
    #[must_use]
    pub fn may_start(&self) -> bool {
        self.lifetime.lasts()
    }

    /// The lifetime of the batch, during which creates may be started.
    #[must_use]
    pub fn lifetime(&self) -> Arc<Lifetime> {
        Arc::clone(&self.lifetime)
    }

    /// Returns once no further create may be started.
    pub async fn ended(&self) {
        self.lifetime.ended().await;
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("request_id", &self.request.request_id)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

/// The period during which creates may be started: as long as one of the waiting callers is connected and within its
/// deadline.
pub struct Lifetime {
    // Deadlines of the waiting callers; `None` if there is no deadline.
    callers: Mutex<Vec<(u64, Option<Instant>)>>,
    changed: watch::Sender<u64>,
}

impl Lifetime {
    /// Creates a lifetime without callers.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            callers: Mutex::new(Vec::new()),
            changed: watch::Sender::new(0),
        })
    }

    /// Adds a caller that waits until its deadline, or until the guard is dropped.
    #[must_use]
    pub fn join(self: &Arc<Self>, deadline: Option<Instant>) -> Caller {
        let mut callers = self.callers.lock();
        let mut id = 0;
        self.changed.send_modify(|last| {
            *last += 1;
            id = *last;
        });
        callers.push((id, deadline));
        Caller {
            lifetime: Arc::clone(self),
            id,
        }
    }

    /// Whether any caller is still waiting.
    #[must_use]
    pub fn lasts(&self) -> bool {
        let now = Instant::now();
        self.callers
            .lock()
            .iter()
            .any(|(_, deadline)| deadline.is_none_or(|deadline| now < deadline))
    }

    async fn ended(&self) {
        let mut changed = self.changed.subscribe();
        loop {
            let latest = {
                let callers = self.callers.lock();
                if callers.is_empty() {
                    return;
                }
                // `None` sorts first and means that a caller waits indefinitely.
                if callers.iter().any(|(_, deadline)| deadline.is_none()) {
                    None
                } else {
                    callers.iter().filter_map(|(_, deadline)| *deadline).max()
                }
            };
            let expired = async {
                match latest {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expired => if !self.lasts() { return },
                // Cannot fail, because the sender lives in `self`.
                _ = changed.changed() => {}
            }
        }
    }
}

/// A waiting caller. Dropping it means that it is gone.
pub struct Caller {
    lifetime: Arc<Lifetime>,
    id: u64,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.lifetime
            .callers
            .lock()
            .retain(|(id, _)| *id != self.id);
        self.lifetime.changed.send_modify(|last| *last += 1);
    }
}
