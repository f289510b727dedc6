//! Converts free-form values, timestamps and durations.

use std::time::Duration;

use drover_core::{Error, Millis, Result, spec::Object};
use prost_types::{Struct, Timestamp, value::Kind};
use serde_json::{Number, Value};

/// Largest integer that a free-form value can carry without loss: 2^53.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;
/// Maximum nesting depth of free-form values.
const MAX_DEPTH: usize = 32;

/// Converts a free-form object. A number without a fraction becomes an integer.
///
/// # Errors
///
/// `Invalid`, with the path of the value, for an integer beyond 2^53, for a number that is not finite, and for nesting
/// deeper than 32.
pub fn object(field: &str, from: &Struct) -> Result<Object> {
    object_at(field, from, 0)
}

fn object_at(field: &str, from: &Struct, depth: usize) -> Result<Object> {
    from.fields
        .iter()
        .map(|(key, v)| {
            Ok((
                key.clone(),
                value_at(&format!("{field}.{key}"), v, depth + 1)?,
            ))
        })
        .collect()
}

fn value_at(field: &str, from: &prost_types::Value, depth: usize) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Err(Error::invalid(
            field,
            format!("is nested deeper than {MAX_DEPTH} levels"),
        ));
    }
    Ok(match &from.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => Value::Bool(*value),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::NumberValue(number)) => number_at(field, *number)?,
        Some(Kind::ListValue(list)) => Value::Array(
            list.values
                .iter()
                .enumerate()
                .map(|(at, value)| value_at(&format!("{field}[{at}]"), value, depth + 1))
                .collect::<Result<_>>()?,
        ),
        Some(Kind::StructValue(object)) => Value::Object(object_at(field, object, depth)?),
    })
}

fn number_at(field: &str, number: f64) -> Result<Value> {
    if number.fract() == 0.0 {
        if number.abs() > MAX_WHOLE {
            return Err(Error::invalid(
                field,
                "is beyond 2^53 and would lose digits; write it as text",
            ));
        }
        #[expect(clippy::cast_possible_truncation, reason = "whole, and within 2^53")]
        return Ok(Value::Number(Number::from(number as i64)));
    }
    Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| Error::invalid(field, "is not a finite number"))
}

/// Converts a free-form object to its wire form.
#[must_use]
pub fn to_struct(object: &Object) -> Struct {
    Struct {
        fields: object
            .iter()
            .map(|(key, value)| (key.clone(), to_value(value)))
            .collect(),
    }
}

fn to_value(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => Kind::ListValue(prost_types::ListValue {
            values: values.iter().map(to_value).collect(),
        }),
        Value::Object(object) => Kind::StructValue(to_struct(object)),
    };
    prost_types::Value { kind: Some(kind) }
}

/// Converts a duration.
///
/// # Errors
///
/// `Invalid` if it is negative or longer than 100 years.
pub fn duration(field: &str, from: &prost_types::Duration) -> Result<Duration> {
    const MOST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
    let duration = Duration::try_from(*from)
        .map_err(|_| Error::invalid(field, "is negative; expected a span"))?;
    if duration > MOST {
        return Err(Error::invalid(field, "is longer than 100 years"));
    }
    Ok(duration)
}

/// Converts a duration to its wire form.
#[must_use]
pub fn to_duration(from: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(from.as_secs()).unwrap_or(i64::MAX),
        #[expect(clippy::cast_possible_wrap, reason = "below 10^9")]
        nanos: from.subsec_nanos() as i32,
    }
}

/// Converts a timestamp to its wire form.
#[must_use]
pub fn to_timestamp(at: Millis) -> Timestamp {
    Timestamp {
        seconds: i64::try_from(at / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(at % 1000).unwrap_or(0) * 1_000_000,
    }
}

/// Converts a timestamp to its wire form; 0 means that there is none.
#[must_use]
pub fn to_timestamp_opt(at: Millis) -> Option<Timestamp> {
    (at > 0).then(|| to_timestamp(at))
}

/// Converts a timestamp. Times before 1970 become 0.
#[must_use]
pub fn millis(from: &Timestamp) -> Millis {
    let seconds = u64::try_from(from.seconds).unwrap_or(0);
    let nanos = u64::try_from(from.nanos).unwrap_or(0);
    seconds
        .saturating_mul(1000)
        .saturating_add(nanos / 1_000_000)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_stay_whole_and_objects_come_back() {
        let before = json!({"a": 1, "b": [1.5, true, null, "x"], "c": {"d": -3}});
        let object_before = before.as_object().unwrap();
        let after = object("spec.properties", &to_struct(object_before)).unwrap();
        assert_eq!(&after, object_before);
    }

    #[test]
    fn a_number_that_would_lose_digits_is_refused_with_its_path() {
        let mut from = to_struct(json!({"a": {"b": [0]}}).as_object().unwrap());
        let Some(Kind::StructValue(inner)) = &mut from.fields.get_mut("a").unwrap().kind else {
            panic!()
        };
        let Some(Kind::ListValue(list)) = &mut inner.fields.get_mut("b").unwrap().kind else {
            panic!()
        };
        list.values[0].kind = Some(Kind::NumberValue(1e17));
        let error = object("spec.properties", &from).unwrap_err();
        assert_eq!(error.fields()[0].field, "spec.properties.a.b[0]");
    }

    #[test]
    fn times_survive_to_the_millisecond() {
        for at in [0, 1, 999, 1000, 1_795_000_000_123] {
            assert_eq!(millis(&to_timestamp(at)), at);
        }
    }
}
