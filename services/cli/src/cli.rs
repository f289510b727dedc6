//! The grammar of the command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::output::Format;

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

/// Where the orchestrator is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// Address of the orchestrator [default: that of the context, else http://127.0.0.1:7400]
    #[arg(long, global = true, env = "DROVER_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Context to use instead of the current one
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Collector that traces are sent to, OTLP over gRPC [default: OTEL_EXPORTER_OTLP_ENDPOINT, else none]
    #[arg(long, global = true, env = "DROVER_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) secure: Secure,
}

/// How it is known, and who calls.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Secure {
    /// Authorities to trust, PEM [default: those of the context, else the system's]
    #[arg(long, global = true, env = "DROVER_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate, PEM
    #[arg(long, global = true, env = "DROVER_CERT", value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, global = true, env = "DROVER_KEY", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Name that the certificate of the server must have [default: the host of its address]
    #[arg(long, global = true, env = "DROVER_SERVER_NAME", value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// File with a bearer token
    #[arg(long, global = true, env = "DROVER_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process, apply files and show what happens
    Dev(DevArgs),
    /// Create or change what files describe
    Apply(ApplyArgs),
    /// Show what would be done, and why
    Plan(PlanArgs),
    /// List things
    Get(GetArgs),
    /// Explain the state of one thing
    Describe(DescribeArgs),
    /// Platforms, clusters that are not ready, the oldest wait
    Status,
    /// Change the size of a group
    Scale(ScaleArgs),
    /// How updates go on, earlier specs, going back, replacing all nodes
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Replace a node, within the update policy of its group
    Replace {
        /// CLUSTER/NODE
        node: String,
    },
    /// Stop all work on a cluster, healing included
    Pause {
        cluster: String,
        /// Why, for those who look at it later
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Take up the work on a paused cluster
    Resume { cluster: String },
    /// Do one pass over a cluster now
    Reconcile {
        cluster: String,
        /// Forget back-off and failed attempts first
        #[arg(long)]
        reset_back_off: bool,
    },
    /// Delete clusters, platforms or secrets
    Delete(DeleteArgs),
    /// Wait until a cluster is as wanted
    Wait(WaitArgs),
    /// Print the log of a node
    Logs(LogsArgs),
    /// Run a command inside a node
    Exec(ExecArgs),
    /// What happened to a cluster
    Events(EventsArgs),
    /// Print a manifest to start from
    Init {
        #[arg(value_enum, default_value_t)]
        kind: Starter,
    },
    /// Check files without an orchestrator
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
    },
    /// Print the JSON Schema of manifests
    Schema,
    /// Print documents of other tools as manifests
    Convert {
        /// Files, directories, or - for standard input
        #[arg(short, long = "filename", required = true, value_name = "FILE")]
        filenames: Vec<String>,
    },
    /// Ask any server that serves grpc.health.v1
    Health {
        /// HOST:PORT or a URL
        address: String,
        /// Service to ask about
        #[arg(long, default_value = "")]
        service: String,
    },
    /// Print completions for a shell
    Completion { shell: Shell },
    /// Versions of this program and the orchestrator
    Version,
    /// Names for orchestrators
    #[command(subcommand)]
    Context(ContextCommand),
    /// Certificates for trying out and for small installations
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Run as the agent of a node
    #[command(hide = true, disable_version_flag = true)]
    Agent(Box<drover_agent::AgentSettings>),
    /// Start a process of the local platform
    #[command(hide = true)]
    Launch {
        /// Directory of the node
        directory: PathBuf,
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
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7400")]
    pub(crate) listen: SocketAddr,
    /// Further simulated platforms, by name
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) simulate: Vec<String>,
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
    /// Check everything and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Wait until the clusters are ready
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: std::time::Duration,
    /// Generation that the cluster must have; 0: it must not exist
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    /// Take over clusters that a platform already shows
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Delete the nodes of a group that the manifest no longer has
    #[arg(long, value_name = "PATH")]
    pub(crate) remove_group: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// A cluster that is there: what is done next
    #[arg(required_unless_present = "filenames", conflicts_with = "filenames")]
    pub(crate) cluster: Option<String>,
    /// Files, directories, or - for standard input: what would be done
    #[arg(short, long = "filename", value_name = "FILE")]
    pub(crate) filenames: Vec<String>,
    /// Exit with 0 for nothing to do, 1 for an error, 2 for changes
    #[arg(long)]
    pub(crate) detailed_exitcode: bool,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct GetArgs {
    /// KIND [NAME] or KIND/NAME; kinds: clusters, nodes, platforms, hosts, events, discovered, secrets
    #[arg(required = true, num_args = 1..=2, value_name = "KIND [NAME]")]
    pub(crate) target: Vec<String>,
    /// Only what has these labels: a=b,c!=d,e,!f
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub(crate) selector: Option<String>,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
    /// Go on with changes as they come
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Leave out the line of column names
    #[arg(long)]
    pub(crate) no_headers: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DescribeArgs {
    /// KIND NAME or KIND/NAME; kinds: cluster, node, platform
    #[arg(required = true, num_args = 1..=2, value_name = "KIND NAME")]
    pub(crate) target: Vec<String>,
    /// Show what is fine too
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ScaleArgs {
    pub(crate) cluster: String,
    /// Path of the group
    pub(crate) group: String,
    /// Active nodes
    #[arg(required_unless_present = "standby")]
    pub(crate) size: Option<u32>,
    /// Standby nodes
    #[arg(long)]
    pub(crate) standby: Option<u32>,
    /// Generation that the cluster must have
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    /// Say what would be done and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// How far the update of a cluster or group is; 1 if it is stuck
    Status(RolloutStatusArgs),
    /// Specs that a cluster had, newest first
    History {
        cluster: String,
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Go back to an earlier spec; sizes stay as they are
    Undo(UndoArgs),
    /// Replace all nodes of a cluster or group, within its update policy
    Restart {
        /// CLUSTER or CLUSTER/GROUP
        #[arg(value_name = "CLUSTER[/GROUP]")]
        target: String,
        /// Say what would be done and change nothing
        #[arg(long)]
        dry_run: bool,
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RolloutStatusArgs {
    /// CLUSTER or CLUSTER/GROUP
    #[arg(value_name = "CLUSTER[/GROUP]")]
    pub(crate) target: String,
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
    pub(crate) cluster: String,
    /// Revision to go back to [default: the one before the present spec]
    #[arg(long, value_name = "N")]
    pub(crate) to_revision: Option<u64>,
    /// Generation that the cluster must have
    #[arg(long, value_name = "N")]
    pub(crate) expect_generation: Option<u64>,
    /// Say what would be done and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DeleteArgs {
    /// KIND NAME or KIND/NAME; kinds: cluster, platform, secret
    #[arg(num_args = 1..=2, value_name = "KIND NAME", required_unless_present = "filenames", conflicts_with = "filenames")]
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
pub(crate) struct WaitArgs {
    /// cluster NAME or cluster/NAME
    #[arg(required = true, num_args = 1..=2, value_name = "cluster NAME")]
    pub(crate) target: Vec<String>,
    /// ready, delete, condition=X or condition=X=false
    #[arg(long = "for", default_value = "ready", value_name = "WHAT")]
    pub(crate) condition: String,
    /// How long to wait
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub(crate) timeout: std::time::Duration,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct LogsArgs {
    /// CLUSTER/NODE
    pub(crate) node: String,
    /// Go on with new lines as they come
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u32>,
    /// The run before the last restart
    #[arg(long)]
    pub(crate) previous: bool,
    /// Only what is younger
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub(crate) since: Option<std::time::Duration>,
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
    /// Go on with new events as they come
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
    /// Three Redis servers
    Redis,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List contexts
    List,
    /// Use a context from now on
    Use { name: String },
    /// Add or change a context; --ca, --cert, --key, --server-name and --token-file are kept with it
    Set {
        name: String,
        /// Address of its orchestrator
        url: String,
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
    /// Further people: viewer, operator or admin, and a name
    #[arg(long = "user", value_name = "ROLE/NAME")]
    pub(crate) users: Vec<String>,
    /// Days that the certificates are valid; the authority is valid for ten years
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub(crate) days: u32,
}

/// Reads a duration as manifests write it.
fn duration(text: &str) -> Result<std::time::Duration, String> {
    crate::manifest::scalar::parse_duration(text)
        .and_then(|duration| duration.try_into().ok())
        .ok_or_else(|| "expected a duration like 30s, 5m or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    fn command(line: &str) -> Command {
        parse(line)
            .unwrap_or_else(|error| panic!("{line}: {error}"))
            .command
    }

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn apply_takes_files_and_a_generation() {
        let Command::Apply(args) =
            command("drover apply -f a.yaml -f - --wait --timeout 1h30m --expect-generation 0 -y")
        else {
            panic!("not apply")
        };
        assert_eq!(args.filenames, ["a.yaml", "-"]);
        assert_eq!(
            (args.wait, args.yes, args.expect_generation),
            (true, true, Some(0))
        );
        assert_eq!(args.timeout, Duration::from_secs(5400));
        assert!(parse("drover apply").is_err());
    }

    #[test]
    fn plan_is_for_a_file_or_a_cluster() {
        assert!(
            matches!(command("drover plan orders"), Command::Plan(args) if args.cluster.as_deref() == Some("orders"))
        );
        assert!(
            matches!(command("drover plan -f x --detailed-exitcode"), Command::Plan(args) if args.detailed_exitcode)
        );
        assert!(parse("drover plan").is_err() && parse("drover plan x -f y").is_err());
    }

    #[test]
    fn get_takes_a_kind_and_a_name() {
        let Command::Get(args) = command("drover get nodes hello -o json -l a=b -w --no-headers")
        else {
            panic!("not get")
        };
        assert_eq!(args.target, ["nodes", "hello"]);
        assert_eq!(
            (args.output, args.watch, args.no_headers),
            (Format::Json, true, true)
        );
        assert!(parse("drover get").is_err() && parse("drover get a b c").is_err());
    }

    #[test]
    fn exec_passes_everything_after_the_hyphens_on() {
        let Command::Exec(args) = command("drover exec orders/db-1 -it -- redis-cli -p 1 --help")
        else {
            panic!("not exec")
        };
        assert_eq!(args.command, ["redis-cli", "-p", "1", "--help"]);
        assert!(args.stdin && args.tty);
    }

    #[test]
    fn zero_is_a_size() {
        assert!(
            matches!(command("drover scale hello web 0"), Command::Scale(args) if args.size == Some(0))
        );
        assert!(
            matches!(command("drover scale hello web --standby 1"), Command::Scale(args) if args.size.is_none())
        );
        assert!(
            parse("drover scale hello web").is_err() && parse("drover scale hello web -1").is_err()
        );
    }

    #[test]
    fn dev_cleans_or_runs() {
        let Command::Dev(args) = command(
            "drover dev --simulate aws,gcd --emulate gcp,eu=aws --platform own=http://127.0.0.1:1 --rm",
        ) else {
            panic!("not dev")
        };
        assert_eq!(args.simulate, ["aws", "gcd"]);
        assert_eq!(args.emulate, ["gcp", "eu=aws"]);
        assert_eq!(args.platform, ["own=http://127.0.0.1:1"]);
        assert!(
            parse("drover dev --clean --rm").is_err() && parse("drover dev --clean -f x").is_err()
        );
    }

    #[test]
    fn the_hidden_commands_keep_their_own_flags() {
        let Command::Agent(args) =
            command("drover agent --node-id web-0-abcde --version 1.2 --listen 127.0.0.1:0")
        else {
            panic!("not agent")
        };
        assert_eq!(
            (args.node_id.as_str(), args.version.as_str()),
            ("web-0-abcde", "1.2")
        );
        assert!(
            matches!(command("drover launch /x/y"), Command::Launch { directory } if directory.as_os_str() == "/x/y")
        );
    }

    #[test]
    fn the_server_may_be_named_anywhere() {
        let cli = parse("drover get clusters --server http://127.0.0.1:1").unwrap();
        assert_eq!(cli.global.server.as_deref(), Some("http://127.0.0.1:1"));
    }

    #[test]
    fn what_is_no_duration_is_wrong_usage() {
        assert!(parse("drover wait cluster x --timeout 30").is_err());
        assert!(
            matches!(command("drover wait cluster x"), Command::Wait(args) if args.timeout == Duration::from_secs(60))
        );
    }
}
