//! Instances and operations, and their changes over time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::settings::GceSettings;
use crate::world::{Clock, Ledger, Made};

/// How long `zoneOperations.wait` waits for the end of an operation: it "waits for no more than the 2 minutes, and then
/// returns the current state" (<https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations/wait>).
pub(super) const MAX_WAIT: Duration = Duration::from_secs(120);

/// Ids resemble those of the real API: 19 digits.
const FIRST_ID: u64 = 1_100_000_000_000_000_001;

pub(super) struct State {
    /// By id; ids are increasing, so this is the order of creation.
    pub(super) instances: BTreeMap<u64, Instance>,
    pub(super) operations: BTreeMap<u64, Operation>,
    /// Operation ids by `requestId`.
    pub(super) by_request: HashMap<String, u64>,
    pub(super) tokens: BTreeSet<String>,
    pub(super) any_token: bool,
    pub(super) unreachable: BTreeSet<String>,
    /// Zones about which no call is answered.
    pub(super) hanging: BTreeSet<String>,
    /// Whether each page of instances begins with the last one of the page before.
    pub(super) repeats: bool,
    pub(super) ledger: Ledger,
    next: u64,
}

pub(super) struct Instance {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) zone: String,
    /// Body of the insert, without labels and metadata.
    pub(super) body: Value,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Number of changes to labels and metadata.
    pub(super) changes: u64,
    pub(super) made: Instant,
    pub(super) created: String,
    pub(super) stopped: Option<Instant>,
    pub(super) deleted: Option<Instant>,
    pub(super) protected: bool,
    /// When the instance is deleted.
    gone_at: Option<Instant>,
}

#[derive(Clone)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) kind: &'static str,
    pub(super) zone: String,
    pub(super) target: String,
    pub(super) target_id: u64,
    pub(super) inserted: Instant,
    pub(super) insert_time: String,
    pub(super) done_at: Instant,
    /// Code and message.
    pub(super) error: Option<(String, String)>,
}

impl State {
    pub(super) fn new(settings: &GceSettings) -> State {
        State {
            instances: BTreeMap::new(),
            operations: BTreeMap::new(),
            by_request: HashMap::new(),
            tokens: settings.tokens.clone(),
            any_token: settings.tokens.is_empty(),
            unreachable: BTreeSet::new(),
            hanging: BTreeSet::new(),
            repeats: false,
            ledger: Ledger::default(),
            next: FIRST_ID,
        }
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.next += 7;
        self.next
    }

    /// Removes the resources that are deleted by now.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        let ledger = &self.ledger;
        self.instances.retain(|id, instance| {
            let stays = instance.gone_at.is_none_or(|at| at > now);
            if !stays {
                ledger.gone(&id.to_string());
            }
            stays
        });
    }

    pub(super) fn find(&mut self, id: &str) -> Option<&mut Instance> {
        self.instances.get_mut(&id.parse().ok()?)
    }

    /// Finds an instance by name or id in a zone.
    pub(super) fn named(&mut self, zone: &str, name: &str) -> Option<&mut Instance> {
        let id: Option<u64> = name.parse().ok();
        self.instances.values_mut().find(|instance| {
            instance.zone == zone && (instance.name == name || Some(instance.id) == id)
        })
    }

    /// Returns the operation that this `requestId` already started.
    pub(super) fn replayed(
        &self,
        settings: &GceSettings,
        request_id: Option<&str>,
    ) -> Option<&Operation> {
        let operation = self.operations.get(self.by_request.get(request_id?)?)?;
        (operation.inserted.elapsed() < settings.request_window).then_some(operation)
    }

    /// Records an operation that begins now.
    pub(super) fn operate(
        &mut self,
        settings: &GceSettings,
        clock: &Clock,
        request_id: Option<&str>,
        kind: &'static str,
        target: (&str, &str, u64),
        error: Option<(&str, String)>,
    ) -> Operation {
        let (zone, name, target_id) = target;
        let id = self.next_id();
        let inserted = Instant::now();
        let operation = Operation {
            id,
            kind,
            zone: zone.to_owned(),
            target: name.to_owned(),
            target_id,
            inserted,
            insert_time: clock.now().to_string(),
            done_at: inserted + settings.operation_delay,
            error: error.map(|(code, message)| (code.to_owned(), message)),
        };
        self.operations.insert(id, operation.clone());
        if let Some(request_id) = request_id {
            self.by_request.insert(request_id.to_owned(), id);
        }
        operation
    }

    /// Adds an instance.
    pub(super) fn add(&mut self, clock: &Clock, new: New, key: Option<&str>, foreign: bool) -> u64 {
        let id = self.next_id();
        self.ledger.made(Made {
            kind: "instance".into(),
            id: id.to_string(),
            key: key.map(str::to_owned),
            tags: new.labels.clone(),
            foreign,
            gone: false,
        });
        let instance = Instance {
            id,
            name: new.name,
            zone: new.zone,
            body: new.body,
            labels: new.labels,
            metadata: new.metadata,
            changes: 0,
            made: Instant::now(),
            created: clock.now().to_string(),
            stopped: None,
            deleted: None,
            protected: false,
            gone_at: None,
        };
        self.instances.insert(id, instance);
        id
    }

    pub(super) fn add_foreign(
        &mut self,
        settings: &GceSettings,
        clock: &Clock,
        zone: &str,
        at: usize,
    ) {
        let project = &settings.project;
        let new = New {
            name: format!("somebody-elses-{at}"),
            zone: zone.to_owned(),
            body: serde_json::json!({
                "machineType": format!("projects/{project}/zones/{zone}/machineTypes/e2-small"),
                "networkInterfaces": [{ "network": format!("projects/{project}/global/networks/default") }],
            }),
            labels: BTreeMap::from([("team".to_owned(), "somebody-else".to_owned())]),
            metadata: BTreeMap::new(),
        };
        let id = self.add(clock, new, None, true);
        if let Some(instance) = self.instances.get_mut(&id)
            && let Some(made) = instance
                .made
                .checked_sub(settings.common.pending_delay + settings.common.visibility_delay)
        {
            instance.made = made;
        }
    }
}

/// Parameters of a new instance.
pub(super) struct New {
    pub(super) name: String,
    pub(super) zone: String,
    pub(super) body: Value,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Instance {
    pub(super) fn status(&self, settings: &GceSettings) -> &'static str {
        let age = self.made.elapsed();
        let pending = settings.common.pending_delay;
        match (self.deleted, self.stopped) {
            (Some(_), _) => "STOPPING",
            (None, Some(at)) if at.elapsed() < settings.common.stopping_delay => "STOPPING",
            (None, Some(_)) => "TERMINATED",
            (None, None) if age >= pending => "RUNNING",
            (None, None) if age >= pending / 2 => "STAGING",
            (None, None) => "PROVISIONING",
        }
    }

    /// Whether lists show the instance.
    pub(super) fn listed(&self, settings: &GceSettings) -> bool {
        self.made.elapsed() >= settings.common.visibility_delay
    }

    /// Starts the deletion.
    pub(super) fn delete(&mut self, settings: &GceSettings) {
        let now = Instant::now();
        self.deleted.get_or_insert(now);
        self.gone_at
            .get_or_insert(now + settings.common.stopping_delay);
    }

    /// Starts to stop the instance. Returns false if it is not running.
    pub(super) fn stop(&mut self, settings: &GceSettings) -> bool {
        let runs = self.status(settings) == "RUNNING";
        if runs {
            self.stopped = Some(Instant::now());
        }
        runs
    }

    pub(super) fn set_labels(&mut self, labels: BTreeMap<String, String>) {
        self.labels = labels;
        self.changes += 1;
    }

    /// Fingerprint that an update of the labels must present.
    pub(super) fn label_fingerprint(&self) -> String {
        fingerprint(self.labels.iter(), self.changes)
    }

    /// Fingerprint that an update of the metadata must present.
    pub(super) fn metadata_fingerprint(&self) -> String {
        fingerprint(self.metadata.iter(), self.changes)
    }

    /// Address in the instance's network.
    pub(super) fn internal_ip(&self) -> String {
        let n = (self.id - FIRST_ID) / 7;
        format!(
            "10.{}.{}.{}",
            128 + (n >> 16) % 100,
            (n >> 8) % 256,
            n % 256
        )
    }

    pub(super) fn external_ip(&self) -> String {
        let n = (self.id - FIRST_ID) / 7;
        format!("198.{}.{}.{}", 18 + (n >> 16) % 2, (n >> 8) % 256, n % 256)
    }
}

impl Operation {
    pub(super) fn is_done(&self) -> bool {
        self.is_done_by(Duration::ZERO)
    }

    /// Whether the operation is done after this time.
    pub(super) fn is_done_by(&self, time: Duration) -> bool {
        self.done_at <= Instant::now() + time
    }
}

/// Hashes to 8 bytes in base64, as the API does.
fn fingerprint<'a>(pairs: impl Iterator<Item = (&'a String, &'a String)>, changes: u64) -> String {
    let mut text = changes.to_string();
    for (key, value) in pairs {
        let _ = write!(text, "\n{key}={value}");
    }
    let digest = Sha256::digest(text.as_bytes());
    base64(digest.get(..8).unwrap_or_default())
}

pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let part = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let word = part(0) << 16 | part(1) << 8 | part(2);
        for at in 0..4 {
            if at <= chunk.len() {
                out.push(char::from(ALPHABET[(word >> (18 - 6 * at)) as usize & 63]));
            } else {
                out.push('=');
            }
        }
    }
    out
}
