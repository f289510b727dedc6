//! Contexts: names for orchestrators, kept in the user's config directory.

use std::{collections::BTreeMap, fs, net::IpAddr, path::PathBuf};

use anyhow::Context as _;
use drover_client::{Authorities, Bearer, ClientSettings, Target};
use http::uri::Authority;
use serde::{Deserialize, Serialize};

use crate::{
    cli::{ContextCommand, Global, Secure},
    failure::{Exit, Failure, Outcome},
    output::{self, Table},
};

/// Address of the orchestrator if none is given.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:7400";
/// Environment variable with a bearer token.
const TOKEN: &str = "DROVER_TOKEN";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Name of the context in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// Address of the orchestrator, or of several with commas between.
    server: String,
    #[serde(flatten)]
    secure: Security,
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
        ContextCommand::List => {
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
            output::print(&table.render(true, false))?;
        }
        ContextCommand::Use { name } => {
            if !config.contexts.contains_key(&name) {
                return Err(unknown(&name, &config));
            }
            config.current = Some(name.clone());
            save(&config)?;
            output::line(&format!("using context {name}"))?;
        }
        ContextCommand::Show { name } => {
            let name = name.or_else(|| config.current.clone()).ok_or_else(|| {
                Failure::new(Exit::NotFound, "error: no context is in use".to_owned())
            })?;
            let entry = config.contexts.get(&name);
            let entry = entry.ok_or_else(|| unknown(&name, &config))?;
            let text = serde_saphyr::to_string(entry)
                .map_err(|error| anyhow::anyhow!("the context cannot be shown: {error}"))?;
            output::print(&format!("name: {name}\n{text}"))?;
        }
        ContextCommand::Delete { names } => {
            // All or none.
            if let Some(name) = names.iter().find(|it| !config.contexts.contains_key(*it)) {
                return Err(unknown(name, &config));
            }
            config.contexts.retain(|name, _| !names.contains(name));
            let current = config.current.take_if(|name| names.contains(name));
            save(&config)?;
            for name in &names {
                output::line(&format!("context {name} deleted"))?;
            }
            if current.is_some() && !config.contexts.is_empty() {
                complain!("no context is in use now: drover context use NAME");
            }
        }
        ContextCommand::Set { name, url } => {
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
            output::line(&format!("context {name} set"))?;
        }
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead(text: &str, secure: &Security) -> Result<String, String> {
        address(text, secure)
            .map(|target| target.to_string())
            .map_err(|failure| failure.message)
    }

    #[test]
    fn an_address_without_a_scheme_is_plaintext_on_this_machine_only() {
        let none = Security::default();
        for (text, url) in [
            ("127.0.0.1:7411", "http://127.0.0.1:7411"),
            (" localhost:1 ", "http://localhost:1"),
            ("localhost", "http://localhost:7400"),
            ("[::1]:7400", "http://[::1]:7400"),
            ("[::1]", "http://[::1]:7400"),
            ("https://example.com:1", "https://example.com:1"),
        ] {
            assert_eq!(lead(text, &none).unwrap(), url, "{text}");
        }
        let why = lead("example.com", &none).unwrap_err();
        assert!(
            why.contains("write https://example.com:7400, or http://example.com:7400 for"),
            "{why}"
        );
        for text in [
            "",
            ":1",
            "localhost:",
            "localhost:99999",
            "a b",
            "x/y",
            "ftp://x",
        ] {
            assert!(lead(text, &none).is_err(), "{text}");
        }
    }

    #[test]
    fn several_addresses_have_commas_between() {
        let secure = Security {
            ca: Some("ca.pem".into()),
            ..Security::default()
        };
        let none = Security::default();
        let lead = |text: &str, secure: &Security| -> Result<String, String> {
            let targets = addresses(text, secure).map_err(|failure| failure.message)?;
            let texts: Vec<String> = targets.iter().map(Target::to_string).collect();
            Ok(texts.join(" "))
        };
        for (text, secure, urls) in [
            ("localhost", &none, "http://localhost:7400"),
            (
                "127.0.0.1:1, [::1]:2,localhost",
                &none,
                "http://127.0.0.1:1 http://[::1]:2 http://localhost:7400",
            ),
            ("a,b:1", &secure, "https://a:7400 https://b:1"),
            ("https://a:1,https://b:1", &none, "https://a:1 https://b:1"),
            (
                "http://a:1,localhost:2",
                &none,
                "http://a:1 http://localhost:2",
            ),
            ("unix:/run/a,b", &none, "unix:/run/a,b"),
        ] {
            assert_eq!(lead(text, secure).unwrap(), urls, "{text}");
        }
        for (text, secure, why) in [
            ("a:1,,c:1", &secure, "address 2 is empty"),
            (",a:1", &secure, "address 1 is empty"),
            ("a:1, ", &secure, "address 2 is empty"),
            ("a:1,b:1,a:1", &secure, "\"a:1\" is there twice"),
            (
                "a:1,https://A:1/",
                &secure,
                "\"https://A:1/\" is there twice",
            ),
            (
                "https://a:1,http://b:1",
                &none,
                "\"http://b:1\" is for plaintext and the first address for TLS",
            ),
            (
                "localhost:1,https://b:1",
                &none,
                "\"https://b:1\" is for TLS and the first address for plaintext",
            ),
            ("localhost:1,unix:/a", &none, "\"unix:/a\" is a socket"),
            ("localhost:1,b:1", &none, "\"b:1\" does not say whether TLS"),
            ("localhost:1,a b", &none, "\"a b\" is not an address"),
        ] {
            let found = lead(text, secure).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
    }

    #[test]
    fn a_socket_is_a_path() {
        let none = Security::default();
        let here = std::env::current_dir().unwrap();
        for (text, url) in [
            ("unix:/run/drover.sock", "unix:/run/drover.sock".to_owned()),
            (
                "unix:///run/drover.sock",
                "unix:/run/drover.sock".to_owned(),
            ),
            ("unix:api", format!("unix:{}", here.join("api").display())),
        ] {
            assert_eq!(lead(text, &none).unwrap(), url, "{text}");
        }
        for text in ["unix:", "unix://", "unix://run/x"] {
            let why = lead(text, &none).unwrap_err();
            assert!(why.contains("unix:PATH"), "{text}: {why}");
        }
    }

    #[test]
    fn an_address_without_a_scheme_is_tls_where_there_are_certificates() {
        let secure = Security {
            ca: Some("ca.pem".into()),
            ..Security::default()
        };
        assert_eq!(lead("127.0.0.1:1", &secure).unwrap(), "https://127.0.0.1:1");
    }
}
