//! What each call needs. A call that is not in the table is refused to everybody who has to say who they are.

use std::{collections::HashMap, fmt, sync::OnceLock};

use serde::{Deserialize, Serialize};

use self::Permission::{
    Administer, Agent, Change, Known, Open, PlatformChange, PlatformRead, Read,
};

/// What a caller must be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Nothing at all.
    Open,
    /// Any role: nothing is shown that would be secret, but strangers have no business here.
    Known,
    /// To look at clusters, nodes, events and platforms.
    Read,
    /// To change clusters, and to reach into their nodes.
    Change,
    /// To change what all clusters depend on.
    Administer,
    /// To look at what a platform runs.
    PlatformRead,
    /// To have a platform make and remove nodes.
    PlatformChange,
    /// To ask the agent of a node.
    Agent,
}

impl Permission {
    /// Whether nothing changes by what it allows. Such calls are audited when they are refused, or when it is asked for.
    #[must_use]
    pub fn is_read(self) -> bool {
        match self {
            Open | Known | Read | PlatformRead | Agent => true,
            Change | Administer | PlatformChange => false,
        }
    }
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Looks, and changes clusters.
    Operator,
    /// Everything.
    Admin,
    /// Calls platforms, as orchestrators do.
    Platform,
    /// Calls the agents of nodes, as orchestrators do.
    Agent,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Viewer,
        Self::Operator,
        Self::Admin,
        Self::Platform,
        Self::Agent,
    ];

    /// Whether it has a permission.
    #[must_use]
    pub fn has(self, permission: Permission) -> bool {
        match permission {
            Open | Known => true,
            Read => matches!(self, Self::Viewer | Self::Operator | Self::Admin),
            Change => matches!(self, Self::Operator | Self::Admin),
            Administer => self == Self::Admin,
            PlatformRead | PlatformChange => matches!(self, Self::Platform | Self::Admin),
            Agent => matches!(self, Self::Agent | Self::Admin),
        }
    }

    /// Roles of the identity that `drover certs` gives out, by the first part of its path.
    #[must_use]
    pub fn of_identity(role: &str) -> &'static [Self] {
        match role {
            "viewer" => &[Self::Viewer],
            "operator" => &[Self::Operator],
            "admin" => &[Self::Admin],
            "orchestrator" => &[Self::Platform, Self::Agent],
            // Platforms and agents are called and call nobody: a key that leaks from one opens nothing.
            _ => &[],
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::Platform => "platform",
            Self::Agent => "agent",
        })
    }
}

type Service = (&'static str, &'static [(&'static str, Permission)]);

/// The calls of all services.
const TABLE: &[Service] = &[
    (
        "grpc.health.v1.Health",
        &[("Check", Open), ("List", Open), ("Watch", Open)],
    ),
    (
        "grpc.reflection.v1.ServerReflection",
        &[("ServerReflectionInfo", Known)],
    ),
    (
        "grpc.reflection.v1alpha.ServerReflection",
        &[("ServerReflectionInfo", Known)],
    ),
    (
        "drover.orchestrator.v1.ClusterService",
        &[
            ("ApplyCluster", Change),
            ("PlanCluster", Read),
            ("GetCluster", Read),
            ("ListClusters", Read),
            ("WatchClusters", Read),
            ("DeleteCluster", Change),
            ("ReconcileCluster", Change),
            ("PauseCluster", Change),
            ("ResumeCluster", Change),
            ("ScaleGroup", Change),
            ("ReplaceNode", Change),
            ("SetNodeRepair", Change),
            ("RestartGroup", Change),
            ("ListRevisions", Read),
            ("UndoCluster", Change),
            ("StreamNodeLogs", Read),
            ("ExecNode", Change),
            ("AbandonPlatform", Administer),
            ("GetNode", Read),
            ("ListNodes", Read),
            ("WatchNodes", Read),
            ("ListEvents", Read),
            ("WatchEvents", Read),
        ],
    ),
    (
        "drover.orchestrator.v1.PlatformRegistryService",
        &[
            ("RegisterPlatform", Administer),
            ("GetPlatform", Read),
            ("ListPlatforms", Read),
            ("UnregisterPlatform", Administer),
            ("ConfirmNodeLoss", Administer),
            ("ListHosts", Read),
            ("ListStorage", Read),
            ("DeleteStorage", Change),
            ("ListDiscoveredClusters", Read),
        ],
    ),
    (
        "drover.orchestrator.v1.SecretService",
        &[
            ("ApplySecret", Administer),
            ("ListSecrets", Administer),
            ("DeleteSecret", Administer),
        ],
    ),
    (
        "drover.platform.v1.PlatformService",
        &[
            ("GetPlatform", PlatformRead),
            ("Discover", PlatformRead),
            ("WatchNodes", PlatformRead),
            ("Fence", PlatformChange),
            ("Provision", PlatformChange),
            ("Deprovision", PlatformChange),
            ("UpdateNode", PlatformChange),
        ],
    ),
    (
        "drover.platform.v1.StorageService",
        &[
            ("ListStorage", PlatformRead),
            ("DeleteStorage", PlatformChange),
        ],
    ),
    (
        "drover.platform.v1.NodeAccessService",
        &[("StreamLogs", PlatformRead), ("Exec", PlatformChange)],
    ),
    (
        "drover.platform.v1.InfrastructureService",
        &[
            ("EnsureInfrastructure", PlatformChange),
            ("GetInfrastructure", PlatformRead),
            ("ListInfrastructure", PlatformRead),
            ("ReleaseInfrastructure", PlatformChange),
        ],
    ),
    (
        "drover.platform.v1.InventoryService",
        &[("ListHosts", PlatformRead)],
    ),
    (
        "drover.platform.v1.AddonService",
        &[
            ("EnsureAddon", PlatformChange),
            ("ListAddons", PlatformRead),
            ("RemoveAddon", PlatformChange),
        ],
    ),
    ("drover.agent.v1.AgentService", &[("GetInfo", Agent)]),
];

/// The requests of plain HTTP; any other one needs [`Permission::Administer`].
const HTTP: &[(&str, Permission)] = &[
    ("/healthz", Open),
    ("/readyz", Open),
    ("/metrics", Read),
    // The Replicante Platform API.
    ("/discover", PlatformRead),
    ("/provision", PlatformChange),
    ("/deprovision", PlatformChange),
];

/// What a call needs. None: it is not in the table.
#[must_use]
pub fn permission(service: &str, method: &str) -> Option<Permission> {
    static BY_NAME: OnceLock<HashMap<(&str, &str), Permission>> = OnceLock::new();
    let by_name = BY_NAME.get_or_init(|| {
        TABLE
            .iter()
            .flat_map(|(service, methods)| {
                methods
                    .iter()
                    .map(|(method, permission)| ((*service, *method), *permission))
            })
            .collect()
    });
    by_name.get(&(service, method)).copied()
}

/// What a request of plain HTTP needs.
pub(crate) fn http_permission(path: &str) -> Permission {
    HTTP.iter()
        .find(|(known, _)| *known == path)
        .map_or(Administer, |(_, permission)| *permission)
}
