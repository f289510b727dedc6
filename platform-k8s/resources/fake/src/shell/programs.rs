//! Small programs that every container of the fake has.

use std::time::Duration;

use super::{Disk, Effect, FOR_EVER};

pub(super) fn each(
    paths: &[String],
    effects: &mut Vec<Effect>,
    mut work: impl FnMut(&str, &mut Vec<Effect>) -> Result<(), &'static str>,
) -> i32 {
    let mut code = 0;
    for path in paths {
        if let Err(why) = work(path, effects) {
            effects.push(Effect::Stderr(format!("{path}: {why}\n").into_bytes()));
            code = 1;
        }
    }
    code
}

pub(super) fn sleep(time: Option<&str>, effects: &mut Vec<Effect>) -> i32 {
    let seconds = match time {
        Some("infinity" | "inf") => f64::INFINITY,
        Some(text) => match text.trim_end_matches('s').parse() {
            Ok(seconds) => seconds,
            Err(_) => return 1,
        },
        None => return 1,
    };
    let pause = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(FOR_EVER));
    effects.push(Effect::Pause(pause));
    0
}

/// `head -c N FILE`; `/dev/zero` has no end.
pub(super) fn head(arguments: &[String], disk: &mut dyn Disk, effects: &mut Vec<Effect>) -> i32 {
    let [option, number, path] = arguments else {
        return 1;
    };
    let (Ok(number), "-c") = (number.parse::<usize>(), option.as_str()) else {
        return 1;
    };
    let data = match path.as_str() {
        "/dev/zero" => vec![0; number],
        path => match disk.read(path) {
            Ok(mut data) => {
                data.truncate(number);
                data
            }
            Err(_) => return 1,
        },
    };
    effects.push(Effect::Stdout(data));
    0
}

/// `printf FORMAT ARGUMENTS…`, with `%s`, `\n`, `\t`, `\\` and octal bytes.
pub(super) fn printf(arguments: &[String]) -> Vec<u8> {
    let mut arguments = arguments.iter();
    let format = arguments.next().map(String::as_bytes).unwrap_or_default();
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(&byte) = format.get(at) {
        at += 1;
        match (byte, format.get(at)) {
            (b'%', Some(b's')) => {
                let argument = arguments.next().map(String::as_bytes);
                bytes.extend(argument.unwrap_or_default());
            }
            (b'%', Some(b'%')) => bytes.push(b'%'),
            (b'\\', Some(b'n')) => bytes.push(b'\n'),
            (b'\\', Some(b't')) => bytes.push(b'\t'),
            (b'\\', Some(b'\\')) => bytes.push(b'\\'),
            (b'\\', Some(b'0'..=b'7')) => {
                let digits = format[at..]
                    .iter()
                    .take(3)
                    .take_while(|c| (b'0'..=b'7').contains(c));
                let digits: Vec<u8> = digits.copied().collect();
                let value = digits
                    .iter()
                    .fold(0_u32, |value, c| value * 8 + u32::from(c - b'0'));
                bytes.push(u8::try_from(value & 0xff).unwrap_or_default());
                at += digits.len();
                continue;
            }
            _ => {
                bytes.push(byte);
                continue;
            }
        }
        at += 1;
    }
    bytes
}
