use crate::Record;

/// What a voter has promised, and the newest record that it has accepted. Durable: whatever a call has changed is on disk
/// before it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Voter<N> {
    /// The highest term that it has promised to. It accepts nothing of a lower one.
    pub promised: u64,
    /// The newest record that it has accepted.
    pub record: Option<Record<N>>,
}

/// A voter has promised to a later term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refused {
    /// The term that it has promised to.
    pub promised: u64,
}

impl<N> Default for Voter<N> {
    fn default() -> Self {
        Self {
            promised: 0,
            record: None,
        }
    }
}

impl<N> Voter<N> {
    /// Promises to a term. **Before this is answered**, the server of this node has ended, if it was a primary, and follows
    /// no primary of an earlier term any more; nor does it after a restart.
    ///
    /// # Errors
    /// If it has promised to this term or to a later one.
    pub const fn promise(&mut self, term: u64) -> Result<(), Refused> {
        if term <= self.promised {
            return Err(Refused {
                promised: self.promised,
            });
        }
        self.promised = term;
        Ok(())
    }

    /// Accepts a record. An older one than it has changes nothing.
    ///
    /// # Errors
    /// If it has promised to a later term.
    pub fn accept(&mut self, record: Record<N>) -> Result<(), Refused> {
        if record.term < self.promised {
            return Err(Refused {
                promised: self.promised,
            });
        }
        self.promised = record.term;
        let is_newer = |known: &Record<N>| record.version() > known.version();
        if self.record.as_ref().is_none_or(is_newer) {
            self.record = Some(record);
        }
        Ok(())
    }

    /// Whether the server of this node may follow a primary of a term.
    #[must_use]
    pub const fn may_follow(&self, term: u64) -> bool {
        term >= self.promised
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Copies, Position};

    fn record(term: u64, change: u64) -> Record<&'static str> {
        Record {
            term,
            change,
            primary: "a",
            start: Position { term: 0, lsn: 0 },
            copies: Copies::none(),
        }
    }

    #[test]
    fn a_term_is_promised_once() {
        let mut voter = Voter::<&str>::default();
        voter.promise(2).unwrap();
        assert_eq!(voter.promise(2), Err(Refused { promised: 2 }));
        assert_eq!(voter.promise(1), Err(Refused { promised: 2 }));
    }

    #[test]
    fn nothing_of_a_term_before_the_promised_one_is_accepted() {
        let mut voter = Voter::default();
        voter.promise(2).unwrap();
        assert_eq!(voter.accept(record(1, 5)), Err(Refused { promised: 2 }));
        assert_eq!(voter.record, None);
        voter.accept(record(2, 0)).unwrap();
        assert_eq!(voter.record, Some(record(2, 0)));
    }

    #[test]
    fn a_record_that_comes_late_does_not_replace_a_newer_one() {
        let mut voter = Voter::default();
        voter.accept(record(1, 2)).unwrap();
        voter.accept(record(1, 1)).unwrap();
        assert_eq!(voter.record, Some(record(1, 2)));
    }

    #[test]
    fn whoever_accepts_a_later_term_follows_no_earlier_one() {
        let mut voter = Voter::default();
        voter.accept(record(3, 0)).unwrap();
        assert!(!voter.may_follow(2));
        assert!(voter.may_follow(3));
    }
}
