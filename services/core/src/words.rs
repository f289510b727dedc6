//! Numbers and reasons in sentences.

use std::fmt::Display;

/// A number with its noun: `1 node`, `2 nodes`.
#[must_use]
pub fn count<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let plural = if number == N::from(1_u8) { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The verb after a number: `1 node is`, `2 nodes are`.
#[must_use]
pub fn are<N: PartialEq + From<u8>>(number: N) -> &'static str {
    if number == N::from(1_u8) { "is" } else { "are" }
}

/// A reason in one word, and the message that follows it. A failure without a reason of its own says no more than its
/// message: `died: exited with code 1`.
#[must_use]
pub fn because(reason: &str, message: &str) -> String {
    match (reason, message) {
        (reason, "") => reason.to_owned(),
        ("" | "PlatformFailed", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_none_is_plural() {
        assert_eq!(count(1_u32, "node"), "1 node");
        assert_eq!(count(0_usize, "node"), "0 nodes");
        assert_eq!(count(2_u64, "node"), "2 nodes");
        assert_eq!((are(1_u32), are(0_usize), are(2_u64)), ("is", "are", "are"));
    }

    #[test]
    fn a_reason_that_says_nothing_more_is_left_out_before_a_message() {
        for (reason, message, words) in [
            ("ProbeFailed", "tcp: refused", "ProbeFailed: tcp: refused"),
            (
                "PlatformFailed",
                "died: exited with code 1",
                "died: exited with code 1",
            ),
            ("PlatformFailed", "", "PlatformFailed"),
            ("", "is on its way", "is on its way"),
            ("", "", ""),
        ] {
            assert_eq!(because(reason, message), words);
        }
    }
}
