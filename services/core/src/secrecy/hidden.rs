//! Redacts secret content from texts.

use std::{borrow::Cow, collections::HashMap, fmt};

use super::views::{View, counts, views};
use crate::error::{Error, cut};

/// Replacement for redacted text.
pub const HIDDEN: &str = "[hidden]";
/// Length of a match in bytes: any run of this many bytes of a content is redacted.
const PART: usize = 8;
/// Number of consecutive matches that text must share with a script before it is redacted, if the matches consist of
/// lower-case letters and separators only; 16 bytes in all. Shorter matches are ordinary English words, which error
/// messages consist of too.
const WORDS: usize = 9;
/// Minimum length of redacted content in bytes. Anything shorter occurs in any text.
const SHORTEST: usize = 4;
/// Maximum number of bytes of a text that are scanned; the rest is cut off. More than any message that is returned.
const MAX_TEXT: usize = 16 * 1024;

/// Contents of secrets and user data that are redacted from texts. `Debug` shows only their number.
#[derive(Clone, Default)]
pub struct Hidden(Vec<Content>);

#[derive(Clone)]
struct Content {
    text: Vec<u8>,
    /// Whether the content is a script, in which plain words are not secret.
    script: bool,
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hidden({})", self.0.len())
    }
}

impl Hidden {
    /// Redacts a secret: any 8 consecutive bytes of it, or all of it if it is 4 to 7 bytes long.
    #[must_use]
    pub fn secret(self, content: &[u8]) -> Self {
        self.with(content, false)
    }

    /// Redacts user data, a script that contains secrets. Like a secret, except that plain words are kept.
    #[must_use]
    pub fn script(self, content: &[u8]) -> Self {
        self.with(content, true)
    }

    fn with(mut self, content: &[u8], script: bool) -> Self {
        let text = content.trim_ascii();
        if text.len() >= SHORTEST {
            self.0.push(Content {
                text: text.to_owned(),
                script,
            });
        }
        self
    }

    /// Whether there is nothing to redact.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Redacts a text. Content is recognized in plain form, without punctuation, in hexadecimal, in base64, and with
    /// the escapes of JSON, URLs and HTML.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut clean = self.texts(&[text]);
        clean.pop().unwrap_or(Cow::Borrowed(text))
    }

    /// Redacts all strings of an error.
    #[must_use]
    pub fn error(&self, error: Error) -> Error {
        if self.is_empty() {
            return error;
        }
        let texts = error.texts();
        let clean = self.texts(&texts);
        if clean.iter().all(|it| matches!(it, Cow::Borrowed(_))) {
            return error;
        }
        let clean: Vec<String> = clean.into_iter().map(Cow::into_owned).collect();
        error.with_texts(clean)
    }

    /// Reads every content only once, regardless of the number of texts.
    fn texts<'a>(&self, texts: &[&'a str]) -> Vec<Cow<'a, str>> {
        if self.is_empty() {
            return texts.iter().map(|text| Cow::Borrowed(*text)).collect();
        }
        let texts: Vec<&str> = texts.iter().map(|text| beginning(text)).collect();
        let views: Vec<Vec<View>> = texts.iter().map(|text| views(text)).collect();
        let mut parts = [Parts::default(), Parts::default()];
        for view in views.iter().flatten() {
            parts[usize::from(view.bare)].expect(&view.bytes);
        }
        for content in &self.0 {
            parts[0].find(&content.text, content.script);
            let bare: Vec<u8> = content
                .text
                .iter()
                .copied()
                .filter(|b| counts(*b))
                .collect();
            parts[1].find(&bare, content.script);
        }
        let short: Vec<&[u8]> = self
            .0
            .iter()
            .map(|it| &*it.text)
            .filter(|it| it.len() < PART)
            .collect();
        let one = |(text, views): (&&'a str, &Vec<View>)| {
            let mut marks = vec![false; text.len()];
            for view in views {
                let mut mark = |from, to| {
                    let (from, to) = view.place(from, to);
                    marks[from..to].fill(true);
                };
                parts[usize::from(view.bare)].mark(&view.bytes, &mut mark);
                for content in short.iter().filter(|_| !view.bare) {
                    let windows = view.bytes.windows(content.len()).enumerate();
                    for (at, _) in windows.filter(|(_, window)| window == content) {
                        mark(at, at + content.len());
                    }
                }
            }
            without(text, &marks)
        };
        texts.iter().zip(&views).map(one).collect()
    }
}

/// The part of a text that is scanned.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

/// Returns the text with its marked bytes redacted.
fn without<'a>(text: &'a str, marks: &[bool]) -> Cow<'a, str> {
    if !marks.contains(&true) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut within = false;
    for (at, one) in text.char_indices() {
        let marked = marks[at..at + one.len_utf8()].contains(&true);
        if !marked {
            clean.push(one);
        } else if !within {
            clean.push_str(HIDDEN);
        }
        within = marked;
    }
    Cow::Owned(cut(clean))
}

/// The byte runs of texts, and which of them also occur in contents.
#[derive(Default)]
struct Parts {
    found: HashMap<u64, Found>,
    /// Bloom-style bitmap of the keys of `found`, because most runs of a content are not in there.
    likely: Vec<u64>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Found {
    #[default]
    No,
    /// In a script only.
    Script,
    Yes,
}

/// Size of the bitmap in bits.
const LIKELY: usize = 1 << 18;

fn slot(part: u64) -> usize {
    (part.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LIKELY.trailing_zeros())) as usize
}

fn keys(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.windows(PART).map(|window| {
        window
            .iter()
            .fold(0, |key, byte| key << 8 | u64::from(*byte))
    })
}

/// Whether a run consists of lower-case letters and the separators between words only.
fn is_prose(window: &[u8]) -> bool {
    window
        .iter()
        .all(|byte| byte.is_ascii_lowercase() || b" .,:\n".contains(byte))
}

impl Parts {
    fn expect(&mut self, bytes: &[u8]) {
        self.likely.resize(LIKELY / 64, 0);
        for key in keys(bytes) {
            let slot = slot(key);
            self.likely[slot / 64] |= 1 << (slot % 64);
            self.found.entry(key).or_default();
        }
    }

    fn find(&mut self, content: &[u8], script: bool) {
        if self.found.is_empty() {
            return;
        }
        for key in keys(content) {
            let slot = slot(key);
            if self.likely[slot / 64] >> (slot % 64) & 1 == 0 {
                continue;
            }
            if let Some(found) = self.found.get_mut(&key) {
                if !script {
                    *found = Found::Yes;
                } else if *found == Found::No {
                    *found = Found::Script;
                }
            }
        }
    }

    /// Reports the byte ranges that match.
    fn mark(&self, bytes: &[u8], mut mark: impl FnMut(usize, usize)) {
        // Start of the current sequence of consecutive matches.
        let mut since = None;
        for (at, key) in keys(bytes).enumerate() {
            let found = self.found.get(&key).copied().unwrap_or_default();
            if found == Found::No {
                since = None;
                continue;
            }
            let first = *since.get_or_insert(at);
            let many = at + 1 - first >= WORDS;
            if found == Found::Yes || !is_prose(&bytes[at..at + PART]) {
                mark(at, at + PART);
            } else if many {
                // Also covers the earlier matches of this sequence, which were not marked while it was too short.
                mark(at + 1 - WORDS, at + PART);
            }
        }
    }
}

#[cfg(test)]
mod tests;
