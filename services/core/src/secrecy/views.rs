//! Interpretations of a text: the text itself, and its decoded forms in the encodings that templates and platforms use.

/// Minimum length of a hexadecimal or base64 run that is decoded. Shorter runs decode to less than a redacted part.
const SHORTEST_RUN: usize = 8;

/// Decoded bytes of a text, each with its position in the text.
pub(super) struct View {
    pub(super) bytes: Vec<u8>,
    /// Start and end of the source of each byte.
    at: Vec<(u32, u32)>,
    /// Whether only letters and digits were kept.
    pub(super) bare: bool,
}

impl View {
    fn empty(room: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(room),
            at: Vec::with_capacity(room),
            bare: false,
        }
    }

    fn plain(text: &str) -> Self {
        let mut view = Self::empty(text.len());
        for (at, byte) in (0..).zip(text.bytes()) {
            view.push(byte, (at, at + 1));
        }
        view
    }

    fn push(&mut self, byte: u8, at: (u32, u32)) {
        self.bytes.push(byte);
        self.at.push(at);
    }

    /// Returns the range of the text from which these bytes were decoded.
    pub(super) fn place(&self, from: usize, to: usize) -> (usize, usize) {
        let begin = self.at.get(from).map_or(0, |at| at.0);
        let end = to.checked_sub(1).and_then(|last| self.at.get(last));
        (begin as usize, end.map_or(0, |at| at.1) as usize)
    }

    /// Like [`place`](Self::place), in the representation of `at`.
    fn span(&self, from: usize, to: usize) -> (u32, u32) {
        let (from, to) = self.place(from, to);
        (
            u32::try_from(from).unwrap_or(u32::MAX),
            u32::try_from(to).unwrap_or(u32::MAX),
        )
    }

    fn bare(&self) -> Self {
        let mut view = Self::empty(self.bytes.len());
        view.bare = true;
        for (byte, at) in self.bytes.iter().zip(&self.at) {
            if counts(*byte) {
                view.push(*byte, *at);
            }
        }
        view
    }

    /// Replaces all escapes. `None` if there are none.
    fn unescaped(&self, read: impl Fn(&[u8]) -> Option<(char, usize)>, mark: u8) -> Option<Self> {
        if !self.bytes.contains(&mark) {
            return None;
        }
        let mut view = Self::empty(self.bytes.len());
        let mut at = 0;
        while let Some(&byte) = self.bytes.get(at) {
            let found = (byte == mark).then(|| self.bytes.get(at..).and_then(&read));
            if let Some((meant, length)) = found.flatten() {
                let place = self.span(at, at + length);
                let mut utf8 = [0; 4];
                for byte in meant.encode_utf8(&mut utf8).bytes() {
                    view.push(byte, place);
                }
                at += length;
            } else {
                view.push(byte, self.span(at, at + 1));
                at += 1;
            }
        }
        Some(view)
    }

    fn percent_decoded(&self) -> Option<Self> {
        if !self.bytes.contains(&b'%') {
            return None;
        }
        let mut view = Self::empty(self.bytes.len());
        let mut at = 0;
        while let Some(&byte) = self.bytes.get(at) {
            let digit = |at: usize| self.bytes.get(at).copied().and_then(hex_digit);
            let escaped = (byte == b'%').then(|| Some(digit(at + 1)? << 4 | digit(at + 2)?));
            if let Some(meant) = escaped.flatten() {
                view.push(meant, self.span(at, at + 3));
                at += 3;
            } else {
                view.push(
                    if byte == b'+' { b' ' } else { byte },
                    self.span(at, at + 1),
                );
                at += 1;
            }
        }
        Some(view)
    }

    /// Decodes all runs of digits, where `group` digits of `bits` bits each form whole bytes.
    fn decoded(
        &self,
        digit: impl Fn(u8) -> Option<u8> + Copy,
        (group, bits): (usize, u32),
        out: &mut Vec<Self>,
    ) {
        let mut from = 0;
        while from < self.bytes.len() {
            let run = self.bytes[from..].iter();
            let length = run.take_while(|byte| digit(**byte).is_some()).count();
            if length >= SHORTEST_RUN {
                // The run may begin with digits that belong to the text before it, so every alignment is tried.
                for phase in 0..group {
                    out.push(self.groups(from + phase, from + length, digit, (group, bits)));
                }
            }
            from += length.max(1);
        }
    }

    fn groups(
        &self,
        from: usize,
        to: usize,
        digit: impl Fn(u8) -> Option<u8>,
        (group, bits): (usize, u32),
    ) -> Self {
        let mut view = Self::empty(to - from);
        let mut at = from;
        while at < to {
            let end = (at + group).min(to);
            let (mut value, mut have) = (0u32, 0);
            for byte in &self.bytes[at..end] {
                value = value << bits | u32::from(digit(*byte).unwrap_or_default());
                have += bits;
            }
            while have >= 8 {
                have -= 8;
                view.push((value >> have & 0xff) as u8, self.span(at, end));
            }
            at = end;
        }
        view
    }
}

/// Whether a byte remains once separators are removed.
pub(super) fn counts(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

/// The standard and the URL-safe alphabet of RFC 4648.
fn base64_digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

/// Parses an escape of JSON or Rust: the character and the length of the escape.
fn backslash(text: &[u8]) -> Option<(char, usize)> {
    let meant = match text.get(1)? {
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'0' => '\0',
        b'"' => '"',
        b'\'' => '\'',
        b'/' => '/',
        b'\\' => '\\',
        b'u' if text.get(2) == Some(&b'{') => {
            let digits = text.get(3..)?.iter().take(7);
            let length = digits.take_while(|byte| **byte != b'}').count();
            return Some((code_point(text.get(3..3 + length)?)?, length + 4));
        }
        b'u' => return utf16(text),
        _ => return None,
    };
    Some((meant, 2))
}

fn utf16(text: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| u16::try_from(number(text.get(at..at + 4)?)?).ok();
    let first = unit(2)?;
    if let Some(Ok(one)) = char::decode_utf16([first]).next() {
        return Some((one, 6));
    }
    let second = (text.get(6..8)? == b"\\u").then(|| unit(8)).flatten()?;
    let pair = char::decode_utf16([first, second]).next()?.ok()?;
    Some((pair, 12))
}

/// Parses an HTML entity.
fn entity(text: &[u8]) -> Option<(char, usize)> {
    let end = text.iter().take(10).position(|byte| *byte == b';')?;
    let meant = match text.get(1..end)? {
        b"lt" => '<',
        b"gt" => '>',
        b"amp" => '&',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x' | b'X', digits @ ..] => code_point(digits)?,
        [b'#', digits @ ..] => {
            let digits = std::str::from_utf8(digits).ok()?;
            char::from_u32(digits.parse().ok()?)?
        }
        _ => return None,
    };
    Some((meant, end + 1))
}

fn number(digits: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn code_point(digits: &[u8]) -> Option<char> {
    char::from_u32(number(digits)?)
}

/// Returns all interpretations of a text. Their total size is a small multiple of its length.
pub(super) fn views(text: &str) -> Vec<View> {
    let plain = View::plain(text);
    let read = [
        plain.percent_decoded(),
        plain.unescaped(backslash, b'\\'),
        plain.unescaped(entity, b'&'),
    ];
    let mut texts: Vec<View> = read.into_iter().flatten().collect();
    texts.push(plain);
    let mut all = Vec::new();
    for text in &texts {
        text.decoded(hex_digit, (2, 4), &mut all);
        text.decoded(base64_digit, (4, 6), &mut all);
        all.push(text.bare());
    }
    all.extend(texts);
    all
}
