//! The pages under `docs/reference` are generated from the protos, the programs and the sources, and must be current;
//! links must resolve; messages quoted in the documentation must match those of the programs.
//! `tests/reference --write` regenerates the pages.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod api;
mod cli;
mod conditions;
mod errors;
mod links;
mod manifest;
mod messages;
mod settings;
mod sources;

use std::{fs, path::PathBuf};

/// If set, the pages are written instead of compared.
const WRITE: &str = "DROVER_WRITE_REFERENCE";

/// Root directory of the workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// First line of every generated page.
pub(crate) fn head(title: &str) -> String {
    format!("<!-- Made by tests/reference --write; do not edit. -->\n# {title}\n\n")
}

/// Formats a text as a table cell.
pub(crate) fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
        .replace('<', "&lt;")
}

fn check(name: &str, page: &str) {
    let path = root().join("docs/reference").join(name);
    let mut page = format!("{}\n", page.trim_end());
    while page.contains("\n\n\n") {
        page = page.replace("\n\n\n", "\n\n");
    }
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, page).unwrap();
        return;
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    if there == page {
        return;
    }
    let (mut old, mut new) = (there.lines(), page.lines());
    let mut line = 0;
    let (old, new) = loop {
        line += 1;
        match (old.next(), new.next()) {
            (old, new) if old == new && old.is_some() => {}
            (old, new) => break (old.unwrap_or("(end)"), new.unwrap_or("(end)")),
        }
    };
    panic!(
        "docs/reference/{name} is not current. Renew it: tests/reference --write\n\
         line {line} is:  {old}\n    expected: {new}"
    );
}

#[test]
fn the_api_is_described_as_it_is() {
    check("api.md", &api::page());
}

#[test]
fn the_commands_are_described_as_they_are() {
    check("cli.md", &cli::page());
}

#[test]
fn the_settings_are_described_as_they_are() {
    check("settings.md", &settings::page());
}

#[test]
fn the_manifest_is_described_as_it_is() {
    check("manifest.md", &manifest::page());
}

#[test]
fn the_errors_are_described_as_they_are() {
    check("errors.md", &errors::page());
}

#[test]
fn the_conditions_are_described_as_they_are() {
    check("conditions.md", &conditions::page());
}

#[test]
fn every_link_leads_somewhere() {
    let broken = links::broken();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn every_message_of_the_troubleshooting_page_is_said_by_a_program() {
    let missing = messages::missing();
    assert!(
        missing.is_empty(),
        "docs/troubleshooting.md quotes what no program says:\n{}",
        missing.join("\n")
    );
}
