//! Diagnostics of manifests, and their output.

use std::{fmt::Write, ops::RangeInclusive, sync::Arc};

use super::{
    path::{self, Segment},
    tree::{Node, Source, Span, Value},
};

/// Maximum number of errors shown per file; the others can wait until these are fixed.
pub(crate) const MAX_DIAGNOSTICS: usize = 20;
/// Maximum length of a source line that is shown; a longer one (minified JSON) does not help.
const MAX_LINE: usize = 200;

/// An error and its position.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    pub(crate) source: Arc<Source>,
    pub(crate) span: Span,
    /// Path of the field. Empty if it is not about a field.
    pub(crate) path: String,
    /// Path of the field that an unknown one was probably meant to be.
    pub(crate) meant: Option<String>,
    pub(crate) message: String,
    /// Text below the source line.
    pub(crate) expected: Option<String>,
    /// Kind of the document, if `drover explain` knows it.
    pub(crate) kind: Option<&'static str>,
    /// Whether the line contains a secret and is not shown.
    secret: bool,
}

impl Diagnostic {
    pub(crate) fn new(
        source: &Arc<Source>,
        span: Span,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            source: source.clone(),
            span,
            path: path.into(),
            meant: None,
            message: message.into(),
            expected: None,
            kind: None,
            secret: false,
        }
    }

    #[must_use]
    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    #[must_use]
    pub(crate) fn secret(mut self, secret: bool) -> Self {
        self.secret = secret;
        self
    }

    /// Whether it may be why something else seems to be wrong.
    pub(crate) fn explains(&self, path: &str) -> bool {
        let paths = [Some(&self.path), self.meant.as_ref()];
        let mut paths = paths.into_iter().flatten();
        paths.any(|wrong| path::explains(wrong, path))
    }

    fn place(&self) -> String {
        let mut place = format!(
            "{}:{}:{}",
            self.source.name, self.span.line, self.span.column
        );
        if !self.path.is_empty() {
            let _ = write!(place, "  {}", self.path);
        }
        place
    }
}

/// Keys whose values are secret, in the form of [`plain`]: those of manifests, and likely mistakes.
const SECRET_KEYS: [&str; 16] = [
    "stringdata",
    "userdata",
    "userdatabase64",
    "accesskey",
    "apikey",
    "apitoken",
    "bearer",
    "bearertoken",
    "clientkey",
    "clientsecret",
    "passphrase",
    "password",
    "privatekey",
    "secretkey",
    "tlskey",
    "token",
];

/// A key without case and punctuation.
fn plain(key: &str) -> String {
    let letters = key.chars().filter(|c| c.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// In a damaged file a key may be the end of another one.
pub(crate) fn is_secret_key(key: &str) -> bool {
    names_secret(key) || SECRET_KEYS.contains(&&*plain(key))
}

/// Whether a line has a key whose value is secret. A damaged file may have it where no secret is expected.
fn names_secret(line: &str) -> bool {
    let line = plain(line);
    ["stringdata", "userdata"]
        .iter()
        .any(|key| line.contains(key))
}

/// All diagnostics of the manifests of a command.
#[derive(Debug, Default)]
pub struct Diagnostics {
    items: Vec<Diagnostic>,
    /// Number of errors beyond [`MAX_DIAGNOSTICS`] in a file.
    omitted: usize,
    /// Lines with secrets, which are never printed.
    hidden: Vec<Hidden>,
}

/// Lines of a file with secrets.
pub(crate) type Hidden = (Arc<Source>, RangeInclusive<usize>);

impl Diagnostics {
    /// Adds one. Of a file, only the first 20 are shown.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let same_file = self
            .items
            .iter()
            .filter(|other| Arc::ptr_eq(&other.source, &diagnostic.source))
            .count();
        if same_file >= MAX_DIAGNOSTICS {
            self.omitted += 1;
        } else {
            self.items.push(diagnostic);
        }
    }

    pub(crate) fn hide(&mut self, source: &Arc<Source>, lines: RangeInclusive<usize>) {
        self.hidden.push((source.clone(), lines));
    }

    /// Hides the values of secret keys wherever they are: a damaged document may have them where no secret is expected.
    pub(crate) fn hide_secrets(&mut self, source: &Arc<Source>, node: &Node) {
        match &node.value {
            Value::Scalar { .. } => {}
            Value::List(items) => items
                .iter()
                .for_each(|item| self.hide_secrets(source, item)),
            Value::Map(entries) => {
                for entry in entries {
                    if is_secret_key(&entry.key) {
                        self.hide(source, entry.span.line..=entry.value.span.last_line);
                    } else {
                        self.hide_secrets(source, &entry.value);
                    }
                }
            }
        }
    }

    /// All hidden lines.
    pub(crate) fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    pub(crate) fn is_secret(&self, source: &Arc<Source>, line: usize) -> bool {
        self.hidden
            .iter()
            .any(|(hidden, lines)| Arc::ptr_eq(hidden, source) && lines.contains(&line))
    }

    /// Number of errors, shown or not.
    pub(crate) fn count(&self) -> usize {
        self.items.len() + self.omitted
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn items(&self) -> &[Diagnostic] {
        &self.items
    }

    fn is_hidden(&self, diagnostic: &Diagnostic) -> bool {
        diagnostic.secret
            || self.is_secret(&diagnostic.source, diagnostic.span.line)
            || !diagnostic.path_is_readable()
    }

    /// Renders all errors as text, in the order of the files and their lines. A source line is shown once.
    /// `outcome` follows their number: `, nothing applied`.
    #[must_use]
    pub fn render(&self, outcome: &str) -> String {
        let mut items: Vec<&Diagnostic> = self.items.iter().collect();
        // The stable sort keeps the order in which the files were given.
        items.sort_by(|a, b| {
            if Arc::ptr_eq(&a.source, &b.source) {
                (a.span.line, a.span.column).cmp(&(b.span.line, b.span.column))
            } else {
                std::cmp::Ordering::Equal
            }
        });
        let mut out = String::new();
        let mut shown: Option<(&Arc<Source>, usize)> = None;
        for item in &items {
            let line = item.source.line(item.span.line).filter(|line| {
                line.chars().count() <= MAX_LINE
                    && !self.is_hidden(item)
                    && !names_secret(line)
                    && !shown.is_some_and(|(source, shown)| {
                        Arc::ptr_eq(source, &item.source)
                            && shown == item.span.line
                            && item.expected.is_none()
                    })
            });
            match line {
                Some(line) => {
                    shown = Some((&item.source, item.span.line));
                    snippet(&mut out, item, line);
                }
                None => match &item.expected {
                    Some(expected) => {
                        let _ = writeln!(out, "error: {}: {expected}", item.message);
                        let _ = writeln!(out, "  --> {}", item.place());
                    }
                    None => {
                        let _ = writeln!(out, "error: {}", item.message);
                        let _ = writeln!(out, "  --> {}", item.place());
                    }
                },
            }
        }
        let total = items.len() + self.omitted;
        let _ = write!(
            out,
            "{total} error{}{outcome}.",
            if total == 1 { "" } else { "s" }
        );
        if self.omitted > 0 {
            let _ = write!(
                out,
                " Only the first {MAX_DIAGNOSTICS} of a file are shown."
            );
        }
        if let Some(field) = items.iter().find_map(|item| item.explain()) {
            let _ = write!(out, " Fields: drover explain {field}");
        }
        out
    }
}

fn snippet(out: &mut String, item: &Diagnostic, line: &str) {
    let number = item.span.line.to_string();
    let _ = writeln!(out, "error: {}", item.message);
    let _ = writeln!(
        out,
        "{:width$}--> {}",
        "",
        item.place(),
        width = number.len() + 1
    );
    let _ = writeln!(out, " {number} | {line}");
    // Tabs are kept, so that the carets are aligned.
    let indent: String = line
        .chars()
        .take(item.span.column.saturating_sub(1))
        .map(|c| if c == '\t' { '\t' } else { ' ' })
        .collect();
    let room = line
        .chars()
        .count()
        .saturating_sub(item.span.column - 1)
        .max(1);
    let carets = "^".repeat(item.span.length.clamp(1, room));
    let note = item
        .expected
        .as_deref()
        .map(|expected| format!(" {expected}"))
        .unwrap_or_default();
    let _ = writeln!(
        out,
        " {:width$} | {indent}{carets}{note}",
        "",
        width = number.len()
    );
}

impl Diagnostic {
    /// If a file with secrets could not be parsed, it is unknown which lines contain their values.
    fn path_is_readable(&self) -> bool {
        !(self.path.is_empty()
            && ["kind: Secret", "stringData", "userData", "\"Secret\""]
                .iter()
                .any(|mark| self.source.text.contains(mark)))
    }

    /// Argument of `drover explain` for the fields beside an unknown one: its path without names and positions.
    fn explain(&self) -> Option<String> {
        if !self.message.starts_with("unknown field") {
            return None;
        }
        let mut segments = path::parse(&self.path);
        segments.pop();
        let mut out = vec![self.kind?.to_owned()];
        let mut name_follows = false;
        for segment in segments {
            let Segment::Key(key) = segment else { continue };
            if !std::mem::take(&mut name_follows) {
                name_follows = key == "groups";
                out.push(key);
            }
        }
        Some(out.join("."))
    }
}
