//! Decodes trees to messages, field by field according to the schema, and reports all errors of a document at once.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, Value as Dynamic};
use prost_types::{Struct, Value as Free, value::Kind as FreeKind};

use super::{
    diagnostic::{Diagnostic, Diagnostics, is_secret_key},
    path::{index, join},
    scalar::{self, MAX_SAFE_INTEGER},
    schema::{self, Field, Shape},
    tip,
    tree::{Entry, Node, Scalar, Source, Span, Value},
};

/// Maximum number of keys that are listed if an unknown one resembles none.
const MAX_LISTED_KEYS: usize = 12;

/// Decoder of one document.
pub(crate) struct Decoder<'a> {
    pub(crate) source: &'a Arc<Source>,
    /// Further files with parts of the document, as [`Span::file`] counts them.
    pub(crate) files: &'a [Arc<Source>],
    /// Directory for relative paths.
    pub(crate) base: PathBuf,
    pub(crate) diagnostics: &'a mut Diagnostics,
    /// Kind for `drover explain`. `None` if it cannot explain the document.
    pub(crate) kind: Option<&'static str>,
}

impl<'a> Decoder<'a> {
    /// The file of a span.
    pub(crate) fn source_of(&self, span: Span) -> &'a Arc<Source> {
        file(self.source, self.files, span)
    }

    /// From here on no diagnostic shows its lines.
    pub(crate) fn hide(&mut self, node: &Node) {
        self.diagnostics
            .hide(self.source_of(node.span), node.lines());
    }

    fn is_hidden(&self, node: &Node) -> bool {
        let source = self.source_of(node.span);
        self.diagnostics.is_secret(source, node.span.line)
    }

    /// Description of the value that was found instead of the expected one.
    fn found(&self, node: &Node) -> String {
        if self.is_hidden(node) {
            "something that is not shown".into()
        } else {
            node.describe()
        }
    }

    pub(crate) fn error(
        &mut self,
        span: Span,
        path: &str,
        message: impl Into<String>,
        expected: &str,
    ) {
        let diagnostic = self.diagnostic(span, path, message, expected);
        self.diagnostics.push(diagnostic);
    }

    fn diagnostic(
        &self,
        span: Span,
        path: &str,
        message: impl Into<String>,
        expected: &str,
    ) -> Diagnostic {
        let mut diagnostic = Diagnostic::new(self.source_of(span), span, path, message);
        diagnostic.kind = self.kind;
        if expected.is_empty() {
            diagnostic
        } else {
            diagnostic.expected(expected)
        }
    }

    /// Reports that a document lacks a field, unless an unknown one was probably meant to be it.
    pub(crate) fn lacks(&mut self, root: &Node, span: Span, path: &str, expected: &str) {
        let (source, lines) = (self.source_of(root.span).clone(), root.lines());
        let is_meant = |known: &Diagnostic| {
            known.meant.as_deref() == Some(path)
                && Arc::ptr_eq(&known.source, &source)
                && lines.contains(&known.span.line)
        };
        if !self.diagnostics.items().iter().any(is_meant) {
            self.error(span, path, format!("`{path}` is missing"), expected);
        }
    }

    pub(crate) fn mismatch(&mut self, node: &Node, path: &str, expected: &str) {
        let found = self.found(node);
        self.error(
            node.span,
            path,
            format!("wrong value: {found}"),
            &format!("expected {expected}"),
        );
    }

    /// Reports an unknown key.
    pub(crate) fn unknown(&mut self, entry: &Entry, path: &str, known: &[(&str, String)]) {
        if entry.key == "<<" {
            let message = "merge keys (`<<`) are not supported";
            self.error(entry.span, path, message, "write the fields themselves");
            return;
        }
        let suggestion = drover_core::name::closest(&entry.key, known.iter().map(|(key, _)| *key));
        // In a damaged file a part of a value may have become the beginning of its key.
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let shown = entry.key.chars().all(is_name) || !is_secret_key(&entry.key);
        let around = path;
        let path = if shown {
            join(around, &entry.key)
        } else {
            around.to_owned()
        };
        let name = if shown {
            format!(" `{}`", entry.key)
        } else {
            String::new()
        };
        match suggestion.and_then(|name| known.iter().find(|(key, _)| *key == name)) {
            Some((known, expectation)) => {
                let message = format!("unknown field{name}, did you mean `{known}`?");
                let expected = format!("expected {expectation}");
                let mut diagnostic = self.diagnostic(entry.span, &path, message, &expected);
                diagnostic.meant = Some(join(around, known));
                self.diagnostics.push(diagnostic);
            }
            None => {
                let mut names: Vec<String> =
                    known.iter().map(|(key, _)| (*key).to_owned()).collect();
                if names.len() > MAX_LISTED_KEYS {
                    names.truncate(MAX_LISTED_KEYS);
                    names.push("…".into());
                }
                let expected = if names.is_empty() {
                    "no field".into()
                } else {
                    schema::one_of(&names)
                };
                let message = format!("unknown field{name}");
                self.error(entry.span, &path, message, &format!("expected {expected}"));
            }
        }
    }

    /// The entries of a map. Anything else is reported.
    pub(crate) fn map<'n>(&mut self, node: &'n Node, path: &str, expected: &str) -> &'n [Entry] {
        match &node.value {
            Value::Map(entries) => entries,
            _ => {
                self.mismatch(node, path, expected);
                &[]
            }
        }
    }

    /// Decodes a message from a map of its fields.
    pub(crate) fn message(
        &mut self,
        descriptor: &MessageDescriptor,
        node: &Node,
        path: &str,
    ) -> DynamicMessage {
        let entries = self.map(node, path, "a map");
        self.message_of(descriptor, entries, path)
    }

    fn message_of(
        &mut self,
        descriptor: &MessageDescriptor,
        entries: &[Entry],
        path: &str,
    ) -> DynamicMessage {
        let fields = schema::fields(descriptor);
        let mut message = DynamicMessage::new(descriptor.clone());
        let mut given: BTreeMap<String, String> = BTreeMap::new();
        for entry in entries {
            let Some(field) = fields.iter().find(|field| field.key == entry.key) else {
                let known: Vec<(&str, String)> = fields
                    .iter()
                    .map(|field| (field.key.as_str(), schema::expectation(field)))
                    .collect();
                self.unknown(entry, path, &known);
                continue;
            };
            let path = join(path, &entry.key);
            // Two notations of one field, or two members of a oneof.
            let choice = field
                .descriptor
                .containing_oneof()
                .filter(|oneof| !oneof.is_synthetic());
            let place = choice.map_or_else(
                || field.descriptor.name().to_owned(),
                |oneof| format!("oneof {}", oneof.name()),
            );
            if let Some(first) = given.insert(place, entry.key.clone()) {
                let message = format!("`{}` and `{first}` exclude each other", entry.key);
                self.error(entry.span, &path, message, "only one of them may be given");
                continue;
            }
            self.field(&mut message, field, &entry.value, &path);
        }
        message
    }

    fn field(&mut self, message: &mut DynamicMessage, field: &Field, node: &Node, path: &str) {
        match &field.shape {
            Shape::FileOrSecret => self.user_data_from(message, node, path),
            Shape::File => {
                if let Some(content) = self.file(node, path) {
                    match String::from_utf8(content) {
                        Ok(text) => message.set_field(&field.descriptor, Dynamic::String(text)),
                        Err(_) => {
                            self.error(node.span, path, "the file is not text", "expected UTF-8");
                        }
                    }
                }
            }
            Shape::PlatformName => {
                if let Some(name) = self.text(node, path, &schema::describe(&field.shape))
                    && let Kind::Message(choice) = field.descriptor.kind()
                {
                    let value = Dynamic::List(vec![Dynamic::Message(named(&choice, &name))]);
                    message.set_field(&field.descriptor, value);
                }
            }
            shape => {
                if field.key.starts_with("userData") || is_bootstrap(shape) {
                    self.hide(node);
                }
                if let Some(value) = self.value(shape, field, node, path) {
                    message.set_field(&field.descriptor, value);
                }
            }
        }
    }

    fn value(&mut self, shape: &Shape, field: &Field, node: &Node, path: &str) -> Option<Dynamic> {
        let expectation = || self.expected(field, node);
        match shape {
            Shape::Text => self.text(node, path, &expectation()).map(Dynamic::String),
            Shape::Bool => match node.scalar() {
                Some(Scalar::Bool(value)) => Some(Dynamic::Bool(value)),
                _ => self.refuse(node, path, &expectation()),
            },
            Shape::Integer { max } => self.integer(field, *max, node, path),
            Shape::Duration => match node.text().and_then(scalar::parse_duration) {
                Some(duration) => self.transcode(field, &duration),
                None => self.refuse(node, path, &expectation()),
            },
            Shape::Free => {
                let value = self.free_map(node, path);
                self.transcode(field, &value)
            }
            Shape::Amount => self.amount(field, node, path),
            Shape::Port => self.port(field, node, path),
            Shape::Quantity => match &node.value {
                Value::Scalar { text, .. } if scalar::is_quantity(text) => {
                    Some(Dynamic::String(text.clone()))
                }
                _ => self.refuse(node, path, &expectation()),
            },
            Shape::Base64 => match node.text().and_then(scalar::from_base64) {
                Some(bytes) => Some(Dynamic::Bytes(bytes.into())),
                None => self.refuse(node, path, &expectation()),
            },
            Shape::Enum(descriptor) => {
                let values = schema::enum_values(descriptor);
                let text = node.text();
                if let Some((_, number)) =
                    values.iter().find(|(name, _)| Some(name.as_str()) == text)
                {
                    return Some(Dynamic::EnumNumber(*number));
                }
                let suggestion = text.and_then(|text| {
                    drover_core::name::closest(text, values.iter().map(|(name, _)| name.as_str()))
                });
                match (text, suggestion) {
                    (Some(text), Some(suggestion)) => {
                        let message =
                            format!("unknown value `{text}`, did you mean `{suggestion}`?");
                        self.error(
                            node.span,
                            path,
                            message,
                            &format!("expected {}", expectation()),
                        );
                        None
                    }
                    _ => self.refuse(node, path, &expectation()),
                }
            }
            Shape::Message(descriptor) => {
                if node.map().is_none() {
                    return self.refuse(node, path, &expectation());
                }
                Some(Dynamic::Message(self.message(descriptor, node, path)))
            }
            Shape::List(item) => {
                let Value::List(items) = &node.value else {
                    return self.refuse(node, path, &expectation());
                };
                let values = items
                    .iter()
                    .enumerate()
                    .filter_map(|(position, node)| {
                        self.item(item, field, node, &index(path, position))
                    })
                    .collect();
                Some(Dynamic::List(values))
            }
            Shape::TextMap => {
                let mut values = std::collections::HashMap::new();
                for entry in self.map(node, path, &expectation()) {
                    if let Some(text) = self.text(&entry.value, &join(path, &entry.key), "a string")
                    {
                        values.insert(MapKey::String(entry.key.clone()), Dynamic::String(text));
                    }
                }
                Some(Dynamic::Map(values))
            }
            Shape::Groups(descriptor) => Some(Dynamic::List(self.groups(descriptor, node, path))),
            Shape::Platforms(descriptor) => {
                let Value::List(items) = &node.value else {
                    return self.refuse(node, path, &expectation());
                };
                let values = items.iter().enumerate().filter_map(|(position, node)| {
                    let path = index(path, position);
                    match node.scalar() {
                        Some(_) => self
                            .text(node, &path, "the name of a platform")
                            .map(|name| named(descriptor, &name)),
                        None => Some(self.message(descriptor, node, &path)),
                    }
                });
                Some(Dynamic::List(values.map(Dynamic::Message).collect()))
            }
            // Handled by `field`, which has the message that contains them.
            Shape::PlatformName | Shape::File | Shape::FileOrSecret => None,
        }
    }

    /// Decodes an element of a list: like the field itself, but without its default.
    fn item(&mut self, shape: &Shape, field: &Field, node: &Node, path: &str) -> Option<Dynamic> {
        match shape {
            Shape::Text => self.text(node, path, "a string").map(Dynamic::String),
            Shape::Message(_) if node.map().is_none() => self.refuse(node, path, "a map"),
            _ => self.value(shape, field, node, path),
        }
    }

    fn groups(&mut self, descriptor: &MessageDescriptor, node: &Node, path: &str) -> Vec<Dynamic> {
        let mut groups = Vec::new();
        for entry in self.map(node, path, "a map of groups by name") {
            let path = join(path, &entry.key);
            // `web:` alone is a group that inherits everything.
            let entries = if entry.value.is_null() {
                &[]
            } else {
                self.map(&entry.value, &path, "a map")
            };
            let mut group = self.message_of(descriptor, entries, &path);
            group.set_field_by_name("name", Dynamic::String(entry.key.clone()));
            groups.push(Dynamic::Message(group));
        }
        groups
    }

    /// What a field expects, and how this value would be written.
    fn expected(&self, field: &Field, node: &Node) -> String {
        let expected = schema::expectation(field);
        match tip::of(&field.shape, node).filter(|_| !self.is_hidden(node)) {
            Some(tip) => format!("{expected}; {tip}"),
            None => expected,
        }
    }

    fn refuse_for(&mut self, field: &Field, node: &Node, path: &str) -> Option<Dynamic> {
        let expected = self.expected(field, node);
        self.refuse(node, path, &expected)
    }

    fn refuse(&mut self, node: &Node, path: &str, expected: &str) -> Option<Dynamic> {
        self.mismatch(node, path, expected);
        None
    }

    /// An unambiguous text: a bare number or boolean is refused, because YAML does not preserve it as written.
    pub(crate) fn text(&mut self, node: &Node, path: &str, expected: &str) -> Option<String> {
        let advice = match node.scalar() {
            Some(Scalar::Text(text)) => return Some(text.to_owned()),
            _ if self.is_hidden(node) && node.scalar().is_some() => "quote it".to_owned(),
            Some(Scalar::Float(number)) if number.is_finite() => {
                format!("quote it: YAML reads {number}")
            }
            Some(Scalar::Integer(_) | Scalar::Bool(_) | Scalar::Float(_)) => "quote it".into(),
            Some(Scalar::Ambiguous(text)) => {
                format!("quote it: a bare {text} is not the same to all readers of YAML")
            }
            _ => {
                self.mismatch(node, path, expected);
                return None;
            }
        };
        let found = self.found(node);
        self.error(
            node.span,
            path,
            format!("wrong value: {found}, expected a string"),
            &advice,
        );
        None
    }

    fn integer(&mut self, field: &Field, max: u64, node: &Node, path: &str) -> Option<Dynamic> {
        let (min, max) = schema::range(field).unwrap_or((0, max));
        let number = match node.scalar() {
            Some(Scalar::Integer(number)) => u64::try_from(number)
                .ok()
                .filter(|number| (min..=max).contains(number)),
            _ => None,
        };
        let Some(number) = number else {
            return self.refuse_for(field, node, path);
        };
        Some(match field.descriptor.kind() {
            Kind::Uint64 | Kind::Fixed64 => Dynamic::U64(number),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                Dynamic::I64(i64::try_from(number).ok()?)
            }
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                Dynamic::I32(i32::try_from(number).ok()?)
            }
            _ => Dynamic::U32(u32::try_from(number).ok()?),
        })
    }

    fn amount(&mut self, field: &Field, node: &Node, path: &str) -> Option<Dynamic> {
        let Kind::Message(descriptor) = field.descriptor.kind() else {
            return None;
        };
        let mut message = DynamicMessage::new(descriptor);
        match node.scalar() {
            Some(Scalar::Integer(count)) if (0..=10_000).contains(&count) => {
                message.set_field_by_name("count", Dynamic::U32(u32::try_from(count).ok()?));
            }
            Some(Scalar::Text(text)) => {
                match text.strip_suffix('%').and_then(|share| share.parse().ok()) {
                    Some(percent @ 0..=100) if !text.starts_with('+') => {
                        message.set_field_by_name("percent", Dynamic::U32(percent));
                    }
                    _ => return self.refuse_for(field, node, path),
                }
            }
            _ => return self.refuse_for(field, node, path),
        }
        Some(Dynamic::Message(message))
    }

    fn port(&mut self, field: &Field, node: &Node, path: &str) -> Option<Dynamic> {
        let Kind::Message(descriptor) = field.descriptor.kind() else {
            return None;
        };
        let mut message = DynamicMessage::new(descriptor);
        match node.scalar() {
            Some(Scalar::Integer(number @ 1..=65_535)) => {
                message.set_field_by_name("number", Dynamic::U32(u32::try_from(number).ok()?));
            }
            Some(Scalar::Text(name)) if !name.is_empty() => {
                message.set_field_by_name("name", Dynamic::String(name.to_owned()));
            }
            _ => return self.refuse_for(field, node, path),
        }
        Some(Dynamic::Message(message))
    }

    fn transcode(&mut self, field: &Field, value: &impl Message) -> Option<Dynamic> {
        let Kind::Message(descriptor) = field.descriptor.kind() else {
            return None;
        };
        let mut message = DynamicMessage::new(descriptor);
        message.transcode_from(value).ok()?;
        Some(Dynamic::Message(message))
    }

    /// Decodes a free-form map.
    pub(crate) fn free_map(&mut self, node: &Node, path: &str) -> Struct {
        let entries = self.map(node, path, "a map of free-form values");
        let mut fields = BTreeMap::new();
        for entry in entries {
            if let Some(value) = self.free(&entry.value, &join(path, &entry.key)) {
                fields.insert(entry.key.clone(), value);
            }
        }
        Struct { fields }
    }

    fn free(&mut self, node: &Node, path: &str) -> Option<Free> {
        let kind = match &node.value {
            Value::Map(_) => FreeKind::StructValue(self.free_map(node, path)),
            Value::List(items) => {
                let values = items
                    .iter()
                    .enumerate()
                    .filter_map(|(position, item)| self.free(item, &index(path, position)))
                    .collect();
                return Some(scalar::free_list(values));
            }
            Value::Scalar { .. } => match node.scalar()? {
                Scalar::Null => FreeKind::NullValue(0),
                Scalar::Bool(value) => FreeKind::BoolValue(value),
                Scalar::Text(text) => FreeKind::StringValue(text.to_owned()),
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "checked to be within what a double holds exactly"
                )]
                Scalar::Integer(number) if number.abs() <= MAX_SAFE_INTEGER => {
                    FreeKind::NumberValue(number as f64)
                }
                Scalar::Integer(_) => {
                    self.mismatch(
                        node,
                        path,
                        "a number up to 2^53; quote it to keep its digits",
                    );
                    return None;
                }
                Scalar::Float(number) if number.is_finite() => FreeKind::NumberValue(number),
                Scalar::Float(_) => {
                    self.mismatch(node, path, "a finite number");
                    return None;
                }
                Scalar::Ambiguous(text) => {
                    let message = format!(
                        "wrong value: a bare {text} is not the same to all readers of YAML"
                    );
                    self.error(
                        node.span,
                        path,
                        message,
                        "quote it, or write true, false or the number meant",
                    );
                    return None;
                }
            },
        };
        Some(scalar::free(kind))
    }
}

/// The file of a span: the document's own, or one of `files`.
pub(crate) fn file<'a>(
    own: &'a Arc<Source>,
    files: &'a [Arc<Source>],
    span: Span,
) -> &'a Arc<Source> {
    let other = span.file.checked_sub(1).and_then(|at| files.get(at));
    other.unwrap_or(own)
}

/// User data on one line with other fields would be shown with the errors about those fields.
fn is_bootstrap(shape: &Shape) -> bool {
    matches!(shape, Shape::Message(message) if message.name() == "BootstrapSource")
}

fn named(descriptor: &MessageDescriptor, name: &str) -> DynamicMessage {
    let mut choice = DynamicMessage::new(descriptor.clone());
    choice.set_field_by_name("name", Dynamic::String(name.to_owned()));
    choice
}
