//! Human-readable durations: `500ms`, `30s`, `5m`, `1h30m`. For `#[serde(with = ...)]` and clap.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Units in milliseconds, longest first.
const UNITS: &[(&str, u64)] = &[
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Parses a duration. The error says what is expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "{text:?} is not a duration; expected a whole number and a unit: 500ms, 30s, 5m, 1h30m"
        )
    };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0_u64;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let (_, scale) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(wrong)?;
        // Each unit at most once, in descending order: `5m5m` is most likely a typo.
        if *scale >= last {
            return Err(wrong());
        }
        let part = number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(*scale))
            .ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        last = *scale;
        rest = tail;
    }
    if last == u64::MAX {
        Err(wrong())
    } else {
        Ok(Duration::from_millis(total))
    }
}

/// Formats a duration so that [`parse`] can read it. Fractions of a millisecond are dropped.
#[must_use]
pub fn format(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, scale) in UNITS {
        if rest >= *scale {
            text.push_str(&format!("{}{name}", rest / scale));
            rest %= scale;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

/// Serializes a duration for serde.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Deserializes a duration for serde.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// The same for optional durations.
pub mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    /// Serializes an optional duration for serde.
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Deserializes an optional duration for serde.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<String>::deserialize(deserializer)?
            .map(|text| super::parse(&text))
            .transpose()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)));
            assert_eq!(format(Duration::from_millis(millis)), text);
        }
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert_eq!(format(Duration::from_secs(90)), "1m30s");
    }

    #[test]
    fn anything_else_is_refused() {
        for wrong in [
            "",
            "5",
            "s",
            "-5s",
            "1.5s",
            "5 s",
            "5m5m",
            "5s1h",
            "5x",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
