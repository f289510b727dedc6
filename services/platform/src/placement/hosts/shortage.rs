use std::fmt::Write as _;

use drover_core::{Error, Reason};

use super::{Availability, Problem, Requirement, axis::Axis};

/// Why there are too few hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// How many of them fit.
    pub fits: usize,
    /// How many are wanted.
    pub wanted: usize,
    /// Of what is asked, in the words of the placement (`selector`, `spread[1]`), that without which more hosts would
    /// fit. Empty if no single one is the reason.
    pub blocking: Vec<String>,
    message: String,
}

impl From<Shortage> for Error {
    fn from(shortage: Shortage) -> Self {
        Error::new(Reason::NoCapacity, shortage.message)
    }
}

/// Counts the hosts that remain after each requirement, and finds the one that they are too few for.
pub(super) fn explain(problem: &Problem<'_>, wanted: usize, fits: usize) -> Shortage {
    let placement = problem.placement;
    let mut asked = Vec::new();
    if placement.selector.is_some() {
        asked.push(Requirement::Selector);
    }
    if !placement.failure_domains.is_empty() {
        asked.push(Requirement::FailureDomains);
    }
    asked.extend([Requirement::Free, Requirement::Usable]);
    let spreads = placement.spread.iter().enumerate();
    asked.extend(
        spreads
            .filter(|(_, spread)| super::is_required(spread))
            .map(|(at, _)| Requirement::Spread(at)),
    );
    let helps = |one: &Requirement| problem.choose(wanted, Some(*one)).len() > fits;
    let blocking: Vec<Requirement> = asked.iter().copied().filter(helps).collect();
    Shortage {
        fits,
        wanted,
        blocking: blocking.iter().map(|one| name(*one)).collect(),
        message: words(problem, &blocking, wanted, fits),
    }
}

fn name(one: Requirement) -> String {
    match one {
        Requirement::Selector => "selector".to_owned(),
        Requirement::FailureDomains => "failure_domains".to_owned(),
        Requirement::Free => "free".to_owned(),
        Requirement::Usable => "usable".to_owned(),
        Requirement::Spread(at) => format!("spread[{at}]"),
    }
}

fn words(problem: &Problem<'_>, blocking: &[Requirement], wanted: usize, fits: usize) -> String {
    let hosts = problem.candidates;
    let mut text = String::new();
    let mut left: Vec<usize> = (0..hosts.len()).collect();
    // Writing to a String cannot fail.
    let mut count = |what: &str, number: usize| {
        let hosts = match (text.is_empty(), number) {
            (true, 1) => " host",
            (true, _) => " hosts",
            (false, _) => "",
        };
        let separator = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{separator}{what}: {number}{hosts}");
    };
    if problem.placement.selector.is_some() {
        left.retain(|at| problem.is_allowed(*at, Some(Requirement::FailureDomains)));
        count("selector", left.len());
    }
    if !problem.placement.failure_domains.is_empty() {
        left.retain(|at| problem.is_allowed(*at, None));
        count("failure domains", left.len());
    }
    left.retain(|at| hosts[*at].availability != Availability::Claimed);
    count("free", left.len());
    let unusable = left.iter().filter_map(|at| match hosts[*at].availability {
        Availability::Unusable(reason) => Some((hosts[*at].id, reason)),
        Availability::Free | Availability::Claimed => None,
    });
    let unusable: Vec<_> = unusable.collect();
    left.retain(|at| hosts[*at].availability == Availability::Free);
    if let Some((id, reason)) = unusable.first() {
        count("usable", left.len());
        let _ = write!(text, " ({id}: {reason}");
        if unusable.len() > 1 {
            let _ = write!(text, ", and {} more", unusable.len() - 1);
        }
        text.push(')');
    }
    for (at, spread) in problem.placement.spread.iter().enumerate() {
        if !super::is_required(spread) {
            continue;
        }
        let named = blocking.contains(&Requirement::Spread(at));
        // Where no spread alone is the reason, all together are.
        if named || blocking.is_empty() {
            describe(&mut text, problem, &left, at);
        }
    }
    let plural = if fits == 1 { "host fits" } else { "hosts fit" };
    let are = if wanted == 1 { "is" } else { "are" };
    let _ = write!(text, "; {fits} more {plural}, {wanted} {are} wanted");
    text
}

fn describe(text: &mut String, problem: &Problem<'_>, left: &[usize], spread: usize) {
    let allowed: Vec<_> = (0..problem.candidates.len())
        .filter(|at| problem.is_allowed(*at, None))
        .map(|at| problem.candidates[at].clone())
        .collect();
    let axis = Axis::new(&problem.placement.spread[spread], &allowed, problem.placed);
    let key = &axis.key;
    let without = (left.iter())
        .filter(|at| !problem.candidates[**at].labels.contains_key(key))
        .count();
    let _ = write!(
        text,
        "; {key}: {} of {} domains take no other node",
        axis.full(),
        axis.domains()
    );
    if without > 0 {
        let _ = write!(text, " ({without} usable without label {key})");
    }
}
