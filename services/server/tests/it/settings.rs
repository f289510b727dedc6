//! Settings: layers, and errors with their location.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::{io::Write, time::Duration};

use clap::Parser;
use drover_server::{
    ServerArgs, ServerSettings,
    settings::{self, LogFormat, Secret, duration},
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Own {
    name: String,
    workers: u16,
    token: Secret,
    namespaces: Vec<String>,
    region: Option<String>,
    retry: Retry,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Retry {
    #[serde(with = "duration")]
    first: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
        }
    }
}

#[derive(Debug, Default, clap::Args, Serialize)]
struct OwnArgs {
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<u16>,
}

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    own: OwnArgs,
}

fn load(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[&str],
) -> Result<(ServerSettings, Own), String> {
    let mut path = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    path.write_all(file.as_bytes()).unwrap();
    let cli = Cli::try_parse_from([&["x"], flags].concat()).unwrap();
    let args = ServerArgs {
        config: Some(path.path().to_owned()),
        ..cli.server
    };
    let environment = environment
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    settings::load(&ServerSettings::on_port(7402), &args, &cli.own, environment)
        .map_err(|e| e.to_string().replace(path.path().to_str().unwrap(), "FILE"))
}

#[test]
fn nothing_said_is_the_defaults() {
    let (server, own) = load("", &[], &[]).unwrap();
    assert_eq!(server, ServerSettings::on_port(7402));
    assert_eq!(own, Own::default());
    let (server, _) = load("# only a comment\n", &[], &[]).unwrap();
    assert_eq!(server.listen.to_string(), "127.0.0.1:7402");
}

#[test]
fn every_layer_wins_over_those_below() {
    let file = "workers: 2\nshutdown_grace: 5s\nname: file\nretry: {first: 2s}\nlog_format: json\n";
    let environment = [
        ("DROVER_WORKERS", "3"),
        ("DROVER_NAME", "environment"),
        ("DROVER_RETRY__FIRST", "3s"),
        ("PATH", "/bin"),
    ];
    let (server, own) = load(file, &environment, &["--workers", "4", "--insecure"]).unwrap();
    assert_eq!(server.shutdown_grace, Duration::from_secs(5));
    assert_eq!(server.log_format, LogFormat::Json);
    assert!(server.insecure);
    assert_eq!(own.name, "environment");
    assert_eq!(own.workers, 4);
    assert_eq!(own.retry.first, Duration::from_secs(3));
}

#[test]
fn a_variable_is_read_as_its_setting_wants_it() {
    let environment = [
        ("DROVER_NAME", "8080"),
        ("DROVER_REGION", "true"),
        ("DROVER_NAMESPACES", "[a, b]"),
        ("DROVER_LISTEN", "127.0.0.1:0"),
        ("DROVER_MAX_DEADLINE", "1h30m"),
        // A variable of the command line.
        ("DROVER_SERVER", "http://127.0.0.1:7400"),
    ];
    let (server, own) = load("", &environment, &[]).unwrap();
    assert_eq!(
        (own.name.as_str(), own.region.as_deref()),
        ("8080", Some("true"))
    );
    assert_eq!(own.namespaces, ["a", "b"]);
    assert_eq!(server.listen.port(), 0);
    assert_eq!(server.max_deadline, Duration::from_secs(5400));
}

#[test]
fn an_unknown_setting_in_the_file_is_named_with_line_and_column() {
    let error = load("name: x\nshutdown_grase: 5s\n", &[], &[]).unwrap_err();
    assert_eq!(
        error,
        "FILE:2:1: unknown setting `shutdown_grase`, did you mean `shutdown_grace`?"
    );
    let error = load("name: x\nretry:\n  frist: 5s\n", &[], &[]).unwrap_err();
    assert!(
        error.starts_with("FILE:3:3: ") && error.contains("frist"),
        "{error}"
    );
}

#[test]
fn a_wrong_value_in_the_file_is_named_with_line_and_column() {
    for (file, at) in [
        ("name: x\nworkers: many\n", "FILE:2:10: "),
        ("name: x\nlisten: nowhere\n", "FILE:2:9: "),
        ("retry:\n  first: soon\n", "FILE:2:10: "),
        ("name: [unclosed\n", "FILE:"),
        ("- a list\n", "FILE:1:1: "),
    ] {
        let error = load(file, &[], &[]).unwrap_err();
        assert!(error.starts_with(at), "{file:?}: {error}");
        assert!(
            !error.contains('\n'),
            "no snippet, it may show secrets: {error}"
        );
    }
}

#[test]
fn an_unknown_or_wrong_variable_is_named() {
    let error = load("", &[("DROVER_WORKRES", "1")], &[]).unwrap_err();
    assert_eq!(
        error,
        "unknown setting in the environment: DROVER_WORKRES, did you mean `DROVER_WORKERS`?"
    );
    let error = load("", &[("DROVER_WORKERS", "many")], &[]).unwrap_err();
    assert!(error.starts_with("DROVER_WORKERS: "), "{error}");
}

#[test]
fn a_text_that_reads_as_something_else_needs_quotes() {
    for (file, at) in [
        ("name: 1.10\n", "FILE:1:7: "),
        ("region: true\n", "FILE:1:9: "),
        ("namespaces: [a, 7]\n", "FILE:1:17: "),
        ("workers: 1\ntoken: 20260101\n", "FILE:2:8: "),
        ("shutdown_grace: 30\n", "FILE:1:17: "),
    ] {
        let error = load(file, &[], &[]).unwrap_err();
        assert!(
            error.starts_with(at) && error.contains("quotes"),
            "{file:?}: {error}"
        );
        assert!(!error.contains("20260101"), "{error}");
    }
    let (_, own) = load("name: '1.10'\nregion: \"true\"\ntoken: '0123'\n", &[], &[]).unwrap();
    assert_eq!(
        (own.name.as_str(), own.region.as_deref(), own.token.expose()),
        ("1.10", Some("true"), "0123")
    );
}

#[test]
fn bounds_that_would_stop_everything_are_refused() {
    for (flag, value) in [
        ("--max-connections", "0"),
        ("--max-concurrent-requests", "18446744073709551615"),
        ("--max-concurrent-streams", "0"),
        ("--default-deadline", "0"),
        ("--max-deadline", "1s"),
    ] {
        let error = load("", &[], &[flag, value]).unwrap_err();
        assert!(error.contains("expected"), "{flag} {value}: {error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let args = ServerArgs {
        config: Some("/nowhere/at-all.yaml".into()),
        ..ServerArgs::default()
    };
    let error = settings::load::<Own>(&ServerSettings::default(), &args, &OwnArgs::default(), [])
        .unwrap_err();
    assert!(
        error.to_string().starts_with("/nowhere/at-all.yaml: "),
        "{error}"
    );
}

#[test]
fn what_is_printed_can_be_loaded_again_and_hides_secrets() {
    let (server, own) = load(
        "token: hunter2\nworkers: 7\n",
        &[],
        &["--shutdown-grace", "90s"],
    )
    .unwrap();
    assert_eq!(own.token.expose(), "hunter2");
    let text = settings::render(&server, &own).unwrap();
    assert!(
        !text.contains("hunter2") && text.contains("********"),
        "{text}"
    );
    assert!(!format!("{own:?}").contains("hunter2"));
    let (again, own_again) = load(&text, &[], &[]).unwrap();
    assert_eq!(again, server);
    assert_eq!(
        (own_again.workers, own_again.token.expose()),
        (7, "********")
    );
}

#[test]
fn a_server_may_have_no_settings_of_its_own() {
    let args = ServerArgs {
        listen: "127.0.0.1:1".parse().ok(),
        ..ServerArgs::default()
    };
    let (server, ()) = settings::load(&ServerSettings::default(), &args, &(), []).unwrap();
    assert_eq!(server.listen.port(), 1);
}
