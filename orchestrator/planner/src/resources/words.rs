//! Resources in the words of notes and messages.

use drover_core::resource::{ResourceKey, ResourceKind, ResourcePhase, ResourceRecord};

/// A resource for people: `infrastructure`, `addon front`.
pub(super) fn noun(key: &ResourceKey) -> String {
    match &key.kind {
        ResourceKind::Infrastructure => "infrastructure".to_owned(),
        ResourceKind::Addon(name) => format!("addon {name}"),
    }
}

/// What a message is about: the platform, and which addon.
pub(super) fn place(key: &ResourceKey) -> String {
    match &key.kind {
        ResourceKind::Infrastructure => key.platform.to_string(),
        ResourceKind::Addon(name) => format!("{name} on {}", key.platform),
    }
}

/// What is released, for people.
pub(super) fn content(key: &ResourceKey, record: &ResourceRecord) -> String {
    match &key.kind {
        ResourceKind::Infrastructure => record.named(),
        ResourceKind::Addon(name) => name.to_string(),
    }
}

/// Why a note about a resource stands there, one word.
pub(super) fn reason(key: &ResourceKey) -> &'static str {
    match key.kind {
        ResourceKind::Infrastructure => "Infrastructure",
        ResourceKind::Addon(_) => "Addon",
    }
}

/// Progress for people.
pub(super) fn progress(record: &ResourceRecord) -> String {
    let waits: Vec<String> = record
        .resources
        .iter()
        .filter(|one| one.phase != ResourcePhase::Ready)
        .map(|one| {
            let detail = if one.message.is_empty() {
                String::new()
            } else {
                format!(" ({})", one.message)
            };
            format!("{} {} is {}{detail}", one.kind, one.name, word(one.phase))
        })
        .collect();
    if !record.reason.is_empty() {
        record.message.to_string()
    } else if waits.is_empty() {
        "is being made".to_owned()
    } else {
        waits.join(", ")
    }
}

fn word(phase: ResourcePhase) -> &'static str {
    match phase {
        ResourcePhase::Pending => "pending",
        ResourcePhase::Ready => "ready",
        ResourcePhase::Failed => "failed",
        ResourcePhase::Releasing => "being released",
        ResourcePhase::Gone => "gone",
        ResourcePhase::Unknown => "unknown",
    }
}
