//! Whether what callers were told of a register could have happened one after the other (linearizability), by the search
//! of Wing and Gong with the memory of Lowe.

use std::collections::HashSet;

/// What a register has: how often it was changed, and what was written last. Nothing was written yet: zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    /// Number of changes.
    pub generation: u64,
    /// The last value. Each is written once.
    pub value: u64,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Asks for the content.
    Read,
    /// Writes a value.
    Write(u64),
    /// Writes a value if the register has this generation.
    Swap {
        /// The generation.
        expected: u64,
        /// The value.
        value: u64,
    },
}

/// What the caller was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The content, after a write.
    Is(Content),
    /// The register has another generation.
    Mismatch,
    /// Nothing: it may be carried out at any time, or never.
    Unknown,
}

/// A call with its answer. Times are of any clock that all callers share, and no two are equal.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// The call.
    pub call: Call,
    /// Its answer.
    pub answer: Answer,
    /// When it was made.
    pub began: u64,
    /// When it was answered.
    pub ended: u64,
}

/// Longest history.
pub const MOST: usize = 128;

/// Whether all calls can be put in an order in which each answer is right, and which none leaves that began after another
/// had ended.
///
/// # Panics
/// There are more than [`MOST`].
#[must_use]
pub fn is_linear(ops: &[Op]) -> bool {
    assert!(ops.len() <= MOST, "{} calls", ops.len());
    let mut seen = HashSet::new();
    search(ops, 0, Content::default(), &mut seen)
}

fn search(ops: &[Op], done: u128, content: Content, seen: &mut HashSet<(u128, Content)>) -> bool {
    let open = || (0..ops.len()).filter(|at| done & (1 << at) == 0);
    let answered = open().filter(|at| ops[*at].answer != Answer::Unknown);
    let Some(first_end) = answered.map(|at| ops[at].ended).min() else {
        return true;
    };
    if !seen.insert((done, content)) {
        return false;
    }
    open().filter(|at| ops[*at].began < first_end).any(|at| {
        let (answer, next) = carried_out(ops[at].call, content);
        let right =
            ops[at].answer == answer || ops[at].answer == Answer::Unknown && next != content;
        right && search(ops, done | 1 << at, next, seen)
    })
}

fn carried_out(call: Call, content: Content) -> (Answer, Content) {
    let written = |value| {
        let next = Content {
            generation: content.generation + 1,
            value,
        };
        (Answer::Is(next), next)
    };
    match call {
        Call::Read => (Answer::Is(content), content),
        Call::Swap { expected, .. } if expected != content.generation => {
            (Answer::Mismatch, content)
        }
        Call::Write(value) | Call::Swap { value, .. } => written(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(generation: u64, value: u64) -> Answer {
        Answer::Is(Content { generation, value })
    }

    fn op(began: u64, call: Call, answer: Answer, ended: u64) -> Op {
        Op {
            call,
            answer,
            began,
            ended,
        }
    }

    const SWAP: Call = Call::Swap {
        expected: 1,
        value: 9,
    };

    #[test]
    fn calls_one_after_the_other() {
        assert!(is_linear(&[]));
        assert!(is_linear(&[
            op(1, Call::Read, is(0, 0), 2),
            op(3, Call::Write(7), is(1, 7), 4),
            op(5, Call::Read, is(1, 7), 6),
            op(7, SWAP, is(2, 9), 8),
            op(9, SWAP, Answer::Mismatch, 10),
        ]));
    }

    #[test]
    fn an_answer_of_the_past_is_found() {
        let write = op(1, Call::Write(7), is(1, 7), 2);
        assert!(!is_linear(&[write, op(3, Call::Read, is(0, 0), 4)]));
        let meanwhile = op(1, Call::Write(7), is(1, 7), 4);
        assert!(is_linear(&[meanwhile, op(2, Call::Read, is(0, 0), 3)]));
        // But not once another one was told so.
        let told = op(2, Call::Read, is(1, 7), 3);
        let later = op(4, Call::Read, is(0, 0), 5);
        let long = op(1, Call::Write(7), is(1, 7), 6);
        assert!(!is_linear(&[long, told, later]));
    }

    #[test]
    fn a_lost_or_doubled_write_is_found() {
        let writes = [
            op(1, Call::Write(7), is(1, 7), 2),
            op(3, Call::Write(8), is(2, 8), 4),
        ];
        for (read, right) in [
            (is(2, 8), true),
            (is(1, 7), false),
            (is(3, 8), false),
            (is(2, 7), false),
        ] {
            let read = op(5, Call::Read, read, 6);
            assert_eq!(is_linear(&[writes[0], writes[1], read]), right);
        }
        // Both compared with the same.
        let other = Call::Swap {
            expected: 1,
            value: 8,
        };
        assert!(!is_linear(&[
            writes[0],
            op(3, SWAP, is(2, 9), 6),
            op(4, other, is(2, 8), 5),
        ]));
    }

    #[test]
    fn what_nobody_was_told_of_may_happen_later_or_never() {
        let lost = op(1, Call::Write(7), Answer::Unknown, 2);
        let before = op(3, Call::Read, is(0, 0), 4);
        let after = op(5, Call::Read, is(1, 7), 6);
        assert!(is_linear(&[lost, before]));
        assert!(is_linear(&[lost, before, after]));
        let undone = op(7, Call::Read, is(0, 0), 8);
        assert!(!is_linear(&[lost, before, after, undone]));
        // Not before it was asked for.
        let early = op(5, Call::Write(7), Answer::Unknown, 6);
        assert!(!is_linear(&[early, op(1, Call::Read, is(1, 7), 2)]));
    }
}
