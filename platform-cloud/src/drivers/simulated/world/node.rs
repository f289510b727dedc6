//! A simulated node and its id.

use std::sync::Arc;

use drover_proto::platform::v1::NodePhase;

use drover_platform::identity::Identity;

use super::{NO_DOMAIN, NO_HOST};

/// A node. Data that is common to all nodes of its request is shared, to save memory.
#[derive(Clone, Debug)]
pub(in crate::drivers::simulated) struct SimNode {
    /// The identity without id, name, index, ordinal and role, which are empty.
    pub(super) shared: Arc<Identity>,
    pub(super) id: Box<str>,
    pub(super) name: Box<str>,
    pub(super) index: u32,
    pub(super) ordinal: u32,
    pub(super) created: u64,
    pub(super) message: Option<Box<str>>,
    pub(super) domain: u16,
    pub(super) host: u16,
    pub(super) role: u8,
    pub(super) phase: NodePhase,
    pub(super) ready: bool,
    /// Not visible to lists and watches yet.
    pub(super) hidden: bool,
}

impl SimNode {
    pub(in crate::drivers::simulated) fn group(&self) -> &str {
        &self.shared.group
    }

    pub(in crate::drivers::simulated) fn cluster_id(&self) -> &str {
        &self.shared.cluster_id
    }

    pub(in crate::drivers::simulated) fn host(&self) -> Option<usize> {
        (self.host != NO_HOST).then_some(usize::from(self.host))
    }

    pub(in crate::drivers::simulated) fn domain(&self) -> Option<usize> {
        (self.domain != NO_DOMAIN).then_some(usize::from(self.domain))
    }

    /// Whether it counts for spreads.
    pub(in crate::drivers::simulated) fn is_placed(&self) -> bool {
        matches!(
            self.phase,
            NodePhase::Pending | NodePhase::Running | NodePhase::Stopped | NodePhase::Unknown
        )
    }
}

pub(in crate::drivers::simulated) fn node_id(number: u32) -> String {
    format!("sim-{number:08x}")
}

pub(in crate::drivers::simulated) fn number(node_id: &str) -> Option<u32> {
    let digits = node_id
        .strip_prefix("sim-")
        .filter(|digits| digits.len() == 8)?;
    // Reject alternative spellings, such as upper case.
    digits
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        .then_some(())?;
    u32::from_str_radix(digits, 16).ok()
}

pub(super) fn packed(at: Option<usize>, none: u16) -> u16 {
    at.and_then(|at| u16::try_from(at).ok()).unwrap_or(none)
}

pub(super) fn sim_node(mut identity: Identity, domain: Option<usize>, created: u64) -> SimNode {
    let (id, name) = (
        std::mem::take(&mut identity.id),
        std::mem::take(&mut identity.name),
    );
    let (index, ordinal) = (
        std::mem::take(&mut identity.index),
        std::mem::take(&mut identity.ordinal),
    );
    let role = std::mem::take(&mut identity.role);
    SimNode {
        shared: Arc::new(identity),
        id: id.into(),
        name: name.into(),
        index,
        ordinal,
        created,
        message: None,
        domain: packed(domain, NO_DOMAIN),
        host: NO_HOST,
        role: u8::try_from(role).unwrap_or_default(),
        phase: NodePhase::Pending,
        ready: false,
        hidden: false,
    }
}
