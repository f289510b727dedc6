//! Errors of a process that led when a call began, and leads no more.

use drover_core::{Error, Reason};
use drover_store::backend::CommitError;

/// Whoever was refused by the store because another process leads has written nothing: its caller is to ask that one.
pub(crate) fn of_a_former_leader(error: Error) -> Error {
    if error.reason() == Reason::Fenced && error.message() == CommitError::Fenced.to_string() {
        return Error::new(Reason::NotLeader, "another replica leads by now");
    }
    error
}

/// The error of a change of which a part is stored: that another replica leads is no reason to make all of it again.
pub(crate) fn of_a_part(error: Error) -> Error {
    match of_a_former_leader(error) {
        error if error.reason() == Reason::NotLeader => Error::unavailable(
            "another replica leads by now, and a part of the change was made; look what is there",
        ),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_made_a_part_does_not_say_that_nothing_was_done() {
        let reason = |error: Error| of_a_part(error).reason();
        assert_eq!(reason(CommitError::Fenced.into()), Reason::Unavailable);
        let leads = Error::new(Reason::NotLeader, "another one leads");
        assert_eq!(reason(leads), Reason::Unavailable);
        assert_eq!(reason(Error::new(Reason::NotFound, "x")), Reason::NotFound);
    }
}
