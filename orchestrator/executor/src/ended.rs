//! How a call ended, and what it showed.

use std::collections::HashSet;

use drover_cluster::{CallEnd, Heard};
use drover_core::{Millis, Sym, Urgency};
use drover_proto::platform::v1 as wire;

/// How a call ended.
#[derive(Debug)]
pub struct Ended {
    /// The end, for the cluster.
    pub end: CallEnd,
    /// When the answer came.
    pub at: Millis,
    /// The nodes that the answer showed.
    pub shown: Option<Shown>,
    /// How soon the cluster is to be planned.
    pub urgency: Urgency,
}

/// Nodes that an answer showed.
#[derive(Debug)]
pub struct Shown {
    /// The platform that answered.
    pub platform: Sym,
    /// Uid of its backend.
    pub uid: String,
    /// When the nodes were like this at the earliest, by our clock.
    pub as_of: Millis,
    /// The nodes.
    pub nodes: Vec<Heard>,
    /// Number of leading nodes that were listed, so that a list will also tell when they are gone.
    pub listed: usize,
    /// If these are all nodes of the cluster.
    pub complete: Option<Complete>,
}

/// What makes an answer complete.
#[derive(Debug)]
pub struct Complete {
    /// Parts that could not be read.
    pub warnings: Vec<wire::Warning>,
    /// Ids of nodes whose agents have proven that they live.
    pub alive: HashSet<String>,
}

impl Shown {
    pub(crate) fn by_answer(platform: Sym, uid: &str, began: Millis, nodes: Vec<Heard>) -> Self {
        Self {
            platform,
            uid: uid.to_owned(),
            as_of: began,
            nodes,
            listed: 0,
            complete: None,
        }
    }
}

impl Ended {
    pub(crate) fn new(end: CallEnd, at: Millis, urgency: Urgency) -> Self {
        Self {
            end,
            at,
            shown: None,
            urgency,
        }
    }

    pub(crate) fn showing(self, shown: Shown) -> Self {
        Self {
            shown: Some(shown),
            ..self
        }
    }
}
