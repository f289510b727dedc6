//! `errors.md`: every error reason, its meaning and its remedy.

use std::fmt::Write as _;

use crate::{
    api::{self, Comments},
    cell, head,
};

const ENUM: i32 = 5;
const VALUE: i32 = 2;

/// Remedies by reason.
const WAYS_OUT: &[(&str, &str)] = &[
    (
        "NO_CAPACITY",
        "Nothing: the next platform of the group is tried, then this one again with back-off. To help: name a further platform, zone or node class.",
    ),
    (
        "QUOTA_EXCEEDED",
        "Raise the quota or name a further platform; it is tried again by itself.",
    ),
    (
        "RATE_LIMITED",
        "Nothing; calls wait. Often: lower `calls_per_second` in the platform's settings, or look for who else uses the account.",
    ),
    (
        "OVERLOADED",
        "Repeat after RetryInfo. Often: raise `max_concurrent_requests`.",
    ),
    (
        "NOT_LEADER",
        "Try again; `drover get replicas` says who leads.",
    ),
    (
        "CAPABILITY_MISSING",
        "Leave the field out, or use a platform that has the capability: `drover describe platform NAME`.",
    ),
    ("WATCH_TOO_SLOW", "Open the watch again where it ended."),
    ("PAGE_TOKEN_EXPIRED", "List again from the first page."),
    (
        "CREDENTIALS_REFUSED",
        "Renew the credentials of the platform server, which reads files again without a restart; if the message names a right (`may not list pods`), give it to them.",
    ),
    (
        "PLATFORM_MISMATCH",
        "The endpoint answers for another backend than the registered one. Put the right backend there, or register the new one under another name.",
    ),
    (
        "REQUEST_ID_REUSED",
        "A caller's defect: a new request needs a new id. The orchestrator asks under a new one by itself.",
    ),
    (
        "NODE_NOT_IN_CLUSTER",
        "Look who owns it: `drover get discovered`. Nothing was removed.",
    ),
    ("SLOT_MISMATCH", "Read the node again. Nothing was removed."),
    (
        "TEMPLATE_NOT_FOUND",
        "Correct store, version or attributes, or [write a template](../tasks/template.md).",
    ),
    (
        "NODE_CLASS_NOT_FOUND",
        "Use a class that the platform has: `drover describe platform NAME`, or add it to `node_classes` in its settings.",
    ),
    ("HOST_NOT_FOUND", "Correct the id under `placement.hosts`."),
    ("HOST_CLAIMED", "Free the machine, or name another one."),
    (
        "IMMUTABLE",
        "Make a new group or cluster with the value and delete the old one.",
    ),
    (
        "NOT_OWNED",
        "Rename yours, or remove the other one by hand if nobody needs it.",
    ),
    (
        "GENERATION_MISMATCH",
        "Somebody changed the cluster. Plan again, and apply with the generation that the plan says.",
    ),
    (
        "CLUSTER_EXISTS",
        "Another orchestrator has nodes of that name there. Use another name, or remove those nodes first.",
    ),
    (
        "CLUSTER_DELETING",
        "Wait: `drover wait cluster/NAME --for delete`, then apply.",
    ),
    ("CLUSTER_PAUSED", "`drover resume NAME`."),
    (
        "GROUP_HAS_NODES",
        "Keep the group, or say that its nodes go: `drover apply --remove-group PATH`.",
    ),
    ("PROTECTED", "Apply with `deletionProtection: false` first."),
    (
        "PLATFORM_IN_USE",
        "Delete the clusters that it names, or move their groups to another platform.",
    ),
    (
        "PLATFORM_UID_TAKEN",
        "The backend is registered already, under the name in `platform`.",
    ),
    (
        "PLATFORM_REACHABLE",
        "Delete the cluster normally; records are given up only where the backend is gone for good.",
    ),
    (
        "LOSS_CHANGED",
        "Look again what vanished, and confirm the number that is true now.",
    ),
    ("EVENTS_TRIMMED", "Begin at `oldest_sequence`."),
    ("REVISION_MISMATCH", "Read, change, and send again."),
    (
        "NAMESPACE_NOT_SERVED",
        "Add the namespace to `namespaces` of the platform's settings (and to its Role).",
    ),
    ("NOTHING_MATCHES", "Correct the selector."),
    ("WAIT_IMPOSSIBLE", "Stop waiting; look at the object."),
    ("CONTAINER_NOT_FOUND", "Use a name that the pod has."),
    (
        "CONTAINER_NOT_RUNNING",
        "Wait until it runs; its last log says why it ended.",
    ),
    ("FILE_NOT_FOUND", "Correct the path."),
    ("NOT_A_FILE", "Name a file."),
    ("RULE_NOT_FOUND", "Correct the host."),
    (
        "INGRESS_HOST_TAKEN",
        "Use another host, or remove the object that ResourceInfo names.",
    ),
    (
        "INGRESS_BACKEND_MISSING",
        "Install the ingress controller's custom resources.",
    ),
    (
        "FENCED",
        "A second orchestrator uses a newer copy of this store. Stop one of them.",
    ),
    (
        "PLATFORM_RESTARTED",
        "Nothing; GetPlatform is read again and the call repeated.",
    ),
    (
        "STORAGE_FULL",
        "Make room on the disk of the store, or move its directory.",
    ),
    (
        "STORE_RESTORED",
        "List again from the start: the store is an older copy.",
    ),
    (
        "NODE_NOT_RUNNING",
        "Wait until it runs: `drover describe node CLUSTER/NODE`.",
    ),
    ("DIGEST_NOT_STORED", "Send the data itself once."),
    (
        "SECRET_NOT_FOUND",
        "Make the secret, or correct name or key.",
    ),
    ("SECRET_IN_USE", "Remove it from what `user` names first."),
    (
        "INGRESS_UPSTREAM_MISSING",
        "Make the service, and let Gloo's discovery make its upstream; or ask with `wait`.",
    ),
];

pub(crate) fn page() -> String {
    let files = api::files();
    let file = files
        .iter()
        .find(|file| file.name().ends_with("error_reason.proto"))
        .unwrap();
    let comments = Comments::of(file);
    let mut out = head("Errors");
    writeln!(out, "{}\n", comments.at(&[ENUM, 0])).unwrap();
    out.push_str("Messages, by their text: [troubleshooting](../troubleshooting.md).\n\n");
    out.push_str("| reason | code | meaning | what to do |\n|---|---|---|---|\n");
    let mut ways = WAYS_OUT.to_vec();
    for (at, value) in (0..).zip(&file.enum_type[0].value) {
        let name = value.name().trim_start_matches("ERROR_REASON_");
        if name == "UNSPECIFIED" {
            continue;
        }
        let about = comments.at(&[ENUM, 0, VALUE, at]);
        let (code, meaning) = about
            .split_once(": ")
            .unwrap_or_else(|| panic!("the comment of {name} has no code"));
        let way = ways
            .iter()
            .position(|(reason, _)| *reason == name)
            .unwrap_or_else(|| panic!("{name}: say what to do in tests/tests/reference/errors.rs"));
        let (_, way) = ways.remove(way);
        writeln!(
            out,
            "| `{name}` | {code} | {} | {} |",
            cell(&capitalised(meaning)),
            cell(way)
        )
        .unwrap();
    }
    assert!(ways.is_empty(), "no such reasons: {ways:?}");
    out
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or(String::new(), |c| c.to_uppercase().chain(letters).collect())
}
