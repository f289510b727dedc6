//! Arguments of `scale`, `rollout` and `failover`, and those that all changes have.

use clap::{Args, Subcommand};

use super::duration;
use crate::{commands::scale::Size, output::Format};

#[derive(Clone, Debug, Args)]
pub(crate) struct ScaleArgs {
    /// The group, as CLUSTER/GROUP or CLUSTER GROUP, and its active nodes: N, or +N and -N for so many more and fewer
    #[arg(required = true, num_args = 1..=3, allow_negative_numbers = true, value_name = "CLUSTER/GROUP [SIZE]")]
    pub(crate) target: Vec<String>,
    /// Standby nodes: N, +N or -N
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) standby: Option<Size>,
    /// Node that goes before all others, by id or name; can be repeated. Without SIZE the group gets smaller by as many
    #[arg(long, value_name = "NODE")]
    pub(crate) remove: Vec<String>,
    /// Generation that the cluster must have
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    #[command(flatten)]
    pub(crate) planned: PlannedFlags,
}

/// Waiting after a change.
#[derive(Clone, Debug, Args)]
pub(crate) struct WaitFlags {
    /// Wait until the cluster is ready
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: std::time::Duration,
}

/// What every change of a cluster has.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChangeFlags {
    #[command(flatten)]
    pub(crate) wait: WaitFlags,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// What decisions about a platform have.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlatformChangeFlags {
    /// Wait until the clusters that have nodes there are ready
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: std::time::Duration,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// What every change that can be planned has.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlannedFlags {
    /// Say what would be done and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FailoverArgs {
    /// The group, as CLUSTER/GROUP or CLUSTER GROUP; CLUSTER if it has only one
    #[arg(required = true, num_args = 1..=2, value_name = "CLUSTER[/GROUP]")]
    pub(crate) target: Vec<String>,
    /// Do without the writes that only the lost node has; otherwise it is only said what would be lost
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// How far the update of a cluster or group is; 1 if it is stuck
    Status(RolloutStatusArgs),
    /// Specs that a cluster had, newest first
    History {
        /// Name of the cluster
        cluster: String,
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Go back to an earlier spec; sizes stay as they are
    Undo(UndoArgs),
    /// Replace all nodes of a cluster or group, within its update policy
    Restart(RestartArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RestartArgs {
    /// CLUSTER, CLUSTER/GROUP or CLUSTER GROUP
    #[arg(required = true, num_args = 1..=2, value_name = "CLUSTER[/GROUP]")]
    pub(crate) target: Vec<String>,
    #[command(flatten)]
    pub(crate) planned: PlannedFlags,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RolloutStatusArgs {
    /// CLUSTER, CLUSTER/GROUP or CLUSTER GROUP
    #[arg(required = true, num_args = 1..=2, value_name = "CLUSTER[/GROUP]")]
    pub(crate) target: Vec<String>,
    /// Wait until it is over, or stuck
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: std::time::Duration,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UndoArgs {
    /// Name of the cluster
    pub(crate) cluster: String,
    /// Revision to go back to [default: the one before the present spec]
    #[arg(long, value_name = "N")]
    pub(crate) to_revision: Option<u64>,
    /// Delete the nodes of a group that the earlier spec does not have
    #[arg(long, value_name = "PATH")]
    pub(crate) remove_group: Vec<String>,
    /// Generation that the cluster must have
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    #[command(flatten)]
    pub(crate) planned: PlannedFlags,
}
