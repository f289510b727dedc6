//! Command line that runs an emulator.

use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use drover_emulators::digitalocean::{self, DigitalOcean, DigitalOceanSettings};
use drover_emulators::ec2::{Ec2, Ec2Settings};
use drover_emulators::gce::{Gce, GceSettings};
use drover_emulators::metal::{Metal, MetalSettings};
use drover_emulators::{Api, Emulator, Settings};
use jiff::SignedDuration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};

/// Timeout of a health check. The emulator responds from memory.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

const LISTEN: &str = "cannot listen on that port of 127.0.0.1";

/// Emulates the API of a cloud on 127.0.0.1, until it is interrupted.
///
/// While it runs, `URL/_emulator/` shows and changes what no cloud would: GET machines, ledger and requests; POST faults
/// ({"operation": "RunInstances", "fault": "lose-answer"}), machines/ID/stop and machines/ID/terminate, skew/MS; DELETE
/// faults and requests.
#[derive(Parser)]
#[command(name = "drover-emulators", version)]
struct Cli {
    #[command(subcommand)]
    which: Which,
}

#[derive(Subcommand)]
enum Which {
    /// Amazon EC2, one region, with GetCallerIdentity of STS
    Ec2(Ec2Args),
    /// Google Compute Engine, one project
    Gce(GceArgs),
    /// DigitalOcean, one team
    Digitalocean(TokenArgs),
    /// metal-stack, with racks of machines in two partitions
    Metal(Common),
    /// Ask an emulator that runs whether it answers; exit code 0: it does
    Health {
        /// Its port of 127.0.0.1
        port: u16,
    },
}

#[derive(Args)]
struct Common {
    /// The port of 127.0.0.1; 0 is any
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// From made to running
    #[arg(long, value_parser = time, default_value = "5s")]
    pending_delay: Duration,
    /// From deleted to gone
    #[arg(long, value_parser = time, default_value = "5s")]
    stopping_delay: Duration,
    /// How long a new machine does not appear in lists
    #[arg(long, value_parser = time, default_value = "1s")]
    visibility_delay: Duration,
    /// The most machines of a zone; may be given for several zones
    #[arg(long, value_name = "ZONE=N", value_parser = zone)]
    capacity: Vec<(String, usize)>,
    /// The most machines of the account
    #[arg(long, value_name = "N")]
    quota: Option<usize>,
    /// Calls a second before the API throttles
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// The most elements of one page
    #[arg(long, value_name = "N")]
    page_size: Option<usize>,
    /// Machines that are somebody else's, from the start
    #[arg(long, value_name = "N", default_value_t = 0)]
    foreign: usize,
}

#[derive(Args)]
struct Ec2Args {
    #[command(flatten)]
    common: Common,
    /// The region
    #[arg(long, default_value = "eu-central-1")]
    region: String,
    /// An access key id that is let in; may be given several times. Without any, all are
    #[arg(long, value_name = "ID")]
    access_key: Vec<String>,
    /// A key pair that is there from the start
    #[arg(long, value_name = "NAME", default_value = "default")]
    key_pair: Vec<String>,
    /// The most spot instances of a zone
    #[arg(long, value_name = "ZONE=N", value_parser = zone)]
    spot_capacity: Vec<(String, usize)>,
    /// The most virtual processors of on-demand instances
    #[arg(long, value_name = "N")]
    vcpu_quota: Option<u32>,
}

#[derive(Args)]
struct GceArgs {
    #[command(flatten)]
    common: Common,
    /// The project
    #[arg(long, default_value = "drover-emulated")]
    project: String,
    /// From the answer of a call that changes something to the end of its operation
    #[arg(long, value_parser = time, default_value = "500ms")]
    operation_delay: Duration,
}

#[derive(Args)]
struct TokenArgs {
    #[command(flatten)]
    common: Common,
    /// The access token
    #[arg(long, default_value = digitalocean::TOKEN)]
    token: String,
}

impl Common {
    fn settings(&self) -> Settings {
        Settings {
            port: self.port,
            pending_delay: self.pending_delay,
            stopping_delay: self.stopping_delay,
            visibility_delay: self.visibility_delay,
            capacity: self.capacity.iter().cloned().collect(),
            quota: self.quota,
            rate: self.rate,
            burst: None,
            page_size: self.page_size,
        }
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let duration: SignedDuration = text
        .parse()
        .map_err(|_| "a time is a number and a unit: 500ms, 2s, 1m".to_owned())?;
    duration
        .try_into()
        .map_err(|_| "a time cannot be negative".to_owned())
}

fn zone(text: &str) -> Result<(String, usize), String> {
    let (zone, most) = text.split_once('=').ok_or("ZONE=N, as eu-central-1a=10")?;
    Ok((
        zone.to_owned(),
        most.parse().map_err(|_| "N is a whole number")?,
    ))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    match Cli::parse().which {
        Which::Ec2(args) => ec2(args).await,
        Which::Gce(args) => gce(args).await,
        Which::Digitalocean(args) => digitalocean(args).await,
        Which::Metal(args) => metal(args).await,
        Which::Health { port } => tokio::time::timeout(HEALTH_TIMEOUT, health(port))
            .await
            .context("no answer")?,
    }
}

async fn ec2(args: Ec2Args) -> anyhow::Result<()> {
    let settings = Ec2Settings {
        common: args.common.settings(),
        region: args.region.clone(),
        access_keys: args.access_key,
        key_pairs: args.key_pair,
        spot_capacity: args.spot_capacity.into_iter().collect(),
        vcpu_quota: args.vcpu_quota,
        ..Ec2Settings::default()
    };
    let ec2 = Ec2::start(settings).await.context(LISTEN)?;
    ec2.add_foreign(args.common.foreign);
    let hints = [("AWS_ENDPOINT_URL", ec2.url()), ("AWS_REGION", args.region)];
    until_interrupted("EC2", ec2, &hints).await
}

async fn gce(args: GceArgs) -> anyhow::Result<()> {
    let settings = GceSettings {
        common: args.common.settings(),
        project: args.project.clone(),
        operation_delay: args.operation_delay,
        ..GceSettings::default()
    };
    let gce = Gce::start(settings).await.context(LISTEN)?;
    gce.add_foreign(args.common.foreign);
    until_interrupted(
        "Compute Engine",
        gce,
        &[("GOOGLE_CLOUD_PROJECT", args.project)],
    )
    .await
}

async fn digitalocean(args: TokenArgs) -> anyhow::Result<()> {
    let settings = DigitalOceanSettings {
        common: args.common.settings(),
        tokens: vec![args.token.clone()],
        ..DigitalOceanSettings::default()
    };
    let ocean = DigitalOcean::start(settings).await.context(LISTEN)?;
    ocean.add_foreign(args.common.foreign);
    until_interrupted("DigitalOcean", ocean, &[("DIGITALOCEAN_TOKEN", args.token)]).await
}

async fn metal(args: Common) -> anyhow::Result<()> {
    let settings = MetalSettings {
        common: args.settings(),
        ..MetalSettings::default()
    };
    let hmac = settings.hmac.get("Metal-Edit").cloned().unwrap_or_default();
    let project = settings.projects.first().cloned().unwrap_or_default();
    let metal = Metal::start(settings).await.context(LISTEN)?;
    let foreign = metal.add_foreign(&project, args.foreign);
    if foreign.len() < args.foreign {
        eprintln!("room for {} machines of somebody else only", foreign.len());
    }
    let hints = [("METALCTL_API_URL", metal.url()), ("METALCTL_HMAC", hmac)];
    until_interrupted("metal-stack", metal, &hints).await
}

/// Prints the URL and the environment that a client needs, and waits.
async fn until_interrupted<A: Api>(
    name: &str,
    emulator: Emulator<A>,
    hints: &[(&str, String)],
) -> anyhow::Result<()> {
    println!("{name} on {}", emulator.url());
    for (variable, value) in hints {
        println!("  {variable}={value}");
    }
    let signals = "cannot wait for signals";
    let mut terminate = signal(SignalKind::terminate()).context(signals)?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context(signals)?,
        _ = terminate.recv() => {}
    }
    emulator.shutdown().await;
    Ok(())
}

/// Requests a path that is not subject to faults. A container without a shell has no other means of a health check.
async fn health(port: u16) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream
        .write_all(
            b"GET /_emulator/ledger HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )
        .await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    anyhow::ensure!(
        status == *b"HTTP/1.1 200",
        "answered {}",
        String::from_utf8_lossy(&status)
    );
    Ok(())
}
