//! The subcommands, and their dispatch.

mod access;
mod addons;
pub(crate) mod apply;
mod audit;
mod backend;
mod confirm;
mod connect;
mod describe;
mod edit;
mod events;
mod failover;
mod get;
mod infrastructure;
mod logs;
pub(crate) mod offline;
mod plan;
mod probe;
mod replace;
mod report;
mod rollout;
pub(crate) mod scale;
mod secret;
mod storage;
mod tally;
pub(crate) mod target;
mod top;
mod tree;
pub(crate) mod wait;

use std::process::ExitCode;

use crate::{
    certs,
    cli::{Command, Global},
    client::Client,
    complete, context, dev,
    failure::{Failure, Outcome},
};

/// How a subcommand ends.
#[derive(Debug)]
pub(crate) enum End {
    Code(ExitCode),
    /// This process becomes another program, after everything else that it has to do.
    Program(connect::Program),
}

/// Runs a subcommand that needs an async runtime.
pub(crate) async fn run(global: &Global, command: Command) -> Result<End, Failure> {
    let client_that_takes = |stream_window: Option<u32>| -> Outcome<Client> {
        let place = context::place(global)?;
        let mut targets = place.targets()?;
        for target in &mut targets {
            target.stream_window = stream_window;
        }
        Ok(Client::to(&targets).named_by(place.origin()))
    };
    let client = || client_that_takes(None);
    let exit = match command {
        Command::Dev(args) => dev::run(global, args).await,
        Command::Apply(args) => apply::run(&client()?, args).await,
        Command::Plan(args) => plan::run(&client()?, args).await,
        Command::Get(args) => get::run(&client()?, args).await,
        Command::Describe(args) => describe::run(&client()?, args).await,
        Command::Status { output } => describe::status(&client()?, output).await,
        Command::Top(args) => top::run(&client()?, args).await,
        Command::Scale(args) => scale::run(&client()?, args).await,
        Command::Rollout(command) => rollout::run(&client()?, command).await,
        Command::Replace { node, planned } => replace::run(&client()?, &node, &planned).await,
        Command::Failover(args) => failover::run(&client()?, args).await,
        Command::Repair { node, done, output } => {
            edit::repair(&client()?, &node, done, output).await
        }
        Command::Pause {
            cluster,
            reason,
            output,
        } => edit::pause(&client()?, &cluster, &reason, output).await,
        Command::Resume { cluster, change } => edit::resume(&client()?, &cluster, &change).await,
        Command::Reconcile {
            cluster,
            reset_back_off,
            change,
        } => edit::reconcile(&client()?, &cluster, reset_back_off, &change).await,
        Command::Abandon(args) => backend::abandon(&client()?, args).await,
        Command::Rebind {
            platform,
            uid,
            yes,
            change,
        } => backend::rebind(&client()?, &platform, &uid, yes, &change).await,
        Command::ConfirmLoss {
            platform,
            count,
            change,
        } => backend::confirm_loss(&client()?, &platform, count, &change).await,
        Command::Delete(args) => edit::delete(&client()?, args).await,
        Command::Wait(args) => wait::run(&client()?, args).await,
        Command::Logs(args) => logs::run(&client_that_takes(Some(logs::WINDOW))?, args).await,
        Command::Exec(args) => return access::exec(&client()?, args).await.map(End::Code),
        Command::Connect(args) => return connect::run(&client()?, args).await,
        Command::Events(args) => events::run(&client()?, args).await,
        Command::Health { address, service } => {
            probe::health(global, address.as_deref(), &service).await
        }
        Command::Version => probe::version(&client()?).await,
        Command::Init { kind } => offline::init(kind),
        Command::Validate { filenames } => offline::validate(&filenames),
        Command::Explain { field, recursive } => offline::explain(&field, recursive),
        Command::Schema => offline::schema(),
        Command::Convert { filenames } => offline::convert(&filenames),
        Command::Completion { shell } => offline::completion(shell),
        Command::Complete { words } => complete::run(global, &words).await,
        Command::Context(command) => context::run(global, command),
        Command::Certs(command) => certs::run(command),
        Command::Audit(command) => audit::run(command),
        // These have a runtime of their own, or none.
        Command::Agent(_) | Command::Launch { .. } => {
            Err(Failure::failed("not a command of the client"))
        }
    };
    exit.map(|exit| End::Code(exit.into()))
}
