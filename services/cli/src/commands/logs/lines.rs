//! The lines of several logs in one output: each whole, after the name of its node.

use std::{collections::HashMap, io::Write};

use crate::{
    commands::access::put,
    failure::Outcome,
    output::{Visible, one_line},
};

/// Size from which on a line is not held until its end, but printed in pieces: a log without line ends is not kept in
/// memory.
const LONGEST_LINE: usize = 256 * 1024;

/// Colours of names, in the order in which nodes come. Red is for what is wrong.
const COLOURS: [u8; 10] = [36, 33, 32, 35, 34, 96, 93, 92, 95, 94];

/// Cuts a log into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Returns the lines that are whole now.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let end = bytes.iter().rposition(|byte| *byte == b'\n');
        let (whole, rest) = bytes.split_at(end.map_or(0, |at| at + 1));
        let mut lines = Vec::new();
        if !whole.is_empty() {
            lines.append(&mut self.rest);
            lines.extend_from_slice(whole);
        }
        self.rest.extend_from_slice(rest);
        if self.rest.len() > LONGEST_LINE {
            lines.append(&mut self.finish());
        }
        lines
    }

    /// Returns the last line, which may lack its end.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            rest.push(b'\n');
        }
        rest
    }
}

/// Writes lines after the names of their nodes: unchanged to files and programs, without control sequences to a terminal.
pub(super) struct Prefixed<W> {
    out: W,
    shown: bool,
    colours: bool,
    /// Width of the longest name so far.
    width: usize,
    /// Names, each with its number.
    names: HashMap<String, usize>,
}

impl<W: Write> Prefixed<W> {
    pub(super) fn new(out: W, shown: bool, colours: bool) -> Self {
        Self {
            out,
            shown,
            colours,
            width: 0,
            names: HashMap::new(),
        }
    }

    /// Makes the column of names as wide as this one needs.
    pub(super) fn make_room(&mut self, name: &str) {
        self.number(&one_line(name));
    }

    fn number(&mut self, name: &str) -> usize {
        let next = self.names.len();
        self.width = self.width.max(name.chars().count());
        *self.names.entry(name.to_owned()).or_insert(next)
    }

    /// Writes whole lines of a node. Returns whether somebody still reads the output.
    pub(super) fn write(&mut self, name: &str, lines: &[u8]) -> Outcome<bool> {
        if lines.is_empty() {
            return Ok(true);
        }
        let prefix = self.prefix(name);
        let text;
        let lines = if self.shown {
            let mut visible = Visible::default();
            text = visible.feed(lines) + &visible.finish();
            text.as_bytes()
        } else {
            lines
        };
        let mut all = Vec::with_capacity(lines.len() + prefix.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            all.extend_from_slice(prefix.as_bytes());
            all.extend_from_slice(line);
        }
        put(&mut self.out, &all)
    }

    fn prefix(&mut self, name: &str) -> String {
        let name = one_line(name);
        let number = self.number(&name);
        let prefix = format!("{name:width$} |", width = self.width);
        if self.colours {
            let colour = COLOURS[number % COLOURS.len()];
            format!("\x1b[{colour}m{prefix}\x1b[0m ")
        } else {
            format!("{prefix} ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(shown: bool, colours: bool, said: &[(&str, &[u8])]) -> String {
        let mut out = Prefixed::new(Vec::new(), shown, colours);
        for (name, lines) in said {
            assert!(out.write(name, lines).unwrap());
        }
        String::from_utf8_lossy(&out.out).into_owned()
    }

    #[test]
    fn a_line_is_printed_when_it_is_whole() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"one"), b"");
        assert_eq!(lines.feed(b" line\nand\nano"), b"one line\nand\n");
        assert_eq!(lines.feed(b""), b"");
        assert_eq!(lines.feed(b"ther"), b"");
        assert_eq!(lines.finish(), b"another\n", "the last one has its end");
        assert_eq!(lines.finish(), b"");
    }

    #[test]
    fn however_a_log_comes_in_pieces_its_lines_are_the_same() {
        let log = b"a\n\nbc\r\n\xff\xc3\xa4\nend\n";
        for size in 1..=log.len() {
            let mut lines = Lines::default();
            let pieces = log.chunks(size).map(|piece| lines.feed(piece));
            let mut all = pieces.collect::<Vec<_>>().concat();
            all.extend(lines.finish());
            assert_eq!(all, log, "pieces of {size}");
        }
    }

    #[test]
    fn a_log_without_line_ends_is_not_kept() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; LONGEST_LINE / 2 + 1];
        assert_eq!(lines.feed(&piece), b"");
        let line = lines.feed(&piece);
        assert_eq!(line.len(), 2 * piece.len() + 1);
        assert!(line.ends_with(b"x\n") && lines.finish().is_empty());
    }

    #[test]
    fn names_are_in_a_column_that_grows_with_them() {
        let text = printed(
            false,
            false,
            &[
                ("db-0", b"a\nb\n"),
                ("cache-10", b"c\n"),
                ("db-0", b"\nd\n"),
            ],
        );
        assert_eq!(
            text,
            "db-0 | a\ndb-0 | b\ncache-10 | c\ndb-0     | \ndb-0     | d\n"
        );
        let mut out = Prefixed::new(Vec::new(), false, false);
        out.make_room("cache-10");
        out.write("db-0", b"a\n").unwrap();
        assert_eq!(out.out, b"db-0     | a\n");
    }

    #[test]
    fn only_names_are_coloured_and_each_keeps_its_colour() {
        let said: [(&str, &[u8]); 3] = [("a", b"x\n"), ("b", b"y\n"), ("a", b"z\n")];
        assert_eq!(
            printed(true, true, &said),
            "\x1b[36ma |\x1b[0m x\n\x1b[33mb |\x1b[0m y\n\x1b[36ma |\x1b[0m z\n"
        );
        assert_eq!(printed(true, false, &said), "a | x\nb | y\na | z\n");
    }

    #[test]
    fn a_line_is_bytes_for_programs_and_text_for_people() {
        let said: [(&str, &[u8]); 1] = [("a", b"\x1b[31mred\r\n\r\n\x07")];
        assert_eq!(
            printed(false, false, &said),
            "a | \x1b[31mred\r\na | \r\na | \x07"
        );
        assert_eq!(
            printed(true, false, &said),
            "a | \\u001b[31mred\na | \na | \\u0007"
        );
        let name: [(&str, &[u8]); 1] = [("e\x1b[2Jvil\n", b"x\n")];
        assert_eq!(printed(false, false, &name), "e\\u001b[2Jvil  | x\n");
    }
}
