//! Where nodes are placed: [`domains`] chooses failure domains in which a backend makes machines, [`hosts`] chooses among
//! machines that exist.

pub mod domains;
pub mod hosts;

use drover_proto::platform::v1::{Spread, UnsatisfiableAction};

/// Whether a node that would break the spread is not made.
fn is_required(spread: &Spread) -> bool {
    spread.when_unsatisfiable() == UnsatisfiableAction::DoNotSchedule
        || spread.max_per_domain.is_some()
}
