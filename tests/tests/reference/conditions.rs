//! `conditions.md`: every condition of clusters and groups, its meaning and its remedy.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{api, cell, head, sources};

/// Type, subject, meaning, remedy.
const TEXTS: &[(&str, &str, &str, &str)] = &[
    (
        "Ready",
        "cluster, group",
        "As many available nodes as wanted, no others, the spec of the newest generation, infrastructure and addons ready.",
        "False: its reason is the first of the conditions below that holds, or ScaleUp, ScaleDown, Update, Replace, Infrastructure, Addons, SoleWriter, Unobserved. SoleWriter: the active node may still acknowledge what its standbys have not got. Unobserved: all nodes are there, and it is not known (yet) that they are as wanted. The message names those that their platform does not list; while their agents answer they are kept: end their processes, and they are replaced.",
    ),
    (
        "NodesReady",
        "cluster",
        "As many nodes are ready as all groups want.",
        "False: `drover describe cluster NAME`.",
    ),
    (
        "UpToDate",
        "cluster",
        "All nodes match the present spec, and the templates that their platforms have now; the message names those that changed.",
        "False: an update is under way (`drover rollout status NAME`), or the others wait for their end (`OnDelete`): `drover rollout restart NAME`.",
    ),
    (
        "ScalingUp",
        "cluster",
        "A group has fewer nodes than wanted.",
        "Nothing; a plan (`drover plan NAME`) says what is done next or what it waits for.",
    ),
    (
        "ScalingDown",
        "cluster",
        "Surplus nodes are being removed.",
        "Nothing.",
    ),
    (
        "Remediating",
        "cluster",
        "Dead or sick nodes are being replaced.",
        "Nothing. Often: `drover events NAME --types Warning`.",
    ),
    (
        "Draining",
        "cluster",
        "Addons let go of nodes and nodes run their `preStop` hook before they go (PreStop), or it failed and they go all the same (PreStopFailed). The message names them.",
        "PreStop: nothing, it ends with its time. PreStopFailed: correct the hook and apply; nodes that go later run the new one.",
    ),
    (
        "InfrastructureReady",
        "cluster",
        "Networks, addresses, firewalls that the spec declares are there.",
        "False: see InfrastructureFailed and WaitingForInfrastructure.",
    ),
    (
        "InfrastructureFailed",
        "cluster",
        "A platform could not make or release a piece of infrastructure; it is tried again. The message has its words.",
        "Correct what the message says (permission, quota, a value); `drover reconcile NAME --reset-back-off` tries at once.",
    ),
    (
        "AddonsReady",
        "cluster",
        "The addons that the spec declares are ready and know the nodes that they serve.",
        "False: its message names them and says why; `drover describe cluster NAME` shows each. Nodes do not wait for them.",
    ),
    (
        "AddonsFailed",
        "cluster",
        "A platform could not make, change or remove an addon; it is tried again. The message has its words.",
        "Correct what the message says (a port that is taken, an image, a secret); `drover reconcile NAME --reset-back-off` tries at once.",
    ),
    (
        "UpdateBlocked",
        "group",
        "Nodes are to be replaced and it does not go on: no capacity for a surge, a platform that refuses the new spec, or new nodes that do not become ready. The old nodes stay. SoleWriter: the active node was allowed to acknowledge without standbys, and does not confirm that this has ended though they are there.",
        "What the message says; or `drover rollout undo NAME`; without capacity, `maxUnavailable` above 0.",
    ),
    (
        "WaitingForInfrastructure",
        "group",
        "The group's nodes wait for infrastructure. The message says for which.",
        "Nothing, unless InfrastructureFailed holds too.",
    ),
    (
        "Paused",
        "cluster",
        "All work on the cluster is stopped, healing included. The message of the pause says why.",
        "`drover resume NAME`.",
    ),
    (
        "Deleting",
        "cluster",
        "The cluster is being deleted.",
        "Nothing; DeletionBlocked says if it does not go on.",
    ),
    (
        "DeletionBlocked",
        "cluster",
        "The deletion of the cluster, of a group or of single nodes waits for something that does not come by itself. The message names it: a platform that cannot be reached, nodes that cannot be removed, a host that does not answer (HostLost), orphans after a restore.",
        "Bring the platform back, or register it again under its name. HostLost: switch the host off and say so with a command of the message. Gone for good: `drover abandon NAME --platform PLATFORM` gives its records up: [operate](../tasks/operate.md#when-the-store-or-a-platform-is-not-what-it-was). After a restore: `drover-orchestrator store confirm-restore`.",
    ),
    (
        "StoreBehind",
        "cluster",
        "A platform shows a sequence that this store never gave out: the store is older than reality. The cluster is frozen.",
        "Stop the other orchestrator if there is one with a newer copy, or restore a newer backup. If this store is the one to go on with: `drover apply --adopt` keeps the nodes: [backup](../operate/backup.md).",
    ),
    (
        "StoreUnavailable",
        "cluster",
        "The next step of the cluster cannot be stored (a full disk, for example), so it is not done. Nodes that are there are left alone. It is tried every few seconds, and by itself the condition ends.",
        "What the message says: make room on the disk of the orchestrator's store.",
    ),
    (
        "ForeignNodes",
        "cluster",
        "A platform shows nodes of this cluster id under another owner. Nothing is created.",
        "Take them over with `drover apply --adopt`, remove them where they come from (it ends by itself), or use another name.",
    ),
    (
        "Orphans",
        "cluster",
        "A platform shows nodes of this cluster that no record knows, and they are not swept: their platform was abandoned or cannot be seen, the spec says `orphans: Ignore`, or the store was restored. The message names them and says why.",
        "What the message says. Delete them: `drover abandon NAME --platform PLATFORM --delete-nodes`; take them in: `drover apply --adopt`.",
    ),
    (
        "Rejected",
        "group",
        "A platform refuses the spec, in its own words; or a named machine (HostRejected).",
        "Correct what the message says and apply.",
    ),
    (
        "PlatformUnavailable",
        "group",
        "The platform does not answer, shows another uid, or its credentials are refused (CREDENTIALS_REFUSED). Nodes that it has are neither judged nor replaced.",
        "`drover describe platform NAME` says since when and why.",
    ),
    (
        "NoCapacity",
        "group",
        "No platform of the group has room. Each is tried again with back-off.",
        "Add a platform, a zone or another node class; or wait.",
    ),
    (
        "RemediationBlocked",
        "group",
        "More nodes are sick than `remediation.maxUnhealthy` allows, or than 3 and 20 % of a platform: probably one cause, so none is replaced. Promotions go on: an active node is handed over if a standby is ready.",
        "Find the cause. Replace by hand (`drover replace`) or raise the limit.",
    ),
    (
        "HostLost",
        "group",
        "Nodes that are to go are on hosts that do not answer (Unreachable), or that somebody has given up already (Gone). Nobody confirms that they have ended, so no standby takes over from them and nothing is made instead, unless promotions fence. The message names nodes and hosts, since when, and the commands that end it.",
        "Make sure that the machine is off, then say so as the message does: `kubectl taint node HOST node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`, or `kubectl delete node HOST` for one that never comes back ([lost hosts](../tasks/kubernetes.md#lost-hosts)). Gone: nothing, it ends within two minutes.",
    ),
    (
        "MaintenanceScheduled",
        "group",
        "A cloud has announced maintenance of machines under nodes of the group. Stop: it ends a node, which is replaced before, within the budget of updates: at once if it is older than a day, else a day before the date; it stays if it is under repair, bound to its machine, in a group with `OnDelete` or without remediation, or the only one that has its data. Restart: the nodes stay, or come back by themselves. The message names the nodes, what is announced and what becomes of each.",
        "Where the message says that a node stays, move its data before the date, or `drover replace NAME/NODE`. Otherwise nothing.",
    ),
    (
        "Impaired",
        "group",
        "Nodes serve, but their probes found that they lack something: DiskFull, ConnectionsExhausted, QuotaExceeded, or another reason that their template or `health.exec.impairments` declares. None is replaced for it, and nobody takes over. The message names the nodes and says what they lack.",
        "What the message says: make room (`storage.size`; in etcd by hand), end sessions or allow more. It ends when a probe finds it no more.",
    ),
    (
        "ProbeUnreachable",
        "group",
        "No node of the group ever answered its probe, so the path to them is suspected and none is replaced.",
        "Open the way from the orchestrator to the agents' addresses, or correct `health`.",
    ),
    (
        "PromotionFailed",
        "group",
        "A standby that is to take over does not become active: its platform refuses, or its `postPromote` hook fails. Refused: after three attempts another ready standby is tried. Unknown: nobody can say whether it is active, so no other one is tried while it lives. NoStandbyReady: active nodes are missing, and none of the standby nodes is ready; the message names them. SoleWriter: the active node is gone and may have acknowledged writes that no standby has, so none takes over.",
        "What the message says: correct the hook and apply; or `drover replace NAME/NODE`: when that node is gone, another one is tried. SoleWriter: bring that node back, or its storage; or do without its writes, for good: `drover failover NAME/GROUP --accept-loss`.",
    ),
    (
        "Failed",
        "cluster, group",
        "All attempts of `remediation.maxRetries` failed. It goes on at a slow pace.",
        "Correct the cause, then `drover reconcile NAME --reset-back-off`.",
    ),
];

pub(crate) fn page() -> String {
    let wanted = types();
    let mut out = head("Conditions");
    out.push_str(
        "Of clusters and of groups, in `drover get clusters -o yaml`, `drover describe cluster NAME` and GetCluster. `drover wait cluster/NAME --for condition=TYPE` waits \
         for one. Meaning of the fields: [api.md](api.md#drover.common.v1.Condition).\n\n| type | of | it holds when | what to do |\n|---|---|---|---|\n",
    );
    for name in &wanted {
        assert!(
            TEXTS.iter().any(|(known, ..)| known == name),
            "{name}: say what it means in tests/tests/reference/conditions.rs"
        );
    }
    for (name, of, meaning, way) in TEXTS {
        if wanted.contains(*name) {
            writeln!(
                out,
                "| `{name}` | {of} | {} | {} |",
                cell(meaning),
                cell(way)
            )
            .unwrap();
        }
    }
    out.push_str("\n## Words\n\nA word that is not here is printed as it is.\n\n| where | words |\n|---|---|\n");
    for (message, field, of) in [
        ("Node", "reason", "reason of a node"),
        ("Action", "reason", "reason of an action in a plan"),
        ("PlanNote", "reason", "reason of a note in a plan"),
        ("Event", "reason", "reason of an event"),
    ] {
        writeln!(out, "| {of} | {} |", cell(&comment(message, field))).unwrap();
    }
    out
}

/// All condition types that the programs set.
fn types() -> BTreeSet<String> {
    let recorded = sources::text("orchestrator/planner/src/state.rs");
    let kinds = recorded.split("impl ConditionKind").nth(1).unwrap();
    let kinds = kinds.split("\n}").next().unwrap();
    let mut all: BTreeSet<String> = kinds
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    let shown = sources::text("orchestrator/src/status.rs");
    for call in ["condition(", "lasting("] {
        for after in shown.split(call).skip(1) {
            if let Some(name) = after.trim_start().strip_prefix('"') {
                all.insert(name.split('"').next().unwrap().to_owned());
            }
        }
    }
    assert!(
        all.len() > 15,
        "conditions are stated elsewhere now: {all:?}"
    );
    all
}

fn comment(message: &str, field: &str) -> String {
    for file in api::files() {
        let comments = api::Comments::of(&file);
        for (at, found) in (0..).zip(&file.message_type) {
            let position = found.field.iter().position(|f| f.name() == field);
            if let (true, Some(position)) = (found.name() == message, position) {
                return comments.at(&[4, at, 2, i32::try_from(position).unwrap()]);
            }
        }
    }
    panic!("no {message}.{field}")
}
