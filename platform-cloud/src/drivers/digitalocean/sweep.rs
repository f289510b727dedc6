//! Deletes tags of finished requests. Every launch makes new ones, and a tag stays in the account when the last of its
//! droplets is gone (<https://docs.digitalocean.com/reference/api/reference/tags/>).

use std::{collections::HashMap, time::Duration};

use drover_core::Result;
use reqwest::Method;
use serde_json::Value;
use tokio::time::Instant;

use super::{DigitalOcean, quota::Quota, tags};
use crate::cloud::is_of_one_request;

/// Time between two reads of the account's tags.
const INTERVAL: Duration = Duration::from_secs(20 * 60);
/// How long a tag must have been without resources. No request is sent for longer (`Limits.request_memory`), and tags of
/// a request are used by no other.
const UNUSED: Duration = Duration::from_secs(3600);
/// Tags deleted with each list, so that none is held up.
const AT_ONCE: usize = 3;

pub(super) struct Sweep {
    read: Instant,
    /// Tags without resources, and since when.
    unused: HashMap<String, Instant>,
    /// Tags to delete.
    due: Vec<String>,
}

impl Sweep {
    pub(super) fn new() -> Self {
        Self {
            read: Instant::now(),
            unused: HashMap::new(),
            due: Vec::new(),
        }
    }

    fn is_due(&mut self) -> bool {
        let due = self.read.elapsed() >= INTERVAL;
        if due {
            self.read = Instant::now();
        }
        due
    }

    /// Takes in the tags of the account.
    fn saw(&mut self, listed: &[Value]) {
        let now = Instant::now();
        let without = listed.iter().filter_map(|tag| {
            let name = tag["name"].as_str()?;
            let is_ours =
                tags::is_staged(name) || tags::key(name).is_some_and(|key| is_of_one_request(&key));
            (is_ours && tag["resources"]["count"] == 0).then(|| name.to_owned())
        });
        let before = std::mem::take(&mut self.unused);
        self.unused = without
            .map(|name| {
                let since = before.get(&name).copied().unwrap_or(now);
                (name, since)
            })
            .collect();
        let due = self
            .unused
            .iter()
            .filter(|(_, since)| since.elapsed() >= UNUSED);
        self.due = due.map(|(name, _)| name.clone()).collect();
    }

    fn take(&mut self) -> Vec<String> {
        let rest = self.due.len().saturating_sub(AT_ONCE);
        self.due.split_off(rest)
    }
}

impl DigitalOcean {
    /// A few calls at most. What fails is done later: the tags cost nothing but order.
    pub(super) async fn sweep(&self) {
        let ample = self.client.quota().is_none_or(Quota::is_ample);
        if ample && let Err(error) = self.try_sweep().await {
            tracing::debug!(%error, "tags that nothing has any more stay for now");
        }
    }

    async fn try_sweep(&self) -> Result<()> {
        let due = self.sweep.lock().is_due();
        if due {
            let listed = self.client.list(&["tags"], &[]).await?.items;
            self.sweep.lock().saw(&listed);
        }
        let names = self.sweep.lock().take();
        for name in names {
            let path = ["tags", name.as_str()];
            let reply = self.client.call(Method::DELETE, &path, &[], None).await?;
            match reply.status {
                200..300 | 404 => {
                    self.sweep.lock().unused.remove(&name);
                }
                _ => return Err(reply.error("to delete a tag")),
            }
        }
        Ok(())
    }
}
