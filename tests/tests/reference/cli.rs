//! `cli.md`: every command and flag, from the help output of the programs.

use std::{fmt::Write as _, path::PathBuf, process::Command};

use crate::{cell, head, sources};

/// Meanings of exit codes.
const EXITS: &[(&str, &str)] = &[
    (
        "Done",
        "done; of `plan` without `--detailed-exitcode` also: there is something to do",
    ),
    ("Failed", "an error"),
    (
        "Changes",
        "`plan --detailed-exitcode`: there is something to do",
    ),
    ("NotFound", "what was asked for is not there"),
    ("TimedOut", "it took too long (`--wait`, `wait`)"),
    (
        "Unreachable",
        "nothing answers at the address of the orchestrator, or not as it should",
    ),
    ("Usage", "wrong arguments"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// `-f, --filename <FILE>`.
    pub(crate) name: String,
    pub(crate) about: String,
}

impl Row {
    /// The long flag without hyphens, if there is one.
    pub(crate) fn flag(&self) -> Option<&str> {
        let rest = self.name.split_once("--")?.1;
        rest.split([' ', '.', '=']).next()
    }
}

/// Help output of a program or of one of its commands.
#[derive(Debug, Default)]
pub(crate) struct Help {
    about: String,
    usage: String,
    commands: Vec<Row>,
    pub(crate) rows: Vec<Row>,
}

/// Runs a program that was built with all features next to this test, in an environment without settings.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let own = std::env::current_exe().unwrap();
    let path: PathBuf = own.ancestors().nth(2).unwrap().join(program);
    let mut command = Command::new(&path);
    command.args(arguments).env_clear().env("COLUMNS", "100");
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}; build it: tests/reference", path.display()));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn help(program: &str, command: &[&str]) -> Help {
    let text = run(program, &[command, &["-h"]].concat());
    let mut help = Help::default();
    let mut section = "";
    for line in text.lines() {
        if let Some(usage) = line.strip_prefix("Usage: ") {
            usage.clone_into(&mut help.usage);
            section = "Usage";
        } else if line.ends_with(':') && !line.starts_with(' ') && !section.is_empty() {
            section = line.trim_end_matches(':');
        } else if section.is_empty() {
            help.about.push_str(line);
            help.about.push(' ');
        } else if !line.trim().is_empty() && section != "Usage" {
            let rows = if section == "Commands" {
                &mut help.commands
            } else {
                &mut help.rows
            };
            add(line, rows);
        }
    }
    help.about = help.about.trim().to_owned();
    help
}

/// Parses a line of a list: either a name with its description, or the continuation of the previous description.
fn add(line: &str, rows: &mut Vec<Row>) {
    let indent = line.len() - line.trim_start().len();
    if indent <= 6 {
        let (name, about) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
        rows.push(Row {
            name: name.to_owned(),
            about: about.trim().to_owned(),
        });
    } else if let Some(row) = rows.last_mut() {
        row.about = format!("{} {}", row.about, line.trim());
    }
}

pub(crate) fn page() -> String {
    let mut out = head("Commands");
    out.push_str(
        "`drover --help` and `drover COMMAND --help` say the same. Servers take settings: [settings.md](settings.md).\n",
    );
    let top = help("drover", &[]);
    let everywhere: Vec<Row> = top.rows.clone();
    write!(out, "\n## drover\n\n{}. With every command:\n", top.about).unwrap();
    table(&everywhere, &[], &mut out);
    exits(&mut out);
    for command in &top.commands {
        if command.name != "help" {
            self::command("drover", &[&command.name], &everywhere, &mut out);
        }
    }
    // Hidden from the list because users start it by other means.
    self::command("drover", &["agent"], &everywhere, &mut out);
    out.push_str("\n## drover-orchestrator store\n");
    let store = help("drover-orchestrator", &["store"]);
    for command in &store.commands {
        if command.name != "help" {
            self::command(
                "drover-orchestrator",
                &["store", &command.name],
                &[],
                &mut out,
            );
        }
    }
    out
}

fn exits(out: &mut String) {
    out.push_str("\n| exit code | |\n|---|---|\n");
    let text = sources::text("services/cli/src/failure.rs");
    let body = text.split("enum Exit {").nth(1).unwrap();
    for line in body.split('}').next().unwrap().lines() {
        if let Some((name, code)) = line.trim().trim_end_matches(',').split_once(" = ") {
            let (_, about) = EXITS
                .iter()
                .find(|(known, _)| *known == name)
                .unwrap_or_else(|| {
                    panic!("exit code {name}: say what it means in tests/tests/reference/cli.rs")
                });
            writeln!(out, "| {code} | {about} |").unwrap();
        }
    }
    out.push_str("\n`drover exec` and `drover connect` end with the exit code of the command.\n");
}

fn command(program: &str, path: &[&str], everywhere: &[Row], out: &mut String) {
    let help = help(program, path);
    let usage = help.usage.replacen(
        "store",
        "drover-orchestrator store",
        usize::from(path[0] == "store"),
    );
    write!(
        out,
        "\n### {program} {}\n\n{}.\n\n```\n{usage}\n```\n",
        path.join(" "),
        help.about
    )
    .unwrap();
    let own: Vec<Row> = help
        .rows
        .into_iter()
        .filter(|row| {
            row.flag()
                .is_none_or(|flag| !["help", "version"].contains(&flag))
        })
        .collect();
    table(&own, everywhere, out);
    for inner in &help.commands {
        if inner.name != "help" {
            self::command(program, &[path, &[&inner.name]].concat(), everywhere, out);
        }
    }
}

fn table(rows: &[Row], without: &[Row], out: &mut String) {
    let rows: Vec<&Row> = rows
        .iter()
        .filter(|row| {
            row.flag().is_none() || without.iter().all(|other| other.flag() != row.flag())
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    out.push_str("\n| | |\n|---|---|\n");
    for row in rows {
        let name = row.name.replace('|', "\\|");
        writeln!(out, "| `{name}` | {} |", cell(&row.about)).unwrap();
    }
}
