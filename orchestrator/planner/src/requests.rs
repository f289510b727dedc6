//! Requests: taking in what was answered, closing, sending again, counting failures.

use drover_core::{
    Class, Error, Millis, Node, NodeState, Reason,
    node::{Answer, Outcome, Request},
    spec::Group,
};
use uuid::Uuid;

use crate::{
    BackOff, BackOffKey, BackOffKind, Call, ConditionKey, ConditionKind, Limits, NO_GROUP, Op,
    Planner, SLOW_CADENCE, Subject,
};

/// Wait after the second failure in a row; it doubles with each further one. The first is retried at once.
const FIRST_BACK_OFF: Millis = 2_000;
/// Wait after the backend refused the platform's credentials; people have to act, and may do so at any time.
const CREDENTIALS_BACK_OFF: Millis = 60_000;
/// First wait after a platform had no capacity; it doubles.
const CAPACITY_FIRST: Millis = 5_000;
/// Longest wait after a platform had no capacity.
const CAPACITY_MOST: Millis = 300_000;
/// Longest wait before a request of unknown outcome is sent again.
const MAX_RESEND: Millis = 60_000;
/// First wait before a request of unknown outcome is sent again, where the platform recognises it at once.
const FIRST_RESEND: Millis = 200;
/// How long a platform may take to say by itself that a node is gone, before it is read completely to find out.
const REMOVAL_PATIENCE: Millis = 2_000;
/// How long after its visibility delay a node may still come up in a list before it is looked for: a heartbeat or two.
const LISTING_PATIENCE: Millis = 5_000;
/// How often a node is looked for that complete reads lack and whose agent answers.
const GHOST_INTERVAL: Millis = 10_000;
/// Wait before a call is repeated that the platform refused for being out of date.
const STALE_RETRY: Millis = 100;

impl Planner<'_> {
    /// Takes in what was answered since the last plan.
    pub(crate) fn take_answers(&mut self) {
        let answered: Vec<&Request> = self
            .state
            .requests
            .values()
            .filter(|r| r.answer.is_some())
            .collect();
        for request in answered {
            if self.full() {
                return;
            }
            if let Some(answer) = request.answer.as_ref().filter(|answer| !answer.taken) {
                match &answer.outcome {
                    Ok(outcomes) => self.take_outcomes(request, answer, outcomes),
                    Err(error) => self.take_error(request, answer, error),
                }
            }
        }
    }

    fn take_outcomes(&mut self, request: &Request, answer: &Answer, outcomes: &[Outcome]) {
        let unknown = outcomes
            .iter()
            .any(|outcome| matches!(outcome, Outcome::Unknown(_)));
        let limits = self.limits(request);
        let until = if unknown {
            answer.at + limits.max_creation_time
        } else {
            answer.at
        };
        self.close_settled(request.id, until, answer.at);
        let out = |outcome: &Outcome| matches!(outcome, Outcome::Failed(error) if error.class() == Class::NoCapacity);
        let whole = !outcomes.iter().any(out);
        for at in 0..self.state.nodes.len() {
            let node = &self.state.nodes[at];
            if node.request != request.id {
                continue;
            }
            match outcomes.get(node.index as usize) {
                Some(Outcome::Made(id)) => {
                    self.end_refusal(request, node, whole);
                    if node.node_id.is_none() {
                        self.op(Op::Learn {
                            slot: node.slot,
                            node_id: id.clone(),
                        });
                    }
                }
                Some(Outcome::Failed(error)) => self.drop_unmade(at, request, error),
                Some(Outcome::Unknown(_)) | None => {}
            }
        }
    }

    /// What a platform accepts it does not refuse any more.
    fn end_refusal(&mut self, request: &Request, node: &Node, whole: bool) {
        let key = BackOffKey::of(&request.group, &request.spec_hash, &request.platform);
        if self
            .back_off(&key)
            .is_some_and(|b| b.kind != BackOffKind::Failure)
        {
            self.set_back_off(key.clone(), None);
        }
        let host = (!node.host.is_empty()).then(|| Subject::Host(node.host.clone()));
        // Where it made some and had none for others, it is out for now.
        for subject in whole.then_some(Subject::Capacity).into_iter().chain(host) {
            let key = key.clone().about(subject);
            if self.back_off(&key).is_some() {
                self.set_back_off(key, None);
            }
        }
    }

    fn take_error(&mut self, request: &Request, answer: &Answer, error: &Error) {
        match error.class() {
            class @ (Class::Cannot | Class::NoCapacity | Class::Credentials) => {
                // The answered attempt made nothing. If that holds of all, the slots never were.
                if request.made_nothing + 1 >= request.attempts {
                    self.close_settled(request.id, answer.at, answer.at);
                    for at in 0..self.state.nodes.len() {
                        if self.state.nodes[at].request == request.id {
                            self.drop_unmade(at, request, error);
                        }
                    }
                } else {
                    let limits = self.limits(request);
                    self.close(
                        request.id,
                        request.deadline.max(answer.at) + limits.max_creation_time,
                    );
                    for node in &self.state.nodes {
                        if node.request == request.id {
                            self.fail(request, class, error, node);
                        }
                    }
                }
            }
            Class::Stale => self.op(Op::MadeNothing {
                request: request.id,
            }),
            Class::Reused => {
                let limits = self.limits(request);
                self.close(
                    request.id,
                    request.deadline.max(answer.at) + limits.max_creation_time,
                );
            }
            Class::Unknown => {}
        }
    }

    /// Forgets a slot that is known never to be made.
    fn drop_unmade(&mut self, at: usize, request: &Request, error: &Error) {
        let node = &self.state.nodes[at];
        let class = error.class();
        let reason = match class {
            Class::NoCapacity => "NoCapacity",
            Class::Cannot | Class::Credentials => "Rejected",
            Class::Stale | Class::Reused | Class::Unknown => "PlatformFailed",
        };
        self.op(Op::Forget {
            slot: node.slot,
            reason,
            message: error.message().into(),
            lost: false,
        });
        self.marks[at].forgotten = true;
        self.fail(request, class, error, node);
    }

    /// Counts a failure: of one machine where the platform says so of it, otherwise of the whole choice.
    fn fail(&mut self, request: &Request, class: Class, error: &Error, node: &Node) {
        let kind = match class {
            Class::NoCapacity => BackOffKind::NoCapacity,
            Class::Cannot => BackOffKind::Rejected,
            Class::Credentials => BackOffKind::Credentials,
            Class::Stale | Class::Reused | Class::Unknown => BackOffKind::Failure,
        };
        let key = BackOffKey::of(&request.group, &request.spec_hash, &request.platform);
        let retries = self
            .group_of(request)
            .map_or(3, |group| self.input.groups[group].remediation.max_retries);
        let about_host = matches!(error.reason(), Reason::HostNotFound | Reason::HostClaimed);
        let host = &node.host;
        let subject = if about_host && !host.is_empty() {
            // An error of the whole call may be about another machine of it.
            let named = error.resource().map_or("", |(_, named)| named);
            let mut nodes = self.state.nodes.iter();
            if *named != **host && nodes.any(|n| n.request == request.id && *n.host == *named) {
                return;
            }
            Subject::Host(host.clone())
        } else if kind == BackOffKind::NoCapacity {
            Subject::Capacity
        } else {
            Subject::Nodes
        };
        let wait = error.retry_after().map(crate::observe::millis);
        self.count(key.about(subject), kind, retries, error.message(), wait);
    }

    /// Counts the end of a node that did not live long enough to show that such nodes work.
    pub(crate) fn count_failure(
        &mut self,
        node: &Node,
        group: Option<&Group>,
        kind: BackOffKind,
        message: &str,
    ) {
        let Some(group) = group else { return };
        if node.stable || node.removal.is_some() || self.ran_stably(node, Some(group)) {
            return;
        }
        let key = BackOffKey::of(&node.group, &node.spec_hash, &node.platform);
        if self
            .back_off(&key)
            .is_some_and(|b| node.create_time < b.last)
        {
            // It was asked for before the last failure was known: it says nothing new.
            return;
        }
        self.count(key, kind, group.remediation.max_retries, message, None);
    }

    fn group_of(&self, request: &Request) -> Option<usize> {
        self.paths.get(&*request.group).map(|&at| usize::from(at))
    }

    fn count(
        &mut self,
        key: BackOffKey,
        kind: BackOffKind,
        retries: u32,
        message: &str,
        asked: Option<Millis>,
    ) {
        if self.failed.contains(&key) {
            return;
        }
        self.failed.push(key.clone());
        let now = self.input.now;
        let failures = self
            .back_off(&key)
            .map_or(0, |b| b.failures)
            .saturating_add(1);
        let wait = match kind {
            BackOffKind::Rejected => SLOW_CADENCE,
            BackOffKind::Credentials => CREDENTIALS_BACK_OFF,
            BackOffKind::NoCapacity => asked
                .unwrap_or(CAPACITY_FIRST << (failures - 1).min(16))
                .min(CAPACITY_MOST),
            BackOffKind::Failure if failures >= retries => SLOW_CADENCE,
            BackOffKind::Failure if failures == 1 => 0,
            BackOffKind::Failure => (FIRST_BACK_OFF << (failures - 2).min(20)).min(SLOW_CADENCE),
        };
        let etag = self
            .input
            .platforms
            .get(&key.platform)
            .map(|p| p.etag.clone())
            .unwrap_or_default();
        let to = BackOff {
            kind,
            failures,
            last: now,
            next: now + wait,
            etag,
            message: message.into(),
        };
        self.set_back_off(key, Some(to));
    }

    fn limits(&self, request: &Request) -> Limits {
        self.input
            .platforms
            .get(&request.platform)
            .map(|view| view.limits)
            .unwrap_or_default()
    }

    /// Closes a request of which calls may still be under way.
    pub(crate) fn close(&mut self, request: Uuid, maybe_until: Millis) {
        let now = self.input.now;
        let Some(open) = self.state.requests.get(&request) else {
            return;
        };
        let view = self.input.platforms.get(&open.platform);
        if let Some(view) =
            view.filter(|view| view.fenced && !open.sent && view.sees(&open.platform_uid))
        {
            // Only earlier processes sent it, and their calls have ended: what they began may still come into being.
            self.close_settled(request, now + view.limits.max_creation_time, now);
            return;
        }
        let settled = open.deadline.max(now);
        self.close_settled(request, maybe_until, settled);
    }

    fn close_settled(&mut self, request: Uuid, maybe_until: Millis, settled: Millis) {
        if self.is_open(request) {
            self.closed.push(request);
            self.op(Op::Close {
                request,
                maybe_until: maybe_until.max(1),
                settled: settled.max(1),
            });
        }
    }

    /// Closes requests whose nodes nobody wants any more, and those that a platform will soon have forgotten.
    pub(crate) fn settle_requests(&mut self) {
        let open: Vec<&Request> = self
            .state
            .requests
            .values()
            .filter(|r| self.is_open(r.id))
            .collect();
        for request in open {
            if self.full() {
                return;
            }
            let limits = self.limits(request);
            let until = request.deadline.max(self.input.now) + limits.max_creation_time;
            let wanted = self.group_of(request).is_some_and(|group| {
                let mut choices = self.input.groups[group].choices.iter();
                choices.any(|choice| choice.is_hash(&request.spec_hash))
            });
            // A call that begins now must be over while the platform still recognises the request.
            let memory =
                (request.first_sent + limits.request_memory).saturating_sub(limits.call_timeout);
            if !wanted || self.state.deleting || self.input.now >= memory {
                self.close(request.id, until);
            } else {
                self.wake(memory);
            }
        }
    }

    /// Sends open requests again whose last attempt has no known outcome.
    pub(crate) fn send_requests(&mut self) {
        let open: Vec<&Request> = self
            .state
            .requests
            .values()
            .filter(|r| self.is_open(r.id))
            .collect();
        for request in open {
            if request.call.in_flight || self.full() {
                continue;
            }
            if let Some(reason) = self.frozen() {
                self.note(&request.group, None, false, reason, || {
                    format!("request {} is not sent again", request.id)
                });
                continue;
            }
            let Some(view) = self.input.platforms.get(&request.platform) else {
                continue;
            };
            if !view.sees(&request.platform_uid) || !view.callable {
                self.note(&request.group, None, false, "PlatformUnavailable", || {
                    format!(
                        "{} cannot be called; request {} waits",
                        request.platform, request.id
                    )
                });
                continue;
            }
            let next = self.next_attempt(request, &view.limits);
            if self.input.now < next {
                self.wake(next);
                self.note_until(&request.group, None, false, "Absence", Some(next), || {
                    format!(
                        "{} may or may not have made nodes; asked again then",
                        request.platform
                    )
                });
                continue;
            }
            if self
                .group_of(request)
                .is_some_and(|group| self.is_over(group))
            {
                // Fewer are wanted by now: sent again, it could still make more.
                let until = request.deadline.max(self.input.now) + view.limits.max_creation_time;
                self.close(request.id, until);
                continue;
            }
            let deadline = self.input.now + view.limits.call_timeout;
            self.op(Op::Attempt {
                request: request.id,
                deadline,
            });
            self.plan.calls.push(Call::Provision {
                request: request.id,
                deadline,
            });
        }
    }

    fn next_attempt(&self, request: &Request, limits: &Limits) -> Millis {
        let Some(answer) = &request.answer else {
            // Nothing is under way and nothing was answered: an earlier process sent it, perhaps.
            let earlier = request.deadline.saturating_sub(limits.call_timeout);
            return (earlier + limits.replay_delay).max(request.call.next);
        };
        let error = answer.outcome.as_ref().err();
        if error.is_some_and(|error| error.class() == Class::Stale) {
            return answer.at + STALE_RETRY;
        }
        let wait = match error.and_then(Error::retry_after) {
            Some(after) => crate::observe::millis(after),
            None => {
                let most = (FIRST_RESEND << request.attempts.min(16)).min(MAX_RESEND);
                // Full jitter, from the request's own id so that a plan stays a function of its input.
                let seed = request.id.as_u128()
                    ^ u128::from(request.attempts).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let share = (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u64 % 1000;
                most / 4 + most * 3 / 4 * share / 1000
            }
        };
        answer.at + wait.max(limits.replay_delay)
    }

    /// Asks for the removal of nodes whose intent to be removed is durable.
    pub(crate) fn call_removals(&mut self) {
        for at in 0..self.state.nodes.len() {
            let (node, mark) = (&self.state.nodes[at], self.marks[at]);
            if !mark.leaving
                || mark.forgotten
                || node.call.in_flight
                || node.node_id.is_none()
                || node.seen.gone
            {
                continue;
            }
            let Some(view) = self.input.platforms.get(&node.platform) else {
                continue;
            };
            if !view.callable || *view.uid != *node.platform_uid {
                continue;
            }
            if self.input.now < node.call.next {
                self.wake(node.call.next);
                continue;
            }
            if node.removal.is_some() && node.state != NodeState::Deprovisioning {
                if self.full() {
                    return;
                }
                let (state, reason) = (
                    NodeState::Deprovisioning,
                    node.removal.map_or("", |r| r.reason.as_str()),
                );
                self.op(Op::Enter {
                    slot: node.slot,
                    state,
                    reason,
                    message: node.message.clone(),
                    stable: node.stable,
                });
            }
            self.plan.calls.push(Call::Deprovision { slot: node.slot });
        }
    }

    /// Whether a node that an answer showed should have been listed by now.
    fn is_overdue(&mut self, node: &Node) -> bool {
        let Some(view) = self
            .input
            .platforms
            .get(&node.platform)
            .filter(|_| node.seen.unproven)
        else {
            return false;
        };
        let due = node.seen.last + view.limits.visibility_delay + LISTING_PATIENCE;
        if self.input.now < due {
            self.wake(due);
        }
        self.input.now >= due
    }

    /// Reads platforms completely on which slots may be absent.
    pub(crate) fn confirm_absence(&mut self) {
        let mut platforms: Vec<&drover_core::Sym> = Vec::new();
        for at in 0..self.state.nodes.len() {
            let (node, mark) = (&self.state.nodes[at], self.marks[at]);
            if mark.forgotten || !mark.visible || self.is_open(node.request) || node.settled == 0 {
                continue;
            }
            // Unseen, removal asked for, no longer or never listed: whatever else is known to be there.
            let doubtful = mark.leaving
                || self.is_overdue(node)
                || node.node_id.is_none()
                || node.seen.unlisted
                || node.seen.missing_from >= node.seen.last;
            let Some(view) = self
                .input
                .platforms
                .get(&node.platform)
                .filter(|_| doubtful)
            else {
                continue;
            };
            let mut from = crate::observe::absence_from(node, view, self.input.process_start);
            if let Some(removal) = node.removal {
                from = from.max(removal.since + REMOVAL_PATIENCE);
            }
            if node.seen.missing_from >= from
                && !node.seen.silent
                && !mark.leaving
                && node.node_id.is_some()
            {
                // Complete reads lack it and its agent answers: asked again later.
                let next = node.seen.missing_from + GHOST_INTERVAL;
                if self.input.now < next {
                    self.wake(next);
                    continue;
                }
            }
            let call = self
                .state
                .confirms
                .get(&node.platform)
                .copied()
                .unwrap_or_default();
            if call.in_flight || platforms.contains(&&node.platform) {
                continue;
            }
            let next = from.max(call.next);
            if self.input.now < next {
                self.wake(next);
                self.note_until(
                    &node.group,
                    Some(node.slot),
                    false,
                    "Absence",
                    Some(next),
                    || format!("{} may still show it; looked for again then", node.platform),
                );
                continue;
            }
            platforms.push(&node.platform);
        }
        for platform in platforms {
            self.plan.calls.push(Call::Confirm {
                platform: platform.clone(),
            });
        }
    }

    /// Conditions of a group that its back-offs give.
    pub(crate) fn hold_back_offs(&mut self, group: &Group) {
        for choice in &group.choices {
            let key = BackOffKey::of(&group.path, &choice.spec_hash, &choice.platform);
            let Some(back_off) = self.back_off(&key).cloned() else {
                continue;
            };
            let failed = back_off.failures >= group.remediation.max_retries;
            let (kind, reason) = match back_off.kind {
                BackOffKind::Rejected => (ConditionKind::Rejected, "Rejected"),
                BackOffKind::Credentials => {
                    (ConditionKind::PlatformUnavailable, "CREDENTIALS_REFUSED")
                }
                BackOffKind::Failure if failed => (ConditionKind::Failed, "PlatformFailed"),
                BackOffKind::Failure | BackOffKind::NoCapacity => continue,
            };
            let message = match kind {
                ConditionKind::Failed => {
                    format!(
                        "{} attempts on {} failed, the last: {}",
                        back_off.failures, key.platform, back_off.message
                    )
                }
                _ => format!("{}: {}", key.platform, back_off.message),
            };
            self.hold(
                ConditionKey {
                    group: group.path.clone(),
                    kind,
                },
                reason,
                &message,
            );
        }
    }

    /// The condition of a group of which named machines cannot be had, and when each is tried again.
    pub(crate) fn hold_hosts(&mut self, group: &Group) {
        if group.placement.hosts.is_empty() {
            return;
        }
        let mut words = Vec::new();
        for choice in &group.choices {
            let key = BackOffKey::of(&group.path, &choice.spec_hash, &choice.platform);
            for host in &group.placement.hosts {
                let key = key.clone().about(Subject::Host(host.clone()));
                let Some(back_off) = self.back_off(&key).cloned() else {
                    continue;
                };
                if back_off.next > self.input.now {
                    self.wake(back_off.next);
                }
                words.push(format!("{host}: {}", back_off.message));
            }
        }
        if words.is_empty() {
            return;
        }
        let key = ConditionKey {
            group: group.path.clone(),
            kind: ConditionKind::Rejected,
        };
        self.hold(key, "HostRejected", &words.join("; "));
    }

    /// Whether a node belongs to no group that is wanted.
    pub(crate) fn is_unwanted(&self, at: usize) -> bool {
        self.marks[at].group == NO_GROUP || self.state.deleting
    }
}
