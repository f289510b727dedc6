//! Arguments of `connect`.

use clap::{Args, ValueEnum};

/// How variables are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EnvFormat {
    /// Lines for a shell
    #[default]
    Sh,
    /// One object
    Json,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    /// CLUSTER; CLUSTER/GROUP if several groups of it have addresses
    #[arg(value_name = "CLUSTER[/GROUP]")]
    pub(crate) target: String,
    /// To read what may be a moment old: the ready standby nodes, or the active ones if there is none
    #[arg(long)]
    pub(crate) read: bool,
    /// Print the variables and start nothing
    #[arg(long, conflicts_with = "command")]
    pub(crate) env: bool,
    /// How --env prints them
    #[arg(short, long, value_enum, default_value_t, requires = "env")]
    pub(crate) output: EnvFormat,
    /// Program and arguments, after -- [default: psql or redis-cli, by the store]
    #[arg(last = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<String>,
}
