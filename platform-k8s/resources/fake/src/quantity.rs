//! Quantities in the one form in which an API server writes them.

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// How a quantity is written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Binary,
    Decimal,
    Exponent,
}

/// The canonical form; text that is no quantity, or too large to compute with, stays as it is.
pub(crate) fn canonical(text: &str) -> String {
    written(text).unwrap_or_else(|| text.to_owned())
}

fn written(text: &str) -> Option<String> {
    let end = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let mut exponent = -i32::try_from(fraction.len()).ok()?;
    let form = if let Some(power) = BINARY
        .iter()
        .position(|it| *it == suffix)
        .filter(|it| *it > 0)
    {
        let factor = 1_i128.checked_shl(u32::try_from(10 * power).ok()?)?;
        mantissa = mantissa.checked_mul(factor)?;
        Form::Binary
    } else if let Some((_, power)) = DECIMAL.iter().find(|(it, _)| *it == suffix) {
        exponent += power;
        Form::Decimal
    } else {
        exponent += suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
        Form::Exponent
    };
    while mantissa != 0 && mantissa % 10 == 0 {
        (mantissa, exponent) = (mantissa / 10, exponent + 1);
    }
    if mantissa == 0 {
        return Some("0".to_owned());
    }
    if form == Form::Binary && exponent >= 0 {
        let value = mantissa.checked_mul(10_i128.checked_pow(u32::try_from(exponent).ok()?)?)?;
        if value.abs() >= 1024 {
            return Some(binary(value));
        }
    }
    let power = exponent.div_euclid(3) * 3;
    let rest = u32::try_from(exponent - power).ok()?;
    let mantissa = mantissa.checked_mul(10_i128.checked_pow(rest)?)?;
    if form == Form::Exponent {
        return Some(if power == 0 {
            mantissa.to_string()
        } else {
            format!("{mantissa}e{power}")
        });
    }
    let (suffix, _) = DECIMAL.iter().find(|(_, it)| *it == power)?;
    Some(format!("{mantissa}{suffix}"))
}

fn binary(mut value: i128) -> String {
    let mut suffix = 0;
    while value % 1024 == 0 && suffix + 1 < BINARY.len() {
        (value, suffix) = (value / 1024, suffix + 1);
    }
    format!("{value}{}", BINARY[suffix])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_as_an_api_server_does() {
        for (given, expected) in [
            ("0.5", "500m"),
            ("2.0", "2"),
            ("1500m", "1500m"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1000M", "1G"),
            ("100M", "100M"),
            ("1e6", "1e6"),
            ("1e4", "10e3"),
            ("128974848", "128974848"),
            ("0Mi", "0"),
            ("much", "much"),
        ] {
            assert_eq!(canonical(given), expected, "{given}");
        }
    }
}
