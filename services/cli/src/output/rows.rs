//! Table rows for all kinds of objects.

use std::{collections::BTreeSet, time::SystemTime};

use drover_core::storage::quantity;
use drover_manifest::schema::pascal;
use drover_proto::{
    orchestrator::v1::{
        Cluster, ClusterPhase, ClusterSpec, DiscoveredCluster, Event, EventSeverity, GroupSpec,
        KeptStorage, Node, NodeState, Platform, PlatformPhase, PlatformStatus, Replica, Secret,
        SecretPurpose, StorageClaim,
    },
    platform::v1::{AddonKind, Host, HostState, NodeRole, Platform as Handshake},
};

use super::{Table, age};

/// The last words of the name of an enum value: `Ready` for `NODE_STATE_READY`.
pub(crate) fn word(name: &str, prefix: &str) -> String {
    pascal(name.strip_prefix(prefix).unwrap_or(name))
}

pub(crate) fn node_state(state: NodeState) -> String {
    word(state.as_str_name(), "NODE_STATE_")
}

/// Status column of a node: the reason if it is not Ready.
pub(crate) fn node_status(node: &Node) -> String {
    if node.state() == NodeState::Ready || node.reason.is_empty() {
        node_state(node.state())
    } else {
        node.reason.clone()
    }
}

/// Width of the longest state of a cluster or node.
pub(crate) const STATUS_WIDTH: usize = 16;

/// Conditions that tell more than the phase, the most severe first.
pub(super) const TELLING: [&str; 10] = [
    "Deleting",
    "Paused",
    "StoreBehind",
    "ForeignNodes",
    "DeletionBlocked",
    "StoreUnavailable",
    "Failed",
    "Remediating",
    "ScalingUp",
    "ScalingDown",
];

/// State of a cluster in one word.
pub(crate) fn cluster_status(cluster: &Cluster) -> String {
    if cluster.delete_time.is_some() {
        return "Deleting".into();
    }
    let Some(status) = &cluster.status else {
        return "Progressing".into();
    };
    if status.pause.is_some() {
        return "Paused".into();
    }
    if status.phase() == ClusterPhase::Ready {
        return "Ready".into();
    }
    let holds = |name: &&&str| {
        status
            .conditions
            .iter()
            .any(|c| c.r#type == **name && c.status == Some(true))
    };
    match TELLING.iter().find(holds) {
        Some(name) => (*name).into(),
        None => word(status.phase().as_str_name(), "CLUSTER_PHASE_"),
    }
}

/// Desired and ready nodes, active and standby.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) size: u32,
    pub(crate) ready: u32,
    pub(crate) standby: u32,
    pub(crate) standby_ready: u32,
}

impl Readiness {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let groups = cluster.status.iter().flat_map(|status| &status.groups);
        groups.fold(Self::default(), |sum, group| Self {
            size: sum.size + group.size,
            ready: sum.ready + group.ready,
            standby: sum.standby + group.standby,
            standby_ready: sum.standby_ready + group.standby_ready,
        })
    }

    /// Active and standby nodes: `1/1 +2/2`.
    pub(crate) fn short(self) -> String {
        if self.standby == 0 && self.standby_ready == 0 {
            format!("{}/{}", self.ready, self.size)
        } else {
            format!(
                "{}/{} +{}/{}",
                self.ready, self.size, self.standby_ready, self.standby
            )
        }
    }

    /// All nodes, including standby ones: `2 of 3`.
    pub(crate) fn words(self) -> String {
        format!(
            "{} of {}",
            self.ready + self.standby_ready,
            self.size + self.standby
        )
    }
}

/// Names of the platforms in a spec, in order and without duplicates.
pub(crate) fn platforms(spec: &ClusterSpec) -> Vec<String> {
    fn walk<'a>(groups: &'a [GroupSpec], names: &mut Vec<&'a str>) {
        for group in groups {
            names.extend(group.platforms.iter().map(|choice| choice.name.as_str()));
            walk(&group.groups, names);
        }
    }
    let mut names: Vec<&str> = spec
        .platforms
        .iter()
        .map(|choice| choice.name.as_str())
        .collect();
    walk(&spec.groups, &mut names);
    let mut seen = BTreeSet::new();
    names
        .into_iter()
        .filter(|name| seen.insert(*name))
        .map(str::to_owned)
        .collect()
}

pub(crate) fn clusters(wide: bool) -> Table {
    let mut header = vec![
        "NAME",
        "READY",
        "STATUS",
        "STORE",
        "VERSION",
        "PLATFORMS",
        "AGE",
    ];
    if wide {
        header.extend(["GENERATION", "UID"]);
    }
    Table::new(&header)
}

pub(crate) fn cluster(cluster: &Cluster, wide: bool, now: SystemTime) -> Vec<String> {
    let spec = cluster.spec.clone().unwrap_or_default();
    let store = spec.store.clone().unwrap_or_default();
    let mut row = vec![
        cluster.name.clone(),
        Readiness::of(cluster).short(),
        cluster_status(cluster),
        or_dash(&store.software),
        or_dash(&store.version),
        or_dash(&platforms(&spec).join(",")),
        age::since(cluster.create_time.as_ref(), now),
    ];
    if wide {
        let observed = cluster
            .status
            .as_ref()
            .map_or(0, |status| status.observed_generation);
        row.push(format!("{observed} of {}", cluster.generation));
        row.push(cluster.uid.clone());
    }
    row
}

pub(crate) fn nodes(wide: bool) -> Table {
    let mut header = vec![
        "NAME", "GROUP", "ROLE", "STATUS", "PLATFORM", "CLASS", "VERSION", "ADDRESS", "AGE",
    ];
    if wide {
        header.extend(["ID", "FAILURE-DOMAIN", "PROVIDER-ID", "REQUEST-ID"]);
    }
    Table::new(&header)
}

/// Role of a node in one word.
pub(crate) fn role(node: &Node) -> &'static str {
    match node.role() {
        NodeRole::Active => "active",
        NodeRole::Standby => "standby",
        NodeRole::Unspecified => "-",
    }
}

/// Address of a node: that of its agent, or its first endpoint.
pub(crate) fn address(node: &Node) -> String {
    let agent = node
        .agent_address
        .as_deref()
        .map(|address| match address.split_once("://") {
            // An annotation of a pod may name a path besides.
            Some((_, rest)) => rest.split(['/', '?', '#']).next().unwrap_or_default(),
            None => address,
        })
        .map(str::to_owned);
    agent
        .or_else(|| node.endpoints.values().next().cloned())
        .unwrap_or_default()
}

/// Process id of a node on this machine (`local://HOST/PID`).
pub(crate) fn pid(node: &Node) -> Option<&str> {
    let (_, pid) = node
        .provider_id
        .strip_prefix("local://")?
        .rsplit_once('/')?;
    (!pid.is_empty()).then_some(pid)
}

pub(crate) fn node(node: &Node, wide: bool, now: SystemTime) -> Vec<String> {
    let mut row = vec![
        format!("{}/{}", node.cluster, node.name),
        node.group.clone(),
        role(node).into(),
        node_status(node),
        node.platform.clone(),
        or_dash(&node.node_class),
        or_dash(&node.version),
        or_dash(&address(node)),
        age::since(node.create_time.as_ref(), now),
    ];
    if wide {
        row.extend([
            node.id.clone(),
            or_dash(&node.failure_domain),
            or_dash(&node.provider_id),
            node.request_id.clone(),
        ]);
    }
    row
}

pub(crate) fn platforms_table(wide: bool) -> Table {
    let mut header = vec![
        "NAME", "KIND", "STATUS", "NODES", "VERSION", "ENDPOINT", "AGE",
    ];
    if wide {
        header.extend(["DRIVER", "ADDONS", "UID", "MESSAGE"]);
    }
    Table::new(&header)
}

/// State of a platform in one word.
pub(crate) fn platform_status(platform: &Platform) -> String {
    let phase = platform
        .status
        .as_ref()
        .map_or(PlatformPhase::Connecting, PlatformStatus::phase);
    word(phase.as_str_name(), "PLATFORM_PHASE_")
}

/// Kinds of addons that a platform can make, and the templates for those that are made from one.
pub(crate) fn addons(handshake: &Handshake) -> String {
    let entries = handshake.templates.iter().filter(|entry| entry.addon);
    let templates: Vec<&str> = entries.map(|entry| entry.template.as_str()).collect();
    let kinds = handshake.addon_kinds().map(|kind| {
        let name = word(kind.as_str_name(), "ADDON_KIND_");
        if kind == AddonKind::Template && !templates.is_empty() {
            format!("{name} ({})", templates.join(", "))
        } else {
            name
        }
    });
    kinds.collect::<Vec<_>>().join(", ")
}

pub(crate) fn platform(platform: &Platform, wide: bool, now: SystemTime) -> Vec<String> {
    let status = platform.status.clone().unwrap_or_default();
    let handshake = status.handshake.clone().unwrap_or_default();
    let mut row = vec![
        platform.name.clone(),
        or_dash(&handshake.kind),
        platform_status(platform),
        status.node_count.to_string(),
        or_dash(&handshake.version),
        platform
            .spec
            .as_ref()
            .map(|spec| spec.endpoint.clone())
            .unwrap_or_default(),
        age::since(platform.create_time.as_ref(), now),
    ];
    if wide {
        row.extend([
            or_dash(&handshake.driver),
            or_dash(&addons(&handshake)),
            or_dash(&status.uid),
            or_dash(&status.message),
        ]);
    }
    row
}

pub(crate) fn events() -> Table {
    Table::new(&["SEQ", "LAST-SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"])
}

/// Severity of an event in one word.
pub(crate) fn severity(event: &Event) -> &'static str {
    match event.severity() {
        EventSeverity::Warning => "Warning",
        EventSeverity::Info | EventSeverity::Unspecified => "Info",
    }
}

/// The object of an event.
pub(crate) fn event_object(event: &Event) -> String {
    match (&event.node, &event.group) {
        (Some(node), _) => format!("node/{node}"),
        (None, Some(group)) => format!("group/{group}"),
        (None, None) => format!("cluster/{}", event.cluster),
    }
}

pub(crate) fn event(event: &Event, now: SystemTime) -> Vec<String> {
    let mut message = event.message.clone();
    if event.count > 1 {
        message = format!("{message} ({} times)", event.count);
    }
    vec![
        event.sequence.to_string(),
        age::since(event.event_time.as_ref(), now),
        severity(event).into(),
        event.reason.clone(),
        event_object(event),
        message,
    ]
}

pub(crate) fn hosts() -> Table {
    Table::new(&[
        "ID",
        "STATUS",
        "CLASS",
        "FAILURE-DOMAIN",
        "CLUSTER",
        "NODE",
        "MESSAGE",
    ])
}

pub(crate) fn host(host: &Host) -> Vec<String> {
    let state = HostState::try_from(host.state).unwrap_or(HostState::Unknown);
    vec![
        host.id.clone(),
        word(state.as_str_name(), "HOST_STATE_"),
        or_dash(&host.node_class),
        or_dash(&host.failure_domain),
        or_dash(&host.cluster_id),
        or_dash(&host.node_id),
        host.message.clone(),
    ]
}

pub(crate) fn replicas() -> Table {
    Table::new(&[
        "NAME",
        "ROLE",
        "ADDRESS",
        "VERSION",
        "PLATFORMS",
        "AGE",
        "MESSAGE",
    ])
}

pub(crate) fn replica(replica: &Replica, now: SystemTime) -> Vec<String> {
    let role = if replica.leads { "leader" } else { "standby" };
    vec![
        replica.name.clone(),
        role.to_owned(),
        or_dash(&replica.address),
        or_dash(&replica.version),
        replica.platforms.len().to_string(),
        age::since(replica.start_time.as_ref(), now),
        if replica.unfit.is_empty() && replica.takes_over == Some(false) {
            "has yet to read the clusters, or ends".to_owned()
        } else {
            replica.unfit.clone()
        },
    ]
}

pub(crate) fn discovered_table() -> Table {
    Table::new(&["PLATFORM", "CLUSTER", "OWNER", "NODES", "LAST-SEEN"])
}

pub(crate) fn discovered(cluster: &DiscoveredCluster, now: SystemTime) -> Vec<String> {
    vec![
        cluster.platform.clone(),
        or_dash(&cluster.cluster_id),
        or_dash(&cluster.owner),
        cluster.node_count.to_string(),
        age::since(cluster.observe_time.as_ref(), now),
    ]
}

pub(crate) fn storage_table() -> Table {
    Table::new(&[
        "CLUSTER", "GROUP", "ORDINAL", "PLATFORM", "SIZE", "CLASS", "SINCE", "FOR", "ID",
    ])
}

pub(crate) fn storage(one: &KeptStorage, now: SystemTime) -> Vec<String> {
    let kept = one.storage.clone().unwrap_or_default();
    let asked = kept.storage.unwrap_or_default();
    let whom = match one.claim() {
        StorageClaim::Cluster => "its next node",
        StorageClaim::None => "none (cluster deleted)",
        StorageClaim::Foreign => "another orchestrator",
        StorageClaim::Unspecified => "-",
    };
    vec![
        or_dash(&kept.cluster_id),
        or_dash(&kept.group),
        kept.ordinal.to_string(),
        one.platform.clone(),
        asked.size_bytes.map_or_else(|| "-".to_owned(), quantity),
        or_dash(&asked.class),
        age::since(kept.kept_time.as_ref(), now),
        whom.to_owned(),
        kept.id,
    ]
}

pub(crate) fn secrets() -> Table {
    Table::new(&["NAME", "PURPOSE", "KEYS", "USED-BY", "AGE"])
}

pub(crate) fn secret(secret: &Secret, now: SystemTime) -> Vec<String> {
    let keys: Vec<&str> = secret.keys.iter().map(|key| key.name.as_str()).collect();
    vec![
        secret.name.clone(),
        purpose(secret.purpose()).to_owned(),
        or_dash(&keys.join(",")),
        or_dash(&secret.users.join(",")),
        age::since(secret.create_time.as_ref(), now),
    ]
}

/// The purpose of a secret, in the notation of manifests.
pub(crate) fn purpose(purpose: SecretPurpose) -> &'static str {
    match purpose {
        // Servers that do not support purposes return none.
        SecretPurpose::Unspecified => "-",
        SecretPurpose::Workload => "workload",
        SecretPurpose::Probe => "probe",
        SecretPurpose::Platform => "platform",
    }
}

pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".into()
    } else {
        text.to_owned()
    }
}
