//! `drover-orchestrator store maintain`.

use std::{io::Write, time::Duration};

use clap::ValueEnum;
use drover_orchestrator::EtcdSettings;
use drover_server::settings::duration;
use drover_store_etcd::{Maintenance, Member, Report};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Outcome;

/// A smaller file is not worth that its member stands still while it is rewritten: 64 MiB.
const LEAST: u64 = 64 * 1024 * 1024;

/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// What is maintained, and how often.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Leave members alone whose database file has no more bytes than this; larger ones are defragmented if at least
    /// half of the file is not used
    #[arg(long, value_name = "BYTES", default_value_t = LEAST)]
    least: u64,
    /// Do it again after this time, or after 30s if it failed, until the process is stopped: `30m`, `1h`, `1d` [default:
    /// once]
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    every: Option<Duration>,
    /// How to print what was found and done; `json`: a line each time
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Table,
    Json,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    if interval < Duration::from_secs(1) {
        return Err("must be at least 1s".to_owned());
    }
    Ok(interval)
}

/// Runs the command.
pub(super) async fn run(etcd: &EtcdSettings, arguments: &Arguments) -> Outcome {
    let maintenance = Maintenance::new(etcd)?;
    let Some(interval) = arguments.every else {
        let report = maintenance.run(arguments.least).await;
        print(&report, arguments.output)?;
        return report.failure.map_or(Ok(()), |error| Err(error.into()));
    };
    let again = async {
        loop {
            let report = maintenance.run(arguments.least).await;
            print(&report, arguments.output)?;
            // Whatever it was, it may be over soon, as when the members are only starting.
            let pause = match &report.failure {
                Some(error) => {
                    eprintln!("error: {error}");
                    // While it is rewritten a member answers nobody: not again and again, if that does not help.
                    let rewrote = (report.members.iter()).any(|it| it.defragmented.is_some());
                    if rewrote {
                        interval
                    } else {
                        interval.min(RETRY)
                    }
                }
                None => interval,
            };
            sleep(pause).await;
        }
    };
    tokio::select! {
        ended = again => ended,
        stopped = drover_server::shutdown_signal() => Ok(stopped?),
    }
}

fn print(report: &Report, format: Format) -> Outcome {
    let text = match format {
        Format::Table => table(report),
        Format::Json => format!("{}\n", document(report)),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn document(report: &Report) -> Value {
    let members = report.members.iter().map(|member| {
        json!({
            "endpoint": member.endpoint,
            "version": member.version,
            "leads": member.leads,
            "sizeBytes": member.size,
            "inUseBytes": member.in_use,
            "quotaBytes": member.quota,
            "trouble": member.trouble,
            "defragmented": member.defragmented.as_ref().map(|done| json!({
                "turn": done.turn,
                "sizeBytes": done.size,
                "seconds": done.took.as_secs_f64(),
            })),
        })
    });
    json!({
        "members": members.collect::<Vec<_>>(),
        "noSpace": report.alarmed,
        "compactedRevision": report.compacted,
        "disarmed": report.disarmed,
        "error": report.failure.as_ref().map(ToString::to_string),
    })
}

fn table(report: &Report) -> String {
    let mut rows =
        vec![["MEMBER", "VERSION", "SIZE", "IN USE", "QUOTA", "DONE"].map(str::to_owned)];
    rows.extend(report.members.iter().map(row));
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, &width)| format!("{cell:width$}   "));
        text.push_str(cells.collect::<String>().trim_end());
        text.push('\n');
    }
    if report.alarmed {
        let compacted = report.compacted.map_or_else(
            || "nothing was discarded".to_owned(),
            |revision| format!("what was replaced before revision {revision} was discarded"),
        );
        let ended = if report.disarmed {
            "the alarm was ended and a write has succeeded"
        } else {
            "the alarm is still on"
        };
        text.push_str(&format!("etcd had no room: {compacted}, {ended}\n"));
    }
    text
}

fn row(member: &Member) -> [String; 6] {
    let done = match (&member.trouble, &member.defragmented) {
        (Some(trouble), _) => trouble.clone(),
        (None, Some(done)) => {
            let now = done.size.map_or_else(|| "?".to_owned(), size);
            format!("defragmented in {:.1} s: {now}", done.took.as_secs_f64())
        }
        (None, None) => "nothing".to_owned(),
    };
    let leads = if member.leads { " (leads)" } else { "" };
    let endpoint = format!("{}{leads}", member.endpoint);
    if member.version.is_empty() {
        let [a, b, c, d] = ["-"; 4].map(str::to_owned);
        return [endpoint, a, b, c, d, done];
    }
    let quota = member.quota.map_or_else(|| "-".to_owned(), size);
    [
        endpoint,
        member.version.clone(),
        size(member.size),
        size(member.in_use),
        quota,
        done,
    ]
}

/// A size as people read it.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10 * 1024 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use drover_core::Error;
    use drover_store_etcd::Defragmented;

    use super::*;

    #[test]
    fn sizes_have_the_unit_that_fits() {
        let rows = [
            (0, "0.0 KiB"),
            (1024 * 1024 - 1, "1023.9 KiB"),
            (1024 * 1024, "1.0 MiB"),
            (8 * 1024 * 1024 * 1024, "8.0 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ];
        for (bytes, expected) in rows {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn a_table_says_of_each_member_what_was_done() {
        let member = |endpoint: &str| Member {
            endpoint: endpoint.to_owned(),
            version: "3.6.11".to_owned(),
            size: 3 * 1024 * 1024,
            in_use: 1024 * 1024,
            quota: Some(1 << 33),
            ..Member::default()
        };
        let done = Defragmented {
            turn: 0,
            size: Some(1024 * 1024),
            took: Duration::from_millis(1_250),
        };
        let report = Report {
            members: vec![
                Member {
                    defragmented: Some(done),
                    leads: true,
                    ..member("http://a:2379")
                },
                member("http://b:2379"),
                Member {
                    endpoint: "http://c:2379".to_owned(),
                    trouble: Some("it does not answer".to_owned()),
                    ..Member::default()
                },
            ],
            alarmed: true,
            compacted: Some(7),
            failure: Some(Error::unavailable("c")),
            ..Report::default()
        };
        let expected = "\
MEMBER                  VERSION   SIZE      IN USE    QUOTA     DONE
http://a:2379 (leads)   3.6.11    3.0 MiB   1.0 MiB   8.0 GiB   defragmented in 1.2 s: 1.0 MiB
http://b:2379           3.6.11    3.0 MiB   1.0 MiB   8.0 GiB   nothing
http://c:2379           -         -         -         -         it does not answer
etcd had no room: what was replaced before revision 7 was discarded, the alarm is still on
";
        assert_eq!(table(&report), expected);
        let document = document(&report);
        assert_eq!(document["members"][0]["defragmented"]["turn"], 0);
        assert_eq!(document["compactedRevision"], 7);
    }
}
