//! Process templates and their resolution on this machine.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};

use drover_core::{Error, Reason, Result};
use drover_templates::Rendered;
use serde::{Deserialize, Serialize};

use super::ports::PortNumbers;

/// Environment variables of the platform that are passed to nodes. Others may contain secrets.
const PASSED_ON: [&str; 9] = [
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL",
];

/// Stop signals that a node may request.
const STOP_SIGNALS: [(&str, i32); 5] = [
    ("SIGTERM", 15),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGHUP", 1),
    ("SIGKILL", 9),
];

/// A process template as written. The documentation of the parent module shows an example.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ProcessFile {
    #[serde(default)]
    requires: Vec<RequirementFile>,
    command: String,
    #[serde(default)]
    arguments: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    working_directory: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    ports: BTreeMap<String, u16>,
    #[serde(default)]
    files: Vec<FileFile>,
    #[serde(default)]
    agent: Option<AgentFile>,
    #[serde(default)]
    readiness: Option<ReadinessFile>,
    #[serde(default)]
    stop_signal: Option<String>,
    #[serde(default)]
    peers: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFile {
    path: String,
    content: String,
    #[serde(default)]
    mode: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentFile {
    scheme: Scheme,
    port: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scheme {
    Grpc,
    Grpcs,
    Http,
    Https,
    Tcp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadinessFile {
    #[serde(default)]
    port: Option<String>,
    #[serde(default)]
    file: Option<String>,
}

/// A program that a script of the template needs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequirementFile {
    program: String,
    package: String,
    #[serde(default)]
    directory: Option<PathBuf>,
}

/// The information that a launcher needs to become the process of a node. Secret, therefore without `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct ProcessSpec {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// The complete environment.
    pub(super) environment: BTreeMap<String, String>,
    /// `None`: the data directory of the node.
    pub(super) working_directory: Option<PathBuf>,
    /// `None`: the user of the platform.
    pub(super) user: Option<User>,
    /// Whether it runs without privileges. Absent in records that were written before clusters had users.
    #[serde(default)]
    pub(super) confined: bool,
    /// Uid of the cluster, whose limits apply. `None` if the record was written before there were limits, or if the
    /// cluster has no user of its own.
    #[serde(default)]
    pub(super) tenant: Option<u32>,
}

/// Environment variables that refer to the platform's own user.
const OF_USER: [&str; 3] = ["USER", "LOGNAME", "TMPDIR"];

impl ProcessSpec {
    /// Makes it run as the user of its cluster, unless its template names one, and within the cluster's limits.
    pub(super) fn confine(&mut self, own: User, home: &Path) {
        self.user.get_or_insert(own);
        self.confined = true;
        self.tenant = Some(own.uid);
        let inherited = |name: &str, value: &String| env::var(name).as_ref() == Ok(value);
        self.environment
            .retain(|name, value| !OF_USER.contains(&&**name) || !inherited(name, value));
        if let Some(value) = self.environment.get_mut("HOME")
            && inherited("HOME", value)
        {
            *value = home.display().to_string();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A file to write before the process starts. Secret, therefore without `Debug`.
pub(super) struct File {
    /// Relative to the data directory.
    pub(super) path: PathBuf,
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
}

/// A resolved template.
pub(super) struct Process {
    pub(super) spec: ProcessSpec,
    pub(super) files: Vec<File>,
    pub(super) ports: PortNumbers,
    /// `scheme://host:port`.
    pub(super) agent_address: Option<String>,
    /// Port that accepts connections once the node is ready.
    pub(super) readiness: Option<u16>,
    /// File below the data directory that exists once the node is ready.
    pub(super) readiness_file: Option<PathBuf>,
    /// Signal number.
    pub(super) stop_signal: i32,
    /// Whether it gets the list of its peers.
    pub(super) peers: bool,
}

/// The location of a node.
pub(super) struct Site<'a> {
    /// Host name or address by which others reach it.
    pub(super) host: &'a str,
    /// Final path of its data directory.
    pub(super) data: &'a Path,
    /// Its allocated ports.
    pub(super) ports: &'a PortNumbers,
    /// Environment variables that every node gets.
    pub(super) facts: BTreeMap<String, String>,
    /// Environment variables from the group's properties.
    pub(super) overrides: BTreeMap<String, String>,
    /// Version of the store that is asked for. Empty: none.
    pub(super) version: &'a str,
}

impl ProcessFile {
    /// Parses a rendered template.
    pub(super) fn parse(rendered: &Rendered) -> Result<Self> {
        rendered.parse()
    }

    /// Resolves it for this machine.
    ///
    /// # Errors
    /// `Precondition` with the field that does not work here; values of the template are never repeated, except names
    /// of commands, users and ports.
    pub(super) fn resolve(self, site: Site<'_>) -> Result<Process> {
        let mut ports = site.ports.clone();
        ports.extend(self.ports);
        let port = |field: &str, name: &str| {
            ports.get(name).copied().ok_or_else(|| {
                let known = ports
                    .keys()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(", ");
                wrong(
                    field,
                    format!("there is no port `{name}`; the ports of the template are: {known}"),
                )
            })
        };
        let agent_address = match &self.agent {
            Some(agent) => {
                let number = port("agent.port", &agent.port)?;
                Some(format!(
                    "{}://{}",
                    agent.scheme.name(),
                    endpoint(site.host, number)
                ))
            }
            None => None,
        };
        let readiness = self
            .readiness
            .as_ref()
            .and_then(|ready| ready.port.as_deref())
            .map(|name| port("readiness.port", name))
            .transpose()?;
        let readiness_file = self
            .readiness
            .as_ref()
            .and_then(|ready| ready.file.as_deref())
            .map(|path| below("readiness.file", path))
            .transpose()?;
        let mut environment = PASSED_ON
            .into_iter()
            .filter_map(|name| env::var(name).ok().map(|value| (name.to_owned(), value)))
            .collect::<BTreeMap<_, _>>();
        environment.extend(site.facts);
        environment.extend(
            ports
                .iter()
                .map(|(name, number)| (port_variable(name), number.to_string())),
        );
        environment.extend(self.environment);
        environment.extend(site.overrides);
        if environment
            .keys()
            .any(|name| name.is_empty() || name.contains(['=', '\0']))
        {
            return Err(wrong(
                "environment",
                "a name is empty or has `=` in it".to_owned(),
            ));
        }
        let texts = self.arguments.iter().chain(environment.values());
        if texts.into_iter().any(|text| text.contains('\0')) {
            return Err(wrong(
                "arguments, environment",
                "a NUL character".to_owned(),
            ));
        }
        let files = self
            .files
            .into_iter()
            .enumerate()
            .map(|(at, file)| file.resolve(at))
            .collect::<Result<_>>()?;
        let path = environment.get("PATH").map(OsString::from);
        for required in &self.requires {
            required.check(path.clone(), site.version)?;
        }
        let program = find(&self.command, path)?;
        let working_directory = match &self.working_directory {
            Some(path) => Some(site.data.join(below("workingDirectory", path)?)),
            None => None,
        };
        let user = self.user.as_deref().map(user).transpose()?.flatten();
        let stop_signal = stop_signal(self.stop_signal.as_deref())?;
        let spec = ProcessSpec {
            program,
            arguments: self.arguments,
            environment,
            working_directory,
            user,
            confined: false,
            tenant: None,
        };
        Ok(Process {
            spec,
            files,
            ports,
            agent_address,
            readiness,
            readiness_file,
            stop_signal,
            peers: self.peers,
        })
    }
}

impl RequirementFile {
    fn check(&self, path: Option<OsString>, version: &str) -> Result<()> {
        let Self {
            program,
            package,
            directory,
        } = self;
        let (there, place) = match directory {
            Some(directory) => (
                is_program(&directory.join(program)),
                format!(" in {}", directory.display()),
            ),
            None => (look_up(program, path).is_some(), String::new()),
        };
        if there {
            return Ok(());
        }
        let message = format!(
            "the program `{program}` is not installed on this machine{place}: install the package {package}"
        );
        let error = Error::new(Reason::Precondition, &message).with_resource("command", program);
        let of_version = directory.as_deref().is_some_and(|it| is_of(it, version));
        Err(if of_version {
            error.with_violation("group.version", message)
        } else {
            error
        })
    }
}

/// Whether programs of a version are in this directory: one of its parts is the version, or the first number of it.
fn is_of(directory: &Path, version: &str) -> bool {
    let major = version.split('.').next().unwrap_or_default();
    !major.is_empty()
        && directory
            .iter()
            .any(|part| part == version || part == major)
}

impl FileFile {
    fn resolve(self, at: usize) -> Result<File> {
        let mode = match &self.mode {
            None => 0o600,
            Some(mode) => u32::from_str_radix(mode.trim_start_matches("0o"), 8)
                .ok()
                .filter(|mode| *mode <= 0o777)
                .ok_or_else(|| {
                    wrong(
                        &format!("files[{at}].mode"),
                        "no mode such as \"0600\"".to_owned(),
                    )
                })?,
        };
        Ok(File {
            path: below(&format!("files[{at}].path"), &self.path)?,
            content: self.content.into_bytes(),
            mode,
        })
    }
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Grpcs => "grpcs",
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
        }
    }
}

/// `host:port`, with an IPv6 address in brackets.
pub(super) fn endpoint(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Environment variable with a port number: `DROVER_PORT_CLIENT`.
fn port_variable(name: &str) -> String {
    let name = name
        .to_uppercase()
        .replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("DROVER_PORT_{name}")
}

fn wrong(field: &str, what: String) -> Error {
    Error::new(
        Reason::Precondition,
        format!("process template, {field}: {what}"),
    )
}

/// Validates that a path stays below the node's directory.
fn below(field: &str, path: &str) -> Result<PathBuf> {
    let path = PathBuf::from(path);
    let stays = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if path.as_os_str().is_empty() || !stays {
        return Err(wrong(
            field,
            "the path must stay below the directory of the node".to_owned(),
        ));
    }
    Ok(path)
}

/// The program of a command: an absolute path, or a name that is looked up as in a shell.
fn find(command: &str, path: Option<OsString>) -> Result<PathBuf> {
    let missing = |way_out: &str| {
        Error::new(
            Reason::Precondition,
            format!("the command `{command}` is not installed on this machine: {way_out}"),
        )
        .with_resource("command", command)
    };
    if command.contains('/') {
        let program = PathBuf::from(command);
        return if program.is_absolute() && is_program(&program) {
            Ok(program)
        } else {
            Err(missing(
                "the template needs the absolute path of a program, or its name",
            ))
        };
    }
    look_up(command, path)
        .ok_or_else(|| missing("install it, or start the platform with a PATH that has it"))
}

pub(super) fn look_up(command: &str, path: Option<OsString>) -> Option<PathBuf> {
    env::split_paths(&path.unwrap_or_default())
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(command))
        .find(|program| !command.is_empty() && is_program(program))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The user that a process runs as. `None` if this platform is not root and cannot change it.
fn user(name: &str) -> Result<Option<User>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")
        .map_err(|error| wrong("user", format!("/etc/passwd cannot be read: {error}")))?;
    users
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let known = fields.next()? == name;
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            known.then_some(User { uid, gid })
        })
        .map(Some)
        .ok_or_else(|| wrong("user", format!("there is no user `{name}` on this machine")))
}

fn stop_signal(name: Option<&str>) -> Result<i32> {
    let name = name.unwrap_or("SIGTERM");
    STOP_SIGNALS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
        .ok_or_else(|| {
            let known = STOP_SIGNALS.map(|(name, _)| name).join(", ");
            wrong("stopSignal", format!("expected one of {known}"))
        })
}
