//! Content that a manifest refers to: files beside it, and keys of secrets.

use std::{fs::File, io::Read, path::Path};

use prost_reflect::{DynamicMessage, Kind, ReflectMessage, Value as Dynamic};

use super::{decode::Decoder, path::join, tree::Node};

/// Maximum size of a file that a manifest names, which is the maximum size of a spec.
const MAX_INCLUDED_BYTES: u64 = 512 * 1024;

impl Decoder<'_> {
    pub(super) fn user_data_from(&mut self, message: &mut DynamicMessage, node: &Node, path: &str) {
        let known = [
            ("file", "a path relative to the manifest".to_owned()),
            ("secretKeyRef", "a map".to_owned()),
        ];
        let entries = self.map(
            node,
            path,
            "a map {file: PATH} or {secretKeyRef: {name: NAME, key: KEY}}",
        );
        if entries.len() != 1 {
            if node.map().is_some() {
                let message = match entries {
                    [] => "no source",
                    _ => "more than one source",
                };
                self.error(node.span, path, message, "expected file or secretKeyRef");
            }
            return;
        }
        for entry in entries {
            match entry.key.as_str() {
                "file" => {
                    let Some(content) = self.file(node, path) else {
                        continue;
                    };
                    let (field, value) = match String::from_utf8(content) {
                        Ok(text) => ("text", Dynamic::String(text)),
                        Err(error) => ("binary", Dynamic::Bytes(error.into_bytes().into())),
                    };
                    message.set_field_by_name(field, value);
                }
                "secretKeyRef" => {
                    if let Some(field) = message.descriptor().get_field_by_name("secret_key")
                        && let Kind::Message(descriptor) = field.kind()
                    {
                        let value =
                            self.message(&descriptor, &entry.value, &join(path, &entry.key));
                        message.set_field(&field, Dynamic::Message(value));
                    }
                }
                _ => self.unknown(entry, path, &known),
            }
        }
    }

    /// The content of the file in `{file: PATH}`.
    pub(super) fn file(&mut self, node: &Node, path: &str) -> Option<Vec<u8>> {
        let entries = self.map(node, path, "a map {file: PATH}");
        for entry in entries.iter().filter(|entry| entry.key != "file") {
            self.unknown(
                entry,
                path,
                &[("file", "a path relative to the manifest".into())],
            );
        }
        let Some(file) = entries.iter().find(|entry| entry.key == "file") else {
            if entries.is_empty() && node.map().is_some() {
                let expected = "expected a path relative to the manifest";
                self.error(node.span, path, "`file` is missing", expected);
            }
            return None;
        };
        let path = join(path, "file");
        let name = self.text(&file.value, &path, "a path relative to the manifest")?;
        match read_limited(&self.base.join(&name), MAX_INCLUDED_BYTES) {
            Ok(content) => Some(content),
            Err(error) => {
                self.error(
                    file.value.span,
                    &path,
                    format!("cannot read {name}: {error}"),
                    "",
                );
                None
            }
        }
    }
}

/// Reads a file of at most `limit` bytes.
fn read_limited(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(std::io::Error::other("it is a directory"));
    }
    read_stream(file, limit)
}

/// Reads a stream of at most `limit` bytes.
pub(crate) fn read_stream(stream: impl Read, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    stream.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        return Err(std::io::Error::other(format!(
            "it is larger than {} KiB",
            limit / 1024
        )));
    }
    Ok(content)
}
