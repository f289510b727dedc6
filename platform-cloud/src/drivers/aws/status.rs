//! Status checks and scheduled events of instances
//! (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html>).

use std::{collections::HashMap, time::Duration};

use aws_sdk_ec2::types::{EventCode, InstanceStatus, InstanceStatusEvent, SummaryStatus};
use drover_core::{Error, Result};
use drover_proto::platform::v1::{NodeMaintenance, NodeMaintenanceKind, NodePhase};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{api::Api, machines::timestamp};
use crate::cloud::Machine;

/// How long a list waits for status checks. They may be late, and it may not.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of lists for which checks are read once: with the usual poll interval one minute, since EC2 makes them "every
/// minute".
const LISTS: u32 = 6;
/// Number of reads for which checks stay that cannot be read again: readiness must not change because of one that fails,
/// nor may an instance that has recovered be replaced because all of them do.
const STALE: u32 = 3;
/// Page size: the maximum of EC2.
const PAGE: i32 = 1000;

/// What the checks of an instance say. Empty while they pass, and while they have not ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Checks {
    /// The checks that fail: system, instance.
    failed: Vec<&'static str>,
    /// What is scheduled: all of it, with kind and dates of what does most to it.
    event: Option<NodeMaintenance>,
}

impl Checks {
    pub(super) fn of(status: &InstanceStatus) -> Self {
        let system = ("system", status.system_status());
        let instance = ("instance", status.instance_status());
        let failed = [system, instance].into_iter().filter(|(_, summary)| {
            summary.and_then(|summary| summary.status()) == Some(&SummaryStatus::Impaired)
        });
        Self {
            failed: failed.map(|(name, _)| name).collect(),
            event: joined(status.events().iter().filter_map(event).collect()),
        }
    }

    fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.event.is_none()
    }

    /// Shows a running machine as not ready if a check fails, and what is scheduled for it.
    pub(super) fn show(&self, machine: &mut Machine) {
        if machine.phase != NodePhase::Running {
            return;
        }
        machine.maintenance.clone_from(&self.event);
        machine.ready = (!self.failed.is_empty()).then_some(false);
        machine.message = if self.failed.is_empty() {
            String::new()
        } else {
            format!("fails the {} status check", self.failed.join(" and the "))
        };
    }
}

fn joined(mut events: Vec<NodeMaintenance>) -> Option<NodeMaintenance> {
    events.sort_by_key(urgency);
    let messages: Vec<String> = events.iter().map(|event| event.message.clone()).collect();
    let mut first = events.into_iter().next()?;
    first.message = drover_core::error::cut(messages.join("; "));
    Some(first)
}

/// Sorts what stops an instance before what restarts it, and then by date.
fn urgency(event: &NodeMaintenance) -> (bool, Option<i64>) {
    let stays = event.kind() != NodeMaintenanceKind::Stop;
    (stays, event.start_time.map(|start| start.seconds))
}

/// What is scheduled (<https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html>).
fn event(event: &InstanceStatusEvent) -> Option<NodeMaintenance> {
    let description = event.description().unwrap_or_default();
    // EC2 shows events that have ended for a while.
    if description.starts_with("[Completed]") || description.starts_with("[Canceled]") {
        return None;
    }
    let code = event.code()?;
    let begins = event.not_before();
    let message = match begins {
        Some(begins) => format!("AWS has scheduled {code} from {begins} on: {description}"),
        None => format!("AWS has scheduled {code}: {description}"),
    };
    let kind = match code {
        EventCode::InstanceRetirement | EventCode::InstanceStop => NodeMaintenanceKind::Stop,
        EventCode::InstanceReboot | EventCode::SystemReboot | EventCode::SystemMaintenance => {
            NodeMaintenanceKind::Restart
        }
        _ => NodeMaintenanceKind::Unspecified,
    };
    Some(NodeMaintenance {
        kind: kind.into(),
        start_time: begins.map(timestamp),
        end_time: event.not_after().map(timestamp),
        message: drover_core::error::cut(message),
    })
}

/// The checks of all running instances as last read.
#[derive(Debug)]
pub(super) struct AllChecks {
    interval: Duration,
    known: Mutex<HashMap<String, Checks>>,
    /// When reading them last began.
    read: Mutex<Option<Instant>>,
    /// When they were last known.
    fresh: Mutex<Option<Instant>>,
}

impl AllChecks {
    /// Checks for complete lists at this interval.
    pub(super) fn new(poll_interval: Duration) -> Self {
        Self {
            interval: poll_interval * LISTS,
            known: Mutex::default(),
            read: Mutex::default(),
            fresh: Mutex::default(),
        }
    }

    /// Reads them if it is time. Those from before stay for a while if they cannot be read.
    pub(super) async fn read(&self, api: &Api) {
        {
            let mut read = self.read.lock();
            if read.is_some_and(|read| read.elapsed() < self.interval) {
                return;
            }
            *read = Some(Instant::now());
        }
        let began = Instant::now();
        match timeout(PATIENCE, all(api)).await {
            Ok(Ok(checks)) => {
                *self.known.lock() = checks;
                *self.fresh.lock() = Some(began);
            }
            Ok(Err(error)) => tracing::debug!(%error, "status checks cannot be read"),
            Err(_) => tracing::debug!("status checks cannot be read in time"),
        }
    }

    /// Shows them on listed machines.
    pub(super) fn show(&self, machines: &mut [Machine]) {
        let fresh = *self.fresh.lock();
        let is_stale = fresh.is_none_or(|fresh| fresh.elapsed() > self.interval * STALE);
        let checks = self.known.lock();
        for machine in machines {
            let Some(checks) = checks.get(&machine.id) else {
                continue;
            };
            if is_stale && machine.phase == NodePhase::Running {
                // A date does not pass by not being read.
                machine.maintenance.clone_from(&checks.event);
            } else if !is_stale {
                checks.show(machine);
            }
        }
    }
}

async fn all(api: &Api) -> Result<HashMap<String, Checks>> {
    let mut checks = HashMap::new();
    let mut token: Option<String> = None;
    loop {
        let page = api
            .send("DescribeInstanceStatus", |ec2| {
                ec2.describe_instance_status()
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
            .await?;
        for status in page.instance_statuses() {
            let of = Checks::of(status);
            if let (Some(id), false) = (status.instance_id(), of.is_empty()) {
                checks.insert(id.to_owned(), of);
            }
        }
        match page.next_token.filter(|next| !next.is_empty()) {
            Some(next) if token.as_ref() == Some(&next) => {
                return Err(Error::unavailable(
                    "DescribeInstanceStatus: the API repeats a page; the list is not complete",
                ));
            }
            Some(next) => token = Some(next),
            None => return Ok(checks),
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_proto::platform::v1::NodePhase;

    use super::*;

    fn shown(checks: &AllChecks) -> (Option<bool>, bool) {
        let mut machines = [Machine {
            id: "i-1".to_owned(),
            phase: NodePhase::Running,
            ..Machine::default()
        }];
        checks.show(&mut machines);
        (machines[0].ready, machines[0].maintenance.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_failed_is_not_believed_for_ever_and_what_is_scheduled_is() {
        let checks = AllChecks::new(Duration::from_secs(10));
        let failed = Checks {
            failed: vec!["system"],
            event: Some(NodeMaintenance::default()),
        };
        checks.known.lock().insert("i-1".to_owned(), failed);
        *checks.fresh.lock() = Some(Instant::now());
        tokio::time::advance(Duration::from_secs(120)).await;
        assert_eq!(shown(&checks), (Some(false), true));
        tokio::time::advance(Duration::from_secs(120)).await;
        assert_eq!(shown(&checks), (None, true));
    }
}
