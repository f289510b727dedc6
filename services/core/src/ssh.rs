//! Public keys of ssh.

use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Validates a line of an `authorized_keys` file: options if there are any, type, key, comment.
///
/// # Errors
///
/// A description of the problem, phrased to follow the field name. It does not repeat the line, which may be a private
/// key in the wrong field.
pub fn check_authorized_key(line: &str) -> Result<(), String> {
    let (kind, key) = parts(line)?;
    let broken = || "has the form of a public key, but it does not decode".to_owned();
    let blob = STANDARD.decode(key).map_err(|_| broken())?;
    let (name, rest) = string(&blob).ok_or_else(broken)?;
    if name != kind.as_bytes() {
        return Err("has a key of another type than it says".to_owned());
    }
    if decodes(kind, rest) {
        Ok(())
    } else {
        Err(broken())
    }
}

/// Whether a line has the form of a key, though there may be none in it: an example, or one that was cut.
#[must_use]
pub fn has_form(line: &str) -> bool {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    // Every key begins with the length of its type.
    parts(line).is_ok_and(|(_, key)| key.starts_with("AAAA") && key.chars().all(is_base64))
}

/// Type and key in a line.
fn parts(line: &str) -> Result<(&str, &str), String> {
    if line.chars().any(char::is_control) {
        return Err("must be one line without control characters".to_owned());
    }
    let words = words(line).ok_or("has a quotation mark that is not closed")?;
    match words.as_slice() {
        [kind, key, ..] if is_kind(kind) => Ok((kind, key)),
        [_, kind, key, ..] if is_kind(kind) => Ok((kind, key)),
        _ => Err("is not a line of authorized_keys (ssh-ed25519 AAAA… me@example.org)".to_owned()),
    }
}

/// Whether it is the type of a key or certificate.
fn is_kind(word: &str) -> bool {
    ["ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-"]
        .iter()
        .any(|prefix| word.starts_with(prefix))
}

/// The words of a line. Spaces within quotation marks, which options may have, do not separate. `None` if a quotation
/// mark is left open.
fn words(line: &str) -> Option<Vec<&str>> {
    let mut words = Vec::new();
    let (mut start, mut quoted, mut escaped) = (None, false, false);
    for (at, c) in line.char_indices() {
        if c.is_whitespace() && !quoted {
            words.extend(start.take().map(|start| &line[start..at]));
        } else {
            start.get_or_insert(at);
        }
        // Quotation marks in a comment mean nothing.
        if c == '"' && !escaped && words.len() < 2 {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
    }
    words.extend(start.map(|start| &line[start..]));
    (!quoted).then_some(words)
}

/// The string that comes first, and the rest.
fn string(blob: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = blob.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_be_bytes(*length) as usize)
}

/// Whether the content of a key is as long as its type requires. Types that are not known here only need some.
fn decodes(kind: &str, content: &[u8]) -> bool {
    let count = match kind {
        "ssh-ed25519" => 1,
        "ssh-rsa"
        | "ecdsa-sha2-nistp256"
        | "ecdsa-sha2-nistp384"
        | "ecdsa-sha2-nistp521"
        | "sk-ssh-ed25519@openssh.com" => 2,
        "sk-ecdsa-sha2-nistp256@openssh.com" => 3,
        "ssh-dss" => 4,
        _ => return string(content).is_some(),
    };
    let (mut rest, mut parts) = (content, Vec::new());
    while let Some((part, after)) = string(rest) {
        parts.push(part);
        rest = after;
    }
    let whole = rest.is_empty() && parts.len() == count && !parts.iter().any(|it| it.is_empty());
    whole && (!kind.contains("ed25519") || parts[0].len() == 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED25519: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGVtdWxhdGVkZW11bGF0ZWRlbXVsYXRlZGVtdWxhdGVk";

    fn key(kind: &str, parts: &[&[u8]]) -> String {
        let mut blob = Vec::new();
        for part in [kind.as_bytes()].iter().chain(parts) {
            blob.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
            blob.extend(*part);
        }
        format!("{kind} {}", STANDARD.encode(blob))
    }

    #[test]
    fn keys_of_every_type_are_accepted_with_options_and_comments() {
        for line in [
            ED25519.to_owned(),
            format!("{ED25519} me@example.org"),
            format!("{ED25519}   it's my \"key"),
            format!("restrict,command=\"echo \\\"a b\\\"\" {ED25519} me"),
            format!("from=\"10.0.0.0/8, 192.0.2.1\" {ED25519}"),
            key("ssh-rsa", &[&[1, 0, 1], &[7; 257]]),
            key("ecdsa-sha2-nistp256", &[b"nistp256", &[4; 65]]),
            key("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"]),
            key("ssh-ed25519-cert-v01@openssh.com", &[&[1; 32], &[2; 32]]),
        ] {
            assert_eq!(check_authorized_key(&line), Ok(()), "{line}");
        }
    }

    #[test]
    fn a_key_that_does_not_decode_still_has_the_form_of_one() {
        let example = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExampleExample";
        for line in [ED25519, example, "ssh-rsa AAAA"] {
            assert!(has_form(line), "{line}");
        }
        for line in ["", "rsa....", "ssh-rsa", "ssh-rsa !!!!", "ssh-rsa AAAA!"] {
            assert!(!has_form(line), "{line}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_repeated() {
        for line in [
            String::new(),
            "# a comment".to_owned(),
            "rsa....".to_owned(),
            "ssh-rsa".to_owned(),
            "ssh-rsa AAAA".to_owned(),
            "ssh-rsa !!!!".to_owned(),
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExampleExample key"
                .to_owned(),
            ED25519.replace("ssh-ed25519", "ssh-rsa"),
            format!("{ED25519}\n{ED25519}"),
            format!("command=\"sh {ED25519}"),
            key("ssh-ed25519", &[&[1; 31]]),
            key("ssh-ed25519", &[&[1; 32], &[2; 32]]),
            key("ssh-rsa", &[&[1, 0, 1]]),
            "-----BEGIN OPENSSH PRIVATE KEY-----".to_owned(),
        ] {
            let why = check_authorized_key(&line).expect_err(&line);
            let words = line.split_whitespace().filter(|word| word.len() > 8);
            for word in words.filter(|word| !word.starts_with("ssh-")) {
                assert!(!why.contains(word), "{line}: {why}");
            }
        }
    }
}
