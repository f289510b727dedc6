//! Views of a platform for the planner, metrics and API users.

use std::sync::Arc;

use drover_convert::value;
use drover_core::{Millis, words};
use drover_planner::{Limits, PlatformView, Shortage};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};

use super::{Phase, Platform, has};

/// Maximum time from acceptance to running before a node counts as unhealthy.
const PROVISION_TIMEOUT: Millis = 15 * 60_000;

/// The same for bare metal, which boots through its firmware.
const PROVISION_TIMEOUT_METAL: Millis = 60 * 60_000;

/// Health of a platform, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct PlatformHealth {
    /// What exists there is known.
    pub visible: bool,
    /// The circuit breaker is open.
    pub suspended: bool,
    /// When the backend was last known completely, by our clock. `None` if never.
    pub fresh_at: Option<Millis>,
    /// Number of nodes recorded on other platforms that this one shows as its own.
    pub claims: usize,
}

impl Platform {
    /// Its health, for metrics.
    pub fn health(&self, now: Millis) -> PlatformHealth {
        let inner = self.inner.lock();
        PlatformHealth {
            visible: inner.visible(now),
            suspended: inner.suspended_until > now,
            fresh_at: Some(inner.fresh_at).filter(|at| *at > 0),
            claims: inner.claims.len(),
        }
    }

    /// The planner's view of the platform.
    pub fn view(&self, now: Millis) -> PlatformView {
        let inner = self.inner.lock();
        let limits = inner
            .handshake
            .as_ref()
            .and_then(|h| h.limits)
            .unwrap_or_default();
        let kind = inner.handshake.as_ref().map_or("", |h| h.kind.as_str());
        let visible = inner.visible(now);
        let suspended = inner.suspended_until > now || inner.probing;
        let trouble = match inner.phase {
            _ if inner.mass_loss > 0 => format!(
                "lost {} at once; confirm the loss to go on",
                words::count(inner.mass_loss, "node")
            ),
            Phase::Ready if visible && suspended => {
                "fails too many calls and is left alone for a while".to_owned()
            }
            Phase::Ready if visible => String::new(),
            Phase::Ready => "has not shown its nodes for too long".to_owned(),
            Phase::Connecting | Phase::Unreachable | Phase::Refused => inner.message.clone(),
        };
        PlatformView {
            uid: inner.uid.clone(),
            visible,
            visible_since: inner.visible_since,
            callable: visible && !suspended,
            trouble: trouble.into(),
            etag: inner.etag.clone(),
            limits: planner_limits(&limits),
            provision_timeout: if kind == "metal" {
                PROVISION_TIMEOUT_METAL
            } else {
                PROVISION_TIMEOUT
            },
            no_capacity: inner
                .capacity
                .iter()
                .filter(|(_, (_, until))| *until > now)
                .map(|((pool, domain), (_, until))| Shortage {
                    pool: pool.clone(),
                    domain: domain.clone(),
                    until: *until,
                })
                .collect(),
            domains: Arc::clone(&inner.domains),
            sick: inner.sick,
            total: inner.total,
            calm_since: inner.calm_since,
            fenced: inner.fenced,
            adopts: (inner.handshake.as_deref())
                .is_some_and(|handshake| has(handshake, wire::Capability::Adopt)),
            relabels: (inner.handshake.as_deref())
                .is_some_and(|handshake| has(handshake, wire::Capability::RelabelHosts)),
            grows: (inner.handshake.as_deref())
                .map(|handshake| has(handshake, wire::Capability::GrowStorage)),
            finite: (inner.handshake.as_deref())
                .is_some_and(|handshake| has(handshake, wire::Capability::Inventory)),
        }
    }

    /// The platform as the registry API returns it.
    pub fn to_proto(&self, now: Millis) -> pb::Platform {
        let inner = self.inner.lock();
        let visible = inner.visible(now);
        let phase = match inner.phase {
            Phase::Connecting => pb::PlatformPhase::Connecting,
            Phase::Ready if visible => pb::PlatformPhase::Ready,
            Phase::Ready if inner.fresh_at == 0 => pb::PlatformPhase::Connecting,
            Phase::Ready | Phase::Unreachable => pb::PlatformPhase::Unreachable,
            Phase::Refused => pb::PlatformPhase::Refused,
        };
        let condition = |kind: &str, status: bool, reason: &str, message: &str| {
            drover_proto::common::v1::Condition {
                r#type: kind.to_owned(),
                status: Some(status),
                reason: reason.to_owned(),
                message: message.to_owned(),
                last_transition_time: value::to_timestamp_opt(inner.visible_since),
            }
        };
        let reachable = match phase {
            pb::PlatformPhase::Ready => "AsWanted",
            pb::PlatformPhase::Connecting => "Connecting",
            _ if inner.mass_loss > 0 => "Vanished",
            _ => "Unreachable",
        };
        let accepted = inner.phase != Phase::Refused;
        let mut conditions = vec![
            condition("Reachable", visible, reachable, &inner.message),
            condition(
                "Accepted",
                accepted,
                if accepted { "AsWanted" } else { inner.refusal },
                "",
            ),
        ];
        if inner.suspended_until > now {
            let message = "too many calls failed in a row";
            conditions.push(condition(
                "CallsSuspended",
                true,
                "TooManyFailures",
                message,
            ));
        }
        if inner.mass_loss > 0 {
            let message = format!(
                "{} vanished at once; confirm the loss, or bring the nodes back",
                words::count(inner.mass_loss, "node")
            );
            conditions.push(condition("MassLoss", true, "Vanished", &message));
        }
        let said = inner.handshake.iter().flat_map(|it| it.warnings.iter());
        let unread = inner.warnings.iter().map(|warning| &warning.message);
        let warnings: Vec<&str> = said.chain(unread).map(String::as_str).collect();
        if !warnings.is_empty() {
            let message = drover_core::error::cut(warnings.join("; "));
            conditions.push(condition("Warned", true, "Warned", &message));
        }
        if let Some(message) = inner.claims.in_words() {
            conditions.push(condition("ForeignClaims", true, "NotItsOwn", &message));
        }
        if inner.foreign_resources > 0 {
            let message = format!(
                "{} without an owner here; left alone",
                words::count(inner.foreign_resources, "resource")
            );
            conditions.push(condition(
                "ForeignInfrastructure",
                true,
                "Foreign",
                &message,
            ));
        }
        let most = drover_planner::most_troubled(inner.total);
        if inner.sick > most {
            let message = format!(
                "{} of {} nodes are sick, more than {most}: none of them is replaced",
                inner.sick, inner.total
            );
            conditions.push(condition(
                "RemediationBlocked",
                true,
                "TooManySick",
                &message,
            ));
        }
        pb::Platform {
            name: self.name.to_string(),
            spec: Some(inner.registration.spec.clone()),
            generation: inner.registration.generation,
            status: Some(pb::PlatformStatus {
                phase: phase.into(),
                message: inner.message.clone(),
                uid: inner.registration.uid.clone(),
                handshake: inner.handshake.as_deref().cloned(),
                observe_time: inner.observe_time,
                node_count: inner.total,
                conditions,
                vanished_count: inner.mass_loss,
            }),
            create_time: value::to_timestamp_opt(inner.registration.create_time),
        }
    }
}

fn planner_limits(limits: &wire::Limits) -> Limits {
    let default = Limits::default();
    let span = |span: &Option<prost_types::Duration>, default| {
        span.as_ref()
            .and_then(|span| value::duration("", span).ok())
            .map_or(default, drover_core::millis)
    };
    let visibility_delay = span(&limits.visibility_delay, default.visibility_delay);
    Limits {
        max_batch: limits.max_batch.unwrap_or(default.max_batch).max(1),
        max_creation_time: span(&limits.max_creation_time, default.max_creation_time),
        request_memory: span(&limits.request_memory, default.request_memory),
        visibility_delay,
        replay_delay: span(&limits.replay_delay, visibility_delay),
        call_timeout: span(&limits.provision_timeout, default.call_timeout).max(1_000),
    }
}
