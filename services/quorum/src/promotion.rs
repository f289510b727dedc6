use std::collections::BTreeSet;

use crate::{Copies, Position, Record, majority};

/// The answer of a voter that has promised to a term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promise<N> {
    /// Who promises.
    pub voter: N,
    /// The newest record that it has accepted.
    pub record: Option<Record<N>>,
    /// How far its data go, if it has any.
    pub position: Option<Position>,
}

/// What follows from the promises so far.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Decision<N> {
    /// This record is to be accepted by a majority. Then its primary is promoted.
    Promote(Record<N>),
    /// More promises are needed.
    Wait {
        /// Whose would help.
        of: BTreeSet<N>,
        /// How many of theirs.
        more: usize,
    },
    /// A majority knows of no primary: the group has not begun.
    New,
}

/// Who is promoted in a term, given promises of voters to it. `wanted` is the number of standbys that should have each
/// write of the new primary.
pub fn decide<N: Clone + Ord>(
    voters: &BTreeSet<N>,
    term: u64,
    wanted: usize,
    promises: &[Promise<N>],
) -> Decision<N> {
    let promised: BTreeSet<&N> = promises.iter().map(|it| &it.voter).collect();
    let silent = |of: &BTreeSet<N>| -> BTreeSet<N> {
        let silent = of.iter().filter(|it| !promised.contains(it));
        silent.cloned().collect()
    };
    let votes = voters.iter().filter(|it| promised.contains(it)).count();
    let missing = majority(voters.len()).saturating_sub(votes);
    if missing > 0 {
        return Decision::Wait {
            of: silent(voters),
            more: missing,
        };
    }
    let records = promises.iter().filter_map(|it| it.record.as_ref());
    let Some(newest) = records.max_by_key(|record| record.version()) else {
        return Decision::New;
    };
    let place = |promise: &Promise<N>| newest.place(promise.position?);
    let of_primary = promises.iter().find(|it| it.voter == newest.primary);
    // Whatever was acknowledged in its term, the primary has.
    if let Some(primary) = of_primary.filter(|it| place(it).is_some()) {
        return Decision::Promote(promoted(primary, term, wanted, promises));
    }
    let counted = promises
        .iter()
        .filter(|it| newest.copies.standbys.contains(&it.voter) && place(it).is_some());
    let answers = counted.clone().count();
    let Some(needed) = newest.copies.promises() else {
        return Decision::Wait {
            of: BTreeSet::from([newest.primary.clone()]),
            more: 1,
        };
    };
    // Any of the farthest; the first by name, so that a repeat says the same.
    let farthest = counted.rev().max_by_key(|it| place(it));
    match farthest {
        Some(farthest) if answers >= needed => {
            Decision::Promote(promoted(farthest, term, wanted, promises))
        }
        _ => {
            let mut of = silent(&newest.copies.standbys);
            of.insert(newest.primary.clone());
            Decision::Wait {
                of,
                more: needed.saturating_sub(answers).max(1),
            }
        }
    }
}

fn promoted<N: Clone + Ord>(
    who: &Promise<N>,
    term: u64,
    wanted: usize,
    promises: &[Promise<N>],
) -> Record<N> {
    let start = who.position.unwrap_or(Position { term: 0, lsn: 0 });
    // Only who has exactly the same counts at once. The others may lack something that was acknowledged, and are counted
    // when they have it.
    let same = promises
        .iter()
        .filter(|it| it.voter != who.voter && it.position == Some(start));
    let same = same.map(|it| it.voter.clone()).collect();
    Record {
        term,
        change: 0,
        primary: who.voter.clone(),
        start,
        copies: Copies::of(same, wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&'static str]) -> BTreeSet<&'static str> {
        names.iter().copied().collect()
    }

    fn at(lsn: u64) -> Option<Position> {
        Some(Position { term: 1, lsn })
    }

    /// Of a: primary in term 1, with these standbys.
    fn record(standbys: &[&'static str], needed: usize) -> Record<&'static str> {
        Record {
            term: 1,
            change: 0,
            primary: "a",
            start: Position { term: 0, lsn: 0 },
            copies: Copies {
                standbys: set(standbys),
                needed,
            },
        }
    }

    fn promise(
        voter: &'static str,
        record: &Record<&'static str>,
        position: Option<Position>,
    ) -> Promise<&'static str> {
        Promise {
            voter,
            record: Some(record.clone()),
            position,
        }
    }

    /// The nodes, and who promotes.
    fn voters() -> BTreeSet<&'static str> {
        set(&["a", "b", "c", "orchestrator"])
    }

    fn primary(decision: Decision<&'static str>) -> Record<&'static str> {
        match decision {
            Decision::Promote(record) => record,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_farthest_of_enough_standbys_is_promoted() {
        let record = record(&["b", "c"], 1);
        let promises = [
            promise("orchestrator", &record, None),
            promise("b", &record, at(4)),
            promise("c", &record, at(7)),
        ];
        let next = primary(decide(&voters(), 2, 1, &promises));
        assert_eq!((next.primary, next.term), ("c", 2));
        // b lacks what c has.
        assert_eq!(next.copies, Copies::none());
    }

    #[test]
    fn a_silent_standby_may_have_what_was_acknowledged() {
        let record = record(&["b", "c"], 1);
        let voters = set(&["a", "b", "c", "orchestrator", "witness"]);
        let promises = [
            promise("orchestrator", &record, None),
            promise("witness", &record, None),
            promise("b", &record, at(4)),
        ];
        let wait = Decision::Wait {
            of: set(&["a", "c"]),
            more: 1,
        };
        assert_eq!(decide(&voters, 2, 1, &promises), wait);
    }

    #[test]
    fn with_two_copies_of_each_write_one_standby_is_enough() {
        let record = record(&["b", "c"], 2);
        let voters = set(&["a", "b", "c", "orchestrator", "witness"]);
        let promises = [
            promise("orchestrator", &record, None),
            promise("witness", &record, None),
            promise("b", &record, at(4)),
        ];
        assert_eq!(primary(decide(&voters, 2, 2, &promises)).primary, "b");
    }

    #[test]
    fn nobody_takes_over_from_a_primary_that_alone_has_everything() {
        let record = record(&[], 0);
        let mut promises = vec![
            promise("orchestrator", &record, None),
            promise("b", &record, at(4)),
            promise("c", &record, at(4)),
        ];
        let wait = Decision::Wait {
            of: set(&["a"]),
            more: 1,
        };
        assert_eq!(decide(&voters(), 2, 1, &promises), wait);
        promises.push(promise("a", &record, at(9)));
        assert_eq!(primary(decide(&voters(), 2, 1, &promises)).primary, "a");
    }

    #[test]
    fn the_newest_record_of_a_majority_says_who_counts() {
        let (old, mut new) = (record(&["b"], 1), record(&[], 0));
        new.change = 1;
        let promises = [
            promise("orchestrator", &new, None),
            promise("b", &old, at(4)),
            promise("c", &old, at(4)),
        ];
        let decision = decide(&voters(), 2, 1, &promises);
        assert!(matches!(decision, Decision::Wait { .. }), "{decision:?}");
    }

    #[test]
    fn data_of_another_history_are_not_compared() {
        let mut record = record(&["b", "c"], 1);
        (record.term, record.primary) = (3, "a");
        record.start = Position { term: 2, lsn: 5 };
        let old = Some(Position { term: 1, lsn: 99 });
        let begun = Some(Position { term: 2, lsn: 5 });
        let promises = [
            promise("orchestrator", &record, None),
            promise("b", &record, old),
            promise("c", &record, begun),
        ];
        let decision = decide(&voters(), 4, 1, &promises);
        assert!(matches!(decision, Decision::Wait { .. }), "{decision:?}");
    }

    #[test]
    fn a_minority_decides_nothing() {
        let record = record(&["b"], 1);
        let promises = [promise("b", &record, at(4)), promise("c", &record, at(4))];
        let wait = Decision::Wait {
            of: set(&["a", "orchestrator"]),
            more: 1,
        };
        assert_eq!(decide(&voters(), 2, 1, &promises), wait);
        assert_eq!(
            decide(
                &voters(),
                2,
                1,
                &["a", "b", "c"].map(|voter| Promise {
                    voter,
                    record: None,
                    position: None,
                }),
            ),
            Decision::New
        );
    }
}
