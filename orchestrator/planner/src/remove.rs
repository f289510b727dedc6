//! Nodes that nobody wants any more: of groups that are gone, and of deleted clusters.

use drover_core::node::RemovalReason;

use crate::Planner;

impl Planner<'_> {
    /// A deletion that a user asked for skips budget and breaker, and needs neither spec nor health nor visibility.
    pub(crate) fn remove_unwanted(&mut self) {
        for at in 0..self.state.nodes.len() {
            let mark = self.marks[at];
            if mark.forgotten || mark.leaving || !self.is_unwanted(at) {
                continue;
            }
            if self.full() {
                return;
            }
            self.intend(at, RemovalReason::User);
        }
    }
}
