//! One cluster in memory: what is wanted, what is recorded, what is observed, behind one lock.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use drover_core::{
    Error, Millis, Result, Sym,
    infrastructure::Wanted,
    spec::{ClusterSpec, Group, Health, OrphanPolicy},
};
use drover_planner::State;
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_store::{ClusterRow, Desired, Head, Versioned};
use parking_lot::Mutex;
use prost::Message;
use uuid::Uuid;

use crate::{
    codec::{self, Interner},
    witness::Witness,
};

/// How long an orphan is seen before it is deleted, unless the spec says so.
const ORPHAN_GRACE: Millis = 120_000;

/// A cluster. The lock is never held across an await.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) uid: Uuid,
    pub(crate) name: Arc<str>,
    pub(crate) inner: Mutex<Inner>,
    /// Held by whoever changes what is wanted, so that two of them do not take turns in failing.
    pub(crate) change: tokio::sync::Mutex<()>,
    /// Held by whoever asked for a pass and waits for its end.
    pub(crate) reconciling: tokio::sync::Mutex<()>,
}

/// The generation and etags that defaults of health were made from, and the defaults, by group.
type Defaults = (u64, Vec<Sym>, Arc<Vec<Option<Health>>>);

/// What is known of a cluster.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) desired: Versioned<Desired>,
    pub(crate) spec: Arc<Resolved>,
    pub(crate) head: Versioned<Head>,
    pub(crate) state: State,
    /// Open requests, as they are sent.
    pub(crate) bodies: HashMap<Uuid, Bytes>,
    /// First slot of each request.
    pub(crate) first_slots: HashMap<Uuid, u64>,
    /// Defaults of health from templates, and what they were made from.
    pub(crate) defaults: Option<Defaults>,
    /// Who asked for a pass and wants to know what became of it.
    pub(crate) witness: Option<Arc<Witness>>,
    /// Raised by every change that a reader could see.
    pub(crate) version: u64,
    /// Its record is gone.
    pub(crate) finished: bool,
}

/// Key of the restarts among what else a user wants.
const RESTARTS: &str = "restarts";

/// Groups of which all nodes up to a slot are to be replaced.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Restarts {
    #[prost(message, repeated, tag = "1")]
    pub(crate) groups: Vec<Restart>,
}

/// One of them.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Restart {
    #[prost(string, tag = "1")]
    pub(crate) group: String,
    #[prost(uint64, tag = "2")]
    pub(crate) before_slot: u64,
}

impl Restarts {
    pub(crate) fn of(desired: &Desired) -> Result<Self> {
        match desired.extra.get(RESTARTS) {
            None => Ok(Self::default()),
            Some(bytes) => Self::decode(bytes.as_slice())
                .map_err(|_| Error::internal("the stored restarts cannot be read")),
        }
    }

    pub(crate) fn put(&self, desired: &mut Desired) {
        let bytes = self.encode_to_vec();
        desired.extra.insert(RESTARTS.to_owned(), bytes);
    }

    fn has(&self, node: &drover_core::Node) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|one| *one.group == *node.group && node.slot < one.before_slot)
    }
}

/// A spec with everything inherited.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) software: String,
    pub(crate) version: String,
    pub(crate) attributes: drover_core::spec::Object,
    pub(crate) groups: Vec<Group>,
    pub(crate) infrastructure: Vec<Wanted>,
    pub(crate) orphans: OrphanPolicy,
    pub(crate) orphan_grace: Millis,
}

impl Resolved {
    pub(crate) fn new(spec: &ClusterSpec) -> Result<Self> {
        Ok(Self {
            software: spec.software.clone(),
            version: spec.version.clone(),
            attributes: spec.settings.attributes.clone(),
            groups: spec.resolve()?,
            infrastructure: spec
                .infrastructure
                .iter()
                .map(drover_convert::infrastructure::wanted)
                .collect(),
            orphans: spec.orphans,
            orphan_grace: spec.orphan_grace.map_or(ORPHAN_GRACE, crate::clock::millis),
        })
    }

    /// The same with names that many clusters share kept once.
    pub(crate) fn interned(mut self, interner: &Interner) -> Self {
        for wanted in &mut self.infrastructure {
            wanted.platform = interner.get(&wanted.platform);
        }
        for group in &mut self.groups {
            group.path = interner.get(&group.path);
            group.version = interner.get(&group.version);
            for choice in &mut group.choices {
                choice.platform = interner.get(&choice.platform);
                choice.class = interner.get(&choice.class);
                choice.spec_hash = interner.get(&choice.spec_hash);
            }
        }
        self
    }

    /// From a stored spec.
    pub(crate) fn from_stored(bytes: &[u8]) -> Result<Self> {
        Self::new(&drover_convert::spec::cluster_spec(&stored_spec(bytes)?)?)
    }
}

pub(crate) fn stored_spec(bytes: &[u8]) -> Result<pb::ClusterSpec> {
    pb::ClusterSpec::decode(bytes).map_err(|_| {
        Error::internal("the stored spec cannot be read: it is damaged, or of a newer version")
    })
}

impl Cluster {
    /// From the store, at the start.
    pub(crate) fn load(row: ClusterRow, interner: &Interner) -> Result<Self> {
        let ClusterRow {
            uid,
            desired,
            head,
            nodes,
            requests,
            resources,
            ..
        } = row;
        let head = head.unwrap_or_else(|| Versioned {
            value: empty_head(),
            revision: 0,
        });
        let mut state = State {
            uid,
            ..State::default()
        };
        state.next_slot = head.value.next_slot;
        state.next_sequence = head.value.next_sequence;
        state.observed_generation = head.value.observed_generation;
        codec::decode_head(&head.value.state, &mut state, interner)?;
        crate::infrastructure::codec::load(resources, &mut state, interner)?;
        state.nodes.reserve_exact(nodes.len());
        for node in nodes {
            let before = state.nodes.last();
            let node = codec::decode_node(node.slot, &node.value, interner, before)?;
            state.nodes.push(node);
        }
        state.nodes.sort_by_key(|node| node.slot);
        let mut bodies = HashMap::new();
        for (_, bytes) in requests {
            let (request, body) = codec::decode_request(&bytes, interner)?;
            bodies.insert(request.id, body);
            state.requests.insert(request.id, request);
        }
        let spec = Arc::new(Resolved::from_stored(&desired.value.spec)?.interned(interner));
        let name: Arc<str> = desired.value.name.as_str().into();
        let mut inner = Inner {
            first_slots: first_slots(&state),
            desired,
            spec,
            head,
            state,
            bodies,
            defaults: None,
            witness: None,
            version: 1,
            finished: false,
        };
        inner.follow_desired();
        Ok(Self {
            uid,
            name,
            inner: Mutex::new(inner),
            change: tokio::sync::Mutex::default(),
            reconciling: tokio::sync::Mutex::default(),
        })
    }

    /// One that was just created.
    pub(crate) fn create(uid: Uuid, desired: Versioned<Desired>, spec: Arc<Resolved>) -> Self {
        let name: Arc<str> = desired.value.name.as_str().into();
        let head = Versioned {
            value: empty_head(),
            revision: 0,
        };
        let state = State {
            uid,
            next_slot: 1,
            next_sequence: 1,
            ..State::default()
        };
        let mut inner = Inner {
            desired,
            spec,
            head,
            state,
            bodies: HashMap::new(),
            first_slots: HashMap::new(),
            defaults: None,
            witness: None,
            version: 1,
            finished: false,
        };
        inner.follow_desired();
        Self {
            uid,
            name,
            inner: Mutex::new(inner),
            change: tokio::sync::Mutex::default(),
            reconciling: tokio::sync::Mutex::default(),
        }
    }
}

fn empty_head() -> Head {
    let mut head = Head::default();
    head.next_slot = 1;
    head.next_sequence = 1;
    head
}

fn first_slots(state: &State) -> HashMap<Uuid, u64> {
    let mut first = HashMap::new();
    for node in &state.nodes {
        first
            .entry(node.request)
            .or_insert(node.slot.saturating_sub(u64::from(node.index)));
    }
    first
}

impl Inner {
    /// Takes over into the record what the user said.
    pub(crate) fn follow_desired(&mut self) {
        let desired = &self.desired.value;
        self.state.generation = desired.generation;
        self.state.deleting = desired.delete_time_ms.is_some();
        self.state.paused = desired.paused.is_some();
        let uid = self.state.uid;
        // What cannot be read restarts nothing.
        let restarts = Restarts::of(desired).unwrap_or_default();
        for node in &mut self.state.nodes {
            node.marked = restarts.has(node)
                || !desired.marks.is_empty() && desired.marks.contains(&node.id(uid));
        }
    }

    /// The position of the slot that an observed node says to have.
    pub(crate) fn slot_at(&self, request: Uuid, index: u32) -> Option<usize> {
        let first = self.first_slots.get(&request)?;
        let at = self.state.at(first + u64::from(index))?;
        let node = &self.state.nodes[at];
        // An orphan that was taken in has a slot of its own number.
        (node.request == request && node.index == index).then_some(at)
    }

    /// Groups wanted now.
    pub(crate) fn groups(&self) -> &[Group] {
        if self.state.deleting {
            &[]
        } else {
            &self.spec.groups
        }
    }

    /// Defaults of health that the templates of the groups' platforms give.
    pub(crate) fn health_defaults(
        &mut self,
        handshakes: &BTreeMap<Sym, Arc<wire::Platform>>,
    ) -> Arc<Vec<Option<Health>>> {
        let etags: Vec<Sym> = self
            .spec
            .groups
            .iter()
            .filter_map(|group| handshakes.get(&group.choices.first()?.platform))
            .map(|handshake| handshake.etag.as_str().into())
            .collect();
        let generation = self.desired.value.generation;
        if let Some((at, same, defaults)) = &self.defaults
            && *at == generation
            && *same == etags
        {
            return defaults.clone();
        }
        let mut defaults: Vec<Option<Health>> = self
            .spec
            .groups
            .iter()
            .map(|group| self.template_health(group, handshakes))
            .collect();
        if defaults.iter().all(Option::is_none) {
            defaults = Vec::new();
        }
        let defaults = Arc::new(defaults);
        self.defaults = Some((generation, etags, Arc::clone(&defaults)));
        defaults
    }

    fn template_health(
        &self,
        group: &Group,
        handshakes: &BTreeMap<Sym, Arc<wire::Platform>>,
    ) -> Option<Health> {
        let handshake = handshakes.get(&group.choices.first()?.platform)?;
        let entry = handshake.templates.iter().find(|entry| {
            let version = group.version.is_empty()
                || drover_templates::Requirement::parse(&entry.version_requirement)
                    .is_ok_and(|requirement| requirement.accepts(&group.version));
            !entry.addon
                && (entry.store == self.spec.software || entry.store == "*")
                && version
                && matches(entry, group)
        })?;
        drover_convert::spec::health_policy("health", entry.defaults.as_ref()?.health.as_ref()?)
            .ok()
    }
}

/// Whether the attributes of a group are among those that a template asks for.
fn matches(entry: &wire::TemplateEntry, group: &Group) -> bool {
    let Some(matchers) = &entry.matchers else {
        return true;
    };
    let Ok(matchers) = drover_convert::value::object("matchers", matchers) else {
        return false;
    };
    matchers
        .iter()
        .all(|(key, wanted)| match (wanted, group.attributes.get(key)) {
            (serde_json::Value::Array(any), Some(value)) => any.contains(value),
            (wanted, Some(value)) => wanted == value,
            (_, None) => false,
        })
}
