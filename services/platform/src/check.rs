//! Validation of requests.

use std::collections::{BTreeMap, HashSet};

use drover_core::{
    Error, Result,
    error::Violation,
    name::{
        MAX_LABELS, RESERVED_PREFIX, check_cluster_name, check_label, check_name, check_variable,
    },
    spec::{MAX_DEPTH, MAX_TEMPLATE_SECRET},
};
use drover_proto::{
    common::v1::{LabelOperator, LabelSelector},
    platform::v1::{
        Capability, DeprovisionRequest, Fence, NodeAdoption, NodeChange, NodeRole, NodeTarget,
        Placement, ProvisionRequest, Slot, SlotKey, SpreadScope, TemplateSecret,
        UnsatisfiableAction, UpdateNodeRequest, bootstrap::UserData, update_node_request::Update,
    },
};
use uuid::Uuid;

use crate::{
    driver::{Description, lacks},
    limits,
};

/// Maximum length of a spec hash, the limit of label values.
const MAX_SPEC_HASH: usize = 63;
/// Maximum length of the id or name of a node: a group path of maximum depth and length, its ordinal and its hash.
const MAX_NODE_NAME: usize = 640;
/// Maximum length of a node id, store, version or other backend identifier; longer values are mistakes. It leaves room
/// for the longest node name, so that any node that was created can also be removed.
const MAX_WORD: usize = 1024;

/// Collects the violations of a request.
#[derive(Debug, Default)]
pub struct Checker(pub(crate) Vec<Violation>);

impl Checker {
    /// Reports a field.
    pub fn wrong(&mut self, field: impl Into<String>, description: impl Into<String>) {
        self.0.push(Violation {
            field: field.into(),
            description: description.into(),
        });
    }

    /// Fields that were reported so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// # Errors
    /// `Invalid` with everything that was reported.
    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Error::violations(self.0))
        }
    }

    pub(crate) fn uuid(&mut self, field: &str, value: &str) {
        // Only the hyphenated form, because ids are compared as strings.
        if value.is_empty() {
            self.wrong(field, "is required");
        } else if value.len() != 36 || Uuid::parse_str(value).is_err() {
            self.wrong(
                field,
                "is not a UUID (xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx)",
            );
        }
    }

    fn said(&mut self, field: &str, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.wrong(field, why);
        }
    }

    /// Checks the id of a cluster.
    pub fn cluster(&mut self, field: &str, value: &str) {
        self.said(field, check_cluster_name(value));
    }

    fn group(&mut self, field: &str, path: &str) {
        let parts: Vec<_> = path.split('/').collect();
        if parts.len() > MAX_DEPTH {
            self.wrong(
                field,
                format!(
                    "is {} groups deep; at most {MAX_DEPTH} are allowed",
                    parts.len()
                ),
            );
        } else if let Some(why) = parts.into_iter().find_map(|part| check_name(part).err()) {
            self.wrong(field, why);
        }
    }

    pub(crate) fn node_name(&mut self, field: &str, value: &str) {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if value.is_empty() {
            self.wrong(field, "is required");
        } else if value.len() > MAX_NODE_NAME || !value.chars().all(fits) {
            self.wrong(
                field,
                format!(
                    "expected 1 to {MAX_NODE_NAME} of a-z, A-Z, 0-9, hyphen, underscore and dot"
                ),
            );
        }
    }

    /// Checks an identifier of the backend; it may be empty.
    pub fn word(&mut self, field: &str, value: &str) {
        if value.len() > MAX_WORD || value.chars().any(char::is_control) {
            self.wrong(
                field,
                format!("expected at most {MAX_WORD} bytes without control characters"),
            );
        }
    }

    pub(crate) fn required(&mut self, field: &str, value: &str) {
        if value.is_empty() {
            self.wrong(field, "is required");
        } else {
            self.word(field, value);
        }
    }

    fn labels(&mut self, field: &str, labels: &BTreeMap<String, String>) {
        if labels.len() > MAX_LABELS {
            self.wrong(
                field,
                format!(
                    "has {} labels; at most {MAX_LABELS} are allowed",
                    labels.len()
                ),
            );
        }
        for (key, value) in labels {
            self.said(field, check_label(key, value));
            self.foreign_label(field, key);
        }
    }

    fn foreign_label(&mut self, field: &str, key: &str) {
        if key.starts_with(RESERVED_PREFIX) {
            self.wrong(field, format!("label {key:?} belongs to Drover itself"));
        }
    }

    fn fence(&mut self, fence: Option<&Fence>) {
        let Some(fence) = fence else {
            return self.wrong("fence", "is required");
        };
        self.uuid("fence.store_id", &fence.store_id);
        if fence.epoch == 0 {
            self.wrong("fence.epoch", "is required, from 1");
        }
    }

    pub(crate) fn known<E: TryFrom<i32>>(&mut self, field: &str, value: i32, required: bool) {
        if E::try_from(value).is_err() {
            self.wrong(field, format!("{value} is not a known value"));
        } else if required && value == 0 {
            self.wrong(field, "is required");
        }
    }

    pub(crate) fn grace(&mut self, field: &str, value: Option<&prost_types::Duration>) {
        if value.is_some_and(|value| std::time::Duration::try_from(*value).is_err()) {
            self.wrong(field, "is negative or no valid duration");
        }
    }

    fn key(&mut self, field: &str, key: &SlotKey) {
        self.uuid(&format!("{field}.owner"), &key.owner);
        self.uuid(&format!("{field}.request_id"), &key.request_id);
    }
}

/// Validates a `Fence` request.
pub(crate) fn fence(fence: Option<&Fence>) -> Result<Fence> {
    let mut check = Checker::default();
    check.fence(fence);
    check.finish()?;
    Ok(fence.cloned().unwrap_or_default())
}

/// Validates a Provision request, and that the platform supports it.
pub(crate) fn provision(request: &ProvisionRequest, description: &Description) -> Result<()> {
    let mut check = Checker::default();
    check.fence(request.fence.as_ref());
    check.uuid("owner", &request.owner);
    check.uuid("request_id", &request.request_id);
    if request.sequence == 0 {
        check.wrong("sequence", "is required, from 1");
    }
    if request.spec_hash.is_empty() || request.spec_hash.len() > MAX_SPEC_HASH {
        check.wrong(
            "spec_hash",
            format!("expected 1 to {MAX_SPEC_HASH} characters"),
        );
    }
    match &request.cluster {
        None => check.wrong("cluster", "is required"),
        Some(cluster) => {
            check.cluster("cluster.id", &cluster.id);
            check.word("cluster.store", &cluster.store);
            check.word("cluster.version", &cluster.version);
            check.labels("cluster.labels", &cluster.labels);
        }
    }
    match &request.group {
        None => check.wrong("group", "is required"),
        Some(group) => {
            check.group("group.path", &group.path);
            check.word("group.role", &group.role);
            check.word("group.node_class", &group.node_class);
            check.word("group.version", &group.version);
            if let Some(placement) = &group.placement {
                self::placement(&mut check, placement);
            }
        }
    }
    slots(
        &mut check,
        &request.slots,
        limits::max_batch(&description.limits),
    );
    for (at, peer) in request.peers.iter().enumerate() {
        check.known::<NodeRole>(&format!("peers[{at}].role"), peer.role, false);
    }
    if let (Some(bootstrap), Some(max)) =
        (&request.bootstrap, description.limits.max_bootstrap_bytes)
    {
        let size = match &bootstrap.user_data {
            Some(UserData::Text(text)) => text.len(),
            Some(UserData::Binary(data)) => data.len(),
            None => 0,
        };
        if size > max as usize {
            check.wrong(
                "bootstrap",
                format!("is {size} bytes large; at most {max} are allowed"),
            );
        }
    }
    if let Some(bootstrap) = &request.bootstrap
        && bootstrap.render
        && matches!(bootstrap.user_data, Some(UserData::Binary(_)))
    {
        check.wrong("bootstrap.render", "only text can be rendered");
    }
    if let Some(bootstrap) = &request.bootstrap
        && bootstrap.parse_only
        && !(bootstrap.render && request.validate_only)
    {
        check.wrong(
            "bootstrap.parse_only",
            "goes only with render and validate_only",
        );
    }
    secrets(&mut check, &request.secrets);
    check.finish()?;
    capabilities(request, description)
}

fn secrets(check: &mut Checker, secrets: &BTreeMap<String, TemplateSecret>) {
    for (name, secret) in secrets {
        if let Err(why) = check_variable(name) {
            check.wrong("secrets", format!("a name: {why}"));
        }
        if secret.text.len() > MAX_TEMPLATE_SECRET {
            check.wrong(
                "secrets",
                format!("one is too large; at most {MAX_TEMPLATE_SECRET} bytes are allowed"),
            );
        }
    }
}

fn slots(check: &mut Checker, slots: &[Slot], max: usize) {
    if slots.is_empty() {
        check.wrong("slots", "is required: at least one");
    }
    if slots.len() > max {
        // The individual slots are not checked, because the response would be as long as the request.
        return check.wrong(
            "slots",
            format!("has {} slots; at most {max} are allowed", slots.len()),
        );
    }
    let (mut ids, mut names, mut ordinals) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (at, slot) in slots.iter().enumerate() {
        self::slot(check, &format!("slots[{at}]"), slot);
        if slot.index.is_some_and(|index| index as usize != at) {
            check.wrong(
                format!("slots[{at}].index"),
                format!("expected {at}: indexes go from 0 without gaps"),
            );
        }
        if !ids.insert(&slot.id) {
            check.wrong(format!("slots[{at}].id"), "is there twice");
        }
        if !names.insert(&slot.name) {
            check.wrong(format!("slots[{at}].name"), "is there twice");
        }
        if !ordinals.insert(slot.ordinal) {
            check.wrong(format!("slots[{at}].ordinal"), "is there twice");
        }
    }
}

fn slot(check: &mut Checker, field: &str, slot: &Slot) {
    if slot.index.is_none() {
        check.wrong(format!("{field}.index"), "is required");
    }
    check.node_name(&format!("{field}.id"), &slot.id);
    check.node_name(&format!("{field}.name"), &slot.name);
    if slot.ordinal.is_none() {
        check.wrong(format!("{field}.ordinal"), "is required");
    }
    check.known::<NodeRole>(&format!("{field}.role"), slot.role, true);
    if let Some(host) = &slot.host_id {
        check.required(&format!("{field}.host_id"), host);
    }
}

fn placement(check: &mut Checker, placement: &Placement) {
    for (at, spread) in placement.spread.iter().enumerate() {
        let field = format!("group.placement.spread[{at}]");
        check.required(&format!("{field}.topology_key"), &spread.topology_key);
        if spread.max_skew == Some(0) {
            check.wrong(format!("{field}.max_skew"), "must be at least 1");
        }
        if spread.max_per_domain == Some(0) {
            check.wrong(format!("{field}.max_per_domain"), "must be at least 1");
        }
        check.known::<UnsatisfiableAction>(
            &format!("{field}.when_unsatisfiable"),
            spread.when_unsatisfiable,
            false,
        );
        check.known::<SpreadScope>(&format!("{field}.scope"), spread.scope, false);
    }
    if let Some(selector) = &placement.selector {
        self::selector(check, "group.placement.selector", selector);
    }
}

pub(crate) fn selector(check: &mut Checker, field: &str, selector: &LabelSelector) {
    for (at, requirement) in selector.match_expressions.iter().enumerate() {
        let field = format!("{field}.match_expressions[{at}]");
        check.required(&format!("{field}.key"), &requirement.key);
        check.known::<LabelOperator>(&format!("{field}.operator"), requirement.operator, true);
        let needs_values = matches!(
            requirement.operator(),
            LabelOperator::In | LabelOperator::NotIn
        );
        if needs_values == requirement.values.is_empty() {
            let expected = if needs_values {
                "at least one is required"
            } else {
                "must be empty for this operator"
            };
            check.wrong(format!("{field}.values"), expected);
        }
    }
}

fn capabilities(request: &ProvisionRequest, description: &Description) -> Result<()> {
    let mut needed = Vec::new();
    if let Some(placement) = request
        .group
        .as_ref()
        .and_then(|group| group.placement.as_ref())
    {
        if placement.selector.is_some() {
            needed.push(Capability::HostLabels);
        }
        if !placement.failure_domains.is_empty() {
            needed.push(Capability::FailureDomains);
        }
        for spread in &placement.spread {
            needed.push(match spread.when_unsatisfiable() {
                UnsatisfiableAction::DoNotSchedule => Capability::SpreadRequired,
                UnsatisfiableAction::Unspecified | UnsatisfiableAction::ScheduleAnyway => {
                    Capability::SpreadPreferred
                }
            });
        }
    }
    if request.slots.iter().any(|slot| slot.host_id.is_some()) {
        needed.push(Capability::NamedHosts);
    }
    if request.storage.is_some() {
        needed.push(Capability::Storage);
    }
    if let Some(bootstrap) = &request.bootstrap {
        needed.push(Capability::Bootstrap);
        if bootstrap.render {
            needed.push(Capability::BootstrapRender);
        }
        if bootstrap.parse_only {
            needed.push(Capability::BootstrapParse);
        }
    }
    needed
        .into_iter()
        .try_for_each(|capability| need(description, capability))
}

/// Validates the page size and the cluster (empty for all) of a list request. Returns the maximum number of items of
/// the page.
pub(crate) fn page(check: &mut Checker, page_size: i32, cluster_id: &str) -> usize {
    if page_size < 0 {
        check.wrong("page_size", "is negative");
    }
    if !cluster_id.is_empty() {
        check.cluster("cluster_id", cluster_id);
    }
    match usize::try_from(page_size) {
        Ok(0) | Err(_) => limits::PAGE_SIZE,
        Ok(size) => size.min(limits::MAX_PAGE_SIZE),
    }
}

/// Rejects a request for a capability that the platform lacks.
pub(crate) fn need(description: &Description, capability: Capability) -> Result<()> {
    if description.capabilities.contains(&capability) {
        Ok(())
    } else {
        Err(lacks(capability))
    }
}

/// Validates a Deprovision request, and that the platform supports it.
pub(crate) fn deprovision(request: &DeprovisionRequest, description: &Description) -> Result<()> {
    let mut check = Checker::default();
    check.fence(request.fence.as_ref());
    check.uuid("request_id", &request.request_id);
    check.uuid("owner", &request.owner);
    check.cluster("cluster_id", &request.cluster_id);
    check.uuid("node_request_id", &request.node_request_id);
    if request.index.is_none() {
        check.wrong("index", "is required");
    }
    check.required("node_id", &request.node_id);
    check.word("reason", &request.reason);
    check.grace("grace_period", request.grace_period.as_ref());
    check.finish()?;
    if request.grace_period.is_some() {
        need(description, Capability::GracePeriod)?;
    }
    if request.retain_storage {
        need(description, Capability::RetainStorage)?;
    }
    Ok(())
}

/// Validates an UpdateNode request, and that the platform supports it.
pub(crate) fn update(request: &UpdateNodeRequest, description: &Description) -> Result<()> {
    let mut check = Checker::default();
    check.fence(request.fence.as_ref());
    check.required("node_id", &request.node_id);
    let adoption = matches!(request.update, Some(Update::Adoption(_)));
    if !request.expected_cluster_id.is_empty() || !adoption {
        check.cluster("expected_cluster_id", &request.expected_cluster_id);
    }
    if request.expected_slot.is_none() && !adoption {
        check.wrong("expected_slot", "is required, except for an adoption");
    }
    match &request.update {
        None => check.wrong("update", "is required: change or adoption"),
        Some(Update::Change(change)) => self::change(&mut check, change),
        Some(Update::Adoption(adoption)) => self::adoption(&mut check, adoption),
    }
    check.finish()?;
    need(
        description,
        if adoption {
            Capability::Adopt
        } else {
            Capability::UpdateNode
        },
    )
}

fn change(check: &mut Checker, change: &NodeChange) {
    check.known::<NodeRole>("change.role", change.role, false);
    if change.promoting && change.role() != NodeRole::Active {
        check.wrong("change.promoting", "is only of the role ACTIVE");
    }
    check.labels("change.set_labels", &change.set_labels);
    for key in &change.remove_labels {
        check.foreign_label("change.remove_labels", key);
    }
    if change.spec_hash.len() > MAX_SPEC_HASH {
        let why = format!("has more than {MAX_SPEC_HASH} characters");
        check.wrong("change.spec_hash", why);
    }
}

fn adoption(check: &mut Checker, adoption: &NodeAdoption) {
    check.cluster("adoption.cluster_id", &adoption.cluster_id);
    match &adoption.key {
        None => check.wrong("adoption.key", "is required"),
        Some(key) => check.key("adoption.key", key),
    }
    match &adoption.slot {
        None => check.wrong("adoption.slot", "is required"),
        Some(slot) => self::slot(check, "adoption.slot", slot),
    }
    if adoption.sequence == 0 {
        check.wrong("adoption.sequence", "is required, from 1");
    }
    check.group("adoption.group", &adoption.group);
    if adoption.spec_hash.is_empty() || adoption.spec_hash.len() > MAX_SPEC_HASH {
        check.wrong(
            "adoption.spec_hash",
            format!("expected 1 to {MAX_SPEC_HASH} characters"),
        );
    }
}

/// Validates the reference to a node.
pub(crate) fn target(check: &mut Checker, field: &str, target: Option<&NodeTarget>) {
    let Some(target) = target else {
        return check.wrong(field, "is required");
    };
    check.cluster(&format!("{field}.cluster_id"), &target.cluster_id);
    check.required(&format!("{field}.node_id"), &target.node_id);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_no_template_could_see_is_refused_and_not_shown() {
        let wrong = |name: &str, size: usize| {
            let text = "hush".repeat(size / 4);
            let all = BTreeMap::from([(name.to_owned(), TemplateSecret { text })]);
            let mut check = Checker::default();
            secrets(&mut check, &all);
            check.finish().err().map(|error| format!("{error} {all:?}"))
        };
        assert_eq!(wrong("password_1", MAX_TEMPLATE_SECRET), None);
        for (name, size) in [("a-b", 4), ("", 4), ("a", MAX_TEMPLATE_SECRET + 4)] {
            let said = wrong(name, size).unwrap();
            assert!(said.contains("secrets") && !said.contains("hush"), "{said}");
        }
    }
}
