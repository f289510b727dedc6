//! Which server of a replicated store may acknowledge writes, and which may take over from it, so that no acknowledged
//! write is lost. Safe by counting alone: no clock, no lease, and no proof that the old primary is dead. No I/O and no time.
//!
//! A primary acknowledges a write once `needed` of its `standbys` have it on disk ([`Copies`], in force at its server). A
//! promotion collects promises to stop following the old primary, from so many of these standbys that each acknowledgement
//! met at least one of them ([`Copies::promises`]), and promotes the one that has the most. From then on the old primary
//! finds too few standbys to acknowledge anything, wherever it is and whoever still reaches it: that is the fence.
//!
//! For that a promotion must know what the old primary counts. So `standbys` and `needed` are data themselves: a
//! [`Record`], which stands once a majority of the [`Voter`]s has it on disk, and which a promotion reads from a majority.
//! Voters are the nodes of the group and whoever promotes. What a primary counts changes by a [`Change`], in an order in
//! which no promotion can be misled.
//!
//! `tests/model` explores all orders of events, and finds what is lost if one of these rules is left out.

mod change;
mod promotion;
mod record;
mod voter;

pub use change::{Change, Step};
pub use promotion::{Decision, Promise, decide};
pub use record::{Copies, Position, Record};
pub use voter::{Refused, Voter};

/// The smallest number of voters that any other majority shares one with.
#[must_use]
pub const fn majority(voters: usize) -> usize {
    voters / 2 + 1
}
