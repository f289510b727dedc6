//! The proxies of this process, for jump hosts.

use std::collections::BTreeMap;

/// The variables of proxies, as curl reads them.
const NAMES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// `NAME=VALUE` of each variable in a line, in lower case. Empty if there is no proxy among them.
pub(super) fn lines(environment: impl Iterator<Item = (String, String)>) -> String {
    let mut found: BTreeMap<String, (bool, String)> = BTreeMap::new();
    for (name, value) in environment {
        let lower = name.to_ascii_lowercase();
        if !NAMES.contains(&lower.as_str()) || value.is_empty() || value.contains(char::is_control)
        {
            continue;
        }
        // As everywhere, lower case goes first.
        let first = name == lower;
        if first || found.get(&lower).is_none_or(|(first, _)| !first) {
            found.insert(lower, (first, value));
        }
    }
    if found.keys().all(|name| name == "no_proxy") {
        return String::new();
    }
    let lines = found
        .iter()
        .map(|(name, (_, value))| format!("{name}={value}\n"));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_those_of_curl_and_without_one_there_are_no_exceptions() {
        let read = |all: &[(&str, &str)]| {
            lines(
                all.iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
            )
        };
        assert_eq!(read(&[("NO_PROXY", "a"), ("HOME", "/")]), "");
        let all = [
            ("http_proxy", "http://low"),
            ("HTTP_PROXY", "http://high"),
            ("HTTPS_PROXY", "http://tls"),
            ("all_proxy", "x\ny"),
        ];
        assert_eq!(
            read(&all),
            "http_proxy=http://low\nhttps_proxy=http://tls\n"
        );
    }
}
