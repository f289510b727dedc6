//! One cluster in memory: what is wanted, what is recorded, what is observed, behind one lock.

mod absence;
mod calls;
mod observation;
mod probed;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use drover_core::{
    Error, Millis, Result, Sym,
    infrastructure::Wanted,
    spec::{
        ClusterSpec, Group, GroupSpec, Health, Lifecycle, MAX_GROUPS, OrphanPolicy, Probe,
        SecretRef, Settings, UserDataSource,
    },
};
use drover_planner::{Leaving, Skipped, State};
use drover_proto::{orchestrator::v1 as pb, platform::v1 as wire};
use drover_store::{ClusterRow, Desired, DigestKey, Head, Versioned, digest::ClusterDigests};
use parking_lot::Mutex;
use prost::Message;
use uuid::Uuid;

pub(crate) use absence::{CompleteRead, Removed};
pub(crate) use calls::{CallEnd, RoleChangeFailure};
pub(crate) use observation::{Effect, Observation, Observed, Source};
pub(crate) use probed::ProbeOutcome;

use crate::{
    codec::{self, Interner},
    platform::has,
    secrets::FormerGroup,
    template,
    waiter::ReconcileWaiter,
};

/// How long an orphan is seen before it is deleted, unless the spec says so.
const ORPHAN_GRACE: Millis = 120_000;

/// A cluster. The lock is never held across an await.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) uid: Uuid,
    pub(crate) name: Arc<str>,
    pub(crate) inner: Mutex<ClusterState>,
    /// Held by whoever changes what is wanted, so that two of them do not take turns in failing.
    pub(crate) change: tokio::sync::Mutex<()>,
    /// Held by whoever asked for a pass and waits for its end.
    pub(crate) reconciling: tokio::sync::Mutex<()>,
    /// The groups of the specs that are kept, and the generation before which they were.
    pub(crate) former: Mutex<Option<(u64, Arc<Vec<FormerGroup>>)>>,
}

/// What templates suggest for groups that say nothing.
#[derive(Debug)]
pub(crate) struct Defaults {
    /// The generation and etags that it was made from.
    made_of: (u64, Vec<Sym>),
    health: Arc<Vec<Option<Health>>>,
    /// The groups with what is suggested of their order, and the templates of their choices. Absent: nothing is.
    groups: Option<Arc<Vec<Group>>>,
    /// Nobody was told yet that other templates are known than before.
    news: bool,
    /// How the nodes of each group are asked for their health. Absent: as it happens to be.
    asked: Vec<(Sym, Option<Probe>)>,
    /// Nodes are not probed yet as `health` says.
    unprobed: bool,
}

/// What is known of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterState {
    pub(crate) desired: Versioned<Desired>,
    pub(crate) spec: Arc<Resolved>,
    pub(crate) head: Versioned<Head>,
    pub(crate) state: State,
    /// Open requests, as they are sent.
    pub(crate) bodies: HashMap<Uuid, Bytes>,
    /// First slot of each request.
    pub(crate) first_slots: HashMap<Uuid, u64>,
    /// Defaults from templates.
    pub(crate) defaults: Option<Defaults>,
    /// Groups that are wanted no more and still have nodes.
    pub(crate) leaving: Arc<Vec<Leaving>>,
    /// Who asked for a pass and wants to know what became of it.
    pub(crate) waiter: Option<Arc<ReconcileWaiter>>,
    /// Why what is to be done cannot be stored, which is why it is not done; since when. None: it can, as far as known.
    pub(crate) unstored: Option<(Error, Millis)>,
    /// Platforms of nodes whose failed probes were forgotten, once for each: they are told.
    pub(crate) calmed: Vec<Sym>,
    /// Raised by every change that a reader could see.
    pub(crate) version: u64,
    /// Its record is gone.
    pub(crate) finished: bool,
}

/// Key of the restarts among what else a user wants.
const RESTARTS: &str = "restarts";

/// Key of the number of the last order to adopt.
const ADOPT: &str = "adopt";

/// The number of the last order to adopt what is shown of a cluster and has no record. 0: there was none.
pub(crate) fn adopt_order(desired: &Desired) -> u64 {
    let bytes = desired.extra.get(ADOPT);
    let bytes = bytes.and_then(|bytes| bytes.as_slice().try_into().ok());
    bytes.map_or(0, u64::from_be_bytes)
}

/// Orders that.
pub(crate) fn order_adoption(desired: &mut Desired) {
    let order = adopt_order(desired) + 1;
    desired
        .extra
        .insert(ADOPT.to_owned(), order.to_be_bytes().to_vec());
}

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

/// Key of the repairs among what else a user wants.
const REPAIRS: &str = "repairs";

/// Ids of nodes on which somebody works.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Repairs {
    #[prost(string, repeated, tag = "1")]
    pub(crate) nodes: Vec<String>,
}

impl Repairs {
    pub(crate) fn of(desired: &Desired) -> Result<Self> {
        match desired.extra.get(REPAIRS) {
            None => Ok(Self::default()),
            Some(bytes) => Self::decode(bytes.as_slice())
                .map_err(|_| Error::internal("the stored repairs cannot be read")),
        }
    }

    pub(crate) fn put(&self, desired: &mut Desired) {
        if self.nodes.is_empty() {
            desired.extra.remove(REPAIRS);
        } else {
            desired
                .extra
                .insert(REPAIRS.to_owned(), self.encode_to_vec());
        }
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
    /// What it names of secrets and for what, used by a group or not.
    pub(crate) secrets: BTreeSet<(SecretRef, pb::SecretPurpose)>,
}

/// A spec with what its inline user data is known by outside of the store.
fn known_as(mut spec: ClusterSpec, digests: &ClusterDigests<'_>) -> ClusterSpec {
    let name = |settings: &mut Settings| {
        if let Some(own) = &mut settings.bootstrap
            && let UserDataSource::Sha256(digest) = &own.source
        {
            own.known_as = digests.user_data(digest);
            own.formerly_known_as = digests.former_user_data(digest);
        }
    };
    name(&mut spec.settings);
    let mut open: Vec<&mut GroupSpec> = spec.groups.iter_mut().collect();
    while let Some(group) = open.pop() {
        name(&mut group.settings);
        open.extend(&mut group.groups);
    }
    spec
}

/// What a spec names of secrets, and for what.
fn secrets(spec: &ClusterSpec) -> BTreeSet<(SecretRef, pb::SecretPurpose)> {
    use pb::SecretPurpose::{Probe, Workload};
    let mut found = BTreeSet::new();
    let mut add = |settings: &Settings| {
        let source = settings.bootstrap.as_ref().map(|own| &own.source);
        if let Some(UserDataSource::Secret(of)) = source {
            found.insert((of.clone(), Workload));
        }
        let seen = settings.secrets.values();
        found.extend(seen.map(|of| (of.clone(), Workload)));
        if let Some((_, tls)) = settings.health.as_ref().and_then(|own| own.probe.tls()) {
            found.extend(tls.secrets().into_iter().map(|(_, of)| (of, Probe)));
        }
    };
    add(&spec.settings);
    let mut open: Vec<&GroupSpec> = spec.groups.iter().collect();
    while let Some(group) = open.pop() {
        add(&group.settings);
        open.extend(&group.groups);
    }
    found
}

impl Resolved {
    pub(crate) fn new(spec: ClusterSpec, digests: &ClusterDigests<'_>) -> Result<Self> {
        let spec = &known_as(spec, digests);
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
            secrets: secrets(spec),
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
    pub(crate) fn from_stored(bytes: &[u8], digests: &ClusterDigests<'_>) -> Result<Self> {
        let spec = drover_convert::spec::cluster_spec(&stored_spec(bytes)?)?;
        Self::new(spec, digests)
    }
}

pub(crate) fn stored_spec(bytes: &[u8]) -> Result<pb::ClusterSpec> {
    pb::ClusterSpec::decode(bytes).map_err(|_| {
        Error::internal("the stored spec cannot be read: it is damaged, or of a newer version")
    })
}

impl Cluster {
    /// From the store. Its requests count on from `first`, above those that a lost store may have made.
    pub(crate) fn load(
        row: ClusterRow,
        first: u64,
        interner: &Interner,
        digests: &DigestKey,
    ) -> Result<Self> {
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
        state.skipped = Skipped::of(&head.value.skipped);
        state.count_from(first);
        state.observed_generation = head.value.observed_generation;
        codec::decode_head(&head.value.state, &mut state, interner)?;
        crate::infrastructure::codec::load(resources, &mut state, interner)?;
        state.nodes.reserve_exact(nodes.len());
        for node in nodes {
            let before = state.nodes.last();
            let mut node = codec::decode_node(node.slot, &node.value, interner, before)?;
            node.resume_turn();
            state.nodes.push(node);
        }
        state.nodes.sort_by_key(|node| node.slot);
        let mut bodies = HashMap::new();
        for (_, bytes) in requests {
            let (request, body) = codec::decode_request(&bytes, interner)?;
            bodies.insert(request.id, body);
            state.requests.insert(request.id, request);
        }
        let digests = digests.of_cluster(uid);
        let spec =
            Arc::new(Resolved::from_stored(&desired.value.spec, &digests)?.interned(interner));
        let name: Arc<str> = desired.value.name.as_str().into();
        let mut inner = ClusterState {
            first_slots: first_slots(&state),
            desired,
            spec,
            head,
            state,
            bodies,
            defaults: None,
            leaving: Arc::default(),
            waiter: None,
            unstored: None,
            calmed: Vec::new(),
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
            former: Mutex::default(),
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
        let mut inner = ClusterState {
            desired,
            spec,
            head,
            state,
            bodies: HashMap::new(),
            first_slots: HashMap::new(),
            defaults: None,
            leaving: Arc::default(),
            waiter: None,
            unstored: None,
            calmed: Vec::new(),
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
            former: Mutex::default(),
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

impl ClusterState {
    /// Takes over into the record what the user said.
    pub(crate) fn follow_desired(&mut self) {
        self.follow_storage();
        let desired = &self.desired.value;
        self.state.generation = desired.generation;
        self.state.deleting = desired.delete_time_ms.is_some();
        self.state.paused = desired.paused.is_some();
        // What cannot be read goes in no order.
        self.leaving = Arc::new(crate::order::leaving(desired).unwrap_or_default());
        self.state.adopt = adopt_order(desired);
        let uid = self.state.uid;
        // What cannot be read restarts nothing.
        let restarts = Restarts::of(desired).unwrap_or_default();
        let repairs = Repairs::of(desired).unwrap_or_default();
        self.state.repairs.clear();
        if !repairs.nodes.is_empty() {
            let nodes = self.state.nodes.iter();
            let repaired = nodes.filter(|node| repairs.nodes.contains(&node.id(uid)));
            self.state.repairs = repaired.map(|node| node.slot).collect();
        }
        self.state.scaled_away.clear();
        if !desired.scaled_away.is_empty() {
            let nodes = self.state.nodes.iter();
            let named = nodes.filter(|node| desired.scaled_away.contains(&node.id(uid)));
            self.state.scaled_away = named.map(|node| node.slot).collect();
        }
        for node in &mut self.state.nodes {
            node.marked = restarts.has(node)
                || !desired.marks.is_empty() && desired.marks.contains(&node.id(uid));
        }
    }

    /// Remembers what groups say of their storage, for when they are gone. Durable with the next step: before the first
    /// node is asked for.
    fn follow_storage(&mut self) {
        let policies = &mut self.state.storage;
        for group in &self.spec.groups {
            if let Some(storage) = &group.storage {
                policies.insert(group.path.clone(), storage.policy);
            }
        }
        if policies.len() > 2 * MAX_GROUPS {
            let (groups, nodes) = (&self.spec.groups, &self.state.nodes);
            policies.retain(|path, _| {
                groups.iter().any(|group| group.path == *path)
                    || nodes.iter().any(|node| node.group == *path)
            });
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

    /// The groups of the spec with their templates, and what these suggest of their order. None: as they stand in the spec.
    pub(crate) fn wanted(&self) -> Option<Arc<Vec<Group>>> {
        let generation = self.desired.value.generation;
        let defaults = self.defaults.as_ref();
        let current = defaults.filter(|defaults| defaults.made_of.0 == generation);
        current.and_then(|defaults| defaults.groups.clone())
    }

    /// What is run inside the nodes of a wanted group. What its template suggests is found out anew for each generation;
    /// until then that of the generation before holds: without its hook, a node would be called active and not be so.
    pub(crate) fn lifecycle(&self, path: &str) -> Option<Lifecycle> {
        let of = |groups: &[Group]| groups.iter().find(|g| *g.path == *path).cloned();
        let own = of(&self.spec.groups)?.lifecycle;
        let suggested = self.defaults.as_ref().and_then(|it| it.groups.as_ref());
        let Some(last) = suggested.and_then(|groups| of(groups)?.lifecycle) else {
            return own;
        };
        if self.wanted().is_some() {
            return Some(last);
        }
        Some(own.unwrap_or_default().or(&last))
    }

    /// Defaults of health that the templates of the groups' platforms give.
    pub(crate) fn health_defaults(
        &mut self,
        handshakes: &BTreeMap<Sym, Arc<wire::Platform>>,
    ) -> Arc<Vec<Option<Health>>> {
        let generation = self.desired.value.generation;
        let etags = || {
            let choices = self.spec.groups.iter().flat_map(|group| &group.choices);
            let handshakes = choices.filter_map(|choice| handshakes.get(&choice.platform));
            handshakes.map(|handshake| handshake.etag.as_str())
        };
        let same = |(of, tags): &(u64, Vec<Sym>)| {
            *of == generation && etags().eq(tags.iter().map(|tag| &**tag))
        };
        if let Some(same) = self.defaults.as_ref().filter(|it| same(&it.made_of)) {
            return same.health.clone();
        }
        let made_of = (generation, etags().map(Sym::from).collect());
        let mut health = Vec::new();
        let mut groups = self.spec.groups.clone();
        let mut filled = false;
        for group in &mut groups {
            let defaults = self.template_defaults(group, handshakes);
            let first = group.choices.first();
            let handshake = first.and_then(|first| handshakes.get(&first.platform));
            let can_exec = handshake.is_some_and(|it| has(it, wire::Capability::NodeExec));
            health.push(defaults.and_then(|defaults| suggested_health(defaults, can_exec)));
            filled |= defaults.is_some_and(|defaults| crate::order::fill_in(group, defaults));
            filled |= template::fill_in(group, &self.spec.software, handshakes);
        }
        if health.iter().all(Option::is_none) {
            health = Vec::new();
        }
        let health = Arc::new(health);
        let before = self.defaults.as_ref();
        let told = before.and_then(|before| before.groups.as_ref());
        let told = told.map_or_else(Vec::new, |told| template::known(told));
        let news = before.is_some_and(|before| before.news) || told != template::known(&groups);
        // Whoever runs already is not shown to begin to run again.
        let unprobed = before.is_some_and(|before| before.unprobed || before.health != health);
        let asked = self.asked(&health);
        let was = before.map_or_else(Vec::new, |before| before.asked.clone());
        self.forget_other_probes(&was, &asked);
        self.defaults = Some(Defaults {
            made_of,
            health: Arc::clone(&health),
            groups: filled.then(|| Arc::new(groups)),
            news,
            asked,
            unprobed,
        });
        health
    }

    fn asked(&self, defaults: &[Option<Health>]) -> Vec<(Sym, Option<Probe>)> {
        let groups = self.spec.groups.iter().enumerate();
        groups
            .map(|(at, group)| {
                let suggested = || defaults.get(at).and_then(Option::as_ref);
                let health = group.health.as_ref().or_else(suggested);
                (group.path.clone(), health.map(|it| it.probe.clone()))
            })
            .collect()
    }

    /// What other probes have shown says nothing of those that are made now.
    fn forget_other_probes(&mut self, was: &[(Sym, Option<Probe>)], now: &[(Sym, Option<Probe>)]) {
        let other = |(path, probe): &&(Sym, Option<Probe>)| {
            let mut was = was.iter();
            was.any(|(before, old)| before == path && old != probe)
        };
        for (path, _) in now.iter().filter(other) {
            for node in &mut self.state.nodes {
                if node.group == *path {
                    let troubled = drover_planner::is_troubled(node);
                    (node.probe.good, node.probe.bad) = (0, 0);
                    node.probe.message = Box::default();
                    if troubled && !drover_planner::is_troubled(node) {
                        self.calmed.push(node.platform.clone());
                    }
                }
            }
        }
    }

    fn template_defaults<'a>(
        &self,
        group: &Group,
        handshakes: &'a BTreeMap<Sym, Arc<wire::Platform>>,
    ) -> Option<&'a wire::TemplateDefaults> {
        let handshake = handshakes.get(&group.choices.first()?.platform)?;
        let entry = template::entry(handshake, &self.spec.software, group)?;
        entry.defaults.as_ref()
    }

    /// Whether other templates are known of its groups than when that was asked last.
    pub(crate) fn take_template_news(&mut self) -> bool {
        let defaults = self.defaults.as_mut();
        defaults.is_some_and(|defaults| std::mem::take(&mut defaults.news))
    }

    /// Whether templates suggest another health of its groups than when that was asked last.
    pub(crate) fn take_health_news(&mut self) -> bool {
        let defaults = self.defaults.as_mut();
        defaults.is_some_and(|defaults| std::mem::take(&mut defaults.unprobed))
    }
}

/// When a node counts as healthy, as its template says.
fn suggested_health(defaults: &wire::TemplateDefaults, can_exec: bool) -> Option<Health> {
    let suggested = defaults.health.as_ref()?;
    let mut health = drover_convert::spec::health_policy("health", suggested).ok()?;
    // A platform has no say in who is shown which secret.
    if let Some((_, tls)) = health.probe.tls()
        && !tls.secrets().is_empty()
    {
        return None;
    }
    if matches!(health.probe, Probe::Exec { .. }) && !can_exec {
        // Nobody asked for it by name, so the platform's own readiness has to do.
        health.probe = Probe::Phase;
    }
    Some(health)
}
