//! Faults, random or on demand.

use std::{collections::VecDeque, time::Duration};

use drover_core::Error;
use serde::{Deserialize, Serialize};

use super::settings::{ErrorRate, ErrorRates};

/// A call to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Lists all nodes, those of a cluster, or some nodes.
    List,
    /// Creates the nodes of one request.
    Create,
    /// Deletes a node.
    Delete,
    /// Updates or adopts a node.
    Update,
    /// Creates infrastructure.
    Ensure,
    /// Releases infrastructure.
    Release,
    /// Makes or changes an addon.
    EnsureAddon,
    /// Removes an addon.
    RemoveAddon,
    /// Lists addons.
    ListAddons,
}

/// The fault of one call.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Fails with this error and has no effect.
    Refuse(Error),
    /// Takes effect and then fails: the response is lost.
    LoseAnswer,
    /// Takes effect after this additional delay.
    Stall(Duration),
}

/// How a node dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Death {
    /// Listed as failed until it is deleted.
    #[default]
    Failed,
    /// Listed as terminated until it is deleted.
    Terminated,
    /// No longer listed.
    Vanished,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    rates: ErrorRates,
    next: VecDeque<(Operation, Fault)>,
}

impl Faults {
    pub(super) fn new(rates: ErrorRates) -> Self {
        Self {
            rates,
            next: VecDeque::new(),
        }
    }

    pub(super) fn add(&mut self, operation: Operation, fault: Fault) {
        self.next.push_back((operation, fault));
    }

    /// Draws the fault of the next call of this kind.
    pub(super) fn draw(
        &mut self,
        operation: Operation,
        random: &mut fastrand::Rng,
    ) -> Option<Fault> {
        if let Some(at) = self.next.iter().position(|(of, _)| *of == operation) {
            return self.next.remove(at).map(|(_, fault)| fault);
        }
        let ErrorRate { before, after } = match operation {
            Operation::List | Operation::ListAddons => self.rates.list,
            Operation::Create | Operation::Ensure | Operation::EnsureAddon => self.rates.create,
            Operation::Delete | Operation::Release | Operation::RemoveAddon => self.rates.delete,
            Operation::Update => self.rates.update,
        };
        if before == 0.0 && after == 0.0 {
            return None;
        }
        let drawn = random.f64();
        if drawn < before {
            Some(Fault::Refuse(Error::unavailable(
                "the simulated backend failed before it did anything",
            )))
        } else if drawn < before + after {
            Some(Fault::LoseAnswer)
        } else {
            None
        }
    }
}

/// The error of a lost response.
pub(super) fn lost() -> Error {
    Error::unavailable("the simulated backend lost its answer")
}
