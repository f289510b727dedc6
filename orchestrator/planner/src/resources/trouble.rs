//! What is wrong with resources, in conditions and for people.

use drover_core::{
    Millis, Sym,
    resource::{ResourceKey, ResourceKind, ResourceRecord},
};

use super::{
    Draft,
    words::{noun, place, reason},
};
use crate::{ConditionKey, ConditionKind, Planner, PlatformView};

/// From when on what a release waits for is what blocks a deletion.
const LONG_RELEASE: Millis = 60_000;

/// Reason of a resource whose platform is not there.
pub(super) const UNAVAILABLE: &str = "PlatformUnavailable";

impl Planner<'_> {
    pub(super) fn hold_trouble(&mut self, key: &ResourceKey, record: &ResourceRecord) {
        if !record.reason.is_empty() && !self.state.deleting {
            self.fail_resource(key, &record.reason, &record.message);
        }
    }

    pub(super) fn unavailable(&mut self, draft: &Draft<'_>) {
        if self.state.deleting {
            // The condition of the deletion reports what blocks it.
            return;
        }
        let view = self.input.platforms.get(&draft.key.platform);
        let trouble = self.trouble(draft.key, view).to_owned();
        self.fail_resource(draft.key, UNAVAILABLE, &trouble);
    }

    fn trouble<'v>(&self, key: &ResourceKey, view: Option<&'v PlatformView>) -> &'v str {
        match view {
            None => "is not registered",
            Some(view) if *view.uid != *key.uid => {
                "shows another backend than the one that it is on"
            }
            Some(view) => &view.trouble,
        }
    }

    pub(super) fn fail_resource(&mut self, key: &ResourceKey, why: &str, message: &str) {
        let message = format!("{}: {message}", place(key));
        let condition = ConditionKey {
            group: Sym::default(),
            kind: match key.kind {
                ResourceKind::Infrastructure => ConditionKind::InfrastructureFailed,
                ResourceKind::Addon(_) => ConditionKind::AddonsFailed,
            },
        };
        self.note("", None, false, reason(key), || message.clone());
        self.hold(condition, why, &message);
    }

    /// The resources that block a deletion, for people.
    pub(crate) fn blocking_resources(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (key, record) in self.state.resources.iter() {
            let record = self.record_of(key)[1].unwrap_or(record);
            let view = self.input.platforms.get(&key.platform);
            let blocked = match view {
                Some(view) if *view.uid == *key.uid && view.visible && view.callable => {
                    let long = self.input.now >= record.phase_time + LONG_RELEASE;
                    let waits = long && !record.message.is_empty();
                    if !record.releasing || record.reason.is_empty() && !waits {
                        continue;
                    }
                    format!("does not release it: {}", record.message)
                }
                view => self.trouble(key, view).to_owned(),
            };
            let resources = match record.named() {
                names if names.is_empty() => String::new(),
                names => format!(" ({names})"),
            };
            words.push(format!(
                "{} on {}{resources}, which {blocked}",
                noun(key),
                key.platform
            ));
        }
        words
    }
}
