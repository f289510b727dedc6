use crate::{Copies, Record};

/// What has to be done next for a change of what counts at a primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step<N> {
    /// A majority of the voters has to accept this record.
    Accept(Record<N>),
    /// The server has to count these copies, from here on.
    Count(Copies<N>),
    /// As many of these standbys as are needed have to have all that the server had when it began to count them.
    Drain(Copies<N>),
}

/// A change of what counts at a primary, in the order in which a promotion that reads any record of a majority covers
/// whatever may have been acknowledged:
///
/// 1. a record that covers both, the old copies and the new ones;
/// 2. the new copies at the server;
/// 3. what was acknowledged with the old ones has reached the new ones;
/// 4. the record of the new copies.
///
/// Who is added needs no more than 1 and 2, who is removed no more than 2 to 4.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change<N> {
    record: Record<N>,
    to: Copies<N>,
    done: u8,
}

impl<N: Clone + Ord> Change<N> {
    /// From what is recorded, and counted, to other copies.
    #[must_use]
    pub const fn new(record: Record<N>, to: Copies<N>) -> Self {
        Self {
            record,
            to,
            done: 0,
        }
    }

    /// The record that a majority has accepted last.
    #[must_use]
    pub const fn record(&self) -> &Record<N> {
        &self.record
    }

    /// What is to be done next. `None`: the change is complete.
    #[must_use]
    pub fn step(&self) -> Option<Step<N>> {
        let joined = self.record.copies.joined(&self.to);
        match self.done {
            0 if joined != self.record.copies => Some(Step::Accept(self.next(joined))),
            0 | 1 => Some(Step::Count(self.to.clone())),
            2 if self.record.copies != self.to => Some(Step::Drain(self.to.clone())),
            3 if self.record.copies != self.to => Some(Step::Accept(self.next(self.to.clone()))),
            _ => None,
        }
    }

    /// The step is done.
    pub fn done(&mut self, step: Step<N>) {
        self.done = match step {
            Step::Accept(record) => {
                self.record = record;
                if self.done == 0 { 1 } else { 4 }
            }
            Step::Count(_) => 2,
            Step::Drain(_) => 3,
        };
    }

    fn next(&self, copies: Copies<N>) -> Record<N> {
        Record {
            change: self.record.change + 1,
            copies,
            ..self.record.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Position;

    fn copies(standbys: &[&'static str], needed: usize) -> Copies<&'static str> {
        Copies {
            standbys: standbys.iter().copied().collect(),
            needed,
        }
    }

    fn steps(from: Copies<&'static str>, to: Copies<&'static str>) -> Vec<Step<&'static str>> {
        let record = Record {
            term: 1,
            change: 0,
            primary: "a",
            start: Position { term: 0, lsn: 0 },
            copies: from,
        };
        let mut change = Change::new(record, to);
        let mut steps = Vec::new();
        while let Some(step) = change.step() {
            steps.push(step.clone());
            change.done(step);
        }
        steps
    }

    fn in_words(steps: &[Step<&'static str>]) -> Vec<String> {
        let words = |copies: &Copies<&str>| {
            let names: Vec<&str> = copies.standbys.iter().copied().collect();
            format!("{} of {}", copies.needed, names.join(""))
        };
        let words = |step: &Step<&'static str>| match step {
            Step::Accept(record) => format!("record {}", words(&record.copies)),
            Step::Count(copies) => format!("count {}", words(copies)),
            Step::Drain(copies) => format!("drain {}", words(copies)),
        };
        steps.iter().map(words).collect()
    }

    #[test]
    fn who_is_added_is_recorded_before_it_counts() {
        let steps = steps(copies(&["b"], 1), copies(&["b", "c"], 1));
        assert_eq!(in_words(&steps), ["record 1 of bc", "count 1 of bc"]);
    }

    #[test]
    fn who_is_removed_is_recorded_until_the_others_have_everything() {
        let steps = steps(copies(&["b", "c"], 1), copies(&["b"], 1));
        assert_eq!(
            in_words(&steps),
            ["count 1 of b", "drain 1 of b", "record 1 of b"]
        );
    }

    #[test]
    fn a_primary_is_recorded_to_be_alone_before_it_acknowledges_alone() {
        let alone = steps(copies(&["b"], 1), Copies::none());
        assert_eq!(in_words(&alone), ["record 0 of ", "count 0 of "]);
        let again = steps(Copies::none(), copies(&["b"], 1));
        assert_eq!(
            in_words(&again),
            ["count 1 of b", "drain 1 of b", "record 1 of b"]
        );
    }

    #[test]
    fn one_standby_in_place_of_another_takes_all_steps() {
        let steps = steps(copies(&["b"], 1), copies(&["c"], 1));
        assert_eq!(
            in_words(&steps),
            [
                "record 1 of bc",
                "count 1 of c",
                "drain 1 of c",
                "record 1 of c"
            ]
        );
    }

    /// All copies of up to four standbys.
    fn all() -> Vec<Copies<u8>> {
        let mut all = Vec::new();
        for bits in 0..16_u8 {
            let standbys: BTreeSet<u8> = (0..4).filter(|it| bits & (1 << it) != 0).collect();
            for needed in 1..=standbys.len() {
                let standbys = standbys.clone();
                all.push(Copies { standbys, needed });
            }
        }
        all.push(Copies::none());
        all
    }

    /// Whether each set of standbys that may acknowledge has one in each set that may promote.
    fn meet(record: &Copies<u8>, counted: &Copies<u8>) -> bool {
        let within = |bits: u8, of: &Copies<u8>| {
            (0..4).all(|it| bits & (1 << it) == 0 || of.standbys.contains(&it))
        };
        let Some(promises) = record.promises() else {
            return true;
        };
        let size = |bits: u8| bits.count_ones() as usize;
        let acknowledging =
            (0..16).filter(|it| within(*it, counted) && size(*it) == counted.needed);
        let promoting: Vec<u8> = (0..16)
            .filter(|it| within(*it, record) && size(*it) == promises)
            .collect();
        acknowledging
            .into_iter()
            .all(|ack| promoting.iter().all(|it| ack & it != 0))
    }

    #[test]
    fn copies_cover_others_exactly_if_no_promotion_can_miss_what_these_acknowledge() {
        for record in all() {
            for counted in all() {
                assert_eq!(
                    record.cover(&counted),
                    meet(&record, &counted),
                    "{record:?} {counted:?}"
                );
            }
        }
    }

    #[test]
    fn every_change_is_covered_at_every_step() {
        for from in all() {
            for to in all() {
                let record = Record {
                    term: 1,
                    change: 0,
                    primary: 9,
                    start: Position { term: 0, lsn: 0 },
                    copies: from.clone(),
                };
                let (mut change, mut counted) = (Change::new(record, to.clone()), from.clone());
                // With what it counted until it is drained, something may have been acknowledged.
                let mut drained = true;
                while let Some(step) = change.step() {
                    match &step {
                        Step::Count(copies) => {
                            drained = copies == &counted;
                            assert!(change.record().copies.cover(copies), "{from:?} {to:?}");
                            counted = copies.clone();
                        }
                        Step::Drain(_) => drained = true,
                        Step::Accept(record) => {
                            assert!(record.copies.cover(&counted), "{from:?} {to:?}");
                            let old = drained || record.copies.cover(&from);
                            assert!(old, "{from:?} {to:?}");
                        }
                    }
                    change.done(step);
                }
                assert_eq!(change.record().copies, to);
                assert_eq!(counted, to);
            }
        }
    }
}
