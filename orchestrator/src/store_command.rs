//! `drover-orchestrator store`: store maintenance. A store in a directory is for one process: except for the backup, no
//! orchestrator may run on it.

mod maintain;

use std::{error::Error, io::Write, path::PathBuf, sync::Arc};

use clap::{Parser, Subcommand};
use drover_orchestrator::EtcdSettings;
use drover_store::{Backend, SqliteBackend, Store, keys::Name};
use drover_store_etcd::EtcdBackend;
use tokio::io::{AsyncWriteExt, BufReader, BufWriter};

/// Looks after the store in a directory or in etcd; one in a directory, for all but `backup`, while no orchestrator runs
/// on it
#[derive(Debug, Parser)]
#[command(name = "drover-orchestrator store", version)]
pub(crate) struct Command {
    /// Directory of the store
    #[arg(long, global = true, value_name = "DIR", default_value = "drover-data")]
    data_dir: PathBuf,
    /// Client URL of a member of the etcd that holds the store; repeat for each [default: none, it is in --data-dir]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "data_dir")]
    etcd_endpoint: Vec<String>,
    /// What all keys in etcd begin with
    #[arg(long, global = true, value_name = "PREFIX", default_value = "drover/")]
    etcd_prefix: String,
    /// Authorities of etcd, PEM [default: the system's]
    #[arg(long, global = true, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Certificate that is shown to etcd, PEM
    #[arg(long, global = true, value_name = "FILE")]
    etcd_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, global = true, value_name = "FILE")]
    etcd_key: Option<PathBuf>,
    /// User who logs in to etcd with a password
    #[arg(long, global = true, value_name = "NAME")]
    etcd_user: Option<String>,
    /// File that holds only the password
    #[arg(long, global = true, value_name = "FILE")]
    etcd_password_file: Option<PathBuf>,
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
    /// Write all that is stored to a new file, for `import` into another kind of store; from etcd also while
    /// orchestrators run
    Export {
        /// The file; it must not exist
        file: PathBuf,
    },
    /// Make the store from an export, in a directory or an etcd that has none. As after `restore`, no orphan is deleted
    /// until `confirm-restore`
    Import {
        /// The export
        file: PathBuf,
    },
    /// Give back what the members of etcd keep and do not use, one member at a time and only while all are healthy; and
    /// end the alarm of one that has no room. Prints what each member has, and what was done. Needs the role `root` in
    /// an etcd with users
    Maintain(maintain::Arguments),
}

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

impl Command {
    fn etcd(&self) -> EtcdSettings {
        EtcdSettings {
            endpoints: self.etcd_endpoint.clone(),
            prefix: self.etcd_prefix.clone(),
            ca: self.etcd_ca.clone(),
            cert: self.etcd_cert.clone(),
            key: self.etcd_key.clone(),
            user: self.etcd_user.clone(),
            password_file: self.etcd_password_file.clone(),
            ..EtcdSettings::default()
        }
    }

    async fn backend(&self) -> drover_core::Result<Arc<dyn Backend>> {
        let etcd = self.etcd();
        if etcd.is_used() {
            return Ok(Arc::new(EtcdBackend::open(&etcd).await?));
        }
        Ok(Arc::new(SqliteBackend::open(self.data_dir.clone())?))
    }

    fn place(&self) -> String {
        if self.etcd_endpoint.is_empty() {
            return self.data_dir.display().to_string();
        }
        format!("{} at {}", self.etcd_prefix, self.etcd_endpoint.join(", "))
    }
}

/// Runs the command.
pub(crate) async fn run(command: Command) -> Outcome {
    if let Action::Import { file } = &command.action {
        return import(&command, file).await;
    }
    if let Action::Maintain(arguments) = &command.action {
        if command.etcd_endpoint.is_empty() {
            let message = "this is for a store in etcd: name its members with --etcd-endpoint; \
                           one in a directory needs no maintenance";
            return Err(message.into());
        }
        return maintain::run(&command.etcd(), arguments).await;
    }
    if !command.etcd_endpoint.is_empty() {
        return match &command.action {
            Action::Backup { .. } | Action::Restore { .. } => {
                Err("this is for a store in a directory; of one in etcd: \
                 `store export` and `store import`, or etcd's own snapshots"
                    .into())
            }
            action => with_store(&command, action).await,
        };
    }
    let directory = command.data_dir.clone();
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
    with_store(&command, &command.action).await
}

async fn with_store(command: &Command, action: &Action) -> Outcome {
    let backend = command.backend().await?;
    // Opening would make one.
    if backend.get(&Name::Meta.into()).await?.is_none() {
        return Err(format!("there is no store in {}", command.place()).into());
    }
    let store = Store::open(backend).await?;
    let done = act(&store, action).await;
    store.close().await?;
    done
}

async fn act(store: &Store, action: &Action) -> Outcome {
    match action {
        Action::Restore { .. }
        | Action::Backup { .. }
        | Action::Import { .. }
        | Action::Maintain(_) => {}
        Action::ConfirmRestore if !store.restored_hold() => eprintln!("nothing waits for it"),
        Action::ConfirmRestore => {
            // Not beside a process that has in memory what this changes.
            store.take_all().await?;
            store.confirm_restore().await?;
            eprintln!("confirmed: orphans are swept again");
        }
        Action::Dump => {
            let mut lines = Vec::new();
            store.dump(&mut lines, &drover_orchestrator::show).await?;
            std::io::stdout().write_all(&lines)?;
        }
        Action::Export { file } => {
            let mut options = tokio::fs::OpenOptions::new();
            // It holds specs and user data.
            let options = options.write(true).create_new(true).mode(0o600);
            let out = options.open(file).await;
            let out = out.map_err(|error| format!("cannot make {}: {error}", file.display()))?;
            let mut out = BufWriter::new(out);
            let summary = store.export(&mut out).await?;
            out.flush().await?;
            out.get_ref().sync_all().await?;
            eprintln!("wrote {}: {} entries", file.display(), summary.entries);
        }
    }
    Ok(())
}

async fn import(command: &Command, file: &std::path::Path) -> Outcome {
    let from = tokio::fs::File::open(file).await;
    let from = from.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let backend = command.backend().await?;
    let summary = drover_store::import(&*backend, &mut BufReader::new(from)).await?;
    eprintln!(
        "imported {} into {}: {} entries",
        file.display(),
        command.place(),
        summary.entries
    );
    eprintln!(
        "No orphan is deleted until: drover-orchestrator store confirm-restore, on this store"
    );
    Ok(())
}
