//! Limits of each action, as
//! <https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html> documents them: every action has a bucket of
//! its own, so that one that is empty does not affect the others, and some actions have a second one for the resources
//! that they name.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::ec2::params::{Outcome, Params, Wrong, wrong};
use crate::world::Rate;

/// The buckets of an account.
#[derive(Default)]
pub(crate) struct Buckets(Mutex<BTreeMap<String, Rate>>);

impl Buckets {
    /// Takes the tokens of a call.
    pub(crate) fn admit(&self, operation: &str, params: &Params) -> Outcome<()> {
        let mut buckets = self.0.lock();
        let (size, refill) = requests(operation);
        let requests = buckets
            .entry(operation.to_owned())
            .or_insert_with(|| Rate::new(refill, Some(size)));
        requests.take().map_err(|_| exceeded())?;
        let Some((size, refill)) = resources(operation) else {
            return Ok(());
        };
        let wanted = match operation {
            "RunInstances" => params.int("MaxCount")?.unwrap_or(1),
            _ => i64::try_from(params.list("InstanceId").len()).unwrap_or(i64::MAX),
        };
        let resources = buckets
            .entry(format!("{operation}/resources"))
            .or_insert_with(|| Rate::new(refill, Some(size)));
        resources.take_many(wanted as f64).map_err(|_| exceeded())
    }
}

/// Size and refill rate per second of an action's bucket.
fn requests(operation: &str) -> (f64, f64) {
    match operation {
        "RunInstances" | "StartInstances" => (5.0, 2.0),
        "TerminateInstances" => (100.0, 5.0),
        "CreateTags" | "DeleteTags" => (100.0, 10.0),
        _ if operation.starts_with("Describe") || operation.starts_with("Get") => (100.0, 20.0),
        _ => (50.0, 5.0),
    }
}

/// Size and refill rate per second of the bucket for the resources that a call names.
fn resources(operation: &str) -> Option<(f64, f64)> {
    match operation {
        "RunInstances" | "StartInstances" => Some((1000.0, 2.0)),
        "TerminateInstances" | "StopInstances" => Some((1000.0, 20.0)),
        _ => None,
    }
}

fn exceeded() -> Wrong {
    Wrong {
        status: 503,
        ..wrong("RequestLimitExceeded", "Request limit exceeded.")
    }
}
