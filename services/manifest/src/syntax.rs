//! Errors of files that cannot be parsed, at the place that has to be changed.

use granit_parser::{ErrorKind, ScanError};

use super::tree::{MAX_DEPTH, Span};

/// What is wrong, and where.
pub(crate) fn explain(error: &ScanError, text: &str) -> (String, Span) {
    if let Some(span) = conflict(text) {
        let message = "a merge conflict: git left both versions in the file".to_owned();
        return (message, span);
    }
    let mark = error.marker();
    let mut span = one_character(mark.line().max(1), mark.col() + 1);
    // The position is reported with the diagnostic.
    let text_of = error.to_string();
    let mut message = text_of.as_str();
    for mark in [" at byte ", " at char "] {
        message = message.split(mark).next().unwrap_or_default();
    }
    let message = match error.kind() {
        ErrorKind::UnclosedQuotedScalar => {
            span = open_quote(text).unwrap_or(span);
            "this quote is never closed".to_owned()
        }
        ErrorKind::RecursionLimitExceeded => format!("nested deeper than {MAX_DEPTH}"),
        ErrorKind::SimpleKeyExpected => "a key needs a colon after it".to_owned(),
        _ if message.starts_with("tabs disallowed") => format!("{message}; indent with spaces"),
        _ => message.to_owned(),
    };
    (format!("not readable as YAML or JSON: {message}"), span)
}

fn one_character(line: usize, column: usize) -> Span {
    Span {
        line,
        column,
        length: 1,
        last_line: line,
        file: 0,
    }
}

/// The first marker of a merge conflict.
fn conflict(text: &str) -> Option<Span> {
    let ours = |line: &str| line.starts_with("<<<<<<< ");
    let theirs = text.lines().any(|line| line.starts_with(">>>>>>> "));
    let at = text.lines().position(ours).filter(|_| theirs)?;
    Some(Span {
        length: 7,
        ..one_character(at + 1, 1)
    })
}

/// The first quote that begins a scalar and is not closed.
fn open_quote(text: &str) -> Option<Span> {
    let mut chars = text.chars().peekable();
    let (mut line, mut column, mut before) = (1, 0, '\n');
    let mut open: Option<(char, Span)> = None;
    while let Some(c) = chars.next() {
        column += 1;
        match open {
            Some((quote, _)) if c == quote => {
                // Two single quotes stand for one.
                if quote == '\'' && chars.peek() == Some(&'\'') {
                    chars.next();
                    column += 1;
                } else {
                    open = None;
                }
            }
            Some(('"', _)) if c == '\\' => {
                if let Some(escaped) = chars.next() {
                    column += 1;
                    if escaped == '\n' {
                        (line, column) = (line + 1, 0);
                    }
                }
            }
            Some(_) => {}
            None if c == '#' && before.is_whitespace() => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            None => {
                let begins = before.is_whitespace() || "[{,:".contains(before);
                if matches!(c, '"' | '\'') && begins {
                    open = Some((c, one_character(line, column)));
                }
            }
        }
        if c == '\n' {
            (line, column) = (line + 1, 0);
        }
        before = c;
    }
    open.map(|(_, span)| span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_that_is_never_closed_is_found_where_it_was_opened() {
        for (text, place) in [
            ("a: \"x\"\nb: \"open\nc: 1\n", Some((2, 4))),
            ("a: 'it''s'\n# don't\nb: ['x', 'open\n", Some((3, 10))),
            ("a: it's\nb: \"\\\"\n", Some((2, 4))),
            ("a: \"x\"\nb: 'y'\n", None),
        ] {
            let found = open_quote(text).map(|span| (span.line, span.column));
            assert_eq!(found, place, "{text}");
        }
    }
}
