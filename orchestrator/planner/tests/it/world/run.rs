//! Pass after pass, and what happens between them.

use std::time::Duration;

use drover_core::Millis;
use drover_planner::{Call, Op, Plan, apply};

use super::{Crash, World};

/// Consecutive passes without an event or a wake-up from which on the planner counts as looping.
const MAX_ROUNDS: usize = 200;

impl World {
    /// One pass: plans, checks, makes the plan durable, makes its calls. Returns the plan.
    pub fn pass(&mut self) -> Plan {
        self.passes += 1;
        let planned = self.plan_at(self.now, false);
        let mut explained = self.plan_at(self.now, true);
        explained.report.clear();
        explained.renewals.clear();
        explained.outlook.clear();
        assert_eq!(planned, explained, "a plan is a function of its input");
        self.trace(&planned);
        self.check(&planned);
        self.check_below(&planned);
        self.check_addons(&planned);
        self.counter += planned.ops.len() as u64;
        let crash = self.crash.take();
        if crash == Some(Crash::BeforeCommit) {
            self.restart();
            return planned;
        }
        self.note_storage(&planned);
        if !planned.ops.is_empty() {
            self.durable.next_sequence = self.state.next_sequence;
            self.durable.skipped = self.state.skipped.clone();
        }
        apply(&mut self.durable, &planned.ops, self.now);
        apply(&mut self.state, &planned.ops, self.now);
        for op in &planned.ops {
            if let Op::Request { .. } = op {
                self.requested.push(self.now);
            }
        }
        self.finished |= planned.finished;
        if crash == Some(Crash::BeforeCalls) {
            self.restart();
            return planned;
        }
        for call in &planned.calls {
            self.call(call);
        }
        if crash == Some(Crash::AfterCalls) {
            self.restart();
        }
        planned
    }

    /// Prints what happens, for the analysis of a failing seed.
    fn trace(&self, planned: &Plan) {
        if std::env::var_os("PLANNER_TRACE").is_none() || planned.is_empty() {
            return;
        }
        eprintln!("at {}, crash {:?}", self.now - 1_000_000_000, self.crash);
        for op in &planned.ops {
            match op {
                Op::Request { nodes, request, .. } => {
                    let slots: Vec<_> = nodes.iter().map(|n| (n.slot, n.ordinal)).collect();
                    eprintln!("  request {} {} {slots:?}", request.id, request.group);
                }
                Op::Condition { .. }
                | Op::Own { .. }
                | Op::Adopted { .. }
                | Op::Observed { .. } => {}
                _ => eprintln!("  {op:?}"),
            }
        }
        for call in &planned.calls {
            eprintln!("  {call:?}");
        }
    }

    fn call(&mut self, call: &Call) {
        match call {
            Call::Provision { request, deadline } => self.provision(*request, *deadline),
            Call::Deprovision { slot } => self.deprovision(*slot),
            Call::RoleChange { slot } => self.change_role(*slot),
            Call::Relabel { slot } => self.relabel(*slot),
            Call::Grow { slot } => self.grow(*slot),
            Call::Sole { slot, allow } => self.change_sole(*slot, *allow),
            Call::Drain { slot, until } => self.run_hook(*slot, *until),
            Call::Adopt { slot } => self.adopt(*slot),
            Call::Confirm { platform } => {
                let confirm = self.state.confirms.or_default(platform.clone());
                assert!(!confirm.in_flight, "one complete read at a time");
                confirm.in_flight = true;
                self.begin_read(platform);
            }
            Call::Resource { key, asked } => self.ask(key, *asked),
        }
    }

    /// Runs until nothing is left to happen or `until` is reached. Returns whether nothing is left.
    pub fn run_until(&mut self, until: Millis) -> bool {
        let mut rounds = 0;
        loop {
            let planned = self.pass();
            if self.finished {
                return true;
            }
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "goes round in circles: {planned:?}");
            if planned.again {
                continue;
            }
            let event = self.queue.keys().next().map(|(at, _)| *at);
            let Some(next) = planned.wake.into_iter().chain(event).min() else {
                return true;
            };
            if next > until {
                self.now = until;
                return false;
            }
            if next > self.now + 1 {
                rounds = 0;
            }
            self.now = self.now.max(next);
            while let Some(entry) = self.queue.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let event = entry.remove();
                self.happen(event);
            }
        }
    }

    /// Whether nothing is left to do or to happen.
    pub fn is_quiet(&self) -> bool {
        let planned = self.plan_at(self.now, false);
        self.queue.is_empty() && planned.is_empty() && planned.wake.is_none()
    }

    /// One pass, then moves on to the next event.
    pub fn run_one(&mut self) {
        let planned = self.pass();
        if self.finished || planned.again {
            return;
        }
        let event = self.queue.keys().next().map(|(at, _)| *at);
        let next = planned.wake.into_iter().chain(event).min();
        self.now = self.now.max(next.unwrap());
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let event = entry.remove();
            self.happen(event);
        }
    }

    pub fn run_for(&mut self, span: Duration) -> bool {
        self.run_until(self.now + span.as_millis() as Millis)
    }

    /// Runs until nothing is left to happen; a day is enough for anything.
    pub fn settle(&mut self) {
        assert!(
            self.run_for(Duration::from_secs(24 * 3600)),
            "still busy after a day: {:?}",
            self.plan()
        );
    }
}
