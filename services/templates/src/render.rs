//! Parsing and rendering of templates, and parsing of their output. Errors never repeat any content.

use std::{
    fmt,
    io::{self, Write as _},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use drover_core::{Error, Reason, Result};
use flate2::{Compression, write::GzEncoder};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde::de::DeserializeOwned;
use serde_saphyr::Location;

use crate::Scope;

/// Instruction limit of a rendering. The largest templates in use need about ten thousand; an endless loop ends within
/// a fraction of a second.
const FUEL: u64 = 5_000_000;

/// Maximum size of a rendering result in bytes, which is also the maximum size of API messages.
pub(crate) const MAX_RENDERED: usize = 4 * 1024 * 1024;

/// The output of a template. Secret: it has no `Display`, and its `Debug` shows only the size.
#[derive(Clone, Default)]
pub struct Rendered {
    name: String,
    text: String,
}

impl Rendered {
    /// The text. It must not end up in a log, an event or an error.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The text, owned. The same restrictions as for [`expose`](Self::expose) apply.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// Parses the output as a single YAML document.
    ///
    /// # Errors
    ///
    /// `Precondition` with template, line and column (of the output), without any content.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        serde_saphyr::from_str_with_options(&self.text, yaml_options())
            .map_err(|error| self.yaml_error(&error))
    }

    /// Parses the output as any number of YAML documents, skipping empty ones.
    ///
    /// # Errors
    ///
    /// See [`parse`](Self::parse).
    pub fn parse_all<T: DeserializeOwned>(&self) -> Result<Vec<T>> {
        serde_saphyr::from_str_multiple_with_options(&self.text, yaml_options())
            .map_err(|error| self.yaml_error(&error))
    }

    fn yaml_error(&self, error: &serde_saphyr::Error) -> Error {
        let Position { line, column } = Position::of(error.location());
        Error::new(
            Reason::Precondition,
            format!(
                "template {}: what it renders is wrong at line {line}, column {column}: {}",
                self.name,
                without_content(error)
            ),
        )
        .with_metadata("file", &self.name)
        .with_metadata("rendered_line", line)
        .with_metadata("rendered_column", column)
    }
}

impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rendered({}, {} bytes)", self.name, self.text.len())
    }
}

/// A template that is not a file of a catalogue, such as user data, under the rules of catalogues.
///
/// Neither parsing, which evaluates constants, nor rendering is bounded in memory. Therefore texts written by callers
/// are processed by a [`worker`](crate::worker) only.
pub struct Text {
    name: String,
    environment: Environment<'static>,
}

impl Text {
    /// Parses a text. `name` identifies it in errors.
    ///
    /// # Errors
    ///
    /// `Invalid` for a syntax error.
    pub fn parse(name: &str, source: String) -> Result<Self> {
        let mut environment = environment();
        environment
            .add_template_owned(name.to_owned(), source)
            .map_err(|error| template_error(name, &error, Reason::Invalid))?;
        Ok(Self {
            name: name.to_owned(),
            environment,
        })
    }

    /// Renders the text.
    ///
    /// # Errors
    ///
    /// See [`Selected::render`](crate::Selected::render).
    pub fn render(&self, scope: Scope) -> Result<Rendered> {
        render(&self.environment, &self.name, &self.name, scope)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({})", self.name)
    }
}

/// Parses and renders a [`Text`] within this process, without any memory limit. Must never be used for texts written by
/// callers.
///
/// # Errors
///
/// `Invalid` for a syntax error, otherwise see [`Selected::render`](crate::Selected::render).
pub fn render_text(name: &str, source: &str, scope: &Scope) -> Result<Rendered> {
    Text::parse(name, source.to_owned())?.render(scope.clone())
}

/// Creates an environment with the rules that all catalogues share.
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.add_function("refuse", refuse);
    environment.add_filter("b64encode", |text: String| BASE64.encode(text));
    environment.add_filter("b64decode", b64decode);
    environment.add_filter("gzip_b64encode", gzip_b64encode);
    environment
}

fn b64decode(text: String) -> std::result::Result<String, minijinja::Error> {
    let decoded = BASE64.decode(text).ok();
    decoded
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| minijinja::Error::new(ErrorKind::InvalidOperation, "no text in base64"))
}

/// For user data, whose size clouds limit: `base64 -d | gunzip` is the text again. The same text has the same result.
fn gzip_b64encode(text: String) -> std::result::Result<String, minijinja::Error> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(text.as_bytes());
    written
        .and_then(|()| encoder.finish())
        .map(|bytes| BASE64.encode(bytes))
        .map_err(|_| minijinja::Error::new(ErrorKind::InvalidOperation, "it cannot be compressed"))
}

/// `refuse("why")` in a template: ends the rendering with this message of the template's author.
fn refuse(why: String) -> std::result::Result<minijinja::Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal(why)))
}

/// The message with which a template rejects a request.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Renders the template `key`, which errors refer to as `name`.
pub(crate) fn render(
    environment: &Environment<'static>,
    key: &str,
    name: &str,
    scope: Scope,
) -> Result<Rendered> {
    let mut output = Bounded(Vec::new());
    environment
        .get_template(key)
        .and_then(|template| {
            template
                .render_captured_to(scope.into_value(), &mut output)
                .map(|_| ())
        })
        .map_err(|error| template_error(name, &error, Reason::Precondition))?;
    let text = String::from_utf8(output.0)
        .map_err(|_| Error::internal(format!("template {name}: not UTF-8")))?;
    Ok(Rendered {
        name: name.to_owned(),
        text,
    })
}

/// A buffer that does not grow beyond [`MAX_RENDERED`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED {
            return Err(io::Error::other("too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts a template error, with its position. Details about values are omitted because they may be confidential.
pub(crate) fn template_error(name: &str, error: &minijinja::Error, reason: Reason) -> Error {
    let error = innermost(error);
    let refusal = std::error::Error::source(error).and_then(|it| it.downcast_ref::<Refusal>());
    let mut what = match error.kind() {
        _ if refusal.is_some() => refusal.map(ToString::to_string).unwrap_or_default(),
        ErrorKind::OutOfFuel => "it takes too many steps".to_owned(),
        ErrorKind::WriteFailure => format!("it renders more than {MAX_RENDERED} bytes"),
        kind => kind.to_string(),
    };
    let speaks_of_the_template = matches!(
        error.kind(),
        ErrorKind::SyntaxError
            | ErrorKind::UndefinedError
            | ErrorKind::UnknownFilter
            | ErrorKind::UnknownTest
            | ErrorKind::UnknownFunction
            | ErrorKind::UnknownBlock
            | ErrorKind::MissingArgument
            | ErrorKind::TooManyArguments
    );
    if speaks_of_the_template && let Some(detail) = error.detail() {
        what = format!("{what}: {detail}");
    }
    let file = match error.name() {
        Some(inner) if !name.ends_with(inner) => format!("{name} (in {inner})"),
        _ => name.to_owned(),
    };
    let line = error.line().unwrap_or(0);
    let column = error
        .range()
        .zip(error.template_source())
        .and_then(|(range, source)| source.get(..range.start))
        .map_or(1, |before| {
            before.rsplit('\n').next().unwrap_or("").chars().count() + 1
        });
    Error::new(
        reason,
        format!("template {file}, line {line}, column {column}: {what}"),
    )
    .with_metadata("file", file)
    .with_metadata("line", line)
    .with_metadata("column", column)
}

/// Returns the error of the included file rather than that of the including one.
fn innermost(error: &minijinja::Error) -> &minijinja::Error {
    let mut inner = error;
    while let Some(source) =
        std::error::Error::source(inner).and_then(<dyn std::error::Error>::downcast_ref)
    {
        inner = source;
    }
    inner
}

/// Line and column, starting at 1; 0 if not known.
pub(crate) struct Position {
    pub(crate) line: u64,
    pub(crate) column: u64,
}

impl Position {
    pub(crate) fn of(location: Option<Location>) -> Self {
        location.map_or(Self { line: 0, column: 0 }, |at| Self {
            line: at.line(),
            column: at.column(),
        })
    }
}

pub(crate) fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! { with_snippet: false, strict_booleans: true }
}

/// Describes a YAML error without any content.
fn without_content(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error as Yaml;

    match error.without_snippet() {
        Yaml::SerdeUnknownField { expected, .. } => {
            format!("unknown field, expected one of {}", expected.join(", "))
        }
        Yaml::SerdeUnknownVariant { expected, .. } => {
            format!("expected one of {}", expected.join(", "))
        }
        Yaml::SerdeMissingField { field, .. } => format!("missing field {field}"),
        Yaml::SerdeInvalidType { expected, .. } | Yaml::SerdeInvalidValue { expected, .. } => {
            format!("expected {expected}")
        }
        Yaml::InvalidScalar { ty, .. } => format!("expected a value of type {ty}"),
        Yaml::Unexpected { expected, .. } => format!("expected {expected}"),
        Yaml::DuplicateMappingKey { .. } => "a key twice".to_owned(),
        Yaml::MultipleDocuments { .. } => "more than one document".to_owned(),
        Yaml::Eof { .. } => "no document".to_owned(),
        _ => "not valid YAML".to_owned(),
    }
}
