//! All calls of the six services: how each is made ready, made, and looked at from outside.

mod ingresses;
mod objects;
mod workloads;

use drover_core::{Error, Reason};
use drover_proto::common::v1::LabelSelector;
use futures::future::LocalBoxFuture;

use super::world::World;

pub(super) type Prepare = for<'a> fn(&'a World, &'a str) -> LocalBoxFuture<'a, ()>;
pub(super) type Act = for<'a> fn(&'a World, &'a str) -> LocalBoxFuture<'a, Result<(), Error>>;
pub(super) type Look = for<'a> fn(&'a World, &'a str) -> LocalBoxFuture<'a, bool>;

/// What a call changes at the API server, and how that is seen there.
pub(super) struct Effect {
    pub(super) verb: &'static str,
    pub(super) resource: &'static str,
    pub(super) done: Look,
}

/// A call, with names of objects that are its own.
pub(super) struct Row {
    /// `PodService/CreatePod`.
    pub(super) call: &'static str,
    pub(super) prepare: Prepare,
    pub(super) act: Act,
    pub(super) effect: Option<Effect>,
    /// What it answers if it has been done already.
    pub(super) again: Option<Reason>,
    /// What is left behind, with the name of the case. Lists of others would become long.
    pub(super) leaves: Option<&'static str>,
}

impl Row {
    fn reads(call: &'static str, prepare: Prepare, act: Act) -> Self {
        Self {
            call,
            prepare,
            act,
            effect: None,
            again: None,
            leaves: None,
        }
    }

    fn changes(
        call: &'static str,
        prepare: Prepare,
        act: Act,
        (verb, resource, done): (&'static str, &'static str, Look),
    ) -> Self {
        Self {
            effect: Some(Effect {
                verb,
                resource,
                done,
            }),
            ..Self::reads(call, prepare, act)
        }
    }

    fn creates(call: &'static str, act: Act, resource: &'static str, done: Look) -> Self {
        Self {
            again: Some(Reason::AlreadyExists),
            ..Self::changes(call, nothing, act, ("create", resource, done))
        }
    }
}

pub(super) fn nothing<'a>(_: &'a World, _: &'a str) -> LocalBoxFuture<'a, ()> {
    Box::pin(async {})
}

pub(super) fn selector(name: &str) -> Option<LabelSelector> {
    Some(LabelSelector {
        match_labels: [("case".to_owned(), name.to_owned())].into(),
        match_expressions: Vec::new(),
    })
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = objects::rows();
    rows.extend(workloads::rows());
    rows.extend(ingresses::rows());
    rows
}
