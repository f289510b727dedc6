//! Prints results: tables, JSON, YAML, names; colours only on a terminal.

pub(crate) mod age;
pub(crate) mod json;
pub(crate) mod rows;
#[cfg(test)]
mod tests;
mod visible;

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use comfy_table::{Table as Layout, presets};

pub(crate) use self::visible::{Visible, one_line, visible};

/// Prints a line to standard error. Control characters in foreign text are shown as escapes.
macro_rules! complain {
    ($($part:tt)*) => {
        eprintln!("{}", $crate::output::visible(&format!($($part)*)))
    };
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns
    #[default]
    Table,
    /// More columns
    Wide,
    /// The canonical protobuf JSON of the response
    Json,
    /// The same as YAML
    Yaml,
    /// KIND/NAME, one a line
    Name,
}

/// How things are printed that may have manifests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GetFormat {
    /// Columns
    #[default]
    Table,
    /// More columns
    Wide,
    /// The canonical protobuf JSON of the response
    Json,
    /// The same as YAML
    Yaml,
    /// KIND/NAME, one a line
    Name,
    /// Clusters and platforms as a file for `drover apply`
    Manifest,
}

impl GetFormat {
    /// `None`: a manifest.
    pub(crate) fn of_answer(self) -> Option<Format> {
        Some(match self {
            Self::Table => Format::Table,
            Self::Wide => Format::Wide,
            Self::Json => Format::Json,
            Self::Yaml => Format::Yaml,
            Self::Name => Format::Name,
            Self::Manifest => return None,
        })
    }
}

/// How the result of a check is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// For people
    #[default]
    Text,
    /// One object
    Json,
}

/// A word as a shell has to be given it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    in_quotes(word)
}

/// A word as a shell has to be given it, in quotes also where it needs none.
pub(crate) fn in_quotes(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Prints the result of a change: a line for people, or the answer.
pub(crate) fn result<M: prost::Message + prost::Name>(
    format: Format,
    name: &str,
    answer: &M,
    words: &str,
) -> crate::failure::Outcome<()> {
    match format {
        Format::Table | Format::Wide => line(words)?,
        Format::Name => line(name)?,
        Format::Json => print(&json::pretty(answer)?)?,
        Format::Yaml => yaml(answer)?,
    }
    Ok(())
}

/// Prints an answer as YAML where others may come before it or after it.
pub(crate) fn yaml<M: prost::Message + prost::Name>(answer: &M) -> crate::failure::Outcome<()> {
    Ok(print(&json::document(answer)?)?)
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) header: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Columns with a state, which is coloured.
const STATE_COLUMNS: [&str; 2] = ["STATUS", "TYPE"];

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self {
            header: header.to_vec(),
            rows: Vec::new(),
        }
    }

    /// The table as text: no borders, three spaces between columns, no trailing spaces.
    pub(crate) fn render(&self, header: bool, colours: bool) -> String {
        if self.rows.is_empty() && !header {
            return String::new();
        }
        let mut layout = Layout::new();
        layout.load_style(presets::NOTHING);
        layout.add_row(
            self.header
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        );
        // A cell has one line; messages of platforms may have several.
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(|cell| one_line(cell)).collect())
            .collect();
        for row in &rows {
            layout.add_row(row);
        }
        let widths = layout.column_max_content_widths();
        for column in layout.column_iter_mut() {
            column.set_padding((0, 3));
        }
        let text = layout.to_string();
        let lines = text
            .lines()
            .enumerate()
            .filter(|(number, _)| header || *number > 0);
        lines
            .map(|(number, line)| {
                let line = line.trim_end();
                if let Some(row) = number.checked_sub(1).and_then(|at| rows.get(at))
                    && colours
                {
                    self.coloured(line, row, &widths)
                } else {
                    line.to_owned()
                }
            })
            .fold(String::new(), |mut out, line| {
                out.push_str(&line);
                out.push('\n');
                out
            })
    }

    /// Column widths in characters.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let width = |(position, name): (usize, &&str)| {
            let cells = self.rows.iter().filter_map(|row| row.get(position));
            let widest = cells.map(|cell| one_line(cell).chars().count()).max();
            widest.unwrap_or(0).max(name.chars().count())
        };
        self.header.iter().enumerate().map(width).collect()
    }

    /// The line of column names, above rows that are printed with these widths.
    pub(crate) fn head(&self, widths: &[usize]) -> String {
        let names = self.header.iter().map(ToString::to_string).collect();
        let head = Self {
            header: self.header.clone(),
            rows: vec![names],
        };
        head.below(widths, false)
    }

    /// Only the rows, for a table that was printed before with these widths.
    pub(crate) fn below(&self, widths: &[usize], colours: bool) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), name) in row.iter().zip(widths).zip(&self.header) {
                let cell = one_line(cell);
                let room = " ".repeat(width.saturating_sub(cell.chars().count()) + 3);
                if colours && STATE_COLUMNS.contains(name) {
                    line.push_str(&paint(&cell));
                } else {
                    line.push_str(&cell);
                }
                line.push_str(&room);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    fn coloured(&self, line: &str, row: &[String], widths: &[u16]) -> String {
        let mut line = line.to_owned();
        // From the right, so that insertions do not move the cells that are still to come.
        for (position, name) in self.header.iter().enumerate().rev() {
            let Some(cell) = row.get(position) else {
                continue;
            };
            if !STATE_COLUMNS.contains(name) || cell.is_empty() {
                continue;
            }
            let start: usize = widths[..position]
                .iter()
                .map(|width| usize::from(*width) + 3)
                .sum();
            let Some(at) = line.char_indices().nth(start).map(|(at, _)| at) else {
                continue;
            };
            if line[at..].starts_with(cell.as_str()) {
                line.replace_range(at..at + cell.len(), &paint(cell));
            }
        }
        line
    }
}

/// A state in its colour.
pub(crate) fn paint(state: &str) -> String {
    let colour = match state {
        "Ready" | "Running" | "Free" | "Claimed" => "32",
        "Info" | "Normal" | "Gone" => return state.to_owned(),
        "Progressing" | "Requested" | "Provisioning" | "Starting" | "Draining"
        | "Deprovisioning" | "Deleting" | "Connecting" | "Paused" | "ScalingUp" | "ScalingDown" => {
            "33"
        }
        _ => "31",
    };
    format!("\x1b[{colour}m{state}\x1b[0m")
}

/// Whether standard output may have colours.
pub(crate) fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints to standard output, with control characters as escapes. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_painted(&visible(text))
}

/// Like `print`, with the colours of a table, whose cells are already escaped.
pub(crate) fn print_painted(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints a part of endless output. A closed pipe is an error, which ends the output.
pub(crate) fn print_on(text: &str) -> io::Result<()> {
    print_painted_on(&visible(text))
}

/// Like `print_on`, with the colours of a table.
pub(crate) fn print_painted_on(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Prints a line to standard output.
pub(crate) fn line(text: &str) -> io::Result<()> {
    print(&format!("{text}\n"))
}

/// A number with its noun: `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
