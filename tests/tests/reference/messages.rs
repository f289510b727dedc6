//! Looks up the messages quoted by the troubleshooting page in the sources.

use crate::sources;

/// Minimum length of a fixed part: shorter ones are found anywhere.
const LEAST: usize = 4;

/// Returns messages whose fixed parts are not all found in one source. A message is text in backquotes in the first
/// column of a table; `…` stands for the variable parts.
pub(crate) fn missing() -> Vec<String> {
    let page = sources::text("docs/troubleshooting.md");
    let programs: Vec<String> = sources::programs()
        .into_iter()
        .map(|(_, text)| flat(&text))
        .collect();
    let quoted: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(message, _)| message)
        .collect();
    assert!(quoted.len() > 40, "only {} messages found", quoted.len());
    quoted
        .into_iter()
        .filter(|message| {
            let parts: Vec<&str> = message
                .split('…')
                .map(str::trim)
                .filter(|part| part.len() >= LEAST)
                .collect();
            assert!(!parts.is_empty(), "{message} has no fixed part");
            !programs
                .iter()
                .any(|text| parts.iter().all(|part| text.contains(part)))
        })
        .map(str::to_owned)
        .collect()
}

/// Normalizes string literals: joins continued lines, and unescapes quotes and bars.
fn flat(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        rest = match after.strip_prefix('\n') {
            Some(next) => next.trim_start(),
            None => after,
        };
    }
    out.push_str(rest);
    out
}
