//! All calls, and rights that they are refused without.

use drover_proto::kubernetes::v1::IngressBackend::{
    self, HttpRoute, Ingress, Unspecified, VirtualService,
};

/// A call, and rights that it is refused without.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// What ingresses are made of.
    pub(super) backend: IngressBackend,
    /// Whether what it needs is not there yet.
    pub(super) waits: bool,
    pub(super) needs: &'static [(&'static str, &'static str)],
}

const INGRESSES: &str = "ingresses.networking.k8s.io";
const ROUTES: &str = "httproutes.gateway.networking.k8s.io";
const VIRTUAL: &str = "virtualservices.gateway.solo.io";
const POLICIES: &str = "networkpolicies.networking.k8s.io";
pub(super) const UPSTREAMS: &str = "upstreams.gloo.solo.io";

const fn row(name: &'static str, needs: &'static [(&'static str, &'static str)]) -> Row {
    of(name, Unspecified, needs)
}

const fn of(
    name: &'static str,
    backend: IngressBackend,
    needs: &'static [(&'static str, &'static str)],
) -> Row {
    Row {
        name,
        backend,
        waits: false,
        needs,
    }
}

const fn waiting(row: Row) -> Row {
    Row { waits: true, ..row }
}

/// All calls but DrainNode.
pub(super) const ROWS: &[Row] = &[
    row("GetNode", &[("get", "nodes")]),
    row("ListNodes", &[("list", "nodes")]),
    row("WaitNodes", &[("list", "nodes")]),
    waiting(row("WaitNodes", &[("watch", "nodes")])),
    row("CordonNode", &[("patch", "nodes")]),
    row("UncordonNode", &[("patch", "nodes")]),
    row("CreatePod", &[("create", "pods")]),
    row("GetPod", &[("get", "pods")]),
    row("ListPods", &[("list", "pods")]),
    row("WaitPods", &[("list", "pods")]),
    waiting(row("WaitPods", &[("watch", "pods")])),
    row("Exec", &[("get", "pods/exec")]),
    row("RunScript", &[("get", "pods/exec")]),
    row("ReadFile", &[("get", "pods/exec")]),
    row("StreamLogs", &[("get", "pods/log")]),
    row("DeletePod", &[("delete", "pods")]),
    row("CreateService", &[("create", "services")]),
    row("GetService", &[("get", "services")]),
    row("ListServices", &[("list", "services")]),
    row("DeleteService", &[("delete", "services")]),
    row("CreateNetworkPolicy", &[("create", POLICIES)]),
    row("GetNetworkPolicy", &[("get", POLICIES)]),
    row("ListNetworkPolicies", &[("list", POLICIES)]),
    row("DeleteNetworkPolicy", &[("delete", POLICIES)]),
    row(
        "DeleteNetworkPolicies",
        &[("list", POLICIES), ("delete", POLICIES)],
    ),
    row("CreateConfiguration", &[("create", "configmaps")]),
    row("GetConfiguration", &[("get", "configmaps")]),
    row("ListConfigurations", &[("list", "configmaps")]),
    row("UpdateConfiguration", &[("update", "configmaps")]),
    row("DeleteConfiguration", &[("delete", "configmaps")]),
    of("CreateIngress", Ingress, &[("create", INGRESSES)]),
    of("GetIngress", Ingress, &[("get", INGRESSES)]),
    of("ListIngresses", Ingress, &[("list", INGRESSES)]),
    of("GetRule", Ingress, &[("get", INGRESSES)]),
    of(
        "UpsertPaths",
        Ingress,
        &[("patch", INGRESSES), ("get", "services")],
    ),
    waiting(of("UpsertPaths", Ingress, &[("watch", "services")])),
    of("RemovePaths", Ingress, &[("patch", INGRESSES)]),
    of("DeleteIngress", Ingress, &[("delete", INGRESSES)]),
    of("CreateIngress", HttpRoute, &[("create", ROUTES)]),
    of(
        "GetIngress",
        HttpRoute,
        &[
            ("list", ROUTES),
            ("get", "gateways.gateway.networking.k8s.io"),
        ],
    ),
    waiting(of("GetIngress", HttpRoute, &[("get", ROUTES)])),
    of("ListIngresses", HttpRoute, &[("list", ROUTES)]),
    of("GetRule", HttpRoute, &[("list", ROUTES)]),
    of("UpsertPaths", HttpRoute, &[("patch", ROUTES)]),
    of("RemovePaths", HttpRoute, &[("patch", ROUTES)]),
    of("DeleteIngress", HttpRoute, &[("delete", ROUTES)]),
    of("CreateIngress", VirtualService, &[("create", VIRTUAL)]),
    of("GetIngress", VirtualService, &[("list", VIRTUAL)]),
    waiting(of("GetIngress", VirtualService, &[("get", VIRTUAL)])),
    of("ListIngresses", VirtualService, &[("list", VIRTUAL)]),
    of("GetRule", VirtualService, &[("list", VIRTUAL)]),
    of(
        "UpsertPaths",
        VirtualService,
        &[("patch", VIRTUAL), ("get", UPSTREAMS), ("list", UPSTREAMS)],
    ),
    waiting(of("UpsertPaths", VirtualService, &[("watch", UPSTREAMS)])),
    of("RemovePaths", VirtualService, &[("patch", VIRTUAL)]),
    of("DeleteIngress", VirtualService, &[("delete", VIRTUAL)]),
];

/// What takes the pods of all namespaces.
pub(super) const DRAINS: &[Row] = &[row(
    "DrainNode",
    &[
        ("list", "pods"),
        ("watch", "pods"),
        ("create", "pods/eviction"),
    ],
)];
