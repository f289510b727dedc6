//! What to write instead of a value that was nearly right.

use super::{
    scalar,
    schema::Shape,
    tree::{Node, Scalar, Value},
};

/// The expected notation of this value, if it can be told what was meant.
pub(crate) fn of(shape: &Shape, node: &Node) -> Option<String> {
    match (shape, &node.value) {
        (Shape::List(_), Value::Scalar { text, .. }) if !node.is_null() => {
            Some(format!("in brackets: [{text}]"))
        }
        (_, Value::Scalar { text, .. }) => scalar_tip(shape, node, text.trim()),
        _ => None,
    }
}

fn scalar_tip(shape: &Shape, node: &Node, text: &str) -> Option<String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match shape {
        Shape::Bool => match node.scalar()? {
            Scalar::Ambiguous(word) | Scalar::Text(word) => {
                let word = word.to_lowercase();
                match word.as_str() {
                    "yes" | "on" | "true" => Some("write true".into()),
                    "no" | "off" | "false" => Some("write false".into()),
                    _ => None,
                }
            }
            _ => None,
        },
        Shape::Integer { .. } => number(node, text),
        Shape::Amount => {
            let close: String = text.split_whitespace().collect();
            let share = close.strip_suffix('%')?.parse::<f64>().ok()?;
            if !(0.0..=100.0).contains(&share) {
                Some("a share is 0% to 100%".into())
            } else if share.fract() != 0.0 {
                Some(format!("a share is whole: {}%", share.trunc()))
            } else {
                Some(format!("write {share}%"))
            }
        }
        Shape::Duration if digits => Some(format!("with its unit: {text}s")),
        Shape::Duration => {
            let close: String = text.to_lowercase().split_whitespace().collect();
            if close != text && scalar::parse_duration(&close).is_some() {
                return Some(format!("write {close}"));
            }
            let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
            let counted = unit.len() < text.len();
            (counted && ["d", "h", "m", "s", "ms"].contains(&unit))
                .then(|| format!("at most {}h", scalar::MAX_SECONDS / 3600))
        }
        Shape::Quantity => {
            let amount = text.strip_suffix('B')?;
            let binary = format!("{}i", amount.trim_end_matches('i'));
            let amount = amount.trim_end_matches('i');
            scalar::is_quantity(amount).then(|| format!("write {amount} or {binary}"))
        }
        _ => None,
    }
}

/// A number that was written in another way.
fn number(node: &Node, text: &str) -> Option<String> {
    match node.scalar()? {
        Scalar::Text(quoted) => {
            let number = quoted.parse::<u64>().ok()?;
            Some(format!("without quotes: {number}"))
        }
        // Readers of YAML disagree on whether it is octal.
        Scalar::Ambiguous(_) if text.starts_with('0') => {
            let plain = text.trim_start_matches('0');
            let plain = if plain.is_empty() { "0" } else { plain };
            Some(format!("without leading zeros: {plain}"))
        }
        Scalar::Float(number) if number.is_finite() && number.fract() == 0.0 && number >= 0.0 => {
            (number <= 1e15).then(|| format!("in digits: {number:.0}"))
        }
        _ => None,
    }
}
