//! Requests: evaluating responses, closing, sending again.

use drover_core::{
    Class, Error, Millis, back_off,
    node::{Answer, Outcome, Request},
};
use uuid::Uuid;

use crate::{Call, Limits, Op, Planner};

/// Maximum wait before a request of unknown outcome is sent again.
const MAX_RESEND: Millis = 60_000;
/// First wait before a request of unknown outcome is sent again, if the platform recognises it immediately.
const FIRST_RESEND: Millis = 200;
/// Wait before a call is repeated that the platform refused as stale.
const STALE_RETRY: Millis = 100;

impl Planner<'_> {
    /// Evaluates the responses since the last plan.
    pub(crate) fn take_answers(&mut self) {
        let answered: Vec<&Request> = self
            .state
            .requests
            .values()
            .filter(|r| r.in_flight.answer.is_some())
            .collect();
        for request in answered {
            if self.full() {
                return;
            }
            if let Some(answer) = request
                .in_flight
                .answer
                .as_ref()
                .filter(|answer| !answer.taken)
            {
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
                        self.op(Op::NodeIdAssigned {
                            slot: node.slot,
                            node_id: id.clone(),
                        });
                    }
                    self.take_template(node, request);
                }
                Some(Outcome::Failed(error)) => self.drop_unmade(at, request, error),
                Some(Outcome::Unknown(_)) | None => {}
            }
        }
    }

    fn take_error(&mut self, request: &Request, answer: &Answer, error: &Error) {
        match error.class() {
            class @ (Class::Cannot | Class::NoCapacity | Class::Credentials) => {
                // This attempt created nothing. If that holds for all attempts, the slots never existed.
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

    /// Drops a slot that is known never to be created.
    fn drop_unmade(&mut self, at: usize, request: &Request, error: &Error) {
        let node = &self.state.nodes[at];
        let class = error.class();
        let reason = match class {
            Class::NoCapacity => "NoCapacity",
            Class::Cannot | Class::Credentials => "Rejected",
            Class::Stale | Class::Reused | Class::Unknown => "PlatformFailed",
        };
        self.op(Op::RecordDropped {
            slot: node.slot,
            reason,
            message: error.message().into(),
            lost: false,
        });
        self.marks[at].forgotten = true;
        self.fail(request, class, error, node);
    }

    pub(crate) fn group_of(&self, request: &Request) -> Option<usize> {
        self.paths.get(&*request.group).map(|&at| usize::from(at))
    }

    fn limits(&self, request: &Request) -> Limits {
        self.input
            .platforms
            .get(&request.platform)
            .map(|view| view.limits)
            .unwrap_or_default()
    }

    /// Closes a request whose calls may still be in flight.
    pub(crate) fn close(&mut self, request: Uuid, maybe_until: Millis) {
        let now = self.input.now;
        let Some(open) = self.state.requests.get(&request) else {
            return;
        };
        let view = self.input.platforms.get(&open.platform);
        if let Some(view) =
            view.filter(|view| view.fenced && !open.in_flight.sent && view.sees(&open.platform_uid))
        {
            // Only earlier processes sent it, and their calls have ended; what these started may still come into being.
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

    /// Closes requests whose nodes are no longer wanted, and those that their platform is about to forget.
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
            // A call that starts now must end while the platform still recognises the request.
            let memory =
                (request.first_sent + limits.request_memory).saturating_sub(limits.call_timeout);
            if !wanted || self.state.deleting || self.input.now >= memory {
                self.close(request.id, until);
            } else {
                self.wake(memory);
            }
        }
    }

    /// Sends open requests again if the outcome of their last attempt is not known.
    pub(crate) fn send_requests(&mut self) {
        let open: Vec<&Request> = self
            .state
            .requests
            .values()
            .filter(|r| self.is_open(r.id))
            .collect();
        for request in open {
            if request.in_flight.call.in_flight || self.full() {
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
                // Fewer are wanted by now: sent again, it could still create more.
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
        let Some(answer) = &request.in_flight.answer else {
            // Nothing is in flight and there is no response: an earlier process may have sent it.
            let earlier = request.deadline.saturating_sub(limits.call_timeout);
            return (earlier + limits.replay_delay).max(request.in_flight.call.next);
        };
        let error = answer.outcome.as_ref().err();
        if error.is_some_and(|error| error.class() == Class::Stale) {
            // Nothing was created and nothing is in doubt, so the first retries follow soon.
            let times = request.made_nothing.saturating_sub(1).min(6);
            return answer.at + (STALE_RETRY << times);
        }
        let wait = match error.and_then(Error::retry_after) {
            Some(after) => crate::observe::millis(after),
            None => {
                let most = back_off(FIRST_RESEND, MAX_RESEND, request.attempts);
                // Jitter, derived from the request's own id so that a plan stays a function of its input.
                let seed = request.id.as_u128()
                    ^ u128::from(request.attempts).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let share = (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u64 % 1000;
                most / 4 + most * 3 / 4 * share / 1000
            }
        };
        answer.at + wait.max(limits.replay_delay)
    }
}
