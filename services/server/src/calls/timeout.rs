//! Deadlines as callers send them.

use std::time::Duration;

/// Parses `grpc-timeout`: up to eight digits and a unit.
pub(super) fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n = digits
        .iter()
        .fold(0_u64, |n, digit| n * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(n * 3600),
        b'M' => Duration::from_secs(n * 60),
        b'S' => Duration::from_secs(n),
        b'm' => Duration::from_millis(n),
        b'u' => Duration::from_micros(n),
        b'n' => Duration::from_nanos(n),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_timeout_is_digits_and_a_unit() {
        assert_eq!(parse_timeout(b"250m"), Some(Duration::from_millis(250)));
        assert_eq!(
            parse_timeout(b"99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        for wrong in [
            &b""[..],
            b"5",
            b"S",
            b"123456789S",
            b"-1S",
            b"1.5S",
            b"1x",
            b"\xffS",
        ] {
            assert_eq!(parse_timeout(wrong), None, "{wrong:?}");
        }
    }
}
