//! `api.md`: every service, message and enum, from the descriptors that servers expose by reflection.

use std::{collections::BTreeMap, fmt::Write as _};

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

use crate::{cell, head};

/// Field numbers in `descriptor.proto`, which make up the path of a comment.
const MESSAGE: i32 = 4;
const ENUM: i32 = 5;
const SERVICE: i32 = 6;
const FIELD: i32 = 2;
const NESTED: i32 = 3;
const NESTED_ENUM: i32 = 4;
const ONEOF: i32 = 8;
const SYNTAX: i32 = 12;

pub(crate) struct Comments(BTreeMap<Vec<i32>, String>);

impl Comments {
    pub(crate) fn of(file: &FileDescriptorProto) -> Self {
        let locations = file.source_code_info.iter().flat_map(|info| &info.location);
        Self(
            locations
                .filter_map(|at| {
                    let mut parts = at.leading_detached_comments.clone();
                    parts.extend(at.leading_comments.clone());
                    (!parts.is_empty()).then(|| (at.path.clone(), parts.join("\n")))
                })
                .collect(),
        )
    }

    pub(crate) fn at(&self, path: &[i32]) -> String {
        self.0
            .get(path)
            .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
            .unwrap_or_default()
    }

    /// Returns the comment with its paragraphs.
    fn long(&self, path: &[i32]) -> String {
        let Some(text) = self.0.get(path) else {
            return String::new();
        };
        let lines: Vec<&str> = text
            .lines()
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .collect();
        escape(lines.join("\n").trim())
    }
}

/// Escapes angle brackets, which are not meant as markup.
fn escape(text: &str) -> String {
    text.replace('<', "&lt;")
}

pub(crate) fn files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(drover_proto::DESCRIPTORS).unwrap();
    let mut files: Vec<_> = set
        .file
        .into_iter()
        .filter(|file| file.package().starts_with("drover."))
        .collect();
    files.sort_by_key(|file| (file.package().to_owned(), file.name().to_owned()));
    files
}

pub(crate) fn page() -> String {
    let files = files();
    let mut out = head("API");
    out.push_str(
        "From the files under [proto/drover](../../proto/drover), whose comments these are. Servers describe themselves by \
         reflection: `grpcurl -plaintext localhost:7400 list`.\n\nOf a field: `?` it may be absent, `[]` it repeats. \
         Errors and what to do: [errors.md](errors.md). A service that a server does not have answers UNIMPLEMENTED; what a platform can do \
         is in its capabilities.\n\n",
    );
    for file in &files {
        let comments = Comments::of(file);
        for (at, service) in (0..).zip(&file.service) {
            let id = format!("{}.{}", file.package(), service.name());
            writeln!(
                out,
                "- [{id}](#{id}): {}",
                first(&comments.at(&[SERVICE, at]))
            )
            .unwrap();
        }
    }
    let mut package = "";
    for file in &files {
        if file.package() != package {
            package = file.package();
            write!(out, "\n## {package}\n").unwrap();
        }
        self::file(file, &mut out);
    }
    out
}

fn first(text: &str) -> String {
    let end = text.find(". ").map_or(text.len(), |at| at + 1);
    escape(&text[..end])
}

fn file(file: &FileDescriptorProto, out: &mut String) {
    let comments = Comments::of(file);
    let about = comments.long(&[SYNTAX]);
    if !about.is_empty() {
        write!(out, "\n{about}\n").unwrap();
    }
    for (at, service) in (0..).zip(&file.service) {
        self::service(file.package(), service, &comments, &[SERVICE, at], out);
    }
    for (at, message) in (0..).zip(&file.message_type) {
        self::message(file.package(), message, &comments, &[MESSAGE, at], out);
    }
    for (at, values) in (0..).zip(&file.enum_type) {
        enumeration(file.package(), values, &comments, &[ENUM, at], out);
    }
}

fn heading(scope: &str, name: &str, what: &str, about: &str, out: &mut String) {
    write!(
        out,
        "\n<a id=\"{scope}.{name}\"></a>\n### {name} ({what})\n\n{about}\n"
    )
    .unwrap();
}

fn service(
    scope: &str,
    service: &ServiceDescriptorProto,
    comments: &Comments,
    path: &[i32],
    out: &mut String,
) {
    heading(scope, service.name(), "service", &comments.long(path), out);
    out.push_str("\n| call | takes | answers | |\n|---|---|---|---|\n");
    for (at, method) in (0..).zip(&service.method) {
        let stream = |is: bool| if is { "stream of " } else { "" };
        let about = comments.at(&[path, &[FIELD, at]].concat());
        writeln!(
            out,
            "| `{}` | {}{} | {}{} | {} |",
            method.name(),
            stream(method.client_streaming()),
            reference(method.input_type()),
            stream(method.server_streaming()),
            reference(method.output_type()),
            cell(&about)
        )
        .unwrap();
    }
}

fn message(
    scope: &str,
    message: &DescriptorProto,
    comments: &Comments,
    path: &[i32],
    out: &mut String,
) {
    if message
        .options
        .as_ref()
        .is_some_and(prost_types::MessageOptions::map_entry)
    {
        return;
    }
    heading(scope, message.name(), "message", &comments.long(path), out);
    if !message.field.is_empty() {
        out.push_str("\n| field | type | |\n|---|---|---|\n");
    }
    for (at, field) in (0..).zip(&message.field) {
        let mut about = comments.at(&[path, &[FIELD, at]].concat());
        if let (Some(one), false) = (field.oneof_index, field.proto3_optional()) {
            let name = message.oneof_decl[usize::try_from(one).unwrap()].name();
            let first = message.field[..usize::try_from(at).unwrap()]
                .iter()
                .all(|before| before.oneof_index != Some(one));
            let group = comments.at(&[path, &[ONEOF, one]].concat());
            about = if first && !group.is_empty() {
                format!("One of `{name}`: {group} {about}")
            } else {
                format!("One of `{name}`. {about}")
            };
        }
        writeln!(
            out,
            "| `{}` = {} | {} | {} |",
            field.name(),
            field.number(),
            kind(field, message),
            cell(&about)
        )
        .unwrap();
    }
    let inner = format!("{scope}.{}", message.name());
    for (at, nested) in (0..).zip(&message.nested_type) {
        self::message(
            &inner,
            nested,
            comments,
            &[path, &[NESTED, at]].concat(),
            out,
        );
    }
    for (at, values) in (0..).zip(&message.enum_type) {
        let path = [path, &[NESTED_ENUM, at]].concat();
        enumeration(&inner, values, comments, &path, out);
    }
}

fn enumeration(
    scope: &str,
    values: &EnumDescriptorProto,
    comments: &Comments,
    path: &[i32],
    out: &mut String,
) {
    heading(scope, values.name(), "enum", &comments.long(path), out);
    out.push_str("\n| value | |\n|---|---|\n");
    for (at, value) in (0..).zip(&values.value) {
        let about = comments.at(&[path, &[FIELD, at]].concat());
        writeln!(
            out,
            "| `{}` = {} | {} |",
            value.name(),
            value.number(),
            cell(&about)
        )
        .unwrap();
    }
}

fn kind(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let entry = message.nested_type.iter().find(|nested| {
        nested
            .options
            .as_ref()
            .is_some_and(prost_types::MessageOptions::map_entry)
            && field.type_name().ends_with(&format!(".{}", nested.name()))
    });
    if let Some(entry) = entry {
        let (key, value) = (&entry.field[0], &entry.field[1]);
        return format!("map of {} to {}", scalar(key), scalar(value));
    }
    let mut text = scalar(field);
    if field.label() == Label::Repeated {
        text.push_str(" []");
    } else if field.proto3_optional() {
        text.push_str(" ?");
    }
    text
}

fn scalar(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => reference(field.type_name()),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn reference(name: &str) -> String {
    let name = name.trim_start_matches('.');
    let short = name.rsplit('.').next().unwrap();
    if name.starts_with("drover.") {
        format!("[{short}](#{name})")
    } else {
        format!("`{name}`")
    }
}
