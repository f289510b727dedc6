//! Carries over the in-memory state of a cluster when its record is reloaded: what platforms show, and which calls are
//! in flight. Without it, a call in flight would be mistaken for one that has ended.

use drover_core::node::{Node, Request};
use drover_planner::State;

/// Carries over everything that is not in the store.
pub(crate) fn over(old: State, new: &mut State) {
    new.orphans = old.orphans;
    new.resource_orphans = old.resource_orphans;
    new.foreign = old.foreign;
    new.confirms = old.confirms;
    for (key, before) in old.resources.iter() {
        if let Some(record) = new.resources.get_mut(key) {
            record.sent = before.sent;
            record.call = before.call;
            record.ensured = before.ensured;
            record.targets.clone_from(&before.targets);
            record.served.clone_from(&before.served);
            record.follows = before.follows;
        }
    }
    for (id, before) in old.requests.iter() {
        if let Some(request) = new.requests.get_mut(id) {
            carry_request(before, request);
        }
    }
    for before in old.nodes {
        if let Some(node) = new.node_mut(before.slot) {
            carry_node(before, node);
        }
    }
}

fn carry_request(old: &Request, new: &mut Request) {
    new.sent = old.sent;
    new.call = old.call;
    // A response that is already recorded, or that is not of the last attempt, must not be taken in again.
    if (old.attempts, old.made_nothing) == (new.attempts, new.made_nothing) {
        new.answer.clone_from(&old.answer);
        new.rendered.clone_from(&old.rendered);
    }
}

fn carry_node(mut old: Node, new: &mut Node) {
    new.seen = std::mem::take(&mut old.seen);
    if new.node_id.is_some() {
        new.seen.node_id = Box::default();
    }
    new.probe = std::mem::take(&mut old.probe);
    new.role_change = old.role_change.take().filter(|_| new.role == old.role);
    new.relabel = old
        .relabel
        .take()
        .filter(|_| new.labels_hash == old.labels_hash);
    // Each stage of a removal or adoption begins without a call.
    if new.removal == old.removal && new.is_adopting() == old.is_adopting() {
        new.call = old.call;
        new.hook = old.hook.take();
    }
}

#[cfg(test)]
mod tests;
