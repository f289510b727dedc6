//! Validation of labels and names.

use std::collections::BTreeMap;

use serde_json::Value;

use super::json::Problem;

/// Maximum number of labels of a resource.
const MAX_LABELS: usize = 64;
/// Maximum length of a key, value or name.
const MAX_LENGTH: usize = 63;

/// Reads and validates the labels of a body.
pub(super) fn read(
    labels: Option<&Value>,
    field: &str,
) -> Result<BTreeMap<String, String>, Problem> {
    let mut read = BTreeMap::new();
    let Some(Value::Object(labels)) = labels else {
        return Ok(read);
    };
    for (key, value) in labels {
        let value = value.as_str().unwrap_or_default();
        let allowed = |char: char| {
            char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-' || char == '_'
        };
        let starts = key.starts_with(|char: char| char.is_ascii_lowercase());
        if !starts || key.len() > MAX_LENGTH || !key.chars().all(allowed) {
            return Err(Problem::field(
                field,
                "",
                &format!("Label key '{key}' violates format constraints."),
            ));
        }
        if value.len() > MAX_LENGTH || !value.chars().all(allowed) {
            return Err(Problem::field(
                field,
                "",
                &format!("Label value '{value}' violates format constraints."),
            ));
        }
        read.insert(key.clone(), value.to_owned());
    }
    if read.len() > MAX_LABELS {
        return Err(Problem::field(
            field,
            "",
            &format!("The number of labels must be at most {MAX_LABELS}."),
        ));
    }
    Ok(read)
}

/// Whether this is a valid instance name.
pub(super) fn is_name(name: &str) -> bool {
    let allowed = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-';
    name.starts_with(|char: char| char.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.len() <= MAX_LENGTH
        && name.chars().all(allowed)
}
