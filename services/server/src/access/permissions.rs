//! Required permissions of all calls. A call that is not in the table is denied to everyone who has to authenticate.

use std::{collections::HashMap, fmt, sync::OnceLock};

use serde::{Deserialize, Serialize};

use self::Permission::{
    Administer, Agent, Change, Known, Open, PlatformChange, PlatformRead, PodAccess, Read,
    ResourceChange, ResourceRead,
};

/// A permission that a call requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// No permission.
    Open,
    /// Any role: the response is not secret, but strangers are kept out.
    Known,
    /// Read clusters, nodes, events and platforms.
    Read,
    /// Change clusters, and access their nodes.
    Change,
    /// Change what all clusters depend on.
    Administer,
    /// Read the state of a platform.
    PlatformRead,
    /// Create and remove nodes on a platform.
    PlatformChange,
    /// Query the agent of a node.
    Agent,
    /// Read the resources of a Kubernetes.
    ResourceRead,
    /// Change the resources of a Kubernetes.
    ResourceChange,
    /// Run commands in any pod of a Kubernetes, and read its files and logs.
    PodAccess,
}

impl Permission {
    /// Whether it permits only reads. Reads are audited only if they are refused or if auditing of reads is enabled.
    #[must_use]
    pub fn is_read(self) -> bool {
        match self {
            Open | Known | Read | PlatformRead | Agent | ResourceRead => true,
            Change | Administer | PlatformChange | ResourceChange | PodAccess => false,
        }
    }
}

/// A role that can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Read-only access.
    Viewer,
    /// Read access, and changes of clusters.
    Operator,
    /// Full access.
    Admin,
    /// Calls to platforms, as made by orchestrators.
    Platform,
    /// Calls to node agents, as made by orchestrators.
    Agent,
    /// Read access to the resources of a Kubernetes.
    ResourceViewer,
    /// Full access to the resources of a Kubernetes, and into its pods.
    ResourceOperator,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 7] = [
        Self::Viewer,
        Self::Operator,
        Self::Admin,
        Self::Platform,
        Self::Agent,
        Self::ResourceViewer,
        Self::ResourceOperator,
    ];

    /// Whether the role includes a permission.
    #[must_use]
    pub fn has(self, permission: Permission) -> bool {
        match permission {
            Open | Known => true,
            Read => matches!(self, Self::Viewer | Self::Operator | Self::Admin),
            Change => matches!(self, Self::Operator | Self::Admin),
            Administer => self == Self::Admin,
            PlatformRead | PlatformChange => matches!(self, Self::Platform | Self::Admin),
            Agent => matches!(self, Self::Agent | Self::Admin),
            ResourceRead => matches!(
                self,
                Self::ResourceViewer | Self::ResourceOperator | Self::Admin
            ),
            ResourceChange | PodAccess => matches!(self, Self::ResourceOperator | Self::Admin),
        }
    }

    /// The roles of an identity issued by `drover certs`, by the first segment of its path.
    #[must_use]
    pub fn of_identity(role: &str) -> &'static [Self] {
        match role {
            "viewer" => &[Self::Viewer],
            "operator" => &[Self::Operator],
            "admin" => &[Self::Admin],
            "resource-viewer" => &[Self::ResourceViewer],
            "resource-operator" => &[Self::ResourceOperator],
            "orchestrator" => &[Self::Platform, Self::Agent],
            // Platforms and agents are only called, and call nobody: their leaked keys grant nothing.
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
            Self::ResourceViewer => "resource-viewer",
            Self::ResourceOperator => "resource-operator",
        })
    }
}

type Service = (&'static str, &'static [(&'static str, Permission)]);

/// The gRPC calls of all services.
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
            ("FailOverGroup", Change),
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
        "drover.orchestrator.v1.ReplicaService",
        &[("ListReplicas", Read)],
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
    (
        "drover.kubernetes.v1.NodeService",
        &[
            ("GetNode", ResourceRead),
            ("ListNodes", ResourceRead),
            ("WaitNodes", ResourceRead),
            ("CordonNode", ResourceChange),
            ("UncordonNode", ResourceChange),
            ("DrainNode", ResourceChange),
        ],
    ),
    (
        "drover.kubernetes.v1.PodService",
        &[
            ("CreatePod", ResourceChange),
            ("GetPod", ResourceRead),
            ("ListPods", ResourceRead),
            ("DeletePod", ResourceChange),
            ("WaitPods", ResourceRead),
            ("Exec", PodAccess),
            ("RunScript", PodAccess),
            ("ReadFile", PodAccess),
            ("StreamLogs", PodAccess),
        ],
    ),
    (
        "drover.kubernetes.v1.ServiceService",
        &[
            ("CreateService", ResourceChange),
            ("GetService", ResourceRead),
            ("ListServices", ResourceRead),
            ("DeleteService", ResourceChange),
        ],
    ),
    (
        "drover.kubernetes.v1.IngressService",
        &[
            ("CreateIngress", ResourceChange),
            ("GetIngress", ResourceRead),
            ("ListIngresses", ResourceRead),
            ("DeleteIngress", ResourceChange),
            ("GetRule", ResourceRead),
            ("UpsertPaths", ResourceChange),
            ("RemovePaths", ResourceChange),
        ],
    ),
    (
        "drover.kubernetes.v1.NetworkPolicyService",
        &[
            ("CreateNetworkPolicy", ResourceChange),
            ("GetNetworkPolicy", ResourceRead),
            ("ListNetworkPolicies", ResourceRead),
            ("DeleteNetworkPolicy", ResourceChange),
            ("DeleteNetworkPolicies", ResourceChange),
        ],
    ),
    (
        "drover.kubernetes.v1.ConfigurationService",
        &[
            ("CreateConfiguration", ResourceChange),
            ("GetConfiguration", ResourceRead),
            ("ListConfigurations", ResourceRead),
            ("UpdateConfiguration", ResourceChange),
            ("DeleteConfiguration", ResourceChange),
        ],
    ),
    ("drover.agent.v1.AgentService", &[("GetInfo", Agent)]),
];

/// The plain HTTP paths; all others require [`Permission::Administer`].
const HTTP: &[(&str, Permission)] = &[
    ("/healthz", Open),
    ("/readyz", Open),
    ("/metrics", Read),
    // The Replicante Platform API.
    ("/discover", PlatformRead),
    ("/provision", PlatformChange),
    ("/deprovision", PlatformChange),
];

/// The required permission of a call. `None` if it is not in the table.
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

/// The required permission of a plain HTTP request.
pub(crate) fn http_permission(path: &str) -> Permission {
    HTTP.iter()
        .find(|(known, _)| *known == path)
        .map_or(Administer, |(_, permission)| *permission)
}
