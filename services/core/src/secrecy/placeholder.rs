//! Placeholders for content that must not be shown.

/// Text that placeholders are made of, so that they are recognizable.
const WORD: &str = "placeholder-";
/// Minimum granularity of placeholder lengths, because the exact length would reveal something about the content.
const STEP: usize = 16;
/// Maximum line length of a multi-line placeholder in bytes.
const LINE: usize = 48;

/// Returns a placeholder with about the length of the content and of the same class: digits, one word, a line, several
/// lines, a JSON value, a PEM block, or bytes. It reveals nothing else about the content, and is identical for all
/// contents of the same class and length.
#[must_use]
pub fn placeholder(content: &[u8]) -> Vec<u8> {
    let length = about(content.len());
    let Ok(text) = std::str::from_utf8(content) else {
        return vec![0xff; length];
    };
    let bare = text.trim();
    if bare.is_empty() {
        return text.to_owned().into_bytes();
    }
    let made = if bare.bytes().all(|byte| byte.is_ascii_digit()) {
        "1".repeat(length)
    } else if let Some(label) = pem_label(bare) {
        pem(label, length)
    } else if is_json(bare) {
        json(bare, length)
    } else if bare.contains('\n') {
        lines(length)
    } else if bare.contains(char::is_whitespace) {
        fill("placeholder ", length)
    } else {
        fill(WORD, length)
    };
    let end = if text.ends_with('\n') { "\n" } else { "" };
    format!("{made}{end}").into_bytes()
}

/// Returns the length of the placeholder for content of this length, rounded to steps that grow with it.
fn about(length: usize) -> usize {
    let step = (length.next_power_of_two() / 8).max(STEP);
    (length / step * step).max(STEP / 2)
}

fn fill(word: &str, length: usize) -> String {
    let text: String = word.chars().cycle().take(length).collect();
    // A trailing space would make it a different text for consumers that trim it.
    text.trim_end().to_owned()
}

fn lines(length: usize) -> String {
    let count = (length / LINE).max(2);
    vec![fill(WORD, length / count); count].join("\n")
}

/// Returns the label of a PEM block if it is a well-known one.
fn pem_label(text: &str) -> Option<&'static str> {
    const LABELS: [&str; 5] = [
        "CERTIFICATE",
        "PRIVATE KEY",
        "RSA PRIVATE KEY",
        "EC PRIVATE KEY",
        "OPENSSH PRIVATE KEY",
    ];
    let label = text.strip_prefix("-----BEGIN ")?.split("-----").next()?;
    LABELS.into_iter().find(|known| *known == label)
}

fn pem(label: &str, length: usize) -> String {
    let body = fill("PLACEHOLDER", length.clamp(STEP, 64 * LINE));
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----")
}

fn is_json(text: &str) -> bool {
    text.starts_with(['{', '[']) && serde_json::from_str::<serde_json::Value>(text).is_ok()
}

fn json(text: &str, length: usize) -> String {
    let word = fill(WORD, length);
    if text.starts_with('{') {
        format!("{{\"placeholder\":\"{word}\"}}")
    } else {
        format!("[\"{word}\"]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        String::from_utf8(placeholder(text.as_bytes())).unwrap()
    }

    #[test]
    fn a_placeholder_is_of_the_class_of_the_content_and_about_as_long() {
        for (text, fits) in [
            ("4711", (|it| it.parse::<u64>().is_ok()) as fn(&str) -> bool),
            ("Tr0ub4dor&3-and-some-more", |it| {
                !it.contains(char::is_whitespace)
            }),
            ("correct horse battery staple", |it| {
                it.contains(' ') && !it.contains('\n')
            }),
            ("one\ntwo\nthree\nfour\nfive\n", |it| {
                it.lines().count() > 1 && it.ends_with('\n')
            }),
            ("{\"password\": \"hush\"}", |it| {
                it.starts_with('{') && is_json(it)
            }),
            ("[1, 2, 3]", |it| it.starts_with('[') && is_json(it)),
            (
                "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----\n",
                |it| pem_label(it) == Some("PRIVATE KEY"),
            ),
        ] {
            let made = of(text);
            assert!(fits(&made), "{text:?}: {made:?}");
            assert_ne!(made, text);
            let (a, b) = (made.len(), text.len());
            assert!(a <= 2 * b + 64 && b <= 2 * a + 64, "{text:?}: {made:?}");
        }
        assert!(std::str::from_utf8(&placeholder(&[0, 159, 146, 150])).is_err());
        assert_eq!(of(""), "");
        assert!(placeholder(&[b'x'; 64 * 1024]).len() <= 64 * 1024);
    }

    #[test]
    fn contents_of_a_class_and_about_a_length_are_not_told_apart() {
        assert_eq!(of("hunter2-hunter22"), of("Tr0ub4dor&3-and-m0re"));
        assert_eq!(of("00000000"), of("99999999999"));
        assert_eq!(of("{\"a\": 1}"), of("{\"b\": [true]}"));
        assert_eq!(
            of("-----BEGIN UNHEARD OF WORDS-----\nx"),
            of("a quite different text\nof two lines......")
        );
    }
}
