//! Names that somebody may have meant.

/// Most names that an answer lists.
const LISTED: usize = 20;

/// What there is instead of a name: `(registered: local, simulated), did you mean "local"?`
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
    match closest(wanted, known) {
        Some(name) => format!("({what}: {listed}), did you mean {name:?}?"),
        None => format!("({what}: {listed})"),
    }
}

/// The known name that is close enough to be a slip of the pen.
fn closest<'a>(wanted: &str, known: &'a [String]) -> Option<&'a str> {
    /// Longer names are not compared: the work grows with the square.
    const MAX_LENGTH: usize = 64;
    if wanted.len() > MAX_LENGTH {
        return None;
    }
    let most = (wanted.chars().count() / 3).max(1);
    let near = known
        .iter()
        .filter(|name| name.len() <= MAX_LENGTH)
        .map(|name| (distance(wanted, name), name));
    near.filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name.as_str())
}

/// Edits from one text to the other, two letters that changed places being one; letters of either case are the same.
fn distance(a: &str, b: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    let (a, b) = (letters(a), letters(b));
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let above = &rows[i - 1];
            let mut least = (above[j - 1] + usize::from(a[i - 1] != b[j - 1]))
                .min(above[j] + 1)
                .min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
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
        assert_eq!(
            (
                distance("kitten", "sitting"),
                distance("smi", "sim"),
                distance("", "ab")
            ),
            (3, 1, 2)
        );
    }
}
