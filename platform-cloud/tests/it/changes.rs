//! Every call by which a driver changes something in its cloud has a row in a table of faults. The emulators say which
//! calls there are, so a test that reaches one without a row fails, whatever it is about.
#![cfg(feature = "clouds")]

use drover_emulators::Control;

/// Fails unless all changes that the clients `by` have asked for are in the tables with these rows. Called when a bench
/// ends.
pub(crate) fn have_rows(control: &Control, by: impl Fn(&str) -> bool, tables: &[&[&str]]) {
    let mut missing = control.changes(by);
    missing.retain(|change| !tables.iter().any(|rows| rows.contains(&change.as_str())));
    if !std::thread::panicking() {
        assert!(missing.is_empty(), "no table of faults has {missing:?}");
    }
}
