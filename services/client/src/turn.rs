//! Whose turn it is among several servers of which one leads. No I/O.

use drover_core::{Error, Reason};
use tokio::time::{Duration, Instant};

/// How long servers of which none leads are asked again soon: longer than an election takes. Afterwards it is an outage,
/// in which clients must not add to the load.
const ELECTION: Duration = Duration::from_secs(30);

/// What the caller of a failed call may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// No server can be reached.
    Unreachable,
    /// A server is left that was not tried in this round: try again at once.
    Next,
    /// All were tried, none leads, and one soon will: try again after a short wait.
    Soon,
    /// Wait as after every other transient failure.
    Usual,
}

/// The server that a call goes to, and when it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) at: usize,
    moves: u64,
    round: u64,
}

/// The present server, which all calls go to until it fails. All servers are tried once in a round; a round ends when
/// none is left, or with an answer.
#[derive(Debug)]
pub(crate) struct Turn {
    names: Vec<String>,
    present: usize,
    moves: u64,
    round: u64,
    /// How each server failed in this round.
    failed: Vec<Option<Error>>,
    /// How the last round ended, unless a server has answered since: for calls that learn that it is over only later.
    last: Option<(Error, After)>,
    /// Since when servers are there and none leads.
    headless: Option<Instant>,
}

impl Turn {
    /// Starts with the first of these servers.
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self {
            failed: vec![None; names.len()],
            names,
            present: 0,
            moves: 0,
            round: 0,
            last: None,
            headless: None,
        }
    }

    pub(crate) fn ticket(&self) -> Ticket {
        Ticket {
            at: self.present,
            moves: self.moves,
            round: self.round,
        }
    }

    /// The server of this ticket has answered as one that leads.
    pub(crate) fn answered(&mut self, ticket: Ticket) {
        if ticket.moves == self.moves {
            self.failed.fill(None);
            self.last = None;
            self.headless = None;
        }
    }

    /// The server of this ticket cannot be reached or does not lead, in which case it may have named the one that does.
    /// Returns what to say of it.
    pub(crate) fn failed(
        &mut self,
        ticket: Ticket,
        error: Error,
        leader: Option<usize>,
    ) -> (Error, After) {
        if ticket.moves != self.moves {
            // Another call has moved on already; moving once more would leave out a server that nobody has tried.
            return match &self.last {
                Some(last) if ticket.round != self.round => last.clone(),
                _ => (self.named(ticket.at, error), After::Next),
            };
        }
        if let Some(failed) = self.failed.get_mut(ticket.at) {
            *failed = Some(error.clone());
        }
        self.moves += 1;
        let following = (1..self.names.len()).map(|step| (ticket.at + step) % self.names.len());
        let untried = |at: &usize| self.failed.get(*at).is_some_and(Option::is_none);
        let leader = leader.filter(|leader| *leader != ticket.at);
        // A leader that has failed already was named by a server that does not know it yet.
        if let Some(next) = leader.into_iter().chain(following.clone()).find(untried) {
            self.present = next;
            return (self.named(ticket.at, error), After::Next);
        }
        let next = leader.into_iter().chain(following).next();
        self.present = next.unwrap_or(ticket.at);
        self.round += 1;
        let outcome = self.outcome();
        self.failed.fill(None);
        self.last = Some(outcome.clone());
        outcome
    }

    pub(crate) fn named(&self, at: usize, error: Error) -> Error {
        match self.names.get(at) {
            Some(name) => error.context(name),
            None => error,
        }
    }

    /// The outcome of a round in which every server has failed.
    fn outcome(&mut self) -> (Error, After) {
        let errors = || self.failed.iter().flatten();
        let text = self.text();
        if !errors().any(|error| error.reason() == Reason::NotLeader) {
            self.headless = None;
            return (Error::unavailable(text), After::Unreachable);
        }
        let mut error = Error::new(
            Reason::NotLeader,
            format!("none of the servers leads: {text}"),
        );
        if let Some(after) = errors().filter_map(Error::retry_after).min() {
            error = error.with_retry_after(after);
        }
        let since = self.headless.get_or_insert_with(Instant::now);
        let after = if since.elapsed() < ELECTION {
            After::Soon
        } else {
            After::Usual
        };
        (error, after)
    }

    /// What is wrong with each server, or with all of them.
    fn text(&self) -> String {
        let mut texts: Vec<(Vec<&str>, &str)> = Vec::new();
        for (name, error) in self.names.iter().zip(&self.failed) {
            let Some(error) = error else { continue };
            match texts.iter_mut().find(|(_, text)| *text == error.message()) {
                Some((names, _)) => names.push(name),
                None => texts.push((vec![name], error.message())),
            }
        }
        if let [(_, text)] = texts.as_slice() {
            return (*text).to_owned();
        }
        let texts = texts
            .into_iter()
            .map(|(names, text)| format!("{}: {text}", names.join(", ")));
        texts.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize) -> Turn {
        Turn::new((0..count).map(|at| format!("s{at}")).collect())
    }

    fn lost() -> Error {
        Error::unavailable("refused")
    }

    fn follows() -> Error {
        Error::new(Reason::NotLeader, "does not lead")
    }

    impl Turn {
        /// The present server fails; returns what its caller may do and which is the next.
        fn fails(&mut self, error: Error, leader: Option<usize>) -> (After, usize) {
            let (_, after) = self.failed(self.ticket(), error, leader);
            (after, self.present)
        }
    }

    #[test]
    fn calls_that_fail_together_move_on_once() {
        let mut turn = of(5);
        let tickets: Vec<Ticket> = (0..10).map(|_| turn.ticket()).collect();
        for ticket in tickets {
            assert_eq!(turn.failed(ticket, lost(), None).1, After::Next);
        }
        assert_eq!(turn.present, 1);
    }

    #[test]
    fn who_learns_late_that_a_round_is_over_waits_too_unless_there_was_an_answer() {
        let mut turn = of(2);
        assert_eq!(turn.fails(lost(), None), (After::Next, 1));
        let late = turn.ticket();
        assert_eq!(turn.fails(lost(), None), (After::Unreachable, 0));
        assert_eq!(turn.failed(late, lost(), None).1, After::Unreachable);
        turn.answered(turn.ticket());
        assert_eq!(turn.failed(late, lost(), None).1, After::Next);
        assert_eq!(turn.present, 0);
    }

    #[test]
    fn a_named_leader_is_next_unless_it_has_failed_in_this_round() {
        let mut turn = of(4);
        assert_eq!(turn.fails(follows(), Some(2)), (After::Next, 2));
        assert_eq!(turn.fails(lost(), None), (After::Next, 3));
        assert_eq!(turn.fails(follows(), Some(2)), (After::Next, 1));
        // All were tried; it may be there again.
        assert_eq!(turn.fails(follows(), Some(2)), (After::Soon, 2));
        // One that names itself is not asked twice in a row.
        assert_eq!(turn.fails(follows(), Some(2)), (After::Next, 3));
    }

    #[test]
    fn only_when_none_can_be_reached_it_is_said_of_all() {
        let mut turn = of(2);
        turn.fails(follows(), None);
        let (error, after) = turn.failed(turn.ticket(), lost(), None);
        assert_eq!((error.reason(), after), (Reason::NotLeader, After::Soon));
        let words = "none of the servers leads: s0: does not lead; s1: refused";
        assert_eq!(error.message(), words);
        turn.fails(lost(), None);
        let (error, after) = turn.failed(turn.ticket(), lost(), None);
        assert_eq!((error.message(), after), ("refused", After::Unreachable));
    }

    #[test]
    fn an_answer_ends_a_round() {
        let mut turn = of(3);
        turn.fails(lost(), None);
        turn.answered(turn.ticket());
        assert_eq!(turn.fails(lost(), None), (After::Next, 2));
        assert_eq!(turn.fails(lost(), None), (After::Next, 0));
        assert_eq!(turn.fails(lost(), None).0, After::Unreachable);
    }

    #[test]
    fn a_late_answer_of_a_server_that_was_left_changes_nothing() {
        let mut turn = of(2);
        let late = turn.ticket();
        turn.fails(lost(), None);
        turn.answered(late);
        assert_eq!(turn.fails(lost(), None).0, After::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_leader_for_longer_than_an_election_waits_longer() {
        let mut turn = of(2);
        let round = |turn: &mut Turn| {
            turn.fails(follows(), None);
            turn.fails(follows(), None).0
        };
        assert_eq!(round(&mut turn), After::Soon);
        tokio::time::advance(ELECTION).await;
        assert_eq!(round(&mut turn), After::Usual);
        turn.answered(turn.ticket());
        assert_eq!(round(&mut turn), After::Soon);
    }
}
