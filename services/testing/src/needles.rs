//! Searches for texts that must not appear anywhere, in any encoding.
#![allow(clippy::unwrap_used, reason = "what is written to a text cannot fail")]

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
};

use base64::{Engine, alphabet, engine::GeneralPurpose, engine::general_purpose::NO_PAD};

/// Number of bytes by which a match is first looked up.
const HEAD: usize = 8;
/// Number of bits of the filter before the table.
const FILTER: usize = 1 << 20;

/// All parts of some texts, 8 characters long or their equivalent in an encoding.
#[derive(Default)]
pub struct Needles {
    parts: HashMap<u64, Vec<Part>>,
    /// One bit per possible head.
    filter: Vec<u64>,
}

impl fmt::Debug for Needles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Needles({})", self.parts.len())
    }
}

struct Part {
    text: Box<[u8]>,
    what: String,
}

fn head(bytes: &[u8]) -> u64 {
    bytes[..HEAD]
        .iter()
        .fold(0, |head, byte| head << 8 | u64::from(*byte))
}

fn bit(head: u64) -> usize {
    (head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER.trailing_zeros())) as usize
}

impl Needles {
    /// Adds a content to search for.
    ///
    /// # Panics
    ///
    /// Never for contents of 16 bytes and more.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        self.filter.resize(FILTER / 64, 0);
        for (encoding, text, length) in encodings(content) {
            for part in text.as_bytes().windows(length) {
                let (head, at) = (head(part), bit(head(part)));
                self.filter[at / 64] |= 1 << (at % 64);
                self.parts.entry(head).or_default().push(Part {
                    text: part.into(),
                    what: format!("{name} ({encoding})"),
                });
            }
        }
    }

    /// The first match, with its context.
    #[must_use]
    pub fn find(&self, bytes: &[u8]) -> Option<String> {
        if self.parts.is_empty() {
            return None;
        }
        for (at, window) in bytes.windows(HEAD).enumerate() {
            let (head, bit) = (head(window), bit(head(window)));
            if self.filter[bit / 64] >> (bit % 64) & 1 == 0 {
                continue;
            }
            let mut parts = self.parts.get(&head).into_iter().flatten();
            if let Some(part) = parts.find(|part| bytes[at..].starts_with(&part.text)) {
                let around = &bytes[at.saturating_sub(400)..(at + 200).min(bytes.len())];
                let around = String::from_utf8_lossy(around);
                return Some(format!("{} at byte {at}: {around}", part.what));
            }
        }
        None
    }
}

/// A content in every encoding, each with the number of characters that is as significant as 8 bytes.
fn encodings(content: &[u8]) -> Vec<(&'static str, String, usize)> {
    let text = String::from_utf8_lossy(content).into_owned();
    let json = serde_json::to_string(&text).unwrap();
    let quoted = json[1..json.len() - 1].to_owned();
    let mut all = vec![
        ("JSON in JSON", serde_json::to_string(&quoted).unwrap(), 14),
        ("JSON", quoted, 10),
        ("Debug", format!("{text:?}"), 10),
        ("ASCII of JSON", ascii(&text), 12),
        ("plain", text, 8),
        ("hexadecimal", hex(content, "", |b| format!("{b:02x}")), 16),
        ("HEXADECIMAL", hex(content, "", |b| format!("{b:02X}")), 16),
        ("bytes", hex(content, ", ", |b| b.to_string()), 24),
        ("URL", escaped(content, true), 14),
        ("url", escaped(content, false), 14),
    ];
    for alphabet in [&alphabet::STANDARD, &alphabet::URL_SAFE] {
        let engine = GeneralPurpose::new(alphabet, NO_PAD);
        for skipped in 0..3 {
            let mut text = engine.encode(&content[skipped..]);
            // The last digits depend on the following bytes.
            text.truncate(text.len() / 4 * 4);
            all.push(("base64", text, 11));
        }
    }
    all
}

fn hex(content: &[u8], between: &str, one: impl Fn(u8) -> String) -> String {
    let all: Vec<String> = content.iter().map(|byte| one(*byte)).collect();
    all.join(between)
}

/// URL escapes, with capital or small hexadecimal digits.
fn escaped(content: &[u8], capital: bool) -> String {
    content.iter().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            text.push(char::from(*byte));
        } else if capital {
            write!(text, "%{byte:02X}").unwrap();
        } else {
            write!(text, "%{byte:02x}").unwrap();
        }
        text
    })
}

/// JSON in pure ASCII.
fn ascii(text: &str) -> String {
    text.chars().fold(String::new(), |mut text, c| {
        match c {
            '"' | '\\' => write!(text, "\\{c}").unwrap(),
            ' '..='~' => text.push(c),
            c => write!(text, "\\u{:04x}", u32::from(c)).unwrap(),
        }
        text
    })
}

#[cfg(test)]
#[test]
fn a_part_of_a_secret_is_found_in_every_encoding() {
    let content = "Zq\"7\\x/4+w=&%k?<é>Tz'9:#{|}M;pL";
    let mut needles = Needles::default();
    needles.add("it", content.as_bytes());
    let part = &content[6..20];
    for (encoding, text, _) in encodings(part.as_bytes()) {
        let text = text.trim_matches('"');
        let around = format!("{}{text}{}", "x ".repeat(100), ", y".repeat(100));
        let found = needles.find(around.as_bytes());
        assert!(found.is_some(), "{encoding}: {text}");
    }
    assert_eq!(needles.find(content[..7].repeat(9).as_bytes()), None);
    assert_eq!(needles.find("nothing of it ".repeat(99).as_bytes()), None);
}
