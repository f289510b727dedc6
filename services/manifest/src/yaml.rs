//! Writes YAML: block style, short lists of words on one line, and quotes around everything that a reader could
//! misinterpret.

use super::tree::{Scalar, resolve};

/// A value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum Yaml {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number that is already formatted.
    Number(String),
    /// A text, which is quoted where it has to be.
    Text(String),
    /// A list.
    List(Vec<Yaml>),
    /// A map, in this order.
    Map(Vec<(String, Yaml)>),
}

/// Maximum length of a list on one line, in characters.
const MAX_FLOW: usize = 80;

impl Yaml {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    fn is_scalar(&self) -> bool {
        !matches!(self, Self::List(_) | Self::Map(_))
    }

    /// The value on one line, if it is written that way.
    fn inline(&self) -> Option<String> {
        match self {
            Self::Null => Some("null".into()),
            Self::Bool(value) => Some(value.to_string()),
            Self::Number(number) => Some(number.clone()),
            Self::Text(text) => (!is_block(text)).then(|| quote(text)),
            Self::List(items) if items.is_empty() => Some("[]".into()),
            Self::Map(entries) if entries.is_empty() => Some("{}".into()),
            Self::List(items) if items.iter().all(Self::is_scalar) => {
                let words: Option<Vec<String>> = items.iter().map(Self::inline).collect();
                let line = format!("[{}]", words?.join(", "));
                (line.len() <= MAX_FLOW).then_some(line)
            }
            Self::List(_) | Self::Map(_) => None,
        }
    }
}

/// Writes a document, with a newline at its end.
#[must_use]
pub fn write(value: &Yaml) -> String {
    let mut out = String::new();
    match value.inline() {
        Some(line) => {
            out.push_str(&line);
            out.push('\n');
        }
        None => block(&mut out, value, 0),
    }
    out
}

fn block(out: &mut String, value: &Yaml, indent: usize) {
    match value {
        Yaml::Map(entries) => {
            for (position, (key, value)) in entries.iter().enumerate() {
                // The first key of a map in a list follows the hyphen.
                if position > 0 || !out.ends_with("- ") {
                    pad(out, indent);
                }
                out.push_str(&quote(key));
                out.push(':');
                after_key(out, value, indent);
            }
        }
        Yaml::List(items) => {
            for item in items {
                pad(out, indent);
                out.push_str("- ");
                match item.inline() {
                    Some(line) => {
                        out.push_str(&line);
                        out.push('\n');
                    }
                    None if matches!(item, Yaml::List(_)) => {
                        out.truncate(out.len() - 1);
                        out.push('\n');
                        block(out, item, indent + 2);
                    }
                    None => block(out, item, indent + 2),
                }
            }
        }
        Yaml::Text(text) => literal(out, text, indent),
        Yaml::Null | Yaml::Bool(_) | Yaml::Number(_) => {}
    }
}

fn after_key(out: &mut String, value: &Yaml, indent: usize) {
    match value.inline() {
        Some(line) => {
            out.push(' ');
            out.push_str(&line);
            out.push('\n');
        }
        None => match value {
            Yaml::Text(text) => {
                out.push(' ');
                literal(out, text, indent + 2);
            }
            _ => {
                out.push('\n');
                block(out, value, indent + 2);
            }
        },
    }
}

fn literal(out: &mut String, text: &str, indent: usize) {
    out.push_str("|\n");
    for line in text.lines() {
        if !line.is_empty() {
            pad(out, indent.max(2));
            out.push_str(line);
        }
        out.push('\n');
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Whether a text is written as a literal block: several lines that read back unchanged.
fn is_block(text: &str) -> bool {
    text.trim_end_matches('\n').contains('\n')
        && text.ends_with('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n'])
        && text.chars().all(|c| c == '\n' || (' '..='~').contains(&c))
        && text.lines().all(|line| !line.ends_with(' '))
}

/// A text on one line, with quotes if necessary.
fn quote(text: &str) -> String {
    let plain = text
        .starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.'))
        && text.chars().all(|c| {
            c.is_ascii_alphanumeric()
                || matches!(c, '-' | '_' | '.' | '/' | '+' | '(' | ')' | '@' | ':' | ' ')
        })
        && !text.contains(": ")
        && !text.ends_with([':', ' '])
        && matches!(resolve(text), Scalar::Text(_))
        && !looks_special(text);
    if plain { text.to_owned() } else { escape(text) }
}

/// Whether other YAML readers take a text for a number, a date or a boolean.
fn looks_special(text: &str) -> bool {
    let numeric = text
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '.' | '_' | ':' | '-' | '+' | 'e' | 'E' | 'x'));
    (numeric && text.chars().any(|c| c.is_ascii_digit())) || matches!(text, "y" | "Y" | "n" | "N")
}

fn escape(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if u32::from(c) < 0x20 || (0x7f..0xa0).contains(&u32::from(c)) => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
