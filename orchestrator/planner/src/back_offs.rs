//! Back-offs: which failures count, how long to wait after them, and how they are reported.

use drover_core::{
    Class, Error, Millis, Node, Reason, back_off, node::Request, spec::Group, words,
};

use crate::{
    BackOff, BackOffKey, BackOffKind, CHANGED_SECRET, ConditionKey, ConditionKind, Planner,
    SLOW_CADENCE, Subject,
};

/// Back-off after the second consecutive failure; it doubles with each further one. The first failure is retried
/// immediately.
const FIRST_BACK_OFF: Millis = 2_000;
/// Back-off after the backend rejected the platform's credentials: people have to act, and may do so at any time.
const CREDENTIALS_BACK_OFF: Millis = 60_000;
/// First back-off for lack of capacity; it doubles.
const CAPACITY_FIRST: Millis = 5_000;
/// Maximum back-off for lack of capacity.
const CAPACITY_MOST: Millis = 300_000;

impl Planner<'_> {
    /// Clears the refusals of a request that the platform accepts now.
    pub(crate) fn end_refusal(&mut self, request: &Request, node: &Node, whole: bool) {
        let key = BackOffKey::of(&request.group, &request.spec_hash, &request.platform);
        if self
            .back_off(&key)
            .is_some_and(|b| b.kind != BackOffKind::Failure)
        {
            self.set_back_off(key.clone(), None);
        }
        let host = (!node.host.is_empty()).then(|| Subject::Host(node.host.clone()));
        // If it created some nodes and had no capacity for others, it is out of capacity for now.
        for subject in whole.then_some(Subject::Capacity).into_iter().chain(host) {
            let key = key.clone().about(subject);
            if self.back_off(&key).is_some() {
                self.set_back_off(key, None);
            }
        }
    }

    /// Counts a failure: of one host if the platform attributes it to the host, otherwise of the whole choice.
    pub(crate) fn fail(&mut self, request: &Request, class: Class, error: &Error, node: &Node) {
        let kind = match class {
            Class::NoCapacity => BackOffKind::NoCapacity,
            // Nothing is wrong with the request itself: it only contained a previous value of a secret.
            Class::Cannot if error.metadata().contains_key(CHANGED_SECRET) => BackOffKind::Failure,
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
            // An error of the whole call may be about another host of it.
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
        if group.newer_template(node).is_some() {
            // It says nothing about nodes that are created now.
            return;
        }
        let key = BackOffKey::of(&node.group, &node.spec_hash, &node.platform);
        if self
            .back_off(&key)
            .is_some_and(|b| node.create_time < b.last)
        {
            // It was requested before the last failure was known, so it says nothing new.
            return;
        }
        let message = format!("{}: {message}", node.name());
        self.count(key, kind, group.remediation.max_retries, &message, None);
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
                .unwrap_or_else(|| back_off(CAPACITY_FIRST, CAPACITY_MOST, failures - 1))
                .min(CAPACITY_MOST),
            BackOffKind::Failure if failures >= retries => SLOW_CADENCE,
            BackOffKind::Failure if failures == 1 => 0,
            BackOffKind::Failure => back_off(FIRST_BACK_OFF, SLOW_CADENCE, failures - 2),
        };
        let etag = self
            .input
            .platforms
            .get(&key.platform)
            .map(|p| p.etag.clone())
            .unwrap_or_default();
        let template = self.template_of(&key);
        let to = BackOff {
            kind,
            failures,
            last: now,
            next: now + wait,
            etag,
            template,
            message: message.into(),
        };
        self.set_back_off(key, Some(to));
    }

    /// Holds the conditions that the back-offs of a group imply.
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
                    let attempts = words::count(back_off.failures, "attempt");
                    format!(
                        "{attempts} on {} failed, the last: {}",
                        key.platform, back_off.message
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

    /// Holds the condition of a group for named hosts that cannot be had, and wakes when each is tried again.
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
}
