//! Wishes of users that are no part of the spec: restarts, repairs, losses to accept, adoption. They are stored with the
//! desired state.

use drover_core::{Error, Node, Result};
use drover_store::Desired;
use prost::Message;

/// Key of [`Restarts`] in the extra fields of the desired state.
const RESTARTS: &str = "restarts";

/// Key of the last adoption request in the extra fields of the desired state.
const ADOPT: &str = "adopt";

/// Number of the last request to adopt nodes and resources that platforms show for the cluster and that have no record
/// here. 0 if there was none.
pub(crate) fn adopt_order(desired: &Desired) -> u64 {
    let bytes = desired.extra.get(ADOPT);
    let bytes = bytes.and_then(|bytes| bytes.as_slice().try_into().ok());
    bytes.map_or(0, u64::from_be_bytes)
}

/// Requests adoption on the next pass.
pub fn order_adoption(desired: &mut Desired) {
    let order = adopt_order(desired) + 1;
    desired
        .extra
        .insert(ADOPT.to_owned(), order.to_be_bytes().to_vec());
}

/// Groups in which all nodes up to a slot are to be replaced.
#[derive(Clone, PartialEq, Message)]
pub struct Restarts {
    /// At most one per group.
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<Restart>,
}

/// Replaces the nodes of the group in slots below `before_slot`.
#[derive(Clone, PartialEq, Message)]
pub struct Restart {
    /// Path of the group.
    #[prost(string, tag = "1")]
    pub group: String,
    /// Slots from this one on were given out after the restart was asked for.
    #[prost(uint64, tag = "2")]
    pub before_slot: u64,
}

impl Restarts {
    /// The restarts of a desired state.
    ///
    /// # Errors
    /// `Internal` if they are damaged.
    pub fn of(desired: &Desired) -> Result<Self> {
        match desired.extra.get(RESTARTS) {
            None => Ok(Self::default()),
            Some(bytes) => Self::decode(bytes.as_slice())
                .map_err(|_| Error::internal("the stored restarts cannot be read")),
        }
    }

    /// Stores them with a desired state.
    pub fn put(&self, desired: &mut Desired) {
        let bytes = self.encode_to_vec();
        desired.extra.insert(RESTARTS.to_owned(), bytes);
    }

    pub(crate) fn has(&self, node: &Node) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|one| *one.group == *node.group && node.slot < one.before_slot)
    }
}

/// Key of [`Repairs`] in the extra fields of the desired state.
const REPAIRS: &str = "repairs";

/// Ids of nodes under manual repair.
#[derive(Clone, PartialEq, Message)]
pub struct Repairs {
    /// Ids of the nodes.
    #[prost(string, repeated, tag = "1")]
    pub nodes: Vec<String>,
}

impl Repairs {
    /// The repairs of a desired state.
    ///
    /// # Errors
    /// `Internal` if they are damaged.
    pub fn of(desired: &Desired) -> Result<Self> {
        match desired.extra.get(REPAIRS) {
            None => Ok(Self::default()),
            Some(bytes) => Self::decode(bytes.as_slice())
                .map_err(|_| Error::internal("the stored repairs cannot be read")),
        }
    }

    /// Stores them with a desired state.
    pub fn put(&self, desired: &mut Desired) {
        if self.nodes.is_empty() {
            desired.extra.remove(REPAIRS);
        } else {
            desired
                .extra
                .insert(REPAIRS.to_owned(), self.encode_to_vec());
        }
    }
}

/// Key of [`AcceptedLosses`] in the extra fields of the desired state.
const ACCEPTED_LOSSES: &str = "accepted_losses";

/// Nodes of which a user has given up what only they have acknowledged, so that standbys may take over.
#[derive(Clone, PartialEq, Message)]
pub struct AcceptedLosses {
    /// Slots of the nodes, which may be gone.
    #[prost(uint64, repeated, tag = "1")]
    pub slots: Vec<u64>,
}

impl AcceptedLosses {
    /// The accepted losses of a desired state.
    ///
    /// # Errors
    /// `Internal` if they are damaged.
    pub fn of(desired: &Desired) -> Result<Self> {
        match desired.extra.get(ACCEPTED_LOSSES) {
            None => Ok(Self::default()),
            Some(bytes) => Self::decode(bytes.as_slice())
                .map_err(|_| Error::internal("the stored accepted losses cannot be read")),
        }
    }

    /// Stores them with a desired state.
    pub fn put(&self, desired: &mut Desired) {
        if self.slots.is_empty() {
            desired.extra.remove(ACCEPTED_LOSSES);
        } else {
            desired
                .extra
                .insert(ACCEPTED_LOSSES.to_owned(), self.encode_to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use drover_core::NodeState;

    use super::*;
    use crate::fixture;

    #[test]
    fn every_request_to_adopt_has_a_number_of_its_own() {
        let mut desired = Desired::default();
        assert_eq!(adopt_order(&desired), 0);
        for number in 1..4 {
            order_adoption(&mut desired);
            assert_eq!(adopt_order(&desired), number);
        }
    }

    #[test]
    fn a_restart_is_about_the_nodes_that_its_group_had() {
        let mut desired = Desired::default();
        let restarts = Restarts {
            groups: vec![Restart {
                group: "db".to_owned(),
                before_slot: 7,
            }],
        };
        restarts.put(&mut desired);
        let stored = Restarts::of(&desired).unwrap();
        let of = |slot| fixture::node(slot, NodeState::Ready);
        assert!(stored.has(&of(6)) && !stored.has(&of(7)));
        let elsewhere = fixture::with(of(6), |node| node.origin_mut().group = "web".into());
        assert!(!stored.has(&elsewhere));
    }

    #[test]
    fn repairs_that_have_ended_leave_nothing_behind() {
        let mut desired = Desired::default();
        let nodes = vec!["db-0".to_owned()];
        Repairs { nodes }.put(&mut desired);
        assert_eq!(Repairs::of(&desired).unwrap().nodes, ["db-0"]);
        Repairs::default().put(&mut desired);
        assert!(desired.extra.is_empty());
    }

    #[test]
    fn accepted_losses_that_were_carried_out_leave_nothing_behind() {
        let mut desired = Desired::default();
        let slots = vec![3, 700];
        AcceptedLosses { slots }.put(&mut desired);
        assert_eq!(AcceptedLosses::of(&desired).unwrap().slots, [3, 700]);
        AcceptedLosses::default().put(&mut desired);
        assert!(desired.extra.is_empty());
    }

    #[test]
    fn damaged_wishes_are_an_error_and_not_none() {
        let mut desired = Desired::default();
        for key in [RESTARTS, REPAIRS, ACCEPTED_LOSSES] {
            desired.extra.insert(key.to_owned(), vec![0xff]);
        }
        assert!(Restarts::of(&desired).is_err());
        assert!(Repairs::of(&desired).is_err());
        assert!(AcceptedLosses::of(&desired).is_err());
    }
}
