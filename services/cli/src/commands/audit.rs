//! `audit`: verifies audit logs, and computes the digests in them.

use std::{io, path::Path};

use drover_server::audit::{
    DigestKey,
    chain::{Check, Place, Report, verify},
};

use crate::{
    cli::{AuditCommand, AuditVerifyArgs},
    failure::{Exit, Failure, Outcome},
    output::{self, ReportFormat, count},
};

pub(crate) fn run(command: AuditCommand) -> Outcome {
    match command {
        AuditCommand::Verify(args) => check(args),
        AuditCommand::Digest { key, command } => digest(&key, &command),
    }
}

fn check(args: AuditVerifyArgs) -> Outcome {
    let expect = args.expect.map(|hash| hash.to_ascii_lowercase());
    let wrong = |hash: &String| hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit());
    if expect.as_ref().is_some_and(wrong) {
        return Err(Failure::usage("--expect: expected 64 hexadecimal digits"));
    }
    let check = Check {
        expect,
        allow_gaps: args.allow_gaps,
    };
    let report = verify(&args.files, &check).map_err(|error| {
        let exit = match error.source.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Failed,
        };
        Failure::new(exit, format!("error: {error}"))
    })?;
    match args.output {
        ReportFormat::Json => output::print(&format!(
            "{}\n",
            serde_json::to_string_pretty(&report).map_err(anyhow::Error::from)?
        ))?,
        ReportFormat::Text => show(&report)?,
    }
    match &report.problem {
        None => Ok(Exit::Done),
        Some(problem) => Err(Failure::new(
            Exit::Failed,
            format!("error: {}: {}", at(&problem.place), problem.message),
        )),
    }
}

fn at(place: &Place) -> String {
    format!("{}:{}", place.file.display(), place.line)
}

fn show(report: &Report) -> Outcome<()> {
    if report.unchained > 0 {
        let lines = count(
            usize::try_from(report.unchained).unwrap_or(usize::MAX),
            "line",
        );
        output::line(&format!("{lines} of a time when there was no chain"))?;
    }
    for place in &report.torn {
        output::line(&format!(
            "{}: has no end, as the line after it says: the server died",
            at(place)
        ))?;
    }
    for place in &report.gaps {
        output::line(&format!("{}: the chain has a gap before it", at(place)))?;
    }
    if let (Some(first), Some(last), Some(hash)) = (report.first, report.last, &report.hash) {
        let lines = count(usize::try_from(report.lines).unwrap_or(usize::MAX), "line");
        output::line(&format!(
            "{lines} as written, {first} to {last}; the last one has {hash}"
        ))?;
    } else {
        output::line("no line is in a chain")?;
    }
    Ok(())
}

fn digest(key: &Path, command: &[String]) -> Outcome {
    let key = DigestKey::read(key)
        .map_err(|error| Failure::failed(format!("{}: {error}", key.display())))?;
    let command = serde_json::to_string(&key.command(command)).map_err(anyhow::Error::from)?;
    output::line(&command)?;
    Ok(Exit::Done)
}
