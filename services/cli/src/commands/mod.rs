//! The subcommands, and their dispatch.

mod access;
mod addons;
pub(crate) mod apply;
mod audit;
mod backend;
mod describe;
mod edit;
mod events;
mod get;
mod infrastructure;
pub(crate) mod offline;
mod plan;
mod probe;
mod report;
mod rollout;
pub(crate) mod scale;
mod secret;
mod storage;
mod target;
mod tree;
pub(crate) mod wait;

use std::process::ExitCode;

use crate::{
    certs,
    cli::{Command, Global},
    client::Client,
    context, dev,
    failure::{Failure, Outcome},
};

/// Runs a subcommand that needs an async runtime.
pub(crate) async fn run(global: &Global, command: Command) -> Result<ExitCode, Failure> {
    let client = || -> Outcome<Client> { Ok(Client::connect(&context::place(global)?.target()?)) };
    let exit = match command {
        Command::Dev(args) => dev::run(global, args).await,
        Command::Apply(args) => apply::run(&client()?, args).await,
        Command::Plan(args) => plan::run(&client()?, args).await,
        Command::Get(args) => get::run(&client()?, args).await,
        Command::Describe(args) => describe::run(&client()?, args).await,
        Command::Status => describe::status(&client()?).await,
        Command::Scale(args) => scale::run(&client()?, args).await,
        Command::Rollout(command) => rollout::run(&client()?, command).await,
        Command::Replace { node } => edit::replace(&client()?, &node).await,
        Command::Repair { node, done } => edit::repair(&client()?, &node, done).await,
        Command::Pause { cluster, reason } => edit::pause(&client()?, &cluster, &reason).await,
        Command::Resume { cluster, wait } => edit::resume(&client()?, &cluster, &wait).await,
        Command::Reconcile {
            cluster,
            reset_back_off,
        } => edit::reconcile(&client()?, &cluster, reset_back_off).await,
        Command::Abandon {
            cluster,
            platform,
            uid,
            delete_nodes,
            yes,
        } => backend::abandon(&client()?, &cluster, &platform, uid, delete_nodes, yes).await,
        Command::Rebind { platform, uid, yes } => {
            backend::rebind(&client()?, &platform, &uid, yes).await
        }
        Command::ConfirmLoss { platform, count } => {
            backend::confirm_loss(&client()?, &platform, count).await
        }
        Command::Delete(args) => edit::delete(&client()?, args).await,
        Command::Wait(args) => wait::run(&client()?, args).await,
        Command::Logs(args) => access::logs(&client()?, args).await,
        Command::Exec(args) => return access::exec(&client()?, args).await,
        Command::Events(args) => events::run(&client()?, args).await,
        Command::Health { address, service } => probe::health(global, &address, &service).await,
        Command::Version => probe::version(&client()?).await,
        Command::Init { kind } => offline::init(kind),
        Command::Validate { filenames } => offline::validate(&filenames),
        Command::Explain { field } => offline::explain(&field),
        Command::Schema => offline::schema(),
        Command::Convert { filenames } => offline::convert(&filenames),
        Command::Completion { shell } => offline::completion(shell),
        Command::Context(command) => context::run(global, command),
        Command::Certs(command) => certs::run(command),
        Command::Audit(command) => audit::run(command),
        // These have a runtime of their own, or none.
        Command::Agent(_) | Command::Launch { .. } => {
            Err(Failure::failed("not a command of the client"))
        }
    };
    exit.map(ExitCode::from)
}
