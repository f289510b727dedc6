//! Values with a notation of their own: durations, free-form values, base64.

use prost_types::{Duration, ListValue, Value as Free, value::Kind};

/// Largest integer in a free-form value: beyond it a double loses precision.
pub(crate) const MAX_SAFE_INTEGER: i128 = 1 << 53;

/// Parses `30s`, `1h30m`, `1.5s`, `500ms`, `30d`.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut nanos: u128 = 0;
    let mut rest = text;
    let mut smallest = u128::MAX;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit_end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let scale: u128 = match unit {
            "d" => 86_400_000_000_000,
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            _ => return None,
        };
        // Each unit at most once, from large to small.
        if scale >= smallest {
            return None;
        }
        smallest = scale;
        nanos = nanos.checked_add(scaled(number, scale)?)?;
        rest = next;
    }
    let seconds = i64::try_from(nanos / 1_000_000_000)
        .ok()
        .filter(|seconds| *seconds <= MAX_SECONDS)?;
    Some(Duration {
        seconds,
        nanos: i32::try_from(nanos % 1_000_000_000).ok()?,
    })
}

/// Limit of `google.protobuf.Duration`: about 10,000 years.
pub(crate) const MAX_SECONDS: i64 = 315_576_000_000;

fn scaled(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 9 {
        return None;
    }
    let whole = whole
        .parse::<u64>()
        .ok()
        .map(u128::from)?
        .checked_mul(scale)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let power = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(fraction.parse::<u64>().ok()?).checked_mul(scale)?;
    (part % power == 0).then(|| whole + part / power)
}

/// Formats a duration so that [`parse_duration`] reads the same one.
pub(crate) fn format_duration(duration: &Duration) -> String {
    let (seconds, nanos) = (duration.seconds.max(0), duration.nanos.max(0));
    if nanos != 0 && nanos % 1_000_000 == 0 && seconds == 0 {
        return format!("{}ms", nanos / 1_000_000);
    }
    let mut out = String::new();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        out.push_str(&format!("{hours}h"));
    }
    if minutes > 0 {
        out.push_str(&format!("{minutes}m"));
    }
    if nanos > 0 {
        let fraction = format!("{nanos:09}");
        out.push_str(&format!("{rest}.{}s", fraction.trim_end_matches('0')));
    } else if rest > 0 || out.is_empty() {
        out.push_str(&format!("{rest}s"));
    }
    out
}

/// Whether a text is a quantity (`50Gi`, `1.5G`, `1024`).
pub(crate) fn is_quantity(text: &str) -> bool {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let well_formed = number.starts_with(|c: char| c.is_ascii_digit())
        && number.ends_with(|c: char| c.is_ascii_digit())
        && number.matches('.').count() <= 1;
    let units = [
        "", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    well_formed && units.contains(&unit)
}

pub(crate) fn free(kind: Kind) -> Free {
    Free { kind: Some(kind) }
}

pub(crate) fn free_list(values: Vec<Free>) -> Free {
    free(Kind::ListValue(ListValue { values }))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as padded base64.
pub(crate) fn to_base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().enumerate().fold(0u32, |group, (i, byte)| {
            group | u32::from(*byte) << (16 - 8 * i)
        });
        for position in 0..4 {
            if position <= chunk.len() {
                out.push(char::from(
                    ALPHABET[(group >> (18 - 6 * position) & 63) as usize],
                ));
            } else {
                out.push('=');
            }
        }
    }
    out
}

/// Decodes base64; whitespace, as in folded texts, is skipped.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let clean: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let data: &[u8] = clean
        .strip_suffix(b"==")
        .or_else(|| clean.strip_suffix(b"="))
        .unwrap_or(&clean);
    let padded = clean.len() != data.len();
    if (padded && !clean.len().is_multiple_of(4)) || data.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(data.len() * 3 / 4);
    for chunk in data.chunks(4) {
        let mut group = 0u32;
        for (i, byte) in chunk.iter().enumerate() {
            let value = ALPHABET.iter().position(|letter| letter == byte)?;
            group |= u32::try_from(value).ok()? << (18 - 6 * i);
        }
        out.extend_from_slice(&group.to_be_bytes()[1..chunk.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_written_in_the_usual_units() {
        for (text, seconds, nanos) in [
            ("30s", 30, 0),
            ("5m", 300, 0),
            ("1h30m", 5400, 0),
            ("500ms", 0, 500_000_000),
            ("1.5s", 1, 500_000_000),
            ("0s", 0, 0),
        ] {
            let duration = Duration { seconds, nanos };
            assert_eq!(parse_duration(text), Some(duration), "{text}");
            assert_eq!(format_duration(&duration), text);
        }
        assert_eq!(parse_duration("30d").map(|d| d.seconds), Some(2_592_000));
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "30",
            "s",
            "30x",
            "1m1h",
            "5s5s",
            "-1s",
            "1..5s",
            "1.s",
            ".5s",
            "99999999999999999999h",
            "é",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn quantities_have_known_units() {
        assert!(["50Gi", "1.5G", "1024", "0"].into_iter().all(is_quantity));
        assert!(
            !["", "Gi", "50GB", "1.", "-1", "1.2.3", "50 Gi"]
                .into_iter()
                .any(is_quantity)
        );
    }

    proptest! {
        #[test]
        fn a_duration_survives_being_written(seconds in 0i64..MAX_SECONDS, nanos in 0i32..1_000_000_000) {
            let duration = Duration { seconds, nanos };
            prop_assert_eq!(parse_duration(&format_duration(&duration)), Some(duration));
        }

        #[test]
        fn bytes_survive_base64(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(from_base64(&to_base64(&bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_read_without_panic(text in "\\PC*") {
            let _ = (parse_duration(&text), is_quantity(&text), from_base64(&text));
        }
    }
}
