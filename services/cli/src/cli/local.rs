//! Arguments of commands about files of this machine: contexts, certificates, audit logs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::output::ReportFormat;

/// How contexts are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContextFormat {
    /// For people
    #[default]
    Text,
    /// One object
    Json,
    /// The same as YAML
    Yaml,
    /// context/NAME, one a line
    Name,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List contexts
    List {
        /// How they are printed
        #[arg(short, long, value_enum, default_value_t)]
        output: ContextFormat,
    },
    /// Use a context from now on
    Use {
        name: String,
        /// How the result is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: ContextFormat,
    },
    /// Show one context [default: the current one]
    Show {
        name: Option<String>,
        /// How it is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: ContextFormat,
    },
    /// Forget contexts
    Delete {
        #[arg(required = true)]
        names: Vec<String>,
        /// How the result is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: ContextFormat,
    },
    /// Add or change a context; --ca, --cert, --key, --server-name and --token-file are kept with it
    Set {
        name: String,
        /// Address of its orchestrator, or of several with commas between
        url: String,
        /// How the result is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: ContextFormat,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CertsCommand {
    /// Make an authority, and a certificate for each service and for an administrator
    Init(CertsInitArgs),
    /// Show what certificates say
    Show {
        /// Files, or directories of them
        #[arg(default_value = "certs", value_name = "FILE|DIR")]
        paths: Vec<PathBuf>,
    },
    /// Revoke certificates: writes them down, and a new list of all that are revoked
    Revoke {
        /// Names of certificates in the directory, or files of them
        #[arg(required = true, value_name = "NAME|FILE")]
        certificates: Vec<String>,
        /// Where the list goes and how long it holds
        #[command(flatten)]
        list: CertsListArgs,
    },
    /// Make a new list of the certificates that are revoked, before the last one ends
    Crl(CertsListArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CertsListArgs {
    /// Directory of the authority: revoked.txt says what is revoked, crl.pem is the list for servers
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub(crate) dir: PathBuf,
    /// Days that the list holds; after that who checks it refuses every certificate
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub(crate) days: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Say whether a log is as it was written, and the first line that is not
    Verify(AuditVerifyArgs),
    /// Print what a log says of a command that is run in a node
    Digest {
        /// Key of the log (`audit_key`)
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AuditVerifyArgs {
    /// Files of the log, oldest first
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Hash of a line that has to be there, as an earlier check showed it: without it a cut-off end is not seen
    #[arg(long, value_name = "HASH")]
    pub(crate) expect: Option<String>,
    /// Go on where the log itself says that lines are gone, or where another chain begins (standard output)
    #[arg(long)]
    pub(crate) allow_gaps: bool,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ReportFormat,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CertsInitArgs {
    /// Where they are put; what is there is kept
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub(crate) dir: PathBuf,
    /// Further names and addresses of the services, beside localhost, 127.0.0.1, ::1 and their own
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Further platform servers, each with a certificate for the name of its machine or container
    #[arg(long = "platform", value_name = "NAME")]
    pub(crate) platforms: Vec<String>,
    /// Further orchestrators, each with a certificate for the name of its machine or container and for `orchestrator`
    #[arg(long = "orchestrator", value_name = "NAME")]
    pub(crate) orchestrators: Vec<String>,
    /// Members of an etcd, each with a certificate for the name of its machine or container and for `etcd`
    #[arg(long, value_name = "NAME")]
    pub(crate) etcd: Vec<String>,
    /// Further people: viewer, operator, admin, resource-viewer or resource-operator, and a name
    #[arg(long = "user", value_name = "ROLE/NAME")]
    pub(crate) users: Vec<String>,
    /// Days that the certificates are valid; the authority is valid for ten years
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub(crate) days: u32,
}
