//! Secrets: what is wrong with one whatever is stored. No message has any of its content.

use crate::{error::Violation, name};

/// Maximum size of a secret in bytes, including the names of its keys.
pub const MAX_SECRET: usize = 256 * 1024;
/// Maximum number of keys of a secret, so that the data stored with each key fits into one transaction, too.
const MAX_KEYS: usize = 512;
/// Number of hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// What is given for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given<'a> {
    /// Neither content nor a digest, which is wrong.
    Nothing,
    /// Content of so many bytes.
    Content(usize),
    /// The digest of the stored content, which stays.
    Digest(&'a str),
}

/// Validates a secret: its name, its keys with what is given for each, and its size. The result is sorted.
#[must_use]
pub fn check<'a>(
    name: &str,
    data: impl IntoIterator<Item = (&'a str, Given<'a>)>,
) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let mut refuse = |field: String, description: String| {
        wrong.push(Violation { field, description });
    };
    if let Err(why) = name::check_secret_name(name) {
        refuse("name".to_owned(), why);
    }
    let (mut keys, mut size) = (0, 0);
    for (key, given) in data {
        let field = || match name::shown_secret_key(key) {
            Some(key) => format!("data.{key}"),
            None => "data".to_owned(),
        };
        if let Err(why) = name::check_secret_key(key) {
            refuse(field(), why);
        }
        keys += 1;
        size += key.len();
        match given {
            Given::Nothing => {
                let why = "is empty; expected text, bytes or a digest";
                refuse(field(), why.to_owned());
            }
            Given::Content(bytes) => size += bytes,
            Given::Digest(digest) if !is_digest(digest) => {
                let why = "expected a digest as reads show it, or 64 hexadecimal digits";
                refuse(field(), why.to_owned());
            }
            Given::Digest(_) => {}
        }
    }
    if keys == 0 {
        let why = "is empty; expected at least one key";
        refuse("data".to_owned(), why.to_owned());
    }
    if keys > MAX_KEYS {
        let why = format!("has {keys} keys; at most {MAX_KEYS} are possible");
        refuse("data".to_owned(), why);
    }
    if size > MAX_SECRET {
        refuse("data".to_owned(), too_large(size));
    }
    wrong.sort();
    wrong
}

/// What is said of a secret of more than [`MAX_SECRET`] bytes.
#[must_use]
pub fn too_large(size: usize) -> String {
    format!("has {size} bytes; at most {MAX_SECRET} are possible")
}

/// A SHA-256, or the keyed digest (`k1-`) that reads show.
fn is_digest(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let digits = text.strip_prefix("k1-").unwrap_or(&text);
    digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: &str, data: &[(&str, Given<'_>)]) -> Vec<String> {
        let wrong = check(name, data.iter().copied()).into_iter();
        wrong.map(|one| one.field).collect()
    }

    #[test]
    fn everything_that_is_wrong_with_a_secret_is_said_at_once() {
        let content = Given::Content(1);
        let (plain, keyed) = ("aB".repeat(32), format!("K1-{}", "0f".repeat(32)));
        let good = [
            ("tls.crt", content),
            ("a", Given::Digest(&plain)),
            ("b", Given::Digest(&keyed)),
        ];
        assert_eq!(fields("join", &good), [""; 0]);
        let bad = [
            ("k k/", content),
            ("none", Given::Nothing),
            ("short", Given::Digest("k1-0f")),
        ];
        let wrong = ["data.k k/", "data.none", "data.short", "name"];
        assert_eq!(fields("a b", &bad), wrong);
        assert_eq!(fields("join", &[]), ["data"]);
        let many: Vec<String> = (0..=MAX_KEYS).map(|key| key.to_string()).collect();
        let many: Vec<_> = many.iter().map(|key| (key.as_str(), content)).collect();
        assert_eq!(fields("join", &many), ["data"]);
        let large = [("a", Given::Content(MAX_SECRET))];
        assert_eq!(fields("join", &large), ["data"], "its key counts");
        let full = [("a", Given::Content(MAX_SECRET - 1))];
        assert_eq!(fields("join", &full), [""; 0]);
    }

    #[test]
    fn what_may_be_content_in_the_place_of_a_key_is_not_repeated() {
        let wrong = check("hunter2 and more", [("hunter2/hunter2", Given::Content(1))]);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(!format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
    }
}
