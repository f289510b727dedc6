//! Parses the output of a template.

use drover_core::{Error, Reason, Result};
use drover_templates::Rendered;
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use super::{Object, names::is_path_segment};

/// The objects in the output of a template, in the order of their documents. Objects without a namespace get
/// `namespace`.
///
/// # Errors
/// `Precondition` with the number of the document and the line, without any content.
pub(crate) fn documents(rendered: &Rendered, namespace: &str) -> Result<Vec<Object>> {
    let starts = starts(rendered.expose());
    let number = |line: u64| starts.partition_point(|start| *start <= line).max(1);
    let values = rendered.parse_all::<Spanned<Value>>().map_err(|error| {
        let line = error.metadata().get("rendered_line");
        match line.and_then(|line| line.parse().ok()) {
            None | Some(0) => error,
            Some(line) => {
                let document = number(line);
                error
                    .context(format_args!("document {document}"))
                    .with_metadata("document", document)
            }
        }
    })?;
    let mut objects = Vec::with_capacity(values.len());
    for value in values {
        let document = Document {
            number: number(value.referenced.line()),
            namespace,
        };
        document.read(value.value, &mut objects)?;
    }
    if objects.is_empty() {
        return Err(Error::new(
            Reason::Precondition,
            "the template renders to no object at all",
        ));
    }
    twice(&objects)?;
    Ok(objects)
}

struct Document<'a> {
    number: usize,
    namespace: &'a str,
}

impl Document<'_> {
    fn read(&self, value: Value, into: &mut Vec<Object>) -> Result<()> {
        let mut body = match value {
            Value::Null => return Ok(()),
            Value::Object(body) => body,
            _ => return Err(self.wrong("is not an object: expected apiVersion, kind and metadata")),
        };
        let api_version = self.text(&body, "apiVersion")?;
        let kind = self.text(&body, "kind")?;
        if kind == "List" && api_version == "v1" {
            let Some(Value::Array(items)) = body.remove("items") else {
                return Err(self.wrong("is a List without items"));
            };
            return items.into_iter().try_for_each(|item| self.read(item, into));
        }
        let (name, namespace) = self.metadata(&body, &kind)?;
        into.push(Object {
            document: Some(self.number),
            api_version,
            kind,
            namespace,
            name,
            body,
        });
        Ok(())
    }

    fn metadata(&self, body: &Map<String, Value>, kind: &str) -> Result<(String, String)> {
        let Some(Value::Object(metadata)) = body.get("metadata") else {
            return Err(self.wrong(format_args!("({kind}) has no metadata")));
        };
        let text = |key: &str| match metadata.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.wrong(format_args!("({kind}) metadata.{key} is not text"))),
        };
        if text("generateName")?.is_some() {
            return Err(self.wrong(format_args!(
                "({kind}) has metadata.generateName; a name is required, so that a repeat finds it again"
            )));
        }
        let Some(name) = text("name")? else {
            return Err(self.wrong(format_args!("({kind}) has no metadata.name")));
        };
        if !is_path_segment(&name) {
            return Err(self.wrong(format_args!("({kind}) metadata.name is not a valid name")));
        }
        let namespace = text("namespace")?.filter(|it| !it.is_empty());
        let namespace = namespace.unwrap_or_else(|| self.namespace.to_owned());
        if !is_path_segment(&namespace) {
            return Err(self.wrong(format_args!(
                "({kind}) metadata.namespace is not a valid name"
            )));
        }
        Ok((name, namespace))
    }

    fn text(&self, body: &Map<String, Value>, key: &str) -> Result<String> {
        match body.get(key) {
            Some(Value::String(text)) if fits(text) => Ok(text.clone()),
            Some(_) => Err(self.wrong(format_args!("{key} is not valid"))),
            None => Err(self.wrong(format_args!("has no {key}"))),
        }
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::new(
            Reason::Precondition,
            format!("document {} of the template {what}", self.number),
        )
        .with_metadata("document", self.number)
    }
}

/// Whether a text may be an `apiVersion` or a `kind`, which become parts of paths.
fn fits(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text.matches('/').count() <= 1
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'/'))
}

/// Refuses two objects of the same kind and name.
pub(crate) fn twice(objects: &[Object]) -> Result<()> {
    let mut seen = std::collections::HashMap::new();
    for object in objects {
        let key = (
            object.group(),
            &object.kind,
            &object.namespace,
            &object.name,
        );
        if let Some(before) = seen.insert(key, object.document) {
            let before = before.unwrap_or_default();
            return Err(object.wrong(format_args!("is there already, in document {before}")));
        }
    }
    Ok(())
}

/// The lines at which the documents of a YAML text start, counted from 1.
fn starts(text: &str) -> Vec<u64> {
    let mut starts = vec![1];
    let mut empty = true;
    for (line, content) in (1..).zip(text.lines()) {
        // Never part of a scalar: YAML forbids it even in block scalars.
        let marker = content
            .strip_prefix("---")
            .filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        match marker {
            // Only comments and directives may precede the first marker.
            Some(_) if empty && starts.len() == 1 => starts[0] = line,
            Some(_) => starts.push(line),
            None => {}
        }
        let comment = content.is_empty() || content.starts_with(['#', '%']);
        empty &= marker.is_none() && (comment || content.trim().is_empty());
    }
    starts
}

#[cfg(test)]
pub(crate) mod tests {
    use drover_templates::{Context, render_text};

    use super::*;

    pub(crate) fn rendered(text: &str) -> Rendered {
        let text = format!("{{% raw %}}{text}{{% endraw %}}");
        render_text("test.yaml", &text, &Context::default().into()).unwrap()
    }

    pub(crate) fn objects(text: &str) -> Vec<Object> {
        documents(&rendered(text), "prod").unwrap()
    }

    fn refused(text: &str) -> String {
        let error = documents(&rendered(text), "prod").unwrap_err();
        assert_eq!(error.reason(), Reason::Precondition);
        assert!(!error.message().contains("hunter2"), "{error:?}");
        error.message().to_owned()
    }

    const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}}";

    #[test]
    fn any_number_of_documents_and_kinds_is_read_with_their_numbers() {
        let text = format!(
            "# comment\n---\n{POD}\n---\n---\napiVersion: example.com/v1beta1\nkind: Store\nmetadata: {{name: b, namespace: other}}\nspec: {{count: 2, text: \"2\", flag: true}}\n"
        );
        let all = objects(&text);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].document, all[1].document), (Some(1), Some(3)));
        assert_eq!((all[0].group(), all[1].group()), ("", "example.com"));
        assert_eq!(
            (all[0].namespace.as_str(), all[1].namespace.as_str()),
            ("prod", "other")
        );
        assert_eq!(all[1].body["spec"]["count"], 2);
        assert_eq!(all[1].body["spec"]["text"], "2");
        assert_eq!(all[1].body["spec"]["flag"], true);
    }

    #[test]
    fn a_list_is_what_it_holds() {
        let all = objects(&format!("apiVersion: v1\nkind: List\nitems: [{POD}]"));
        assert_eq!(all[0].label(), "Pod a");
    }

    #[test]
    fn bad_yaml_is_named_by_document_and_line_and_not_repeated() {
        let message = refused(&format!("{POD}\n---\na: 1\nb: [hunter2\n---\n{POD}"));
        assert!(message.contains("document 2"), "{message}");
        assert!(message.contains("line "), "{message}");
        let message = refused(&format!("{POD}\n---\n{POD}\n---\nb: 1\nb: hunter2"));
        assert!(message.contains("document 3"), "{message}");
        assert!(message.contains("a key twice"), "{message}");
    }

    #[test]
    fn what_is_no_object_is_named_by_its_number() {
        for (document, part) in [
            ("hunter2", "is not an object"),
            ("[hunter2]", "is not an object"),
            ("{kind: Pod, metadata: {name: a}}", "no apiVersion"),
            ("{apiVersion: v1, metadata: {name: a}}", "no kind"),
            (
                "{apiVersion: v1, kind: 7, metadata: {name: a}}",
                "kind is not valid",
            ),
            ("{apiVersion: a/b/c, kind: Pod}", "apiVersion is not valid"),
            ("{apiVersion: v1, kind: Pod}", "no metadata"),
            (
                "{apiVersion: v1, kind: Pod, metadata: {}}",
                "no metadata.name",
            ),
            (
                "{apiVersion: v1, kind: Pod, metadata: {name: 7}}",
                "metadata.name is not text",
            ),
            (
                "{apiVersion: v1, kind: Pod, metadata: {name: ../b}}",
                "not a valid name",
            ),
            (
                "{apiVersion: v1, kind: Pod, metadata: {generateName: a-}}",
                "generateName",
            ),
            (
                "{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: a/b}}",
                "metadata.namespace",
            ),
            ("{apiVersion: v1, kind: List}", "without items"),
        ] {
            let message = refused(&format!("{POD}\n---\n{document}"));
            assert!(message.contains("document 2 of the template"), "{message}");
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn nothing_at_all_is_refused() {
        assert!(refused("").contains("no object at all"));
        assert!(refused("# nothing\n---\n").contains("no object at all"));
    }

    #[test]
    fn one_name_twice_is_refused() {
        let message = refused(&format!("{POD}\n---\n{POD}"));
        assert!(message.contains("document 2"), "{message}");
        assert!(message.contains("already, in document 1"), "{message}");
    }

    #[test]
    fn a_marker_inside_a_text_starts_a_document_only_at_the_first_column() {
        assert_eq!(starts("a: |\n  ---\n  b\n---\nc"), [1, 4]);
        assert_eq!(starts("\n# c\n%YAML 1.2\n---\na\n--- \nb\n---c"), [4, 6]);
        assert_eq!(starts(""), [1]);
    }
}
