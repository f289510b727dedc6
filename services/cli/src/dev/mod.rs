//! `drover dev`: everything in one process, only for this machine.

mod data;
mod embed;
mod emulate;
mod hosts;
mod stream;

use std::{collections::BTreeSet, ops::ControlFlow, path::Path, sync::Arc};

use drover_orchestrator::PlatformTlsSettings;
use drover_proto::orchestrator::v1::{Platform, PlatformSpec};
use drover_server::Place;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use self::{data::DataDir, embed::Servers, stream::Lines};
use crate::{
    cli::{DevArgs, Global},
    client::{Change, Client},
    commands::apply::{self, Options},
    failure::{Exit, Failure, Outcome},
    output::{self, Format, count, quoted},
};

/// Address of the API if none is given.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7400";
/// Maximum number of nodes listed at the end.
const MAX_NAMED: usize = 5;

pub(crate) async fn run(global: &Global, args: DevArgs) -> Outcome {
    if args.clean {
        return clean(&args.data_dir);
    }
    if std::env::var_os("RUST_LOG").is_some() {
        drover_server::telemetry::init(drover_server::settings::LogFormat::Auto);
    }
    let elsewhere = elsewhere(&args.platform)?;
    // Arguments are checked before anything is created.
    if args.simulate.iter().any(|name| name.trim() == "local") {
        return Err(Failure::usage(
            "`local` is the platform of this machine; give the simulated one another name",
        ));
    }
    // Checked before anything starts, but not read yet: a pipe can only be read once.
    for file in args.filenames.iter().filter(|name| *name != "-") {
        std::fs::metadata(file)
            .map_err(|error| Failure::failed(format!("cannot read {file}: {error}")))?;
    }
    let hosts = hosts::read(args.simulate_hosts.as_deref(), &args.simulate)?;
    let of_hosts = |there: bool| there.then(|| hosts::PLATFORM.to_owned());
    let asked = simulated(
        args.simulate
            .iter()
            .cloned()
            .chain(of_hosts(hosts.is_some())),
    );
    emulate::parse(&args.emulate, &taken(&asked, &elsewhere))?;
    if args.socket.is_none() && !args.listen.ip().to_canonical().is_loopback() {
        return Err(Failure::usage(format!(
            "{} can be reached from outside, and `drover dev` knows no login; listen on 127.0.0.1, or run \
             drover-orchestrator with certificates (docs/tasks/servers.md)",
            args.listen
        )));
    }
    let listener = embed::listen(args.listen, args.socket.as_deref())
        .await
        .map_err(|error| Failure::failed(error.to_string()))?;
    let data = DataDir::open(&args.data_dir)?;
    let hosts = hosts::keep(&data, hosts)?;
    let simulated = simulated(
        args.simulate
            .iter()
            .cloned()
            .chain(of_hosts(hosts.is_some()))
            .chain(data.known_simulated()),
    );
    let emulated = emulate::parse(&args.emulate, &taken(&simulated, &elsewhere))?;
    let mut servers = {
        // For platforms that run elsewhere.
        let secure = &global.secure;
        let tls = PlatformTlsSettings {
            ca: secure.ca.clone(),
            cert: secure.cert.clone(),
            key: secure.key.clone(),
            crl: secure.crl.clone(),
            require_role: secure.require_role,
        };
        Servers::start(&data, (&simulated, hosts), &emulated, listener, tls).await?
    };
    // Whatever fails from here on, the servers are shut down in order.
    let result = serve(&args, &mut servers, &data, elsewhere).await;
    servers.shutdown().await;
    let lines = result?;
    if args.rm {
        clean(&args.data_dir)?;
    } else {
        output::line(&farewell(&lines, &args))?;
    }
    Ok(Exit::Done)
}

/// Parses `--platform NAME=URL`.
fn elsewhere(words: &[String]) -> Outcome<Vec<(String, String)>> {
    let parse = |word: &String| match word.split_once('=') {
        Some((name, url)) if !name.is_empty() && url.contains("://") => {
            Ok((name.to_owned(), url.to_owned()))
        }
        _ => Err(Failure::usage(format!(
            "`{word}` is not a platform; write NAME=http://HOST:PORT"
        ))),
    };
    words.iter().map(parse).collect()
}

/// Names that an emulated cloud must not have.
fn taken(simulated: &[String], elsewhere: &[(String, String)]) -> Vec<String> {
    std::iter::once("local".to_owned())
        .chain(simulated.iter().cloned())
        .chain(elsewhere.iter().map(|(name, _)| name.clone()))
        .collect()
}

/// Names of the simulated platforms, starting with the one that always exists.
fn simulated(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::from(["local".to_owned()]);
    std::iter::once("simulated".to_owned())
        .chain(names.map(|name| name.trim().to_owned()))
        .filter(|name| !name.is_empty() && seen.insert(name.clone()))
        .collect()
}

fn clean(directory: &Path) -> Outcome {
    let removed = data::clean(directory)?;
    output::line(&format!(
        "removed {} and {}; 0 processes, 0 files left",
        count_processes(removed.processes),
        count(removed.files, "file")
    ))?;
    Ok(Exit::Done)
}

fn count_processes(number: usize) -> String {
    format!("{number} process{}", if number == 1 { "" } else { "es" })
}

async fn serve(
    args: &DevArgs,
    servers: &mut Servers,
    data: &DataDir,
    elsewhere: Vec<(String, String)>,
) -> Outcome<Arc<Mutex<Lines>>> {
    let mut names: Vec<String> = servers.endpoints.keys().cloned().collect();
    names.extend(elsewhere.iter().map(|(name, _)| name.clone()));
    output::line(&format!(
        "Drover {} dev: {}, no login, not for production",
        env!("CARGO_PKG_VERSION"),
        match servers.place() {
            Place::Port(_) => "loopback only",
            Place::Socket(_) => "this user only",
        }
    ))?;
    output::line(&format!(
        "  API {} (gRPC, reflection) · platforms {} · data {} ({})",
        servers.place(),
        names.join(", "),
        shown(&args.data_dir),
        if data.new { "new" } else { "kept" }
    ))?;
    if !args.emulate.is_empty() {
        output::line("  Emulated clouds forget everything when this ends")?;
    }
    if !servers.emulators().is_empty() {
        let emulators = servers.emulators().iter();
        let emulators: Vec<String> = emulators
            .map(|(name, url)| format!("{name} {url}"))
            .collect();
        output::line(&format!("  emulators {}", emulators.join(", ")))?;
    }
    register(servers, elsewhere).await?;
    servers.open().await?;
    let client = Client::connect(&servers.target()?);
    let lines = Arc::new(Mutex::new(Lines::new(output::colours())));
    let mut watches = JoinSet::new();
    let applied = if args.filenames.is_empty() {
        Vec::new()
    } else {
        let objects = apply::read(&client, &args.filenames).await?;
        apply::check(&client, &objects, &Options::default(), ", nothing applied").await?;
        apply::apply(&client, &objects, &Options::default(), Format::Table).await?
    };
    let cluster = match applied.first() {
        Some(cluster) => Some(cluster.clone()),
        None => client
            .list_clusters(None)
            .await?
            .clusters
            .into_iter()
            .next(),
    };
    let hint = Arc::new(Mutex::new(Hint {
        server: match servers.place() {
            Place::Port(address) if address.to_string() == DEFAULT_ADDRESS => None,
            Place::Port(address) => Some(format!("http://{address}")),
            place @ Place::Socket(_) => Some(place.to_string()),
        },
        cluster: cluster.map(|cluster| cluster.name),
        expected: applied.len(),
        shown: false,
    }));
    watches.spawn(watch_nodes(client.clone(), lines.clone(), hint.clone()));
    watches.spawn(watch_clusters(client, lines.clone(), hint.clone()));
    if applied.is_empty() {
        // The watches acquire the locks in the same order.
        let lines = lines.lock();
        hint.lock().show(&lines);
    }
    tokio::select! {
        signal = drover_server::shutdown_signal() => signal?,
        // A watch of servers in the same process only ends after a serious failure.
        Some(ended) = watches.join_next() => {
            if let Ok(Err(failure)) = ended {
                return Err(failure);
            }
        }
    }
    watches.shutdown().await;
    Ok(lines)
}

/// Registers the platforms of this process, and those that run elsewhere.
async fn register(servers: &Servers, elsewhere: Vec<(String, String)>) -> Outcome<()> {
    let client = Client::connect(&servers.target()?);
    let endpoints = servers
        .endpoints
        .iter()
        .map(|(name, endpoint)| (name.clone(), endpoint.clone()));
    for (name, endpoint) in endpoints.chain(elsewhere) {
        let spec = PlatformSpec {
            endpoint,
            ..Default::default()
        };
        let platform = Platform {
            name: name.clone(),
            spec: Some(spec),
            ..Default::default()
        };
        let answer = client
            .call(apply::register(&client, platform, false))
            .await?;
        answer
            .warnings
            .iter()
            .for_each(|warning| complain!("warning: platform/{name}: {warning}"));
    }
    Ok(())
}

/// A path in the form in which people type it.
fn shown(path: &Path) -> String {
    if path.is_relative() && !path.starts_with(".") && !path.starts_with("..") {
        format!("./{}", path.display())
    } else {
        path.display().to_string()
    }
}

async fn watch_nodes(
    client: Client,
    lines: Arc<Mutex<Lines>>,
    hint: Arc<Mutex<Hint>>,
) -> Outcome<()> {
    let failure = client
        .watch_nodes(None, |change| {
            let mut lines = lines.lock();
            say(match change {
                Change::Upsert(node) => lines.node(node),
                Change::Removal(key) => lines.node_gone(key),
                Change::Complete => None,
            })?;
            while let Some(line) = lines.released() {
                say(Some(line))?;
            }
            hint.lock().offer(&lines);
            ControlFlow::Continue(())
        })
        .await?;
    Err(failure)
}

async fn watch_clusters(
    client: Client,
    lines: Arc<Mutex<Lines>>,
    hint: Arc<Mutex<Hint>>,
) -> Outcome<()> {
    let failure = client
        .watch_clusters(None, None, |change| {
            let mut lines = lines.lock();
            say(match change {
                Change::Upsert(cluster) => lines.cluster(cluster, Instant::now()),
                Change::Removal(name) => lines.cluster_gone(name),
                Change::Complete => None,
            })?;
            hint.lock().offer(&lines);
            ControlFlow::Continue(())
        })
        .await?;
    Err(failure)
}

fn say(line: Option<String>) -> ControlFlow<Failure> {
    match line.map_or(Ok(()), |line| output::print_painted(&(line + "\n"))) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error.into()),
    }
}

/// Suggests the next commands, once.
struct Hint {
    /// Address of the API, if commands have to name it.
    server: Option<String>,
    /// A cluster that is there.
    cluster: Option<String>,
    /// Number of clusters that have to be ready first.
    expected: usize,
    shown: bool,
}

impl Hint {
    /// Shows the hint once all applied clusters are ready.
    fn offer(&mut self, lines: &Lines) {
        let ready = lines.all_ready().unwrap_or(0);
        if self.expected > 0 && ready >= self.expected {
            self.show(lines);
        }
    }

    fn show(&mut self, lines: &Lines) {
        if std::mem::replace(&mut self.shown, true) {
            return;
        }
        // A hint that cannot be printed is not a failure.
        let _ = output::line(&format!(
            "Next, in another terminal:  {}",
            self.commands(lines).join(" · ")
        ));
    }

    fn commands(&self, lines: &Lines) -> Vec<String> {
        let mut commands = Vec::new();
        commands.extend(
            self.server
                .as_ref()
                .map(|server| format!("export DROVER_SERVER={server}")),
        );
        // Of a cluster that was there before nothing is known yet: what was its process may be another one now.
        let node = lines.nodes().next().filter(|_| self.expected > 0);
        match (node, &self.cluster) {
            (Some(node), _) => {
                let (cluster, group) = (&node.cluster, &node.group);
                let size = lines
                    .nodes()
                    .filter(|other| other.cluster == *cluster && other.group == *group)
                    .count();
                commands.extend(crate::output::rows::pid(node).map(|pid| format!("kill -9 {pid}")));
                commands.push(format!("drover get nodes {cluster}"));
                commands.push(format!("drover scale {cluster}/{group} {}", size + 2));
                commands.push(format!("drover describe cluster {cluster}"));
            }
            (None, Some(cluster)) => {
                commands.push(format!("drover get nodes {cluster}"));
                commands.push(format!("drover describe cluster {cluster}"));
                commands.push("drover status".into());
            }
            (None, None) => {
                commands.push("drover init | drover apply -f -".into());
                commands.push("drover get platforms".into());
            }
        }
        commands
    }
}

/// Lists the nodes that keep running, and how to remove them.
fn farewell(lines: &Mutex<Lines>, args: &DevArgs) -> String {
    let directory = &*args.data_dir;
    let lines = lines.lock();
    let running: Vec<String> = lines
        .nodes()
        .filter_map(|node| {
            let pid = crate::output::rows::pid(node)?;
            Some(format!("{}/{} (pid {pid})", node.cluster, node.name))
        })
        .collect();
    let data = if directory == Path::new(".drover") {
        String::new()
    } else {
        format!(" --data-dir {}", quoted(&directory.display().to_string()))
    };
    let listen = match &args.socket {
        Some(socket) => format!(" --socket {}", quoted(&socket.display().to_string())),
        None if args.listen.to_string() == DEFAULT_ADDRESS => String::new(),
        None => format!(" --listen {}", args.listen),
    };
    if running.is_empty() {
        return format!(
            "Stopped; no node is running. Data is kept in {}; remove it: drover dev{data} --clean",
            shown(directory)
        );
    }
    let mut named = running
        .iter()
        .take(MAX_NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if running.len() > MAX_NAMED {
        named.push_str(&format!(" and {} more", running.len() - MAX_NAMED));
    }
    format!(
        "Stopped; {} keep running: {named}\nContinue: drover dev{data}{listen} · remove nodes and data: drover dev{data} --clean",
        count(running.len(), "node")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_changes_a_cluster_from_before_is_suggested() {
        let commands = |cluster: Option<&str>| {
            let hint = Hint {
                server: None,
                cluster: cluster.map(str::to_owned),
                expected: 0,
                shown: false,
            };
            hint.commands(&Lines::new(false)).join(" · ")
        };
        assert_eq!(
            commands(Some("hello")),
            "drover get nodes hello · drover describe cluster hello · drover status"
        );
        assert!(commands(None).starts_with("drover init | drover apply -f -"));
    }
}
