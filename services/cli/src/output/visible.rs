//! Foreign text on a terminal: a platform, a node or an event must not move the cursor, rename the window or reverse a
//! line.

use std::{borrow::Cow, fmt::Write as _};

/// Replaces control characters with escapes, except newlines and tabs. JSON and quoted YAML read `\u001b` as the same
/// character.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Like `visible`, on one line.
pub(crate) fn one_line(text: &str) -> String {
    visible(&text.replace(['\n', '\r', '\t'], " ")).into_owned()
}

/// Whether a terminal obeys a character instead of showing it: controls (C0, C1), line separators that programs do not
/// count, and marks that change the direction of text.
fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        c => c.is_control(),
    }
}

/// Makes a stream of bytes visible on a terminal; chunks may end within a character.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    rest: Vec<u8>,
}

impl Visible {
    /// Returns the text that can be shown now. Holds back a `\r` at the end, which may be the first half of a line
    /// ending.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.len() - open(&self.rest);
        let rest = self.rest.split_off(whole);
        show(&std::mem::replace(&mut self.rest, rest))
    }

    /// Returns the rest at the end.
    pub(crate) fn finish(&mut self) -> String {
        show(&std::mem::take(&mut self.rest))
    }
}

fn show(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    visible(&text).into_owned()
}

/// Number of bytes at the end that may belong to the next chunk.
fn open(bytes: &[u8]) -> usize {
    if bytes.ends_with(b"\r") {
        return 1;
    }
    for (back, byte) in bytes.iter().rev().take(3).enumerate() {
        let needs = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => return 0,
        };
        return if needs > back + 1 { back + 1 } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All known ways to make a terminal do something.
    const EVIL: &str = "a\x1b[31mb\x1b]0;title\x07c\u{9b}2Jd\x08e\x7ff\rg\u{202e}h\u{85}i\0";

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let shown = visible(EVIL);
        assert!(!shown.chars().any(is_hidden), "{shown:?}");
        assert_eq!(
            shown,
            "a\\u001b[31mb\\u001b]0;title\\u0007c\\u009b2Jd\\u0008e\\u007ff\\u000dg\\u202eh\\u0085i\\u0000"
        );
        for text in ["", "plain", "two\nlines\tand a tab", "äöü 日本 🙂"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
        assert_eq!(one_line("a\nb\tc\r\x1bd"), "a b c \\u001bd");
    }

    #[test]
    fn json_means_the_same_as_before() {
        let json = serde_json::to_string_pretty(&serde_json::json!({"message": EVIL})).unwrap();
        let back: serde_json::Value = serde_json::from_str(&visible(&json)).unwrap();
        assert_eq!(back["message"], EVIL);
    }

    #[test]
    fn pieces_of_a_stream_end_where_they_like() {
        let text = format!("{EVIL} äöü 日本 🙂\r\nend\n");
        let expected = visible(&text.replace("\r\n", "\n")).into_owned();
        for size in 1..text.len() {
            let mut stream = Visible::default();
            let mut out = String::new();
            for piece in text.as_bytes().chunks(size) {
                out.push_str(&stream.feed(piece));
            }
            out.push_str(&stream.finish());
            assert_eq!(out, expected, "pieces of {size}");
        }
        let mut stream = Visible::default();
        let shown = stream.feed(b"\xff\x9b\xc3") + &stream.finish();
        assert!(!shown.chars().any(is_hidden), "{shown:?}");
    }
}
