//! Suggestions for misspelled names.

use drover_core::name;

/// Maximum number of names listed.
const LISTED: usize = 20;

/// Lists the existing names and the most similar one: `(registered: local, simulated), did you mean "local"?`
pub(super) fn instead(wanted: &str, what: &str, known: &[String]) -> String {
    let mut listed = known
        .iter()
        .take(LISTED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if known.is_empty() {
        "none".clone_into(&mut listed);
    } else if known.len() > LISTED {
        listed = format!("{listed} and {} more", known.len() - LISTED);
    }
    match name::closest(wanted, known.iter().map(String::as_str)) {
        Some(name) => format!("({what}: {listed}), did you mean {name:?}?"),
        None => format!("({what}: {listed})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_recognised_and_a_stranger_is_not() {
        let known = ["local".to_owned(), "simulated".to_owned()];
        assert_eq!(
            instead("locl", "registered", &known),
            "(registered: local, simulated), did you mean \"local\"?"
        );
        assert_eq!(
            instead("Simulatd", "registered", &known[1..]),
            "(registered: simulated), did you mean \"simulated\"?"
        );
        assert_eq!(
            instead("aws", "registered", &known),
            "(registered: local, simulated)"
        );
        assert_eq!(instead("x", "registered", &[]), "(registered: none)");
    }
}
