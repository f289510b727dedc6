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
mod hint;
mod input;
mod trace;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, error::ErrorKind, parser::ValueSource};

pub use crate::hint::hints;
use crate::{
    cli::{Cli, Command},
    commands::End,
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
        hint::remember(&Cli::command(), &matches);
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
            let _ = without_variables(error).print();
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

/// Wrong usage as if no setting came from a variable: clap shows each that has a value as a part of the usage, and then
/// no help of a command whose subcommand is missing.
fn without_variables(error: clap::Error) -> clap::Error {
    if !error.use_stderr() {
        return error;
    }
    let grammar = Cli::command().mut_args(|argument| argument.env(None::<&'static str>));
    match grammar.try_get_matches() {
        Err(same)
            if same.kind() == error.kind() || error.kind() == ErrorKind::MissingSubcommand =>
        {
            same
        }
        // The value of a variable is what is wrong.
        _ => error,
    }
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
            context::refuse_users(&cli.global)?;
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            let end = runtime.block_on(trace::traced(&cli.global, name, command));
            // A thread that still reads standard input must not delay the exit.
            runtime.shutdown_background();
            match end? {
                End::Code(code) => Ok(code),
                End::Program(program) => Err(program.start()),
            }
        }
    }
}
