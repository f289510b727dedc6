//! What each event does to the replicas, the store and the platform.

use super::{
    Call, EPOCHS, Lead, Mutant, Node, Phase, Plan, REPLICAS, Record, Replica, SLOTS, Stage, State,
    Txn, WRITES, World, rules::Raised,
};

impl State {
    pub(super) fn lead(&self, replica: u8) -> Option<&Lead> {
        match &self.replicas[usize::from(replica)] {
            Replica::Leads(lead) => Some(lead),
            Replica::StandsBy | Replica::Crashed => None,
        }
    }

    fn lead_mut(&mut self, replica: u8) -> Option<&mut Lead> {
        match &mut self.replicas[usize::from(replica)] {
            Replica::Leads(lead) => Some(lead),
            Replica::StandsBy | Replica::Crashed => None,
        }
    }

    /// Whether the key of the shard is that of this claim.
    pub(super) fn owns(&self, replica: u8) -> bool {
        let claim = self.lead(replica).map(|lead| (replica, lead.epoch));
        claim.is_some() && self.owner == claim
    }

    fn is_wrong(&mut self, world: &World, what: &'static str) {
        if world.only.is_none_or(|only| only == what) {
            self.wrong = Some(what);
        }
    }

    pub(super) fn new_request(&mut self, world: &World) -> Option<u8> {
        (self.requests < world.requests).then(|| {
            self.requests += 1;
            self.requests
        })
    }

    /// `Store::take_all`: the key is absent and the epoch as it was read.
    pub(super) fn claim(&mut self, world: &World, replica: u8) -> Option<()> {
        if self.owner.is_some() || self.lead(replica).is_some() {
            return None;
        }
        let same = world.is(Mutant::SameEpoch) && self.epoch > 0;
        self.epoch += u8::from(!same);
        self.claims += 1;
        self.owner = Some((replica, self.epoch));
        self.replicas[usize::from(replica)] = Replica::Leads(Lead {
            epoch: self.epoch,
            phase: Phase::Acts,
            in_touch: true,
            met: None,
            fenced: None,
        });
        Some(())
    }

    pub(super) fn lease_ends(&mut self, world: &World) -> Option<()> {
        let (replica, epoch) = self.owner?;
        let counts_on_it = |lead: &Lead| lead.epoch == epoch && lead.in_touch;
        if !world.early && self.lead(replica).is_some_and(counts_on_it) {
            return None;
        }
        self.owner = None;
        Some(())
    }

    /// No renewal has been answered for too long, or one is again.
    pub(super) fn loses_touch(&mut self, replica: u8) -> Option<()> {
        self.lead_mut(replica)?.in_touch = false;
        Some(())
    }

    pub(super) fn finds_touch(&mut self, replica: u8) -> Option<()> {
        let owns = self.owns(replica);
        self.lead_mut(replica).filter(|_| owns)?.in_touch = true;
        Some(())
    }

    /// A lead is over, and with it whatever has not been begun.
    pub(super) fn ends(&mut self, world: &World, replica: u8, then: Replica) {
        self.replicas[usize::from(replica)] = then;
        if !world.is(Mutant::EpochOfTheMoment) {
            self.calls
                .retain(|it| it.replica != replica || it.stage != Stage::Waits);
        }
    }

    pub(super) fn hears(&mut self, world: &World, replica: u8) -> Option<()> {
        self.lead(replica)?;
        if self.owns(replica) {
            return None;
        }
        self.ends(world, replica, Replica::StandsBy);
        Some(())
    }

    pub(super) fn crash(&mut self, replica: u8) -> Option<()> {
        self.lead(replica)?;
        self.replicas[usize::from(replica)] = Replica::Crashed;
        self.calls
            .retain(|it| it.replica != replica || it.stage != Stage::Waits);
        self.crashes += 1;
        Some(())
    }

    /// `Store::release_all` before its transaction: nothing is begun from then on.
    pub(super) fn stop(&mut self, replica: u8) -> Option<()> {
        let lead = self
            .lead_mut(replica)
            .filter(|lead| lead.phase == Phase::Acts)?;
        lead.phase = Phase::Stops;
        self.hand_overs += 1;
        Some(())
    }

    /// Its transaction, which deletes the key of this claim and no other.
    pub(super) fn hand_over(&mut self, replica: u8) -> Option<()> {
        let owns = self.owns(replica);
        let epoch = self
            .lead(replica)
            .filter(|lead| lead.phase == Phase::Stops && owns)?
            .epoch;
        let under_way = |it: &Call| it.epoch == epoch && it.stage != Stage::Waits;
        let busy = self.calls.iter().any(under_way);
        self.owner = None;
        self.lead_mut(replica)?.phase = Phase::HandedOver { busy };
        Some(())
    }

    /// `Store::hand_over`: its transaction writes the other replica into the key, under the lease of that one. Whether its
    /// process still lives does not matter to the store.
    pub(super) fn give(&mut self, world: &World, replica: u8) -> Option<()> {
        self.hand_over(replica)?;
        let other = (replica + 1) % REPLICAS;
        let is_dead = self.replicas[usize::from(other)] == Replica::Crashed;
        self.claim(world, other)?;
        self.given = Some(self.epoch);
        if is_dead {
            self.replicas[usize::from(other)] = Replica::Crashed;
        }
        Some(())
    }

    /// `watch::connection` reads which start of the server it is.
    pub(super) fn meet(&mut self, world: &World, replica: u8) -> Option<()> {
        let (start, owns) = (self.start, self.owns(replica));
        let follows = |lead: &&mut Lead| lead.phase == Phase::Acts || world.is(Mutant::GoesOn);
        let lead = self.lead_mut(replica).filter(follows)?;
        if lead.met == Some(start) {
            return None;
        }
        if !owns && world.looks {
            self.ends(world, replica, Replica::StandsBy);
            return Some(());
        }
        lead.met = Some(start);
        Some(())
    }

    pub(super) fn fence(&mut self, world: &World, replica: u8) -> Option<()> {
        let lead = self
            .lead(replica)
            .filter(|lead| lead.phase == Phase::Acts)?;
        let missing = lead.met == Some(self.start) && lead.fenced != lead.met;
        if !world.fences || !missing || world.is(Mutant::NoFence) {
            return None;
        }
        let epoch = lead.epoch;
        match world.raise(self, epoch) {
            Raised::Refused | Raised::Waits => {}
            Raised::Answered => {
                let lead = self.lead_mut(replica)?;
                lead.fenced = lead.met;
            }
        }
        Some(())
    }

    /// An owner plans a step of a cluster, of which one is under way at a time. Whoever owns the shard no more may do so as
    /// well; what it writes then is refused like what was under way before.
    pub(super) fn plan(
        &mut self,
        world: &World,
        replica: u8,
        cluster: u8,
        plan: Plan,
    ) -> Option<()> {
        let lead = self.lead(replica)?.clone();
        let busy = |it: &Txn| (it.epoch, it.replica, it.cluster) == (lead.epoch, replica, cluster);
        if !self.owns(replica) || !world.may_act(&lead) || self.txns.iter().any(busy) {
            return None;
        }
        let from = self.records[usize::from(cluster)];
        let (to, calls) = world.plan(self, &lead, cluster, plan)?;
        self.made_calls += u8::from(calls);
        let mut txn = Txn {
            replica,
            epoch: lead.epoch,
            cluster,
            from,
            to,
            calls,
        };
        if world.is(Mutant::CallsFirst) {
            self.dispatch(&txn);
            txn.calls = false;
        }
        self.txns.push(txn);
        Some(())
    }

    fn dispatch(&mut self, txn: &Txn) {
        if let Record::Asked { request, .. } = txn.to
            && txn.calls
        {
            self.calls.push(Call {
                stage: Stage::Waits,
                replica: txn.replica,
                epoch: txn.epoch,
                cluster: txn.cluster,
                request,
                start: 0,
            });
        }
    }

    /// A transaction reaches the store, or is refused there.
    pub(super) fn apply(&mut self, world: &World, txn: &Txn) -> Option<()> {
        let at = self.txns.iter().position(|it| it == txn)?;
        self.txns.remove(at);
        let owns = self.owner == Some((txn.replica, txn.epoch));
        let leads = self
            .lead(txn.replica)
            .is_some_and(|lead| lead.epoch == txn.epoch);
        if !owns && !world.is(Mutant::Unfenced) {
            if leads {
                self.ends(world, txn.replica, Replica::StandsBy);
            }
            return Some(());
        }
        let cluster = usize::from(txn.cluster);
        if self.records[cluster] != txn.from {
            return Some(());
        }
        if !owns {
            self.is_wrong(world, WRITES);
        }
        self.records[cluster] = txn.to;
        self.overdue[cluster] = false;
        if leads {
            self.dispatch(txn);
        }
        Some(())
    }

    /// The stored deadline of the last call of a cluster passes. The process that sent it sees to it that it is over by then,
    /// unless it stands still.
    pub(super) fn deadline_passes(&mut self, world: &World, cluster: u8) -> Option<()> {
        let Record::Asked { request, .. } = self.records[usize::from(cluster)] else {
            return None;
        };
        let owner = self.owner.map(|(_, epoch)| epoch);
        let lasts = |it: &Call| {
            let own = owner == Some(it.epoch) && !world.is(Mutant::DeadlineIgnored);
            it.request == request && it.stage != Stage::Creates && (own || world.punctual)
        };
        if self.overdue[usize::from(cluster)] || self.calls.iter().any(lasts) {
            return None;
        }
        self.overdue[usize::from(cluster)] = true;
        Some(())
    }

    fn take(&mut self, call: &Call) -> Option<Call> {
        let at = self.calls.iter().position(|it| it == call)?;
        Some(self.calls.remove(at))
    }

    /// `Envelope::open`: the turn of a call has come.
    pub(super) fn send(&mut self, world: &World, call: &Call) -> Option<()> {
        let lead = self.lead(call.replica)?.clone();
        let epoch = match world.is(Mutant::EpochOfTheMoment) {
            true => lead.epoch,
            false => call.epoch,
        };
        if lead.epoch != epoch || !world.may_act(&lead) {
            return None;
        }
        let start = lead.met?;
        let call = self.take(call)?;
        self.calls.push(Call {
            stage: Stage::Sent,
            epoch,
            start,
            ..call
        });
        Some(())
    }

    pub(super) fn arrive(&mut self, world: &World, call: &Call) -> Option<()> {
        let call = self.take(call)?;
        if !world.accepts(self, &call) {
            return Some(());
        }
        if world.fences {
            if call.epoch < self.accepted {
                self.is_wrong(world, EPOCHS);
            }
            self.accepted = self.accepted.max(call.epoch);
        }
        self.calls.push(Call {
            stage: Stage::Accepted,
            start: self.start,
            ..call
        });
        Some(())
    }

    pub(super) fn create(&mut self, call: &Call) -> Option<()> {
        let call = self.take(call)?;
        self.calls.push(Call {
            stage: Stage::Creates,
            ..call
        });
        Some(())
    }

    /// A create ends with its node, or with the one that its request has.
    pub(super) fn finish(&mut self, world: &World, call: &Call) -> Option<()> {
        let Call {
            cluster,
            request,
            epoch,
            ..
        } = self.take(call)?;
        if self.nodes.iter().any(|it| it.request == request) {
            return Some(());
        }
        if self.nodes.iter().any(|it| it.cluster == cluster) {
            self.is_wrong(world, SLOTS);
        }
        self.nodes.push(Node {
            cluster,
            request,
            by: epoch,
        });
        Some(())
    }

    /// A call is given up, lost on its way, or comes to nothing.
    pub(super) fn lose(&mut self, call: &Call) -> Option<()> {
        self.take(call).map(drop)
    }

    /// The platform's server is started again. It has forgotten its fences; what the backend was asked for goes on.
    pub(super) fn restart(&mut self) -> Option<()> {
        self.start += 1;
        self.known = 0;
        self.calls.retain(|it| it.stage != Stage::Accepted);
        Some(())
    }
}
