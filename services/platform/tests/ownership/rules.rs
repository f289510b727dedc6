//! What may be begun, by the rules or without one of them.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use drover_proto::platform::v1 as wire;

use super::{
    Call, Lead, Mutant, Phase, Plan, Record, Stage, State, World,
    fences::{Fences, UnderWay},
};

/// An answer of the platform to Fence.
pub(super) enum Raised {
    Refused,
    /// The epoch is known from now on; older calls are under way.
    Waits,
    Answered,
}

fn of(epoch: u8) -> wire::Fence {
    wire::Fence {
        store_id: "store".to_owned(),
        shard: 0,
        epoch: epoch.into(),
    }
}

/// The platform's own table in this state, with its calls under way.
fn table(state: &State) -> (Arc<Fences>, Vec<UnderWay>) {
    let fences = Fences::new();
    let mut epochs: Vec<u8> = state
        .calls
        .iter()
        .filter(|it| it.stage >= Stage::Accepted && it.start == state.start)
        .map(|it| it.epoch)
        .collect();
    epochs.sort_unstable();
    let begun = epochs.into_iter().chain([state.known]);
    let mut under_way: Vec<UnderWay> = begun.filter_map(|it| fences.begin(&of(it)).ok()).collect();
    // Whoever raised the epoch to what is known need not be under way any more.
    under_way.pop();
    (fences, under_way)
}

/// The highest epoch that a table knows.
fn known(fences: &Fences) -> u8 {
    let is_known = |it: &u8| fences.check(&of(*it)).is_ok();
    (0..u8::MAX).find(is_known).unwrap_or(u8::MAX)
}

impl World {
    /// A call arrives that changes something. Whether it is accepted.
    pub(super) fn accepts(&self, state: &mut State, call: &Call) -> bool {
        if call.start != state.start && !self.is(Mutant::AnyStart) {
            return false;
        }
        if !self.fences {
            return true;
        }
        if self.is(Mutant::EpochUnchecked) {
            state.known = state.known.max(call.epoch);
            return true;
        }
        let (fences, _under_way) = table(state);
        let begun = fences.begin(&of(call.epoch)).is_ok();
        state.known = known(&fences);
        begun
    }

    /// Fence arrives.
    pub(super) fn raise(&self, state: &mut State, epoch: u8) -> Raised {
        let (fences, mut under_way) = table(state);
        if self.is(Mutant::FenceDoesNotWait) {
            under_way.clear();
        }
        let _runtime = self.runtime.enter();
        let fence = of(epoch);
        let raised = pin!(fences.raise(&fence)).poll(&mut Context::from_waker(Waker::noop()));
        state.known = known(&fences);
        match raised {
            Poll::Ready(Err(_)) => Raised::Refused,
            Poll::Pending => Raised::Waits,
            Poll::Ready(Ok(())) => Raised::Answered,
        }
    }

    /// Whether the platform has ended the calls of earlier owners (`PlatformView::fenced`).
    fn is_fenced(&self, lead: &Lead) -> bool {
        self.fences && (lead.fenced == lead.met || self.is(Mutant::NoFence))
    }

    /// Whether calls may be planned (`PlatformView::callable`): the first look at a platform comes after Fence.
    pub(super) fn is_callable(&self, lead: &Lead) -> bool {
        lead.met.is_some() && (!self.fences || self.is_fenced(lead))
    }

    /// Whether a call whose turn has come is begun (`Platforms::may_act`).
    pub(super) fn may_act(&self, lead: &Lead) -> bool {
        let goes_on = lead.phase == Phase::Acts || self.is(Mutant::GoesOn);
        goes_on && (lead.in_touch || self.is(Mutant::ActsOutOfTouch))
    }

    /// Whether nothing can be made for a request any more (`Planner::close`, and the absence that is proven after it).
    pub(super) fn is_settled(
        &self,
        state: &State,
        lead: &Lead,
        cluster: u8,
        request: u8,
        by: u8,
    ) -> bool {
        let own = by == lead.epoch;
        let ended = self.is_fenced(lead) && (!own || self.is(Mutant::OwnCallsEnd));
        let unmet = !own && self.is(Mutant::DeadlineUnmet);
        // Whoever looks at the platform sees the nodes that are there, and knows how long a create may take
        // (`Limits::max_creation_time`).
        let creates = |it: &Call| it.request == request && it.stage == Stage::Creates;
        lead.met == Some(state.start)
            && (ended || unmet || state.overdue[usize::from(cluster)])
            && !state.calls.iter().any(creates)
            && !state.nodes.iter().any(|it| it.request == request)
    }

    /// The step that an owner plans, and whether a call is part of it.
    pub(super) fn plan(
        &self,
        state: &mut State,
        lead: &Lead,
        cluster: u8,
        plan: Plan,
    ) -> Option<(Record, bool)> {
        let record = state.records[usize::from(cluster)];
        let callable = self.is_callable(lead) && state.made_calls < self.calls;
        let by = lead.epoch;
        match (plan, record) {
            (Plan::Ask, Record::Nothing) if callable => {
                let request = state.new_request(self)?;
                Some((Record::Asked { request, by }, true))
            }
            (Plan::Repeat, Record::Asked { request, .. }) if callable => {
                let own = |it: &Call| it.request == request && it.epoch == by;
                if state.calls.iter().any(own) {
                    return None;
                }
                let request = match self.is(Mutant::NewRequest) {
                    true => state.new_request(self)?,
                    false => request,
                };
                Some((Record::Asked { request, by }, true))
            }
            (Plan::Replace, Record::Asked { request, by: last }) if callable => {
                if !self.is_settled(state, lead, cluster, request, last) {
                    return None;
                }
                let request = state.new_request(self)?;
                Some((Record::Asked { request, by }, true))
            }
            (Plan::Note, Record::Asked { request, .. }) if self.is_callable(lead) => {
                let made = state.nodes.iter().any(|it| it.request == request);
                made.then_some((Record::Made { request, by }, false))
            }
            _ => None,
        }
    }
}
