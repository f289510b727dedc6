//! The grammar of the command line.

mod connect;
mod help;
mod local;
mod rollout;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::output::{Format, GetFormat};
pub(crate) use connect::{ConnectArgs, EnvFormat};
pub(crate) use local::{
    AuditCommand, AuditVerifyArgs, CertsCommand, CertsInitArgs, CertsListArgs, ContextCommand,
    ContextFormat,
};
pub(crate) use rollout::{
    ChangeFlags, FailoverArgs, PlannedFlags, PlatformChangeFlags, RestartArgs, RolloutCommand,
    RolloutStatusArgs, ScaleArgs, UndoArgs, WaitFlags,
};

/// One declarative control plane for clusters of stateful nodes
#[derive(Debug, Parser)]
#[command(
    name = "drover",
    version,
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the orchestrator is. A heading of its own, and only in `--help`: these are in the help of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Orchestrator")]
pub(crate) struct Global {
    /// Address of the orchestrator, or of several with commas between (a:7400,b:7400): the one that leads is found.
    /// HOST:PORT alone is plaintext on this machine, TLS with --ca or --cert; unix:PATH is a socket of `drover dev`
    /// [default: that of the context, else http://127.0.0.1:7400]
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_SERVER",
        value_name = "URL"
    )]
    pub(crate) server: Option<String>,
    /// Whether `server` is a flag, which goes before a context, and not a variable, which does not.
    #[arg(skip)]
    pub(crate) server_is_flag: bool,
    /// Context to use instead of the current one; with --server its certificates and token
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Collector that traces are sent to, OTLP over gRPC [default: OTEL_EXPORTER_OTLP_ENDPOINT, else none]
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_OTLP_ENDPOINT",
        value_name = "URL"
    )]
    pub(crate) otlp_endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) secure: Secure,
}

/// How it is known, and who calls.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Orchestrator")]
pub(crate) struct Secure {
    /// Authorities to trust, PEM [default: those of the context, else the system's]
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_CA",
        value_name = "FILE"
    )]
    pub(crate) ca: Option<PathBuf>,
    /// Lists of revoked certificates of servers (CRL), PEM
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_CRL",
        value_name = "FILE"
    )]
    pub(crate) crl: Option<PathBuf>,
    /// Client certificate, PEM
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_CERT",
        value_name = "FILE"
    )]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_KEY",
        value_name = "FILE"
    )]
    pub(crate) key: Option<PathBuf>,
    /// Name that the certificate of the server must have [default: the host of its address]
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_SERVER_NAME",
        value_name = "NAME"
    )]
    pub(crate) server_name: Option<String>,
    /// Refuse a server whose certificate does not say that it is an orchestrator (spiffe://drover/orchestrator/NAME); one
    /// that says that it is something else always is
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_REQUIRE_ROLE"
    )]
    pub(crate) require_role: bool,
    /// File with a bearer token
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "DROVER_TOKEN_FILE",
        value_name = "FILE"
    )]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process, apply files and show what happens
    #[command(arg = help::stray("dev"), after_long_help = help::DEV)]
    Dev(DevArgs),
    /// Create or change what files describe
    #[command(arg = help::stray("apply"), after_long_help = help::APPLY)]
    Apply(ApplyArgs),
    /// Show what would be done, and why
    Plan(PlanArgs),
    /// List things
    #[command(after_long_help = help::GET)]
    Get(GetArgs),
    /// Explain the state of one thing
    Describe(DescribeArgs),
    /// Platforms, clusters that are not ready, the oldest wait
    Status {
        /// How it is printed; json and yaml have the platforms and clusters that are not ready
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Nodes and clusters by state, as they change
    Top(TopArgs),
    /// Change the size of a group
    #[command(after_long_help = help::SCALE)]
    Scale(ScaleArgs),
    /// How updates go on, earlier specs, going back, replacing all nodes
    #[command(subcommand, after_long_help = help::ROLLOUT)]
    Rollout(RolloutCommand),
    /// Replace a node, within the update policy of its group
    Replace {
        /// CLUSTER/NODE
        node: String,
        #[command(flatten)]
        planned: PlannedFlags,
    },
    /// Have a standby take over without what only the lost active node may have
    #[command(after_long_help = help::FAILOVER)]
    Failover(FailoverArgs),
    /// Say that you work on a node: it is not replaced for being sick
    Repair {
        /// CLUSTER/NODE
        node: String,
        /// The work is done: it is judged like any other
        #[arg(long)]
        done: bool,
        /// How the result is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Stop all work on a cluster, healing included
    Pause {
        /// Name of the cluster
        cluster: String,
        /// Why, for those who look at it later
        #[arg(long, default_value = "")]
        reason: String,
        /// How the result is printed
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Take up the work on a paused cluster
    Resume {
        /// Name of the cluster
        cluster: String,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Do one pass over a cluster now
    Reconcile {
        /// Name of the cluster
        cluster: String,
        /// Forget back-off and failed attempts first
        #[arg(long)]
        reset_back_off: bool,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Delete clusters, platforms, secrets or kept storage
    Delete(DeleteArgs),
    /// Give up what a cluster has on a platform that will never answer again
    Abandon(AbandonArgs),
    /// Say that a platform is the same backend, though it shows another uid
    Rebind {
        /// Name of the platform
        platform: String,
        /// Uid that it shows now
        uid: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        change: PlatformChangeFlags,
    },
    /// Say that nodes which vanished from a platform at once are really gone
    ConfirmLoss {
        /// Name of the platform
        platform: String,
        /// How many vanished, as `drover describe platform` says
        count: u32,
        #[command(flatten)]
        change: PlatformChangeFlags,
    },
    /// Wait until clusters are as wanted
    #[command(after_long_help = help::WAIT)]
    Wait(WaitArgs),
    /// Print the log of a node, or of all nodes of a group or cluster
    #[command(after_long_help = help::LOGS)]
    Logs(LogsArgs),
    /// Run a command inside a node
    Exec(ExecArgs),
    /// Start a client of a store with the addresses of its nodes
    #[command(after_long_help = help::CONNECT)]
    Connect(ConnectArgs),
    /// What happened to a cluster
    Events(EventsArgs),
    /// Print a manifest to start from
    Init {
        #[arg(value_enum, default_value_t)]
        kind: Starter,
    },
    /// Check files without an orchestrator
    #[command(arg = help::stray("validate"))]
    Validate {
        /// Files, directories, or - for standard input
        #[arg(short, long = "filename", required = true, value_name = "FILE")]
        filenames: Vec<String>,
    },
    /// Explain a field of the manifest
    Explain {
        /// For example cluster.spec.groups.health
        #[arg(default_value = "cluster")]
        field: String,
        /// All fields below it, with what they expect
        #[arg(long)]
        recursive: bool,
    },
    /// Print the JSON Schema of manifests
    Schema,
    /// Print documents of other tools as manifests
    #[command(arg = help::stray("convert"))]
    Convert {
        /// Files, directories, or - for standard input
        #[arg(short, long = "filename", required = true, value_name = "FILE")]
        filenames: Vec<String>,
    },
    /// Ask any server that serves grpc.health.v1
    Health {
        /// HOST:PORT or a URL [default: that of the orchestrator]
        address: Option<String>,
        /// Service to ask about
        #[arg(long, default_value = "")]
        service: String,
    },
    /// Print completions for a shell; those of bash, zsh and fish know the names of what there is
    Completion { shell: Shell },
    /// Say what may stand in place of the last word, for completions
    #[command(hide = true)]
    Complete {
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Versions of this program and the orchestrator
    Version,
    /// Names for orchestrators
    #[command(subcommand)]
    Context(ContextCommand),
    /// Certificates for trying out and for small installations
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Audit logs of servers
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Run as the agent of a node
    #[command(hide = true, disable_version_flag = true)]
    Agent(Box<drover_agent::AgentSettings>),
    /// Start a process of the local platform
    #[command(hide = true)]
    Launch {
        /// Directory of the node
        directory: PathBuf,
        /// A command to become beside its process
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<std::ffi::OsString>,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DevArgs {
    /// Files or directories to apply at the start
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) filenames: Vec<String>,
    /// Where everything is kept between runs
    #[arg(long, value_name = "DIR", default_value = ".drover")]
    pub(crate) data_dir: PathBuf,
    /// Address of the API
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7400", value_parser = socket)]
    pub(crate) listen: SocketAddr,
    /// Serve on a unix socket for this user alone, and on no port
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(crate) socket: Option<PathBuf>,
    /// Further simulated platforms, by name
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) simulate: Vec<String>,
    /// Simulate the BareMetalHosts in a file, as platform metal3; their Secrets are in it, too
    #[arg(long, value_name = "FILE")]
    pub(crate) simulate_hosts: Option<PathBuf>,
    /// Clouds to emulate, each a platform: aws, gcp (gcd), digitalocean, metal, or NAME=CLOUD (feature emulate)
    #[arg(long, value_name = "CLOUD", value_delimiter = ',')]
    pub(crate) emulate: Vec<String>,
    /// Register a platform that runs elsewhere
    #[arg(long, value_name = "NAME=URL")]
    pub(crate) platform: Vec<String>,
    /// Remove all nodes and data, and exit
    #[arg(long, conflicts_with_all = ["rm", "filenames"])]
    pub(crate) clean: bool,
    /// Remove all nodes and data on Ctrl-C
    #[arg(long)]
    pub(crate) rm: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Files, directories, or - for standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    pub(crate) filenames: Vec<String>,
    /// Generation that the cluster must have; 0: it must not exist
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    /// Take over what platforms show of these clusters and this orchestrator has no record of
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Delete the nodes of a group that the manifest no longer has
    #[arg(long, value_name = "PATH")]
    pub(crate) remove_group: Vec<String>,
    #[command(flatten)]
    pub(crate) planned: PlannedFlags,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// A cluster that is there: what is done next
    #[arg(required_unless_present = "filenames", conflicts_with = "filenames")]
    pub(crate) cluster: Option<String>,
    /// Files, directories, or - for standard input: what would be done
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) filenames: Vec<String>,
    /// As if the nodes of a group that the files no longer have were deleted
    #[arg(long, value_name = "PATH", conflicts_with = "cluster")]
    pub(crate) remove_group: Vec<String>,
    /// As if what platforms show of these clusters were taken over
    #[arg(long, conflicts_with = "cluster")]
    pub(crate) adopt: bool,
    /// Exit with 0 for nothing to do, 1 for an error, 2 for changes
    #[arg(long)]
    pub(crate) detailed_exitcode: bool,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct GetArgs {
    /// KIND [NAME…] or KIND/NAME…; kinds: clusters, nodes, platforms, hosts, storage, events, discovered, secrets, replicas
    #[arg(required = true, num_args = 1.., value_name = "KIND [NAME]")]
    pub(crate) target: Vec<String>,
    /// Only what has these labels: a=b,c!=d,e,!f
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    /// Kept storage of all platforms and clusters, as without a name
    #[arg(long)]
    pub(crate) all: bool,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: GetFormat,
    /// Follow changes as they happen
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Leave out the line of column names
    #[arg(long)]
    pub(crate) no_headers: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DescribeArgs {
    /// KIND NAME… or KIND/NAME…; kinds: cluster, node, platform
    #[arg(required = true, num_args = 1.., value_name = "KIND NAME")]
    pub(crate) target: Vec<String>,
    /// Show what is fine too
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AbandonArgs {
    /// Name of the cluster
    pub(crate) cluster: String,
    /// Name of the platform
    #[arg(long)]
    pub(crate) platform: String,
    /// Uid of the backend [default: the only one that the cluster has there]
    #[arg(long)]
    pub(crate) uid: Option<String>,
    /// Delete nodes that it shows all the same, should it ever answer again; otherwise they are left alone
    #[arg(long)]
    pub(crate) delete_nodes: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) change: ChangeFlags,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DeleteArgs {
    /// KIND NAME… or KIND/NAME…; kinds: cluster, platform, secret, storage
    #[arg(num_args = 1.., value_name = "KIND NAME", required_unless_present_any = ["filenames", "selector"], conflicts_with = "filenames")]
    pub(crate) target: Vec<String>,
    /// Everything that these files describe
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) filenames: Vec<String>,
    /// Clusters that have these labels
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    /// Wait until they are gone
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: std::time::Duration,
    /// What is not there is not a failure
    #[arg(long)]
    pub(crate) ignore_not_found: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Say what would be done and change nothing; clusters only
    #[arg(long, conflicts_with = "wait")]
    pub(crate) dry_run: bool,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// Print once and exit, as without a terminal
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct WaitArgs {
    /// Names of clusters, or cluster/NAME…
    #[arg(required = true, num_args = 1.., value_name = "CLUSTER")]
    pub(crate) target: Vec<String>,
    /// ready, delete, condition=X or condition=X=false
    #[arg(long = "for", default_value = "ready", value_name = "WHAT")]
    pub(crate) condition: String,
    /// How long to wait
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: std::time::Duration,
    /// How the result is printed; json and yaml have the clusters
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    /// CLUSTER/NODE; with CLUSTER/GROUP or CLUSTER all nodes of it, each line after the name of its node. A name that a
    /// node and a group have is the node's; group/CLUSTER/GROUP is always the group
    #[arg(value_name = "CLUSTER[/NODE|/GROUP]")]
    pub(crate) target: String,
    /// Follow new lines as they come; of a group or cluster also those of nodes that come, from their first line
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last lines, of each node
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u32>,
    /// The run before the last restart
    #[arg(long)]
    pub(crate) previous: bool,
    /// Only what is younger
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) since: Option<std::time::Duration>,
    /// Most logs that -f holds open at once, at most 1000: each takes memory of the orchestrator, a stream of its platform and
    /// in pods a connection to a kubelet. Of more nodes -f follows none; one that comes later waits for a place
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) max_log_requests: u32,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// CLUSTER/NODE
    pub(crate) node: String,
    /// Send standard input
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Run it on a terminal
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Command and arguments, after --
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct EventsArgs {
    /// Cluster [default: all]
    pub(crate) cluster: Option<String>,
    /// Follow new events as they happen
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Only those after this sequence
    #[arg(long, value_name = "N")]
    pub(crate) after: Option<u64>,
    /// Only those that are younger
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) since: Option<std::time::Duration>,
    /// Only those of these types: Info, Warning
    #[arg(long, value_delimiter = ',', value_name = "TYPE")]
    pub(crate) types: Vec<String>,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Leave out the line of column names
    #[arg(long)]
    pub(crate) no_headers: bool,
}

/// Manifests to start from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Starter {
    /// Three processes that answer health checks
    #[default]
    Hello,
    /// A Redis and its replica
    Redis,
    /// An etcd of three members
    Etcd,
    /// A PostgreSQL and two standbys
    Postgresql,
}

/// Parses the address to listen on; `localhost` is the loopback address.
fn socket(text: &str) -> Result<SocketAddr, String> {
    let text = text.replacen("localhost:", "127.0.0.1:", 1);
    text.parse()
        .map_err(|_| "expected IP:PORT like 127.0.0.1:7400".to_owned())
}

/// Parses a duration in the notation of manifests.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    drover_manifest::scalar::parse_duration(text)
        .and_then(|duration| duration.try_into().ok())
        .ok_or_else(|| "expected a duration like 30s, 5m or 1h30m".to_owned())
}
