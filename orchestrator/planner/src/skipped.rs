//! Sequence numbers that a record never assigned although it assigned higher ones.

use crate::State;

/// Maximum number of ranges, of which the lowest are dropped first. Each process that requests something leaves one
/// behind.
const MOST: usize = 32;

/// Ranges of sequence numbers that no node created from this record has.
///
/// Every process assigns sequence numbers far above those of the processes before it. A store that is replaced by an
/// older copy of itself therefore skips all numbers that the lost one had assigned since, and a node that carries one
/// of them shows that the copy is behind, even after the copy has assigned many of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped(Vec<(u64, u64)>);

impl Skipped {
    /// Restores the ranges from their bounds: alternately the first number of a range and the one after its last.
    #[must_use]
    pub fn of(bounds: &[u64]) -> Self {
        Self(bounds.chunks_exact(2).map(|it| (it[0], it[1])).collect())
    }

    /// Bounds of the ranges, in the form that [`Skipped::of`] accepts.
    #[must_use]
    pub fn bounds(&self) -> Vec<u64> {
        self.0.iter().flat_map(|&(from, to)| [from, to]).collect()
    }

    /// Whether a number is in one of the ranges, so that it was never assigned.
    #[must_use]
    pub fn has(&self, sequence: u64) -> bool {
        self.0
            .iter()
            .any(|(from, to)| (*from..*to).contains(&sequence))
    }

    fn skip(&mut self, from: u64, to: u64) {
        match self.0.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => {
                // Most records have a single range.
                self.0.reserve_exact(1);
                self.0.push((from, to));
            }
        }
        let over = self.0.len().saturating_sub(MOST);
        self.0.drain(..over);
    }

    /// Removes a number, because a record now carries it.
    pub(crate) fn take(&mut self, sequence: u64) {
        let Some(at) = (self.0.iter()).position(|(from, to)| (*from..*to).contains(&sequence))
        else {
            return;
        };
        let (from, to) = self.0[at];
        let rest = [(from, sequence), (sequence + 1, to)];
        let rest = rest.into_iter().filter(|(from, to)| from < to);
        self.0.splice(at..=at, rest);
    }
}

impl State {
    /// Makes a process assign numbers from `first` on, unless higher ones were already assigned.
    pub fn count_from(&mut self, first: u64) {
        if first > self.next_sequence {
            self.skipped.skip(self.next_sequence, first);
            self.next_sequence = first;
        }
    }

    /// Whether this record assigned a sequence number, as far as it can tell.
    #[must_use]
    pub fn gave_out(&self, sequence: u64) -> bool {
        sequence < self.next_sequence && !self.skipped.has(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(state: &State, sequences: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let given = |sequence: &u64| state.gave_out(*sequence);
        sequences.into_iter().filter(given).collect()
    }

    #[test]
    fn what_lies_between_the_numbers_of_two_processes_was_never_given_out() {
        let mut state = State {
            next_sequence: 3,
            ..State::default()
        };
        state.count_from(10);
        assert_eq!(given(&state, 0..20), [0, 1, 2]);
        state.next_sequence = 12;
        assert_eq!(given(&state, 0..20), [0, 1, 2, 10, 11]);
        // The same process reads the record again.
        state.count_from(10);
        assert_eq!(given(&state, 0..20), [0, 1, 2, 10, 11]);
        state.count_from(15);
        assert_eq!(Skipped::of(&state.skipped.bounds()), state.skipped);
        assert_eq!(given(&state, 0..20), [0, 1, 2, 10, 11]);
        state.skipped.take(5);
        assert_eq!(given(&state, 0..20), [0, 1, 2, 5, 10, 11]);
    }

    #[test]
    fn starts_of_processes_that_ask_for_nothing_take_no_room_and_those_that_do_not_without_end() {
        let mut state = State::default();
        for start in 1..1_000 {
            state.count_from(start * 100);
        }
        assert_eq!(state.skipped.bounds(), [0, 99_900]);
        for start in 1_000..2_000 {
            state.count_from(start * 100);
            state.next_sequence += 1;
        }
        assert_eq!(state.skipped.bounds().len(), 2 * MOST);
        assert!(!state.gave_out(199_890) && state.gave_out(199_900));
    }
}
