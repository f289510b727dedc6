//! `drover-orchestrator store`: store maintenance. Except for the backup, it requires that no orchestrator runs on the
//! store.

use std::{error::Error, io::Write, path::PathBuf};

use clap::{Parser, Subcommand};
use drover_store::Store;

/// Looks after the store in a directory; all but `backup` while no orchestrator runs on it
#[derive(Debug, Parser)]
#[command(name = "drover-orchestrator store", version)]
pub(crate) struct Command {
    /// Directory of the store
    #[arg(long, global = true, value_name = "DIR", default_value = "drover-data")]
    data_dir: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write a copy to a new file, also while an orchestrator runs
    Backup {
        /// The file; it must not exist
        file: PathBuf,
    },
    /// Make the store from a copy, in a directory that has none. Until `confirm-restore` no orphan is deleted: nodes
    /// made after the copy was taken are healthy and unknown to it
    Restore {
        /// The copy
        file: PathBuf,
    },
    /// Say that what the restored store does not know may be deleted: nodes that were made after the copy was taken go once
    /// they were seen for the time that their cluster grants (2 minutes), and clusters make nodes again
    ConfirmRestore,
    /// Print what is stored, a line of JSON for each key, without secrets
    Dump,
}

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Runs the command.
pub(crate) async fn run(command: Command) -> Outcome {
    let directory = command.data_dir;
    if let Action::Restore { file } = &command.action {
        drover_store::restore(file, &directory).await?;
        eprintln!("restored {} from {}", directory.display(), file.display());
        eprintln!(
            "No orphan is deleted until: drover-orchestrator store confirm-restore --data-dir {}",
            directory.display()
        );
        return Ok(());
    }
    if !directory.exists() {
        return Err(format!(
            "there is no store in {}; name it with --data-dir",
            directory.display()
        )
        .into());
    }
    if let Action::Backup { file } = &command.action {
        drover_store::backup(&directory, file).await?;
        eprintln!("wrote {}", file.display());
        return Ok(());
    }
    let store = Store::open_directory(&directory).await?;
    match command.action {
        Action::Restore { .. } | Action::Backup { .. } => {}
        Action::ConfirmRestore if !store.restored_hold() => eprintln!("nothing waits for it"),
        Action::ConfirmRestore => {
            store.confirm_restore().await?;
            eprintln!("confirmed: orphans are swept again");
        }
        Action::Dump => {
            let mut lines = Vec::new();
            store.dump(&mut lines, &drover_orchestrator::show).await?;
            std::io::stdout().write_all(&lines)?;
        }
    }
    store.close().await?;
    Ok(())
}
