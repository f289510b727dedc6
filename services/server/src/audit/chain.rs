//! Verifies the integrity of an audit log: each line has a sequence number and the SHA-256 of the previous line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Predecessor hash of the very first line.
pub(super) const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// SHA-256 of a line without its line break, in hexadecimal.
pub(super) fn hash(line: &[u8]) -> String {
    super::digest::hex(ring::digest::digest(&ring::digest::SHA256, line).as_ref())
}

/// The fields of a line that determine its position in the chain.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Row {
    pub(super) seq: u64,
    prev: String,
    #[serde(default)]
    missing: u64,
    #[serde(default)]
    torn: u64,
}

impl Row {
    /// Parses a line. `None` if it is not a line of a chain.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

/// A kind of integrity violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A line was modified.
    Edited,
    /// Lines were removed.
    Removed,
    /// A line was inserted.
    Inserted,
    /// Lines were reordered.
    Reordered,
    /// The server itself found that lines were missing.
    Missing,
    /// A new chain begins.
    Restarted,
    /// The last line is incomplete, and no later line accounts for it.
    Torn,
    /// The expected line is not there.
    Truncated,
}

/// Position of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Line number in the file, starting at 1.
    pub line: u64,
}

/// The first violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Kind of the violation.
    pub kind: Fault,
    /// Position of the violation.
    #[serde(flatten)]
    pub place: Place,
    /// Human-readable description.
    pub message: String,
}

/// Result of verifying a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Number of chained lines before the first violation.
    pub lines: u64,
    /// Number of lines before the chain, from a version without chaining.
    pub unchained: u64,
    /// Sequence number of the first line.
    pub first: Option<u64>,
    /// Sequence number of the last line.
    pub last: Option<u64>,
    /// Hash of the last line, which the next line will refer to.
    pub hash: Option<String>,
    /// Incomplete lines that the following line accounts for: the server died while writing them.
    pub torn: Vec<Place>,
    /// Positions at which the log itself records that lines are missing or that another chain begins.
    pub gaps: Vec<Place>,
    /// The first violation. `None` if the log is intact.
    pub problem: Option<Problem>,
}

/// Options of the verification.
#[derive(Clone, Debug, Default)]
pub struct Check {
    /// Hash of a line that must be present.
    pub expect: Option<String>,
    /// Whether to continue where the log itself records that lines are missing or that another chain begins.
    pub allow_gaps: bool,
}

/// A log file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", file.display())]
pub struct ReadError {
    /// The file.
    pub file: PathBuf,
    /// Cause of the failure.
    pub source: io::Error,
}

/// A line of the log.
#[derive(Clone, Debug)]
struct Found {
    place: Place,
    row: Option<Row>,
    hash: String,
    whole: bool,
}

/// Iterates over the lines of all files.
struct Lines<'a> {
    files: std::slice::Iter<'a, PathBuf>,
    open: Option<(BufReader<File>, Place)>,
}

impl Iterator for Lines<'_> {
    type Item = Result<Found, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.open.is_none() {
                let file = self.files.next()?.clone();
                match File::open(&file) {
                    Ok(open) => {
                        self.open = Some((BufReader::new(open), Place { file, line: 0 }));
                    }
                    Err(source) => return Some(Err(ReadError { file, source })),
                }
            }
            let (reader, at) = self.open.as_mut()?;
            let mut line = Vec::new();
            match reader.read_until(b'\n', &mut line) {
                Err(source) => {
                    let file = at.file.clone();
                    self.open = None;
                    return Some(Err(ReadError { file, source }));
                }
                Ok(0) => self.open = None,
                Ok(_) => {
                    let whole = line.pop_if(|last| *last == b'\n').is_some();
                    at.line += 1;
                    return Some(Ok(Found {
                        place: at.clone(),
                        row: Row::parse(&line),
                        hash: hash(&line),
                        whole,
                    }));
                }
            }
        }
    }
}

/// Verifies the files of a log, oldest first. Fails if a file cannot be read.
pub fn verify(files: &[PathBuf], check: &Check) -> Result<Report, ReadError> {
    let lines = Lines {
        files: files.iter(),
        open: None,
    };
    Checker {
        lines: lines.peekable(),
        check,
        report: Report::default(),
        last: None,
        expected: check.expect.is_none(),
    }
    .run()
}

struct Checker<'a> {
    lines: std::iter::Peekable<Lines<'a>>,
    check: &'a Check,
    report: Report,
    /// The previous line.
    last: Option<Found>,
    /// Whether the expected line was found.
    expected: bool,
}

impl Checker<'_> {
    fn run(mut self) -> Result<Report, ReadError> {
        while let Some(found) = self.lines.next() {
            let found = found?;
            if let Some((kind, place, message)) = self.look(&found)? {
                self.report.problem = Some(Problem {
                    kind,
                    place,
                    message,
                });
                return Ok(self.report);
            }
            self.expected |= self.check.expect.as_deref() == Some(&*found.hash);
            self.report.hash = Some(found.hash.clone());
            self.last = Some(found);
        }
        if !self.expected {
            let message = format!(
                "no line has the hash {}: it, or what is before it, was edited, or the end was cut off",
                self.check.expect.as_deref().unwrap_or_default()
            );
            self.report.problem = Some(Problem {
                kind: Fault::Truncated,
                place: self.last.map_or_else(nowhere, |last| last.place),
                message,
            });
        }
        Ok(self.report)
    }

    /// Checks the next line, and counts it if it is valid.
    fn look(&mut self, found: &Found) -> Result<Option<(Fault, Place, String)>, ReadError> {
        let here = |kind, message: String| Ok(Some((kind, found.place.clone(), message)));
        let (Some(row), Some(last)) = (&found.row, self.report.last) else {
            return match &found.row {
                Some(row) => Ok(self.begin(row)),
                None if self.report.last.is_none() => {
                    self.report.unchained += 1;
                    Ok(None)
                }
                None => self.odd(found),
            };
        };
        let before = self.report.hash.clone().unwrap_or_default();
        let next = last + 1;
        if row.seq == next && row.prev == before {
            self.count(row.seq);
            return Ok(None);
        }
        let begins = row.seq == 1 && row.prev == START;
        if begins || row.missing > 0 && row.seq > next {
            if self.check.allow_gaps {
                self.report.gaps.push(found.place.clone());
                self.count(row.seq);
                return Ok(None);
            }
            return if begins {
                let message = format!("another chain begins here, after line number {last}");
                here(Fault::Restarted, message)
            } else {
                let message = format!(
                    "the server found {} lines before this one gone",
                    row.missing
                );
                here(Fault::Missing, message)
            };
        }
        if row.seq == next {
            return self.edited(found);
        }
        if row.seq > next {
            return if self.comes_later(next)? {
                let message = format!("number {} stands where number {next} was", row.seq);
                here(Fault::Reordered, message)
            } else {
                let message = format!("numbers {next} to {} before it were removed", row.seq - 1);
                here(Fault::Removed, message)
            };
        }
        let message = format!(
            "number {} stands behind number {last}; it was put in",
            row.seq
        );
        here(Fault::Inserted, message)
    }

    /// Checks the first line of a chain.
    fn begin(&mut self, row: &Row) -> Option<(Fault, Place, String)> {
        let before = self.last.as_ref();
        if let Some(before) = before.filter(|before| row.prev != before.hash && row.prev != START) {
            let message = "is not as it was when the chain began behind it".to_owned();
            return Some((Fault::Edited, before.place.clone(), message));
        }
        self.report.first = Some(row.seq);
        self.count(row.seq);
        None
    }

    fn count(&mut self, seq: u64) {
        self.report.last = Some(seq);
        self.report.lines += 1;
    }

    /// Checks a line within a chain that is not a chained line itself.
    fn odd(&mut self, found: &Found) -> Result<Option<(Fault, Place, String)>, ReadError> {
        let next = self.report.last.unwrap_or_default() + 1;
        let told = self.peek()?.and_then(|after| after.row.clone());
        let told =
            told.is_some_and(|row| row.torn > 0 && row.prev == found.hash && row.seq == next + 1);
        if told {
            self.report.torn.push(found.place.clone());
            self.count(next);
            return Ok(None);
        }
        let (kind, message) = if found.whole {
            let message = "it is not a line that the server wrote";
            (Fault::Edited, message)
        } else {
            let message = "the last line has no end, and the server has not gone on since";
            (Fault::Torn, message)
        };
        Ok(Some((kind, found.place.clone(), message.to_owned())))
    }

    /// Determines which of two adjacent lines was modified if the second does not refer to the first: the second one,
    /// if the third does not refer to it either.
    fn edited(&mut self, found: &Found) -> Result<Option<(Fault, Place, String)>, ReadError> {
        let after = self.peek()?.and_then(|after| after.row.clone());
        let second = after.is_some_and(|row| row.prev != found.hash);
        let place = match &self.last {
            Some(last) if !second => last.place.clone(),
            _ => found.place.clone(),
        };
        let message = if second {
            "it was edited: it and its neighbours do not name each other"
        } else {
            "it was edited: the line after it names another one"
        };
        Ok(Some((Fault::Edited, place, message.to_owned())))
    }

    fn peek(&mut self) -> Result<Option<&Found>, ReadError> {
        if matches!(self.lines.peek(), Some(Err(_))) {
            return match self.lines.next() {
                Some(Err(error)) => Err(error),
                _ => Ok(None),
            };
        }
        Ok(self.lines.peek().and_then(|found| found.as_ref().ok()))
    }

    /// Whether a line with this sequence number follows later.
    fn comes_later(&mut self, seq: u64) -> Result<bool, ReadError> {
        for found in self.lines.by_ref() {
            if found?.row.is_some_and(|row| row.seq == seq) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn nowhere() -> Place {
    Place {
        file: Path::new("").to_owned(),
        line: 0,
    }
}
