//! Nodes that a platform shows although they are recorded on another one: reported to users, but never believed.

use std::collections::BTreeMap;

use drover_core::{Millis, Sym};

/// Maximum number of claims that are remembered.
const MAX_CLAIMS: usize = 1_000;
/// Maximum number of nodes named in a message.
const NAMED: usize = 3;

/// Claimed nodes, by cluster and node id: when each was last shown, and the platform that it is recorded on.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<(Box<str>, Box<str>), (Millis, Sym)>);

impl Claims {
    /// Adds or renews a claim. Returns whether it is the first one.
    pub(super) fn add(
        &mut self,
        cluster: &str,
        node_id: &str,
        recorded: &Sym,
        now: Millis,
    ) -> bool {
        let key = (cluster.into(), node_id.into());
        if self.0.len() >= MAX_CLAIMS && !self.0.contains_key(&key) {
            return false;
        }
        let first = self.0.is_empty();
        self.0.insert(key, (now, recorded.clone()));
        first
    }

    pub(super) fn remove(&mut self, cluster: &str, node_id: &str) {
        if !self.0.is_empty() {
            self.0.remove(&(cluster.into(), node_id.into()));
        }
    }

    /// Drops claims that no complete list since `began` has shown.
    pub(super) fn shown_since(&mut self, began: Millis) {
        self.0.retain(|_, (last, _)| *last >= began);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Human-readable summary. `None` if there are no claims.
    pub(super) fn in_words(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let named = self.0.iter().take(NAMED);
        let named = named.map(|((cluster, node), (_, recorded))| {
            format!("{node} of {cluster}, which is on {recorded}")
        });
        let mut named: Vec<String> = named.collect();
        if self.0.len() > NAMED {
            named.push("…".to_owned());
        }
        let (count, more) = (
            self.0.len(),
            if self.0.len() >= MAX_CLAIMS {
                " or more"
            } else {
                ""
            },
        );
        let nodes = if count == 1 {
            "node that is recorded on another platform and is"
        } else {
            "nodes that are recorded on other platforms and are"
        };
        Some(format!(
            "shows {count}{more} {nodes} not believed ({}); find out who makes it say so",
            named.join("; ")
        ))
    }
}
