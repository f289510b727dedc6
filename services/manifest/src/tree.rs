//! YAML and JSON as a tree with positions.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    ops::RangeInclusive,
    sync::Arc,
};

use granit_parser::{Event, Parser, ScalarStyle};

use super::{
    diagnostic::{Diagnostic, Diagnostics},
    syntax,
};

/// Maximum size of a file. A spec has at most 512 KiB; this leaves room for several in one file.
pub(crate) const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
/// Maximum nesting. Groups nest 8 deep; the rest is for free-form values.
pub(crate) const MAX_DEPTH: usize = 64;
/// Maximum number of values in a file, including those that aliases repeat, so that a small file cannot grow without
/// bounds.
const MAX_NODES: usize = 200_000;
/// Maximum number of documents in a file.
const MAX_DOCUMENTS: usize = 1_000;

/// A file, or standard input.
pub(crate) struct Source {
    /// Name in messages.
    pub(crate) name: String,
    pub(crate) text: String,
}

impl fmt::Debug for Source {
    /// Without its text, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Source {
    pub(crate) fn new(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            text: text.into(),
        })
    }

    pub(crate) fn line(&self, number: usize) -> Option<&str> {
        self.text.lines().nth(number.checked_sub(1)?)
    }
}

/// A position: line and column from 1, length in characters on its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) length: usize,
    pub(crate) last_line: usize,
    /// Index of the file: 0 is the document's own, others count from 1 (see [`Document`](super::Document)).
    pub(crate) file: usize,
}

/// A value and its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) value: Value,
}

/// A value before its interpretation: the meaning of a plain scalar depends on what is expected.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Scalar { text: String, plain: bool },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a map and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) span: Span,
    pub(crate) value: Node,
}

/// A plain scalar, interpreted by the core schema of YAML 1.2.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    /// yes, no, on, off: text in YAML 1.2 but a boolean in YAML 1.1, so the intention is unknown.
    Ambiguous(&'a str),
    Text(&'a str),
}

impl Node {
    pub(crate) fn map(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.map()?.iter().find(|entry| entry.key == key)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub(crate) fn scalar(&self) -> Option<Scalar<'_>> {
        match &self.value {
            Value::Scalar { text, plain: true } => Some(resolve(text)),
            Value::Scalar { text, .. } => Some(Scalar::Text(text)),
            _ => None,
        }
    }

    /// The text of a scalar that is unambiguously text.
    pub(crate) fn text(&self) -> Option<&str> {
        match self.scalar() {
            Some(Scalar::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        self.scalar() == Some(Scalar::Null)
    }

    /// Marks all of it as part of another file than the document's own.
    pub(crate) fn in_file(&mut self, file: usize) {
        self.span.file = file;
        match &mut self.value {
            Value::Scalar { .. } => {}
            Value::List(items) => items.iter_mut().for_each(|item| item.in_file(file)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.span.file = file;
                    entry.value.in_file(file);
                }
            }
        }
    }

    pub(crate) fn lines(&self) -> RangeInclusive<usize> {
        self.span.line..=self.span.last_line
    }

    /// Description for a message.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a map".into(),
            Value::Scalar { text, .. } => match self.scalar() {
                Some(Scalar::Null) => "null".into(),
                Some(Scalar::Bool(_)) => format!("the boolean {text}"),
                Some(Scalar::Integer(_) | Scalar::Float(_)) => format!("the number {text}"),
                // A text because of its quotes, although it looks like the expected value.
                Some(Scalar::Text(_)) if !matches!(resolve(text), Scalar::Text(_)) => {
                    format!("the string \"{text}\"")
                }
                _ if text.len() <= 40 && !text.contains('\n') => format!("`{text}`"),
                _ => "a string".into(),
            },
        }
    }
}

/// Interprets a plain scalar by the core schema of YAML 1.2.
pub(crate) fn resolve(text: &str) -> Scalar<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "true" | "True" | "TRUE" => return Scalar::Bool(true),
        "false" | "False" | "FALSE" => return Scalar::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Scalar::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        _ => {}
    }
    if text.len() <= 3
        && ["yes", "no", "on", "off"]
            .iter()
            .any(|word| word.eq_ignore_ascii_case(text))
    {
        return Scalar::Ambiguous(text);
    }
    if let Some(digits) = text.strip_prefix("0x")
        && let Ok(number) = i128::from_str_radix(digits, 16)
        && !digits.starts_with(['+', '-'])
    {
        return Scalar::Integer(number);
    }
    if let Some(digits) = text.strip_prefix("0o")
        && let Ok(number) = i128::from_str_radix(digits, 8)
        && !digits.starts_with(['+', '-'])
    {
        return Scalar::Integer(number);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if all_digits {
        // Octal in YAML 1.1, decimal in 1.2.
        if digits.len() > 1 && digits.starts_with('0') {
            return Scalar::Ambiguous(text);
        }
        return text
            .parse()
            .map_or(Scalar::Float(f64::INFINITY), Scalar::Integer);
    }
    let number_like = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.contains(|c: char| c.is_ascii_digit())
        && digits
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    if number_like && let Ok(number) = text.parse::<f64>() {
        return Scalar::Float(number);
    }
    Scalar::Text(text)
}

/// Parses all documents of a source. Invalid YAML is a single diagnostic, since errors after it mean little.
pub(crate) fn parse(source: &Arc<Source>, diagnostics: &mut Diagnostics) -> Vec<Node> {
    match (Reader {
        parser: Parser::new_from_str(&source.text),
        anchors: BTreeMap::new(),
        nodes: 0,
        source,
        diagnostics,
    })
    .documents()
    {
        Ok(documents) => documents,
        Err(Stop { message, span }) => {
            diagnostics.push(Diagnostic::new(source, span, "", message));
            Vec::new()
        }
    }
}

struct Stop {
    message: String,
    span: Span,
}

struct Reader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    source: &'a Arc<Source>,
    diagnostics: &'a mut Diagnostics,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Stop> {
        match self.parser.next() {
            Some(Ok((event, span))) => Ok((event, to_span(&span))),
            Some(Err(error)) => {
                let (message, span) = syntax::explain(&error, &self.source.text);
                Err(Stop { message, span })
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn documents(&mut self) -> Result<Vec<Node>, Stop> {
        let mut documents = Vec::new();
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(documents),
                (Event::DocumentStart(..), span) => {
                    if documents.len() == MAX_DOCUMENTS {
                        return Err(Stop {
                            message: format!("more than {MAX_DOCUMENTS} documents in one file"),
                            span,
                        });
                    }
                    self.anchors.clear();
                    let node = self.node(0)?;
                    if !node.is_null() {
                        documents.push(node);
                    }
                }
                _ => {}
            }
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, Stop> {
        match self.node_or_end(depth)? {
            Some(node) => Ok(node),
            None => Err(Stop {
                message: "a value is missing".into(),
                span: Span::default(),
            }),
        }
    }

    fn node_or_end(&mut self, depth: usize) -> Result<Option<Node>, Stop> {
        let (event, span) = self.next()?;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let text = text.into_owned();
                let string_tag = check_tag(tag.as_deref(), span, "str")?;
                let plain = style == ScalarStyle::Plain && !string_tag;
                self.finish(
                    anchor,
                    Node {
                        span,
                        value: Value::Scalar { text, plain },
                    },
                )
                .map(Some)
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), span, "seq")?;
                self.descend(depth, span)?;
                let mut items = Vec::new();
                while let Some(item) = self.node_or_end(depth + 1)? {
                    items.push(item);
                }
                self.finish(
                    anchor,
                    Node {
                        span: extend(span, items.last()),
                        value: Value::List(items),
                    },
                )
                .map(Some)
            }
            Event::MappingStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), span, "map")?;
                self.descend(depth, span)?;
                let entries = self.entries(depth)?;
                let last = entries.last().map(|entry| &entry.value);
                self.finish(
                    anchor,
                    Node {
                        span: extend(span, last),
                        value: Value::Map(entries),
                    },
                )
                .map(Some)
            }
            Event::Alias(id) => match self.anchors.get(&id).cloned() {
                Some(mut node) => {
                    self.count(size(&node), span)?;
                    node.span = span;
                    Ok(Some(node))
                }
                None => Err(Stop {
                    message: "an alias to something that it is part of".into(),
                    span,
                }),
            },
            Event::SequenceEnd | Event::MappingEnd => Ok(None),
            _ => self.node_or_end(depth),
        }
    }

    fn entries(&mut self, depth: usize) -> Result<Vec<Entry>, Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = HashSet::new();
        while let Some(key) = self.node_or_end(depth + 1)? {
            let value = self.node(depth + 1)?;
            let span = key.span;
            let Value::Scalar { text: key, .. } = key.value else {
                return Err(Stop {
                    message: "a key must be a string".into(),
                    span,
                });
            };
            if seen.insert(key.clone()) {
                entries.push(Entry { key, span, value });
            } else {
                let first = entries
                    .iter()
                    .find(|entry| entry.key == key)
                    .map_or(0, |entry| entry.span.line);
                self.diagnostics.push(
                    Diagnostic::new(self.source, span, "", format!("duplicate key `{key}`"))
                        .expected(format!("first on line {first}; a key may appear only once")),
                );
            }
        }
        Ok(entries)
    }

    fn descend(&self, depth: usize, span: Span) -> Result<(), Stop> {
        if depth >= MAX_DEPTH {
            return Err(Stop {
                message: format!("nested deeper than {MAX_DEPTH}"),
                span,
            });
        }
        Ok(())
    }

    fn finish(&mut self, anchor: usize, node: Node) -> Result<Node, Stop> {
        self.count(1, node.span)?;
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn count(&mut self, nodes: usize, span: Span) -> Result<(), Stop> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            return Err(Stop {
                message: format!("more than {MAX_NODES} values in one file, aliases unfolded"),
                span,
            });
        }
        Ok(())
    }
}

fn size(node: &Node) -> usize {
    1 + match &node.value {
        Value::Scalar { .. } => 0,
        Value::List(items) => items.iter().map(size).sum(),
        Value::Map(entries) => entries.iter().map(|entry| size(&entry.value)).sum(),
    }
}

fn extend(mut span: Span, last: Option<&Node>) -> Span {
    span.last_line = span
        .last_line
        .max(last.map_or(0, |node| node.span.last_line));
    span
}

/// Whether the tag marks a text. Only the standard tags of YAML are supported.
fn check_tag(tag: Option<&granit_parser::Tag>, span: Span, own: &str) -> Result<bool, Stop> {
    let Some(tag) = tag else { return Ok(false) };
    let name = tag.to_string();
    if name == format!("tag:yaml.org,2002:{own}") || name == format!("!!{own}") || name == "!" {
        return Ok(own == "str");
    }
    Err(Stop {
        message: format!("the tag {name} is not supported"),
        span,
    })
}

fn to_span(span: &granit_parser::Span) -> Span {
    let (start, end) = (&span.start, &span.end);
    let length = if end.line() == start.line() {
        end.col().saturating_sub(start.col())
    } else {
        1
    };
    // A block collection ends where the next token begins; only its content counts.
    let last_line = if end.col() == 0 && end.line() > start.line() {
        end.line() - 1
    } else {
        end.line()
    };
    Span {
        line: start.line(),
        column: start.col() + 1,
        length: length.max(1),
        last_line: last_line.max(start.line()),
        file: 0,
    }
}
