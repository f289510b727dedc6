//! The command line of Drover, as a library for its tests.

#[macro_use]
mod output;

mod certs;
mod cli;
mod client;
mod commands;
mod complete;
mod context;
mod dev;
mod failure;
mod input;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource};

use crate::{
    cli::{Cli, Command},
    failure::{Exit, Failure},
};

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    // `dev` serves platforms, and so needs workers for templates.
    if let Some(code) = drover_templates::worker::enter() {
        return code;
    }
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        let name = matches.subcommand_name().unwrap_or_default().to_owned();
        let mut cli = Cli::from_arg_matches(&matches)?;
        cli.global.server_is_flag =
            matches.value_source("server") == Some(ValueSource::CommandLine);
        Ok((cli, name))
    });
    let (cli, name) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => {
            // Only help and version are requested; everything else is wrong usage.
            let exit = if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
            if error.kind() == ErrorKind::MissingSubcommand
                && let Some(help) = help()
            {
                eprint!("{help}");
                return exit.into();
            }
            let _ = error.print();
            return exit.into();
        }
    };
    match run(cli, &name) {
        Ok(code) => code,
        Err(failure) => {
            if !failure.message.is_empty() {
                complain!("{failure}");
            }
            failure.exit.into()
        }
    }
}

/// Help of a command whose subcommand is missing, as with `--help`. clap shows it by itself only if no setting comes
/// from the environment.
fn help() -> Option<clap::Error> {
    let arguments = std::env::args_os().chain(["--help".into()]);
    let help = Cli::command().try_get_matches_from(arguments).err()?;
    (help.kind() == ErrorKind::DisplayHelp).then_some(help)
}

fn run(cli: Cli, name: &str) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Agent(settings) => {
            drover_agent::run_blocking(*settings)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Launch { directory, command } => {
            use drover_platform_cloud::drivers::local::{command_main, launch_main};
            let code = match command.split_first() {
                None => launch_main(&directory),
                Some((program, arguments)) => command_main(&directory, program, arguments),
            };
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
        command => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            let code = runtime.block_on(trace::traced(&cli.global, name, command));
            // A thread that still reads standard input must not delay the exit.
            runtime.shutdown_background();
            code
        }
    }
}
