//! State of the account.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{World, catalogue, droplet::Droplet};
use crate::world::Made;

/// An SSH key of the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshKey {
    /// Numeric id.
    pub id: u64,
    /// Display name.
    pub name: String,
    /// MD5 fingerprint as hexadecimal bytes separated by colons.
    pub fingerprint: String,
}

#[derive(Clone, Debug)]
pub(super) struct Action {
    pub(super) id: u64,
    pub(super) kind: String,
    pub(super) droplet: u64,
    pub(super) region: String,
    pub(super) began: Instant,
    pub(super) ends: Instant,
    /// Whether it ends without success.
    pub(super) errs: bool,
}

pub(super) struct Vpc {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) region: String,
    pub(super) range: String,
}

pub(super) struct State {
    /// By id, so the newest is last.
    pub(super) droplets: BTreeMap<u64, Droplet>,
    /// Tags as first written, by lower-case name.
    pub(super) tags: BTreeMap<String, String>,
    pub(super) actions: BTreeMap<u64, Action>,
    pub(super) vpcs: Vec<Vpc>,
    /// As they were asked for, with an id.
    pub(super) firewalls: Vec<Value>,
    pub(super) expired: bool,
    pub(super) revoked: Vec<String>,
    /// Names of all droplets ever created by requests.
    pub(super) names: BTreeMap<u64, String>,
    /// Times of the calls of the last hour.
    pub(super) calls: VecDeque<Instant>,
    next_droplet: u64,
    next_action: u64,
}

/// Sliding window of the rate limit.
const WINDOW: Duration = Duration::from_secs(3600);
/// Maximum number of actions kept.
const ACTIONS: usize = 50_000;

impl State {
    pub(super) fn new() -> Self {
        let vpcs = catalogue::REGIONS
            .iter()
            .enumerate()
            .map(|(at, (slug, _))| Vpc {
                id: uuid::Uuid::new_v4().to_string(),
                name: format!("default-{slug}"),
                region: (*slug).to_owned(),
                range: format!("10.{}.0.0/16", 100 + at),
            })
            .collect();
        Self {
            droplets: BTreeMap::new(),
            tags: BTreeMap::new(),
            actions: BTreeMap::new(),
            vpcs,
            firewalls: Vec::new(),
            expired: false,
            revoked: Vec::new(),
            names: BTreeMap::new(),
            calls: VecDeque::new(),
            // Same magnitude as real ids.
            next_droplet: 504_000_000,
            next_action: 2_600_000_000,
        }
    }

    pub(super) fn next_droplet(&mut self) -> u64 {
        self.next_droplet += 1;
        self.next_droplet
    }

    /// Records an event of a droplet; returns its id.
    pub(super) fn act(
        &mut self,
        kind: &str,
        droplet: u64,
        region: &str,
        began: Instant,
        takes: Duration,
    ) -> u64 {
        self.next_action += 1;
        let id = self.next_action;
        if self.actions.len() >= ACTIONS {
            self.actions.pop_first();
        }
        self.actions.insert(
            id,
            Action {
                id,
                kind: kind.to_owned(),
                droplet,
                region: region.to_owned(),
                began,
                ends: began + takes,
                errs: false,
            },
        );
        id
    }

    pub(super) fn default_vpc(&self, region: &str) -> Option<String> {
        let default = |vpc: &&Vpc| vpc.region == region && vpc.name.starts_with("default-");
        self.vpcs.iter().find(default).map(|vpc| vpc.id.clone())
    }

    /// Returns the tag as first written, creating it if it is new.
    pub(super) fn tag(&mut self, name: &str) -> String {
        self.tags
            .entry(name.to_ascii_lowercase())
            .or_insert_with(|| name.to_owned())
            .clone()
    }

    /// Removes the droplets whose destruction is complete; returns their ids.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<u64> {
        let gone = |droplet: &Droplet| droplet.gone.is_some_and(|gone| gone <= now);
        let ids: Vec<u64> = self
            .droplets
            .values()
            .filter(|droplet| gone(droplet))
            .map(|droplet| droplet.id)
            .collect();
        for id in &ids {
            self.droplets.remove(id);
        }
        ids
    }
}

impl World {
    /// Applies the state changes that are due by now.
    pub(super) fn settle(&self) {
        let ids = self.state.lock().settle(Instant::now());
        for id in ids {
            self.ledger.gone(&id.to_string());
        }
    }

    /// Counts a call against the rate limit. Fails with the time until the next call is allowed.
    pub(super) fn spend(&self) -> Result<(), Duration> {
        let Some(limit) = self.settings.hourly_limit else {
            return Ok(());
        };
        let now = Instant::now();
        let mut state = self.state.lock();
        while state
            .calls
            .front()
            .is_some_and(|call| now.saturating_duration_since(*call) >= WINDOW)
        {
            state.calls.pop_front();
        }
        if (state.calls.len() as u64) < limit {
            state.calls.push_back(now);
            return Ok(());
        }
        let oldest = state.calls.front().copied().unwrap_or(now);
        Err((oldest + WINDOW).saturating_duration_since(now))
    }

    /// Returns the number of calls left, and when the oldest one leaves the window, in seconds since the Unix epoch.
    pub(super) fn remaining(&self) -> (u64, i64) {
        let now = Instant::now();
        let state = self.state.lock();
        let used = state.calls.len() as u64;
        let oldest = state.calls.front().copied().unwrap_or(now);
        let reset = self.clock.now().as_second()
            + (oldest + WINDOW)
                .saturating_duration_since(now)
                .as_secs_f64()
                .ceil() as i64;
        (self.limit().saturating_sub(used), reset)
    }

    pub(super) fn tags_with_counts(&self) -> Vec<(String, usize)> {
        self.settle();
        let state = self.state.lock();
        let count = |name: &String| {
            let has = |droplet: &&Droplet| droplet.tags.contains(name);
            state.droplets.values().filter(has).count()
        };
        state
            .tags
            .values()
            .map(|name| (name.clone(), count(name)))
            .collect()
    }

    /// Records the creation of a droplet in the ledger.
    pub(super) fn record(&self, droplet: &Droplet) {
        self.ledger.made(Made {
            kind: "droplet".to_owned(),
            id: droplet.id.to_string(),
            key: None,
            tags: droplet.tag_map(),
            foreign: droplet.foreign,
            gone: false,
        });
    }
}

impl Vpc {
    pub(super) fn json(&self) -> Value {
        json!({
            "id": self.id,
            "urn": format!("do:vpc:{}", self.id),
            "name": self.name,
            "description": "",
            "region": self.region,
            "ip_range": self.range,
            "created_at": "2024-01-01T00:00:00Z",
            "default": self.name.starts_with("default-"),
        })
    }
}

impl SshKey {
    pub(super) fn json(&self) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "public_key": format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{} {}", self.id, self.name),
        })
    }
}
