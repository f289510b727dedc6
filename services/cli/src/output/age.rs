//! Times in short form: `41s`, `5m`, `3d`.

use std::time::{Duration, SystemTime};

use prost_types::Timestamp;

/// Time since an event, in short form.
pub(crate) fn since(time: Option<&Timestamp>, now: SystemTime) -> String {
    elapsed(time, now).map(short).unwrap_or_default()
}

/// Time since an event; zero if it is in the future.
pub(crate) fn elapsed(time: Option<&Timestamp>, now: SystemTime) -> Option<Duration> {
    let time = SystemTime::try_from(*time?).ok()?;
    Some(now.duration_since(time).unwrap_or_default())
}

/// Time until an event, in short form. A part of a second counts as one, since it is a bound.
pub(crate) fn until(time: Option<&Timestamp>, now: SystemTime) -> Option<String> {
    let time = SystemTime::try_from(*time?).ok()?;
    let left = time.duration_since(now).ok()?;
    let whole = u64::from(left.subsec_nanos() > 0) + left.as_secs();
    Some(short(Duration::from_secs(whole)))
}

/// A duration in one unit, or in two if that tells more.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if !seconds.is_multiple_of(60) => format!("{}m{}s", seconds / 60, seconds % 60),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..36_000 if !(seconds / 60).is_multiple_of(60) => {
            format!("{}h{}m", seconds / 3600, seconds / 60 % 60)
        }
        7_200..172_800 => format!("{}h", seconds / 3600),
        172_800..63_072_000 => format!("{}d", seconds / 86_400),
        _ => format!("{}y", seconds / 31_536_000),
    }
}

/// Local time of day, with milliseconds.
pub(crate) fn clock(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map(|time| {
            time.to_zoned(jiff::tz::TimeZone::system())
                .strftime("%H:%M:%S%.3f")
                .to_string()
        })
        .unwrap_or_default()
}

/// A protobuf timestamp as RFC 3339.
pub(crate) fn rfc3339(time: Option<&Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}
