//! Removes the values that messages of the API server repeat.

use kube::core::Status;

/// Text before a value of the request.
const VALUE: &str = "Invalid value: ";
/// Texts before a fragment of the request body.
const BODY: &[&str] = &[", error found in #", "|...", "bigger context "];

/// Removes values from all words of a failure. Not to be done twice: of what is left it would take more.
pub(crate) fn status(mut status: Status) -> Status {
    status.message = words(&status.message);
    for cause in status.details.iter_mut().flat_map(|it| &mut it.causes) {
        cause.message = words(&cause.message);
    }
    status
}

/// Removes values: `Invalid value: "hunter2": must be …` becomes `Invalid value: must be …`.
fn words(text: &str) -> String {
    let end = BODY.iter().filter_map(|mark| text.find(mark)).min();
    let mut rest = &text[..end.unwrap_or(text.len())];
    let mut out = String::with_capacity(rest.len());
    while let Some(at) = rest.find(VALUE) {
        let (before, after) = rest.split_at(at + VALUE.len());
        out.push_str(before);
        rest = after_value(after);
    }
    out.push_str(rest);
    out
}

/// The text after a quoted string, a number or a dumped structure, and its colon.
fn after_value(text: &str) -> &str {
    let rest = match text.as_bytes().first() {
        Some(b'"') => after_quotes(text),
        Some(byte) if byte.is_ascii_digit() || *byte == b'-' => {
            // Numbers and booleans are not secret, but repeating them helps nobody.
            text.split_once(':').map_or("", |(_, rest)| rest)
        }
        // A Go struct dump ends with its last brace.
        _ => match text.rfind('}') {
            Some(end) => &text[end + 1..],
            None => text.split_once(": ").map_or("", |(_, rest)| rest),
        },
    };
    rest.trim_start_matches([':', ' '])
}

fn after_quotes(text: &str) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn values_are_left_out_and_reasons_stay() {
        let cases = [
            (
                r#"Pod "a" is invalid: spec.x: Invalid value: "hun\"ter2": must be short"#,
                r#"Pod "a" is invalid: spec.x: Invalid value: must be short"#,
            ),
            (
                r#"[a: Invalid value: "x": no, b: Invalid value: 70000: must be less, c: Required value]"#,
                "[a: Invalid value: no, b: Invalid value: must be less, c: Required value]",
            ),
            (
                r#"spec: Invalid value: core.PodSpec{Volumes:[]core.Volume(nil), X:"secret"}: may not change"#,
                "spec: Invalid value: may not change",
            ),
            (
                r#"Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 4, error found in #10 byte of ...|":"hunter2"}|..., bigger context ...|x|..."#,
                r#"Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 4"#,
            ),
            (r#"a: Invalid value: "never closed"#, "a: Invalid value: "),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), expected);
        }
    }
}
