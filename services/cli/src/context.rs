//! Contexts: names for orchestrators, kept in the user's config directory.

use std::{collections::BTreeMap, fs, net::IpAddr, path::PathBuf};

use anyhow::Context as _;
use drover_client::{Authorities, Bearer, ClientSettings, Target};
use http::uri::Authority;
use serde::{Deserialize, Serialize};

use crate::{
    cli::{ContextCommand, ContextFormat, Global, Secure},
    failure::{Exit, Failure, Outcome},
    hint::Hint,
    output::{self, Table},
};

/// Address of the orchestrator if none is given.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:7400";
/// Environment variable with a bearer token.
const TOKEN: &str = "DROVER_TOKEN";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Name of the context in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    /// Address of the orchestrator, or of several with commas between.
    server: String,
    #[serde(flatten)]
    secure: Security,
}

/// A context for programs.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    /// Whether it is in use.
    current: bool,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// Several contexts for programs.
#[derive(Serialize)]
struct Several<'a> {
    contexts: Vec<Shown<'a>>,
}

/// Whom to trust, and who calls. Files, with absolute paths.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Security {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    crl: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_name: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    require_role: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
}

impl Security {
    /// The values of flags and environment.
    pub(crate) fn of(flags: &Secure) -> Self {
        Self {
            ca: flags.ca.clone(),
            crl: flags.crl.clone(),
            cert: flags.cert.clone(),
            key: flags.key.clone(),
            server_name: flags.server_name.clone(),
            require_role: flags.require_role,
            token_file: flags.token_file.clone(),
        }
    }

    /// These values, completed from others. A certificate and its key come from the same source.
    fn or(self, other: Self) -> Self {
        let (cert, key) = if self.cert.is_some() || self.key.is_some() {
            (self.cert, self.key)
        } else {
            (other.cert, other.key)
        };
        Self {
            ca: self.ca.or(other.ca),
            crl: self.crl.or(other.crl),
            cert,
            key,
            server_name: self.server_name.or(other.server_name),
            require_role: self.require_role || other.require_role,
            token_file: self.token_file.or(other.token_file),
        }
    }

    fn absolute(self) -> std::io::Result<Self> {
        let full = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
        Ok(Self {
            ca: full(self.ca)?,
            crl: full(self.crl)?,
            cert: full(self.cert)?,
            key: full(self.key)?,
            server_name: self.server_name,
            require_role: self.require_role,
            token_file: full(self.token_file)?,
        })
    }

    /// A target with these values. Fails if a file is unusable, or if certificates are given for plaintext.
    pub(crate) fn apply(&self, target: Target) -> Outcome<Target> {
        let certificate = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone()).into()),
            (None, None) => None,
            _ => return Err(Failure::usage("--cert and --key go together")),
        };
        let tls = ClientSettings {
            authorities: self
                .ca
                .clone()
                .map_or(Authorities::System, Authorities::File),
            certificate,
            server_name: self.server_name.clone(),
            crl: self.crl.clone(),
            require_role: self.require_role,
        };
        let target = target.with_tls(tls)?;
        // Not a flag, as other users can see flags.
        let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
        let bearer = token
            .map(Bearer::Token)
            .or_else(|| self.token_file.clone().map(Bearer::File));
        Ok(match bearer {
            Some(bearer) => target.with_bearer(bearer),
            None => target,
        })
    }
}

/// Addresses and security of the orchestrators.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    server: String,
    /// What says so. Empty: nothing does, it is the default.
    origin: String,
    secure: Security,
}

impl Place {
    /// What the addresses were taken from: a flag, a variable or a context.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn targets(&self) -> Outcome<Vec<Target>> {
        targets(&self.server, &self.secure)
    }
}

/// The orchestrators at one address, or at several with commas between.
fn targets(text: &str, secure: &Security) -> Outcome<Vec<Target>> {
    addresses(text, secure)?
        .into_iter()
        .map(|target| secure.apply(target))
        .collect()
}

/// Parses one address, or several with commas between. The path of a socket may contain commas, and is always alone: a
/// socket leads to this machine, which has one orchestrator.
fn addresses(text: &str, secure: &Security) -> Outcome<Vec<Target>> {
    if !text.contains(',') || text.trim().starts_with("unix:") {
        return Ok(vec![address(text, secure)?]);
    }
    let wrong = |why: String| Err(Failure::failed(format!("in {text:?}, {why}")));
    let mut targets: Vec<Target> = Vec::new();
    for (index, part) in text.split(',').enumerate() {
        let part = part.trim();
        if part.is_empty() {
            return wrong(format!("address {} is empty", index + 1));
        }
        if part.starts_with("unix:") {
            return wrong(format!("{part:?} is a socket, which is given alone"));
        }
        let target = address(part, secure)?;
        if targets.iter().any(|other| other.uri() == target.uri()) {
            return wrong(format!("{part:?} is there twice"));
        }
        if let Some(first) = targets.first()
            && first.is_encrypted() != target.is_encrypted()
        {
            let speaks = |target: &Target| {
                if target.is_encrypted() {
                    "TLS"
                } else {
                    "plaintext"
                }
            };
            return wrong(format!(
                "{part:?} is for {} and the first address for {}; write https:// before all, or http:// before all",
                speaks(&target),
                speaks(first)
            ));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Port of the orchestrator if none is given.
const DEFAULT_PORT: u16 = 7400;

/// Parses an address: a URL, `HOST:PORT` or `HOST`. Without a scheme it is TLS if there are certificates, plaintext if
/// it is on this machine, and otherwise an error, so that a forgotten scheme does not send a token in the clear.
fn address(text: &str, secure: &Security) -> Outcome<Target> {
    let text = text.trim();
    if let Some(path) = text.strip_prefix("unix:") {
        return socket(path);
    }
    if text.contains("://") || text.is_empty() {
        return Ok(text.parse()?);
    }
    let authority: Authority = text.parse().map_err(|_| {
        Failure::failed(format!(
            "{text:?} is not an address; expected http://HOST:PORT or https://HOST:PORT"
        ))
    })?;
    let text = match authority.port() {
        None if !text.ends_with(':') => format!("{text}:{DEFAULT_PORT}"),
        _ => text.to_owned(),
    };
    let host = authority.host().trim_matches(['[', ']']);
    let here = host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if secure.ca.is_some() || secure.cert.is_some() {
        Ok(format!("https://{text}").parse()?)
    } else if here {
        Ok(format!("http://{text}").parse()?)
    } else {
        Err(Failure::failed(format!(
            "{text:?} does not say whether TLS is spoken there; write https://{text}, or http://{text} for plaintext"
        )))
    }
}

/// Parses a unix socket: `unix:PATH`, or `unix://PATH` with an absolute path.
fn socket(path: &str) -> Outcome<Target> {
    let path = match path.strip_prefix("//") {
        Some(rest) if rest.starts_with('/') => rest,
        Some(_) => "",
        None => path,
    };
    if path.is_empty() {
        return Err(Failure::failed(
            "a socket is given as unix:PATH, or as unix:///PATH if it begins with slashes",
        ));
    }
    // Contexts are used from other directories.
    Ok(Target::on_socket(std::path::absolute(path)?))
}

fn path() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))
        .context("neither XDG_CONFIG_HOME nor HOME is set")?;
    Ok(base.join("drover").join("config.yaml"))
}

fn load() -> anyhow::Result<Config> {
    let path = path()?;
    match fs::read_to_string(&path) {
        Ok(text) => {
            serde_saphyr::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn save(config: &Config) -> anyhow::Result<()> {
    let path = path()?;
    let failed = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(failed)?;
    }
    let text = serde_saphyr::to_string(config)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(failed)?;
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(failed)
}

/// Whether an address, or one of several, has a user, and maybe a password. No part of an address may have an `@`, but
/// the path of a socket.
fn has_user(text: &str) -> bool {
    text.contains('@') && !text.trim().starts_with("unix:")
}

const NO_USER: &str = "must not contain a user or a password";

/// Fails if a URL that a flag or a variable gives has a user or a password: errors and hints show URLs.
pub(crate) fn refuse_users(global: &Global) -> Outcome<()> {
    let server = if global.server_is_flag {
        "--server"
    } else {
        "DROVER_SERVER"
    };
    for (name, text) in [
        (server, &global.server),
        ("--otlp-endpoint", &global.otlp_endpoint),
    ] {
        if text.as_deref().is_some_and(has_user) {
            return Err(Failure::usage(format!("`{name}` {NO_USER}")));
        }
    }
    Ok(())
}

/// The orchestrator to use: the flag, then the named context, then the variable, then the current context, then the
/// default.
pub(crate) fn place(global: &Global) -> Outcome<Place> {
    let flags = Security::of(&global.secure);
    // An empty variable counts as unset.
    let server = global.server.as_ref().filter(|text| !text.is_empty());
    let said = if global.server_is_flag {
        "--server"
    } else {
        "DROVER_SERVER"
    };
    if let (Some(server), None) = (server, &global.context) {
        return Ok(Place {
            server: server.clone(),
            origin: said.to_owned(),
            secure: flags,
        });
    }
    let config = load()?;
    let Some(name) = global.context.as_ref().or(config.current.as_ref()) else {
        return Ok(Place {
            server: DEFAULT_SERVER.to_owned(),
            origin: String::new(),
            secure: flags,
        });
    };
    let entry = config
        .contexts
        .get(name)
        .ok_or_else(|| unknown(name, &config))?;
    let flag = server.filter(|_| global.server_is_flag);
    if flag.is_none() && has_user(&entry.server) {
        let why = format!("the server of context `{name}` {NO_USER}");
        return Err(Failure::failed(why));
    }
    Ok(Place {
        server: flag.unwrap_or(&entry.server).clone(),
        origin: flag.map_or_else(|| format!("context {name}"), |_| said.to_owned()),
        secure: flags.or(entry.secure.clone()),
    })
}

/// Names of all contexts.
pub(crate) fn names() -> Outcome<Vec<String>> {
    Ok(load()?.contexts.into_keys().collect())
}

fn unknown(name: &str, config: &Config) -> Failure {
    let names: Vec<&str> = config.contexts.keys().map(String::as_str).collect();
    let list = if names.is_empty() {
        "there is none yet".to_owned()
    } else {
        names.join(", ")
    };
    Failure::new(
        Exit::NotFound,
        format!("error: there is no context `{name}` (contexts: {list})"),
    )
}

pub(crate) fn run(global: &Global, command: ContextCommand) -> Outcome {
    let mut config = load()?;
    match command {
        ContextCommand::List { output } => {
            let mut table = Table::new(&["CURRENT", "NAME", "SERVER"]);
            for (name, entry) in &config.contexts {
                let mark = if config.current.as_ref() == Some(name) {
                    "*"
                } else {
                    ""
                };
                table
                    .rows
                    .push(vec![mark.into(), name.clone(), entry.server.clone()]);
            }
            let names: Vec<&str> = config.contexts.keys().map(String::as_str).collect();
            let all = several(&config, &names);
            print(output, &table.render(true, false), &names, &all)?;
        }
        ContextCommand::Use { name, output } => {
            if !config.contexts.contains_key(&name) {
                return Err(unknown(&name, &config));
            }
            config.current = Some(name.clone());
            save(&config)?;
            print_one(output, &format!("using context {name}\n"), &name, &config)?;
        }
        ContextCommand::Show { name, output } => {
            let name = name.or_else(|| config.current.clone()).ok_or_else(|| {
                Failure::new(Exit::NotFound, "error: no context is in use".to_owned())
            })?;
            let entry = config.contexts.get(&name);
            let entry = entry.ok_or_else(|| unknown(&name, &config))?;
            let words = format!("name: {name}\n{}", as_yaml(entry)?);
            print_one(output, &words, &name, &config)?;
        }
        ContextCommand::Delete { names, output } => {
            // All or none.
            if let Some(name) = names.iter().find(|it| !config.contexts.contains_key(*it)) {
                return Err(unknown(name, &config));
            }
            let mut left = config.clone();
            left.contexts.retain(|name, _| !names.contains(name));
            let current = left.current.take_if(|name| names.contains(name));
            save(&left)?;
            let words: String = names
                .iter()
                .map(|name| format!("context {name} deleted\n"))
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            print(output, &words, &names, &several(&config, &names))?;
            let mut others = left.contexts.keys();
            let hint = match (others.next(), others.next()) {
                (Some(only), None) => Hint::use_context(only),
                _ => Hint::contexts(),
            };
            if current.is_some() && !left.contexts.is_empty() {
                complain!("no context is in use now: {}", hint.told());
            }
        }
        ContextCommand::Set { name, url, output } => {
            if has_user(&url) {
                return Err(Failure::usage(format!("`URL` {NO_USER}")));
            }
            let secure = Security::of(&global.secure).absolute()?;
            // Fails here, and not in all later commands.
            let targets = targets(&url, &secure)?;
            let server: Vec<String> = targets.iter().map(Target::to_string).collect();
            config.contexts.insert(
                name.clone(),
                Entry {
                    server: server.join(","),
                    secure,
                },
            );
            config.current.get_or_insert_with(|| name.clone());
            save(&config)?;
            print_one(output, &format!("context {name} set\n"), &name, &config)?;
        }
    }
    Ok(Exit::Done)
}

/// The contexts of these names, for programs.
fn several<'a>(config: &'a Config, names: &[&'a str]) -> Several<'a> {
    let shown = names.iter().filter_map(|&name| {
        Some(Shown {
            name,
            current: config.current.as_deref() == Some(name),
            entry: config.contexts.get(name)?,
        })
    });
    Several {
        contexts: shown.collect(),
    }
}

fn print_one(format: ContextFormat, words: &str, name: &str, config: &Config) -> Outcome<()> {
    let shown = several(config, &[name]).contexts.pop();
    print(format, words, &[name], &shown)
}

fn print<T: Serialize>(
    format: ContextFormat,
    words: &str,
    names: &[&str],
    shown: &T,
) -> Outcome<()> {
    let text = match format {
        ContextFormat::Text => words.to_owned(),
        ContextFormat::Json => {
            let text = serde_json::to_string_pretty(shown);
            text.map_err(|error| Failure::failed(error.to_string()))? + "\n"
        }
        ContextFormat::Yaml => as_yaml(shown)?,
        ContextFormat::Name => names
            .iter()
            .map(|name| format!("context/{name}\n"))
            .collect(),
    };
    output::print(&text)?;
    Ok(())
}

fn as_yaml<T: Serialize>(shown: &T) -> anyhow::Result<String> {
    serde_saphyr::to_string(shown)
        .map_err(|error| anyhow::anyhow!("the context cannot be shown: {error}"))
}

#[cfg(test)]
mod tests;
