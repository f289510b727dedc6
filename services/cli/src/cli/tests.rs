//! Command lines that are accepted and rejected.

use std::time::Duration;

use clap::CommandFactory;

use super::*;
use crate::commands::scale::Size;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split(' '))
}

fn command(line: &str) -> Command {
    parse(line)
        .unwrap_or_else(|error| panic!("{line}: {error}"))
        .command
}

#[test]
fn the_grammar_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn apply_takes_files_and_a_generation() {
    let Command::Apply(args) =
        command("drover apply -f a.yaml -f - --wait --timeout 1h30m --expect-generation 0 -y")
    else {
        panic!("not apply")
    };
    assert_eq!(args.filenames, ["a.yaml", "-"]);
    let planned = &args.planned;
    assert_eq!(
        (
            planned.change.wait.wait,
            planned.yes,
            args.expect_generation
        ),
        (true, true, Some(0))
    );
    assert_eq!(planned.change.wait.timeout, Duration::from_secs(5400));
    assert!(parse("drover apply").is_err());
}

#[test]
fn plan_is_for_a_file_or_a_cluster() {
    assert!(
        matches!(command("drover plan orders"), Command::Plan(args) if args.cluster.as_deref() == Some("orders"))
    );
    assert!(
        matches!(command("drover plan -f x --detailed-exitcode"), Command::Plan(args) if args.detailed_exitcode)
    );
    assert!(parse("drover plan").is_err() && parse("drover plan x -f y").is_err());
}

#[test]
fn get_takes_a_kind_and_a_name() {
    let Command::Get(args) = command("drover get nodes hello -o json -l a=b -w --no-headers")
    else {
        panic!("not get")
    };
    assert_eq!(args.target, ["nodes", "hello"]);
    assert_eq!(
        (args.output, args.watch, args.no_headers),
        (GetFormat::Json, true, true)
    );
    assert!(parse("drover get").is_err());
    assert!(parse("drover get cluster a b").is_ok());
}

#[test]
fn logs_are_those_of_a_node_a_group_or_a_cluster() {
    for target in ["orders/db-1", "orders/db", "orders"] {
        let Command::Logs(args) = command(&format!("drover logs {target} -f --tail 5")) else {
            panic!("not logs")
        };
        assert_eq!((&*args.target, args.tail), (target, Some(5)));
        assert_eq!((args.follow, args.max_log_requests), (true, 50));
    }
    let most = |number: &str| parse(&format!("drover logs orders --max-log-requests {number}"));
    assert!(most("1000").is_ok() && most("0").is_err() && most("1001").is_err());
    assert!(parse("drover logs").is_err() && parse("drover logs a b").is_err());
}

#[test]
fn exec_passes_everything_after_the_hyphens_on() {
    let Command::Exec(args) = command("drover exec orders/db-1 -it -- redis-cli -p 1 --help")
    else {
        panic!("not exec")
    };
    assert_eq!(args.command, ["redis-cli", "-p", "1", "--help"]);
    assert!(args.stdin && args.tty);
}

#[test]
fn connect_starts_a_program_or_prints_variables() {
    let Command::Connect(args) = command("drover connect orders/db --read -- psql -c x -o y")
    else {
        panic!("not connect")
    };
    assert_eq!(
        (&*args.target, args.read, args.env),
        ("orders/db", true, false)
    );
    assert_eq!(args.command, ["psql", "-c", "x", "-o", "y"]);
    let Command::Connect(args) = command("drover connect orders --env -o json") else {
        panic!("not connect")
    };
    assert_eq!((args.env, args.output), (true, EnvFormat::Json));
    assert!(args.command.is_empty());
    for line in [
        "connect",
        "connect a b",
        "connect a -o json",
        "connect a --env -- psql",
    ] {
        assert!(parse(&format!("drover {line}")).is_err(), "{line}");
    }
}

#[test]
fn a_size_is_a_number_or_a_difference() {
    for line in [
        "scale hello web 0",
        "scale hello/web -1",
        "scale hello/web +2",
    ] {
        let Command::Scale(args) = command(&format!("drover {line}")) else {
            panic!("not scale")
        };
        let words = line.split(' ').skip(1).map(str::to_owned);
        assert_eq!(args.target, words.collect::<Vec<_>>());
    }
    assert!(
        matches!(command("drover scale hello web --standby 1"), Command::Scale(args) if args.standby == Some(Size::To(1)))
    );
    assert!(
        matches!(command("drover scale hello web --standby -1"), Command::Scale(args) if args.standby == Some(Size::By(-1)))
    );
    assert!(parse("drover scale").is_err() && parse("drover scale a b 1 2").is_err());
    assert!(parse("drover scale a b --standby some").is_err());
}

#[test]
fn what_replaces_nodes_is_asked_about_and_waited_for() {
    let planned = |line: &str| match command(line) {
        Command::Replace { planned, .. } => planned,
        other => panic!("{other:?}"),
    };
    assert!(planned("drover replace a/b-0 --dry-run").dry_run);
    assert!(planned("drover replace a/b-0 -y").yes);
    for line in ["rebind p uid -y", "confirm-loss p 3"] {
        match command(&format!("drover {line} --wait --timeout 1m -o json")) {
            Command::Rebind { change, .. } | Command::ConfirmLoss { change, .. } => {
                assert!(change.wait && change.output == Format::Json, "{line}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_loss_is_accepted_by_a_flag_of_its_own() {
    let failover = |line: &str| match command(line) {
        Command::Failover(args) => args,
        other => panic!("{other:?}"),
    };
    let args = failover("drover failover orders");
    assert_eq!((args.accept_loss, args.yes), (false, false));
    let args = failover("drover failover orders/db --accept-loss -y --wait -o json");
    assert_eq!((args.accept_loss, args.yes), (true, true));
    assert!(args.change.wait.wait && args.change.output == Format::Json);
    assert!(parse("drover failover").is_err());
}

#[test]
fn a_group_may_be_two_words_wherever_it_is_named() {
    for line in [
        "rollout restart hello web",
        "rollout status hello/web",
        "failover hello web",
    ] {
        assert!(parse(&format!("drover {line}")).is_ok(), "{line}");
    }
    assert!(parse("drover rollout restart").is_err());
    assert!(parse("drover rollout restart hello web more").is_err());
}

#[test]
fn dev_cleans_or_runs() {
    let Command::Dev(args) = command(
        "drover dev --simulate aws,gcd --emulate gcp,eu=aws --platform own=http://127.0.0.1:1 --rm",
    ) else {
        panic!("not dev")
    };
    assert_eq!(args.simulate, ["aws", "gcd"]);
    assert_eq!(args.emulate, ["gcp", "eu=aws"]);
    assert_eq!(args.platform, ["own=http://127.0.0.1:1"]);
    assert!(parse("drover dev --clean --rm").is_err() && parse("drover dev --clean -f x").is_err());
}

#[test]
fn the_hidden_commands_keep_their_own_flags() {
    let Command::Agent(args) =
        command("drover agent --node-id web-0-abcde --version 1.2 --listen 127.0.0.1:0")
    else {
        panic!("not agent")
    };
    assert_eq!(
        (args.node_id.as_str(), args.version.as_str()),
        ("web-0-abcde", "1.2")
    );
    assert!(
        matches!(command("drover launch /x/y"), Command::Launch { directory, command } if command.is_empty() && directory.as_os_str() == "/x/y")
    );
}

#[test]
fn the_server_may_be_named_anywhere() {
    let cli = parse("drover get clusters --server http://127.0.0.1:1").unwrap();
    assert_eq!(cli.global.server.as_deref(), Some("http://127.0.0.1:1"));
}

#[test]
fn what_is_no_duration_is_wrong_usage() {
    assert!(parse("drover wait cluster x --timeout 30").is_err());
    assert!(
        matches!(command("drover wait cluster x"), Command::Wait(args) if args.timeout == Duration::from_secs(60))
    );
}
